"""Sessions where Claude compacts at a threshold alone: the client's own answers stay the provider's, the block goes
back with its header and its edit, and a client that asks for the edit itself is left alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from agents import AGENTS, hold
from native import LEAST_TRIGGER, WAYS, Way, agent_at, natively
from running import Running
from test_gateway_native_faults import QUICK, late

from tidegate.simulator import Step
from tidegate.simulator.context_settings import BINDING, EDITING, THRESHOLD, ContextManagement

BEDROCK = WAYS["bedrock"]
OLDER = ContextManagement(betas=(THRESHOLD, EDITING, BINDING))
"""A platform that has this beta alone."""
BOUND = "claude-sonnet-5-5"
CLAUDE = replace(WAYS["anthropic"], model="claude-older")
KNOWN = '[[providers.anthropic.models]]\nmatch = ["claude-older*"]\ncompaction = ["threshold"]\n'
BINDS = f'[[providers.anthropic.models]]\nmatch = "{BOUND}"\ncompaction = ["threshold"]\nbinds_thinking = true\n'


@contextmanager
def older(way: Way = CLAUDE, toml: str = KNOWN, **simulated: Any) -> Iterator[Running]:
    """Anthropic's API with no other compaction than at a threshold."""
    with natively(way, toml=toml, **{"context": OLDER, **simulated}) as gate:
        yield gate


def check(gate: Running, agent: Any, turns: int) -> None:
    assert gate.violations == []
    main = gate.of("main")
    assert len(main) == len(agent.turns) == turns
    assert all(record.outcome == "answered" for record in main)
    assert set(main[-1].facts) >= {f"FACT-{number:02d}" for number in range(0, turns, 5)}
    assert len(gate.of("compaction")) >= 3
    assert not gate.of("summary")
    assert {turn.headers.get("x-tidegate-strategy") for turn in agent.turns} == {None, "anthropic"}
    assert "compaction" not in json.dumps(agent.history)
    for record in main:
        assert (b'"compact_20260112"' in record.body) == (b'"type":"compaction"' in record.body)
    assert sum(b'"compact_20260112"' in record.body for record in main) >= turns // 2


@pytest.mark.parametrize("shape", ["steps", "single"])
def test_a_session(shape):
    with older() as gate:
        agent = agent_at(gate, CLAUDE)
        hold(agent, shape, 30)
        check(gate, agent, 30)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_the_real_sdk_sees_nothing_of_it(stream):
    with older() as gate:
        agent = AGENTS["messages"](f"{gate.base}/anthropic", model=CLAUDE.model, stream=stream)
        hold(agent, "steps", 16)
        check(gate, agent, 16)


KNOBS = {
    "sealed metadata": ContextManagement(betas=(THRESHOLD, EDITING, BINDING), sealed_blocks=True),
    "a long hidden prompt": ContextManagement(betas=(THRESHOLD, EDITING, BINDING), prompt=400),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KNOBS))
def test_whatever_a_platform_does(name):
    with older(context=KNOBS[name]) as gate:
        agent = agent_at(gate, CLAUDE)
        hold(agent, "steps", 30)
        check(gate, agent, 30)


@pytest.mark.parametrize("shape", ["steps", "single"])
@pytest.mark.parametrize("model", ["claude-older", BOUND], ids=["thinking", "thinking bound to its past"])
def test_what_the_model_thought_goes_along_as_far_as_it_is_valid(model, shape):
    """The block keeps no record of what it stands for: what was thought before it and kept behind it is dropped by the
    API, on models that bind it."""
    way = replace(CLAUDE, model=model)
    with older(way, KNOWN + BINDS, tool_rounds=3 if shape == "steps" else 10**6) as gate:
        agent = agent_at(gate, way)
        agent.extra = {"max_tokens": 1500, "thinking": {"type": "adaptive"}}
        hold(agent, shape, 30)
        check(gate, agent, 30)
        assert b'"thinking": "' in gate.of("main")[-1].body
        assert bool(agent.transformed) == (model == BOUND)


