"""The database file: made private, opened once a thread, opened anew when it was replaced or failed.

Knows files, locks, schema and SQLite's errors; no rows. Called by the SQLite store.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from tidegate.engine.checkpoint import StoreError

T = TypeVar("T")

BUSY_SECONDS: Final = 0.25
"""How long a call waits for another process's lock."""
_SETUP_SECONDS: Final = 1.0
"""How long the making of a new file may take, several processes starting at once."""
_VERSION: Final = 1
_APPLICATION: Final = 0x74696465
"""`PRAGMA application_id` of our files: "tide"."""

_SCHEMA: Final = """
CREATE TABLE checkpoints (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant BLOB NOT NULL, bucket BLOB NOT NULL, length INTEGER NOT NULL, chain BLOB NOT NULL,
  binding TEXT NOT NULL, head BLOB NOT NULL, dialect TEXT NOT NULL, provider TEXT NOT NULL,
  endpoint TEXT NOT NULL, model TEXT NOT NULL, strategy TEXT NOT NULL,
  tokens_before INTEGER NOT NULL, tokens_after INTEGER NOT NULL, created_at REAL NOT NULL,
  sealed BLOB NOT NULL,
  UNIQUE (tenant, chain, binding));
CREATE INDEX checkpoints_by_length ON checkpoints (tenant, bucket, length);
CREATE TABLE uses (id INTEGER PRIMARY KEY, used_at REAL NOT NULL);
CREATE INDEX uses_by_age ON uses (used_at);
CREATE TABLE reports (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant BLOB NOT NULL, bucket BLOB NOT NULL, length INTEGER NOT NULL, chain BLOB NOT NULL,
  checkpoint BLOB NOT NULL, head BLOB NOT NULL, endpoint TEXT NOT NULL, model TEXT NOT NULL,
  input_tokens INTEGER NOT NULL, created_at REAL NOT NULL);
CREATE INDEX reports_by_bucket ON reports (tenant, bucket, id);
"""

_CAUSES: Final = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked by another connection",
    sqlite3.SQLITE_READONLY: "is read-only",
    sqlite3.SQLITE_FULL: "has no room left on its disk",
    sqlite3.SQLITE_IOERR: "cannot be read or written",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_PERM: "may not be accessed",
    sqlite3.SQLITE_CORRUPT: "is damaged; it is left as it is: move it away and a new one is made",
    sqlite3.SQLITE_NOTADB: "is no SQLite database; it is left as it is: move it away and a new one is made",
}


def is_locked(exc: BaseException) -> bool:
    """Whether a lock held elsewhere is all that was wrong."""
    return _code_of(exc) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def cause_of(exc: BaseException) -> str:
    """What went wrong, in words that hold nothing of what was stored."""
    code = _code_of(exc)
    if code is not None:  # the message is SQLite's own: it names tables and columns, never values
        return f"{_CAUSES.get(code, 'failed')} ({exc.sqlite_errorname}: {exc})"  # type: ignore[attr-defined]
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    return f"cannot keep what it was given ({type(exc).__name__})"


