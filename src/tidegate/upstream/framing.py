"""Knows where an HTTP/1.1 answer begins and ends in a connection's bytes. No sockets, no clock.

`connection.py` and `sync.py` feed it what they receive.
"""

from __future__ import annotations

from typing import Final

import httptools

from tidegate.upstream.http import HEAD_LIMIT, Headers, bodiless, read_framing

_HEX: Final = [int(chr(byte), 16) if chr(byte) in "0123456789abcdefABCDEF" else -1 for byte in range(256)]


class Broken(Exception):
    """An answer that must not be read on; the text completes "<peer> …"."""


_SIZE_DIGITS: Final = 8
_CHUNK_END: Final = b"\r\n"


def whole_chunks(data: bytes) -> list[bytes]:
    """What the chunks hold that `data` is made of; empty where that is not plain to see, and the parser has to read it.

    Streams come like that: a chunk a packet.
    """
    found: list[bytes] = []
    at, total = 0, len(data)
    while at < total:
        end = data.find(_CHUNK_END, at, at + _SIZE_DIGITS + 2)
        if end <= at:
            return []
        size = 0
        for digit in data[at:end]:
            value = _HEX[digit]
            if value < 0:
                return []
            size = size * 16 + value
        begin, stop = end + 2, end + 2 + size
        if size == 0 or not data.startswith(_CHUNK_END, stop):
            return []
        found.append(data[begin:stop])
        at = stop + 2
    return found


class Answers:
    """The answers on one connection, one at a time: `begin`, then `feed` until `complete`, then `begin` again.

    What has been read so far stands in the attributes; `pieces` are the body's, for the caller to take away.
    """

    __slots__ = (
        "_between", "_dirty", "_field_bytes", "_fields", "_interim", "_keep", "_method", "_parser", "_reason",
        "_skip_end", "_unframed", "_until_close",
        "complete", "headers", "http_version", "keep_alive_seconds", "length", "pieces", "reason", "status", "touched",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser | None = None
        self.keep_alive_seconds: float | None = None
        """What the upstream announced in a Keep-Alive header, on this or an earlier answer."""
        self.begin("")

    def begin(self, method: str) -> None:
        """What comes from now on is the answer to a request with this method."""
        self.status = 0
        """0 until the head is there (that of an interim answer does not count)."""
        self.reason = b""
        self.headers: Headers = []
        self.http_version = ""
        self.length: int | None = None
        """Bytes of the body, where the head says so."""
        self.pieces: list[bytes] = []
        self.complete = False
        self.touched = False
        """Any byte has come."""
        self._method = method
        self._reason = b""
        self._fields: Headers = []
        self._field_bytes = 0
        self._unframed = 0  # bytes since the last one of a body: heads, chunk sizes, trailers
        self._interim = False
        self._until_close = False
        self._skip_end = False
        self._keep = False
        self._dirty = False
        self._between = False  # a chunk has ended, and what comes next is another one's size

    @property
    def reusable(self) -> bool:
        """The answer is complete, nothing came behind it, and the upstream keeps the connection open."""
        return self.complete and self._keep and not self._dirty

    @property
    def clean(self) -> bool:
        """The answer is complete and nothing came behind it."""
        return self.complete and not self._dirty

    def feed(self, data: bytes) -> None:
        """Reads on. Raises `Broken` where the answer can't be read, or in more than one way (RFC 9112 section 6.3)."""
        if self._between:
            if whole := whole_chunks(data):
                self._unframed = 0
                self.pieces += whole
                return
            self._between = False
        self.touched = True
        self._unframed += len(data)
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise Broken("switched protocols, which was not asked for") from None
        except httptools.HttpParserError as error:
            self._dirty = True
            if not self.complete:
                fault = error.__context__
                if isinstance(fault, Broken):
                    raise fault from None
                raise Broken(f"does not answer in valid HTTP/1.1 ({error})") from None
        if self._between and not data.endswith(_CHUNK_END):
            self._between = False  # a part of the next size has come already
        if self.complete:
            if bodiless(self._method, self.status):
                self._parser = None  # it may still expect the body that a HEAD's Content-Length speaks of
        elif self._unframed > HEAD_LIMIT:
            raise Broken(f"sent more than {HEAD_LIMIT} bytes of headers")

    def end(self) -> bool:
        """The upstream closed in good order. Returns whether that ends the answer; if not, it is cut."""
        if self._until_close and self.status:
            self.complete = True
        return self.complete

    def forget(self) -> None:
        """No more will be read: breaks the circle with the parser."""
        self._parser = None

    # --- the parser calls these, for interim answers too

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self.complete:
            self._dirty = True
        self._fields = []
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        """The reason phrase, in pieces where the line came so."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or a trailer."""
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > HEAD_LIMIT:
            raise Broken(f"sent more than {HEAD_LIMIT} bytes of headers")
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is there."""
        parser = self._parser
        if self.complete or parser is None:
            return
        status = parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim:
            return
        version = parser.get_http_version()
        try:
            framing = read_framing(self._fields)
        except ValueError as fault:
            raise Broken(str(fault)) from None
        if not version.startswith("1.") or status < 200:
            raise Broken("does not answer in valid HTTP/1.1")
        if framing.keep_alive_seconds is not None:
            self.keep_alive_seconds = framing.keep_alive_seconds
        self.status, self.reason, self.http_version = status, self._reason, version
        self.headers, self._fields = self._fields, []
        if bodiless(self._method, status):
            self.complete = self._skip_end = True
            self._keep = version != "1.0" and not framing.close
        else:
            self.length = framing.length
            self._until_close = framing.length is None and not framing.chunked

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        if self.complete:
            self._dirty = True
            return
        self._unframed = 0
        self.pieces.append(piece)

    def on_chunk_header(self) -> None:
        """The size of a chunk has come: its bytes are next, or the end."""
        self._between = False

    def on_chunk_complete(self) -> None:
        """A chunk has come to its end."""
        self._between = not self.complete

    def on_message_complete(self) -> None:
        """The answer ends."""
        self._between = False
        if self._interim:
            self._interim = False
        elif self._skip_end:
            self._skip_end = False
        elif self.complete:
            self._dirty = True
        elif self._parser is not None:
            self.complete = True
            self._keep = self._parser.should_keep_alive()
