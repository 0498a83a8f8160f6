"""The real llama.cpp server with models that are written on the spot."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDED = ("xllamacpp", "gguf")


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for models and logs. Skips where the packages are missing, but for CI, where that is a failure."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"not installed: {', '.join(missing)} (prebuilt for Linux on x86-64 only)")
    assert not missing, f"the llama.cpp tests need {', '.join(missing)}"
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="session")
def babbling(llama_folder: Path) -> Iterator[str]:
    """A server whose model has a token for every byte and a window of 2,048; its URL."""
    from llama_process import llama
    from tiny_models import write_babbling

    write_babbling(llama_folder / "babbling.gguf")
    with llama(llama_folder / "babbling.gguf", llama_folder / "babbling.log") as url:
        yield url


@pytest.fixture(scope="session")
def reciting(llama_folder: Path) -> Iterator[str]:
    """A server whose model always recites the same summary, window 2,048; its URL."""
    from llama_process import llama
    from tiny_models import write_reciting

    from tidegate.compactors.summary import default_options

    options = default_options()
    write_reciting(llama_folder / "reciting.gguf", options.system + options.prompt + options.update_prompt)
    with llama(llama_folder / "reciting.gguf", llama_folder / "reciting.log") as url:
        yield url
