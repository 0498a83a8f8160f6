"""Sessions of real SDKs with Tidegate in process: every turn is answered, no rule is broken, nothing is forgotten."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest
from agents import AGENTS, fact, run
from sdks import here

from tidegate.simulator import SimulatorSettings

WINDOW = 4000
TURNS = 30
PLANTED = {f"FACT-{number:02d}" for number in range(0, TURNS, 5)}

APIS = pytest.mark.parametrize("api", list(AGENTS))
WAYS = pytest.mark.parametrize(
    ("stream", "asynchronous"),
    [
        (True, False),
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
        (False, True),
    ],
    ids=["streamed", "whole", "streamed-async", "whole-async"],
)


@APIS
@WAYS
def test_thirty_turns_over_a_window_of_4000_tokens(api, stream, asynchronous):
    with here(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW) as place:
        agent = place.agent(api, stream=stream)
        run(agent, "steps", TURNS, asynchronous=asynchronous, size=700)
        assert len(agent.turns) == TURNS
        assert len(json.dumps(agent.history)) // 4 > 5 * WINDOW
        assert place.violations == []
        assert all(record.outcome == "answered" for record in place.of("main"))
        assert set(place.of("main")[-1].facts) >= PLANTED
        assert {turn.headers["x-tidegate-action"] for turn in agent.turns} >= {"relayed", "compacted", "replayed"}


@APIS
@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
def test_where_nobody_knows_the_window_a_refusal_is_recovered_from(api, asynchronous):
    with here(SimulatorSettings(window=WINDOW, tool_rounds=10**6)) as place:
        agent = place.agent(api, stream=False)
        run(agent, "single", 12, asynchronous=asynchronous, size=700)
        assert len(agent.turns) == 12
        assert any(turn.headers["x-tidegate-action"] == "recovered" for turn in agent.turns)
        assert fact(0)[:7] in set(place.of("main")[-1].facts)


@APIS
@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
def test_without_tidegate_the_same_session_dies(api, asynchronous):
    with here(SimulatorSettings(window=WINDOW, tool_rounds=10**6)) as place:
        agent = place.agent(api, stream=False, wrapped=False)
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)):
            run(agent, "single", 12, asynchronous=asynchronous, size=700)
