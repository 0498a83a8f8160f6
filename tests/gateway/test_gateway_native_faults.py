"""A provider's own compaction that fails, in every way a provider can: the next is tried, and no client sees it."""

from __future__ import annotations

from typing import Any

import pytest
import tenacity
from agents import hold, imagine
from native import WAYS, WINDOW, Way, agent_at, natively, toml_of
from running import Running, settings

from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings, Step, serve
from tidegate.simulator.compaction_settings import ResponsesCompaction
from tidegate.simulator.context_settings import ContextManagement
from tidegate.store import capabilities_in

NAMES = ["openai", "codex", "xai", "anthropic", "bedrock"]
"""Bedrock's is Claude's at a threshold, Anthropic's that on demand."""
QUICK = {"compaction.native_timeout_seconds": 0.4, "compaction.prepare": "off"}

FAULTS: dict[str, dict[str, Any]] = {
    "400": {"do": "error", "status": 400},
    "401": {"do": "error", "status": 401},
    "403": {"do": "error", "status": 403},
    "404": {"do": "error", "status": 404},
    "429": {"do": "error", "status": 429},
    "500": {"do": "error", "status": 500},
    "529": {"do": "error", "status": 529},
    "an error in the stream": {"do": "error", "status": 500, "in_stream": True},
    "a page": {"do": "html", "status": 502},
    "garbage": {"do": "garbage"},
    "cut": {"do": "cut", "after": 2},
    "dropped": {"do": "drop"},
    "nothing in time": {"do": "hang", "seconds": 3},
    "an overflow": {"do": "overflow"},
    "no item": {"do": "no_artifact"},
    "two items": {"do": "two_artifacts"},
    "a refusal": {"do": "refusal"},
    "a tool call": {"do": "tool_call", "name": "read_file"},
    "cut by length": {"do": "length"},
    "unavailable": {"do": "unavailable"},
}


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a call is made once more."""
    monkeypatch.setattr("tidegate.gateway.calls.CALL_WAIT", tenacity.wait_none())


HARMLESS = {"refusal", "tool_call", "length"}
"""On `/responses/compact`, and before a pause at a threshold, these say nothing: the ordinary answer comes."""


def late(gate: Running, way: Way, turns: int = 7) -> Any:
    """An agent whose history comes from elsewhere and is due to be compacted."""
    agent = agent_at(gate, way)
    imagine(agent, "steps", turns, 1100)
    agent.history.append(agent.user("Where were we?"))
    return agent


def facts(turns: int) -> set[str]:
    return {f"FACT-{number:02d}" for number in range(0, turns, 5)}


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("name", NAMES)
def test_the_next_way_is_taken(name, fault):
    way, given = WAYS[name], FAULTS[fault]
    with natively(way, flags=QUICK) as gate:
        gate.simulator.script(Step(on="compaction", times=50, **given))
        agent = late(gate, way)
        turn = agent.ask()
        assert turn.headers["x-tidegate-action"] == "compacted"
        if given["do"] not in HARMLESS or name == "anthropic":
            assert turn.headers["x-tidegate-strategy"] == "summary"
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= facts(7)
        assert len(gate.of("main")) == 1
        assert len(gate.of("compaction")) <= 4  # two ways at most, each asked once more after a fault of the server's


@pytest.mark.parametrize("fault", ["400", "500", "garbage", "no item", "two items"])
def test_openais_own_second_way_comes_before_the_summary(fault):
    way = WAYS["openai"]
    with natively(way, flags=QUICK) as gate:
        gate.simulator.script(Step(on="compaction", path="compact", times=50, **FAULTS[fault]))
        turn = late(gate, way).ask()
        assert turn.headers["x-tidegate-strategy"] == "openai-trigger"
        assert gate.violations == []
        assert not gate.of("summary")


@pytest.mark.parametrize("path", ["404", "404-text", "404-json", "405", "501"])
def test_a_path_that_does_not_exist_is_asked_for_once_a_day(path):
    way = WAYS["openai"]
    with natively(way, responses_compaction=ResponsesCompaction(path=path, trigger="refused"), flags=QUICK) as gate:
        for number in range(2):
            agent = late(gate, way)
            agent.history[0] = agent.user(f"Another beginning, number {number}.")
            assert agent.ask().headers["x-tidegate-strategy"] == "summary"
        assert len([record for record in gate.records if record.path.endswith("/responses/compact")]) == 1
        assert gate.of("main")[-1].outcome == "answered"


def test_what_an_endpoint_lacks_is_known_after_a_restart(tmp_path):
    way = WAYS["openai"]
    kept = {"store.kind": "sqlite", "store.path": str(tmp_path / "c.db"), "store.key_file": str(tmp_path / "key")}
    simulated = {"window": WINDOW, "tool_rounds": 10**6, "profile": way.profile}
    lacking = ResponsesCompaction(path="404", trigger="refused")
    with serve(SimulatorSettings(responses_compaction=lacking, **simulated)) as simulator:
        for number in range(2):
            toml = toml_of(way, simulator.url) + f'[models."*"]\nwindow = {WINDOW}\n'
            with serving(settings(toml, **QUICK, **kept)) as (base, app):
                agent = late(Running(base, app, simulator), way)
                agent.history[0] = agent.user(f"Another beginning, number {number}.")
                assert agent.ask().headers["x-tidegate-strategy"] == "summary"
        records = simulator.state.records
    assert len([record for record in records if record.path.endswith("/responses/compact")]) == 1
    assert {(it.strategy, it.what) for it in capabilities_in(tmp_path / "c.db")} == {
        ("openai", "lacks"),
        ("openai-trigger", "lacks"),
    }


@pytest.mark.parametrize("name", ["codex", "anthropic", "bedrock"])
def test_where_what_was_asked_for_is_ignored_it_did_not_happen(name):
    """A 200 without an item says nothing of the endpoint: it is asked again."""
    way = WAYS[name]
    ignoring: dict[str, Any] = {
        "codex": {"responses_compaction": ResponsesCompaction(trigger="ignored")},
        "anthropic": {"context": ContextManagement(betas=(), drops_blocks=True), "strict_fields": False},
        "bedrock": {"context": ContextManagement(betas=(), drops_blocks=True), "strict_fields": False},
    }[name]
    with natively(way, flags=QUICK, **ignoring) as gate:
        for number in range(2):
            agent = late(gate, way)
            agent.history[0] = agent.user(f"Another beginning, number {number}.")
            assert agent.ask().headers["x-tidegate-strategy"] == "summary"
        asked = [record for record in gate.records if b"compaction" in record.body]
        assert len(asked) == 2


@pytest.mark.parametrize("name", NAMES)
def test_where_every_way_fails_the_clients_own_request_goes(name):
    way = WAYS[name]
    with natively(way, flags=QUICK) as gate:
        gate.simulator.script(
            Step(do="error", status=400, on="compaction", times=50),
            Step(do="error", status=400, on="summary", times=50),
        )
        turn = late(gate, way).ask()
        assert (turn.headers["x-tidegate-action"], turn.headers["x-tidegate-reason"]) == ("relayed", "summary_http_400")
        assert len(gate.of("main")) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_history_over_the_window_is_made_to_fit_before_the_provider_compacts_it(name):
    """No provider's own compaction takes more than its window: large tool outputs give way first."""
    way = WAYS[name]
    with natively(way, flags=QUICK) as gate:
        turn = late(gate, way, turns=14).ask()
        assert turn.headers["x-tidegate-strategy"] == way.strategy
        assert gate.violations == []
        assert all(record.input_tokens <= WINDOW for record in gate.of("compaction"))
        assert b"left out: it did not fit" in gate.of("compaction")[0].body
        assert set(gate.of("main")[-1].facts) >= facts(14)


@pytest.mark.parametrize("name", NAMES)
def test_an_overflow_that_nobody_foresaw_is_recovered_from(name):
    way = WAYS[name]
    with natively(way, known=False, flags=QUICK) as gate:
        agent = late(gate, way, turns=9)
        agent.model = agent.model if name == "anthropic" else "model-nobody-knows"
        turn = agent.ask()
        assert turn.headers["x-tidegate-action"] == "recovered"
        assert gate.violations == []
        assert len(gate.of("main")) <= 3
        assert set(gate.of("main")[-1].facts) >= facts(9)


@pytest.mark.parametrize("name", NAMES)
def test_a_session_goes_on_where_the_provider_stops_compacting(name):
    way = WAYS[name]
    with natively(way) as gate:
        agent = agent_at(gate, way)
        hold(agent, "steps", 14)
        before = len(gate.of("compaction"))
        assert before >= 2
        gate.simulator.script(Step(do="error", status=403, on="compaction", times=500))
        hold(agent, "steps", 14)
        assert gate.violations == []
        assert all(record.outcome == "answered" for record in gate.of("main"))
        assert set(gate.of("main")[-1].facts) >= facts(14)
        assert agent.turns[-1].headers["x-tidegate-strategy"] == "summary"
