"""Sessions in which Anthropic is asked to leave old tool results out, ahead of any compaction."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from agents import AGENTS, hold
from native import WAYS, WINDOW, agent_at, natively
from test_gateway_native_faults import QUICK, late

from tidegate.simulator import Step
from tidegate.simulator.context_settings import BINDING, ON_DEMAND, THRESHOLD, ContextManagement

WAY = WAYS["anthropic"]
LISTED = '[providers.anthropic.strategies]\nmessages = ["context-edit", "anthropic", "summary"]\n'
WITHOUT = ContextManagement(betas=(ON_DEMAND, THRESHOLD, BINDING))
"""A platform that compacts and does not clear."""


def kinds(record: Any) -> list[str]:
    managed = json.loads(record.body).get("context_management") or {}
    return [edit["type"] for edit in managed.get("edits", [])]


def check(gate: Any, agent: Any, turns: int) -> None:
    assert gate.violations == []
    main = gate.of("main")
    assert len(main) == len(agent.turns) == turns
    assert all(record.outcome == "answered" for record in main)
    assert all(record.input_tokens < WINDOW for record in main)
    assert not gate.of("summary")


@pytest.mark.parametrize("shape", ["steps", "single"])
@pytest.mark.parametrize(
    ("model", "extra"),
    [
        ("claude-sonnet-4-6", {}),
        ("claude-sonnet-4-6", {"max_tokens": 1500, "thinking": {"type": "adaptive"}}),
        ("claude-sonnet-5-5", {"max_tokens": 1500, "thinking": {"type": "adaptive"}}),
    ],
    ids=["plain", "thinking", "thinking bound to its past"],
)
def test_a_session_is_cleared_as_long_as_that_is_enough_and_then_compacted(shape, model, extra):
    with natively(WAY, toml=LISTED, tool_rounds=3 if shape == "steps" else 10**6) as gate:
        agent = agent_at(gate, WAY)
        agent.model, agent.extra = model, extra
        hold(agent, shape, 30)
        check(gate, agent, 30)
        told = [
            (turn.headers.get("x-tidegate-reason"), turn.headers.get("x-tidegate-strategy")) for turn in agent.turns
        ]
        assert told.count(("asked_to_clear", "context-edit")) >= 12
        if shape == "steps":
            assert set(gate.of("main")[-1].facts) >= {f"FACT-{number:02d}" for number in range(0, 30, 5)}
        cleared = [kinds(record) for record in gate.of("main")]
        assert all(
            ("clear_thinking_20251015" in edits) <= (edits[0] == "clear_thinking_20251015")
            for edits in cleared
            if edits
        )
        clears_thinking = any("clear_thinking_20251015" in edits for edits in cleared)
        assert clears_thinking == (bool(extra) and model == "claude-sonnet-4-6")
        for turn, record in zip(agent.turns, gate.of("main"), strict=True):
            if turn.headers.get("x-tidegate-reason") == "asked_to_clear":
                estimated = int(turn.headers["x-tidegate-tokens-after"])
                assert 0.8 * record.input_tokens <= estimated <= 1.25 * record.input_tokens


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_the_real_sdk_sees_its_own_answers_and_what_was_cleared_is_told_to_the_log(stream, caplog):
    caplog.set_level(logging.DEBUG, logger="tidegate.steps")
    with natively(WAY, toml=LISTED) as gate:
        agent = AGENTS["messages"](f"{gate.base}/anthropic", model=WAY.model, stream=stream)
        hold(agent, "steps", 12)
        check(gate, agent, 12)
        assert not gate.of("compaction")
    told = [line.getMessage() for line in caplog.records if " cleared " in line.getMessage()]
    assert len(told) >= 4
    assert "tool_uses=" in told[-1]


def test_it_is_off_unless_a_list_names_it():
    with natively(WAY) as gate:
        agent = agent_at(gate, WAY)
        hold(agent, "steps", 12)
        assert all(kinds(record) == [] for record in gate.of("main"))


def test_a_list_for_all_providers_may_name_it():
    with natively(WAY, toml='[compaction]\nstrategies = ["anthropic", "context-edit"]\n') as gate:
        agent = agent_at(gate, WAY)
        hold(agent, "steps", 12)
        assert gate.violations == []
        assert sum(bool(kinds(record)) for record in gate.of("main")) >= 4


def test_a_client_that_manages_its_own_context_is_left_alone():
    own = {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 100_000}}]}
    with natively(WAY, toml=LISTED) as gate:
        agent = agent_at(gate, WAY)
        agent.extra = {"context_management": own}
        agent.headers = lambda its=agent.headers: {**its(), "anthropic-beta": "context-management-2025-06-27"}
        hold(agent, "steps", 12)
        assert gate.violations == []
        assert all(json.loads(record.body)["context_management"] == own for record in gate.of("main"))
        assert gate.of("compaction")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_where_it_is_refused_the_clients_own_request_goes_and_it_is_asked_for_no_more(stream):
    with natively(WAY, toml=LISTED, context=WITHOUT, flags=QUICK) as gate:
        agent = AGENTS["messages"](f"{gate.base}/anthropic", model=WAY.model, stream=stream)
        hold(agent, "steps", 12)
        refused = [violation for violation in gate.violations if violation.rule == "beta-header"]
        assert len(refused) == len(gate.violations) == 1
        assert [turn.headers.get("x-tidegate-reason") for turn in agent.turns].count("clearing_refused") == 1
        assert len(gate.of("main")) == 12
        assert gate.of("compaction")


def test_where_the_field_is_ignored_it_did_not_happen_and_the_next_way_has_its_turn():
    """Nothing is cleared, with a 200: the provider's own count tells."""
    ignoring = ContextManagement(betas=(), drops_blocks=True)
    with natively(WAY, toml=LISTED, context=ignoring, strict_fields=False, flags=QUICK) as gate:
        agent = agent_at(gate, WAY)
        hold(agent, "steps", 14)
        assert gate.violations == []
        told = [turn.headers.get("x-tidegate-reason") for turn in agent.turns]
        assert told.count("asked_to_clear") == 1
        assert gate.of("summary")
        assert all(record.outcome == "answered" for record in gate.of("main"))
        # What should have been a compaction was answered too.
        assert len([record for record in gate.of("main") if b'"summarize"' not in record.body]) == 14


@pytest.mark.parametrize("fault", [{"do": "error", "status": 529}, {"do": "html", "status": 502}])
def test_a_fault_on_the_way_costs_no_more_than_it_would(fault):
    with natively(WAY, toml=LISTED, flags=QUICK) as gate:
        agent = late(gate, WAY)
        gate.simulator.script(Step(on="main", **fault))
        status, _headers, _body = agent.post(agent.request())
        assert status == fault["status"]
        assert len(gate.of("main")) == 1
