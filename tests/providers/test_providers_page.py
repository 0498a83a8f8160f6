"""`docs/providers.md` says what the provider files say, all of it and nothing else."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tidegate.providers import load

SCRIPT = Path(__file__).parents[2] / "scripts" / "providers_page.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("providers_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_files_make(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0, "run scripts/providers_page.py"


def test_it_is_made_the_same_each_time(script: ModuleType) -> None:
    assert script.page(load()) == script.page(load())


@pytest.mark.parametrize(
    ("table", "shown"),
    [
        ({"strategies": {"responses": ["xai", "summary"]}}, "| `openai` | summary | xai, summary | – |"),
        ({"models": [{"match": "new-one", "window": 1234}]}, "| `new-one` | 1,234 |  |  |"),
        ({"models": [{"match": "new-one", "compaction": []}]}, "| `new-one` |  |  |  | no |"),
        ({"auth": {"env": "OTHER_KEY"}}, "`OTHER_KEY`"),
        ({"notes": ["Only on Mondays."]}, "- Only on Mondays."),
        ({"elsewhere": {"far-east": "https://e.example/v1"}}, "- Far east: `https://e.example/v1`"),
    ],
)
def test_a_changed_fact_changes_the_page(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, table: dict[str, object], shown: str
) -> None:
    changed = load(overrides={"openai": table})
    assert shown in script.page(changed)
    assert shown not in script.page(load())
    monkeypatch.setattr(script, "load", lambda: changed)
    assert script.main(["--check"]) == 1


def test_every_provider_dialect_and_model_is_on_the_page(script: ModuleType) -> None:
    page = script.PAGE.read_text()
    for provider in load():
        assert f"### {provider.name}\n" in page
        row = re.search(rf"^\| `{provider.name}` \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)
        assert row is not None
        shown = dict(zip(("chat", "responses", "messages"), row.groups(), strict=True))
        assert {dialect for dialect, cell in shown.items() if cell != "–"} == set(provider.dialects)
        for model in provider.models:
            assert all(f"`{name}`" in page for name in model.match)


def test_writing_makes_the_page(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(script, "PAGE", tmp_path / "providers.md")
    assert script.main(["--check"]) == 1
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
