"""`Client` on aiohttp, for who prefers a library to the gateway's own pool (`upstream.http = "aiohttp"`).

Knows answers and what their faults are called; which connection carries a request is `library_wire.py`'s. Imports
aiohttp, so it is imported only where it was chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from weakref import WeakSet

import aiohttp
from aiohttp.http_exceptions import LineTooLong
from yarl import URL

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import faults
from tidegate.upstream.client import ListenedAnswer
from tidegate.upstream.connect import Connector
from tidegate.upstream.http import (
    HEAD_LIMIT,
    Framing,
    Headers,
    Request,
    Timeouts,
    may_repeat,
    proxy_headers,
    read_framing,
    write_head,
)
from tidegate.upstream.library_wire import Attempt, Connections, Handler, Streamed, current
from tidegate.upstream.pool import Counters
from tidegate.upstream.proxy import NO_PROXIES, Proxies
from tidegate.upstream.url import Address, parse

_READ_BUFFER: Final = 128 * 1024
"""Bytes; aiohttp pauses the upstream where twice as many wait for their reader."""
_MOST_HEADERS: Final = 256
_ADDED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add of its own."""
_UNTIMED: Final = aiohttp.ClientTimeout()
"""Times are kept here: aiohttp has none for the head that is not also one for each piece."""


