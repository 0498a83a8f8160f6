"""A text is made beside what a provider has sealed, in the background: a change of model goes on with it at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agents import hold
from native import WAYS, WINDOW, agent_at, natively, soon
from running import Running

from tidegate.simulator import Step

LEG = 14
PLANTED = {f"FACT-{number:02d}" for number in range(0, LEG, 5)}
TEXT = f'[models."text-*"]\nstrategies = ["summary"]\nwindow = {WINDOW}\n[models."*"]\nwindow = {WINDOW}\n'
BACKGROUND = {"compaction__portable": "background", "compaction__prepare": "off"}


def settled(gate: Running) -> None:
    """Waits until nothing is made in the background any more."""
    count = -1
    while count != len(gate.records):
        count = len(gate.records)
        time.sleep(0.15)


@pytest.mark.parametrize(("name", "turns"), [("openai", LEG - 1), ("anthropic", LEG - 2)])
def test_the_text_is_there_when_the_model_changes_and_the_sealed_one_when_it_changes_back(name, turns):
    way = WAYS[name]
    with natively(way, known=False, toml=TEXT, flags=BACKGROUND) as gate:
        agent = agent_at(gate, way)
        hold(agent, "steps", turns)
        soon(lambda: bool(gate.of("summary")))
        settled(gate)
        assert gate.of("compaction")
        before = len(gate.of("summary"))
        agent.model = "text-model"
        agent.history.append(agent.user("And by another model?"))
        turn = agent.ask()
        assert turn.headers["x-tidegate-action"] == "replayed"
        assert turn.headers["x-tidegate-strategy"] == "summary"
        assert len(gate.of("summary")) == before
        assert set(gate.of("main")[-1].facts) >= PLANTED
        agent.results(turn, "done")
        agent.model = way.model
        agent.history.append(agent.user("And back?"))
        back = agent.ask()
        assert (back.headers["x-tidegate-action"], back.headers["x-tidegate-strategy"]) == ("replayed", way.strategy)
        assert gate.violations == []


def test_each_compaction_has_one_text_and_each_carries_the_last_one_on():
    way = WAYS["openai"]
    with natively(way, known=False, toml=TEXT, flags=BACKGROUND) as gate:
        agent = agent_at(gate, way)
        for _ in range(3):
            hold(agent, "steps", LEG)
            settled(gate)
        texts, sealed = gate.of("summary"), gate.of("compaction")
        assert 1 <= len(texts) <= len(sealed)
        assert any(b"<previous_summary>" in record.body for record in texts)
        assert gate.violations == []


@pytest.mark.parametrize("portable", ["on_switch", None])
def test_without_it_a_text_is_made_when_it_is_needed(portable):
    way = WAYS["openai"]
    flags: dict[str, Any] = {"compaction__prepare": "off"} | ({"compaction__portable": portable} if portable else {})
    with natively(way, known=False, toml=TEXT, flags=flags) as gate:
        agent = agent_at(gate, way)
        hold(agent, "steps", LEG)
        assert gate.of("summary") == []
        agent.model = "text-model"
        agent.history.append(agent.user("And by another model?"))
        assert agent.ask().headers["x-tidegate-action"] == "compacted"
        assert len(gate.of("summary")) >= 1


def test_a_summarizer_that_fails_in_the_background_costs_the_session_nothing():
    way = WAYS["openai"]
    with natively(way, known=False, toml=TEXT, flags=BACKGROUND) as gate:
        gate.simulator.script(Step(do="error", status=500, on="summary", times=50))
        agent = agent_at(gate, way)
        hold(agent, "steps", LEG)
        settled(gate)
        assert all(record.outcome == "answered" for record in gate.of("main"))
        assert agent.turns[-1].headers["x-tidegate-strategy"] == way.strategy
