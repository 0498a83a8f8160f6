"""What chat completions refuses: one broken rule a case."""

import pytest
from simulator_calls import CHAT, CHAT_TOOL, app_of, assistant, call, chat, user

APP = app_of(window=100_000)


def asking(*ids, **more):
    calls = [{"id": id_, "type": "function", "function": {"name": "read_file", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(id_, content="done"):
    return {"role": "tool", "tool_call_id": id_, "content": content}


GO = user("Go.")
UNANSWERED = "The following tool_call_ids did not have response messages: "

BROKEN = {
    "no-model": ({"messages": [GO]}, "model", "you must provide a model parameter"),
    "no-messages": ({"model": "m"}, "required", "Missing required parameter: 'messages'."),
    "messages-text": ({"model": "m", "messages": "hi"}, "type", "Invalid type for 'messages'"),
    "messages-empty": ({"model": "m", "messages": []}, "empty", "Invalid 'messages': empty array."),
    "unknown-field": (chat(GO, effort="high"), "unknown-field", "Unrecognized request argument supplied: effort"),
    "role-unknown": (chat({"role": "robot", "content": "x"}), "role", "Invalid value: 'robot'. Supported values are:"),
    "role-missing": (chat({"content": "x"}), "role", "Invalid value: 'None'."),
    "role-list": (chat({"role": [], "content": "x"}), "role", "Invalid value: '[]'."),
    "content-null": (chat(user(None)), "content", "Invalid value for 'content': expected a string, got null."),
    "content-empty-list": (chat(user([])), "empty", "Invalid 'messages[0].content': empty array."),
    "content-number": (chat(user(5)), "type", "Invalid type for 'messages[0].content'"),
    "assistant-says-nothing": (chat(GO, assistant(None), GO), "content", "expected a string, got null."),
    "part-unknown": (chat(user([{"type": "input_text", "text": "x"}])), "part-type", "Invalid value: 'input_text'."),
    "calls-empty": (chat(GO, assistant("x") | {"tool_calls": []}), "empty", "Invalid 'messages[1].tool_calls'"),
    "calls-too-many": (chat(GO, asking(*map(str, range(129)))), "too-many-calls", "array too long"),
    "call-without-id": (chat(GO, asking(None)), "required", "'messages[1].tool_calls[0].id'"),
    "arguments-object": (
        chat(GO, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]}),
        "type",
        "Invalid type for 'messages[1].tool_calls[0].function.arguments'",
    ),
    "result-first": (chat(result("a")), "result-without-call", "must be a response to a preceeding message"),
    "result-without-id": (chat(GO, asking("a"), {"role": "tool", "content": "x"}), "required", "tool_call_id"),
    "result-of-another": (chat(GO, asking("a"), result("b")), "result-without-call", "'tool_call_id' of 'b' not found"),
    "result-twice": (
        chat(GO, asking("a", "b"), result("a"), result("a")),
        "result-without-call",
        "'tool_call_id' of 'a' not found",
    ),
    "result-late": (
        chat(GO, asking("a"), result("a"), GO, result("a")),
        "result-without-call",
        "must be a response to a preceeding message",
    ),
    "call-at-end": (chat(GO, asking("a")), "call-without-result", UNANSWERED + "a"),
    "call-then-user": (chat(GO, asking("a"), GO), "call-without-result", UNANSWERED + "a"),
    "call-half-answered": (chat(GO, asking("a", "b"), result("a"), GO), "call-without-result", UNANSWERED + "b"),
    "tools-empty": (chat(GO, tools=[]), "empty", "Invalid 'tools': empty array."),
    "choice-without-tools": (chat(GO, tool_choice="auto"), "companion", "only allowed when 'tools' are specified"),
    "parallel-without-tools": (chat(GO, parallel_tool_calls=True), "companion", "only allowed when 'tools'"),
    "stream-options": (chat(GO, stream_options={}), "companion", "only allowed when 'stream' is enabled"),
    "limit-zero": (chat(GO, max_tokens=0), "output-limit", "Invalid 'max_tokens': integer below minimum value."),
    "limit-text": (chat(GO, max_tokens="9"), "type", "Invalid type for 'max_tokens'"),
    "limit-old-name": (chat(GO, max_tokens=9) | {"model": "gpt-5.1"}, "output-limit-name", "'max_completion_tokens'"),
}


@pytest.mark.parametrize(("body", "rule", "text"), BROKEN.values(), ids=BROKEN)
def test_refused_and_recorded(body, rule, text):
    APP.state.reset()
    answer = call(APP, CHAT, body)
    assert answer.status == 400
    assert text in answer.json["error"]["message"]
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert [violation.rule for violation in APP.state.violations] == [rule]
    assert APP.state.records[-1].outcome == "refused"


FINE = {
    "one-message": chat(),
    "parts": chat(user([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,"}}])),
    "system-last": chat(GO, {"role": "system", "content": "Remember."}),
    "users-in-a-row": chat(GO, GO, assistant("x"), assistant("y"), GO),
    "assistant-first": chat(assistant("x"), GO),
    "assistant-last": chat(GO, assistant("x")),
    "empty-text": chat(user("")),
    "round": chat(GO, asking("a", "b"), result("b"), result("a"), GO, tools=[CHAT_TOOL], tool_choice="auto"),
    "rounds-in-a-row": chat(GO, asking("a"), result("a"), asking("b"), result("b")),
    "calls-with-words": chat(GO, asking("a") | {"content": "Reading."}, result("a", [{"type": "text", "text": "x"}])),
    "ids-used-again": chat(GO, asking("a"), result("a"), GO, asking("a"), result("a")),
    "old-functions": chat(
        GO,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "x"},
    ),
    "calls-by-a-user-are-none": chat(GO | {"tool_calls": [{}]}),
    "extras-on-messages": chat(GO, assistant("x") | {"reasoning_content": "hm"}, GO),
    "new-limit-name": chat(GO, max_completion_tokens=9) | {"model": "gpt-5.1"},
}


@pytest.mark.parametrize("body", FINE.values(), ids=FINE)
def test_allowed(body):
    answer = call(APP, CHAT, body)
    assert answer.status == 200, answer.raw


@pytest.mark.parametrize(("profile", "status"), [("mistral", 400), ("llamacpp", 500)])
class TestStrictTemplates:
    ANSWERED = (asking("a"), result("a"))

    @pytest.mark.parametrize(
        "messages",
        [
            [GO, GO],
            [assistant("x"), GO],
            [GO, assistant("x"), assistant("y"), GO],
            [GO, {"role": "system", "content": "late"}],
            [GO, *ANSWERED, GO],
        ],
        ids=["users", "assistant-first", "assistants", "late-system", "user-after-round"],
    )
    def test_roles_must_alternate(self, profile, status, messages):
        app = app_of(profile=profile)
        answer = call(app, CHAT, chat(*messages))
        assert answer.status == status
        assert [violation.rule for violation in app.state.violations] == ["alternation"]

    @pytest.mark.parametrize(
        "messages",
        [
            [GO],
            [{"role": "system", "content": "x"}, GO, assistant("x"), GO],
            [GO, *ANSWERED],
            [GO, *ANSWERED, assistant("x"), GO],
        ],
        ids=["user", "system-first", "round", "round-then-words"],
    )
    def test_turns_taken_in_order_pass(self, profile, status, messages):
        assert call(app_of(profile=profile), CHAT, chat(*messages)).status == 200


def test_mistral_wants_the_last_word_from_a_user_or_tool():
    answer = call(app_of(profile="mistral"), CHAT, chat(GO, assistant("x")))
    assert answer.json["type"] == "invalid_request_message_order"
    assert call(app_of(profile="mistral"), CHAT, chat(GO, assistant("x") | {"prefix": True})).status == 200


def test_deepseek_knows_no_developer():
    answer = call(app_of(profile="deepseek"), CHAT, chat({"role": "developer", "content": "x"}, GO))
    assert (answer.status, "unknown variant `developer`" in answer.error) == (422, True)


def test_unknown_fields_pass_where_the_provider_ignores_them():
    assert call(app_of(profile="deepseek"), CHAT, chat(GO, effort="high")).status == 200
    assert call(app_of(strict_fields=False), CHAT, chat(GO, effort="high")).status == 200


def test_models_may_be_limited():
    answer = call(app_of(models=("a", "b")), CHAT, chat())
    assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
