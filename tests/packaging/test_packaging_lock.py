"""The pinned versions against the ranges they were chosen from."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEV = [Requirement(text) for text in PROJECT["dependency-groups"]["dev"]]
EXTRAS = [
    Requirement(text)
    for name, texts in PROJECT["project"]["optional-dependencies"].items()
    for text in texts
    if name != "litellm"  # it has an environment of its own
]
LITELLM = [
    Requirement(line)
    for line in (ROOT / "requirements-litellm.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
WANTED = [*(Requirement(text) for text in PROJECT["project"]["dependencies"]), *DEV]
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


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_development_has_what_each_extra_brings_in_the_same_range(extra: Requirement) -> None:
    assert [wanted.specifier for wanted in DEV if wanted.name == extra.name] == [extra.specifier]


def test_litellms_own_environment_has_what_the_extra_allows() -> None:
    (wanted,) = map(Requirement, PROJECT["project"]["optional-dependencies"]["litellm"])
    (pin,) = [pin for pin in LITELLM if pin.name == wanted.name]
    (version,) = pin.specifier
    assert wanted.specifier.contains(version.version)


@pytest.mark.parametrize("line", LINES)
def test_lock_names_versions_and_nothing_else(line: str) -> None:
    assert re.fullmatch(r"[a-z0-9-]+==[^\s;]+( ; .+)?", line)
