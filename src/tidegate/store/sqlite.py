"""A store in one SQLite file, shared by every process on the machine that has its key.

Knows rows; not what a checkpoint is for. Called by drivers from any thread.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

from tidegate.engine.capabilities import Seen
from tidegate.engine.checkpoint import Checkpoint, Found, Report, StoreError
from tidegate.overflow.learned import Learned
from tidegate.store.capabilities import add as add_seen
from tidegate.store.capabilities import read_all as read_seen
from tidegate.store.file import BUSY_SECONDS, DatabaseFile, cause_of, is_locked, writing
from tidegate.store.record import REPORTS_PER_BUCKET, longest_of_each_kind, pack, place_of, unpack
from tidegate.store.retention import delete, sweep
from tidegate.store.seal import Sealer
from tidegate.store.windows import merge, read_all

_QUIET_SECONDS: Final = 1.0
"""How long reads and reports do not try again after a lock timed out: a try may hold up the caller's loop."""
_SWEEP_EVERY: Final = 64
"""Writes between two sweeps."""
_USED_AGAIN: Final = 3600.0
"""Seconds after which a use is worth writing down."""
_BATCH: Final = (1, 4, 16, 64)
"""Sizes of a batched get: few, so that the prepared statements are few."""

_COLUMNS: Final = (
    "tenant, bucket, length, chain, binding, head, dialect, provider, endpoint, model, strategy, "
    "tokens_before, tokens_after, created_at, sealed"
)
_INSERT: Final = f"INSERT OR IGNORE INTO checkpoints ({_COLUMNS}) VALUES ({', '.join('?' * 15)})"  # noqa: S608
_READ: Final = f"SELECT {_COLUMNS} FROM checkpoints WHERE id = ?"  # noqa: S608
_EXACT: Final = {
    size: "SELECT id, length, chain, binding, head FROM checkpoints "  # noqa: S608
    f"WHERE tenant = ? AND chain IN ({', '.join('?' * size)})"
    for size in _BATCH
}
_FEW: Final = 64
"""Rows of a bucket that are read in one go; where there are more, the lengths come first."""
_ROWS: Final = (
    "SELECT id, length, chain, binding, head FROM checkpoints "  # noqa: S608
    f"WHERE tenant = ? AND bucket = ? LIMIT {_FEW + 1}"
)
_OPENED_KEPT: Final = 256
"""Checkpoints kept open: a row is never edited, and opening one costs as much as all the rest of a find."""
# The distinct lengths of a bucket, longest first, in one index step each however many rows share a length.
_LENGTHS: Final = """
WITH RECURSIVE known(length) AS (
  SELECT max(length) FROM checkpoints WHERE tenant = :tenant AND bucket = :bucket
  UNION ALL
  SELECT (SELECT max(length) FROM checkpoints
          WHERE tenant = :tenant AND bucket = :bucket AND length < known.length)
  FROM known WHERE known.length IS NOT NULL)
SELECT length FROM known WHERE length IS NOT NULL
"""
_REPORT_COLUMNS: Final = "bucket, length, chain, checkpoint, head, endpoint, model, input_tokens"
_REPORTS: Final = (
    f"SELECT {_REPORT_COLUMNS} FROM reports WHERE tenant = ? AND bucket = ? "  # noqa: S608
    f"ORDER BY id DESC LIMIT {REPORTS_PER_BUCKET}"
)
_REPORT: Final = (
    f"INSERT INTO reports (tenant, created_at, {_REPORT_COLUMNS}) "  # noqa: S608
    f"VALUES ({', '.join('?' * 10)})"
)
_SAME_REPORT: Final = (
    "DELETE FROM reports WHERE tenant = ? AND bucket = ? AND length = ? AND chain = ? AND checkpoint = ? "
    "AND head = ? AND endpoint = ? AND model = ?"
)
_TRIM_REPORTS: Final = (
    "DELETE FROM reports WHERE tenant = :tenant AND bucket = :bucket AND id <= (SELECT id FROM reports "  # noqa: S608
    f"WHERE tenant = :tenant AND bucket = :bucket ORDER BY id DESC LIMIT 1 OFFSET {REPORTS_PER_BUCKET})"
)
_KEPT: Final = (
    "SELECT c.id, c.chain, c.tenant, c.length, c.dialect, c.provider, c.endpoint, c.model, c.strategy, "
    "c.tokens_before, c.tokens_after, c.created_at, u.used_at, length(c.sealed) "
    "FROM checkpoints c LEFT JOIN uses u ON u.id = c.id ORDER BY c.id DESC"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint as it stands in clear: no word of it. Sizes in tokens, `bytes` sealed, times since the epoch."""

    row: int
    chain: bytes = field(repr=False)
    tenant: bytes = field(repr=False)
    items: int
    dialect: str
    provider: str
    endpoint: str
    model: str
    strategy: str
    tokens_before: int
    tokens_after: int
    created_at: float
    used_at: float | None
    bytes: int

    @property
    def id(self) -> str:
        """As headers and logs name it."""
        return self.chain[:8].hex()

    @property
    def caller(self) -> str:
        """Callers apart from each other, by a name that tells nothing of them."""
        return self.tenant[:4].hex()


class SqliteStore:
    """Keeps checkpoints in one file, artifacts sealed, hashes, names and numbers in clear.

    Nothing is opened before the first call, and after a call that failed the next one opens the file anew: a
    cause that goes away (a lock, a full disk, a wrong mode) needs no restart. A damaged file is reported and
    left alone.
    """

    def __init__(
        self,
        path: Path,
        sealer: Sealer,
        *,
        retention_days: float = 30,
        max_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Unused for `retention_days`, or over `max_bytes` of file, the least recently used go; `clock`
        gives seconds since the epoch."""
        self.path = path
        self._file = DatabaseFile(path)
        self._sealer = sealer
        self._retention = retention_days * 86_400
        self._max_bytes = max_bytes
        self._clock = clock
        self._touched: set[int] = set()
        self._writes = 0
        self._swept = False
        self._quiet_until = 0.0
        self._opened = lru_cache(maxsize=_OPENED_KEPT)(self._open)

    def find(self, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]) -> Found:
        """The checkpoints that match and open, longest first; reports of prefixes, newest first."""
        self._check_quiet()
        return self._run(lambda db: self._find(db, tenant, bucket, chains))

    def save(self, checkpoint: Checkpoint) -> None:
        """Adds a checkpoint; one that is there under the same (tenant, chain, binding) stays as it is.

        Always tries, even where a lock has just timed out: what it saves has been paid for.
        """
        self._run(lambda db: self._save(db, checkpoint))

    def report(self, tenant: bytes, report: Report) -> None:
        """Adds a report; the newest 16 of its (tenant, bucket) are kept."""
        self.report_all([(tenant, report)])

    def report_all(self, reports: Sequence[tuple[bytes, Report]]) -> None:
        """Adds reports, each with its tenant, in one transaction."""
        self._check_quiet()
        self._run(lambda db: self._report(db, reports))

    def windows(self) -> list[Learned]:
        """Learned windows, the least recently kept first."""
        return self._run(read_all)

    def save_windows(self, entries: Iterable[Learned]) -> list[Learned]:
        """Merges learned windows into those of every process that shares the file; what they are then."""
        now = self._clock()
        return self._run(lambda db: merge(db, entries, now=now, kept_since=now - self._retention))

    def capabilities(self) -> list[Seen]:
        """What endpoints were seen to lack, the oldest first."""
        return self._run(read_seen)

    def save_capabilities(self, entries: Iterable[Seen]) -> list[Seen]:
        """Adds what was seen to that of every process that shares the file; all of it then."""
        now = self._clock()
        return self._run(lambda db: add_seen(db, entries, now=now))

    def kept(self) -> list[Kept]:
        """What is kept, the newest first: all that stands in clear. Nothing is opened, and no use is written down."""
        return self._run(lambda db: [Kept(*row) for row in db.execute(_KEPT)])

    def opened(self, row: Kept) -> Checkpoint | None:
        """The whole of a checkpoint; None where it has gone, or this key does not open it."""
        return self._run(lambda db: self._read(db, row.row))

    def forget(self, rows: Iterable[Kept]) -> None:
        """Deletes checkpoints, and the reports that speak of them. Whoever has one open goes on with it for a request
        at most."""
        ids = [row.row for row in rows]

        def gone(db: sqlite3.Connection) -> None:
            with writing(db):
                delete(db, ids)

        self._run(gone)

    def check(self) -> None:
        """Reads and takes the write lock. Raises `StoreError` where that cannot be done now."""

        def probe(db: sqlite3.Connection) -> None:
            with writing(db):
                db.execute("SELECT max(id) FROM checkpoints").fetchone()

        self._run(probe)

    def sweep(self) -> int:
        """Deletes all that is due by age and size, oldest use first; the number of rows gone."""

        def all_of_it(db: sqlite3.Connection) -> int:
            total = 0
            while gone := self._sweep(db):
                total += gone
            return total

        return self._run(all_of_it)

    def close(self) -> None:
        """Writes down what was used and closes the file. Later calls raise `StoreError`."""
        if self._touched:
            try:
                self._run(self._write_uses)
            except StoreError:
                pass  # only the order in which rows go is lost
        self._file.close()

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work`, with every failure told as a `StoreError` that names the file and the cause."""
        try:
            db = self._file.connection()
            result = work(db)
            if not self._swept:
                self._swept = True
                self._sweep_in_passing(db)
            return result
        except (sqlite3.Error, OSError, ValueError, OverflowError) as exc:
            if is_locked(exc):
                self._quiet_until = time.monotonic() + _QUIET_SECONDS
                self._file.roll_back()
            else:
                self._file.drop()
            raise StoreError(f"store {self.path}: {cause_of(exc)}") from None

    def _check_quiet(self) -> None:
        if time.monotonic() < self._quiet_until:
            raise StoreError(f"store {self.path}: was locked a moment ago; not tried again yet")

    def _find(self, db: sqlite3.Connection, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]) -> Found:
        rows = db.execute(_ROWS, (tenant, bucket)).fetchall()
        if len(rows) > _FEW:
            rows = self._rows_of_many(db, tenant, bucket, chains)
        matches = [row for row in rows if chains.get(row[1]) == row[2]]
        matches.sort(key=lambda row: row[1], reverse=True)
        found = []
        for row, checkpoint, first in longest_of_each_kind(
            matches, lambda row: row[3:5], lambda row: self._known(tenant, row)
        ):
            found.append(checkpoint)
            if first:
                self._touched.add(row[0])
        reports = db.execute(_REPORTS, (tenant, bucket)).fetchall()
        return Found(tuple(found), tuple(Report(*r) for r in reports if chains.get(r[1]) == r[2]))

    def _rows_of_many(
        self, db: sqlite3.Connection, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]
    ) -> list[tuple[int, int, bytes, str, bytes]]:
        known = db.execute(_LENGTHS, {"tenant": tenant, "bucket": bucket})
        lengths = [length for (length,) in known if length in chains]
        return _exact(db, tenant, [chains[length] for length in lengths]) if lengths else []

    def _known(self, tenant: bytes, row: tuple[int, int, bytes, str, bytes]) -> Checkpoint | None:
        """The checkpoint of a row that is there, opened once."""
        try:
            return self._opened(row[0], tenant, row[2], row[3])
        except LookupError:
            return None

    def _open(self, row_id: int, tenant: bytes, chain: bytes, binding: str) -> Checkpoint:
        """Raises `LookupError` for a row that does not open, so that this is not remembered."""
        checkpoint = self._read(self._file.connection(), row_id)
        if checkpoint is None or (checkpoint.tenant, checkpoint.chain) != (tenant, chain):
            raise LookupError(row_id)
        return checkpoint

    def _read(self, db: sqlite3.Connection, row_id: int) -> Checkpoint | None:
        """The checkpoint of a row; None where it has gone, or does not open with this key in this place."""
        row = db.execute(_READ, (row_id,)).fetchone()
        if row is None:
            return None
        *clear, created_at, sealed = row
        try:
            artifact = unpack(self._sealer.open(sealed, place_of(clear)))
        except (StoreError, ValueError, TypeError):
            return None
        (
            tenant,
            bucket,
            length,
            chain,
            _,
            head,
            dialect,
            provider,
            endpoint,
            model,
            strategy,
            before,
            after,
        ) = clear
        return Checkpoint(
            tenant=tenant,
            bucket=bucket,
            length=length,
            chain=chain,
            head=head,
            dialect=dialect,
            artifact=artifact,
            provider=provider,
            endpoint=endpoint,
            model=model,
            strategy=strategy,
            tokens_before=before,
            tokens_after=after,
            created_at=created_at,
        )

    def _save(self, db: sqlite3.Connection, checkpoint: Checkpoint) -> None:
        clear = _clear(checkpoint)
        sealed = self._sealer.seal(pack(checkpoint.artifact), place_of(clear))
        if len(sealed) > self._max_bytes:
            raise StoreError(f"store {self.path}: {len(sealed)} bytes are over its limit of {self._max_bytes}")
        with writing(db):
            self._insert(db, (*clear, self._clock(), sealed))
            self._write_uses(db)
        self._written(db)

    def _insert(self, db: sqlite3.Connection, row: tuple[object, ...]) -> None:
        cursor = db.execute(_INSERT, row)
        if not cursor.rowcount:
            (there,) = db.execute(
                "SELECT id FROM checkpoints WHERE tenant = ? AND chain = ? AND binding = ?",
                (row[0], row[3], row[4]),
            ).fetchone()
            if self._read(db, there) is not None:
                self._touched.add(there)
                return
            delete(db, [there])  # nobody can read it: it would only keep this one out
            cursor = db.execute(_INSERT, row)
        db.execute("INSERT INTO uses (id, used_at) VALUES (?, ?)", (cursor.lastrowid, row[13]))

    def _report(self, db: sqlite3.Connection, reports: Sequence[tuple[bytes, Report]]) -> None:
        now = self._clock()
        with writing(db):
            for tenant, report in reports:
                values = (
                    report.bucket,
                    report.length,
                    report.chain,
                    report.checkpoint,
                    report.head,
                    report.endpoint,
                    report.model,
                    report.input_tokens,
                )
                db.execute(_SAME_REPORT, (tenant, *values[:-1]))
                db.execute(_REPORT, (tenant, now, *values))
                db.execute(_TRIM_REPORTS, {"tenant": tenant, "bucket": report.bucket})
            self._write_uses(db)
        self._written(db)

    def _write_uses(self, db: sqlite3.Connection) -> None:
        """What was found since the last write, roughly: reads write nothing, and an hour's uses are one."""
        if self._touched:
            touched, self._touched = self._touched, set()
            now = self._clock()
            rows = [(now, row_id, now - _USED_AGAIN) for row_id in touched]
            db.executemany("UPDATE uses SET used_at = ? WHERE id = ? AND used_at < ?", rows)

    def _written(self, db: sqlite3.Connection) -> None:
        self._writes += 1
        if self._writes % _SWEEP_EVERY == 0:
            self._sweep_in_passing(db)

    def _sweep_in_passing(self, db: sqlite3.Connection) -> None:
        """A bounded sweep that waits for nobody. What hinders it fails no call."""
        try:
            db.execute("PRAGMA busy_timeout = 0")
            self._sweep(db)
        except sqlite3.Error:
            self._file.roll_back()
        finally:
            db.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")

    def _sweep(self, db: sqlite3.Connection) -> int:
        now = self._clock()
        return sweep(db, unused_since=now - self._retention, max_bytes=self._max_bytes)


def _clear(checkpoint: Checkpoint) -> tuple[object, ...]:
    """The columns before `created_at`."""
    return (
        checkpoint.tenant,
        checkpoint.bucket,
        checkpoint.length,
        checkpoint.chain,
        checkpoint.artifact.binding,
        checkpoint.head,
        checkpoint.dialect,
        checkpoint.provider,
        checkpoint.endpoint,
        checkpoint.model,
        checkpoint.strategy,
        checkpoint.tokens_before,
        checkpoint.tokens_after,
    )


def _exact(db: sqlite3.Connection, tenant: bytes, chains: list[bytes]) -> list[tuple[int, int, bytes, str, bytes]]:
    """(id, length, chain, binding, head) of the rows with these chains, in as few reads as can be."""
    rows: list[Any] = []
    for start in range(0, len(chains), _BATCH[-1]):
        part = chains[start : start + _BATCH[-1]]
        size = next(size for size in _BATCH if size >= len(part))
        padded = part + part[-1:] * (size - len(part))
        rows += db.execute(_EXACT[size], (tenant, *padded)).fetchall()
    return rows
