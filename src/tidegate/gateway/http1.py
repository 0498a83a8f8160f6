"""HTTP/1.1 for clients: a protocol for each connection, which reads requests and hands them over in order.

Knows connections and their timeouts; the grammar is httptools', what else a head must be `http1_framing`'s. Called by
the loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import httptools

from tidegate.gateway.arrival import Arrival, next_id
from tidegate.gateway.http1_asgi import Exchange, fail
from tidegate.gateway.http1_framing import (
    CONTINUE,
    HEAD_LIMIT,
    TARGET_LIMIT,
    Refused,
    error_answer,
    expects,
    lower_name,
    read_head,
    write_head,
)
from tidegate.gateway.http1_line import Application, AsgiApplication, Line
from tidegate.upstream.http import Headers

access = logging.getLogger("tidegate.access")

SKIPPED: Final = 1 << 20
"""Bytes of a body nobody wants that are taken in after its answer, so that the connection can be kept."""

HIGH_WATER: Final = 64 * 1024
"""Bytes that may wait: of an answer for a slow client, and of a body for the application."""

_CUT_SECONDS: Final = 1.0
"""For what was cut to notice."""

IDLE, HEAD, BODY, ANSWER, LINGER, CLOSING = range(6)
"""What a connection waits for: a request, the rest of its head, of its body, the application, the client's close."""


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
    """For the next bytes of the last answer to be taken."""


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
            if patience is not None and self.now - connection.since > patience:
                connection.late()
        self._sweeper = self.loop.call_later(self._every, self._sweep) if self.connections else None


