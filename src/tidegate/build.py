"""Which form of Tidegate runs: its sources alone, or with modules that were compiled (`hatch_build.py`).

Knows where extensions would lie. Called by what tells people.
"""

from __future__ import annotations

from importlib.util import find_spec

from tidegate import __version__


def compiled() -> bool:
    """Whether the modules that pyproject.toml lists run as extensions."""
    return find_spec("tidegate.compiled__mypyc") is not None


def version() -> str:
    """The version as people are told it: `0.1.0`, `0.1.0 (compiled)`."""
    return f"{__version__} (compiled)" if compiled() else __version__
