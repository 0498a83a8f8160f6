"""The client's side of one request: its body as it comes, its answer as it is written, and how either ends.

Knows the framing of one answer; not the connection's other requests (`http1`, its only maker). Called by the
application, or by `http1_asgi` on its behalf.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from tidegate.gateway.arrival import Arrival, Receive, Scope, Send
from tidegate.gateway.http1_framing import LAST_CHUNK, write_head
from tidegate.upstream.http import Headers, bodiless

log = logging.getLogger("tidegate")

JOINED: Final = 16 * 1024
"""Bytes of a piece that is copied behind a head or into its chunk; larger ones are written by themselves."""


class AsgiApplication(Protocol):
    """What answers requests with ASGI alone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""


class Application(AsgiApplication, Protocol):
    """What answers requests."""

    def gathers(self, arrival: Arrival) -> bool:
        """Asked when a request's head is there: whether to collect the whole body and then call `at_once`."""

    def at_once(self, line: Line) -> bool:
        """The body is whole. True: the application answers by itself, now or later, with plain calls on `line`.

        False: the request goes on as any other, through ASGI.
        """


class Owner(Protocol):
    """The connection, as a line sees it."""

    transport: asyncio.Transport
    paused: bool

    def keeps(self, line: Line) -> bool:
        """Whether the connection can carry another request after this line's."""

    def hold(self, line: Line) -> None:
        """A head is waiting for the first piece: it goes out at the end of the loop's turn at the latest."""

    def taken(self, line: Line) -> None:
        """The application has taken some of the body."""

    def wanted(self, line: Line) -> None:
        """The application waits for the body."""

    def ended(self, line: Line) -> None:
        """The answer has ended properly."""

    def cut(self, line: Line) -> None:
        """The answer ends without a proper end."""


class Line:
    """One request and its answer: `start`, then `write` any number of times, then `end`; or `abort` at any time.

    All of these are plain calls from the loop's thread, and do nothing once the line is over.
    """

    on_resume: Callable[[], None] | None = None
    """Called when the client, which was slow, may be written to again."""
    on_gone: Callable[[], None] | None = None
    """Called once if the client leaves before `end`; never after `end` or `abort`."""
    on_more: Callable[[], None] | None = None
    """Called when more of the body has come, for `take`."""
    body = b""
    """The whole body, where it was gathered."""

    # Defaults that most requests never change stand here: an instance is made for each.
    eleven = True
    """HTTP/1.1, not 1.0."""
    keep = True
    """The connection can carry another request."""
    expects = False
    """The client waits to be told to send the body."""
    complete = False
    """The body has come to its end."""
    size = 0
    """Bytes of the body that have come."""
    untaken = 0
    """Those of them that nobody has taken yet."""
    room = 0
    """How many more bytes may come of a body that nobody wants."""
    asked = False
    gathered = False
    handed = False
    begun = False
    over = False
    bare = False
    _chunked = False
    _held = b""
    _left: int | None = None

    def __init__(self, owner: Owner, arrival: Arrival) -> None:
        self._owner = owner
        self.arrival = arrival
        self._pieces: list[bytes] = []

    # --- the body

    def add(self, piece: bytes) -> None:
        """A piece of the body has come."""
        self.size += len(piece)
        if self.over:
            self.room -= len(piece)
            return
        self._pieces.append(piece)
        self.untaken += len(piece)

    def drop(self, room: int) -> None:
        """The answer has ended before the body, of which up to `room` bytes may still come."""
        self._pieces = []
        self.untaken = 0
        self.room = room

    def gather(self) -> None:
        """Makes `body` of all that has come."""
        pieces = self._pieces
        self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self.untaken = 0

    def take(self) -> tuple[bytes, bool]:
        """(the next bytes of the body, whether there are more to come). Empty where none have come yet."""
        if self.body:
            piece, self.body = self.body, b""
            return piece, not self.complete
        pieces = self._pieces
        if not pieces:
            return b"", not self.complete
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self.untaken = 0
        self._owner.taken(self)
        return piece, not self.complete

    def want(self) -> None:
        """Says that the body is waited for: a client that asked is told to send it."""
        self._owner.wanted(self)

    # --- the answer

    @property
    def paused(self) -> bool:
        """The client is slow: what is written now waits in memory."""
        return self._owner.paused

    def start(self, status: int, headers: Headers, *, soon: bool = False) -> None:
        """Begins the answer. It goes out with its first piece, or at the end of this turn of the loop; with nothing but
        its first piece where the caller says that one follows at once (`soon`).

        `headers` have names in lower case. A Content-Length in them is kept, else the body is chunked (HTTP/1.1) or
        ends with the connection (1.0); hop-by-hop framing in them is left out. Raises `ValueError` for headers that
        can't be sent and for an interim status.
        """
        if self.over:
            return
        if self.begun:
            raise RuntimeError("the answer has begun already")
        if not 200 <= status <= 999:
            raise ValueError(f"{status} is no final status")
        owner = self._owner
        self.bare = bare = bodiless(self.arrival.method, status)
        keep = self.keep and owner.keeps(self)
        self._held, length, self.keep = write_head(status, headers, eleven=self.eleven, bare=bare, keep=keep)
        self.begun = True
        if not bare:
            self._left = length
            self._chunked = length is None and self.eleven
        if bare or not soon:
            owner.hold(self)

    def write(self, piece: bytes) -> None:
        """The next bytes of the answer's body."""
        if self.over or not piece:
            return
        if not self.begun:
            raise RuntimeError("the answer has not begun")
        if self.bare:
            return
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                self._misfit()
                return
        transport, head = self._owner.transport, self._held
        self._held = b""
        if len(piece) <= JOINED:
            transport.write(b"%b%x\r\n%b\r\n" % (head, len(piece), piece) if self._chunked else head + piece)
        elif self._chunked:
            transport.writelines((b"%b%x\r\n" % (head, len(piece)), piece, b"\r\n"))
        elif head:
            transport.writelines((head, piece))
        else:
            transport.write(piece)

    def flush(self) -> None:
        """Sends a head that is still held."""
        if self._held:
            head, self._held = self._held, b""
            self._owner.transport.write(head)

    def end(self) -> None:
        """Ends the answer properly."""
        if self.over:
            return
        if not self.begun:
            raise RuntimeError("the answer has not begun")
        if self._left:
            self._misfit()
            return
        self._finish()
        if self._chunked:
            self._owner.transport.write(self._held + LAST_CHUNK)
            self._held = b""
        elif self._held:
            self.flush()
        self._owner.ended(self)

    def abort(self) -> None:
        """Ends the answer so that the client sees that it was cut."""
        if not self.over:
            self._finish()
            self.flush()
            self._owner.cut(self)

    @property
    def transport(self) -> asyncio.Transport:
        """What it is written to."""
        return self._owner.transport

    @property
    def until_close(self) -> bool:
        """Only the end of the connection ends the answer: an ordinary one would look like the answer's end."""
        return self.begun and not self._chunked and self._left is None and not self.bare

    def _misfit(self) -> None:
        log.error("%s an answer is not as long as its Content-Length says: cut", self.arrival.id)
        self.abort()

    def _finish(self) -> None:
        self.over = True
        # They refer to whoever listens, who refers to the line: a circle that only the collector would break.
        self.on_gone = self.on_resume = self.on_more = None

    # --- the connection's side

    def gone(self) -> None:
        """The client has left, or must be treated as if it had."""
        if not self.over:
            tell = self.on_gone
            self._finish()
            self._held = b""
            if self.handed and tell is not None:
                tell()
