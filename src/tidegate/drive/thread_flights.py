"""Compactions on their way for threads: the twin of `flights`.

Knows threads and keys; not what a compaction is made of. Called by `sync`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.compactors.strategy import CompactionFailed
from tidegate.engine.effects import Made


@dataclass(slots=True)
class _Flight:
    done: threading.Event = field(default_factory=threading.Event)
    made: Made | None = None
    failed: CompactionFailed | None = None


class Flights:
    """One compaction for all threads that wait for the same: what came of it comes to all, a failure too. Where the
    leading thread itself has ended, a waiter takes over. What was made is kept for `keep_seconds`: a client that sends
    again after a transient failure finds what it has paid for, though nothing is stored for a failed exchange.

    `prepare_at_once` may be made that nobody waits for, each in a thread of its own that does not keep the process
    alive.
    """

    def __init__(self, *, keep_seconds: float = 1800, keep: int = 256, prepare_at_once: int = 4) -> None:
        self._lock = threading.Lock()
        self._running: dict[bytes, _Flight] = {}
        self._made: OrderedDict[bytes, tuple[float, Made]] = OrderedDict()
        self._keep_seconds, self._keep = keep_seconds, keep
        self._prepare_at_once = prepare_at_once
        self._preparing = 0

    def prepare(self, key: bytes, start: Callable[[], Made], ended: Callable[[Made | Exception], None]) -> bool:
        """Begins to make the summary of that key for a later `run`; False where too many are being made. `ended` is
        told, in another thread, what came of it."""
        with self._lock:
            if self._preparing >= self._prepare_at_once:
                return False
            self._preparing += 1
        threading.Thread(target=self._prepare, args=(key, start, ended), name="tidegate-prepare", daemon=True).start()
        return True

    def _prepare(self, key: bytes, start: Callable[[], Made], ended: Callable[[Made | Exception], None]) -> None:
        ending: Made | Exception
        try:
            ending = self.run(key, start)
        except Exception as error:
            ending = error
        with self._lock:
            self._preparing -= 1
        ended(ending)

    def run(self, key: bytes, start: Callable[[], Made]) -> Made:
        """The summary of that key: made here, or by the thread that makes it already, or prepared before. Raises
        `CompactionFailed`."""
        while True:
            with self._lock:
                at, made = self._made.get(key, (0.0, None))
                if made is not None and time.monotonic() - at < self._keep_seconds:
                    return made
                flight = self._running.get(key)
                leads = flight is None
                if flight is None:
                    flight = self._running[key] = _Flight()
            if leads:
                try:
                    flight.made = start()
                    self._land(key, flight.made)
                    return flight.made
                except CompactionFailed as error:
                    flight.failed = error
                    raise
                finally:
                    with self._lock:
                        self._running.pop(key, None)
                    flight.done.set()
            flight.done.wait()
            if flight.made is not None:
                return flight.made
            if flight.failed is not None:
                raise flight.failed

    def _land(self, key: bytes, made: Made) -> None:
        with self._lock:
            self._made[key] = (time.monotonic(), made)
            self._made.move_to_end(key)
            if len(self._made) > self._keep:
                self._made.popitem(last=False)
