"""No turn waits for a compaction where turns are further apart than a summary takes, and smaller than the soft band."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from agents import AGENTS, Agent, Shape, script
from rawclient import JSON, PATHS, Call, history
from running import Running, running

from tidegate.simulator import SimulatorSettings, Step

WINDOW = 8000
SECONDS = 1.5
"""What a summary takes."""
TURN = 600
"""Tokens of a turn's tool output, with words about 9 % of the window: the band is 15 %."""


@contextmanager
def gateway(*before: Step, **flags: Any) -> Iterator[Running]:
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW, **flags) as gate:
        gate.simulator.script(*before, Step(do="answer", on="summary", delay=SECONDS, times=100))
        yield gate


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def at_rest(gate: Running) -> bool:
    """Nothing goes on in the background."""
    return not gate.app.conversations.flights._running


def paced(gate: Running, agent: Agent, shape: Shape, turns: int) -> list[float]:
    """Seconds of each request; each but the first comes when whatever was prepared is there."""
    took = []
    for words, result in script(shape, turns, TURN):
        if words:
            agent.history.append(agent.user(words))
        until(lambda: at_rest(gate))
        began = time.monotonic()
        turn = agent.ask()
        took.append(time.monotonic() - began)
        agent.results(turn, result)
    return took[1:]  # the first one pays for the SDK's own start


def reasons(agent: Agent, action: str) -> list[str]:
    told = [turn.headers for turn in agent.turns if turn.headers["x-tidegate-action"] == action]
    return [headers.get("x-tidegate-reason", "") for headers in told]


@pytest.mark.parametrize(("api", "shape"), [("chat", "steps"), ("responses", "single"), ("messages", "single")])
def test_no_turn_waits(api, shape):
    with gateway() as gate:
        agent = AGENTS[api](gate.base, stream=shape == "steps")
        took = paced(gate, agent, shape, 26)
        assert max(took) < SECONDS * 0.8  # a turn that waits takes all of it
        used = reasons(agent, "compacted")
        assert len(used) >= 2
        assert set(used) == {"prepared"}
        assert reasons(agent, "recovered") == []
        assert gate.violations == []
        # The cuts are as deep as others: no more summaries, but for one that may not have been used yet.
        assert len(used) <= len(gate.of("summary")) <= len(used) + 1
        new = len(json.dumps(agent.history)) // 4
        assert len(gate.of("summary")) <= new // (0.3 * WINDOW) + 2


def test_without_it_some_do():
    with gateway(compaction__prepare="off") as gate:
        agent = AGENTS["chat"](gate.base, stream=False)
        took = paced(gate, agent, "steps", 14)
        assert max(took) >= SECONDS
        assert reasons(agent, "compacted")
        assert set(reasons(agent, "compacted")) == {""}


def begin(gate: Running) -> None:
    """A request in the band, whose client leaves once it has its answer."""
    headers = [*JSON, ("Authorization", "Bearer sk-who-left")]
    client = Call(gate.base, "POST", PATHS["chat"], headers, json.dumps(history("chat", 20)).encode())
    assert client.head().status == 200
    assert client.rest().whole
    client.close()


def test_the_call_goes_on_with_the_clients_credential_when_the_client_has_left():
    with gateway() as gate:
        begin(gate)
        until(lambda: len(gate.of("summary")) == 1)
        until(lambda: at_rest(gate))
        (main,), (call,) = gate.of("main"), gate.of("summary")
        assert call.outcome == "answered"
        assert call.status == 200
        assert "authorization" in main.headers
        assert "authorization" in call.headers


def test_a_stop_does_not_wait_for_one():
    with gateway(Step(do="hang", on="summary")) as gate:
        begin(gate)
        until(lambda: len(gate.of("summary")) == 1)
        began = time.monotonic()
    assert time.monotonic() - began < 5
