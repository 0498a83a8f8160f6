"""A chat client whose history is compacted by the Responses API: it sees chat completions and nothing else, and where
that way can't be gone it gets what it would have got without it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
import tenacity
from agents import Chat, hold, imagine, output, run
from native import WAYS, Way, leave, natively, soon
from running import Running

from tidegate.simulator import Step
from tidegate.simulator.compaction_settings import ResponsesCompaction

OPENAI = WAYS["openai"]
ON = '[compaction]\nbridge = "auto"\n'
QUICK = {"compaction.prepare": "off", "compaction.native_timeout_seconds": 0.4, "upstream.read_timeout": 0.6}
TURNS = 20


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a call is made once more."""
    monkeypatch.setattr("tidegate.gateway.calls.CALL_WAIT", tenacity.wait_none())


def planted(turns: int = TURNS) -> set[str]:
    return {f"FACT-{number:02d}" for number in range(0, turns, 5)}


def at(gate: Running, *, stream: bool = False, way: Way = OPENAI, **extra: Any) -> Chat:
    agent = Chat(f"{gate.base}/{way.provider}", model=way.model, stream=stream)
    agent.extra = {"max_tokens": openai.NOT_GIVEN, "max_completion_tokens": 400, **extra}
    return agent


def late(gate: Running, *, stream: bool = False, turns: int = 7, **extra: Any) -> Any:
    """An agent whose history comes from elsewhere and is due to be compacted."""
    agent = at(gate, stream=stream, **extra)
    imagine(agent, "steps", turns, 1100)
    agent.history.append(agent.user("Where were we?"))
    return agent


def over(gate: Running) -> list[str]:
    return [record.path for record in gate.of("main") if record.path.endswith("/responses")]


# -- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asynchronous", "stream", "shape"),
    [
        (False, False, "steps"),
        (False, True, "steps"),
        (False, True, "single"),
        (True, False, "steps"),
        pytest.param(True, True, "single", marks=pytest.mark.slow),
    ],
)
def test_twenty_turns_with_the_real_sdk(asynchronous, stream, shape):
    with natively(OPENAI, toml=ON) as gate:
        agent = at(gate, stream=stream)
        run(agent, shape, TURNS, asynchronous=asynchronous, size=900)
        assert gate.violations == []
        assert all(record.outcome == "answered" for record in gate.of("main"))
        assert set(gate.of("main")[-1].facts) >= planted()
        assert len(gate.of("compaction")) >= 2
        assert not gate.of("summary")  # none is prepared either
        assert len(over(gate)) >= 10
        told = [turn.headers.get("x-tidegate-bridge") for turn in agent.turns]
        assert told == [None] * (TURNS - len(over(gate))) + ["responses"] * len(over(gate))
        assert {turn.headers.get("x-tidegate-strategy") for turn in agent.turns} == {None, "openai"}
        assert "compaction" not in json.dumps(agent.history)


def test_azure_has_both_too():
    way = WAYS["azure"]
    with natively(way, toml=ON) as gate:
        agent = at(gate, way=way)
        hold(agent, "steps", 14, 900)
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= planted(14)
        assert over(gate)


def test_where_the_compact_path_is_gone_the_trigger_is_used():
    gone = ResponsesCompaction(path="404")
    with natively(OPENAI, toml=ON, flags=QUICK, responses_compaction=gone) as gate:
        turn = late(gate).ask()
        assert turn.headers["x-tidegate-strategy"] == "openai-trigger"
        assert gate.violations == []


def test_words_calls_and_counts_are_those_of_the_other_api():
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        agent = late(gate)
        client = agent.client(openai.OpenAI)
        gate.simulator.script(Step(do="tool_call", name="read_file", arguments={"path": "a.py"}, on="main"))
        request = {**agent.request(), "stream_options": {"include_usage": True}}
        with client.chat.completions.stream(**request) as stream:
            seen = [event.type for event in stream]
            final = stream.get_final_completion()
        (call,) = final.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("read_file", {"path": "a.py"})
        assert final.choices[0].finish_reason == "tool_calls"
        assert final.usage is not None
        assert final.usage.prompt_tokens == gate.of("main")[-1].input_tokens
        assert "tool_calls.function.arguments.done" in seen
        assert over(gate)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("do", "finish", "said"),
    [("refusal", "stop", "refusal"), ("length", "length", "content"), ("text", "stop", "content")],
)
def test_how_it_ends(do, finish, said, stream):
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        agent = late(gate)
        gate.simulator.script(Step(do=do, text="Just so.", on="main"))
        completions, request = agent.client(openai.OpenAI).chat.completions, agent.request()
        if stream:
            chunks = list(completions.create(**request, stream=True))
            deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
            told = "".join(getattr(delta, said) or "" for delta in deltas)
            ended = next(choice.finish_reason for choice in chunks[-1].choices)
        else:
            (choice,) = completions.create(**request).choices
            told, ended = getattr(choice.message, said), choice.finish_reason
        assert ended == finish
        assert told
        assert over(gate)


