"""Thinking behind a past that Tidegate has rewritten: each block is sent as it was made, or not at all; where none may
go, the API itself is asked to drop what no longer fits. The simulator judges."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from agents import hold
from native import WAYS, agent_at, natively
from running import Running

SUMMARY = '[providers.anthropic.strategies]\nmessages = ["summary"]\n'
THINKS = {"max_tokens": 1500, "thinking": {"type": "adaptive"}}
BOUND, FREE = "claude-sonnet-5-5", "claude-sonnet-4-6"


def thoughts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    return [block for block in blocks if block.get("type") in ("thinking", "redacted_thinking")]


def check(gate: Running, agent: Any, turns: int) -> None:
    assert gate.violations == []
    main = gate.of("main")
    assert len(main) == turns
    assert all(record.outcome == "answered" for record in main)
    assert set(main[-1].facts) >= {f"FACT-{number:02d}" for number in range(0, turns, 5)}
    assert [turn.headers["x-tidegate-action"] for turn in agent.turns].count("compacted") >= 3
    made = thoughts(agent.history)
    for record in main:
        assert all(block in made for block in thoughts(json.loads(record.body)["messages"]))


@pytest.mark.parametrize("redacted", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["readable", "redacted"])
@pytest.mark.parametrize("shape", ["steps", "single"])
@pytest.mark.parametrize("model", [FREE, BOUND], ids=["bound to nothing", "bound to its past"])
def test_behind_a_summary(model, shape, redacted):
    """In `single` each summary falls into a tool round that is still open."""
    way = replace(WAYS["anthropic"], model=model)
    rounds = 3 if shape == "steps" else 10**6
    with natively(way, toml=SUMMARY, tool_rounds=rounds, redact_thinking=redacted) as gate:
        agent = agent_at(gate, way)
        agent.extra = THINKS
        hold(agent, shape, 30)
        check(gate, agent, 30)
        asks = [b'"drop_block"' in record.body for record in gate.of("main")]
        assert any(asks) == bool(agent.transformed) == (model == BOUND)
        assert not any(asks[:5])  # nothing was rewritten yet


@pytest.mark.parametrize("model", [FREE, BOUND], ids=["bound to nothing", "bound to its past"])
def test_a_session_that_stops_thinking(model):
    """A request without thinking has no place to ask for it: there the blocks are left out, whole."""
    way = replace(WAYS["anthropic"], model=model)
    with natively(way, toml=SUMMARY, tool_rounds=3) as gate:
        agent = agent_at(gate, way)
        agent.extra = THINKS
        hold(agent, "steps", 12)
        agent.extra = {"max_tokens": 1500}
        hold(agent, "steps", 12)
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= {"FACT-00", "FACT-05", "FACT-10"}
        last = json.loads(gate.of("main")[12].body)["messages"]
        assert bool(thoughts(last)) == (model == FREE)
        assert not any(b"block_binding" in record.body for record in gate.of("main")[12:])
