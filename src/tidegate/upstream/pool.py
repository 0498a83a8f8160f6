"""Knows which connection carries a request, how one is opened, and when a request may be sent once more.

Nothing of framing (`connection.py`) or of what the requests mean. The gateway and the asynchronous driver
call it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from typing import Any

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import faults
from tidegate.upstream.connect import Connector
from tidegate.upstream.connection import Connection
from tidegate.upstream.http import Request, Timeouts, chunk, may_repeat, proxy_headers, write_head
from tidegate.upstream.proxy import NO_PROXIES, Proxies, Proxy
from tidegate.upstream.response import Response
from tidegate.upstream.url import Address, parse

__all__ = ["Counters", "Pool", "Response"]

_SWEEP_SECONDS = 5.0
_SMALL_BODY = 64 * 1024


@dataclass(frozen=True, slots=True)
class Counters:
    """Connections: opened and used again since the start, and open now."""

    opened: int
    reused: int
    open_now: int


class _Route:
    """The connections to one origin through one proxy. The newest idle one is used first, so that the rest
    can age."""

    __slots__ = ("address", "idle", "open", "proxy", "waiting")

    def __init__(self, address: Address, proxy: Proxy | None) -> None:
        self.address = address
        self.proxy = proxy
        self.idle: list[Connection] = []
        self.open = 0
        self.waiting: deque[asyncio.Future[Connection | None]] = deque()


class Pool:
    """Kept-alive HTTP/1.1 connections, for one event loop.

    `max_per_host` bounds the connections to one scheme, host, port and proxy; a request that finds none free
    waits its turn, for `Timeouts.connect` seconds. `ca_file` is trusted besides the system's authorities
    (SSL_CERT_FILE replaces those). Raises `ValueError` where `ca_file` can't be used.
    """

    def __init__(
        self,
        *,
        timeouts: Timeouts | None = None,
        max_per_host: int = 1000,
        idle_seconds: float = 60,
        ca_file: str | None = None,
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        self._timeouts = timeouts or Timeouts()
        self._max_per_host = max_per_host
        self._idle_seconds = idle_seconds
        self._proxies = proxies
        self._connector = Connector(ca_file)
        self._routes: dict[tuple[str, str, int], _Route] = {}
        self._connections: dict[Connection, _Route] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self.opened = 0
        self.reused = 0

    @property
    def open_now(self) -> int:
        """Connections open now, idle ones included."""
        return len(self._connections)

    @property
    def counters(self) -> Counters:
        """All three counts."""
        return Counters(self.opened, self.reused, self.open_now)

    async def send(self, request: Request, timeouts: Timeouts | None = None, *, again: bool = False) -> Response:
        """Sends a request and returns the answer as soon as its head is there. Any status is an answer.

        A request that met a kept connection which the upstream had just closed is sent once more, on a new one:
        `may_repeat` has the rule. `again`: it is that second sending already, after `send_now`.

        Raises `UpstreamError` (status 504 for a timeout). Cancellation, at any point, closes the connection.
        """
        timeouts = timeouts or self._timeouts
        address = parse(request.url)
        route = self._route(address)
        if again:
            connection = await self._obtain(route, timeouts, fresh=True)
            return await self._exchange(connection, route, address, request, timeouts)
        loop = asyncio.get_running_loop()
        connection = await self._obtain(route, timeouts)
        started = loop.time()
        try:
            return await self._exchange(connection, route, address, request, timeouts)
        except faults.ClosedEarly:
            if not connection.reused or not may_repeat(request, loop.time() - started):
                raise
        connection = await self._obtain(route, timeouts, fresh=True)
        return await self._exchange(connection, route, address, request, timeouts)

    def send_now(
        self, request: Request, listener: Callable[[bool], None], timeouts: Timeouts | None = None
    ) -> Response | None:
        """Sends a request without waiting, where an idle connection is at hand; None where there is none.

        The answer is still to come, its head too: `listener` is called as `Response.listener` says. The body is bytes
        or None. Raises `UpstreamError` for a request that can't be written.
        """
        timeouts = timeouts or self._timeouts
        address = parse(request.url)
        route = self._route(address)
        connection: Connection | None = None
        while route.idle and connection is None and not self._closed:
            connection = route.idle.pop()
            if self._too_old(connection):
                connection.abort()
                connection = None
        if connection is None:
            return None
        body = request.body
        if body is not None and not isinstance(body, bytes):
            raise TypeError("a body that is sent at once is bytes")
        response = self._use_again(connection).begin(request.method, timeouts.read)
        try:
            through = route.proxy if address.scheme == "http" else None
            head = write_head(request, address, proxy_headers(through), absolute=through is not None)
        except BaseException:
            response.abandon()
            raise
        response.listener = listener
        _write_whole(connection, head, body or b"")
        connection.sent()
        response.expect(timeouts.head)
        return response

    @property
    def timeouts(self) -> Timeouts:
        """How long a request waits where it does not say."""
        return self._timeouts

    def beside(self, *, max_per_host: int) -> Pool:
        """A pool of connections of its own that reaches hosts in the same way, for what must not take a place here."""
        made = Pool(
            timeouts=self._timeouts,
            max_per_host=max_per_host,
            idle_seconds=self._idle_seconds,
            proxies=self._proxies,
        )
        made._connector = self._connector
        return made

    async def close(self) -> None:
        """Closes every connection; answers in progress end with `UpstreamError`."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for route in self._routes.values():
            for turn in route.waiting:
                if not turn.done():
                    turn.set_exception(faults.shutting_down())
        for connection in list(self._connections):
            connection.abort(UpstreamError("The gateway is shutting down."))
        await asyncio.sleep(0)  # the loop closes the sockets in its next round

    # --- one request on one connection

    async def _exchange(
        self, connection: Connection, route: _Route, address: Address, request: Request, timeouts: Timeouts
    ) -> Response:
        response = connection.begin(request.method, timeouts.read)
        try:
            through = route.proxy if address.scheme == "http" else None
            head = write_head(request, address, proxy_headers(through), absolute=through is not None)
            body = request.body
            if body is None:
                connection.write(head)
            elif isinstance(body, bytes):
                _write_whole(connection, head, body)
            else:
                connection.write(head)
                await _write_stream(connection, response, body, request.content_length, timeouts.read)
            if not response.stop_sending:
                connection.sent()
            await response.head(timeouts.head)
        except BaseException:
            response.abandon()
            raise
        return response

    # --- which connection

    def _route(self, address: Address) -> _Route:
        key = (address.scheme, address.host, address.port)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route(address, self._proxies.choose(*key))
        return route

    async def _obtain(self, route: _Route, timeouts: Timeouts, *, fresh: bool = False) -> Connection:
        """A connection ready for a request: idle, else a new one, else the next that comes free.

        `fresh` follows a stale connection: the other idle ones have most likely been closed by the upstream
        too.
        """
        while not self._closed:
            while route.idle:
                connection = route.idle.pop()
                if not fresh and not self._too_old(connection):
                    return self._use_again(connection)
                connection.abort()
            if route.open < self._max_per_host:
                route.open += 1
                return await self._open(route, timeouts)
            handed = await self._wait_turn(route, timeouts.connect)
            if handed is None:
                return await self._open(route, timeouts)
            if fresh:
                handed.abort()
            elif not handed.closed:
                return self._use_again(handed)
        raise faults.shutting_down()

    def _use_again(self, connection: Connection) -> Connection:
        connection.reused = True
        self.reused += 1
        return connection

    async def _open(self, route: _Route, timeouts: Timeouts) -> Connection:
        """Opens a connection in a place already taken in `route.open`."""
        connection: Connection | None = None

        def create(peer: str) -> Connection:
            nonlocal connection
            connection = Connection(peer, self._freed, self._lost)
            self._connections[connection] = route
            return connection

        try:
            opened = await self._connector.open(route.address, route.proxy, create, timeouts.connect)
        except BaseException:
            if connection is None:
                self._give_place(route)
            else:
                connection.abort()
            raise
        self.opened += 1
        if self._closed:
            opened.abort()
            raise faults.shutting_down()
        return opened

    async def _wait_turn(self, route: _Route, seconds: float) -> Connection | None:
        """A connection handed on by another request, or None with a place (counted in `route.open`) for a new
        one."""
        turn: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        route.waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                handed = turn.result()
                if handed is None:
                    self._give_place(route)
                elif not handed.closed:
                    self._freed(handed)
            if isinstance(error, TimeoutError):
                raise faults.all_in_use(route.address.name, self._max_per_host, seconds) from None
            raise

    # --- what connections report

    def _freed(self, connection: Connection) -> None:
        route = self._connections[connection]
        connection.idle_since = asyncio.get_running_loop().time()
        while route.waiting:
            turn = route.waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        route.idle.append(connection)
        if self._sweeper is None and not self._closed:
            self._sweep_later()

    def _lost(self, connection: Connection) -> None:
        route = self._connections.pop(connection)
        if connection in route.idle:
            route.idle.remove(connection)
        self._give_place(route)

    def _give_place(self, route: _Route) -> None:
        """A place of the route is free: the next in line opens a connection in it."""
        while route.waiting:
            turn = route.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        route.open -= 1

    # --- idle connections

    def _too_old(self, connection: Connection) -> bool:
        limit = self._idle_seconds
        if connection.keep_alive_seconds is not None:
            limit = min(limit, connection.keep_alive_seconds - 1)  # a second for the request to get there
        return asyncio.get_running_loop().time() - connection.idle_since > limit

    def _sweep_later(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(min(_SWEEP_SECONDS, self._idle_seconds), self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        for route in self._routes.values():
            for connection in [idle for idle in route.idle if self._too_old(idle)]:
                connection.abort()
        if any(route.idle for route in self._routes.values()):
            self._sweep_later()


def _write_whole(connection: Connection, head: bytes, body: bytes) -> None:
    if len(body) <= _SMALL_BODY:  # one packet, one system call
        connection.write(head + body)
    else:
        connection.write(head)
        connection.write(body)


async def _write_stream(
    connection: Connection, response: Response, body: AsyncIterable[bytes], length: int | None, seconds: float
) -> None:
    """Sends a streamed body no faster than it is taken; stops where the upstream has already refused, even while the
    body's next piece is still to come: its sender may be waiting for that very refusal."""
    sent = 0
    pieces = aiter(body)
    while True:
        coming: asyncio.Future[bytes | None] = asyncio.ensure_future(anext(pieces, None))
        either: set[asyncio.Future[Any]] = {coming, response.stopping()}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not coming.done():
                coming.cancel()
        if response.stop_sending:
            await asyncio.gather(coming, return_exceptions=True)
            return
        piece = coming.result()
        if piece is None:
            break
        sent += len(piece)
        if length is not None and sent > length:
            raise faults.body_length(longer=True)
        if piece:
            connection.write(piece if length is not None else chunk(piece))
            await response.drain(connection, seconds)
    if length is not None and sent < length and not response.stop_sending:
        raise faults.body_length(longer=False)
    if length is None:
        connection.write(b"0\r\n\r\n")
