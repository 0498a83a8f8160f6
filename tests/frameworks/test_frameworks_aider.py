"""aider by its recipe in docs/recipes.md: as a process in front of a gateway, over a session that outgrows its window.

Without a gateway the same session dies. Needs aider in an environment of its own: `scripts/test frameworks`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from pages import Name, blocks

from tidegate.cli.demo.gateway_process import gateway
from tidegate.testing import simulator

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(240)]

AIDER: Final = os.environ.get("AIDER") or shutil.which("aider")
RECIPE: Final = blocks("sh")[Name("recipes.md", "aider")]

HERE: Final = (
    "--chat-mode ask --map-tokens 0 --yes-always --no-git --no-stream --no-pretty --no-check-update"
    " --no-show-model-warnings --no-show-release-notes --analytics-disable"
)
"""No repository, no questions, nothing asked of anybody but the model."""

WINDOW = 6000
TURNS = 14


def session(folder: Path, root: str) -> None:
    """A chat of so many turns with the API at `root`, by the recipe."""
    assert AIDER is not None
    place = "http://127.0.0.1:8484/v1"
    assert RECIPE.count(place) == 1
    said = "".join(f"FACT-{number:02d} {'and more words ' * 150}\n" for number in range(TURNS))
    # The simulated provider holds a model of that name to rules of OpenAI's own.
    line = (
        RECIPE.replace(place, f"{root}/v1")
        .replace("gpt-5.5", "shop-model")
        .replace(" aider ", f" {shlex.quote(AIDER)} ")
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        ["sh", "-c", f"{line.strip()} {HERE}"],
        cwd=folder,
        env={**environ, "HOME": str(folder), "OPENAI_API_KEY": "sk-any", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        input=said,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )


def asked(provider: Any) -> list[Any]:
    """The requests of the session itself."""
    return [record for record in provider.state.records if record.kind == "main"]


@pytest.mark.skipif(AIDER is None, reason="aider is not installed")
def test_a_gateway_keeps_the_session_alive(tmp_path):
    with simulator(WINDOW, behaviour="echo", answer_tokens=40) as provider, gateway(provider.url) as url:
        session(tmp_path, url)
        records = asked(provider)
        assert [record.outcome for record in records].count("answered") == TURNS
        assert [record.outcome for record in records].count("overflow") == 1
        assert {f"FACT-{number:02d}" for number in range(TURNS)} <= set(records[-1].facts)
        assert any(record.kind == "summary" for record in provider.state.records)


@pytest.mark.skipif(AIDER is None, reason="aider is not installed")
def test_without_one_the_same_session_dies(tmp_path):
    with simulator(WINDOW, behaviour="echo", answer_tokens=40) as provider:
        session(tmp_path, provider.url)
        outcomes = [record.outcome for record in asked(provider)]
        assert outcomes[-1] == "overflow"
        assert outcomes.count("answered") < TURNS
