"""Model, provider and credential changed in mid-session, and back: what was sealed for one is never shown to another
(the simulators judge), and the session goes on with what it stood for."""

from __future__ import annotations

from typing import Any

import pytest
from agents import hold
from native import LEAST_TRIGGER, WAYS, WINDOW, agent_at, natively, toml_of
from running import Running, settings

from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings, serve
from tidegate.simulator.compaction_settings import ResponsesCompaction
from tidegate.simulator.context_settings import ContextManagement
from tidegate.simulator.minting import Mint

LEG = 14
"""Turns before, between and after: each compacts a few times."""


def facts(gate: Running) -> set[str]:
    return set(gate.of("main")[-1].facts)


PLANTED = {f"FACT-{number:02d}" for number in range(0, LEG, 5)}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("openai", "gpt-5.2"),
        ("codex", "gpt-6.1-luna"),
        ("xai", "grok-4.6"),
        ("anthropic", "claude-opus-4-6"),
        ("bedrock", "anthropic.claude-opus-4-6"),
    ],
)
def test_another_model_and_back(name, other):
    way = WAYS[name]
    knob: dict[str, Any] = {"responses_compaction": ResponsesCompaction(bound_to_model=True)}
    with natively(way, **(knob if way.api == "responses" else {})) as gate:
        agent = agent_at(gate, way)
        for model in (way.model, other, way.model):
            agent.model = model
            hold(agent, "steps", LEG)
            assert agent.turns[-1].headers["x-tidegate-strategy"] == way.strategy
            assert gate.violations == []
            assert facts(gate) >= PLANTED
        assert all(record.outcome == "answered" for record in gate.of("main"))


@pytest.mark.parametrize("bound", ["key", "project", "org"])
@pytest.mark.parametrize("name", ["openai", "codex", "xai"])
def test_another_credential_and_back(name, bound):
    way = WAYS[name]
    orgs = {"sk-a": "acme/search", "sk-b": "other/lab"}
    with natively(way, orgs=orgs, responses_compaction=ResponsesCompaction(bound_to=bound)) as gate:
        agent = agent_at(gate, way, key="sk-a")
        for key in ("sk-a", "sk-b", "sk-a"):
            agent.key = key
            hold(agent, "steps", LEG)
            assert gate.violations == []
            assert facts(gate) >= PLANTED
        assert {record.org for record in gate.of("compaction")} == {"acme/search", "other/lab"}


@pytest.mark.parametrize("name", ["anthropic", "bedrock"])
def test_another_workspace_of_anthropic_and_back(name):
    way = WAYS[name]
    with natively(way, orgs={"sk-a": "acme/search", "sk-b": "acme/lab"}) as gate:
        agent = agent_at(gate, way, key="sk-a")
        for key in ("sk-a", "sk-b", "sk-a"):
            agent.key = key
            hold(agent, "steps", LEG)
            assert gate.violations == []
            assert facts(gate) >= PLANTED


@pytest.mark.parametrize(
    ("one", "other"),
    [("openai", "azure"), ("openai", "xai"), ("codex", "openai"), ("anthropic", "foundry"), ("bedrock", "anthropic")],
)
def test_another_provider_and_back(one, other):
    first, second = WAYS[one], WAYS[other]
    sized = f'[models."*"]\nwindow = {WINDOW}\n'
    same = {"window": WINDOW, "tool_rounds": 10**6, "context": ContextManagement(least_trigger=LEAST_TRIGGER)}
    with (
        serve(SimulatorSettings(profile=first.profile, **same)) as here,
        serve(SimulatorSettings(profile=second.profile, seed=7, **same)) as there,
        serving(settings(toml_of(first, here.url) + toml_of(second, there.url) + sized)) as (base, app),
    ):
        gates = {one: Running(base, app, here), other: Running(base, app, there)}
        agent: Any = None
        for name in (one, other, one):
            way, gate = WAYS[name], gates[name]
            fresh = agent_at(gate, way)
            fresh.history, fresh.turns = (agent.history, agent.turns) if agent else ([], [])
            agent = fresh
            hold(agent, "steps", LEG)
            assert agent.turns[-1].headers["x-tidegate-strategy"] == way.strategy
            assert gate.violations == []
            assert facts(gate) >= PLANTED


def test_a_provider_without_a_compaction_of_its_own_goes_on_with_text_and_back():
    """The text is kept beside what was sealed, each for whoever can read it."""
    way = WAYS["openai"]
    models = f'[models."text-*"]\nstrategies = ["summary"]\nwindow = {WINDOW}\n[models."*"]\nwindow = {WINDOW}\n'
    with natively(way, known=False, toml=models) as gate:
        agent = agent_at(gate, way)
        for model, strategy in ((way.model, "openai"), ("text-model", "summary"), (way.model, "openai")):
            agent.model = model
            hold(agent, "steps", LEG)
            assert agent.turns[-1].headers["x-tidegate-strategy"] == strategy
            assert gate.violations == []
            assert facts(gate) >= PLANTED


@pytest.mark.parametrize("name", ["openai", "codex", "xai", "anthropic"])
def test_what_its_own_maker_refuses_counts_as_absent(name):
    """Its key changed: the item is refused once, then what it stood for goes instead, and no turn asks again."""
    way = WAYS[name]
    with natively(way, flags={"compaction.prepare": "off"}) as gate:
        agent = agent_at(gate, way)
        hold(agent, "steps", LEG)
        while agent.turns[-1].headers["x-tidegate-action"] != "compacted":
            hold(agent, "steps", 1)
        assert agent.turns[-1].headers["x-tidegate-strategy"] == way.strategy
        gate.simulator.app.world.mint = Mint(99)
        hold(agent, "steps", LEG)
        refused = [record for record in gate.records if record.outcome != "answered"]
        assert len(refused) == 1
        assert gate.violations == [record.violation for record in refused]
        reasons = [turn.headers.get("x-tidegate-reason") for turn in agent.turns]
        assert reasons.count("artifact_unreadable") == 1
        again = agent.turns[reasons.index("artifact_unreadable")].headers
        assert (again["x-tidegate-action"], again["x-tidegate-strategy"]) == ("recovered", "summary")
        assert agent.turns[-1].headers["x-tidegate-strategy"] == way.strategy
        assert facts(gate) >= PLANTED
