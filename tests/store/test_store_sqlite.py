"""The store on disk: private, shared by processes, sealed, and telling what is wrong with its file."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_cases import TENANT, Clock, checkpoint, history, report

from tidegate.engine.checkpoint import Found, StoreError
from tidegate.store import Keys, NullStore, SqliteStore, default_key_file, default_path, open_store
from tidegate.store.seal import Sealer

KEY = bytes(range(32))
DAY = 86_400.0
CHAT = history("a", "b", "c", "d", "e", "f")
SECRET = "the deploy password is in the red folder"

posix = pytest.mark.skipif(os.name != "posix", reason="modes and forks are POSIX ideas")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "checkpoints.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[SqliteStore]:
    made = SqliteStore(path, Sealer(KEY), clock=clock)
    yield made
    made.close()


def find(store: SqliteStore, chains: dict[int, bytes] = CHAT) -> Found:
    return store.find(TENANT, chains[1], chains)


def lengths(store: SqliteStore, chains: dict[int, bytes] = CHAT) -> list[int]:
    return [c.length for c in find(store, chains).checkpoints]


# --- at rest


def test_outlives_its_process(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 3))
    store.report(TENANT, report(CHAT, 3))
    store.close()
    again = SqliteStore(path, Sealer(KEY))
    assert lengths(again) == [3]
    assert len(find(again).reports) == 1
    again.close()


def test_only_hashes_names_and_numbers_are_in_clear(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 3, SECRET))
    store.save(checkpoint(CHAT, 4, SECRET, binding="openai|gpt-x"))
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"gpt-x" in files
    assert SECRET.encode() not in files
    assert b"red folder" not in files


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_the_files_are_private_whatever_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = SqliteStore(path, Sealer(KEY))
        store.save(checkpoint(CHAT, 3))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("checkpoints.db", "checkpoints.db-wal", "checkpoints.db-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@posix
def test_a_file_that_others_may_read_is_tightened(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 3))
    store.close()
    path.chmod(0o644)
    again = SqliteStore(path, Sealer(KEY))
    assert lengths(again) == [3]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again.close()


# --- what does not open is absent


def test_another_key_opens_nothing_and_harms_nothing(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 3, "mine"))
    stranger = SqliteStore(path, Sealer(KEY[::-1]))
    assert lengths(stranger) == []
    stranger.close()
    assert lengths(store) == [3]


TAMPERING = {
    "a bit of the artifact": "UPDATE checkpoints SET sealed = CAST(substr(sealed, 1, 30) || x'00' || "
    "substr(sealed, 32) AS BLOB) WHERE length = 4",
    "cut short": "UPDATE checkpoints SET sealed = x'01' WHERE length = 4",
    "not even bytes": "UPDATE checkpoints SET sealed = 'text' WHERE length = 4",
    "another row's artifact": "UPDATE checkpoints SET sealed = (SELECT sealed FROM checkpoints "
    "WHERE length = 2) WHERE length = 4",
    "another head": "UPDATE checkpoints SET head = x'00' WHERE length = 4",
    "another binding": "UPDATE checkpoints SET binding = 'openai' WHERE length = 4",
    "another endpoint": "UPDATE checkpoints SET endpoint = 'https://evil.example' WHERE length = 4",
    "a broken text": "UPDATE checkpoints SET model = CAST(x'ff' AS TEXT) WHERE length = 4",
    "numbers that are none": "UPDATE checkpoints SET tokens_after = 'many' WHERE length = 4",
}


@pytest.mark.parametrize("change", TAMPERING.values(), ids=TAMPERING)
def test_a_changed_row_is_absent_and_the_rest_is_found(path: Path, store: SqliteStore, change: str) -> None:
    store.save(checkpoint(CHAT, 2, "short"))
    store.save(checkpoint(CHAT, 4, "long"))
    assert lengths(store) == [4, 2]
    with sqlite3.connect(path) as db:
        assert db.execute(change).rowcount == 1
    db.close()
    assert lengths(SqliteStore(path, Sealer(KEY))) == [2]


def test_a_row_that_was_opened_is_not_opened_again(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(checkpoint(CHAT, 2, "short"))
    opened = []
    real = Sealer.open
    monkeypatch.setattr(Sealer, "open", lambda *args: opened.append(1) or real(*args))
    assert [lengths(store) for _ in range(3)] == [[2]] * 3
    assert len(opened) == 1


def test_a_bucket_of_many_checkpoints_is_searched_whole(store: SqliteStore) -> None:
    long = history(*(str(n) for n in range(200)))
    for length in range(1, 200):
        store.save(checkpoint(long, length))
    assert lengths(store, long)[0] == 199
    assert lengths(store, {k: v for k, v in long.items() if k <= 150})[0] == 150


def test_a_row_moved_to_another_tenant_stays_closed(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 3, tenant=b"victim"))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE checkpoints SET tenant = ?", (TENANT,))
    db.close()
    assert lengths(store) == []


def test_more_unreadable_rows_than_spares_do_not_hide_a_readable_one(path: Path, store: SqliteStore) -> None:
    for length in range(2, 7):
        store.save(checkpoint(CHAT, length))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE checkpoints SET sealed = x'00' WHERE length > 2")
    db.close()
    assert lengths(store) == [2]


def test_an_unreadable_row_makes_way_for_a_new_one(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 3, "lost"))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE checkpoints SET sealed = x'00'")
    db.close()
    store.save(checkpoint(CHAT, 3, "new"))
    assert [c.artifact.text for c in find(store).checkpoints] == ["new"]


# --- many at once


def _fork(*works: Callable[[], None]) -> None:
    """Runs each in a process of its own; an exception in one is a failure here."""
    pids = []
    for work in works:
        if not (pid := os.fork()):
            code = 1
            try:
                work()
                code = 0
            except BaseException as exc:
                os.write(2, f"{type(exc).__name__}: {exc}\n".encode())
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)


@posix
def test_four_processes_save_fifty_each_from_the_first_start_and_nothing_is_lost(path: Path) -> None:
    chats = [history(f"p{n}", *map(str, range(50))) for n in range(4)]

    def work(chains: dict[int, bytes]) -> Callable[[], None]:
        def run() -> None:
            store = SqliteStore(path, Sealer(KEY))
            for length in range(2, 52):
                store.save(checkpoint(chains, length, head=str(length).encode()))
            store.close()

        return run

    _fork(*(work(chains) for chains in chats))
    store = SqliteStore(path, Sealer(KEY))
    for chains in chats:
        assert lengths(store, chains) == list(range(51, 1, -1))
    store.close()


@posix
def test_a_forked_process_opens_its_own_connection(store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 2))

    def child() -> None:
        assert lengths(store) == [2]
        store.save(checkpoint(CHAT, 3))

    _fork(child)
    store.save(checkpoint(CHAT, 4))
    assert lengths(store) == [4, 3]


def test_the_connection_of_a_thread_that_ended_is_closed(store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 2))
    for _ in range(5):
        thread = threading.Thread(target=lambda: lengths(store))
        thread.start()
        thread.join()
    assert len(store._file._links) == 1


# --- what is wrong with the file


@pytest.fixture
def locked(path: Path, store: SqliteStore) -> Iterator[sqlite3.Connection]:
    store.save(checkpoint(CHAT, 2))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield other
    other.close()


def test_a_locked_file_is_told_soon_and_reads_go_on(path: Path, store: SqliteStore, locked: sqlite3.Connection) -> None:
    assert lengths(store) == [2]
    started = time.monotonic()
    with pytest.raises(StoreError, match=f"{path}: is locked by another process"):
        store.save(checkpoint(CHAT, 3))
    assert 0.2 < time.monotonic() - started < 4  # SQLite itself would wait five seconds


def test_after_a_lock_reads_and_reports_do_not_wait_again(store: SqliteStore, locked: sqlite3.Connection) -> None:
    with pytest.raises(StoreError, match="is locked"):
        store.report(TENANT, report(CHAT, 2))
    started = time.monotonic()
    for _ in range(20):
        with pytest.raises(StoreError, match="was locked a moment ago"):
            store.report(TENANT, report(CHAT, 2))
    assert time.monotonic() - started < 2  # twenty waits would be ten seconds


def test_when_the_lock_goes_a_save_works_at_once_and_reads_soon(store: SqliteStore, locked: sqlite3.Connection) -> None:
    with pytest.raises(StoreError):
        store.save(checkpoint(CHAT, 3))
    locked.execute("ROLLBACK")
    store.save(checkpoint(CHAT, 3))
    time.sleep(1.05)
    assert lengths(store) == [3, 2]


def test_a_file_locked_at_the_start(path: Path, store: SqliteStore, locked: sqlite3.Connection) -> None:
    locked.execute("ROLLBACK")
    store.close()
    locked.execute("PRAGMA locking_mode = EXCLUSIVE")
    locked.execute("PRAGMA journal_mode = DELETE")
    locked.execute("BEGIN EXCLUSIVE")
    late = SqliteStore(path, Sealer(KEY))
    started = time.monotonic()
    with pytest.raises(StoreError, match="is locked"):
        late.check()
    assert time.monotonic() - started < 4
    locked.close()
    late.check()
    late.close()


def test_a_garbage_file_is_named_and_left_alone(path: Path, store: SqliteStore) -> None:
    path.parent.mkdir()
    path.write_bytes(garbage := SECRET.encode() * 200)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{path}: is no SQLite database; it is left as it is") as caught:
            lengths(store)
        assert SECRET not in str(caught.value)
    assert path.read_bytes() == garbage
    path.unlink()
    store.save(checkpoint(CHAT, 2))
    assert lengths(store) == [2]


def test_a_damaged_file_is_named_and_left_alone(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 3))
    store.close()
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    path.write_bytes(raw)
    again = SqliteStore(path, Sealer(KEY))
    with pytest.raises(StoreError, match=f"{path}: is damaged"):
        lengths(again)
    again.close()
    assert path.read_bytes() == raw


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ("PRAGMA user_version = 2", "has version 2, this build knows 1"),
        ("PRAGMA application_id = 7", "is another program's database"),
    ],
)
def test_a_file_of_a_later_version_or_another_program_is_refused(
    path: Path, store: SqliteStore, change: str, cause: str
) -> None:
    store.save(checkpoint(CHAT, 3))
    store.close()
    with sqlite3.connect(path) as db:
        db.execute(change)
    db.close()
    again = SqliteStore(path, Sealer(KEY))
    with pytest.raises(StoreError, match=cause) as caught:
        again.check()
    assert str(path) in str(caught.value)
    again.close()


def test_another_programs_tables_are_not_joined(path: Path, store: SqliteStore) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()
    with pytest.raises(StoreError, match="is another program"):
        store.save(checkpoint(CHAT, 3))
    with sqlite3.connect(path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["bookmarks"]
    db.close()


@pytest.mark.parametrize("place", ["a folder", "below a file"])
def test_an_impossible_place_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    path = tmp_path if place == "a folder" else tmp_path / "file" / "c.db"
    store = SqliteStore(path, Sealer(KEY))
    with pytest.raises(StoreError, match=re.escape(f"store {path}: ")):
        store.check()
    store.close()


def test_a_file_that_is_replaced_is_opened_anew(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(CHAT, 3))
    shutil.rmtree(path.parent)
    assert lengths(store) == []
    store.save(checkpoint(CHAT, 4))
    assert lengths(store) == [4]
    assert path.exists()


@pytest.mark.parametrize("bad", [{"model": SECRET + "\ud800"}, {"tokens_before": 1 << 70}])
def test_what_no_row_can_hold_is_refused_without_being_shown(store: SqliteStore, bad: dict) -> None:
    with pytest.raises(StoreError, match="cannot keep what it was given") as caught:
        store.save(checkpoint(CHAT, 3, **bad))
    assert SECRET not in str(caught.value)
    store.save(checkpoint(CHAT, 3))
    assert lengths(store) == [3]


def _as_nobody(work: Callable[[], None]) -> None:
    """In a process that is not the superuser, whom modes do not bind."""

    def run() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        work()

    _fork(run)


@pytest.fixture
def common() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@posix
def test_a_read_only_file_is_told_and_mended(common: Path) -> None:
    def work() -> None:
        path = common / "c.db"
        store = SqliteStore(path, Sealer(KEY))
        store.save(checkpoint(CHAT, 2))
        store.close()
        path.chmod(0o400)
        again = SqliteStore(path, Sealer(KEY))
        with pytest.raises(StoreError, match=f"{path}: is read-only"):
            again.save(checkpoint(CHAT, 3))
        path.chmod(0o600)
        again.save(checkpoint(CHAT, 3))
        assert lengths(again) == [3, 2]

    _as_nobody(work)


@posix
def test_an_unreadable_file_is_told_and_mended(common: Path) -> None:
    def work() -> None:
        path = common / "c.db"
        store = SqliteStore(path, Sealer(KEY))
        store.save(checkpoint(CHAT, 2))
        store.close()
        path.chmod(0)
        again = SqliteStore(path, Sealer(KEY))
        with pytest.raises(StoreError, match=f"{path}: cannot be opened"):
            lengths(again)
        path.chmod(0o600)
        assert lengths(again) == [2]

    _as_nobody(work)


@posix
def test_a_folder_where_nothing_may_be_made(common: Path) -> None:
    def work() -> None:
        common.chmod(0o500) if os.geteuid() == common.stat().st_uid else None
        store = SqliteStore(common / "sub" / "c.db", Sealer(KEY))
        with pytest.raises(StoreError, match="Permission denied"):
            store.check()

    common.chmod(0o555)
    _as_nobody(work)
    common.chmod(0o777)


@posix
def test_a_full_disk_is_told_and_what_was_saved_stays(path: Path) -> None:
    import resource

    def work() -> None:
        store = SqliteStore(path, Sealer(KEY))
        store.save(checkpoint(CHAT, 2))
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        with pytest.raises(StoreError, match=r"no room left|cannot be read or written"):
            store.save(checkpoint(CHAT, 3, "x" * 400_000))
        assert lengths(store) == [2]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.save(checkpoint(CHAT, 3, "x" * 400_000))
        assert lengths(store) == [3, 2]

    _fork(work)


# --- what goes


def test_the_oldest_used_go_when_the_file_is_full(path: Path, clock: Clock) -> None:
    store = SqliteStore(path, Sealer(KEY), max_bytes=400_000, clock=clock)
    chats = [history(f"chat {n}", "b") for n in range(12)]
    for chains in chats:
        clock.now += DAY / 10
        store.save(checkpoint(chains, 2, "x" * 50_000))
    assert lengths(store, chats[0]) == [2]  # used: the last to go
    clock.now += DAY / 10
    store.report(TENANT, report(CHAT, 1))
    assert store.sweep() > 0
    left = [n for n, chains in enumerate(chats) if lengths(store, chains)]
    assert left[0] == 0
    assert left[1:] == list(range(12 - len(left) + 1, 12))
    assert 4 <= len(left) <= 8
    assert store.sweep() == 0
    store.close()
    assert path.stat().st_size <= 400_000


def test_a_sweep_comes_with_every_so_many_saves(path: Path, clock: Clock) -> None:
    store = SqliteStore(path, Sealer(KEY), max_bytes=300_000, clock=clock)
    for n in range(140):
        clock.now += 1
        store.save(checkpoint(history(f"chat {n}", "b"), 2, "x" * 10_000))
    store.close()
    assert path.stat().st_size < 1_200_000


def test_a_sweep_comes_with_the_first_call(path: Path, store: SqliteStore, clock: Clock) -> None:
    store.save(checkpoint(CHAT, 2))
    store.close()
    clock.now += 31 * DAY
    again = SqliteStore(path, Sealer(KEY), clock=clock)
    again.check()
    assert lengths(again) == []
    again.close()


def test_reports_go_with_age_and_with_their_checkpoint(store: SqliteStore, clock: Clock) -> None:
    store.save(checkpoint(CHAT, 2))
    clock.now += 20 * DAY
    store.save(checkpoint(CHAT, 3))
    store.report(TENANT, report(CHAT, 4, 1, checkpoint=CHAT[2]))
    store.report(TENANT, report(CHAT, 4, 2, checkpoint=CHAT[3]))
    store.report(TENANT, report(CHAT, 4, 3))
    clock.now += 20 * DAY
    store.sweep()
    assert [r.input_tokens for r in find(store).reports] == [3, 2]
    clock.now += 20 * DAY
    assert store.sweep() > 0
    assert find(store) == Found()


def test_a_sweep_of_thousands_goes_in_batches(store: SqliteStore, clock: Clock) -> None:
    for n in range(450):
        store.save(checkpoint(history(f"chat {n}", "b"), 2, "x"))
    clock.now += 31 * DAY
    assert store.sweep() == 450


def test_an_artifact_larger_than_the_store_is_refused(path: Path) -> None:
    store = SqliteStore(path, Sealer(KEY), max_bytes=1000)
    with pytest.raises(StoreError, match="over its limit of 1000"):
        store.save(checkpoint(CHAT, 2, "x" * 2000))
    store.close()


# --- opening by kind


@pytest.mark.parametrize("kind", ["sqlite", "memory", "none"])
def test_every_kind_opens(path: Path, kind: str) -> None:
    store = open_store(kind, path=path, keys=Keys.of(KEY))  # type: ignore[arg-type]
    store.save(checkpoint(CHAT, 2))
    assert len(store.find(TENANT, CHAT[1], CHAT).checkpoints) == (kind != "none")
    assert path.exists() == (kind == "sqlite")
    assert isinstance(store, NullStore) == (kind == "none")
    store.close()


def test_the_default_place_is_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda *a, **k: tmp_path / a[0])
    assert default_path() == tmp_path / "tidegate" / "checkpoints.db"
    assert default_key_file() == tmp_path / "tidegate" / "key"
