"""The pinned versions against the ranges they were chosen from."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = [Requirement(text) for text in PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]]
LINES = [
    line
    for line in (ROOT / "requirements-dev.lock").read_text().splitlines()
    if line and not line.lstrip().startswith("#")
]


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.name)
def test_every_dependency_is_pinned_within_its_range(wanted: Requirement) -> None:
    pins = [pin for pin in map(Requirement, LINES) if pin.name == wanted.name]
    assert pins, f"{wanted.name} is not in requirements-dev.lock"
    for pin in pins:
        (version,) = pin.specifier
        assert version.operator == "=="
        assert wanted.specifier.contains(version.version, prereleases=True)


@pytest.mark.parametrize("line", LINES)
def test_lock_names_versions_and_nothing_else(line: str) -> None:
    assert re.fullmatch(r"[a-z0-9-]+==[^\s;]+( ; .+)?", line)
