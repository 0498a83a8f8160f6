"""What endpoints were seen to lack or to have, in a table beside the checkpoints: names and times, the newest counts.

Knows rows and who keeps them; not what follows from them. Called by the SQLite store and by what shows them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol, get_args, runtime_checkable

from tidegate.engine.capabilities import DAY, PROVEN, Seen, What
from tidegate.store.file import read_only, writing

_ROWS: Final = 4096
"""The newest that are kept, roughly."""
_KEPT: Final = PROVEN + DAY
"""Seconds that a row is kept: nothing in it counts for longer."""
# Made when first written: files of builds that had no such table go on as they are.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS capabilities (
  endpoint TEXT NOT NULL, model TEXT NOT NULL, strategy TEXT NOT NULL, what TEXT NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (endpoint, model, strategy, what)) WITHOUT ROWID
"""
_THERE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'capabilities'"
_ALL: Final = "SELECT endpoint, model, strategy, what, at FROM capabilities ORDER BY at"
_PUT: Final = (
    "INSERT INTO capabilities (endpoint, model, strategy, what, at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET at = max(at, excluded.at)"
)
_TRIM: Final = (
    "DELETE FROM capabilities WHERE at < ? OR at <= "  # noqa: S608
    f"(SELECT at FROM capabilities ORDER BY at DESC LIMIT 1 OFFSET {_ROWS})"
)


@runtime_checkable
class KeepsCapabilities(Protocol):
    """A store that outlives its process, and what was seen of endpoints with it. Methods may raise `StoreError`."""

    def capabilities(self) -> list[Seen]:
        """All that is kept, the oldest first."""
        ...

    def save_capabilities(self, entries: Iterable[Seen]) -> list[Seen]:
        """Adds entries to what is kept, which other processes add to as well; all of that."""
        ...


def read_all(db: sqlite3.Connection) -> list[Seen]:
    """All entries that make sense, the oldest first."""
    if db.execute(_THERE).fetchone() is None:
        return []
    known = {what: what for what in get_args(What)}
    return [
        Seen(endpoint, model, strategy, known[what], at)
        for endpoint, model, strategy, what, at in db.execute(_ALL)
        if what in known and isinstance(at, float)
    ]


def add(db: sqlite3.Connection, entries: Iterable[Seen], *, now: float) -> list[Seen]:
    """Adds entries in one transaction; all that is kept then. What is too old goes."""
    with writing(db):
        db.execute(_TABLE)
        db.executemany(_PUT, [(it.endpoint, it.model, it.strategy, it.what, it.at) for it in entries])
        db.execute(_TRIM, (now - _KEPT,))
    return read_all(db)


def capabilities_in(path: Path) -> list[Seen]:
    """What the file holds, read without making or changing anything; nothing where there is no file.

    Raises `StoreError`.
    """
    return read_only(path, read_all) or []
