"""Anthropic's context editing: old tool results and old thinking cleared before the model sees them."""

import pytest
from simulator_calls import KEYS, MESSAGES, MESSAGES_TOOL, app_of, assistant, call, messages, user

from tidegate.simulator import ContextManagement

HEADER = KEYS | {"anthropic-beta": "context-management-2025-06-27"}
COUNT = "/v1/messages/count_tokens"
NEW, OLD = {"model": "claude-opus-4-6"}, {"model": "claude-3-7-sonnet"}
ASK = user("What do you know?")


def rounds(count, name="read_file"):
    """As many tool rounds, each result with a fact and 400 bytes."""
    history = [user("Go.")]
    for n in range(count):
        use = {"type": "tool_use", "id": f"t{n}", "name": name, "input": {"path": f"IN-{n}" + "z" * 80}}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"FACT-{n} " + "y" * 400}
        history += [assistant([use]), user([result])]
    return [*history, assistant("Done."), ASK]


def tools(**more):
    return {"edits": [{"type": "clear_tool_uses_20250919", **more}]}


def measure(kind, value):
    return {"type": kind, "value": value}


NOW = {"trigger": measure("tool_uses", 1)}


def ask(app, history, management, headers=HEADER, **more):
    body = messages(*history, **NEW, tools=[MESSAGES_TOOL], context_management=management) | more
    return call(app, MESSAGES, body, headers)


@pytest.fixture
def app():
    return app_of(window=200_000, tool_rounds=0)