def test_the_clients_own_edits_stay_and_ours_comes_last():
    clearing = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 100_000}}
    with older() as gate:
        agent = agent_at(gate, CLAUDE)
        agent.extra = {"context_management": {"edits": [clearing]}}
        agent.headers = lambda own=agent.headers: {**own(), "anthropic-beta": EDITING}
        hold(agent, "steps", 16)
        assert gate.violations == []
        assert len(gate.of("compaction")) >= 2
        edits = [json.loads(record.body)["context_management"]["edits"] for record in gate.of("main")]
        assert all(edit[0] == clearing and len(edit) <= 2 for edit in edits)
        assert [edit["type"] for edit in edits[-1]] == ["clear_tool_uses_20250919", "compact_20260112"]


def test_a_client_that_asks_for_the_edit_itself_is_passed_on_untouched():
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 3000}}
    with older() as gate:
        agent = agent_at(gate, CLAUDE)
        agent.extra = {"context_management": {"edits": [edit]}}
        agent.headers = lambda own=agent.headers: {**own(), "anthropic-beta": THRESHOLD}
        hold(agent, "steps", 12)
        assert gate.violations == []
        assert {turn.headers["x-tidegate-reason"] for turn in agent.turns} == {"own_compaction"}
        assert '"type": "compaction"' in json.dumps(agent.history)
        assert not gate.of("summary")
        assert [json.loads(record.body)["context_management"]["edits"] for record in gate.of("main")] == [[edit]] * 12


def test_what_a_compaction_cost_is_told_apart_and_makes_no_turn_seem_full():
    with older(flags=QUICK) as gate:
        agent = late(gate, CLAUDE)
        turn = agent.ask()
        (record,) = gate.of("compaction")
        assert turn.headers["x-tidegate-strategy"] == "anthropic"
        assert int(turn.headers["x-tidegate-compaction-input-tokens"]) == record.input_tokens + 100
        assert int(turn.headers["x-tidegate-compaction-output-tokens"]) > 50
        agent.results(agent.turns[-1], "No more than that.")
        assert agent.ask().headers["x-tidegate-action"] == "replayed"


def test_tokens_are_counted_of_what_would_be_forwarded():
    with older(flags=QUICK) as gate:
        agent = late(gate, CLAUDE)
        agent.ask()
        (whole,) = gate.of("compaction")
        agent.results(agent.turns[-1], "No more than that.")
        agent.path += "/count_tokens"
        body = {key: value for key, value in agent.request().items() if key != "max_tokens"}
        status, _headers, raw = agent.post(body)
        assert status == 200
        assert json.loads(raw)["input_tokens"] < whole.input_tokens
        assert gate.violations == []


def test_too_small_a_history_for_any_trigger_gets_a_summary_and_no_call():
    with natively(CLAUDE, context=OLDER, flags=QUICK, toml=KNOWN, least=50_000) as gate:
        assert late(gate, CLAUDE).ask().headers["x-tidegate-strategy"] == "summary"
        assert not gate.of("compaction")
        assert gate.violations == []


def test_a_platform_that_turns_out_to_have_no_compaction_on_demand():
    """Both are listed, one is refused: the other is tried at once, and alone from then on."""
    way = WAYS["anthropic"]
    with natively(way, context=OLDER, flags=QUICK) as gate:
        first = late(gate, way).ask()
        assert first.headers["x-tidegate-strategy"] in ("anthropic", "summary")
        for number in range(2):
            agent = late(gate, way)
            agent.history[0] = agent.user(f"Another beginning, number {number}.")
            assert agent.ask().headers["x-tidegate-strategy"] == "anthropic"
        refused = [violation.rule for violation in gate.violations]
        assert refused == ["unknown-field"]
        assert len(gate.of("compaction")) >= 2


def test_what_the_list_of_models_tells_chooses_the_way():
    """Nothing is asked for that it says a model can't do."""
    asking = {"upstream.ask_windows": True}
    able = ContextManagement(model_betas={CLAUDE.model: (THRESHOLD, EDITING, BINDING)})
    with natively(CLAUDE, context=able, models=(CLAUDE.model,), flags=asking) as gate:
        agent = agent_at(gate, CLAUDE)
        hold(agent, "steps", 16)
        check(gate, agent, 16)
        assert [record.path for record in gate.records].count("/v1/models") == 1


