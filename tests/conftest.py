"""Makes each room's test helpers importable by their plain names, and the names of tests the same in every process."""

import sys
from pathlib import Path

for folder in ("engine", "drive", "gateway"):
    sys.path.insert(0, str(Path(__file__).parent / folder))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A name for bytes that are no text: compressed ones hold the time they were made, and workers have to agree."""
    return argname if isinstance(val, bytes) and not val.isascii() else None
