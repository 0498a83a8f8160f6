"""Long sessions whose summaries are asked for at the end of their own requests: no rule is broken, no fact is lost, and
what is read is what the provider has cached."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import AGENTS, hold, run
from running import Running, running

from tidegate.simulator import SimulatorSettings, Step

WINDOW = 16_000
TURNS = 60
PLANTED = {f"FACT-{number:02d}" for number in range(0, TURNS, 5)}
APIS = pytest.mark.parametrize("api", list(AGENTS))
CACHES = """
[providers.generic.quirks]
merge_user = false

[[providers.generic.prompt_cache]]
read = 0.1
minimum = 100
source = "a test"
"""
MARKS = CACHES + "marks = true\nwrite = 1.25\n"
TIGHT = {"compaction__threshold_percent": 70, "compaction__target_percent": 35}


def simulated(**changes: Any) -> SimulatorSettings:
    return SimulatorSettings(**{"window": WINDOW, "tool_rounds": 10**6, "prompt_cache": True, **changes})


def key(api: str) -> str:
    return "input" if api == "responses" else "messages"


def rode(record: Any) -> bool:
    return b"<summary_request>" in record.body


def plain(item: Any) -> Any:
    """An item without cache marks: no cache hangs on them."""
    if isinstance(item, dict):
        return {name: plain(value) for name, value in item.items() if name != "cache_control"}
    return [plain(part) for part in item] if isinstance(item, list) else item


def check_prefix(gate: Running, api: str) -> None:
    """A ridden call is the last forwarded request up to some item, and one message: all that a cache hangs on."""
    last: Any = None
    for record in gate.records:
        if record.kind == "main" and record.outcome == "answered":
            last = record
        elif record.kind == "summary" and rode(record):
            asked, before = json.loads(record.body), json.loads(last.body)
            mine, theirs = asked.pop(key(api)), before.pop(key(api))
            assert mine[-1]["role"] == "user"
            assert plain(mine[: len(theirs)][:-1]) == plain(theirs[: len(mine) - 1])
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                asked.pop(name, None)
                before.pop(name, None)
            assert asked == before
            if api != "messages":
                # Without marks that move, the very bytes: up to the last item that both have.
                shared = json.dumps(theirs[min(len(theirs), len(mine) - 1) - 1], separators=(",", ":")).encode()
                end = record.body.rindex(shared) + len(shared)
                begin = record.body.index(b'"%b"' % key(api).encode())
                begun = last.body.index(b'"%b"' % key(api).encode())
                assert record.body[begin:end] == last.body[begun : begun + end - begin]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "shape", "stream"),
    [("chat", "steps", True), ("responses", "single", False), ("messages", "single", True)],
)
def test_sixty_turns(api: str, shape: Any, stream: bool) -> None:
    with running(simulated(), window=WINDOW, toml=CACHES, **TIGHT) as gate:
        agent = AGENTS[api](gate.base, stream=stream)
        run(agent, shape, TURNS, asynchronous=False)
        assert gate.violations == []
        assert all(record.outcome == "answered" for record in gate.records if record.kind in ("main", "summary"))
        assert set(gate.of("main")[-1].facts) >= PLANTED
        summaries = gate.of("summary")
        assert len(summaries) >= 3
        ridden = [record for record in summaries if rode(record)]
        assert len(ridden) >= len(summaries) - 1
        check_prefix(gate, api)
        assert all(record.cached_tokens > 0.75 * record.input_tokens for record in ridden)


def test_marks_that_move_and_the_one_that_finds_the_cache() -> None:
    with running(simulated(), window=WINDOW, toml=MARKS, **TIGHT) as gate:
        agent = AGENTS["messages"](gate.base, stream=True)
        agent.extra = {"system": [{"type": "text", "text": "Be of use.", "cache_control": {"type": "ephemeral"}}]}
        run(agent, "steps", TURNS, asynchronous=False)
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= PLANTED
        ridden = [record for record in gate.of("summary") if rode(record)]
        assert len(ridden) >= 2
        check_prefix(gate, "messages")
        assert max(record.body.count(b'"cache_control"') for record in gate.of("main")) == 2
        assert max(record.body.count(b'"cache_control"') for record in ridden) <= 4
        for record in ridden:
            assert json.loads(record.body)["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}


@APIS
@pytest.mark.parametrize(
    "step",
    [
        Step(do="tool_call", on="summary", times=1),
        Step(do="empty", on="summary", times=1),
        Step(do="refusal", on="summary", times=1),
        Step(do="error", status=400, on="summary", times=1),
        Step(do="length", on="summary", times=1),
    ],
    ids=lambda step: step.do,
)
def test_a_ride_that_gives_nothing_costs_a_call_and_no_more(api: str, step: Step) -> None:
    with running(simulated(script=(step,)), window=WINDOW, toml=CACHES, **TIGHT) as gate:
        agent = AGENTS[api](gate.base, stream=True)
        hold(agent, "steps", 14)
        assert gate.violations == []
        summaries = gate.of("summary")
        assert [rode(record) for record in summaries[:2]] == [True, False]
        assert set(gate.of("main")[-1].facts) >= {"FACT-00", "FACT-05", "FACT-10"}
        assert all(record.outcome == "answered" for record in gate.of("main"))


@pytest.mark.parametrize(
    ("story", "toml", "flags"),
    [
        ("nothing says that the provider caches", "", {}),
        ("it is off", CACHES, {"summary__ride": "off"}),
        ("another model sums up", CACHES, {"summary__model": "small"}),
    ],
)  # fmt: skip
def test_the_transcript_is_what_is_shown_otherwise(story: str, toml: str, flags: dict[str, Any]) -> None:
    with running(simulated(), window=WINDOW, toml=toml, **TIGHT, **flags) as gate:
        hold(AGENTS["chat"](gate.base, stream=True), "steps", 20)
        assert gate.of("summary")
        assert not any(map(rode, gate.of("summary")))


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-sonnet-5-5"])
def test_thinking_and_its_rules(model: str) -> None:
    extra = {"max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with running(simulated(tool_rounds=3), window=WINDOW, toml=CACHES, summary__ride="always", **TIGHT) as gate:
        agent = AGENTS["messages"](gate.base, model=model, stream=True)
        agent.extra = extra
        run(agent, "steps", 30, asynchronous=False)
        assert gate.violations == []
        assert any(map(rode, gate.of("summary")))
        assert all(record.outcome == "answered" for record in gate.of("main"))
