"""What goes from the database file when it is old or the file is full, a batch at a time.

Knows tables, ages and sizes; no clock, no content. Called by the SQLite store.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from tidegate.store.file import writing

_SWEEP_ROWS: Final = 200
"""Rows that one transaction of a sweep deletes at most, so that no writer waits long."""
_LOW_WATER: Final = 0.9
"""Part of the size limit that a sweep leaves in use."""
_ROW_BYTES: Final = 800
"""What a checkpoint takes besides its artifact, indexes included, roughly."""
_REPORT_BYTES: Final = 300
_OLDEST: Final = (
    "SELECT u.used_at, u.id, length(c.sealed) FROM uses u JOIN checkpoints c ON c.id = u.id "
    "WHERE u.used_at < ? ORDER BY u.used_at LIMIT ?"
)
# In the order they were made, so nearly the order of their age: no index is kept for it.
_OLDEST_REPORTS: Final = f"SELECT created_at, id FROM reports ORDER BY id LIMIT {_SWEEP_ROWS}"  # noqa: S608
# Reports that speak of a checkpoint which is gone, unless one with the same chain (another binding) is left.
_DANGLING: Final = """
DELETE FROM reports WHERE tenant = :tenant AND bucket = :bucket AND checkpoint = :chain
AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE tenant = :tenant AND chain = :chain)
"""


def sweep(db: sqlite3.Connection, *, unused_since: float, max_bytes: int) -> int:
    """Deletes a batch of what is due: unused since that time (seconds since the epoch), else the oldest where
    more than `max_bytes` are in use. Returns the number of rows gone, 0 where nothing is due."""
    with writing(db):
        old = db.execute(_OLDEST, (unused_since, _SWEEP_ROWS)).fetchall()
        delete(db, [row_id for _, row_id, _ in old])
        old_reports = [row_id for at, row_id in db.execute(_OLDEST_REPORTS) if at < unused_since]
        _delete_reports(db, old_reports)
        gone = len(old) + len(old_reports)
        used = _bytes_in_use(db)
        if not gone and used > max_bytes:
            gone = _make_room(db, used - int(max_bytes * _LOW_WATER))
    if gone:
        # Not `execute`: it takes the one step of a statement without columns, and this one frees a page a step.
        db.executescript("PRAGMA incremental_vacuum(1024)")
    return gone


def delete(db: sqlite3.Connection, ids: list[int]) -> None:
    """Checkpoints, their uses, and the reports that speak of them."""
    for row_id in ids:
        place = db.execute("SELECT tenant, bucket, chain FROM checkpoints WHERE id = ?", (row_id,)).fetchone()
        db.execute("DELETE FROM checkpoints WHERE id = ?", (row_id,))
        db.execute("DELETE FROM uses WHERE id = ?", (row_id,))
        db.execute(_DANGLING, dict(zip(("tenant", "bucket", "chain"), place, strict=True)))


def _delete_reports(db: sqlite3.Connection, ids: list[int]) -> None:
    db.executemany("DELETE FROM reports WHERE id = ?", [(row_id,) for row_id in ids])


def _bytes_in_use(db: sqlite3.Connection) -> int:
    pages, free, size = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _make_room(db: sqlite3.Connection, wanted: int) -> int:
    """Deletes the oldest of both tables until `wanted` bytes are free, a batch at most. Returns how many."""
    always = float("inf")
    rows = [
        (at, "checkpoint", row_id, size + _ROW_BYTES) for at, row_id, size in db.execute(_OLDEST, (always, _SWEEP_ROWS))
    ]
    rows += [(at, "report", row_id, _REPORT_BYTES) for at, row_id in db.execute(_OLDEST_REPORTS)]
    rows.sort()
    chosen: dict[str, list[int]] = {"checkpoint": [], "report": []}
    for _, table, row_id, size in rows[:_SWEEP_ROWS]:
        if wanted <= 0:
            break
        chosen[table].append(row_id)
        wanted -= size
    delete(db, chosen["checkpoint"])
    _delete_reports(db, chosen["report"])
    return len(chosen["checkpoint"]) + len(chosen["report"])
