"""What is prepared goes on behind the client's back, by every driver, and the turn that needs it joins it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fakes import (
    AsyncClient,
    AsyncUpstream,
    Edge,
    Line,
    Script,
    Scripted,
    Seen,
    SyncUpstream,
    Times,
    pieces,
)
from playbook import chat_reply
from stage import body, history, kit, request, target
from test_drive_both import ANSWER, RECOVERED

from tidegate.compactors.strategy import Call, CompactionFailed, Reply, Summary
from tidegate.context.budget import Policy
from tidegate.drive import aio, sync, thread_flights
from tidegate.drive.direct import Direct
from tidegate.drive.flights import Ending, Flights
from tidegate.engine.effects import Prepare
from tidegate.engine.exchange import Life, exchange
from tidegate.store.memory import MemoryStore

BAND, FULL = body(history(15)), body(history(18))
WORDS = "## Goal\nMend the failing tests of the shop, file by file."
MADE = Summary(WORDS, 1)


def script(summary: Callable[[Call], Reply] = lambda call: chat_reply(WORDS)) -> Script:
    return Script(lambda raw: Scripted(200, list(pieces(ANSWER, 40))), summary)


class Async:
    """One gateway on asyncio."""

    def __init__(self, told: Script, *, directly: bool, at_once: int = 4) -> None:
        self.told, self.directly, self.go = told, directly, asyncio.Event()
        self.tools, self.store = kit(Policy()), MemoryStore()
        self.flights = Flights(prepare_at_once=at_once)

    def life(self, raw: bytes) -> Life:
        return exchange(request(raw, to=target()), self.tools)

    async def turn(self, raw: bytes) -> Seen:
        seen, life = Seen(), self.life(raw)
        if self.directly:
            edge = Edge(life, self.told, self.store, seen, idle=True)
            edge.flights, edge.delay = self.flights, self.go
            Direct(life, "chat", Line(seen), edge, self.store, Times(), 1 << 20, seen.notices.append).start()
            await asyncio.wait_for(edge.over, 10)
        else:
            await aio.Driver(
                "chat", AsyncUpstream(self.told, self.go), AsyncClient(seen), self.store, self.flights,
                on_notify=seen.notices.append,
            ).drive(life)  # fmt: skip
        return seen


BOTH = pytest.mark.parametrize("directly", [False, True], ids=["asyncio", "direct"])


def events(seen: Seen) -> list[str]:
    return [notice.event for notice in seen.notices]


async def told(seen: Seen, event: str) -> None:
    """Until it is."""
    for _ in range(1000):
        if event in events(seen):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{event} never came, only {events(seen)}")


@BOTH
async def test_the_answer_does_not_wait_and_the_next_turn_finds_it_made(directly):
    gate = Async(script(), directly=directly)
    first = await gate.turn(BAND)
    assert (first.status, first.body) == RECOVERED
    assert events(first)[-1] == "preparing"
    gate.go.set()
    await told(first, "prepared")
    gate.go.clear()  # another summary would never be made
    second = await gate.turn(FULL)
    assert (second.outcome.action, second.outcome.reason, len(gate.told.calls)) == ("compacted", "prepared", 1)
    assert gate.told.sent[1] is not None


@BOTH
async def test_a_turn_that_comes_early_waits_for_the_rest_only(directly):
    gate = Async(script(), directly=directly)
    await gate.turn(BAND)
    second = asyncio.create_task(gate.turn(FULL))
    await asyncio.sleep(0.05)
    assert not second.done()
    gate.go.set()
    assert ((await second).outcome.reason, len(gate.told.calls)) == ("prepared", 1)


async def test_a_waiter_that_leaves_does_not_cancel_it():
    gate = Async(script(), directly=False)
    first = await gate.turn(BAND)
    waiter = asyncio.create_task(gate.turn(FULL))
    await asyncio.sleep(0.05)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    gate.go.set()
    await told(first, "prepared")
    assert (await gate.turn(FULL)).outcome.reason == "prepared"
    assert len(gate.told.calls) == 1


@BOTH
async def test_over_the_bound_nothing_is_prepared_and_nothing_told(directly):
    gate = Async(script(), directly=directly, at_once=1)
    other = body([{"role": "user", "content": "another beginning"}, *history(15)[1:]])
    first = await gate.turn(BAND)
    assert "preparing" in events(first)
    assert {"preparing", "prepare_failed", "fault"}.isdisjoint(events(await gate.turn(other)))
    gate.go.set()
    await told(first, "prepared")
    assert "preparing" in events(await gate.turn(other))  # there is room again
    await gate.flights.close()


@BOTH
async def test_one_that_fails_is_told_and_lets_compaction_rest(directly):
    gate = Async(script(lambda call: Reply(500, b"oops")), directly=directly)
    gate.go.set()
    first = await gate.turn(BAND)
    await told(first, "prepare_failed")
    assert first.notices[-1].detail["reason"] == "summary_http_500"
    paid = len(gate.told.calls)
    second = await gate.turn(FULL)
    assert (second.status, second.body) == RECOVERED
    assert (second.outcome.reason, len(gate.told.calls)) == ("breaker_open", paid)


@BOTH
async def test_a_bug_in_its_work_is_a_failure_like_any_other(directly):
    def bug(call: Call) -> Reply:
        raise ZeroDivisionError("a bug")

    gate = Async(script(bug), directly=directly)
    gate.go.set()
    first = await gate.turn(BAND)
    await told(first, "prepare_failed")
    last = [(notice.event, notice.detail.get("error", notice.detail.get("reason"))) for notice in first.notices[-2:]]
    assert last == [("fault", "ZeroDivisionError"), ("prepare_failed", "fault")]


@BOTH
async def test_a_fault_in_beginning_it_costs_the_client_nothing(directly, monkeypatch):
    def bug(*_args: object) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Flights, "prepare", bug)
    gate = Async(script(), directly=directly)
    gate.go.set()
    first = await gate.turn(BAND)
    assert (first.status, first.body, first.complete) == (*RECOVERED, True)
    assert "fault" in events(first)
    assert (await gate.turn(FULL)).outcome.action == "compacted"


# -- the flights -----------------------------------------------------------------------------------------------------


async def slow() -> Summary:
    await asyncio.sleep(0.05)
    return MADE


async def test_closing_cancels_what_goes_on_and_tells_nobody():
    flights, ends = Flights(), list[Ending]()
    assert flights.prepare(b"k", slow, ends.append)
    await flights.close()
    assert ends == []
    assert flights.landed(b"k") is None
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_flight_that_requests_wait_for_becomes_a_prepared_one():
    flights, ends = Flights(), list[Ending]()
    flight = flights.join(b"k", slow)
    assert flights.prepare(b"k", slow, ends.append)
    flights.leave(flight)
    assert await flight.task == MADE
    await asyncio.sleep(0)
    assert ends == [MADE]


async def test_what_has_landed_already_is_not_made_again():
    flights, ends = Flights(), list[Ending]()
    assert flights.prepare(b"k", slow, ends.append)
    while not ends:
        await asyncio.sleep(0.01)
    assert flights.prepare(b"k", slow, ends.append)
    assert ends == [MADE, MADE]
    assert flights.landed(b"k") == MADE


async def test_a_joiner_hears_of_its_failure():
    async def fails() -> Summary:
        await asyncio.sleep(0.02)
        raise CompactionFailed("summary_empty")

    flights, ends = Flights(), list[Ending]()
    flights.prepare(b"k", fails, ends.append)
    flight = flights.join(b"k", slow)
    with pytest.raises(CompactionFailed):
        await asyncio.shield(flight.task)
    assert [type(ending) for ending in ends] == [CompactionFailed]


# -- threads ---------------------------------------------------------------------------------------------------------


class Blocking:
    """A client's process that drives by blocking calls."""

    def __init__(self, told: Script, **flights: Any) -> None:
        self.told, self.tools, self.store = told, kit(Policy()), MemoryStore()
        self.flights = thread_flights.Flights(**flights)

    def turn(self, raw: bytes) -> Seen:
        seen = Seen()

        def deliver(answer: sync.HeldAnswer, head: Any, outcome: Any) -> bool:
            seen.status, seen.outcome, seen.body = head.status, outcome, b"".join(answer.pieces())
            return True

        sync.Driver("chat", SyncUpstream(self.told), self.store, self.flights, on_notify=seen.notices.append).drive(
            exchange(request(raw, to=target()), self.tools), deliver
        )
        return seen


