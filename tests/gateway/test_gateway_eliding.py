"""Sessions of real SDKs whose old tool results are left out without asking anybody, and whose largest are cut where
nothing else helps."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from agents import AGENTS, fact, hold, output
from running import Running, running
from test_gateway_sessions import WINDOW, history_tokens, items

from tidegate.simulator import SimulatorSettings

APIS = pytest.mark.parametrize("api", list(AGENTS))
FIRST = {"compaction__strategies": "elide,summary"}
TURNS = 16


def broken_prefixes(gate: Running, api: str) -> int:
    """Requests that do not begin with all items of the one before, byte for byte."""
    sent = [[json.dumps(item, sort_keys=True) for item in items(api, record.body)] for record in gate.of("main")]
    return sum(later[: len(earlier)] != earlier for earlier, later in pairwise(sent))


def told(agent: Any) -> list[tuple[str | None, str | None]]:
    return [(turn.headers.get("x-tidegate-action"), turn.headers.get("x-tidegate-strategy")) for turn in agent.turns]


@APIS
def test_a_session_goes_on_without_a_call_and_in_steps(api):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW, **FIRST) as gate:
        agent = AGENTS[api](gate.base, stream=True)
        hold(agent, "steps", TURNS)
        main = gate.of("main")
        assert gate.violations == []
        assert [record.outcome for record in main] == ["answered"] * TURNS
        assert history_tokens(agent) > 2 * WINDOW
        assert gate.of("summary") == []
        steps = told(agent).count(("compacted", "elide"))
        assert 2 <= steps == broken_prefixes(gate, api) <= TURNS // 2
        # What the user said is there word for word, and so is every result when the model sees it first.
        assert all(fact(number) in main[-1].body.decode() for number in range(0, TURNS, 5))
        assert all(f"line 225 of module {number}" in main[number + 1].body.decode() for number in range(TURNS - 1))


@APIS
def test_what_was_left_out_is_summed_up_from_the_results_themselves_once_that_is_not_enough(api):
    """Words of the user's that grow past what eliding can give back; facts stand in results alone."""
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW, **FIRST) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        for number in range(24):
            agent.history.append(agent.user(f"Step {number}. " + "Mind the order of the columns. " * 28))
            agent.results(agent.ask(), fact(number) + "\n" + output(number, 600))
        assert gate.violations == []
        assert ("compacted", "elide") in told(agent)
        assert gate.of("summary")
        assert "FACT-00" in gate.of("main")[-1].facts
        assert not any(b"Left out to save room" in record.body for record in gate.of("summary"))


@APIS
def test_a_restart_replays_what_was_left_out(api, tmp_path):
    store = {"store__kind": "sqlite", "store__path": str(tmp_path / "c.db"), "store__key_file": str(tmp_path / "key")}
    simulated = SimulatorSettings(window=WINDOW, tool_rounds=10**6)
    with running(simulated, window=WINDOW, **store, **FIRST) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        hold(agent, "steps", 8)
        before = items(api, gate.of("main")[-1].body)
        assert ("compacted", "elide") in told(agent)
    assert b"module_3" not in (tmp_path / "c.db").read_bytes()
    with running(simulated, window=WINDOW, **store, **FIRST) as gate:
        agent.base = gate.base
        agent.history.append(agent.user("And now?"))
        assert agent.ask().headers["x-tidegate-action"] == "replayed"
        assert items(api, gate.of("main")[-1].body)[: len(before)] == before


@APIS
@pytest.mark.parametrize("known", [WINDOW, None], ids=["known window", "unknown window"])
@pytest.mark.parametrize("earlier", [0, 6], ids=["at once", "after a session"])
def test_one_huge_newest_result_is_cut_and_answered(api, known, earlier):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=known) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        hold(agent, "steps", earlier, 300)
        agent.history.append(agent.user(f"Read it all. {fact(1)}"))
        agent.results(agent.ask(), f"BEGINNING {output(1, 3 * WINDOW)} END")
        turn = agent.ask()
        assert gate.violations == []
        assert (turn.headers["x-tidegate-action"], turn.headers["x-tidegate-reason"]) == ("recovered", "shortened")
        sent = [record for record in gate.of("main") if record.outcome == "answered"][-1].body.decode()
        assert all(words in sent for words in ("BEGINNING", " END", "characters left out", fact(1)))
        refused = sum(record.outcome == "overflow" for record in gate.of("main"))
        assert refused <= 3
        # What was cut stays so: no later turn is refused for it.
        agent.results(turn, "Nothing more.")
        assert agent.ask().headers["x-tidegate-action"] in ("replayed", "compacted")
        assert sum(record.outcome == "overflow" for record in gate.of("main")) == refused


@APIS
def test_where_it_is_turned_off_the_providers_own_refusal_comes_back(api):
    flags = {"compaction__last_resort": False}
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW, **flags) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        agent.history.append(agent.user("Read it all."))
        agent.results(agent.ask(), output(1, 3 * WINDOW))
        with pytest.raises(Exception, match=r"context|long|exceed"):
            agent.ask()
