"""What endpoints were seen to lack outlives the process and is shared by those that have the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from store_cases import Clock, checkpoint, history

from tidegate.engine.capabilities import DAY, Seen
from tidegate.engine.checkpoint import StoreError
from tidegate.store import KeepsCapabilities, MemoryStore, SqliteStore, capabilities_in
from tidegate.store.null import NullStore
from tidegate.store.seal import Sealer

KEY = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "checkpoints.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen(clock: Clock) -> Seen:
    return Seen("https://api.example.com/v1", "m", "openai", "lacks", clock())


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[SqliteStore]:
    made = SqliteStore(path, Sealer(KEY), clock=clock)
    yield made
    made.close()


def test_only_a_store_that_outlives_its_process_keeps_them(store: SqliteStore) -> None:
    assert isinstance(store, KeepsCapabilities)
    assert not isinstance(MemoryStore(), KeepsCapabilities)
    assert not isinstance(NullStore(), KeepsCapabilities)


def test_they_outlive_the_process(path: Path, store: SqliteStore, seen: Seen) -> None:
    assert store.capabilities() == []
    entries = [seen, replace(seen, what="troubled"), replace(seen, model="é")]
    assert set(store.save_capabilities(entries)) == set(entries)
    store.close()
    # Nothing in it is sealed: another key reads the same.
    again = SqliteStore(path, Sealer(bytes(32)))
    assert set(again.capabilities()) == set(entries)
    again.close()


def test_two_processes_put_together_what_they_saw_and_the_newest_counts(
    path: Path, store: SqliteStore, clock: Clock, seen: Seen
) -> None:
    newer, other = replace(seen, at=seen.at + 5), replace(seen, strategy="xai")
    theirs = SqliteStore(path, Sealer(KEY), clock=clock)
    theirs.save_capabilities([newer])
    assert set(store.save_capabilities([seen, other])) == {newer, other}
    assert set(theirs.capabilities()) == {newer, other}
    theirs.close()


def test_what_counts_no_more_goes(store: SqliteStore, clock: Clock, seen: Seen) -> None:
    store.save_capabilities([seen])
    clock.now += 32 * DAY
    assert store.save_capabilities([fresh := replace(seen, model="new", at=clock())]) == [fresh]


def test_no_more_are_kept_than_fit(store: SqliteStore, clock: Clock, seen: Seen) -> None:
    store.save_capabilities(replace(seen, model=f"{number}", at=seen.at - number / 100) for number in range(5_000))
    kept = store.capabilities()
    assert len(kept) == 4096
    assert kept[-1].model == "0"


def test_a_row_that_makes_no_sense_is_left_out(path: Path, store: SqliteStore, seen: Seen) -> None:
    store.save_capabilities([seen])
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO capabilities VALUES ('e', 'm', 's', 'dances', 1.0)")
    db.close()
    assert store.capabilities() == [seen]


def test_a_file_of_a_build_that_knew_none_goes_on(path: Path, store: SqliteStore, seen: Seen) -> None:
    store.save(checkpoint(history("a", "b"), 2))
    assert capabilities_in(path) == []
    store.save_capabilities([seen])
    assert capabilities_in(path) == [seen]


def test_reading_makes_nothing_and_says_what_is_wrong(tmp_path: Path) -> None:
    assert capabilities_in(tmp_path / "none.db") == []
    assert list(tmp_path.iterdir()) == []
    broken = tmp_path / "c.db"
    broken.write_bytes(b"no database " * 100)
    with pytest.raises(StoreError, match="no SQLite database"):
        capabilities_in(broken)
