"""The simulated agent: deterministic, and what its settings make of it; its tokenizer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_calls import (
    CHAT,
    CHAT_TOOL,
    PATHS,
    RESPONSES_TOOL,
    app_of,
    assistant,
    call,
    chat,
    plain,
    responses,
    text_of,
    user,
)

from tidegate.simulator import SimulatorSettings, tokens
from tidegate.simulator.profiles import PROFILES


def tool(schema):
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def called(app, body):
    message = call(app, CHAT, body).json["choices"][0]["message"]
    return [json.loads(entry["function"]["arguments"]) for entry in message.get("tool_calls", [])]


def test_the_same_run_twice_gives_the_same_bytes():
    bodies = [
        (PATHS[dialect], plain(dialect, "Hello.", stream=stream)) for dialect in PATHS for stream in (True, False)
    ]
    runs = [[call(app, path, body).raw for path, body in bodies] for app in (app_of(seed=3), app_of(seed=3))]
    assert runs[0] == runs[1]
    other = app_of(seed=4)
    assert [call(other, path, body).raw for path, body in bodies] != runs[0]


class TestTools:
    def test_as_many_rounds_as_configured(self):
        app = app_of(tool_rounds=3)
        history = [user("Go.")]
        for _ in range(9):
            message = call(app, CHAT, chat(*history, tools=[CHAT_TOOL])).json["choices"][0]["message"]
            history.append(message)
            if "tool_calls" not in message:
                break
            history.append({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x"})
        assert sum(entry["role"] == "tool" for entry in history) == 3

    def test_arguments_differ_from_turn_to_turn(self):
        app = app_of()
        first = called(app, chat(tools=[CHAT_TOOL]))
        second = called(app, chat(user("Go."), assistant("x"), user("On."), tools=[CHAT_TOOL]))
        assert first != second

    @pytest.mark.parametrize(
        ("schema", "expected"),
        [
            ({}, {}),
            ({"type": "object"}, {}),
            (
                {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "n": {"type": "integer"}}},
                {"a": "x", "n": 1},
            ),
            (
                {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}}, "required": ["b"]},
                {"b": None},
            ),
            (
                {"type": "object", "properties": {"l": {"type": "array", "items": {"type": ["null", "boolean"]}}}},
                {"l": [False]},
            ),
            (
                {"type": "object", "properties": {"o": {"type": "object", "properties": {"c": {"const": 7}}}}},
                {"o": {"c": 7}},
            ),
            ({"type": "object", "properties": []}, {}),
            ({"type": "object", "required": ["unknown"]}, {"unknown": "unknown-1"}),
        ],
    )
    def test_arguments_fit_the_schema(self, schema, expected):
        assert called(app_of(), chat(tools=[tool(schema)])) == [expected]

    @pytest.mark.parametrize(
        ("choice", "count"),
        [
            ("auto", 1),
            ("none", 0),
            ("required", 1),
            ({"type": "function", "function": {"name": "g"}}, 1),
        ],
    )
    def test_choice(self, choice, count):
        app = app_of(tool_rounds=1)
        other = {"type": "function", "function": {"name": "g"}}
        answer = call(app, CHAT, chat(tools=[CHAT_TOOL, other], tool_choice=choice)).json
        calls = answer["choices"][0]["message"].get("tool_calls", [])
        assert len(calls) == count
        if isinstance(choice, dict):
            assert calls[0]["function"]["name"] == "g"

    def test_parallel(self):
        answers = called(app_of(parallel_calls=3), chat(tools=[CHAT_TOOL]))
        assert len({json.dumps(entry) for entry in answers}) == 3

    def test_custom_tools_and_namespaces(self):
        custom = {"type": "custom", "name": "patch"}
        items = call(app_of(), PATHS["responses"], responses(tools=[custom])).json["output"]
        assert (items[0]["type"], items[0]["name"], items[0]["input"]) == ("custom_tool_call", "patch", "step 1")
        space = {"type": "namespace", "name": "n", "tools": [RESPONSES_TOOL]}
        items = call(app_of(), PATHS["responses"], responses(tools=[{"type": "web_search"}, space])).json["output"]
        assert items[0]["name"] == "read_file"

    def test_hosted_tools_are_never_called(self):
        items = call(app_of(), PATHS["responses"], responses(tools=[{"type": "web_search"}])).json["output"]
        assert items[0]["type"] == "message"


@pytest.mark.parametrize("dialect", PATHS)
class TestWords:
    def test_echo(self, dialect):
        app = app_of(behaviour="echo")
        assert text_of(dialect, call(app, PATHS[dialect], plain(dialect, "Hello  there.")).json) == "Hello there."

    def test_length(self, dialect):
        app = app_of(answer_tokens=50)
        assert len(text_of(dialect, call(app, PATHS[dialect], plain(dialect, "Hello.")).json)) == 200

    @pytest.mark.parametrize("question", ["What do you know?", "so, what facts do you remember"])
    def test_what_it_knows(self, dialect, question):
        body = plain(dialect, f"FACT-01, FACT-22. {question}")
        assert text_of(dialect, call(app_of(), PATHS[dialect], body).json) == "I know FACT-01, FACT-22."


@pytest.mark.parametrize(
    ("profile", "field"), [("deepseek", "reasoning_content"), ("openrouter", "reasoning"), ("openai", None)]
)
def test_thinking_on_chat(profile, field):
    app = app_of(profile=profile)
    body = chat(reasoning_effort="low") | {"model": "m"}
    whole = call(app, CHAT, body).json
    message = whole["choices"][0]["message"]
    assert {name for name in message if name.startswith("reasoning")} == ({field} if field else set())
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    events = call(app, CHAT, body | {"stream": True}).events
    told = "".join(event["choices"][0]["delta"].get(field, "") for event in events if event != "[DONE]")
    assert told == (message[field] if field else "")


class TestTokens:
    @pytest.mark.parametrize(
        ("value", "size"),
        [
            (None, 0),
            ([], 0),
            ("abcd", 2 + 4),
            ({"a": 1}, 2 + 4),
            ("漢" * 100, 76 + 4),
        ],
    )
    def test_a_token_is_four_bytes_of_json(self, value, size):
        assert tokens.item(value) == size

    @pytest.mark.parametrize("kind", sorted(tokens.MEDIA_TYPES))
    def test_media_count_flat(self, kind):
        part = {"type": kind, "data": "A" * 100_000}
        assert 1000 < tokens.item({"role": "user", "content": [part]}) < 1030

    @settings(max_examples=50, deadline=None)
    @given(
        st.recursive(
            st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
        )
    )
    def test_anything_has_a_size(self, value):
        assert tokens.item(value) >= 0


class TestSettings:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"window": 0}, "window: 0 is less than 1"),
            ({"profile": "acme"}, "profile: 'acme' is not one of auto, openai,"),
            ({"usage_factor": 0}, "usage_factor: 0 is not above 0"),
            ({"behaviour": "chatty"}, "behaviour: 'chatty' is not one of agent, echo"),
            ({"forgetful": "often"}, "forgetful: 'often' is not one of"),
        ],
    )
    def test_say_what_is_allowed(self, change, words):
        with pytest.raises(ValueError) as caught:
            SimulatorSettings(**change)
        assert words in str(caught.value)

    def test_every_profile_has_a_name(self):
        assert [profile.name for profile in PROFILES.values()] == list(PROFILES)
