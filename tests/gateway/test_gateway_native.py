"""Long sessions at providers that compact by themselves: nothing is forgotten, no rule is broken, and what was sealed
goes back to nobody but its owner (the simulator judges)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from agents import AGENTS, hold, imagine
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


@pytest.mark.parametrize(("name", "streams"), [("openai", True), ("anthropic", False)])
def test_the_real_sdks_see_nothing_of_it(name, streams):
    way = WAYS[name]
    with natively(way) as gate:
        agent = AGENTS[way.api](f"{gate.base}/{way.provider}", model=way.model, stream=streams)
        hold(agent, "steps", 12)
        check(gate, agent, way, turns=12)
        assert "compaction" not in json.dumps(agent.history)


SLOW = {
    "openai": {"responses_compaction": ResponsesCompaction(seconds=20)},
    "bedrock": {"context": ContextManagement(seconds=20)},
}


@pytest.mark.parametrize("name", list(SLOW))
def test_a_client_that_leaves_takes_the_providers_compaction_along(name):
    way = WAYS[name]
    with natively(way, flags={"compaction.prepare": "off"}, **SLOW[name]) as gate:
        agent = agent_at(gate, way)
        imagine(agent, "steps", 7, 1100)
        agent.history.append(agent.user("Where were we?"))
        host, port = gate.base.removeprefix("http://").split(":")
        body = json.dumps(agent.request()).encode()
        with socket.create_connection((host, int(port))) as client:
            head = f"POST {agent.path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer sk\r\n"
            head += "anthropic-version: 2023-06-01\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            soon(lambda: bool(gate.of("compaction")))
        soon(lambda: gate.of("compaction")[0].outcome == "cancelled")
        assert not gate.of("main")
        assert not gate.of("summary")


def soon(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
