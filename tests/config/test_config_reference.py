"""The reference page is made from the settings, and current."""

from pathlib import Path

import pytest

from tidegate.config import load, reference
from tidegate.config.layers import variable
from tidegate.config.settings import KEYS, SECTIONS, ModelSettings
from tidegate.provider_file import Rules

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "make it again: python -c \"from tidegate.config import reference; print(reference(), end='')\" "
        "> docs/configuration.md"
    )


@pytest.mark.parametrize("key", KEYS, ids=".".join)
def test_every_key_is_on_it_with_its_meaning(key: tuple[str, str]) -> None:
    (row,) = [line for line in reference().splitlines() if f"`{variable(key)}`" in line and line.startswith("|")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == f"`{key[1]}`"
    assert cells[3]
    assert len(cells[4]) > 10


def test_every_section_says_what_it_is_for() -> None:
    for name, shape in SECTIONS.items():
        assert f"## [{name}]\n\n{shape.__doc__}" in reference()
    own = {"window", "input_limit", "max_output", "strategies"}
    assert set(ModelSettings.model_fields) == {*own, *Rules.model_fields}


def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    example = reference().split("```toml\n")[1].split("```")[0]
    (tmp_path / "tidegate.toml").write_text(example)
    assert load(tmp_path / "tidegate.toml", {}, {}).providers["work"]["auth"] == {"env": "WORK_LLM_KEY"}
