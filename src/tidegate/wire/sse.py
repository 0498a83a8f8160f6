"""Server-sent events, read and written incrementally (HTML living standard, section 9.2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name (empty for unnamed), its data lines joined by newlines, and whether it was only a comment."""

    name: str
    data: bytes
    comment: bool = False
