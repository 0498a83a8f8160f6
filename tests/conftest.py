"""Makes each room's test helpers importable by their plain names, and the names of tests the same in every process.

Tests marked `pure` need the sources, since they put something in the place of what compiled code has built in: they are
left out where Tidegate is compiled.
"""

import sys
from pathlib import Path

import pytest

from tidegate.build import compiled

for folder in ("engine", "drive", "gateway", "client", "docs"):
    sys.path.insert(0, str(Path(__file__).parent / folder))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A name for bytes that are no text: compressed ones hold the time they were made, and workers have to agree."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pure: replaces what compiled code has built in; runs from the sources only")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "[aiohttp" in item.nodeid:  # what is run against the gateway's own client too
            item.add_marker(pytest.mark.slow)
        if compiled() and item.get_closest_marker("pure"):
            item.add_marker(pytest.mark.skip(reason="runs from the sources only"))
