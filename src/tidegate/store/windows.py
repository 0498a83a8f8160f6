"""Learned windows in a table beside the checkpoints: names and numbers in clear, merged entry by entry.

Knows rows and who keeps them; not what makes a limit believable. Called by the SQLite store and by what shows them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from tidegate.overflow.learned import Learned, as_entry, from_entry, merged
from tidegate.store.file import read_only, writing

_ROWS: Final = 4096
"""The newest that are kept, roughly: those saved together go together."""
# Made when first written: files of builds that had no such table go on as they are.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS windows (
  endpoint TEXT NOT NULL, model TEXT NOT NULL, learned TEXT NOT NULL, kept_at REAL NOT NULL,
  PRIMARY KEY (endpoint, model)) WITHOUT ROWID
"""
_THERE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'windows'"
_ALL: Final = "SELECT learned FROM windows ORDER BY kept_at"
_ONE: Final = "SELECT learned FROM windows WHERE endpoint = ? AND model = ?"
_PUT: Final = "INSERT OR REPLACE INTO windows (endpoint, model, learned, kept_at) VALUES (?, ?, ?, ?)"
_TRIM: Final = (
    "DELETE FROM windows WHERE kept_at < ? OR kept_at <= "  # noqa: S608
    f"(SELECT kept_at FROM windows ORDER BY kept_at DESC LIMIT 1 OFFSET {_ROWS})"
)


@runtime_checkable
class KeepsWindows(Protocol):
    """A store that outlives its process, and what was learned of windows with it. Methods may raise `StoreError`."""

    def windows(self) -> list[Learned]:
        """All that is kept, the least recently kept first."""
        ...

    def save_windows(self, entries: Iterable[Learned]) -> list[Learned]:
        """Merges entries into what is kept, which other processes add to as well; what they are then."""
        ...


def read_all(db: sqlite3.Connection) -> list[Learned]:
    """All entries that make sense, the least recently kept first."""
    if db.execute(_THERE).fetchone() is None:
        return []
    return [known for (text,) in db.execute(_ALL) if (known := _read(text)) is not None]


def merge(db: sqlite3.Connection, entries: Iterable[Learned], *, now: float, kept_since: float) -> list[Learned]:
    """The entries, each merged with what was kept of it, in one transaction. Those kept before that time go."""
    result = []
    with writing(db):
        db.execute(_TABLE)
        for entry in entries:
            row = db.execute(_ONE, (entry.endpoint, entry.model)).fetchone()
            kept = _read(row[0]) if row else None
            both = merged(kept, entry) if kept is not None else entry
            db.execute(_PUT, (both.endpoint, both.model, json.dumps(as_entry(both)), now))
            result.append(both)
        db.execute(_TRIM, (kept_since,))
    return result


def windows_in(path: Path) -> list[Learned]:
    """What the file holds, read without making or changing anything; nothing where there is no file.

    Raises `StoreError`.
    """
    return read_only(path, read_all) or []


def _read(text: object) -> Learned | None:
    try:
        return from_entry(json.loads(text)) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