class AiohttpPool:
    """Kept-alive HTTP/1.1 connections of an aiohttp session, for one event loop. Takes what `Pool` takes, and raises
    `ValueError` where `ca_file` can't be used."""

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
        self._connections: Connections | None = None
        self._session: aiohttp.ClientSession | None = None
        self._answers: WeakSet[AiohttpAnswer] = WeakSet()
        self._closed = False

    @property
    def timeouts(self) -> Timeouts:
        """How long a request waits where it does not say."""
        return self._timeouts

    @property
    def counters(self) -> Counters:
        """All three counts."""
        made = self._connections
        return Counters(0, 0, 0) if made is None else Counters(made.opened, made.reused, len(made.open))

    @property
    def open_now(self) -> int:
        """Connections open now, idle ones included."""
        return self.counters.open_now

    async def send(self, request: Request, timeouts: Timeouts | None = None, *, again: bool = False) -> AiohttpAnswer:
        """See `Client.send`. Nothing goes out by `send_now` here, so nothing goes out `again`."""
        timeouts = timeouts or self._timeouts
        address = parse(request.url)
        write_head(request, address, [])  # refuses what would be more than one request
        headers = _text(request.headers)
        proxy = self._proxies.choose(address.scheme, address.host, address.port)
        attempt = Attempt(request, address, proxy, timeouts)
        try:
            return await self._attempt(request, attempt, headers)
        except faults.ClosedEarly:
            if not attempt.reused or not may_repeat(request, asyncio.get_running_loop().time() - attempt.connected):
                raise
        return await self._attempt(request, Attempt(request, address, proxy, timeouts, fresh=True), headers)

    def send_now(
        self, request: Request, listener: Callable[[bool], None], timeouts: Timeouts | None = None
    ) -> ListenedAnswer | None:
        """None: aiohttp sends in a task of its own."""
        return None

    def beside(self, *, max_per_host: int) -> AiohttpPool:
        """See `Client.beside`."""
        made = AiohttpPool(
            timeouts=self._timeouts,
            max_per_host=max_per_host,
            idle_seconds=self._idle_seconds,
            proxies=self._proxies,
        )
        made._connector = self._connector
        return made

    async def close(self) -> None:
        """See `Client.close`."""
        self._closed = True
        for answer in list(self._answers):
            answer.end(UpstreamError("The gateway is shutting down."))
        if self._session is not None:
            await self._session.close()
        if self._connections is not None:
            self._connections.open.clear()

    # --- one request on one connection

    def _opened(self) -> aiohttp.ClientSession:
        """The session, made within the loop that uses it."""
        if self._session is None:
            self._connections = Connections(max_per_host=self._max_per_host, idle_seconds=self._idle_seconds)
            self._session = session = aiohttp.ClientSession(
                connector=self._connections,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_ADDED,
                auto_decompress=False,
                timeout=_UNTIMED,
                read_bufsize=_READ_BUFFER,
                max_line_size=HEAD_LIMIT,
                max_field_size=HEAD_LIMIT,
                max_headers=_MOST_HEADERS,
            )
            session._retry_connection = (
                False  # it repeats what failed on a new connection, too, and does so at any time
            )
        return self._session

    async def _attempt(self, request: Request, attempt: Attempt, headers: list[tuple[str, str]]) -> AiohttpAnswer:
        if self._closed:
            raise faults.shutting_down()
        answer: AiohttpAnswer | None = None
        try:
            async with asyncio.timeout(attempt.timeouts.connect) as limit:
                attempt.limit = limit
                response = await self._exchange(self._opened(), request, attempt, headers)
                attempt.answered()
                answer = _answer(response, attempt)
                if isinstance(attempt.body, Streamed):
                    # Whoever gives the body its pieces may rely on it that no more are asked for.
                    attempt.body.unwanted = answer.status >= 300
                    await attempt.body.done.wait()
                    if attempt.body.failure is not None:
                        raise attempt.body.failure
        except BaseException as error:
            if answer is not None:
                answer.abandon()
            elif attempt.handler is not None:
                attempt.handler.abort()
            if not isinstance(error, Exception):
                raise
            raise self._fault(error, attempt) from None
        finally:
            attempt.over()
        self._answers.add(answer)
        return answer

    async def _exchange(
        self, session: aiohttp.ClientSession, request: Request, attempt: Attempt, headers: list[tuple[str, str]]
    ) -> aiohttp.ClientResponse:
        address, proxy = attempt.address, attempt.proxy
        secure = address.scheme == "https"
        through = _text(proxy_headers(proxy))
        if isinstance(attempt.body, Streamed) and request.content_length is not None:
            headers = [*headers, ("Content-Length", str(request.content_length))]
        current.set(attempt)
        return await session.request(
            request.method,
            _url(address),
            headers=headers if secure else through + headers,
            data=attempt.body,
            allow_redirects=False,
            ssl=self._connector.tls if secure else True,
            proxy=None if proxy is None else f"http://{proxy.name}",
            proxy_headers=through if secure and proxy is not None else None,
        )

    def _fault(self, error: Exception, attempt: Attempt) -> Exception:
        """What to raise for what aiohttp raised."""
        body = attempt.body
        if isinstance(body, Streamed) and body.failure is not None:
            return body.failure
        if isinstance(error, UpstreamError):
            return error
        if self._closed:
            return faults.shutting_down()
        if isinstance(error, TimeoutError):
            return self._late(attempt)
        return _fault(error, attempt)

    def _late(self, attempt: Attempt) -> UpstreamError:
        if attempt.handler is not None:
            return faults.timed_out(attempt.peer, faults.BEGAN_NOT, attempt.timeouts.head)
        if attempt.opening:
            return faults.connect_timed_out(attempt.peer, attempt.timeouts.connect)
        return faults.all_in_use(attempt.address.name, self._max_per_host, attempt.timeouts.connect)


