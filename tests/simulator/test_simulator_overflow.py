"""The window: what each provider refuses, in its own words, and what it lets pass."""

import pytest
from simulator_calls import (
    BODIES,
    CHAT_TOOL,
    PATHS,
    app_of,
    assistant,
    call,
    chat,
    finish_of,
    input_tokens,
    plain,
    text_of,
    user,
)

from tidegate.simulator.profiles import PROFILES

ANYWHERE = [name for name, profile in PROFILES.items() if "/v1" in profile.prefixes]
"""Profiles that serve the three APIs under `/v1`."""
LONG = "x" * 4000
"""1,000 tokens and a little, against a window of 500."""


def refusal(profile, dialect="chat", **more):
    app = app_of(window=500, profile=profile, silent_truncation=False)
    answer = call(app, PATHS[dialect], plain(dialect, LONG, **more))
    assert app.state.records[-1].outcome == "overflow"
    assert app.state.violations == []
    return answer, app.state.records[-1].input_tokens


def openai(message, param, code="context_length_exceeded"):
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def test_openai_chat():
    answer, size = refusal("auto")
    text = (
        f"This model's maximum context length is 500 tokens. However, your messages resulted in {size} tokens. "
        "Please reduce the length of the messages."
    )
    assert (answer.status, answer.json) == (400, openai(text, "messages"))


def test_openai_responses():
    answer, _ = refusal("auto", "responses")
    text = "Your input exceeds the context window of this model. Please adjust your input and try again."
    assert (answer.status, answer.json) == (400, openai(text, "input"))


def test_anthropic():
    answer, size = refusal("auto", "messages")
    error = {"type": "invalid_request_error", "message": f"prompt is too long: {size} tokens > 500 maximum"}
    assert answer.status == 400
    assert answer.json == {"type": "error", "error": error, "request_id": answer.headers["request-id"]}


def test_xai():
    answer, size = refusal("xai")
    text = f"This model's maximum prompt length is 500 but the request contains {size} tokens."
    assert (answer.status, answer.json) == (400, {"code": "invalid-argument", "error": text})


def test_openrouter():
    answer, size = refusal("openrouter", tools=[CHAT_TOOL], max_tokens=100)
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (400, 400)
    assert error["message"].startswith(
        f"This endpoint's maximum context length is 500 tokens. However, you requested about {size + 100} tokens ("
    )
    assert "of text input, " in error["message"]
    assert "of tool input, 100 in the output)" in error["message"]


def test_groq():
    answer, _ = refusal("groq")
    assert answer.json == openai("Please reduce the length of the messages or completion.", "messages")


def test_mistral():
    answer, size = refusal("mistral")
    assert (answer.status, answer.json["code"], answer.json["object"]) == (400, "3051", "error")
    text = f"Prompt contains {size} tokens and 0 draft tokens, too large for model with 500 maximum context length"
    assert answer.json["message"] == text


def test_deepseek():
    answer, size = refusal("deepseek", max_tokens=16)
    assert answer.json["error"]["message"].startswith(
        f"This model's maximum context length is 500 tokens. However, you requested {size + 16} tokens "
        f"({size} in the messages, 16 in the completion)."
    )


def test_ollama():
    answer, size = refusal("ollama")
    assert answer.json == {"error": f"prompt too long; exceeded max context length by {size - 500} tokens"}


def test_llamacpp():
    answer, size = refusal("llamacpp")
    error = answer.json["error"]
    assert (
        error["message"]
        == f"request ({size} tokens) exceeds the available context size (500 tokens), try increasing it"
    )
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", size, 500)


def test_vllm_tells_a_floor_not_the_size():
    answer, size = refusal("vllm", max_tokens=100)
    text = "requested 100 output tokens and your prompt contains at least 401 input tokens, for a total of at least 501"
    assert size > 1000
    assert text in answer.json["error"]["message"]


@pytest.mark.parametrize("profile", ANYWHERE)
@pytest.mark.parametrize("dialect", PATHS)
def test_every_profile_refuses_on_every_api(profile, dialect):
    answer, _ = refusal(profile, dialect)
    assert answer.status == 400
    assert len(answer.error) > 10


