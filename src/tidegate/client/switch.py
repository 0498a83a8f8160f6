"""Whether a program is under test: then its requests pass as they are.

Knows one switch. Public through `tidegate.testing`, and read by the transports.
"""

from __future__ import annotations

from typing import Final

_switch: Final = [False]


def is_testing() -> bool:
    """Whether requests pass untouched because of a test."""
    return _switch[0]


def set_testing(on: bool) -> None:
    """For the whole process, all threads and tasks."""
    _switch[0] = on
