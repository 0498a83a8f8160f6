"""The store in memory is bounded: what was least recently used goes first."""

import pytest
from store_cases import TENANT, checkpoint, history, report

from tidegate.engine.checkpoint import StoreError
from tidegate.store import MemoryStore

CHATS = [history(f"chat {n}", "b", "c") for n in range(5)]


def alive(store: MemoryStore) -> list[int]:
    return [n for n, c in enumerate(CHATS) if store.find(TENANT, c[1], c).checkpoints]


def test_entries_are_bounded_and_finding_is_using() -> None:
    store = MemoryStore(max_entries=3)
    for chains in CHATS[:3]:
        store.save(checkpoint(chains, 2))
    store.find(TENANT, CHATS[0][1], CHATS[0])
    store.save(checkpoint(CHATS[3], 2))
    assert alive(store) == [0, 2, 3]


def test_saving_again_is_using() -> None:
    store = MemoryStore(max_entries=2)
    for n in (0, 1, 0, 2):
        store.save(checkpoint(CHATS[n], 2))
    assert alive(store) == [0, 2]


def test_bytes_are_bounded() -> None:
    store = MemoryStore(max_bytes=25_000)
    for chains in CHATS:
        store.save(checkpoint(chains, 2, "x" * 7_000))
    assert alive(store) == [2, 3, 4]


def test_what_can_never_fit_is_refused_and_costs_nobody() -> None:
    store = MemoryStore(max_bytes=25_000)
    store.save(checkpoint(CHATS[0], 2))
    with pytest.raises(StoreError, match="over its 25000"):
        store.save(checkpoint(CHATS[1], 2, "x" * 30_000))
    assert alive(store) == [0]


def test_reports_are_bounded() -> None:
    store = MemoryStore(max_entries=4)
    for chains in CHATS:
        store.report(TENANT, report(chains, 1))
        store.report(TENANT, report(chains, 2))
    counts = [len(store.find(TENANT, c[1], c).reports) for c in CHATS]
    assert counts == [0, 0, 0, 2, 2]


def test_nothing_is_left_behind_by_what_went() -> None:
    store = MemoryStore(max_entries=1)
    for chains in CHATS:
        for length in (1, 2, 3):
            store.save(checkpoint(chains, length))
    assert len(store._rows) == len(store._lengths) == len(store._used) == 1
    assert 0 < store._bytes < 3000