@pytest.mark.parametrize("strict", [True, False], ids=["refused", "ignored"])
def test_a_platform_without_any_gets_a_summary(strict):
    none = ContextManagement(betas=(), drops_blocks=not strict)
    with older(context=none, strict_fields=strict, flags=QUICK) as gate:
        for number in range(2):
            agent = late(gate, CLAUDE)
            agent.history[0] = agent.user(f"Another beginning, number {number}.")
            assert agent.ask().headers["x-tidegate-strategy"] == "summary"
        asked = [record for record in gate.records if b"pause_after_compaction" in record.body]
        assert len(asked) == (1 if strict else 2)


def test_a_block_that_is_refused_later_counts_as_absent():
    with older(flags=QUICK) as gate:
        agent = late(gate, CLAUDE)
        assert agent.ask().headers["x-tidegate-strategy"] == "anthropic"
        gate.simulator.configure(context=ContextManagement(betas=(EDITING, BINDING)))
        agent.results(agent.turns[-1], "No more than that.")
        turn = agent.ask()
        assert turn.headers["x-tidegate-action"] in ("recovered", "relayed")
        assert set(gate.of("main")[-1].facts) >= {"FACT-00", "FACT-05"}


def test_a_compaction_that_comes_to_null_is_none():
    with older(flags=QUICK) as gate:
        gate.simulator.script(Step(do="null_artifact", on="compaction", times=5))
        assert late(gate, CLAUDE).ask().headers["x-tidegate-strategy"] == "summary"
        assert gate.violations == []


def test_the_two_ways_never_read_each_others_blocks():
    """A signed block is refused beside an edit, an unsigned one without it."""
    way = WAYS["anthropic"]
    with natively(way, flags=QUICK) as gate:
        agent = late(gate, way)
        assert agent.ask().headers["x-tidegate-strategy"] == "anthropic"
        agent.results(agent.turns[-1], "No more than that.")
        gate.simulator.configure(context=replace(OLDER, least_trigger=LEAST_TRIGGER))
        hold(agent, "steps", 12)
        assert {violation.rule for violation in gate.violations} <= {"unknown-field", "block-type"}
        assert all(record.outcome == "answered" for record in gate.of("main")[-10:])
        assert set(gate.of("main")[-1].facts) >= {"FACT-00", "FACT-05", "FACT-10"}


CLOUDS: dict[str, tuple[str, Any]] = {
    "Microsoft Foundry": (
        "foundry",
        lambda base: anthropic.AnthropicFoundry(base_url=f"{base}/foundry", api_key="k", max_retries=0),
    ),
    "Amazon Bedrock": (
        "bedrock",
        lambda base: anthropic.AnthropicBedrockMantle(
            base_url=f"{base}/bedrock", api_key="k", aws_region="us-east-1", max_retries=0
        ),
    ),
    "Claude Platform on AWS": (
        "anthropic",
        lambda base: anthropic.AnthropicAWS(
            base_url=f"{base}/anthropic", api_key="k", aws_region="us-east-1", workspace_id="w", max_retries=0
        ),
    ),
}


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["streamed", "whole"])
@pytest.mark.parametrize("cloud", list(CLOUDS))
def test_the_clouds_own_clients(cloud, stream):
    name, made = CLOUDS[cloud]
    with natively(WAYS[name]) as gate:
        agent = AGENTS["messages"](gate.base, model=WAYS[name].model, stream=stream)
        client = made(gate.base)
        agent.client = lambda _kind: client
        hold(agent, "steps", 14)
        assert gate.violations == []
        assert len(gate.of("main")) == 14
        assert len(gate.of("compaction")) >= 2
        assert {turn.headers.get("x-tidegate-strategy") for turn in agent.turns} == {None, "anthropic"}
        assert set(gate.of("main")[-1].facts) >= {"FACT-00", "FACT-05", "FACT-10"}
        assert "compaction" not in json.dumps(agent.history)