class TestToolResults:
    @pytest.mark.parametrize(
        ("edit", "cleared"),
        [
            (NOW, 3),
            (NOW | {"keep": measure("tool_uses", 1)}, 5),
            (NOW | {"keep": measure("tool_uses", 0)}, 6),
            (NOW | {"keep": measure("tool_uses", 6)}, 0),
            ({"trigger": measure("tool_uses", 6)}, 3),
            ({"trigger": measure("tool_uses", 7)}, 0),
            ({"trigger": measure("input_tokens", 500)}, 3),
            ({"trigger": measure("input_tokens", 5000)}, 0),
            ({}, 0),
            (NOW | {"exclude_tools": ["read_file"]}, 0),
            (NOW | {"exclude_tools": ["other"]}, 3),
            (NOW | {"clear_at_least": measure("input_tokens", 250)}, 3),
            (NOW | {"clear_at_least": measure("input_tokens", 2500)}, 0),
        ],
    )
    def test_how_many_are_cleared(self, app, edit, cleared):
        answer = ask(app, rounds(6), tools(**edit)).json
        told = answer["context_management"]["applied_edits"]
        assert [entry["cleared_tool_uses"] for entry in told] == ([cleared] if cleared else [])
        assert app.state.facts == tuple(f"FACT-{n}" for n in range(cleared, 6))
        assert bool(app.state.records[-1].effective) is bool(cleared)

    def test_what_it_saves_is_what_is_not_paid(self, app):
        whole = ask(app, rounds(6), tools()).json["usage"]["input_tokens"]
        answer = ask(app, rounds(6), tools(**NOW)).json
        (told,) = answer["context_management"]["applied_edits"]
        assert told["type"] == "clear_tool_uses_20250919"
        assert told["cleared_input_tokens"] == whole - answer["usage"]["input_tokens"] > 200

    @pytest.mark.parametrize(("inputs", "left"), [(None, 6), (False, 6), (True, 3), (["read_file"], 3), (["other"], 6)])
    def test_inputs_go_where_asked(self, app, inputs, left):
        ask(app, rounds(6), tools(**NOW, clear_tool_inputs=inputs))
        assert app.state.records[-1].effective.count(b"IN-") == left

    def test_streamed_it_is_told_at_the_end(self, app):
        end = ask(app, rounds(6), tools(**NOW), stream=True).events[-2]
        assert end["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 3

    def test_counted(self, app):
        body = {**NEW, "messages": rounds(6), "tools": [MESSAGES_TOOL]}
        plain = call(app, COUNT, body).json["input_tokens"]
        counted = call(app, COUNT, body | {"context_management": tools(**NOW)}, HEADER).json
        assert counted["context_management"] == {"original_input_tokens": plain}
        assert counted["input_tokens"] < plain - 200

    def test_before_the_threshold_is_looked_at(self):
        app = app_of(window=200_000, tool_rounds=0, context=ContextManagement(least_trigger=1))
        both = KEYS | {"anthropic-beta": "context-management-2025-06-27, compact-2026-01-12"}
        size = ask(app, rounds(6), tools()).json["usage"]["input_tokens"]
        compact = {"type": "compact_20260112", "trigger": measure("input_tokens", size)}
        edits = tools(**NOW)["edits"]
        assert ask(app, rounds(6), {"edits": [compact]}, both).json["content"][0]["type"] == "compaction"
        assert ask(app, rounds(6), {"edits": [*edits, compact]}, both).json["content"][0]["type"] == "text"


ON = {"thinking": {"type": "adaptive"}, "max_tokens": 2000}


class TestThinking:
    def history(self, app, turns):
        history = []
        for turn in range(turns):
            history.append(user(f"Turn {turn}."))
            answer = call(app, MESSAGES, messages(*history, **NEW) | ON)
            history.append(assistant(answer.json["content"]))
        return [*history, user("Go on.")]

    @pytest.mark.parametrize(
        ("keep", "cleared"),
        [
            ({}, 3),
            ({"keep": measure("thinking_turns", 2)}, 2),
            ({"keep": measure("thinking_turns", 9)}, 0),
            ({"keep": "all"}, 0),
            ({"keep": {"type": "all"}}, 0),
        ],
    )
    def test_of_how_many_turns(self, app, keep, cleared):
        edits = {"edits": [{"type": "clear_thinking_20251015", **keep}]}
        answer = ask(app, self.history(app, 4), edits, **ON)
        told = answer.json["context_management"]["applied_edits"]
        assert [entry["cleared_thinking_turns"] for entry in told] == ([cleared] if cleared else [])
        assert all(entry["cleared_input_tokens"] > 0 for entry in told)

    def test_what_the_api_clears_unbinds_no_thinking(self, app):
        model = {"model": "claude-opus-5-5"}
        history = []
        for _ in range(4):
            history.append(user("Go."))
            edits = {"edits": [{"type": "clear_thinking_20251015"}]}
            answer = ask(app, history, edits, **ON, **model)
            assert answer.status == 200, answer.raw
            history.append(assistant(answer.json["content"]))


@pytest.mark.parametrize(
    ("management", "words"),
    [
        (tools(trigger=measure("tokens", 5)), "trigger: Input tag 'tokens' found using 'type'"),
        (tools(keep=measure("input_tokens", 5)), "keep: Input tag 'input_tokens' found using 'type'"),
        (tools(keep=measure("tool_uses", -1)), "keep.tool_uses.value: Input should be greater than or equal to 0"),
        (tools(exclude_tools="read_file"), "exclude_tools: Input should be a valid list"),
        (tools(clear_tool_inputs="x"), "clear_tool_inputs: Input should be a valid list"),
        (tools(after=3), "clear_tool_uses_20250919.after: Extra inputs are not permitted"),
        ({"edits": [{"type": "clear_thinking_20251015", "keep": measure("thinking_turns", 0)}]}, "equal to 1"),
        ({"edits": [*tools()["edits"], {"type": "clear_thinking_20251015"}]}, "must be the first edit"),
        ({"edits": [{"type": "compact_20260112"}]}, "Input tag 'compact_20260112' found using 'type'"),
    ],
)
def test_refused(management, words):
    answer = ask(app_of(window=200_000), rounds(1), management)
    assert answer.status == 400
    assert words in answer.error


def test_needs_its_header(app):
    assert ask(app, rounds(1), tools(), KEYS).error == "context_management: Extra inputs are not permitted"
