"""All calls of one compaction together have one time limit, whoever drives it; what they cost until then is told."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tidegate.compactors.strategy import Call, CompactionFailed, Reply, Summary
from tidegate.drive import aio, sync, thread_flights
from tidegate.engine.effects import Failure, Made, NothingHelped, OutOfTime, Work


def work(calls: int = 10, timeout: float = 180.0) -> Work:
    """Asks so often, and tells what it has paid as the engine's own work does."""
    replies = 0
    try:
        for _ in range(calls):
            yield Call("/x", b"{}", timeout=timeout)
            replies += 1
    except OutOfTime as error:
        raise NothingHelped((Failure("summary", error.reason, False, replies, 100 * replies),)) from None
    return Made(Summary("## Goal", replies), "summary")


def blocking(seconds: float, limit: float, timeouts: list[float], timeout: float = 180.0) -> Made:
    def call(call: Call) -> Reply:
        timeouts.append(call.timeout)
        time.sleep(min(seconds, call.timeout))
        return Reply(200, b"{}")

    return sync.run_work(lambda: work(timeout=timeout), call, limit)


def test_blocking_calls_end_with_the_time_of_all():
    timeouts: list[float] = []
    began = time.monotonic()
    with pytest.raises(NothingHelped) as ended:
        blocking(0.04, 0.1, timeouts)
    assert time.monotonic() - began < 1
    assert ended.value.reason == "summary_too_slow"
    assert ended.value.cost.input_tokens == 100 * len(timeouts)
    assert 2 <= len(timeouts) <= 3
    assert timeouts == sorted(timeouts, reverse=True)  # each gets no more than what is left
    assert timeouts[0] <= 0.1


def test_a_blocking_call_that_hangs_is_cut_at_the_limit():
    timeouts: list[float] = []
    with pytest.raises(NothingHelped):
        blocking(60, 0.05, timeouts)
    assert len(timeouts) == 1


def test_a_calls_own_time_stays_where_it_is_shorter():
    timeouts: list[float] = []
    assert blocking(0, 60, timeouts, timeout=3.0).result.calls == 10
    assert timeouts == [3.0] * 10


async def test_awaited_calls_end_with_the_time_of_all_and_tell_what_they_cost():
    async def call(call: Call) -> Reply:
        await asyncio.sleep(0.04)
        return Reply(200, b"{}")

    with pytest.raises(NothingHelped) as ended:
        await aio.run_work(work, call, 0.1)
    assert (ended.value.reason, ended.value.cost.input_tokens > 0) == ("summary_too_slow", True)


def test_threads_that_wait_share_a_failure():
    """Else each in turn would wait as long as the first one did."""
    flights, go, made = thread_flights.Flights(), threading.Event(), []

    def start() -> Made:
        made.append(1)
        go.wait(5)
        raise CompactionFailed("summary_too_slow")

    told: list[str] = []

    def run() -> None:
        try:
            flights.run(b"k", start)
        except CompactionFailed as error:
            told.append(error.reason)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    go.set()
    for thread in threads:
        thread.join(5)
    assert told == ["summary_too_slow"] * 3
    assert len(made) == 1