@pytest.mark.parametrize("dialect", PATHS)
class TestSizes:
    def test_usage_is_what_the_window_is_held_against(self, dialect):
        roomy = app_of(window=100_000)
        body = plain(dialect, LONG, tools=[])
        body.pop("tools")
        size = input_tokens(dialect, call(roomy, PATHS[dialect], body).json)
        assert call(app_of(window=size), PATHS[dialect], body).status == 200
        assert call(app_of(window=size - 1), PATHS[dialect], body).status == 400

    def test_llamacpp_refuses_an_exact_fit(self, dialect):
        size = input_tokens(dialect, call(app_of(), PATHS[dialect], plain(dialect, "Hello.")).json)
        assert call(app_of(window=size, profile="llamacpp"), PATHS[dialect], plain(dialect, "Hello.")).status == 400

    def test_real_tokens_may_differ_from_estimated_ones(self, dialect):
        app = app_of(window=2000, usage_factor=1.5)
        small = input_tokens(dialect, call(app_of(), PATHS[dialect], plain(dialect, LONG)).json)
        large = input_tokens(dialect, call(app, PATHS[dialect], plain(dialect, LONG)).json)
        assert large == -(-small * 3 // 2)
        assert call(app_of(window=1400, usage_factor=1.5), PATHS[dialect], plain(dialect, LONG)).status == 400

    def test_an_answer_stops_where_the_window_ends(self, dialect):
        app = app_of(window=1100, answer_tokens=500)
        answer = call(app, PATHS[dialect], plain(dialect, LONG))
        limit = {"chat": "length", "responses": "max_output_tokens", "messages": "model_context_window_exceeded"}
        assert finish_of(dialect, answer.json) == limit[dialect]
        assert 0 < app.state.records[-1].output_tokens <= 1100 - app.state.records[-1].input_tokens

    def test_an_answer_stops_at_the_asked_for_limit(self, dialect):
        name = {"chat": "max_completion_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[dialect]
        app = app_of(answer_tokens=500)
        answer = call(app, PATHS[dialect], plain(dialect, "Hello.", **{name: 20}))
        limit = {"chat": "length", "responses": "max_output_tokens", "messages": "max_tokens"}
        assert finish_of(dialect, answer.json) == limit[dialect]
        assert len(text_of(dialect, answer.json)) == 80
        assert app.state.records[-1].output_tokens == 20

    def test_system_text_and_tools_count(self, dialect):
        app = app_of()
        extra = {"chat": {}, "responses": {"instructions": LONG}, "messages": {"system": LONG}}[dialect]
        body = plain(dialect, "Hello.", **extra)
        if dialect == "chat":
            body["messages"].insert(0, {"role": "system", "content": LONG})
        assert input_tokens(dialect, call(app, PATHS[dialect], body).json) > 1000
        tools = {"chat": [{"type": "function", "function": {"name": "f", "description": LONG}}]}
        tools["responses"] = [{"type": "function", "name": "f", "description": LONG}]
        tools["messages"] = [{"name": "f", "description": LONG, "input_schema": {}}]
        body = plain(dialect, "Hello.", tools=tools[dialect])
        assert input_tokens(dialect, call(app, PATHS[dialect], body).json) > 1000


class TestOutputCounted:
    """Providers for which the asked-for output must fit too."""

    def test_openai_in_the_old_wording(self):
        answer = call(app_of(window=500, counts_output=True), PATHS["chat"], plain("chat", "Hello.", max_tokens=490))
        assert "you requested 503 tokens (13 in the messages, 490 in the completion)" in answer.error

    def test_anthropic_in_the_old_wording(self):
        body = plain("messages", "Hello.", max_tokens=490)
        app = app_of(window=500, counts_output=True)
        answer = call(app, PATHS["messages"], body)
        assert answer.error.startswith("input length and `max_tokens` exceed context limit: 13 + 490 > 500, decrease")
        assert [violation.rule for violation in app.state.violations] == ["output-over-window"]

    def test_by_profile(self):
        body = plain("chat", "Hello.", max_tokens=490)
        refused = {
            name for name in ANYWHERE if call(app_of(window=500, profile=name), PATHS["chat"], body).status != 200
        }
        assert refused == {"openrouter", "groq", "deepseek", "vllm"}


@pytest.mark.parametrize("dialect", PATHS)
def test_ollama_drops_the_beginning_without_a_word(dialect):
    app = app_of(window=700, profile="ollama")
    history = [user("FACT-01 " + "x" * 2000), assistant("Fine."), user("FACT-02 " + "y" * 1000)]
    answer = call(app, PATHS[dialect], BODIES[dialect](*history))
    assert answer.status == 200
    assert input_tokens(dialect, answer.json) <= 700
    assert (app.state.facts, app.state.records[-1].truncated) == (("FACT-02",), True)


def test_truncation_takes_whole_tool_rounds():
    app = app_of(window=700, profile="ollama")
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    history = [
        {"role": "system", "content": "Stay."},
        user("FACT-01 " + "x" * 900),
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "y" * 2900},
        user("What do you know?"),
    ]
    answer = call(app, PATHS["chat"], chat(*history))
    assert text_of("chat", answer.json) == "I know no facts."
    assert input_tokens("chat", answer.json) < 60


class TestOverflowInStream:
    """A 200, then an error event: as some providers do it."""

    def stream(self, dialect, **settings):
        app = app_of(window=500, overflow_in_stream=True, **settings)
        answer = call(app, PATHS[dialect], plain(dialect, LONG, stream=True))
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert app.state.records[-1].outcome == "overflow"
        return answer.events

    def test_chat(self):
        (event,) = self.stream("chat")
        assert event["error"]["code"] == "context_length_exceeded"

    def test_messages(self):
        (event,) = self.stream("messages")
        assert (event["type"], event["error"]["type"]) == ("error", "invalid_request_error")
        assert event["error"]["message"].startswith("prompt is too long: ")

    def test_responses_nested_error(self):
        events = self.stream("responses")
        assert [event["type"] for event in events] == ["response.created", "response.in_progress", "error"]
        assert [event["sequence_number"] for event in events] == [0, 1, 2]
        assert events[2]["error"]["code"] == "context_length_exceeded"

    def test_flat_errors_too(self):
        assert "maximum prompt length" in self.stream("responses", profile="xai")[2]["error"]["message"]
        assert "maximum prompt length" in self.stream("chat", profile="xai")[0]["error"]

    def test_not_where_nothing_streams(self):
        app = app_of(window=500, overflow_in_stream=True)
        assert call(app, PATHS["chat"], plain("chat", LONG)).status == 400
