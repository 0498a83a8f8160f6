"""Knows one answer as its reader sees it: a head, a body in pieces, an end or a cut.

The gateway reads it; `connection.py` fills it; `pool.py` makes it wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import faults
from tidegate.upstream.http import Headers

if TYPE_CHECKING:
    from tidegate.upstream.connection import Connection
    from tidegate.upstream.framing import Answers


class Response:
    """An answer. Its head is there; its body is read piece by piece, by one task at a time, or taken by a listener that
    is called when there is more.

    `headers` are as the upstream sent them, order and case kept. Trailers are read and dropped (RFC 9110
    6.5.1).
    """

    __slots__ = (
        "_complete", "_connection", "_error", "_length", "_pieces", "_read_seconds", "_size", "_stop", "_waiter",
        "headers", "http_version", "listener", "reason", "status",
    )  # fmt: skip

    status: int
    reason: bytes
    headers: Headers
    http_version: str

    def __init__(self, connection: Connection, read_seconds: float) -> None:
        self.status = 0
        self.reason = b""
        self.headers = []
        self.http_version = ""
        self.listener: Callable[[bool], None] | None = None
        """Called in place of waking a task: with True when there is news (a head, a piece, an end, a cut), with False
        when the time given to `expect` is up."""
        self._connection: Connection | None = connection
        self._read_seconds = read_seconds
        self._pieces: list[bytes] = []
        self._size = 0
        self._length: int | None = None
        self._complete = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._stop: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """The next piece of the body: all that has come since the last one; `b""` at the end.

        Raises `UpstreamError` where the body was cut before its end or nothing came for `Timeouts.read`
        seconds; what came before is delivered first.
        """
        while not self._pieces:
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait(self._read_seconds, faults.SENT_NOTHING)
        return self._taken()

    def take(self) -> bytes | None:
        """`read` for listeners: None where there is nothing yet."""
        if self._pieces:
            return self._taken()
        if self._error is not None:
            raise self._error
        return b"" if self._complete else None

    def expect(self, seconds: float) -> None:
        """Has the listener called when nothing has come for so long. It says what that means: see `late`."""
        if self._connection is not None:
            self._connection.expect(seconds)

    def late(self, seconds: float) -> None:
        """The upstream has taken too long: the connection is closed, and the answer ends with an error."""
        connection = self._connection
        if connection is not None:
            failure = faults.SENT_NOTHING if self.status else faults.BEGAN_NOT
            connection.abort(faults.timed_out(connection.peer, failure, seconds))

    def pause(self) -> None:
        """The reader is slow: the upstream is read no further until `resume`."""
        if self._connection is not None:
            self._connection.pause_reading()

    def resume(self) -> None:
        """The reader has caught up."""
        if self._connection is not None:
            self._connection.resume_reading()

    def _taken(self) -> bytes:
        pieces = self._pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._size = 0
        if self._connection is not None and self.listener is None:
            self._connection.resume_reading()
        return piece

    async def read_all(self, limit: int) -> bytes:
        """The rest of the body. Raises `UpstreamError` where it is cut, or longer than `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        too_long = self._length is not None and self._length > limit
        while not too_long and (piece := await self.read()):
            pieces.append(piece)
            size += len(piece)
            too_long = size > limit
        if too_long:
            await self.close()
            raise faults.too_long(limit)
        return b"".join(pieces)

    async def close(self) -> None:
        """Done with it, or no longer wanted: an unfinished body closes the connection, which cancels the
        upstream."""
        self._pieces = []
        self._size = 0
        self.abandon()

    def abandon(self) -> None:
        """`close` for places that can't await."""
        if self._connection is not None:
            self._connection.abort()

    async def head(self, seconds: float) -> None:
        """Waits for status and headers. For the pool."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait(seconds, faults.BEGAN_NOT)

    async def drain(self, connection: Connection, seconds: float) -> None:
        """Waits until the upstream has taken enough of a streamed body. For the pool."""
        while connection.write_paused and not self.stop_sending:
            await self._wait(seconds, faults.TOOK_NOTHING)

    @property
    def stop_sending(self) -> bool:
        """The upstream refused or ended before it had the whole request: the rest need not be sent."""
        return self.status >= 300 or self._complete or self._error is not None

    def stopping(self) -> asyncio.Future[None]:
        """Done once the rest of a streamed body need not be sent. For the pool."""
        if self._stop is None:
            self._stop = asyncio.get_running_loop().create_future()
            self._tell_stop()
        return self._stop

    def _tell_stop(self) -> None:
        if self._stop is not None and not self._stop.done() and self.stop_sending:
            self._stop.set_result(None)

    async def _wait(self, seconds: float, failure: str) -> None:
        """Sleeps until there is news. Cancellation and the timeout close the connection."""
        connection = self._connection
        if connection is None or self._waiter is not None:
            raise RuntimeError("a response is read by one task at a time")
        waiter = connection.sleep(seconds)
        self._waiter = waiter
        try:
            in_time = await waiter
        except asyncio.CancelledError:
            self.abandon()
            raise
        finally:
            self._waiter = None
        if not in_time and self._connection is not None:
            connection.abort(faults.timed_out(connection.peer, failure, seconds))

    def wake(self, in_time: bool = True) -> None:
        """Tells whoever waits that there is news. For the connection."""
        if self.listener is not None:
            self.listener(in_time)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(in_time)

    def filled(self, answers: Answers) -> None:
        """The head has come. For the connection."""
        self.status, self.reason = answers.status, answers.reason
        self.headers, self.http_version = answers.headers, answers.http_version
        self._length = answers.length
        self._tell_stop()

    def add(self, pieces: list[bytes]) -> int:
        """Pieces of the body have come; returns the bytes that wait. For the connection."""
        if self._pieces:
            self._pieces += pieces
        else:
            self._pieces = pieces
        for piece in pieces:
            self._size += len(piece)
        return self._size

    def ended(self, error: UpstreamError | None = None) -> None:
        """The body is whole, or `error` says why it never will be. The connection is no longer this
        response's."""
        self._complete = error is None
        self._error = error
        self._connection = None
        self._tell_stop()
        self.wake()
