"""aiohttp's connections as `library.py` needs them: which one carries a request, what came on it, how a body is sent.

Knows aiohttp's connector and protocol classes, whose hooks it overrides; nothing of answers. `library.py` calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

from tidegate.upstream import faults
from tidegate.upstream.connect import peer_name, tune
from tidegate.upstream.http import Request, Timeouts
from tidegate.upstream.proxy import Proxy
from tidegate.upstream.url import Address

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace


class Attempt:
    """One sending of a request: on which connection, and until when what is waited for."""

    def __init__(
        self, request: Request, address: Address, proxy: Proxy | None, timeouts: Timeouts, *, fresh: bool = False
    ) -> None:
        self.address, self.proxy, self.timeouts = address, proxy, timeouts
        self.fresh = fresh
        """It must not go out on a connection that has been used."""
        self.peer = peer_name(address, proxy)
        self.body: Whole | Streamed | None = body_of(request, self)
        self.limit: asyncio.Timeout | None = None
        self.opening = False
        self.handler: Handler | None = None
        self.reused = False
        self.connected = 0.0

    def connects(self, handler: Handler) -> None:
        """It has its connection. The time for the head begins once a streamed body is out."""
        handler.begin()
        self.handler = handler
        self.connected = asyncio.get_running_loop().time()
        self._expect(None if isinstance(self.body, Streamed) else self.timeouts.head)

    def sent(self) -> None:
        """The streamed body is out whole."""
        self._expect(self.timeouts.head)

    def answered(self) -> None:
        """The head is there."""
        self._expect(None)

    def over(self) -> None:
        """Lets go of the body: the connection keeps the context that it was opened in, and so this."""
        self.body = self.limit = None

    def _expect(self, seconds: float | None) -> None:
        if self.limit is not None and not self.limit.expired():
            when = None if seconds is None else asyncio.get_running_loop().time() + seconds
            self.limit.reschedule(when)


current: Final[ContextVar[Attempt]] = ContextVar("tidegate_attempt")
"""Set by the task that sends; aiohttp connects in that same task."""


class Handler(ResponseHandler):
    """aiohttp's protocol of one connection, which also tells what came on it and saves what a cut would swallow."""

    def __init__(self, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._connections = connections
        self.used = False
        self.touched = False
        """A byte has come since the request was sent."""
        self.content: StreamReader | None = None
        """The body of the newest answer."""
        self.rest = b""
        """What of it was unread when the connection was lost: aiohttp's reader gives its error first."""
        self.reset = False
        """It was lost by an error: no end of a body that has no length."""
        self.broken: BaseException | None = None
        self.keep_alive_seconds: float | None = None
        """How long the upstream said it keeps it open when idle."""
        self._heard = 0.0

    def begin(self) -> None:
        """A request goes out on it. What becomes of its answer says nothing of the one before, which may be unread."""
        self.used = True
        self.touched = self.reset = False
        self.content, self.rest, self.broken = None, b"", None

    @property
    def stale(self) -> bool:
        """Whether it must not carry another request: bytes came that nothing asked for, or its time is over."""
        if self.keep_alive_seconds is not None:
            idle = self._loop.time() - self._heard
            if idle > self.keep_alive_seconds - 1:  # a second for the request to get there
                return True
        return self.should_close

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self.touched = True
        self._heard = self._loop.time()
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called with each answer's head and body."""
        self.content = data[1]
        super().feed_data(data, size)

    def set_exception(self, exc: Any, *cause: BaseException) -> None:
        """Called where no more can be read. aiohttp leaves the reader of a broken body waiting."""
        super().set_exception(exc, *cause)
        if isinstance(exc, HttpProcessingError):
            self.broken = cause[0] if cause else exc
            self._save()
            if self.content is not None and not self.content.is_eof():
                self.content.set_exception(aiohttp.ClientPayloadError())

    def close(self) -> None:
        """Ends it at once. aiohttp's would first send what is still unsent, to whoever takes nothing any more."""
        self.abort()

    def abort(self) -> None:
        """Ends it at once."""
        self._connections.open.discard(self)
        super().abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the loop."""
        self._connections.open.discard(self)
        self._save()
        if self.content is not None and not self.content.is_eof():
            self.reset = exc is not None
        super().connection_lost(exc)

    def _save(self) -> None:
        content = self.content
        if content is not None and not content.is_eof() and content.exception() is None:
            try:
                self.rest += content.read_nowait()
            except RuntimeError:
                pass  # somebody waits for it, so there is nothing


class Connections(aiohttp.TCPConnector):
    """aiohttp's pool, which also counts, and gives out no connection that must not carry another request."""

    def __init__(self, *, max_per_host: int, idle_seconds: float) -> None:
        super().__init__(
            limit=0,
            limit_per_host=max_per_host,
            keepalive_timeout=idle_seconds,
            resolver=aiohttp.ThreadedResolver(),
        )
        self._factory: Callable[[], ResponseHandler] = partial(Handler, self, loop=self._loop)  # type: ignore[assignment]
        self.open: set[Handler] = set()
        self.opened = 0
        self.reused = 0

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own signature
    ) -> Connection:
        """Called by the session for each request."""
        attempt = current.get()
        while True:
            connection = await super().connect(req, traces, timeout)
            handler = connection.protocol
            assert isinstance(handler, Handler)
            if not handler.used:
                break
            if not attempt.fresh and not handler.stale:
                self.reused += 1
                attempt.reused = True
                break
            connection.close()
        attempt.connects(handler)
        return connection

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own signature
    ) -> ResponseHandler:
        """Called where no idle connection is at hand and there is a place for a new one."""
        current.get().opening = True
        handler = await super()._create_connection(req, traces, timeout)
        assert isinstance(handler, Handler)
        if handler.transport is not None:
            tune(handler.transport.get_extra_info("socket"))
        self.opened += 1
        self.open.add(handler)
        return handler


