"""One compaction for all who wait for it; it ends when nobody waits any more; the client is kept awake meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest
from fakes import AsyncClient, AsyncUpstream, Script, Scripted, Seen
from playbook import chat_reply
from stage import body, history, kit, request, target

from tidegate.compactors.strategy import CompactionFailed, Summary
from tidegate.drive.aio import Driver, Pace
from tidegate.drive.flights import Flights
from tidegate.engine.exchange import exchange
from tidegate.store.null import NullStore

FULL = body(history(18))
ANSWER = json.dumps({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}).encode()


def script() -> Script:
    return Script(
        lambda raw: Scripted(200, [ANSWER]),
        lambda call: chat_reply("## Goal\nMend the failing tests of the shop, file by file."),
    )


def driver(told: Script, seen: Seen, flights: Flights, *, delay=0.05, streams=False, pace=None) -> Driver:
    return Driver(
        "chat", AsyncUpstream(told, delay), AsyncClient(seen, streams), NullStore(), flights, pace or Pace(),
        on_notify=seen.notices.append,
    )  # fmt: skip


def life(tools):
    return exchange(request(FULL, to=target()), tools)


async def test_two_requests_with_the_same_beginning_pay_for_one_summary():
    told, flights, tools = script(), Flights(), kit()
    seen = [Seen(), Seen(), Seen()]
    await asyncio.gather(*(driver(told, each, flights).drive(life(tools)) for each in seen))
    assert [each.outcome.action for each in seen] == ["compacted"] * 3
    assert len(told.calls) == 1
    assert told.sent[0] == told.sent[1] == told.sent[2]


async def test_where_the_first_one_leaves_the_other_still_gets_its_summary():
    told, flights, tools = script(), Flights(), kit()
    first, second = Seen(), Seen()
    leader = asyncio.create_task(driver(told, first, flights).drive(life(tools)))
    waiter = asyncio.create_task(driver(told, second, flights).drive(life(tools)))
    await asyncio.sleep(0.02)
    leader.cancel()
    await waiter
    assert second.outcome.action == "compacted"
    assert first.status == 0
    assert len(told.calls) == 1


async def test_the_summary_is_cancelled_when_the_last_one_leaves():
    told, flights, tools = script(), Flights(), kit()
    waiting = [asyncio.create_task(driver(told, Seen(), flights, delay=0.2).drive(life(tools))) for _ in range(2)]
    await asyncio.sleep(0.02)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(0.25)
    assert told.calls == []
    assert told.sent == []


async def test_a_retry_after_a_failed_exchange_finds_the_summary_it_has_paid_for():
    told, flights, tools = script(), Flights(), kit()
    told.answer = lambda raw: Scripted(503, [b'{"error":{"message":"overloaded"}}'])
    await driver(told, Seen(), flights).drive(life(tools))
    told.answer = lambda raw: Scripted(200, [ANSWER])
    seen = Seen()
    await driver(told, seen, flights).drive(life(tools))
    assert (seen.status, len(told.calls)) == (200, 1)


async def test_a_failed_summary_is_not_remembered():
    flights = Flights()

    async def fails() -> Summary:
        raise CompactionFailed("summary_empty")

    for _ in range(2):
        flight = flights.join(b"k", fails)
        with pytest.raises(CompactionFailed):
            await flight.task
        flights.leave(flight)
    assert flights.landed(b"k") is None


@pytest.mark.parametrize(("streams", "beats"), [(True, True), (False, False)])
async def test_a_client_that_streams_is_kept_awake_while_a_summary_is_made(streams, beats):
    seen = Seen()
    await driver(
        script(), seen, Flights(), delay=0.12, streams=streams, pace=Pace(heartbeat_after=0.02, heartbeat_every=0.02)
    ).drive(life(kit()))
    assert (seen.heartbeats > 1) is beats
    assert seen.status == 200
