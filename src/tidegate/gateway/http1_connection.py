"""One client's connection: whose turn it is among its requests, and how it ends.

Knows the transport and its pace; how requests are read is `http1_requests`'s, their answers' framing `http1_line`'s.
Made by `http1`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import TYPE_CHECKING, Final, cast

from tidegate.gateway.arrival import Arrival, next_id
from tidegate.gateway.http1_asgi import Exchange, fail
from tidegate.gateway.http1_framing import CONTINUE, Refused, error_answer, write_head
from tidegate.gateway.http1_line import Line
from tidegate.gateway.http1_requests import Requests

if TYPE_CHECKING:
    from tidegate.gateway.http1 import Http1

access = logging.getLogger("tidegate.access")

SKIPPED: Final = 1 << 20
"""Bytes of a body nobody wants that are taken in after its answer, so that the connection can be kept."""

HIGH_WATER: Final = 64 * 1024
"""Bytes that may wait: of an answer for a slow client, and of a body for the application."""

IDLE, HEAD, BODY, ANSWER, LINGER, CLOSING = range(6)
"""What a connection waits for: a request, the rest of its head, of its body, the application, the client's close."""


class Connection(asyncio.Protocol):
    """One client's connection. `_line` is the request whose turn it is; those that came behind it wait."""

    __slots__ = (
        "_advancing", "_eof", "_fault", "_hub", "_line", "_read_paused", "_requests", "_unsent", "_waiting",
        "paused", "phase", "since", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, hub: Http1) -> None:
        self._hub = hub
        self._requests = Requests(self._make, self._arrived)
        self._line: Line | None = None
        self._waiting: list[Line] = []
        self._fault: Refused | None = None
        self._eof = self._advancing = self._read_paused = False
        self._unsent = 0
        self.paused = False
        self.phase = IDLE
        self.since = hub.now

    def _make(self, arrival: Arrival) -> Line:
        return Line(self, arrival)

    def _arrived(self, line: Line) -> None:
        self._hub.busy = True
        if self._line is None:
            self._line = line
        else:
            self._waiting.append(line)

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
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
        try:
            self._requests.feed(data)
        except Refused as refused:
            self._broken(refused)
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
        self._requests.forget()
        self._waiting.clear()
        self.phase = CLOSING
        self._hub.drop(self)
        line, self._line = self._line, None
        if line is not None:
            line.gone()

    def pause_writing(self) -> None:
        """Called by the loop: the client is slow."""
        self.paused = True
        if self.phase == ANSWER:
            self.since, self._unsent = self._hub.now, 0

    def resume_writing(self) -> None:
        """Called by the loop."""
        self.paused = False
        line = self._line
        if line is not None and line.on_resume is not None and not line.over:
            line.on_resume()

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
        line, incoming = self._line, self._requests.incoming
        full = incoming is not None and incoming.handed and incoming.untaken > HIGH_WATER
        if (full or bool(self._waiting)) != self._read_paused:
            self._pause_reading(not self._read_paused)
        if line is None:
            phase = HEAD if self._requests.within_head else IDLE
            if phase != self.phase:
                self.phase, self.since = phase, self._hub.now
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
        self._hub.hold(line)

    def taken(self, line: Line) -> None:
        """The application has taken some of the body."""
        if self._read_paused and line is self._requests.incoming:
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
        self._line = self._waiting.pop(0) if self._waiting else None
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
        elif self.phase in (CLOSING, ANSWER):
            unsent = self.transport.get_write_buffer_size()
            if unsent and unsent != self._unsent:
                self._unsent, self.since = unsent, self._hub.now
            else:
                self.transport.abort()
        else:
            self._broken(Refused(408, "The request did not come in time.", reason="request_timeout"))
            self._advance()
            self._settle()

    def _broken(self, refused: Refused) -> None:
        """Nothing more can be read. What came before is still answered; then the client is told."""
        self._fault = refused
        line = self._requests.incoming
        self._requests.forget()
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
        headers, body = error_answer(self._requests.fields, refused, request_id)
        head, _, _ = write_head(refused.status, headers, eleven=True, bare=False, keep=False)
        self.transport.write(head + body)
        access.info("%s - - %s refused (%s)", request_id, refused.status, refused.reason)
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