class AiohttpAnswer:
    """See `Answer`."""

    def __init__(
        self, response: aiohttp.ClientResponse, headers: Headers, framing: Framing, handler: Handler, attempt: Attempt
    ) -> None:
        self.status = response.status
        self.headers = headers
        self._response = response
        self._content = response.content
        self._handler = handler
        self._length = framing.length
        self._peer = attempt.peer
        self._seconds = attempt.timeouts.read
        self._error: UpstreamError | None = None
        self._dropped = False

    async def read(self) -> bytes:
        """See `Answer.read`."""
        if self._error is not None:
            raise self._error
        content = self._content
        try:
            if content.exception() is None and not self._dropped:
                piece = content.read_nowait()
                if not piece and not content.at_eof():
                    async with asyncio.timeout(self._seconds):
                        piece = await content.readany()
                if piece:
                    return piece
        except asyncio.CancelledError:
            self.abandon()
            raise
        except TimeoutError:
            self.end(faults.timed_out(self._peer, faults.SENT_NOTHING, self._seconds))
        except (aiohttp.ClientError, RuntimeError):
            pass  # it is told below
        return self._last()

    def _last(self) -> bytes:
        """What is left where aiohttp's reader gives no more: what a cut left unread, then the end or an error."""
        if self._error is not None:
            raise self._error
        handler, content = self._handler, self._content
        mine = handler.content is content
        if mine and handler.rest:
            piece, handler.rest = handler.rest, b""
            return piece
        if mine and handler.broken is not None:
            self._error = _broken(self._peer, handler.broken)
        elif content.exception() is not None or (mine and handler.reset):
            self._error = faults.cut(self._peer, headed=True)
        if self._error is not None:
            raise self._error
        return b""

    async def read_all(self, limit: int) -> bytes:
        """See `Answer.read_all`."""
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
        """See `Answer.close`."""
        self.abandon()

    def abandon(self) -> None:
        """See `Answer.abandon`."""
        self._dropped = True
        self.end(faults.abandoned(self._peer))

    def end(self, reason: UpstreamError) -> None:
        """Closes the connection, if the answer is not whole, which it then never will be."""
        if self._response.connection is None:
            return
        self._error = self._error or reason
        self._response.close()


def _answer(response: aiohttp.ClientResponse, attempt: Attempt) -> AiohttpAnswer:
    """Checks an answer's head as the gateway's own pool does. Raises `UpstreamError`."""
    handler = attempt.handler
    assert handler is not None
    headers = list(response.raw_headers)
    try:
        framing = read_framing(headers)
        if response.status == 101:
            raise ValueError("switched protocols, which was not asked for")
        if response.status < 200 or response.version is None or response.version.major != 1:
            raise ValueError("does not answer in valid HTTP/1.1")
    except ValueError as fault:
        raise faults.broken(attempt.peer, fault) from None
    if framing.keep_alive_seconds is not None:
        handler.keep_alive_seconds = framing.keep_alive_seconds
    return AiohttpAnswer(response, headers, framing, handler, attempt)


def _fault(error: Exception, attempt: Attempt) -> UpstreamError:
    peer = attempt.peer
    if isinstance(error, aiohttp.ClientHttpProxyError) and attempt.proxy is not None:
        return faults.tunnel_refused(attempt.proxy.name, attempt.address.name, error.status)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return faults.connect_failed(peer, error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return faults.connect_failed(peer, error.os_error)
    if isinstance(error, aiohttp.ClientResponseError):
        return _broken(peer, error)
    if isinstance(error, OSError | aiohttp.ClientConnectionError):
        touched = attempt.handler is not None and attempt.handler.touched
        return faults.cut(peer, headed=False) if touched else faults.closed_early(peer)
    return UpstreamError("The request can't be sent by aiohttp. Check its headers for control characters.")


def _broken(peer: str, error: BaseException) -> UpstreamError:
    """Of an answer that aiohttp can't read. Its own words may quote what it read."""
    fault: BaseException | None = error
    while fault is not None:
        if isinstance(fault, LineTooLong):
            return faults.broken(peer, f"sent more than {HEAD_LIMIT} bytes of headers")
        fault = fault.__cause__
    return faults.broken(peer, "does not answer in valid HTTP/1.1")


def _text(headers: Headers) -> list[tuple[str, str]]:
    """Headers as aiohttp takes them. Raises `UpstreamError` for one whose bytes it could not send as they are."""
    try:
        return [(name.decode(), value.decode()) for name, value in headers]
    except UnicodeDecodeError:
        raise UpstreamError("A request header is not in UTF-8, which aiohttp can't send. Check the client.") from None


@lru_cache(maxsize=256)
def _url(address: Address) -> URL:
    """The address as it was written: aiohttp must not quote it anew."""
    return URL(f"{address.scheme}://{address.authority.decode()}{address.path.decode()}", encoded=True)