def test_a_schema_goes_along():
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        agent = late(
            gate,
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            reasoning_effort="low",
            service_tier="default",
        )
        agent.ask()
        body = gate.of("main")[-1].json()
        assert body["text"]["format"]["schema"] == schema
        assert body["reasoning"] == {"effort": "low"}
        assert body["store"] is False
        assert gate.violations == []


# -- where it is not gone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        ({"seed": 7}, "unmapped seed"),
        ({"logit_bias": {"50256": -100}}, "unmapped logit_bias"),
        ({"logprobs": True}, "unmapped logprobs"),
        ({"n": 2}, "unmapped n"),
        ({"stop": ["END"]}, "unmapped stop"),
        ({"presence_penalty": 0.5}, "unmapped presence_penalty"),
        ({"store": True}, "unmapped store"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_has_no_like_there_is_served_as_chat(extra, what):
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        turn = late(gate, **extra).ask()
        assert turn.headers["x-tidegate-bridge"] == what
        assert turn.headers["x-tidegate-strategy"] == "summary"
        assert over(gate) == []
        assert not gate.of("compaction")


@pytest.mark.parametrize(
    ("toml", "flags"),
    [
        ("", {}),
        ('[compaction]\nbridge = "never"\n', {}),
        (ON, {"providers.openai.bridge": False}),
        (ON, {"compaction.strategies": ["summary"]}),
        (ON, {"providers.openai.strategies.responses": ["openai-inband", "summary"]}),
    ],
    ids=["unasked", "never", "not at this provider", "summaries only", "nothing that it is for"],
)
def test_nobody_is_taken_over_unasked(toml, flags):
    with natively(OPENAI, toml=toml, flags={**QUICK, **flags}) as gate:
        turn = late(gate).ask()
        assert turn.headers["x-tidegate-strategy"] == "summary"
        assert "x-tidegate-bridge" not in turn.headers
        assert over(gate) == []


def test_a_history_that_fits_stays_where_it_is():
    with natively(OPENAI, toml=ON) as gate:
        agent = at(gate)
        hold(agent, "steps", 5, 900)
        assert over(gate) == []
        assert [turn.headers.get("x-tidegate-bridge") for turn in agent.turns] == [None] * 5


def test_one_that_wants_to_be_left_alone_is():
    with natively(OPENAI, toml=ON) as gate:
        agent = late(gate)
        agent.extra["extra_headers"] = {"x-tidegate-bypass": "1"}
        agent.ask()
        assert over(gate) == []


# -- whatever goes wrong ---------------------------------------------------------------------------------------------

COMPACTING: dict[str, dict[str, Any]] = {
    "400": {"do": "error", "status": 400},
    "401": {"do": "error", "status": 401},
    "404": {"do": "error", "status": 404},
    "429": {"do": "error", "status": 429},
    "500": {"do": "error", "status": 500},
    "a page": {"do": "html", "status": 502},
    "garbage": {"do": "garbage"},
    "dropped": {"do": "drop"},
    "nothing in time": {"do": "hang", "seconds": 3},
    "no item": {"do": "no_artifact"},
    "two items": {"do": "two_artifacts"},
    "cut": {"do": "cut", "after": 2},
    "an overflow": {"do": "overflow"},
}


@pytest.mark.parametrize("fault", list(COMPACTING))
def test_where_nothing_is_compacted_chat_answers_with_a_summary(fault):
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        gate.simulator.script(Step(on="compaction", times=50, **COMPACTING[fault]))
        agent = late(gate, stream=fault in ("cut", "500"))
        turn = agent.ask()
        assert turn.headers["x-tidegate-strategy"] == "summary"
        assert turn.headers["x-tidegate-bridge"] == "failed"
        assert over(gate) == []
        assert len(gate.of("main")) == 1
        assert len(gate.of("compaction")) <= 4
        assert set(gate.of("main")[-1].facts) >= planted(7)
        agent.results(turn, output(8, 50))
        before = len(gate.of("compaction"))
        agent.history.append(agent.user("And now?"))
        agent.ask()
        assert len(gate.of("compaction")) == before  # not again for a while


ANSWERING: dict[str, dict[str, Any]] = {
    "400": {"do": "error", "status": 400},
    "403": {"do": "error", "status": 403},
    "404": {"do": "error", "status": 404},
    "500": {"do": "error", "status": 500},
    "a page": {"do": "html", "status": 502},
    "garbage": {"do": "garbage"},
    "dropped": {"do": "drop"},
    "nothing in time": {"do": "hang", "seconds": 3},
    "an error in the stream": {"do": "error", "status": 500, "in_stream": True},
}


@pytest.mark.parametrize(
    ("fault", "stream"),
    # What is no event says nothing of itself in a stream: it is cut for the client, as it is where chat is asked.
    [(fault, stream) for fault in ANSWERING for stream in (False, True) if (fault, stream) != ("garbage", True)],
)
def test_where_the_other_api_does_not_answer_chat_does(fault, stream):
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        gate.simulator.script(Step(path="responses", on="main", times=5, **ANSWERING[fault]))
        turn = late(gate, stream=stream).ask()
        assert turn.headers["x-tidegate-bridge"] == "failed"
        assert gate.of("main")[-1].path.endswith("/chat/completions")
        assert len(over(gate)) <= 3
        assert set(gate.of("main")[-1].facts) >= planted(7)
        assert gate.violations == []


def test_who_is_too_fast_is_told_so():
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        gate.simulator.script(Step(do="error", status=429, path="responses", on="main", times=5))
        with pytest.raises(openai.RateLimitError):
            late(gate).ask()
        assert [record.path for record in gate.of("main")] == ["/v1/responses"]


def test_a_stream_that_breaks_breaks_for_the_client_too():
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        gate.simulator.script(Step(do="cut", after=6, path="responses", on="main"))
        with pytest.raises(openai.APIConnectionError):
            late(gate, stream=True).ask()
        assert len(gate.of("main")) == 1


def test_an_error_in_the_middle_of_an_answer_is_one_of_chat():
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        gate.simulator.script(Step(do="error", status=500, in_stream=True, after=6, path="responses", on="main"))
        with pytest.raises(openai.APIError):
            late(gate, stream=True).ask()
        assert len(gate.of("main")) == 1


def test_a_history_over_the_window_is_made_to_fit_first():
    with natively(OPENAI, toml=ON, flags=QUICK) as gate:
        turn = late(gate, turns=14).ask()
        assert turn.headers["x-tidegate-strategy"] == "openai"
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= planted(14)


def test_a_session_goes_on_where_the_provider_stops_compacting():
    with natively(OPENAI, toml=ON, flags={"compaction.prepare": "off"}) as gate:
        agent = at(gate)
        hold(agent, "steps", 11, 900)
        assert over(gate)
        gate.simulator.script(Step(do="error", status=403, on="compaction", times=500))
        hold(agent, "steps", 9, 900)
        assert gate.violations == []
        assert all(record.outcome == "answered" for record in gate.of("main"))
        assert set(gate.of("main")[-1].facts) >= planted(11)
        assert [turn.headers.get("x-tidegate-bridge") for turn in agent.turns].count("failed") == 1
        assert agent.turns[-1].headers["x-tidegate-strategy"] == "summary"


def test_heartbeats_keep_a_client_awake_in_its_own_api():
    slow = ResponsesCompaction(seconds=0.5)
    flags = {
        "compaction.prepare": "off", "stream.heartbeat_after_seconds": 0.1, "stream.heartbeat_every_seconds": 0.1,
    }  # fmt: skip
    with natively(OPENAI, toml=ON, flags=flags, responses_compaction=slow) as gate:
        agent = late(gate, stream=True)
        turn = agent.ask()
        assert "x-tidegate-action" not in turn.headers  # a heartbeat began the answer
        assert over(gate)
        assert turn.items[0]["role"] == "assistant"


def test_a_client_that_leaves_takes_all_of_it_along():
    with natively(OPENAI, toml=ON, flags=QUICK, responses_compaction=ResponsesCompaction(seconds=20)) as gate:
        agent = late(gate)
        body = {**agent.request(), "max_tokens": None}
        leave(gate.base, "/openai/v1/chat/completions", body, lambda: bool(gate.of("compaction")))
        soon(lambda: gate.of("compaction")[0].outcome == "cancelled")
        assert not gate.of("main")
        assert not gate.of("summary")
