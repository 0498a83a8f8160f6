"""One compaction for all who wait for the same: joins, leaves, a few that nobody waits for yet, and a short memory of
what just landed.

Knows tasks and keys; not what is compacted. Called by the asyncio drivers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TypeAlias

from tidegate.engine.effects import Made

Ending: TypeAlias = Made | BaseException
"""What came of a flight."""


@dataclass(slots=True)
class Flight:
    """A running compaction and how many wait for it."""

    key: bytes
    task: asyncio.Task[Made] = field(repr=False)
    waiters: int = 0


class Flights:
    """The running flights of a process, and the results of the last ones.

    A result is kept for `keep_seconds`: a client that retries after a transient failure of its request finds the
    compaction it has paid for, although nothing is stored for a failed exchange, and one that was prepared waits there
    for its turn. `prepare_at_once` flights may go on that nobody waits for.
    """

    def __init__(self, *, keep_seconds: float = 1800, keep: int = 1024, prepare_at_once: int = 4) -> None:
        self._running: dict[bytes, Flight] = {}
        self._landed: OrderedDict[bytes, tuple[float, Made]] = OrderedDict()
        self._keep_seconds, self._keep = keep_seconds, keep
        self.prepare_at_once = prepare_at_once
        """How many may go on that nobody waits for."""
        self._preparing: set[asyncio.Task[Made]] = set()

    def landed(self, key: bytes) -> Made | None:
        """The result of a flight that ended lately."""
        at, made = self._landed.get(key, (0.0, None))
        if made is None or asyncio.get_running_loop().time() - at > self._keep_seconds:
            self._landed.pop(key, None)
            return None
        return made

    def join(self, key: bytes, start: Callable[[], Coroutine[object, object, Made]]) -> Flight:
        """The flight of that key, started if none runs. Every join needs its `leave`."""
        flight = self._running.get(key)
        if flight is None or flight.task.cancelled():
            flight = self._start(key, start)
        flight.waiters += 1
        return flight

    def prepare(
        self, key: bytes, start: Callable[[], Coroutine[object, object, Made]], ended: Callable[[Ending], None]
    ) -> bool:
        """Starts that flight for those who will join it later, and lets none who leaves it cancel it; False where too
        many such flights go on. `ended` is told how it ended, unless it was cancelled."""
        if (landed := self.landed(key)) is not None:
            ended(landed)
            return True
        flight = self._running.get(key)
        if flight is None or flight.task.cancelled():
            if len(self._preparing) >= self.prepare_at_once:
                return False
            flight = self._start(key, start)
        self._preparing.add(flight.task)
        flight.task.add_done_callback(lambda task: self._prepared(task, ended))
        return True

    async def close(self) -> None:
        """Cancels all that still goes on."""
        tasks = [flight.task for flight in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def leave(self, flight: Flight) -> None:
        """One waiter less; the last one to leave a running flight cancels it, if it was not begun for a later turn."""
        flight.waiters -= 1
        if flight.waiters == 0 and not flight.task.done() and flight.task not in self._preparing:
            self._running.pop(flight.key, None)
            flight.task.cancel()

    def _start(self, key: bytes, start: Callable[[], Coroutine[object, object, Made]]) -> Flight:
        flight = self._running[key] = Flight(key, asyncio.create_task(start()))
        flight.task.add_done_callback(lambda task: self._land(key, task))
        return flight

    def _prepared(self, task: asyncio.Task[Made], ended: Callable[[Ending], None]) -> None:
        self._preparing.discard(task)
        if not task.cancelled():
            ended(task.exception() or task.result())

    def _land(self, key: bytes, task: asyncio.Task[Made]) -> None:
        running = self._running.get(key)
        if running is not None and running.task is task:
            del self._running[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._landed[key] = (asyncio.get_running_loop().time(), task.result())
        self._landed.move_to_end(key)
        while len(self._landed) > self._keep:
            self._landed.popitem(last=False)
