"""Reports written a moment later: found at once, written in the end, never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from store_cases import TENANT, checkpoint, history, report

from tidegate.engine.checkpoint import Checkpoint, Found, Report, Store, StoreError
from tidegate.store import MemoryStore, SqliteStore
from tidegate.store.behind import Behind
from tidegate.store.null import NullStore
from tidegate.store.seal import Sealer

CHAT = history("a", "b", "c", "d")


def tokens(store: Store, chains: Mapping[int, bytes] = CHAT) -> list[int]:
    return [r.input_tokens for r in store.find(TENANT, chains[1], chains).reports]


class Slow:
    """Takes a second for a report, or as long as it is told to."""

    def __init__(self) -> None:
        self._inner = MemoryStore()
        self.find, self.save = self._inner.find, self._inner.save
        self.go = threading.Event()

    def report(self, tenant: bytes, report: Report) -> None:
        self.go.wait(5)
        self._inner.report(tenant, report)


def test_a_report_is_found_before_and_while_and_after_it_is_written():
    inner = Slow()
    store = Behind(inner, seconds=0.01)
    store.report(TENANT, report(CHAT, 2, 100))
    assert tokens(store) == [100]
    time.sleep(0.05)
    assert tokens(store) == [100]
    assert tokens(inner) == []
    inner.go.set()
    deadline = time.monotonic() + 5
    while tokens(inner) != [100] and time.monotonic() < deadline:
        time.sleep(0.005)
    assert (tokens(store), tokens(inner)) == ([100], [100])


def test_the_newest_report_of_a_view_counts():
    store = Behind(MemoryStore(), seconds=60)
    for n in (100, 110, 105):
        store.report(TENANT, report(CHAT, 2, n))
        store.report(TENANT, report(CHAT, 3, n * 2))
    assert tokens(store) == [210, 105]


def test_what_waits_stands_before_what_is_written():
    inner = MemoryStore()
    inner.report(TENANT, report(CHAT, 2, 100))
    inner.report(TENANT, report(CHAT, 3, 200))
    store = Behind(inner, seconds=60)
    store.report(TENANT, report(CHAT, 2, 101))
    assert tokens(store) == [101, 200]


def test_a_report_of_another_history_is_not_found():
    store = Behind(MemoryStore(), seconds=60)
    store.report(TENANT, report(CHAT, 3, 100))
    assert tokens(store, {1: CHAT[1], 2: CHAT[2], 3: b"another" * 5}) == []
    assert store.find(b"another tenant", CHAT[1], CHAT) == Found()


def test_the_end_writes_what_waits_and_closes(tmp_path: Path):
    path = tmp_path / "a" / "b.db"
    store = Behind(SqliteStore(path, Sealer(bytes(32))), seconds=60)
    store.report(TENANT, report(CHAT, 2, 100))
    store.save(checkpoint(CHAT, 2))
    store.close()
    again = SqliteStore(path, Sealer(bytes(32)))
    assert tokens(again) == [100]
    assert [c.length for c in again.find(TENANT, CHAT[1], CHAT).checkpoints] == [2]


def test_a_store_that_fails_is_told_of_and_costs_no_turn():
    class Broken(NullStore):
        def report(self, tenant: bytes, report: Report) -> None:
            raise StoreError("disk on fire")

    heard: list[StoreError] = []
    store = Behind(Broken(), seconds=60, on_fault=heard.append)
    store.report(TENANT, report(CHAT, 2, 100))
    store.flush()
    assert [str(error) for error in heard] == ["disk on fire"]
    assert tokens(store) == []


def test_a_store_that_fails_at_finding_says_so():
    class Broken(NullStore):
        def find(self, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]) -> Found:
            raise StoreError("disk on fire")

    with pytest.raises(StoreError):
        Behind(Broken()).find(TENANT, CHAT[1], CHAT)


def test_a_checkpoint_is_saved_at_once():
    inner = MemoryStore()
    saved: Checkpoint = checkpoint(CHAT, 2)
    Behind(inner, seconds=60).save(saved)
    assert [c.chain for c in inner.find(TENANT, CHAT[1], CHAT).checkpoints] == [saved.chain]


def test_no_more_wait_than_are_worth_keeping(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tidegate.store.behind._MOST", 10)
    store = Behind(MemoryStore(), seconds=60)
    for n in range(50):
        chat = history(f"a{n}", "b")
        store.report(TENANT, report(chat, 2, n))
    assert sum(map(len, store._waiting.values())) == 10


def test_an_idle_store_keeps_no_thread():
    store = Behind(MemoryStore(), seconds=0.01)
    store.report(TENANT, report(CHAT, 2, 100))
    deadline = time.monotonic() + 5
    while store._thread is not None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert store._thread is None
    store.report(TENANT, report(CHAT, 3, 300))
    assert store._thread is not None
    store.close()
