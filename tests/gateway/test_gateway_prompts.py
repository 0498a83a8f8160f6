"""The prompts of summary calls are files, and the user's own take their place."""

from __future__ import annotations

import pytest
from agents import AGENTS, hold
from running import running
from test_gateway_riding import CACHES, TIGHT, rode, simulated

from tidegate.simulator import SimulatorSettings

WINDOW = 8000
OWN = {
    "prompt_file": "FIRST: say it in {words} words, and copy every fact.",
    "update_prompt_file": "AGAIN: carry everything forward in {words} words.",
    "system_prompt_file": "ROLE: you write the minutes.",
}


@pytest.mark.parametrize("api", list(AGENTS))
def test_each_of_the_users_own_files_is_what_the_summarizer_is_told(api, tmp_path):
    flags = {}
    for key, text in OWN.items():
        (tmp_path / f"{key}.md").write_text(text + "\n")
        flags[f"summary__{key}"] = str(tmp_path / f"{key}.md")
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW, **flags) as gate:
        hold(AGENTS[api](gate.base, stream=False), "steps", 14)
        first, *later = [record.body.decode() for record in gate.of("summary")]
        assert later
        assert gate.violations == []
        assert "FIRST: say it in " in first
        assert "{words}" not in first
        assert all("AGAIN: carry everything forward in " in body for body in later)
        assert all("ROLE: you write the minutes." in body for body in (first, *later))
        assert {f"FACT-{number:02d}" for number in (0, 5, 10)} <= set(gate.of("main")[-1].facts)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_so_is_that_of_a_call_that_rides(api, tmp_path):
    (tmp_path / "ride.md").write_text("RIDE: pause, and write the minutes.")
    flags = {"summary__ride_prompt_file": str(tmp_path / "ride.md"), **TIGHT}
    with running(simulated(), window=WINDOW, toml=CACHES, **flags) as gate:
        hold(AGENTS[api](gate.base, stream=False), "steps", 10)
        ridden = [record.body for record in gate.of("summary") if rode(record)]
        assert ridden
        assert all(b"RIDE: pause, and write the minutes." in body for body in ridden)
