"""The requests in what one client sends: where each begins and ends, and what its head says.

Knows the parser (httptools) and heads it has just seen; no sockets, no clock. Called by `http1`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

import httptools

from tidegate.gateway.arrival import Arrival
from tidegate.gateway.http1_framing import HEAD_LIMIT, TARGET_LIMIT, Refused, bad, expects, lowered, read_head
from tidegate.gateway.http1_line import Line
from tidegate.upstream.http import Headers

_KNOWN_LIMIT: Final = 8 * 1024
"""Bytes of a head that is worth remembering."""
_TRIES: Final = 4
"""How often in a row a head is remembered that does not come again."""
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
"""Brings a parser to where it reads a chunked body."""
_LONGEST_LENGTH: Final = 15
"""Digits."""


class KnownHead:
    """The bytes of a head before and after the digits of its Content-Length, and the request they stand for.

    The same bytes again, around other digits, are the same request with another body: they need not be read again.
    """

    __slots__ = ("_after", "_before", "arrival")

    def __init__(self, before: bytes, after: bytes, arrival: Arrival) -> None:
        self._before, self._after, self.arrival = before, after, arrival

    @classmethod
    def of(cls, data: bytes, arrival: Arrival) -> KnownHead | None:
        """The head that `data` begins with, which is that of `arrival`; None where it isn't worth remembering."""
        end = data.find(b"\r\n\r\n") + 4
        if not 4 <= end <= _KNOWN_LIMIT:
            return None
        head = data[:end]
        place = head.lower().find(b"\r\ncontent-length:")
        if place < 0:
            return None
        start = place + len(b"\r\ncontent-length:")
        stop = head.find(b"\r", start)
        digits = head[start:stop].lstrip(b" \t")
        if digits != arrival.header(b"content-length"):
            return None
        return cls(head[: stop - len(digits)], head[stop:], arrival)

    def again(self, data: bytes) -> tuple[bytes, int] | None:
        """(the digits of the length, where the body begins) where `data` begins with this head; else None."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        start = len(before)
        stop = data.find(b"\r", start, start + _LONGEST_LENGTH + 1)
        if stop < 0 or not data.startswith(after, stop):
            return None
        digits = data[start:stop]
        return (digits, stop + len(after)) if digits.isdigit() else None


class Requests:
    """Reads requests. `arrived` is called with each once its head is there; its body is added to it as it comes.

    Nothing else is called from within `feed`, least of all the application.
    """

    __slots__ = (
        "_arrived", "_begun", "_direct", "_fault", "_first", "_known", "_make", "_offered", "_parser", "_priming",
        "_target", "_tries", "_unframed",
        "fields", "incoming", "last",
    )  # fmt: skip

    def __init__(self, make: Callable[[Arrival], Line], arrived: Callable[[Line], None]) -> None:
        self._make = make
        self._arrived = arrived
        self.incoming: Line | None = None
        """The request whose body is still coming."""
        self.last = False
        """The client said that no other request follows: what comes after it is not read."""
        self.fields: Headers = []
        """Headers of a head that is still coming, or was refused."""
        self._parser: httptools.HttpRequestParser | None = None
        self._target = b""
        self._begun = False  # the parser is within a request
        self._unframed = 0  # bytes since the last one of a body: heads, sizes of chunks, trailers
        self._direct = 0  # bytes of the body still to come that need no parser
        self._fault: Refused | None = None
        self._known: KnownHead | None = None
        self._tries = _TRIES
        self._first: Line | None = None
        self._offered = False  # the parser will take an offer of another protocol as the end of a request with a body
        self._priming = False

    @property
    def within_head(self) -> bool:
        """Some of a head has come, not all."""
        return self._begun and self.incoming is None

    def _deaf(self) -> bool:
        return self.last and not self._begun

    def forget(self) -> None:
        """No more will be read: breaks the circles with the parser and the connection."""
        self._parser = self.incoming = None
        self._make, self._arrived = _unasked, _unasked

    def feed(self, data: bytes) -> None:
        """Reads on. Raises `Refused` where it can't; what arrived before that has arrived."""
        if self._direct:
            data = self._read_directly(data)
        while data and not self._begun and self._known is not None and not self.last:
            found = self._known.again(data)
            if found is None:
                break
            data = self._read_known(self._known.arrival.again(found[0]), data, found[1])
        if data:
            self._parse(data)

    def _read_directly(self, data: bytes) -> bytes:
        """The rest of a body of known length that came in pieces; returns what comes after it."""
        line, left = self.incoming, self._direct
        assert line is not None
        if len(data) < left:
            line.add(data)
            self._direct = left - len(data)
            return b""
        line.add(data[:left])
        line.complete = True
        self.incoming = None
        self._direct = 0
        return data[left:]

    def _read_known(self, arrival: Arrival, data: bytes, start: int) -> bytes:
        """A request whose head is known, and what has come of its body; returns what comes after it."""
        self._tries = _TRIES
        line = self._make(arrival)
        self.incoming = line
        self._direct = arrival.length or 0
        self._arrived(line)
        if self._direct:
            return self._read_directly(data[start:])
        line.complete = True
        self.incoming = None
        return data[start:]

    def _parse(self, data: bytes) -> None:
        fresh, whole = not self._begun, data
        self._unframed += len(data)
        try:
            while data and not self._deaf():
                if self._parser is None:
                    self._parser = httptools.HttpRequestParser(self)
                try:
                    self._parser.feed_data(data)
                    data = b""
                except httptools.HttpParserUpgrade as offer:
                    data = self._decline(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            if self._fault is not None:
                raise self._fault from None
            if self._deaf():
                return
            raise _unreadable(error) from None
        if self._unframed > HEAD_LIMIT:
            raise _too_large()
        line = self.incoming
        if line is not None and line.arrival.length is not None:
            # All that has come is the parser's no more, and the rest of the body needs none.
            self._direct = line.arrival.length - line.size
            self._parser = None
            self._begun = False
            self._unframed = 0
        first, self._first = self._first, None
        if fresh and self._tries and first is not None:
            self._remember(whole, first)

    def _decline(self, rest: bytes) -> bytes:
        """An offer of another protocol is not taken up: what follows is HTTP still, a body first if there is one.

        The parser leaves that body to the other protocol. Were it fed to it now, it would be read as a request.
        """
        line = self.incoming
        if line is None:
            return rest
        self._parser = parser = httptools.HttpRequestParser(self)
        if line.arrival.length is not None:
            self._begun = False
            self._direct = line.arrival.length
            return self._read_directly(rest)
        self._priming = True
        parser.feed_data(_CHUNKED_HEAD)
        self._priming = False
        self.fields = []
        return rest

    def _remember(self, data: bytes, line: Line) -> None:
        if line.arrival.method == "POST" and line.eleven and line.keep and not line.expects and data[:5] == b"POST ":
            self._tries -= 1
            self._known = KnownHead.of(data, line.arrival)

    # --- the parser calls these, for all requests in what was fed

    def on_message_begin(self) -> None:
        """A request begins."""
        self._begun = True
        self.fields = []
        self._target = b""

    def on_url(self, target: bytes) -> None:
        """The target, in pieces where the line came so."""
        self._target += target
        if len(self._target) > TARGET_LIMIT:
            self._refuse(bad(414, f"The request's target is longer than {TARGET_LIMIT} bytes."))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or a trailer."""
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self._priming:
            return
        parser = self._parser
        assert parser is not None
        version = parser.get_http_version()
        self.fields = fields = lowered(self.fields)
        try:
            # The bytes since the last request are at least those of this head: seldom so many that it pays to count.
            if self._unframed > HEAD_LIMIT and sum(len(n) + len(v) + 4 for n, v in fields) > HEAD_LIMIT:
                raise _too_large()
            arrival = read_head(parser.get_method(), self._target, version, fields)
            waits = expects(arrival, version)
        except Refused as refused:
            self._refuse(refused)
            return
        line = self._make(arrival)
        if version == "1.0":
            line.eleven = False
        if waits:
            line.expects = True
        if not parser.should_keep_alive():
            line.keep = False
            self.last = True
        if parser.should_upgrade():
            self._offered = bool(arrival.length) or arrival.header(b"transfer-encoding") is not None
        self.fields = []
        self._unframed = 0
        self.incoming = line
        if self._first is None:
            self._first = line
        self._arrived(line)

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._unframed = 0
        if self.incoming is not None:
            self.incoming.add(piece)

    def on_message_complete(self) -> None:
        """The request ends. Trailers are dropped (RFC 9110 section 6.5.1 allows it)."""
        self._unframed = 0
        self.fields = []
        if self._offered:
            self._offered = False
            return  # not yet: see `_decline`
        self._begun = False
        if self.incoming is not None:
            self.incoming.complete = True
            self.incoming = None

    def _refuse(self, refused: Refused) -> None:
        self._fault = refused
        raise refused


def _unasked(_: object) -> NoReturn:
    raise RuntimeError("no more is read")


def _too_large() -> Refused:
    return bad(431, f"The request's head is larger than {HEAD_LIMIT} bytes.")


def _unreadable(error: httptools.HttpParserError) -> Refused:
    text = str(error)
    if "HTTP version" in text or "PRI" in text:
        return bad(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    return bad(400, f"This is no valid HTTP/1.1 request: {text}.")