class Connection(asyncio.Protocol):
    """One client's connection. `_line` is the request whose turn it is, `_incoming` the one that is being read."""

    __slots__ = (
        "_advancing", "_direct", "_eof", "_fault", "_field_bytes", "_fields", "_hub", "_incoming", "_last",
        "_line", "_parser", "_read_paused", "_target", "_unframed", "_unsent", "_waiting",
        "paused", "phase", "since", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, hub: Http1) -> None:
        self._hub = hub
        self._parser: httptools.HttpRequestParser | None = None
        self._line: Line | None = None
        self._incoming: Line | None = None
        self._waiting: deque[Line] = deque()
        self._fields: Headers = []
        self._field_bytes = 0
        self._target = b""
        self._unframed = 0  # bytes since the last one of a body: heads, sizes of chunks, trailers
        self._direct = 0  # bytes of the body still to come that need no parser
        self._last = False  # nothing that comes after the incoming request is read
        self._fault: Refused | None = None
        self._eof = self._advancing = self._read_paused = False
        self._unsent = 0
        self.paused = False
        self.phase = IDLE
        self.since = hub.now

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        self._parser = httptools.HttpRequestParser(self)
        self._hub.add(self)
        self.since = self._hub.now
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._hub.draining:
            self._close()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self.phase >= LINGER or self._fault is not None:
            return  # it is to end; the client may not have noticed
        line = self._line
        reading = line is not None and line.handed and not line.complete
        if self._direct:
            data = self._read_directly(data)
        if data:
            self._feed(data)
        if reading and line is not None:
            self._read_on(line)
        self._advance()
        self._settle()

    def _read_on(self, line: Line) -> None:
        """More of a body has come whose request was handed over."""
        if not line.over:
            if line.on_more is not None:
                line.on_more()
        elif line is not self._line:
            pass
        elif line.complete:
            self._next()
        elif line.room < 0:
            self._linger()

    def eof_received(self) -> bool:
        """Called by the loop: the client will send no more. Whether it may still be answered."""
        line = self._line
        if line is None or line.over or self.phase >= LINGER:
            return False
        if line.begun or not line.complete:  # it has left within its request or within the answer
            self._line = None
            self.transport.abort()
            line.gone()
            return False
        self._eof = True
        if line.eleven:
            # It may have left, or wait for its answer: only a client that has left refuses to be told anything. Every
            # client of HTTP/1.1 passes over interim answers (RFC 9110 section 15.2).
            self.transport.write(CONTINUE)
            self._look(line, 0.02)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._parser = None
        self._waiting.clear()
        self.phase = CLOSING
        self._hub.drop(self)
        line, self._line, self._incoming = self._line, None, None
        if line is not None:
            line.gone()

    def pause_writing(self) -> None:
        """Called by the loop: the client is slow."""
        self.paused = True

    def resume_writing(self) -> None:
        """Called by the loop."""
        self.paused = False
        line = self._line
        if line is not None and line.on_resume is not None and not line.over:
            line.on_resume()

    # --- reading

    def _feed(self, data: bytes) -> None:
        self._unframed += len(data)
        while data:
            if self._last and self._incoming is None:
                return
            parser = self._parser
            if parser is None:
                return
            try:
                parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as offer:  # not taken up: what follows is HTTP still
                data = data[offer.args[0] :] if self._incoming is None else b""
            except httptools.HttpParserError as error:
                if self._fault is not None:
                    self._broken(self._fault)
                elif not (self._last and self._incoming is None):
                    self._broken(_unreadable(error))
                return
        if self._unframed > HEAD_LIMIT:
            self._broken(_too_large())

    def _read_directly(self, data: bytes) -> bytes:
        """The rest of a body of known length that came in pieces; returns what comes after it."""
        line, left = self._incoming, self._direct
        assert line is not None
        if len(data) < left:
            line.add(data)
            self._direct = left - len(data)
            return b""
        line.add(data[:left])
        line.complete = True
        self._direct = self._unframed = 0
        self._incoming = None
        self._parser = httptools.HttpRequestParser(self)
        return data[left:]

    # --- the parser calls these, for all requests in what was fed

    def on_message_begin(self) -> None:
        """A request begins."""
        self._fields = []
        self._field_bytes = 0
        self._target = b""

    def on_url(self, target: bytes) -> None:
        """The target, in pieces where the line came so."""
        self._target += target
        if len(self._target) > TARGET_LIMIT:
            self._refuse_within(Refused(414, "target_too_long", f"The target is longer than {TARGET_LIMIT} bytes."))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or a trailer."""
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > HEAD_LIMIT:
            self._refuse_within(_too_large())
        self._fields.append((lower_name(name), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """The head is there."""
        parser = self._parser
        assert parser is not None
        self._unframed = 0
        version = parser.get_http_version()
        fields, self._fields = self._fields, []
        try:
            arrival = read_head(parser.get_method(), self._target, version, fields)
            waits = expects(arrival, version)
        except Refused as refused:
            self._fields = fields
            self._refuse_within(refused)
            return
        keep = parser.should_keep_alive()
        self._last = not keep
        line = Line(self, arrival, eleven=version == "1.1", keep=keep, expects=waits)
        self._incoming = line
        if self._line is None:
            self._line = line
        else:
            self._waiting.append(line)

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._unframed = 0
        if self._incoming is not None:
            self._incoming.add(piece)

    def on_message_complete(self) -> None:
        """The request ends. Trailers are dropped (RFC 9110 section 6.5.1 allows it)."""
        self._unframed = 0
        self._target = b""
        self._fields = []
        if self._incoming is not None:
            self._incoming.complete = True
            self._incoming = None

    def _refuse_within(self, refused: Refused) -> None:
        self._fault = refused
        raise refused

    # --- whose turn it is

    def _advance(self) -> None:
        """Hands over the request whose turn it is, as far as that can be done now."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while (line := self._line) is not None and not line.handed and self._hand(line):
                pass
        finally:
            self._advancing = False

    def _hand(self, line: Line) -> bool:
        """Gives a request to the application; False where its body is still to come."""
        limit = self._hub.limits.body_bytes
        try:
            if not line.asked:
                line.asked = True
                line.gathered = (line.arrival.length or 0) <= limit and self._hub.gathers(line.arrival)
            if line.gathered and line.size <= limit:
                if not line.complete:
                    self.wanted(line)
                    return False
                line.gather()
                line.handed = True
                if self._hub.at_once(line):
                    return True
        except Exception as error:
            line.handed = True
            fail(line, error)
            return True
        line.handed = True
        self._hub.task(Exchange(line).run(self._hub.app))
        return True

    def _settle(self) -> None:
        """What is waited for now, and whether more may be read."""
        if self.phase >= LINGER:
            return
        line, incoming = self._line, self._incoming
        if incoming is not None and not self._direct and self._fault is None:
            length = incoming.arrival.length
            if length is not None and length > incoming.size:
                self._direct = length - incoming.size
                self._parser = None
        full = incoming is not None and incoming.handed and incoming.untaken > HIGH_WATER
        self._pause_reading(full or bool(self._waiting))
        if line is None:
            if self._target or self._fields:
                if self.phase != HEAD:
                    self.phase, self.since = HEAD, self._hub.now
            elif self.phase != IDLE:
                self.phase, self.since = IDLE, self._hub.now
        elif line.complete or line.expects or self._read_paused:
            self.phase = ANSWER
        else:
            self.phase, self.since = BODY, self._hub.now

    def _pause_reading(self, pause: bool) -> None:
        if pause != self._read_paused and not self._eof and not self.transport.is_closing():
            self._read_paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # --- the line's side

    def keeps(self, line: Line) -> bool:
        """Whether the connection can carry another request after this one's answer."""
        skipped = line.complete or (not line.expects and (line.arrival.length or 0) - line.size <= SKIPPED)
        return skipped and not self._hub.draining and (not self._eof or bool(self._waiting))

    def hold(self, line: Line) -> None:
        """A head waits for the first piece, no longer than this turn of the loop."""
        self._hub.loop.call_soon(line.flush)

    def taken(self, line: Line) -> None:
        """The application has taken some of the body."""
        if self._read_paused and line is self._incoming:
            self._settle()

    def wanted(self, line: Line) -> None:
        """The application waits for the body."""
        if line.expects:
            line.expects = False
            if line.size == 0 and not line.complete and not line.begun:
                self.transport.write(CONTINUE)
            self._settle()

    def ended(self, line: Line) -> None:
        """The answer has ended properly: the next request's turn."""
        if not line.complete:
            if line.keep and not self._hub.draining:
                line.drop(SKIPPED)
                self._settle()
            else:
                self._linger()
        elif line.keep and not self._hub.draining:
            self._next()
        else:
            self._close()

    def cut(self, line: Line) -> None:
        """The answer ends without a proper end."""
        if line.until_close:
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self._close()

    def _next(self) -> None:
        self._line = self._waiting.popleft() if self._waiting else None
        if self._line is not None:
            self._advance()
        elif self._fault is not None:
            self._refuse(self._fault)
            return
        elif self._eof:
            self._close()
            return
        if not self._advancing:
            self._settle()

    # --- how it ends

    def close_if_idle(self) -> None:
        """Closes unless a request is being answered or read."""
        if self._line is None and self.phase < LINGER:
            self._close()

    def late(self) -> None:
        """What was waited for did not come in time."""
        if self.phase == IDLE:
            self._close()
        elif self.phase == LINGER:
            self.transport.abort()
        elif self.phase == CLOSING:
            unsent = self.transport.get_write_buffer_size()
            if unsent and unsent != self._unsent:
                self._unsent, self.since = unsent, self._hub.now
            else:
                self.transport.abort()
        else:
            self._broken(Refused(408, "request_timeout", "The request did not come in time."))
            self._advance()
            self._settle()

    def _broken(self, refused: Refused) -> None:
        """Nothing more can be read. What came before is still answered; then the client is told."""
        self._fault = refused
        line, self._incoming, self._direct = self._incoming, None, 0
        if line is None:
            if self._line is None:
                self._refuse(refused)
        elif line is not self._line:
            self._waiting.remove(line)
        elif line.begun:
            line.gone()
            self.cut(line)
        else:
            self._line = None
            line.gone()
            self._refuse(refused)

    def _refuse(self, refused: Refused) -> None:
        """The server's own error, and the end of the connection."""
        request_id = next_id()
        headers, body = error_answer(self._fields, refused, request_id)
        framing = b"content-length: %d\r\nconnection: close\r\n" % len(body)
        self.transport.write(write_head(refused.status, headers, framing) + body)
        access.info("%s - - %s refused (%s)", request_id, refused.status, refused.code)
        self._linger()

    def _linger(self) -> None:
        """Closes this side, and takes in what the client still sends: closing at once would cut off the last answer
        (RFC 9112 section 9.6)."""
        self._line = None
        if self._eof or not self.transport.can_write_eof():
            self._close()
            return
        self._pause_reading(False)
        self.transport.write_eof()
        self.phase, self.since = LINGER, self._hub.now

    def _close(self) -> None:
        """Closes once all is sent."""
        self._line = None
        self.phase, self.since = CLOSING, self._hub.now
        self.transport.close()

    def _look(self, line: Line, after: float) -> None:
        """Whether a client that sends no more has left: its system refuses what it was sent, after a while."""

        def look() -> None:
            if self._line is not line or line.over or self.phase >= LINGER:
                return
            sock = self.transport.get_extra_info("socket")
            if sock is not None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.transport.abort()
            elif after < 4:
                self._look(line, after * 2)

        self._hub.loop.call_later(after, look)


def _too_large() -> Refused:
    return Refused(431, "head_too_large", f"The request's head is larger than {HEAD_LIMIT} bytes.")


def _unreadable(error: httptools.HttpParserError) -> Refused:
    text = str(error)
    if "HTTP version" in text or "PRI" in text:
        return Refused(505, "http_version", "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    return Refused(400, "bad_request", f"This is no valid HTTP/1.1 request: {text}.")


def _never(_: object) -> bool:
    """What an application does that knows only ASGI."""
    return False
