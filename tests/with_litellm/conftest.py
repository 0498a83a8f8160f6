"""The tests marked `litellm` need the real litellm, and take long to import it: they are collected where they are asked
for (`scripts/test litellm` installs it into an environment of its own)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix != ".py" or os.environ.get("REQUIRE_LITELLM"):
        return None
    return True if importlib.util.find_spec("litellm") is None or "not litellm" in config.option.markexpr else None


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    """No test leaves Tidegate in litellm's functions."""
    import tidegate.litellm

    yield
    tidegate.litellm.uninstall()
