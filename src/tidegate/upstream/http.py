"""Knows what a request is and how its head is written, and which headers stop at each hop. No sockets.

The pools and the gateway call it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidegate.engine.effects import UpstreamError
from tidegate.upstream.proxy import Proxy
from tidegate.upstream.url import Address

Headers: TypeAlias = list[tuple[bytes, bytes]]

HEAD_LIMIT = 64 * 1024
"""Bytes of a response's head (1xx heads before it and trailers after it included)."""

STALE_SECONDS = 3.0
"""A POST is sent again only where its kept connection was found closed within this time. See `may_repeat`."""

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110 section 9.2.2
_BODY_EXPECTED = frozenset({"POST", "PUT", "PATCH"})
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

_COMMON_CONNECTIONS = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})


class Request:
    """One request to an upstream. Nothing of it changes.

    `headers` go out as they are, so they hold no hop-by-hop names, no Host and no Content-Length: the pool
    sets those.
    """

    __slots__ = ("body", "content_length", "headers", "lines", "method", "url")

    def __init__(
        self,
        method: str,
        url: str,
        headers: Headers | None = None,
        body: bytes | AsyncIterable[bytes] | None = None,
        content_length: int | None = None,
        lines: bytes | None = None,
    ) -> None:
        self.method = method
        self.url = url
        """Absolute, http or https."""
        self.headers: Headers = [] if headers is None else headers
        self.body = body
        """All bytes, or a stream of them."""
        self.content_length = content_length
        """Bytes of a streamed body where that is known; a stream of unknown length is sent chunked."""
        self.lines = lines
        """`headers` as `header_lines` writes them, where that has been done already."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait: for a connection (TLS and proxy included), for the answer's head, for each further
    byte."""

    connect: float = 10
    head: float = 600
    read: float = 600


_LOWER: dict[bytes, bytes] = {}
_LOWER_KEPT = 1024


def lower(name: bytes) -> bytes:
    """A header's name in lower case; few differ, so each is made once."""
    known = _LOWER.get(name)
    if known is None:
        known = name.lower()
        if len(_LOWER) < _LOWER_KEPT:
            _LOWER[name] = known
    return known


def stopped(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Which of these headers, named in lower case, stop at this hop: RFC 9110 section 7.6.1 names, and those listed in
    Connection."""
    names = HOP_BY_HOP
    for name, value in headers:
        if name == b"connection" and value not in _COMMON_CONNECTIONS:
            names |= {word.strip().lower() for word in value.split(b",")}
    return names


def may_repeat(request: Request, seconds: float) -> bool:
    """Whether to send a request again whose *kept* connection was closed, without a byte of an answer, after `seconds`.

    An upstream closes idle connections when it likes; now and then that crosses a request, which it then never reads.
    Such a request may go out once more, on a new connection, if its body can: it is bytes, or none. An idempotent one
    always. A POST only where the close was found within `STALE_SECONDS` of the request, which is what tells an idle
    close, already under way, from an upstream that fell over a POST while at work on it: that one may have had its
    effect and is not repeated (RFC 9110 section 9.2.2, RFC 9112 section 9.3.1). Never a second time, never on a new
    connection.
    """
    replayable = request.body is None or isinstance(request.body, bytes)
    return replayable and (seconds < STALE_SECONDS or request.method in _IDEMPOTENT)


def chunk(piece: bytes) -> bytes:
    """A piece of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def proxy_headers(proxy: Proxy | None) -> Headers:
    """What an http request through a proxy carries for it."""
    return [(b"Proxy-Authorization", proxy.authorization)] if proxy is not None and proxy.authorization else []


def header_lines(headers: Headers) -> bytes:
    """The headers as they are written, each line with its end. Raises `UpstreamError` where a line break or a null byte
    hides in one: it would begin another request."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers) or lines.find(b"\0") >= 0:
        raise UpstreamError("A request header holds a line break or a null byte. Check the headers the client sends.")
    return lines


def write_head(request: Request, address: Address, extra: Headers, *, absolute: bool = False) -> bytes:
    """The request line and headers, blank line included. `absolute` writes the whole URL, as an http proxy wants it.

    Raises `UpstreamError` for CONNECT and what is no method, and where a line break hides in a header.
    """
    method = _METHODS.get(request.method) or _method(request.method)
    target = b"%b://%b%b" % (address.scheme.encode(), address.authority, address.path) if absolute else address.path
    lines = header_lines(request.headers) if request.lines is None else request.lines
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b%b\r\n" % (
        method,
        target,
        address.authority,
        header_lines(extra) if extra else b"",
        lines,
        _framing(request),
    )


_METHODS = {"POST": b"POST", "GET": b"GET"}


def _method(method: str) -> bytes:
    if not (method.isascii() and method.isalpha()) or method == "CONNECT":
        raise UpstreamError("The request's method can't be relayed. Check what the client sends.")
    return method.encode()


def _framing(request: Request) -> bytes:
    body = request.body
    if not body:
        return b"Content-Length: 0\r\n" if request.method in _BODY_EXPECTED else b""
    if isinstance(body, bytes):
        return b"Content-Length: %d\r\n" % len(body)
    if request.content_length is not None:
        return b"Content-Length: %d\r\n" % request.content_length
    return b"Transfer-Encoding: chunked\r\n"


class Framing(NamedTuple):
    """What a response's headers say of its body and of the connection after it."""

    length: int | None = None
    chunked: bool = False
    close: bool = False
    keep_alive_seconds: float | None = None


def read_framing(headers: Headers) -> Framing:
    """Reads Content-Length, Transfer-Encoding, Connection and Keep-Alive (RFC 9112 section 6.3).

    Raises `ValueError` for lengths that disagree, a length beside a transfer coding, and any coding but
    `chunked`: none was asked for, and what passes it on would not undo it. The text completes "<peer> …".
    """
    length: int | None = None
    chunked = close = False
    seconds: float | None = None
    for name, value in headers:
        size = len(name)
        if size == 14 and name.lower() == b"content-length":
            if not value.isdigit() or length not in (None, int(value)):
                raise ValueError("sent a Content-Length that can't be right")
            length = int(value)
        elif size == 17 and name.lower() == b"transfer-encoding":
            if chunked or value.strip().lower() != b"chunked":
                raise ValueError("sent a Transfer-Encoding other than chunked, which was not asked for")
            chunked = True
        elif size == 10 and name.lower() == b"connection":
            close = close or b"close" in {word.strip().lower() for word in value.split(b",")}
        elif size == 10 and name.lower() == b"keep-alive":
            seconds = _keep_alive_seconds(value)
    if chunked and length is not None:
        raise ValueError("sent both a Content-Length and a Transfer-Encoding")
    return Framing(length, chunked, close, seconds)


def bodiless(method: str, status: int) -> bool:
    """Whether the answer has no body, whatever its headers say (RFC 9112 section 6.3, rules 1 and 2)."""
    return status in (204, 304) or method == "HEAD" or (method == "CONNECT" and status < 300)


def _keep_alive_seconds(value: bytes) -> float | None:
    for word in value.split(b","):
        name, _, number = word.strip().partition(b"=")
        if name.lower() == b"timeout" and number.strip().isdigit():
            return float(number)
    return None
