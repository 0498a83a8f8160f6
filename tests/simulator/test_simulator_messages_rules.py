"""What the Messages API refuses: one broken rule a case."""

import pytest
from simulator_calls import MESSAGES, MESSAGES_TOOL, app_of, assistant, call, messages, user

APP = app_of(window=100_000)
GO = user("Go.")
UNANSWERED = "`tool_use` ids were found without `tool_result` blocks immediately after: "
COUNT = "/v1/messages/count_tokens"


def use(id_):
    return {"type": "tool_use", "id": id_, "name": "read_file", "input": {}}


def asking(*ids, words=None):
    text = [{"type": "text", "text": words}] if words else []
    return assistant(text + [use(id_) for id_ in ids])


def result(id_, **more):
    return {"type": "tool_result", "tool_use_id": id_, "content": "done", **more}


def answering(*ids):
    return user([result(id_) for id_ in ids])


def text(words, **more):
    return {"type": "text", "text": words, **more}


MARK = {"cache_control": {"type": "ephemeral"}}

BROKEN = {
    "no-model": ({"max_tokens": 9, "messages": [GO]}, "required", "model: Field required"),
    "no-messages": ({"max_tokens": 9, "model": "m"}, "required", "messages: Field required"),
    "no-limit": ({"model": "m", "messages": [GO]}, "required", "max_tokens: Field required"),
    "limit-text": (messages(max_tokens="9"), "type", "max_tokens: Input should be a valid integer"),
    "limit-zero": (messages(max_tokens=0), "output-limit", "max_tokens: Input should be greater than or equal to 1"),
    "unknown-field": (messages(instructions="x"), "unknown-field", "instructions: Extra inputs are not permitted"),
    "thread": (messages(thread={"type": "create"}), "thread", "thread"),
    "messages-empty": ({"model": "m", "max_tokens": 9, "messages": []}, "empty", "at least one message is required"),
    "messages-text": (
        {"model": "m", "max_tokens": 9, "messages": "x"},
        "type",
        "messages: Input should be a valid list",
    ),
    "role-unknown": (messages({"role": "tool", "content": "x"}), "role", "messages.0.role: Input should be"),
    "message-field": (messages(GO | {"name": "x"}), "unknown-field", "messages.0.name: Extra inputs are not permitted"),
    "content-missing": (messages({"role": "user"}), "required", "messages.0.content: Field required"),
    "content-empty": (messages(GO, assistant(""), GO), "empty", "messages.1: all messages must have non-empty content"),
    "content-empty-list": (messages(user([])), "empty", "messages.0: all messages must have non-empty content"),
    "text-empty": (messages(user([text("")])), "empty-text", "messages: text content blocks must be non-empty"),
    "text-blank": (messages(user([text(" \n")])), "empty-text", "must contain non-whitespace text"),
    "text-empty-in-result": (
        messages(GO, asking("a"), user([result("a") | {"content": [text("")]}])),
        "empty-text",
        "messages: text content blocks must be non-empty",
    ),
    "system-empty": (messages(system=[text("")]), "empty-text", "system: text content blocks must be non-empty"),
    "block-unknown": (
        messages(user([{"type": "input_text", "text": "x"}])),
        "block-type",
        "Input tag 'input_text' found",
    ),
    "block-field": (
        messages(user([text("x", compaction=None)])),
        "unknown-field",
        "messages.0.content.0.text.compaction: Extra inputs are not permitted",
    ),
    "compaction": (
        messages(user([{"type": "compaction", "content": "x"}, text("y")])),
        "block-type",
        "messages.0.content.0: `compaction` is not one of the expected content block types",
    ),
    "thinking-marked": (
        messages(GO, assistant([{"type": "thinking", "thinking": "x", "signature": "y", **MARK}]), GO),
        "unknown-field",
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    ),
    "assistant-first": (messages(assistant("x"), GO), "first-role", 'first message must use the "user" role'),
    "result-by-assistant": (messages(GO, assistant([result("a")]), GO), "block-role", "can only be in `user` messages"),
    "use-by-user": (messages(user([use("a")])), "block-role", "can only be in `assistant` messages"),
    "use-without-input": (
        messages(GO, assistant([{"type": "tool_use", "id": "a", "name": "f"}]), answering("a")),
        "required",
        "messages.1.content.0.tool_use.input: Field required",
    ),
    "tool-id": (messages(GO, asking("a.b"), answering("a.b")), "tool-id", "should match pattern '^[a-zA-Z0-9_-]+$'"),
    "tool-id-twice": (
        messages(GO, asking("a"), answering("a"), asking("a"), answering("a")),
        "duplicate-call",
        "messages.3.content.0: `tool_use` ids must be unique",
    ),
    "use-at-end": (messages(GO, asking("a")), "call-without-result", f"messages.1: {UNANSWERED}a."),
    "use-then-words": (messages(GO, asking("a"), GO), "call-without-result", f"messages.1: {UNANSWERED}a."),
    "use-half-answered": (
        messages(GO, asking("a", "b"), answering("b")),
        "call-without-result",
        f"messages.1: {UNANSWERED}a.",
    ),
    "result-late": (
        messages(GO, asking("a"), user([text("x")]), assistant("y"), answering("a")),
        "call-without-result",
        f"messages.1: {UNANSWERED}a.",
    ),
    "words-before-result": (
        messages(GO, asking("a"), user([text("x"), result("a")])),
        "call-without-result",
        f"messages.1: {UNANSWERED}a.",
    ),
    "merged-words-before-result": (
        messages(GO, asking("a"), GO, answering("a")),
        "call-without-result",
        f"messages.1: {UNANSWERED}a.",
    ),
    "result-alone": (
        messages(answering("a")),
        "result-without-call",
        "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: a.",
    ),
    "result-of-another": (
        messages(GO, asking("a"), answering("a", "b")),
        "result-without-call",
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: b.",
    ),
    "result-of-an-older-turn": (
        messages(GO, asking("a"), answering("a"), assistant("x"), answering("a")),
        "result-without-call",
        "messages.4.content.0: unexpected `tool_use_id`",
    ),
    "result-twice": (
        messages(GO, asking("a"), answering("a", "a")),
        "duplicate-result",
        "each tool_use must have a single result. Found multiple `tool_result` blocks with id: a",
    ),
    "markers": (
        messages(
            user([text("x", **MARK), text("y", **MARK)]),
            asking("a"),
            user([result("a", content=[text("z", **MARK)])]),
            system=[text("s", **MARK)],
            tools=[MESSAGES_TOOL | MARK],
        ),
        "cache-control",
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "prefill-blank-end": (messages(GO, assistant("x ")), "trailing-whitespace", "cannot end with trailing whitespace"),
    "prefill-on-new-models": (
        messages(GO, assistant("x")) | {"model": "claude-opus-4-6"},
        "prefill",
        "This model does not support assistant message prefill.",
    ),
}


@pytest.mark.parametrize(("body", "rule", "words"), BROKEN.values(), ids=BROKEN)
def test_refused_and_recorded(body, rule, words):
    APP.state.reset()
    answer = call(APP, MESSAGES, body)
    assert answer.status == 400
    assert words in answer.json["error"]["message"]
    assert (answer.json["type"], answer.json["error"]["type"]) == ("error", "invalid_request_error")
    assert answer.json["request_id"] == answer.headers["request-id"]
    assert [violation.rule for violation in APP.state.violations] == [rule]


FINE = {
    "string": messages(),
    "users-are-merged": messages(GO, GO, assistant("x"), GO),
    "merged-results": messages(GO, asking("a", "b"), answering("a"), answering("b")),
    "words-after-results": messages(GO, asking("a"), user([result("a"), text("and now?")])),
    "words-before-use": messages(GO, asking("a", words="Reading."), answering("a")),
    "rounds": messages(GO, asking("a"), answering("a"), asking("b"), answering("b")),
    "no-tools-needed": messages(GO, asking("a"), answering("a")),
    "result-without-content": messages(GO, asking("a"), user([{"type": "tool_result", "tool_use_id": "a"}])),
    "image": messages(
        user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}])
    ),
    "four-markers": messages(user([text("x", **MARK)] * 3), system=[text("s", **MARK)]),
    "markers-inside-inputs-are-none": messages(
        GO, assistant([use("a") | {"input": {"content": [MARK] * 9}}]), answering("a"), tools=[MESSAGES_TOOL]
    ),
    "prefill": messages(GO, assistant("The answer is (")),
    "final-assistant-empty": messages(GO, assistant("x"), GO, assistant("")),
    "system-between": messages(GO, assistant("x"), GO, {"role": "system", "content": "Be brief."}),
}


