"""Knows one connection: HTTP/1.1 framing of the answers on it, how fast they may come, and how it ends.

Not which connection to use or whether to try again: that is `pool.py`, its only caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from tidegate.engine.effects import UpstreamError
from tidegate.upstream.http import HEAD_LIMIT, Headers, bodiless, read_framing
from tidegate.upstream.response import Response

HIGH_WATER = 256 * 1024
"""Bytes of a body that may wait for their reader before the upstream is paused; one more read may come on
top."""


class ClosedEarly(UpstreamError):
    """The upstream closed the connection before any byte of its answer."""


class _Broken(Exception):
    """An answer that must not be read on; the text completes "<peer> …"."""


class Connection(asyncio.Protocol):
    """One connection. Between `begin` and the end of that answer it belongs to one response; else it is idle.

    `on_free` is called when it may carry another request, `on_closed` once, when it can't any more.
    """

    def __init__(
        self, peer: str, on_free: Callable[[Connection], None], on_closed: Callable[[Connection], None]
    ) -> None:
        self.peer = peer
        self.reused = False
        self.closed = False
        self.write_paused = False
        self.idle_since = 0.0
        self.keep_alive_seconds: float | None = None
        """What the upstream announced in a Keep-Alive header."""
        self._on_free = on_free
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._response: Response | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._read_paused = False
        self._reset("")

    def _reset(self, method: str) -> None:
        self._method = method
        self._reason = b""
        self._headers: Headers = []
        self._unframed = 0  # bytes that came without yielding a body byte: heads, chunk sizes, trailers
        self._field_bytes = 0
        self._interim = False
        self._until_close = False
        self._skip_end = False
        self._complete = False
        self._keep = False
        self._touched = False
        self._dirty = False
        self._sent = False

    # --- the pool's side

    def begin(self, method: str, read_seconds: float) -> Response:
        """A new exchange: what comes from now on belongs to the response returned."""
        self._reset(method)
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self._response = response = Response(self, read_seconds)
        return response

    def write(self, data: bytes) -> None:
        """Sends `data`, or drops it where the connection is gone: the response tells."""
        if not self.closed and self._transport is not None:
            self._transport.write(data)

    def sent(self) -> None:
        """The request is written whole; only then may the connection be used again."""
        self._sent = True

    def abort(self, reason: UpstreamError | None = None) -> None:
        """Closes at once. A response in progress ends with `reason`."""
        if not self.closed:
            self._close(reason or UpstreamError(f"The request to {self.peer} was abandoned."))

    def replace_transport(self, transport: asyncio.Transport) -> None:
        """TLS was put on top."""
        self._transport = transport

    @property
    def transport(self) -> asyncio.Transport | None:
        """What it stands on."""
        return self._transport

    # --- the response's side

    def resume_reading(self) -> None:
        """The reader has caught up."""
        if self._read_paused and self._transport is not None and not self.closed:
            self._read_paused = False
            self._transport.resume_reading()

    def sleep(self, seconds: float) -> asyncio.Future[bool]:
        """A future that a response wakes with True, or the deadline with False.

        One timer serves all waits of a connection: it is set anew only where it would ring too late.
        """
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._set_timer()
        return self._loop.create_future()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._response is None:
            return
        if self._deadline - self._loop.time() > 0.001:
            self._set_timer()
        else:
            self._response.wake(False)

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        response, parser = self._response, self._parser
        if response is None or parser is None:
            # Nothing was asked: a late answer to a broken request, a 408, or noise. Never another request's
            # answer.
            self.abort()
            return
        self._touched = True
        self._unframed += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("switched protocols, which was not asked for")
            return
        except httptools.HttpParserCallbackError as error:
            fault = error.__context__
            if not self._complete:
                self._break(str(fault) if isinstance(fault, _Broken) else "sent an answer that can't be read")
                return
            self._dirty = True
        except httptools.HttpParserError as error:
            if not self._complete:
                self._break(f"does not answer in valid HTTP/1.1 ({error})")
                return
            self._dirty = True
        if self._complete:
            self._finish(response)
        elif self._unframed > HEAD_LIMIT:
            self._break(f"sent more than {HEAD_LIMIT} bytes of headers")
        elif response.status:
            response.wake()

    def eof_received(self) -> None:
        """Called by the loop: the upstream will send no more."""
        self._peer_closed(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._peer_closed(exc)
        self._transport = None
        self._parser = None

    def pause_writing(self) -> None:
        """Called by the loop: the upstream is slow to take what is sent."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """Called by the loop."""
        self.write_paused = False
        if self._response is not None:
            self._response.wake()

    # --- the parser's side

    def on_message_begin(self) -> None:
        """Called by the parser, for interim answers too."""
        if self._complete:
            self._dirty = True
        self._headers = []
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        """Called by the parser, more than once where the line came in pieces."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser, for trailers too."""
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > HEAD_LIMIT:
            raise _Broken(f"sent more than {HEAD_LIMIT} bytes of headers")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        response, parser = self._response, self._parser
        if self._complete or response is None or parser is None:
            return
        status = parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim:
            return
        version = parser.get_http_version()
        try:
            framing = read_framing(self._headers)
        except ValueError as fault:
            raise _Broken(str(fault)) from None
        if not version.startswith("1.") or status < 200:
            raise _Broken("does not answer in valid HTTP/1.1")
        if framing.keep_alive_seconds is not None:
            self.keep_alive_seconds = framing.keep_alive_seconds
        if bodiless(self._method, status):
            self._complete = self._skip_end = True
            self._keep = version != "1.0" and not framing.close
        else:
            self._until_close = framing.length is None and not framing.chunked
        headers, self._headers = self._headers, []
        length = None if self._complete else framing.length
        response.filled(status, self._reason, headers, version, length)

    def on_body(self, piece: bytes) -> None:
        """Called by the parser."""
        response = self._response
        if self._complete or response is None:
            self._dirty = True
            return
        self._unframed = 0
        if response.add(piece) > HIGH_WATER and not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Called by the parser, for interim answers too."""
        if self._interim:
            self._interim = False
        elif self._skip_end:
            self._skip_end = False
        elif self._complete:
            self._dirty = True
        elif self._parser is not None:
            self._complete = True
            self._keep = self._parser.should_keep_alive()

    # --- how an exchange ends

    def _finish(self, response: Response) -> None:
        self._response = None
        if self._method == "CONNECT" and response.status < 300 and not self._dirty:
            self._parser = None
            response.ended()  # a tunnel now: what comes next is TLS
            return
        if bodiless(self._method, response.status):
            self._parser = None  # it may still expect the body that a HEAD's Content-Length speaks of
        transport = self._transport
        usable = self._keep and self._sent and not self._dirty and not self.closed
        if usable and transport is not None and not transport.is_closing() and not transport.get_write_buffer_size():
            self.resume_reading()
            self._on_free(self)
        else:
            self._close(None)
        response.ended()

    def _break(self, fault: str) -> None:
        self._close(UpstreamError(f"{self.peer} {fault}. Check that the URL is that of the API."))

    def _peer_closed(self, exc: Exception | None) -> None:
        if self.closed:
            return
        response = self._response
        if response is None:
            self._close(None)
        elif self._until_close and response.status and exc is None:
            self._response = None
            self._close(None)
            response.ended()
        elif not self._touched:
            self._close(
                ClosedEarly(f"{self.peer} closed the connection without an answer. Check whether it is running.")
            )
        else:
            where = "in the middle of its answer" if response.status else "within the headers of its answer"
            self._close(UpstreamError(f"{self.peer} closed the connection {where}."))

    def _close(self, error: UpstreamError | None) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._on_closed(self)
        response, self._response = self._response, None
        if response is not None:
            response.ended(error)
