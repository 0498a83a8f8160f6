"""One compaction for all who wait for the same: joins, leaves, and a short memory of what just landed.

Knows tasks and keys; not what is compacted. Called by the asyncio driver.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from tidegate.compactors.strategy import Summary


@dataclass(slots=True)
class Flight:
    """A running compaction and how many wait for it."""

    key: bytes
    task: asyncio.Task[Summary] = field(repr=False)
    waiters: int = 0


class Flights:
    """The running flights of a process, and the results of the last ones.

    A result is kept for `keep_seconds`: a client that retries after a transient failure of its request finds the
    summary it has paid for, although nothing is stored for a failed exchange.
    """

    def __init__(self, *, keep_seconds: float = 600, keep: int = 256) -> None:
        self._running: dict[bytes, Flight] = {}
        self._landed: OrderedDict[bytes, tuple[float, Summary]] = OrderedDict()
        self._keep_seconds, self._keep = keep_seconds, keep

    def landed(self, key: bytes) -> Summary | None:
        """The result of a flight that ended lately."""
        at, made = self._landed.get(key, (0.0, None))
        if made is None or asyncio.get_running_loop().time() - at > self._keep_seconds:
            self._landed.pop(key, None)
            return None
        return made

    def join(self, key: bytes, start: Callable[[], Coroutine[object, object, Summary]]) -> Flight:
        """The flight of that key, started if none runs. Every join needs its `leave`."""
        flight = self._running.get(key)
        if flight is None or flight.task.cancelled():
            flight = Flight(key, asyncio.create_task(start()))
            self._running[key] = flight
            flight.task.add_done_callback(lambda task: self._land(key, task))
        flight.waiters += 1
        return flight

    def leave(self, flight: Flight) -> None:
        """One waiter less; the last one to leave a running flight cancels it."""
        flight.waiters -= 1
        if flight.waiters == 0 and not flight.task.done():
            self._running.pop(flight.key, None)
            flight.task.cancel()

    def _land(self, key: bytes, task: asyncio.Task[Summary]) -> None:
        running = self._running.get(key)
        if running is not None and running.task is task:
            del self._running[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._landed[key] = (asyncio.get_running_loop().time(), task.result())
        self._landed.move_to_end(key)
        while len(self._landed) > self._keep:
            self._landed.popitem(last=False)