@pytest.mark.parametrize("body", FINE.values(), ids=FINE)
def test_allowed(body):
    answer = call(APP, MESSAGES, body)
    assert answer.status == 200, answer.raw


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"x-api-key": "k", "anthropic-version": "2023-06-01"}, 200, None),
        ({"authorization": "Bearer k", "anthropic-version": "2023-06-01"}, 200, None),
        ({"x-api-key": "k"}, 400, "anthropic-version: header is required"),
        ({"anthropic-version": "2023-06-01"}, 401, "x-api-key header is required"),
    ],
)
def test_headers(headers, status, words):
    answer = call(APP, MESSAGES, messages(), headers)
    assert answer.status == status
    assert words is None or answer.json["error"]["message"] == words


def test_the_models_own_output_limit():
    answer = call(app_of(max_output=400), MESSAGES, messages(max_tokens=500))
    words = "max_tokens: 500 > 400, which is the maximum allowed number of output tokens for claude-sonnet-4-5"
    assert answer.error == words


def test_unknown_model():
    answer = call(app_of(models=("a",)), MESSAGES, messages())
    assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")


class TestCounting:
    def test_is_what_the_request_would_cost(self):
        body = messages(user("x" * 400), system="Be brief.", tools=[MESSAGES_TOOL])
        counted = call(APP, COUNT, {name: body[name] for name in ("model", "messages", "system", "tools")})
        assert counted.json == {"input_tokens": call(APP, MESSAGES, body).json["usage"]["input_tokens"]}

    def test_needs_no_limit_and_has_no_window(self):
        answer = call(app_of(window=10), COUNT, {"model": "m", "messages": [user("x" * 4000)]})
        assert answer.json["input_tokens"] > 1000

    def test_holds_to_the_same_rules(self):
        assert UNANSWERED in call(APP, COUNT, {"model": "m", "messages": [GO, asking("a")]}).error
