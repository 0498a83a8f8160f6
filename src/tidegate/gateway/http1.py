"""HTTP/1.1 for clients: what the connections of one server share. Their timeouts, their tasks, and their common end.

Knows no bytes: that is `http1_connection`. Made by what serves, called by the loop for each connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tidegate.gateway.arrival import Arrival
from tidegate.gateway.http1_connection import BODY, CLOSING, HEAD, IDLE, LINGER, Connection
from tidegate.gateway.http1_line import Application, AsgiApplication, Line

_QUIET_SECONDS: Final = 5.0
"""Without a request, until memory is given back."""
_CUT_SECONDS: Final = 1.0
"""For what was cut to notice."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is taken, and how long is waited (seconds)."""

    body_bytes: int = 128 << 20
    """Of a body that is collected; the application is asked about larger ones."""
    head_seconds: float = 60
    """For a head, from its first byte."""
    body_seconds: float = 60
    """For the next byte of a body."""
    idle_seconds: float = 75
    """For the next request on a kept connection."""
    linger_seconds: float = 5
    """For a client to take the last answer and close, where it may still be sending."""
    closing_seconds: float = 60
    """For the next bytes of the last answer, or of one that waits for a slow client, to be taken."""


class Http1:
    """What the connections of one server share. Called by the loop for each new connection."""

    def __init__(self, app: Application | AsgiApplication, limits: Limits | None = None) -> None:
        self.app = app
        self.gathers: Callable[[Arrival], bool] = getattr(app, "gathers", _never)
        self.at_once: Callable[[Line], bool] = getattr(app, "at_once", _never)
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        self.now = self.loop.time()
        """The time as of the last sweep."""
        limits = self.limits
        self._patience = {
            IDLE: limits.idle_seconds,
            HEAD: limits.head_seconds,
            BODY: limits.body_seconds,
            LINGER: limits.linger_seconds,
            CLOSING: limits.closing_seconds,
        }
        self._every = min(1.0, min(self._patience.values()) / 4)
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._held: list[Line] = []
        self.on_quiet: Callable[[], None] | None = None
        """Called once where nothing has been asked for some seconds."""
        self.busy = False
        self._quiet = 0.0

    def __call__(self) -> Connection:
        """A protocol for a new connection."""
        return Connection(self)

    def add(self, connection: Connection) -> None:
        """A connection was made."""
        self.connections.add(connection)
        if self._sweeper is None:
            self.now = self.loop.time()
            self._sweeper = self.loop.call_later(self._every, self._sweep)

    def drop(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def task(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what answers a request."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def hold(self, line: Line) -> None:
        """Sends a line's head at the end of this turn of the loop, if nothing has sent it by then."""
        if not self._held:
            self.loop.call_soon(self._flush)
        self._held.append(line)

    def _flush(self) -> None:
        held, self._held = self._held, []
        for line in held:
            line.flush()

    async def drain(self, seconds: float) -> None:
        """Lets what runs end within `seconds`, then cuts the rest. The caller has stopped accepting."""
        self.draining = True
        deadline = self.loop.time() + seconds
        for connection in list(self.connections):
            connection.close_if_idle()
        await self._until_quiet(deadline)
        self.cut()
        await self._until_quiet(self.loop.time() + _CUT_SECONDS)
        if self._sweeper is not None:
            self._sweeper.cancel()

    def cut(self) -> None:
        """Ends all that runs, now."""
        for connection in list(self.connections):
            connection.transport.abort()
        for task in self.tasks:
            task.cancel()

    async def _until_quiet(self, deadline: float) -> None:
        while self.connections and (left := deadline - self.loop.time()) > 0:
            self._empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), left)
        if self.tasks and (left := deadline - self.loop.time()) > 0:
            await asyncio.wait(self.tasks, timeout=left)

    def _sweep(self) -> None:
        self.now = self.loop.time()
        for connection in list(self.connections):
            patience = self._patience.get(connection.phase)
            if patience is None and connection.paused:
                patience = self.limits.closing_seconds
            if patience is not None and self.now - connection.since > patience:
                connection.late()
        if self.busy:
            self.busy, self._quiet = False, self.now
        elif self._quiet and self.now - self._quiet > _QUIET_SECONDS:
            self._quiet = 0.0
            if self.on_quiet is not None:
                self.on_quiet()
        again = bool(self.connections or self._quiet)
        self._sweeper = self.loop.call_later(self._every, self._sweep) if again else None


def _never(_: object) -> bool:
    """What an application does that knows only ASGI."""
    return False