def _code_of(exc: BaseException) -> int | None:
    """SQLite's primary result code; the upper bits of the extended one say where it arose."""
    code = getattr(exc, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """A transaction that takes the write lock at once: the wait for it is bounded. Undone on any error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def read_only(path: Path, read: Callable[[sqlite3.Connection], T]) -> T | None:
    """What `read` finds in the file, without making or changing anything; None where there is no file.

    Raises `StoreError`.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
            return read(db)
    except (sqlite3.Error, OSError, ValueError) as exc:
        raise StoreError(f"store {path}: {cause_of(exc)}") from None


class _Link:
    """A connection, the file it is to and the process that opened it."""

    __slots__ = ("__weakref__", "db", "identity", "pid")

    def __init__(self, db: sqlite3.Connection, identity: tuple[int, int]) -> None:
        self.db = db
        self.identity = identity
        self.pid = os.getpid()

    def __del__(self) -> None:  # its thread has ended
        if self.pid == os.getpid():
            self.db.close()


# One opening at a time in a process: the descriptor that makes a new file must be closed before SQLite opens
# it, since closing any descriptor of a file ends all locks that the process has on it.
_opening = threading.Lock()
_inherited: list[_Link] = []  # connections of a parent process, never to be used or closed by its child


class DatabaseFile:
    """Connections to one file, one a thread. Methods may raise `sqlite3.Error`, `OSError` or `StoreError`."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet."""
        self.path = path
        self._local = threading.local()
        self._links: weakref.WeakSet[_Link] = weakref.WeakSet()
        self._closed = False

    def connection(self) -> sqlite3.Connection:
        """This thread's connection to the file that is at the path now."""
        if self._closed:
            raise StoreError(f"store {self.path}: is closed")
        link: _Link | None = getattr(self._local, "link", None)
        if link is not None:
            if link.pid == os.getpid() and link.identity == _identity(self.path):
                return link.db
            self.drop()
        with _opening:
            identity = _make_private(self.path)
            link = _Link(_open(self.path), identity)
            self._links.add(link)
        self._local.link = link
        return link.db

    def roll_back(self) -> None:
        """Ends a transaction that was left open."""
        link: _Link | None = getattr(self._local, "link", None)
        if link is not None and link.db.in_transaction:
            with suppress(sqlite3.Error):
                link.db.execute("ROLLBACK")

    def drop(self) -> None:
        """Closes this thread's connection; the next call opens the file anew."""
        link: _Link | None = getattr(self._local, "link", None)
        self._local.link = None
        if link is None:
            return
        if link.pid == os.getpid():
            with suppress(sqlite3.Error):
                link.db.close()
        else:
            _inherited.append(link)

    def close(self) -> None:
        """Closes the connections of every thread, for good."""
        self._closed = True
        with _opening:
            for link in list(self._links):
                if link.pid == os.getpid():
                    with suppress(sqlite3.Error):
                        link.db.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _make_private(path: Path) -> tuple[int, int]:
    """Makes the file, or tightens its mode if it is ours. SQLite gives its -wal and -shm files that mode; those
    that were made while the file was read-only must follow it when it no longer is."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            if os.name == "posix":
                os.fchmod(fd, 0o600)
        finally:
            os.close(fd)
    status = os.stat(path)
    if os.name == "posix":
        _tighten(path, status)
    return status.st_dev, status.st_ino


def _tighten(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & 0o600 == 0o600:
        for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            with suppress(FileNotFoundError):
                if stat.S_IMODE(os.stat(file).st_mode) != 0o600:
                    os.chmod(file, 0o600)


def _open(path: Path) -> sqlite3.Connection:
    # mode=rw: a file that vanished meanwhile is an error here, not a new file with the mode of the umask.
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        # A damaged text is no reason to fail a read: its row will not open, and counts as absent.
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        _set_up(db, path)
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA journal_size_limit = 16777216")
    except BaseException:
        db.close()
        raise
    return db


def _set_up(db: sqlite3.Connection, path: Path) -> None:
    """Makes the tables of a new file. Raises `StoreError` for another program's file or a later version."""
    patience = time.monotonic() + _SETUP_SECONDS
    while not _is_ready(db, path):
        try:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only before the first table
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            with writing(db):
                if not _is_ready(db, path):
                    for statement in _SCHEMA.split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {_APPLICATION}")
                    db.execute(f"PRAGMA user_version = {_VERSION}")
        except sqlite3.OperationalError as exc:
            # The change to WAL fails at once, without waiting, while another process makes it.
            if not is_locked(exc) or time.monotonic() > patience:
                raise
            time.sleep(0.01)


def _is_ready(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables are there; False for an empty file."""
    begun = not db.in_transaction
    if begun:
        db.execute("BEGIN")  # one view of the three, whatever another process is making meanwhile
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        tables = db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    finally:
        if begun and db.in_transaction:
            db.execute("ROLLBACK")
    if application == _APPLICATION and version == _VERSION:
        return True
    if application == _APPLICATION and version > _VERSION:
        raise StoreError(
            f"store {path}: has version {version}, this build knows {_VERSION}; "
            "it is left as it is: use a newer build, or another file"
        )
    if version or application or tables:
        raise StoreError(f"store {path}: is another program's database; it is left as it is: give another path")
    return False
