"""Learned windows outlive the process, and what several processes have learned is put together."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from store_cases import Clock, checkpoint, history

from tidegate.engine.checkpoint import StoreError
from tidegate.overflow.learned import Learned
from tidegate.store import KeepsWindows, MemoryStore, SqliteStore, windows_in
from tidegate.store.null import NullStore
from tidegate.store.seal import Sealer

KEY = bytes(range(32))
DAY = 86_400.0
KNOWN = Learned("http://box:8080/v1", "qwen3", limit=8_192, learned_at=100.0, times=1)


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


def test_only_a_store_that_outlives_its_process_keeps_them(store: SqliteStore) -> None:
    assert isinstance(store, KeepsWindows)
    assert not isinstance(MemoryStore(), KeepsWindows)
    assert not isinstance(NullStore(), KeepsWindows)


def test_they_outlive_the_process(path: Path, store: SqliteStore) -> None:
    assert store.windows() == []
    entries = [
        KNOWN,
        replace(KNOWN, model="b", limit=None, succeeded=9_000, succeeded_at=7.5),
        replace(KNOWN, model="é"),
    ]
    assert store.save_windows(entries) == entries
    store.close()
    # Nothing in it is sealed: another key reads the same.
    again = SqliteStore(path, Sealer(bytes(32)))
    assert sorted(again.windows(), key=lambda known: known.model) == sorted(entries, key=lambda known: known.model)
    again.close()


def test_a_file_from_before_there_was_such_a_table_gets_it(path: Path, store: SqliteStore) -> None:
    store.save(checkpoint(history("a", "b"), 2))
    assert sqlite3.connect(path).execute("SELECT count(*) FROM sqlite_master WHERE name = 'windows'").fetchone() == (0,)
    assert store.windows() == []
    store.save_windows([KNOWN])
    assert store.windows() == [KNOWN]


def test_what_another_process_has_learned_meanwhile_is_kept(path: Path, store: SqliteStore) -> None:
    other = SqliteStore(path, Sealer(KEY))
    newer = replace(KNOWN, limit=16_384, learned_at=200.0)
    other.save_windows([newer, replace(KNOWN, model="theirs")])
    assert store.save_windows([KNOWN, replace(KNOWN, model="ours")]) == [newer, replace(KNOWN, model="ours")]
    assert {known.model for known in store.windows()} == {"qwen3", "theirs", "ours"}
    assert other.save_windows([replace(newer, succeeded=9_000, succeeded_at=300.0)])[0].succeeded == 9_000
    assert store.save_windows([KNOWN])[0].succeeded == 9_000
    other.close()


def test_many_writers_lose_nothing(path: Path) -> None:
    def work(number: int) -> None:
        mine = SqliteStore(path, Sealer(KEY))
        for turn in range(1, 6):
            entry = replace(
                KNOWN, limit=None, learned_at=0.0, succeeded=1_000 * turn + number, succeeded_at=float(turn)
            )
            while True:
                try:
                    mine.save_windows([entry, replace(entry, model=f"of {number}")])
                    break
                except StoreError:
                    continue  # locked for too long: the keeper tries again as well
        mine.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {known.model: known.succeeded for known in windows_in(path)}
    assert found == {"qwen3": 5_003, **{f"of {number}": 5_000 + number for number in range(4)}}


def test_what_nobody_has_kept_for_long_goes(store: SqliteStore, clock: Clock) -> None:
    store.save_windows([KNOWN])
    clock.now += 31 * DAY
    store.save_windows([replace(KNOWN, model="new")])
    assert [known.model for known in store.windows()] == ["new"]


def test_there_are_only_so_many(store: SqliteStore, clock: Clock) -> None:
    for number in range(5):
        store.save_windows([replace(KNOWN, model=f"{number} {at}") for at in range(1_000)])
        clock.now += 1
    kept = {known.model.split()[0] for known in store.windows()}
    assert kept == {"1", "2", "3", "4"}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"endpoint":"e","model":"m","limit":-3}', b"\xff", None])
def test_a_row_of_no_sense_is_passed_over(path: Path, store: SqliteStore, text: object) -> None:
    store.save_windows([KNOWN, replace(KNOWN, model="b")])
    db = sqlite3.connect(path)
    db.execute("UPDATE windows SET learned = coalesce(?, '') WHERE model = 'qwen3'", (text,))
    db.commit()
    assert [known.model for known in store.windows()] == ["b"]
    store.save_windows([KNOWN])
    assert {known.model for known in store.windows()} == {"qwen3", "b"}


# --- read by who only looks


def test_looking_makes_nothing(path: Path) -> None:
    assert windows_in(path) == []
    assert not path.parent.exists()


def test_looking_beside_a_running_gateway(path: Path, store: SqliteStore) -> None:
    store.save_windows([KNOWN])
    assert windows_in(path) == [KNOWN]
    store.save_windows([replace(KNOWN, model="b")])
    assert len(windows_in(path)) == 2
    if os.name == "posix":
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_looking_into_what_is_no_store(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database, and never was one " * 40)
    with pytest.raises(StoreError, match="no SQLite database"):
        windows_in(path)
