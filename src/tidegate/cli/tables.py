"""Columns of text for a terminal, and what stands in them: names that clients chose, times.

Knows nothing of what is shown. Called by the commands that list what is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def counted(count: object, name: str) -> str:
    """`1 call`, `1,200 calls`."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def printable(name: object) -> str:
    """A name as a terminal may show it: a client chose it."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(name))


def utc(seconds: float) -> str | None:
    """Seconds since the epoch as ISO 8601 in UTC; None for what is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return None
