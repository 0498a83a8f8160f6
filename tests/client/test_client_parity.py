"""The same session through the gateway and through either transport: upstream and client see the same."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from agents import AGENTS, run
from running import running
from sdks import here

from tidegate.simulator import SimulatorSettings

WINDOW = 4000
TURNS = 9


def simulated(**more: Any) -> SimulatorSettings:
    return SimulatorSettings(window=WINDOW, tool_rounds=10**6, **more)


def plain(body: bytes | str) -> str:
    """Without what is chance: the simulator's own names of answers and calls, and the fence's word."""
    text = body.decode() if isinstance(body, bytes) else body
    names: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return names.setdefault(match.group(0), f"name_{len(names)}")

    return re.sub(r"(?:call|fc|msg|resp|toolu|chatcmpl)_?-?[0-9a-f]{6,}", numbered, text)


def seen(records: list[Any], agent: Any) -> tuple[list[Any], list[Any]]:
    """(what came upstream, what the client got)."""
    upstream = [(record.kind, record.outcome, plain(record.body)) for record in records]
    client = [
        (
            plain(json.dumps(turn.items)),
            {
                name: value
                for name, value in turn.headers.items()
                if name.startswith("x-tidegate-") and name not in ("x-tidegate-request-id", "x-tidegate-checkpoint")
            },
        )
        for turn in agent.turns
    ]
    return upstream, client


@pytest.mark.parametrize("api", list(AGENTS))
@pytest.mark.parametrize("known", [True, False], ids=["window known", "window unknown"])
def test_a_session_is_the_same_on_all_three_ways(api, known):
    window = WINDOW if known else None
    # What is prepared in the background is ready a turn earlier or later.
    with running(simulated(), window=window, compaction__prepare="off") as gate:
        agent = AGENTS[api](gate.base, stream=True)
        run(agent, "single", TURNS, asynchronous=False, size=700)
        expected = seen(gate.records, agent)
    assert any(turn.headers["x-tidegate-action"] in ("compacted", "recovered") for turn in agent.turns)
    for asynchronous in (False, True):
        with here(simulated(), window=window, compaction={"prepare": "off"}) as place:
            agent = place.agent(api, stream=True)
            run(agent, "single", TURNS, asynchronous=asynchronous, size=700)
            assert seen(place.records, agent) == expected, f"asynchronous={asynchronous}"
