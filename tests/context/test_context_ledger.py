"""The memory of items already read: once each, bounded, quick."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import pytest

import tidegate.context.ledger as ledger_module
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import UnreadableBody

HASHER = Hasher(b"k" * 32)


def message(text: str) -> bytes:
    return json.dumps({"role": "user", "content": text}).encode()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What has been parsed, in order."""
    seen: list[bytes] = []
    loads = ledger_module.loads
    monkeypatch.setattr(ledger_module, "loads", lambda raw: (seen.append(raw), loads(raw))[1])
    return seen


@pytest.mark.pure
def test_an_item_is_read_once(reads: list[bytes]) -> None:
    ledger = Ledger(HASHER)
    first = ledger.entry("chat", message("noon"))
    assert ledger.entry("chat", message("noon")) is first
    assert first.facts.human
    assert first.tokens == 5
    assert len(first.fingerprint) == 32
    assert reads == [message("noon")]


@pytest.mark.pure
def test_the_least_recently_used_is_forgotten_first(reads: list[bytes]) -> None:
    ledger = Ledger(HASHER, capacity_entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        ledger.entry("chat", message(text))
    assert len(ledger) == 2
    assert reads == [message(text) for text in ("a", "b", "c", "b")]


def test_a_ledger_has_room_for_something() -> None:
    with pytest.raises(ValueError, match="one entry"):
        Ledger(HASHER, capacity_entries=0)


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b'"words"', b"1", b"null", b'{"role":', b"\xff{}"],
)
def test_what_is_no_object_is_unreadable_and_not_remembered(raw: bytes) -> None:
    ledger = Ledger(HASHER)
    with pytest.raises(UnreadableBody):
        ledger.entry("chat", raw)
    assert len(ledger) == 0


@pytest.mark.parametrize("depth", [100, 9_000, 200_000])
def test_however_deep_an_item_is_it_is_read_or_unreadable(depth: int) -> None:
    with contextlib.suppress(UnreadableBody):  # how deep can be read depends on the interpreter
        Ledger(HASHER).entry("chat", b'{"role":"user","content":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}")


def test_half_a_surrogate_pair_is_readable() -> None:
    one = Ledger(HASHER).entry("chat", rb'{"role":"user","content":"cut \ud83c"}')
    other = Ledger(HASHER).entry("chat", rb'{"role":"user","content":"cut \ud83d"}')
    assert one.fingerprint != other.fingerprint
    assert one.tokens == other.tokens


def test_every_item_of_a_conversation_in_order() -> None:
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "noon"}]
    conversation = REQUESTS["chat"].read(json.dumps({"model": "m", "messages": messages}).encode())
    assert [entry.facts.role for entry in Ledger(HASHER).entries(conversation)] == ["system", "user"]


def test_threads_may_share_it() -> None:
    ledger = Ledger(HASHER, capacity_entries=8)
    failures: list[BaseException] = []

    def work(offset: int) -> None:
        try:
            for n in range(500):
                raw = message(str((n * (offset + 1)) % 12))
                assert ledger.entry("chat", raw).fingerprint == Ledger(HASHER).entry("chat", raw).fingerprint
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(ledger) == 8


def test_two_thousand_known_items_take_no_time() -> None:
    ledger = Ledger(HASHER)
    raws = [message(f"{n} " + "words " * 150) for n in range(2_000)]
    for raw in raws:
        ledger.entry("chat", raw)
    best = min(_timed(lambda: [ledger.entry("chat", raw) for raw in raws]) for _ in range(15))
    assert best < 0.05


def _timed(work: object) -> float:
    begun = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - begun