class Whole(payload.Payload):
    """A body of bytes. aiohttp's own warns of large ones."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """For aiohttp's traces, of which there are none."""
        raise TypeError("a body is not read back")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Sends it."""
        await writer.write(self._value)


class _Refused(Exception):
    """The upstream has refused: the rest of the body need not be sent."""


class Streamed(payload.Payload):
    """A body that comes in pieces. Breaks off where it does not keep its length, and where nothing more is wanted."""

    _autoclose = True

    def __init__(self, pieces: AsyncIterable[bytes], length: int | None, attempt: Attempt) -> None:
        super().__init__(pieces)
        self._pieces, self._length, self._attempt = pieces, length, attempt
        self.failure: Exception | None = None
        """Why it broke off by itself."""
        self.done = asyncio.Event()
        """No more of it will be read."""
        self.unwanted = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """For aiohttp's traces, of which there are none."""
        raise TypeError("a body is not read back")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Sends it no faster than it is taken. In a task of aiohttp's."""
        try:
            await self._write(writer)
            self._attempt.sent()
        except (_Refused, asyncio.CancelledError):
            raise
        except Exception as failure:
            self.failure = failure
            raise
        finally:
            self._consumed = True
            self.done.set()

    async def _write(self, writer: AbstractStreamWriter) -> None:
        sent = 0
        async for piece in self._pieces:
            if self.unwanted:
                raise _Refused
            sent += len(piece)
            if self._length is not None and sent > self._length:
                raise faults.body_length(longer=True)
            if piece:
                await self._write_piece(writer, piece)
        if self._length is not None and sent < self._length:
            raise faults.body_length(longer=False)

    async def _write_piece(self, writer: AbstractStreamWriter, piece: bytes) -> None:
        seconds = self._attempt.timeouts.read
        try:
            async with asyncio.timeout(seconds):
                await writer.write(piece)
        except TimeoutError:
            raise faults.timed_out(self._attempt.peer, faults.TOOK_NOTHING, seconds) from None
        except (OSError, aiohttp.ClientError):
            raise _Refused from None  # the connection is lost: what is read on it tells how


def body_of(request: Request, attempt: Attempt) -> Whole | Streamed | None:
    """The request's body as aiohttp takes it."""
    body = request.body
    if not body:
        return None
    if isinstance(body, bytes):
        return Whole(body)
    return Streamed(body, request.content_length, attempt)
