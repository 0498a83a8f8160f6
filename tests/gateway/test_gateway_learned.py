"""An endpoint of which no file says that it compacts, and that has done it: it is asked from then on."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from agents import hold, imagine
from native import PlainResponses, Posting
from running import Running, running

from tidegate.simulator import SimulatorSettings, Step
from tidegate.simulator.compaction_settings import ResponsesCompaction

QUICK = {"compaction.prepare": "off"}


def unknown(**knobs: Any) -> SimulatorSettings:
    """A server of no name that speaks Responses."""
    return SimulatorSettings(
        window=8000, tool_rounds=10**6, profile="openai", responses_compaction=ResponsesCompaction(**knobs)
    )


def late(gate: Running, words: str, model: str = "m") -> Any:
    agent = PlainResponses(gate.base, model=model, stream=False, key="sk-agent-1")
    agent.history.append(agent.user(words))
    imagine(agent, "steps", 7, 1100)
    agent.history.append(agent.user("Where were we?"))
    return agent


def way(gate: Running, words: str) -> str:
    return str(late(gate, words).ask().headers["x-tidegate-strategy"])


def test_none_is_asked_unknown():
    with running(unknown(), window=8000, **QUICK) as gate:
        assert way(gate, "first") == "summary"
        assert not gate.of("compaction")


@pytest.mark.parametrize("api", ["compact", "trigger", "in band"])
def test_what_a_client_got_by_itself_is_used(api):
    with running(unknown(), window=8000, **QUICK) as gate:
        client = openai.OpenAI(base_url=f"{gate.base}/v1", api_key="sk-agent-1", max_retries=0)
        said: Any = {"role": "user", "content": "one two three " * 400}
        if api == "compact":
            client.responses.compact(model="m", input=[said])
        elif api == "trigger":
            client.responses.create(model="m", input=[said, {"type": "compaction_trigger"}])
        else:
            edit: Any = {"type": "compaction", "compact_threshold": 1000}
            client.responses.create(model="m", input=[said], context_management=[edit])
        if api != "in band":
            assert way(gate, "first") == {"compact": "openai", "trigger": "openai-trigger"}[api]
        else:
            agent = PlainResponses(gate.base, model="m", stream=False, key="sk-agent-1")
            agent.extra = {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}
            hold(agent, "steps", 12, 900)
            assert any(item.get("type") == "compaction" for item in agent.history)
            assert not gate.of("summary")
        assert gate.violations == []


def test_a_client_that_brings_its_compaction_back_shows_that_there_are_more():
    with running(unknown(), window=8000, **QUICK) as gate:
        straight = openai.OpenAI(base_url=f"{gate.simulator.url}/v1", api_key="sk-agent-1", max_retries=0)
        given = straight.responses.compact(model="m", input=[{"role": "user", "content": "Hello"}]).output
        items = [json.loads(item.model_dump_json(exclude_none=True)) for item in given]
        through = openai.OpenAI(base_url=f"{gate.base}/v1", api_key="sk-agent-1", max_retries=0)
        through.responses.create(model="m", input=[*items, {"role": "user", "content": "Go on"}])
        assert way(gate, "first") == "openai"


def test_what_a_client_had_compacted_by_itself_is_all_that_its_later_turns_hold():
    """Nothing that Tidegate keeps of the history before it comes back, and not a byte of it changes."""
    with running(unknown(), window=8000, **QUICK) as gate:
        agent = late(gate, "first")
        agent.history[0]["content"] = "FACT-00 is to be kept."
        agent.results(agent.ask(), "done")
        assert agent.turns[-1].headers["x-tidegate-action"] == "compacted"
        client = openai.OpenAI(base_url=f"{gate.base}/v1", api_key="sk-agent-1", max_retries=0)
        kinds = [item.get("type") for item in agent.history]
        whole = max(n for n in range(12) if kinds[:n].count("function_call") == kinds[:n].count("function_call_output"))
        given = client.responses.compact(model="m", input=agent.history[:whole]).output
        agent.history = [json.loads(item.model_dump_json(exclude_none=True)) for item in given]
        for words in ("And now?", "And then?"):
            agent.history.append(agent.user(words))
            shown = list(agent.history)
            turn = agent.ask()
            assert turn.headers["x-tidegate-action"] == "relayed"
            assert json.loads(gate.of("main")[-1].body)["input"] == shown
            assert "FACT-00" in gate.of("main")[-1].facts
            agent.results(turn, "done")
        assert gate.violations == []


def test_one_models_own_list_teaches_for_the_others():
    toml = '[models."m-1"]\nwindow = 8000\nstrategies = ["openai", "summary"]\n'
    with running(unknown(), window=8000, toml=toml, **QUICK) as gate:
        assert late(gate, "first", "m-1").ask().headers["x-tidegate-strategy"] == "openai"
        assert late(gate, "second", "m-2").ask().headers["x-tidegate-strategy"] == "openai"


def test_what_the_user_lists_is_all_that_is_tried():
    toml = '[compaction]\nstrategies = ["summary"]\n'
    with running(unknown(), window=8000, toml=toml, **QUICK) as gate:
        client = openai.OpenAI(base_url=f"{gate.base}/v1", api_key="sk-agent-1", max_retries=0)
        client.responses.compact(model="m", input=[{"role": "user", "content": "Hello"}])
        assert way(gate, "first") == "summary"


@pytest.mark.parametrize(
    ("knobs", "step"),
    [
        ({"path": "404"}, None),
        ({}, {"do": "no_artifact"}),
        ({}, {"do": "error", "status": 500}),
        ({}, {"do": "garbage"}),
    ],
    ids=["no path", "no item", "an error", "garbage"],
)
def test_nothing_is_learned_from_what_is_no_compaction(knobs, step):
    with running(unknown(**knobs), window=8000, **QUICK) as gate:
        if step:
            gate.simulator.script(Step(path="compact", **step))
        client = Posting()
        client.base, client.key, client.path = gate.base, "sk-agent-1", "/v1/responses/compact"
        client.post({"model": "m", "input": [{"role": "user", "content": "Hello"}]})
        assert way(gate, "first") == "summary"


def test_what_it_has_no_more_is_left_out_again():
    with running(unknown(), window=8000, **QUICK) as gate:
        client = openai.OpenAI(base_url=f"{gate.base}/v1", api_key="sk-agent-1", max_retries=0)
        client.responses.compact(model="m", input=[{"role": "user", "content": "Hello"}])
        gate.simulator.script(Step(do="error", status=404, path="compact", times=9))
        assert [way(gate, words) for words in ("first", "second")] == ["summary", "summary"]
        assert len([record for record in gate.records if record.path.endswith("/compact")]) == 2


def test_what_it_does_not_do_when_asked_is_not_asked_for_again():
    """Of a way that a file lists a 200 without an item says nothing; of one that was only seen it does."""
    with running(unknown(), window=8000, **QUICK) as gate:
        client = openai.OpenAI(base_url=f"{gate.base}/v1", api_key="sk-agent-1", max_retries=0)
        client.responses.compact(model="m", input=[{"role": "user", "content": "Hello"}])
        gate.simulator.script(Step(do="no_artifact", path="compact", times=9))
        assert [way(gate, words) for words in ("first", "second")] == ["summary", "summary"]
        assert len([record for record in gate.records if record.path.endswith("/compact")]) == 2
