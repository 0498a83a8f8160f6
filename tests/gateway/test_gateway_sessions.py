"""Long sessions of real SDKs through the gateway: every turn is answered, no rule is broken, nothing is forgotten."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from agents import AGENTS, Agent, fact, hold, imagine, output, run
from running import Running, running

from tidegate.simulator import SimulatorSettings

WINDOW = 8000
TURNS = 60
PLANTED = {f"FACT-{number:02d}" for number in range(0, TURNS, 5)}

APIS = pytest.mark.parametrize("api", list(AGENTS))


def items(api: str, body: bytes) -> list[Any]:
    sent = json.loads(body)
    return list(sent["input" if api == "responses" else "messages"])


def history_tokens(agent: Agent) -> int:
    return len(json.dumps(agent.history)) // 4


def check(gate: Running, agent: Agent, *, turns: int = TURNS) -> None:
    """What holds of every session, whatever the API, the shape and the client."""
    main, summaries = gate.of("main"), gate.of("summary")
    assert len(agent.turns) == turns
    assert gate.violations == []
    assert history_tokens(agent) > 10 * WINDOW
    assert set(main[-1].facts) >= PLANTED
    # Overflow is met once at most: then the window is known, or was known from the start.
    answered = [record for record in main if record.outcome == "answered"]
    after = [record.input_tokens for before, record in pairwise(answered) if record.input_tokens < before.input_tokens]
    new = history_tokens(agent)
    assert len(summaries) <= math.ceil(new / (0.85 * WINDOW - max(after))) + 1


def stable_prefix(gate: Running, api: str) -> None:
    """Between two compactions the whole of the previous request's items begins the next one's, byte for byte."""
    shrunk = 0
    for before, record in pairwise([record for record in gate.of("main") if record.outcome == "answered"]):
        earlier, later = (
            [json.dumps(item, sort_keys=True) for item in items(api, each.body)] for each in (before, record)
        )
        if later[: len(earlier)] != earlier:
            shrunk += 1
    assert shrunk <= len(gate.of("summary"))


@APIS
@pytest.mark.parametrize(
    ("shape", "stream", "asynchronous"),
    [
        ("steps", True, False),
        pytest.param("steps", False, True, marks=pytest.mark.slow),
        ("single", True, True),
        ("single", False, False),
    ],
    ids=["steps-streamed-sync", "steps-whole-async", "single-streamed-async", "single-whole-sync"],
)
def test_sixty_turns_over_ten_windows(api, shape, stream, asynchronous):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW) as gate:
        agent = AGENTS[api](gate.base, stream=stream)
        run(agent, shape, TURNS, asynchronous=asynchronous)
        check(gate, agent)
        stable_prefix(gate, api)
        assert all(record.outcome == "answered" for record in gate.of("main"))


@APIS
def test_where_nobody_knows_the_window_the_refusals_teach_it(api):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6)) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        run(agent, "single", 30, asynchronous=False)
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= {f"FACT-{number:02d}" for number in range(0, 30, 5)}
        overflows = [record for record in gate.of("main") if record.outcome == "overflow"]
        # OpenAI's words on /responses name no number, so there each compaction is a recovery.
        assert len(overflows) == 1 if api != "responses" else len(overflows) <= len(gate.of("summary"))


@APIS
@pytest.mark.parametrize("known", [WINDOW, None], ids=["known window", "unknown window"])
def test_a_cold_store_and_a_first_request_of_ten_windows(api, known):
    """Summary calls are bounded by the transcript over the room of one call; a few refused ones more where nobody
    states the window."""
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=known) as gate:
        late = AGENTS[api](gate.base, stream=True)
        imagine(late, "steps", TURNS, 1400)
        late.history.append(late.user("Where were we?"))
        assert history_tokens(late) > 10 * WINDOW
        late.ask()
        assert gate.violations == []
        assert late.turns[0].headers["x-tidegate-action"] in ("compacted", "recovered")
        answered = [record for record in gate.of("summary") if record.outcome == "answered"]
        assert len(answered) <= (16 if known or api != "responses" else 24)
        assert len(gate.of("summary")) <= len(answered) + (0 if known else 8)
        assert set(gate.of("main")[-1].facts) >= PLANTED


@APIS
def test_a_forgetful_summarizer_is_seen_to_lose_facts(api):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6, forgetful=True), window=WINDOW) as gate:
        run(AGENTS[api](gate.base, stream=False), "steps", 30, asynchronous=False)
        assert len(set(gate.of("main")[-1].facts) & PLANTED) <= 2


@APIS
@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_a_ruler_that_is_wrong_is_corrected_by_what_the_provider_reports(api, factor):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6, usage_factor=factor), window=WINDOW) as gate:
        run(AGENTS[api](gate.base, stream=False), "single", 25, asynchronous=False)
        assert gate.violations == []
        assert sum(record.outcome == "overflow" for record in gate.of("main")) <= 2


@APIS
def test_a_restart_finds_what_was_compacted_before(api, tmp_path):
    store = {"store__kind": "sqlite", "store__path": str(tmp_path / "c.db"), "store__key_file": str(tmp_path / "key")}
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW, **store) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        hold(agent, "steps", 11)
        paid = len(gate.of("summary"))
        assert paid >= 1
        base = gate.base
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW, **store) as gate:
        assert gate.base != base
        agent.base = gate.base
        agent.history.append(agent.user("And now?"))
        turn = agent.ask()
        assert turn.headers["x-tidegate-action"] == "replayed"
        assert gate.of("summary") == []


@APIS
def test_another_key_shares_nothing(api):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        hold(agent, "steps", 8)
        paid = len(gate.of("summary"))
        stranger = AGENTS[api](gate.base, stream=False, key="sk-stranger-2")
        stranger.history = [*agent.history, agent.user("What do you know?")]
        stranger.ask()
        assert len(gate.of("summary")) > paid
        assert stranger.turns[0].headers["x-tidegate-action"] == "compacted"


@APIS
def test_a_fork_and_an_edited_past_go_their_own_way(api):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        hold(agent, "steps", 8)
        edited = AGENTS[api](gate.base, stream=False)
        edited.history = [agent.user("Another beginning."), *agent.history[1:], agent.user("Go on.")]
        edited.ask()
        assert edited.turns[0].headers["x-tidegate-action"] == "compacted"
        assert b"Another beginning." in gate.of("summary")[-1].body
        fork = AGENTS[api](gate.base, stream=False)
        fork.history = [*agent.history, agent.user(f"Another way. {output(1, 50)}")]
        fork.ask()
        assert fork.turns[0].headers["x-tidegate-action"] == "replayed"
        assert fact(0)[:7] in gate.of("main")[-1].facts
        assert gate.violations == []


@pytest.mark.parametrize("shape", ["steps", "single"])
@pytest.mark.parametrize(
    ("api", "model", "extra"),
    [
        ("messages", "claude-sonnet-4-5", {"max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("messages", "claude-sonnet-5-5", {"max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("responses", "gpt-5.1", {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}),
    ],
    ids=["signed thinking", "thinking bound to its past", "encrypted reasoning"],
)
def test_thinking_outlives_compaction_or_is_dropped_whole(api, model, extra, shape):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=3 if shape == "steps" else 10**6), window=WINDOW) as gate:
        agent = AGENTS[api](gate.base, model=model, stream=True)
        agent.extra = extra
        run(agent, shape, 20, asynchronous=False)
        assert any("thinking" in str(turn.items) or "reasoning" in str(turn.items) for turn in agent.turns)
        assert gate.violations == []
        assert all(record.outcome == "answered" for record in gate.of("main"))
        assert len(gate.of("summary")) >= 2
        assert [turn.headers.get("x-tidegate-reason") for turn in agent.turns].count("rewritten_history_refused") == 0
