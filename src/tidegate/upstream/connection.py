"""Knows one connection: HTTP/1.1 framing of the answers on it, how fast they may come, and how it ends.

Not which connection to use or whether to try again: that is `pool.py`, its only caller.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import faults
from tidegate.upstream.framing import Answers, Broken
from tidegate.upstream.response import Response

_QUICK_ACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux: acknowledge at once. It holds for the next packets only, so it is set with each request."""

HIGH_WATER = 256 * 1024
"""Bytes of a body that may wait for their reader before the upstream is paused; one more read may come on top."""


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
        self._on_free = on_free
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._response: Response | None = None
        self._answers = Answers()
        self._method = ""
        self._sent = False
        self._read_paused = False
        self._apart = True
        """The upstream writes the heads of its answers by themselves: so it is held until one has come otherwise."""

    # --- the pool's side

    def begin(self, method: str, read_seconds: float) -> Response:
        """A new exchange: what comes from now on belongs to the response returned."""
        self._answers.begin(method)
        self._method = method
        self._sent = False
        self._response = response = Response(self, read_seconds)
        return response

    def write(self, data: bytes) -> None:
        """Sends `data`, or drops it where the connection is gone: the response tells."""
        if not self.closed and self._transport is not None:
            self._transport.write(data)

    def sent(self) -> None:
        """The request is written whole; only then may the connection be used again."""
        self._sent = True
        if self._apart and _QUICK_ACK is not None and self._transport is not None:
            # A server that writes head and body apart waits for the head's acknowledgement, which may be 40 ms late.
            sock = self._transport.get_extra_info("socket")
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                with suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def abort(self, reason: UpstreamError | None = None) -> None:
        """Closes at once. A response in progress ends with `reason`."""
        if not self.closed:
            self._close(reason or faults.abandoned(self.peer))

    def replace_transport(self, transport: asyncio.Transport) -> None:
        """TLS was put on top."""
        self._transport = transport

    @property
    def keep_alive_seconds(self) -> float | None:
        """How long the upstream said it keeps the connection open when idle."""
        return self._answers.keep_alive_seconds

    @property
    def transport(self) -> asyncio.Transport | None:
        """What it stands on."""
        return self._transport

    # --- the response's side

    def pause_reading(self) -> None:
        """The reader can't keep up."""
        if not self._read_paused and self._transport is not None and not self.closed:
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """The reader has caught up."""
        if self._read_paused and self._transport is not None and not self.closed:
            self._read_paused = False
            self._transport.resume_reading()

    def sleep(self, seconds: float) -> asyncio.Future[bool]:
        """A future that a response wakes with True, or the deadline with False.

        One timer serves all waits of a connection: it is set anew only where it would ring too late.
        """
        self.expect(seconds)
        return self._loop.create_future()

    def expect(self, seconds: float) -> None:
        """Has the response woken with False where nothing else wakes it for so long."""
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._set_timer()

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
        response, answers = self._response, self._answers
        if response is None:
            # Nothing was asked: a late answer to a broken request, a 408, or noise. Never another request's answer.
            self.abort()
            return
        fault: Broken | None = None
        try:
            answers.feed(data)
        except Broken as broken:
            fault = broken
        if answers.status and not response.status:
            response.filled(answers)
            self._apart = not answers.pieces and not answers.complete
        if answers.pieces:
            self._deliver(response, answers)
        if fault is not None:
            self._close(faults.broken(self.peer, fault))
        elif answers.complete:
            self._finish(response)
        elif response.status:
            response.wake()

    def _deliver(self, response: Response, answers: Answers) -> None:
        waiting = response.add(answers.pieces)
        answers.pieces = []
        if waiting > HIGH_WATER:
            self.pause_reading()

    def eof_received(self) -> None:
        """Called by the loop: the upstream will send no more."""
        self._peer_closed(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._peer_closed(exc)
        self._transport = None
        self._answers.forget()

    def pause_writing(self) -> None:
        """Called by the loop: the upstream is slow to take what is sent."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """Called by the loop."""
        self.write_paused = False
        if self._response is not None:
            self._response.wake()

    # --- how an exchange ends

    def _finish(self, response: Response) -> None:
        self._response = None
        transport = self._transport
        alive = transport is not None and not self.closed and not transport.is_closing()
        if alive and self._answers.clean and self._method == "CONNECT" and response.status < 300:
            pass  # a tunnel now: what comes next is TLS
        elif alive and self._answers.reusable and self._sent and not self._unsent_bytes():
            self.resume_reading()
            self._on_free(self)
        else:
            self._close(None)
        response.ended()

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _peer_closed(self, exc: Exception | None) -> None:
        if self.closed:
            return
        response = self._response
        if response is None:
            self._close(None)
        elif exc is None and self._answers.end():
            self._response = None
            self._close(None)
            response.ended()
        elif not self._answers.touched:
            self._close(faults.closed_early(self.peer))
        else:
            self._close(faults.cut(self.peer, headed=bool(response.status)))

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
