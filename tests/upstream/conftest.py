"""Runs the tests that take `make` with each client."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clients import CLIENTS, NOT_AIOHTTP, Make


@pytest.fixture(params=CLIENTS)
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a client of one kind or the other."""
    return CLIENTS[request.param]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expects the listed tests to fail with aiohttp: one that no longer does has to leave the list."""
    for item in items:
        name, _, rest = item.name.partition("[")
        kind, _, case = rest.removesuffix("]").partition("-")
        listed = f"{name}[{case}]" if case or f"{name}[]" in NOT_AIOHTTP else name
        if kind == "aiohttp" and listed in NOT_AIOHTTP:
            item.add_marker(pytest.mark.xfail(reason=NOT_AIOHTTP[listed], strict=True))
