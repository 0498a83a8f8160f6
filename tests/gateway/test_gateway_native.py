"""Long sessions at providers that compact by themselves: nothing is forgotten, no rule is broken, and what was sealed
goes back to nobody but its owner (the simulator judges)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import hold
from native import WAYS, WINDOW, Way, agent_at, natively
from running import Running

from tidegate.simulator.compaction_settings import ResponsesCompaction
from tidegate.simulator.context_settings import ContextManagement

TURNS = 60
PLANTED = {f"FACT-{number:02d}" for number in range(0, TURNS, 5)}


def check(gate: Running, agent: Any, way: Way, *, turns: int = TURNS) -> None:
    assert gate.violations == []
    assert len(agent.turns) == turns
    main = gate.of("main")
    assert all(record.outcome == "answered" for record in main)
    assert set(main[-1].facts) >= {fact for fact in PLANTED if int(fact[5:]) < turns}
    assert len(json.dumps(agent.history)) // 4 > turns * 1000
    assert gate.of("compaction")
    assert not gate.of("summary")
    used = {turn.headers.get("x-tidegate-strategy") for turn in agent.turns} - {None}
    assert used == {way.strategy}


@pytest.mark.parametrize("shape", ["steps", "single"])
@pytest.mark.parametrize("name", list(WAYS))
def test_sixty_turns_over_ten_windows(name, shape):
    way = WAYS[name]
    with natively(way) as gate:
        agent = agent_at(gate, way)
        hold(agent, shape, TURNS)
        check(gate, agent, way)
        told = [turn.headers for turn in agent.turns if turn.headers["x-tidegate-action"] == "compacted"]
        assert all(int(headers["x-tidegate-compaction-output-tokens"]) > 0 for headers in told)
        assert all(int(headers["x-tidegate-compaction-input-tokens"]) < WINDOW for headers in told)


KNOBS: dict[str, tuple[str, Any]] = {
    "nothing before the item counts": ("openai", ResponsesCompaction(boundary="drop_all")),
    "all before the item counts": ("openai", ResponsesCompaction(boundary="keep_all_and_bill")),
    "the item knows the users' words too": ("openai", ResponsesCompaction(covers_users=True)),
    "few user messages come back": ("openai", ResponsesCompaction(user_tokens=300)),
    "those before an earlier item don't": ("openai", ResponsesCompaction(keeps_older_users=False, covers_users=True)),
    "assistant messages come back with their ids": ("openai", ResponsesCompaction(retain_assistant_ids=True)),
    "one model reads it": ("openai", ResponsesCompaction(bound_to_model=True)),
    "one key reads it": ("openai", ResponsesCompaction(bound_to="key")),
    "anyone at the provider reads it": ("openai", ResponsesCompaction(bound_to="provider")),
    "long blobs": ("openai", ResponsesCompaction(padding=20_000)),
    "triggered: nothing before the item counts": ("codex", ResponsesCompaction(boundary="drop_all")),
    "triggered: all before it counts": ("codex", ResponsesCompaction(boundary="keep_all_and_bill")),
    "triggered: a message beside the item": ("codex", ResponsesCompaction(extra_message=True)),
    "xAI: two fields and no more": ("xai", ResponsesCompaction(refuse_extra_fields=True)),
    "a block for one workspace": ("anthropic", ContextManagement(bound_to="workspace")),
    "a block for anyone": ("anthropic", ContextManagement(bound_to="anyone")),
}


@pytest.mark.parametrize("name", list(KNOBS))
def test_whatever_is_true_where_reports_contradict_each_other(name):
    way, knob = WAYS[KNOBS[name][0]], KNOBS[name][1]
    setting = "context" if isinstance(knob, ContextManagement) else "responses_compaction"
    with natively(way, **{setting: knob}) as gate:
        agent = agent_at(gate, way)
        hold(agent, "steps", TURNS)
        check(gate, agent, way)


SYSTEM_FACT = "FACT-90 the shop closes at eight."


@pytest.mark.parametrize("name", ["openai", "codex", "xai"])
def test_leading_instructions_outlive_every_compaction(name):
    """They fade in what is compacted twice, and xAI reads nothing before its item."""
    way = WAYS[name]
    with natively(way) as gate:
        agent = agent_at(gate, way)
        agent.history.append({"role": "developer", "content": SYSTEM_FACT})
        hold(agent, "steps", 40)
        assert gate.violations == []
        assert len(gate.of("compaction")) >= 3
        assert "FACT-90" in gate.of("main")[-1].facts


@pytest.mark.parametrize("shape", ["steps", "single"])
@pytest.mark.parametrize(
    ("name", "model", "extra", "kept"),
    [
        (
            "openai",
            "gpt-5.1",
            {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]},
            "reasoning",
        ),
        ("codex", "gpt-5.1", {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}, "reasoning"),
        ("xai", "grok-4.7", {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}, "reasoning"),
        ("anthropic", "claude-sonnet-4-6", {"max_tokens": 1500, "thinking": {"type": "adaptive"}}, "thinking"),
        ("anthropic", "claude-sonnet-5-5", {"max_tokens": 1500, "thinking": {"type": "adaptive"}}, "thinking"),
    ],
    ids=["openai", "codex", "xai", "thinking", "thinking bound to its past"],
)
def test_what_the_model_thought_goes_along(name, model, extra, kept, shape):
    way = WAYS[name]
    with natively(way, tool_rounds=3 if shape == "steps" else 10**6) as gate:
        agent = agent_at(gate, way)
        agent.model, agent.extra = model, extra
        hold(agent, shape, 40)
        check(gate, agent, way, turns=40)
        assert kept in gate.of("main")[-1].body.decode()


@pytest.mark.parametrize("shape", ["steps", "single"])
def test_thinking_behind_anthropics_own_block_stays_valid(shape):
    """The block is made of exactly the messages before, and the next message is of another role: nothing is dropped."""
    way = WAYS["anthropic"]
    with natively(way, tool_rounds=3 if shape == "steps" else 10**6) as gate:
        agent = agent_at(gate, way)
        agent.model, agent.extra = "claude-sonnet-5-5", {"max_tokens": 1500, "thinking": {"type": "adaptive"}}
        hold(agent, shape, 30)
        assert len(gate.of("compaction")) >= 4
        assert [record.verdict for record in gate.of("main")].count("replayed") >= 20
        assert agent.transformed == []
