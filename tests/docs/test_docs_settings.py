"""Every settings file that README.md and docs/ show is read without a complaint."""

from __future__ import annotations

from typing import Final

import pytest
from pages import Name, blocks

from tidegate.client.house import House
from tidegate.config import load

TOML: Final = blocks("toml")
OTHERS: Final = {
    Name("README.md", "Point clients at it"): "Codex's own",
    Name("classifier.md", "Adding a rule"): "a part of a provider's file",
    Name("custom-compactors.md", "In Python"): "a part of somebody's pyproject.toml",
}
"""Blocks that are no settings, and what they are."""


@pytest.mark.parametrize(
    "name", [name for name in TOML if name not in OTHERS], ids=lambda name: f"{name.page} {name.heading}"
)
def test_settings_are_allowed(tmp_path, monkeypatch, name):
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    file = tmp_path / "tidegate.toml"
    file.write_text(TOML[name], "utf-8")
    House(load(file))


def test_the_others_are_there():
    assert set(OTHERS) <= set(TOML)