def until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_a_thread_prepares_it_and_the_next_turn_finds_it_made():
    go = threading.Event()

    def summary(call: Call) -> Reply:
        go.wait(5)
        return chat_reply(WORDS)

    process = Blocking(script(summary))
    first = process.turn(BAND)
    assert events(first)[-1] == "preparing"
    go.set()
    until(lambda: events(first)[-1] == "prepared")
    second = process.turn(FULL)
    assert (second.outcome.reason, len(process.told.calls)) == ("prepared", 1)


def test_a_thread_that_fails_is_told():
    process = Blocking(script(lambda call: Reply(500, b"oops")))
    first = process.turn(BAND)
    until(lambda: "prepare_failed" in events(first))
    assert process.turn(FULL).outcome.reason == "breaker_open"


def test_so_many_threads_and_no_more():
    go = threading.Event()

    def summary(call: Call) -> Reply:
        go.wait(5)
        return chat_reply(WORDS)

    process = Blocking(script(summary), prepare_at_once=1)
    first = process.turn(BAND)
    second = process.turn(body([{"role": "user", "content": "another beginning"}, *history(15)[1:]]))
    assert ("preparing" in events(first), "preparing" in events(second)) == (True, False)
    go.set()
    until(lambda: "prepared" in events(first))


def test_the_effect_shows_nothing_that_must_not_be_shown():
    shown = repr(Prepare(b"k", "summary", lambda: None, lambda made, reason: None))  # type: ignore[arg-type,return-value]
    assert shown == "Prepare(key=b'k', strategy='summary')"
