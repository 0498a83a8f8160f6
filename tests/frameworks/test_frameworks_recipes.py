"""Every block of docs/recipes.md, run as it stands over a session that outgrows its window.

Without Tidegate the same sessions die. Needs the frameworks (requirements-frameworks.txt): `scripts/test frameworks`.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pages import ROOT, blocks

import tidegate
from tidegate.testing import simulator

pytestmark = pytest.mark.frameworks

BLOCKS = {name.heading: text for name, text in blocks("python").items() if name.page == "recipes.md"}
AGENTS = [heading for heading in BLOCKS if "own shapes" not in heading]
WINDOW = 3000
TURNS = 16


@pytest.fixture(autouse=True)
def no_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helpers of other tests are not importable here: one is named as a framework is."""
    tests = str(ROOT / "tests")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not folder.startswith(tests)])
    if getattr(sys.modules.get("agents"), "__file__", "").startswith(tests):
        monkeypatch.delitem(sys.modules, "agents")


def lived_through(heading: str, wrapped: bool) -> tuple[list[Any], list[str]]:
    """(records of the provider, rules broken) of a session by a recipe, with Tidegate in it or not."""
    settings = {
        "store": {"kind": "memory"},
        "models": {"*": {"window": WINDOW}},
        "server": {"port": 1024 + AGENTS.index(heading)},  # a house of its own
    }
    bare = SimpleNamespace(wrap=lambda client: client, http_client=lambda: None)
    ours = SimpleNamespace(
        wrap=lambda client: tidegate.wrap(client, settings=settings),
        http_client=lambda: tidegate.http_client(settings=settings),
    )
    with simulator(WINDOW, behaviour="echo", answer_tokens=40) as provider:
        space: dict[str, Any] = {
            "tidegate": ours if wrapped else bare,
            "URL": f"{provider.url}/v1",
            "KEY": f"sk-{heading}-{wrapped}",
        }
        # The simulated provider holds a model of that name to rules of OpenAI's own.
        exec(compile(BLOCKS[heading].replace("gpt-5.5", "shop-model"), heading, "exec"), space)

        async def session() -> None:
            for number in range(TURNS):
                text = f"FACT-{number:02d} " + "and more words " * 90
                asked = space["ask"](text)
                if inspect.isawaitable(asked):
                    await asked
                elif hasattr(asked, "text"):
                    asked.text()

        asyncio.run(session())
        records = list(provider.state.records)
    return records, [record.violation for record in records if record.violation]


@pytest.mark.parametrize("heading", AGENTS)
def test_a_recipe_keeps_its_session_alive(heading):
    records, broken = lived_through(heading, wrapped=True)
    assert broken == []
    assert [record.outcome for record in records if record.outcome != "answered"] == []
    assert any(record.kind == "summary" for record in records)
    assert "FACT-00" in set(records[-1].facts)


@pytest.mark.parametrize("heading", AGENTS)
def test_without_it_the_same_session_dies(heading):
    with pytest.raises(Exception, match=r"(?i)maximum context length|context_length_exceeded"):
        lived_through(heading, wrapped=False)


@pytest.mark.parametrize("heading", AGENTS)
def test_a_recipe_takes_ten_lines_at_most(heading):
    lines = [line for line in BLOCKS[heading].splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 10
