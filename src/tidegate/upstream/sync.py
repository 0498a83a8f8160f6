"""Knows how to send a request and read its answer by blocking calls, on kept connections, by the rules of `Pool`.

The blocking driver calls it, from any thread.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterable, Callable
from typing import TypeAlias

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import faults
from tidegate.upstream.connect import Connector, peer_name, tune, tunnel_request
from tidegate.upstream.framing import Answers, Broken
from tidegate.upstream.http import Headers, Request, Timeouts, chunk, may_repeat, proxy_headers, write_head
from tidegate.upstream.pool import Counters
from tidegate.upstream.proxy import NO_PROXIES, Proxies, Proxy
from tidegate.upstream.url import Address, parse

_Key: TypeAlias = tuple[str, str, int]

_RECEIVE = 64 * 1024


class SyncConnection:
    """One socket, non-blocking: what it can't do at once it waits for, with a timeout."""

    def __init__(self, sock: socket.socket, peer: str, key: _Key) -> None:
        self.sock = sock
        self.peer = peer
        self.key = key
        self.answers = Answers()
        self.reused = False
        self.idle_since = 0.0

    def receive(self, seconds: float) -> bytes:
        """Some bytes, `b""` at the end of the stream. Raises `TimeoutError`, `OSError`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.sock.recv(_RECEIVE)
            except (BlockingIOError, ssl.SSLWantReadError):
                ready = _wait(self.sock, deadline, read=True)
            except ssl.SSLWantWriteError:
                ready = _wait(self.sock, deadline, write=True)
            if not ready:
                raise TimeoutError

    def send(self, data: bytes, seconds: float, look: Callable[[], bool]) -> bool:
        """Sends all of `data`, unless `look`, called when the upstream has something to say, returns True.

        Returns whether it was all sent. `seconds` is how long nothing at all may be taken. Raises `TimeoutError`,
        `OSError`.
        """
        rest = memoryview(data)
        while rest:
            deadline = time.monotonic() + seconds
            try:
                rest = rest[self.sock.send(rest) :]
                continue
            except (BlockingIOError, ssl.SSLWantWriteError):
                ready = _wait(self.sock, deadline, read=True, write=True)
            except ssl.SSLWantReadError:
                ready = _wait(self.sock, deadline, read=True)
            if not ready:
                raise TimeoutError
            if _wait(self.sock, 0, read=True) and look():
                return False
        return True

    @property
    def quiet(self) -> bool:
        """Nothing has come while it was idle: neither noise nor the end."""
        buffered = self.sock.pending() if isinstance(self.sock, ssl.SSLSocket) else 0
        return not buffered and not _wait(self.sock, 0, read=True)

    def close(self) -> None:
        """At once."""
        self.sock.close()


class SyncResponse:
    """An answer. Its head is there; its body is read piece by piece. As `Response`, without `await`."""

    def __init__(self, pool: SyncPool, connection: SyncConnection, read_seconds: float) -> None:
        self.status = 0
        self.reason = b""
        self.headers: Headers = []
        self.http_version = ""
        self._pool = pool
        self._connection: SyncConnection | None = connection
        self._read_seconds = read_seconds
        self._length: int | None = None
        self._pieces: list[bytes] = []
        self._error: UpstreamError | None = None
        self._sent = False

    def read(self) -> bytes:
        """The next piece of the body, `b""` at the end.

        Raises `UpstreamError` where the body was cut before its end or nothing came for `Timeouts.read` seconds; what
        came before is delivered first.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._connection is None:
                return b""
            self._advance(self._connection, self._read_seconds, faults.SENT_NOTHING)
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_all(self, limit: int) -> bytes:
        """The rest of the body. Raises `UpstreamError` where it is cut, or longer than `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        too_long = self._length is not None and self._length > limit
        while not too_long and (piece := self.read()):
            pieces.append(piece)
            size += len(piece)
            too_long = size > limit
        if too_long:
            self.close()
            raise faults.too_long(limit)
        return b"".join(pieces)

    def close(self) -> None:
        """Done with it, or no longer wanted: an unfinished body closes the connection, which cancels the upstream."""
        self._pieces = []
        if self._connection is not None:
            self._fail(faults.abandoned(self._connection.peer))

    # --- for the pool

    def transmit(self, parts: list[bytes], request: Request, seconds: float) -> None:
        """Sends the request; stops where the upstream has already refused it or is gone."""
        connection = self._connection
        assert connection is not None
        try:
            self._sent = all(connection.send(part, seconds, self._refused) for part in parts) and self._stream(
                connection, request, seconds
            )
        except TimeoutError:
            self._fail(faults.timed_out(connection.peer, faults.TOOK_NOTHING, seconds))
        except OSError:
            pass  # what it said before it closed may still be there to be read
        except BaseException:
            self.close()
            raise

    def head(self, seconds: float) -> None:
        """Waits for status and headers."""
        deadline = time.monotonic() + seconds
        while not self.status:
            if self._error is not None:
                raise self._error
            assert self._connection is not None
            self._advance(self._connection, max(0.0, deadline - time.monotonic()), faults.BEGAN_NOT, seconds)

    def _stream(self, connection: SyncConnection, request: Request, seconds: float) -> bool:
        body, length = request.body, request.content_length
        if body is None or isinstance(body, bytes):
            return True
        if isinstance(body, AsyncIterable):
            raise TypeError("the body of a blocking request is bytes or an iterable of them")
        sent = 0
        for piece in body:
            sent += len(piece)
            if length is not None and sent > length:
                raise faults.body_length(longer=True)
            if piece and not connection.send(piece if length is not None else chunk(piece), seconds, self._refused):
                return False
        if length is not None and sent < length:
            raise faults.body_length(longer=False)
        return length is not None or connection.send(chunk(b""), seconds, self._refused)

    def _refused(self) -> bool:
        """Reads what has come while sending. Whether the rest need not be sent."""
        if self._connection is not None:
            try:
                self._advance(self._connection, 0, faults.BEGAN_NOT, quiet=True)
            except TimeoutError:
                return False  # TLS had something to say, HTTP had not
        return self._connection is None or self.status >= 300

    def _advance(
        self, connection: SyncConnection, seconds: float, failure: str, told: float | None = None, quiet: bool = False
    ) -> None:
        """Receives once. Cuts and timeouts end the response with an error."""
        try:
            data = connection.receive(seconds)
        except TimeoutError:
            if quiet:
                raise
            self._fail(faults.timed_out(connection.peer, failure, seconds if told is None else told))
        except OSError:
            self._cut(connection)
        except BaseException:
            self.close()
            raise
        else:
            if data:
                self._take(connection, data)
            elif connection.answers.end():
                self._finish(connection)
            else:
                self._cut(connection)

    def _take(self, connection: SyncConnection, data: bytes) -> None:
        answers = connection.answers
        fault: Broken | None = None
        try:
            answers.feed(data)
        except Broken as broken:
            fault = broken
        if answers.status and not self.status:
            self.status, self.reason = answers.status, answers.reason
            self.headers, self.http_version = answers.headers, answers.http_version
            self._length = answers.length
        self._pieces += answers.pieces
        answers.pieces = []
        if fault is not None:
            self._fail(faults.broken(connection.peer, fault))
        elif answers.complete:
            self._finish(connection)

    def _finish(self, connection: SyncConnection) -> None:
        self._connection = None
        self._pool.release(connection, usable=self._sent and connection.answers.reusable)

    def _cut(self, connection: SyncConnection) -> None:
        headed = bool(self.status)
        touched = connection.answers.touched
        self._fail(faults.cut(connection.peer, headed=headed) if touched else faults.closed_early(connection.peer))

    def _fail(self, error: UpstreamError) -> None:
        self._error = error
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection, usable=False)


class SyncPool:
    """Kept-alive HTTP/1.1 connections for threads. As `Pool`; how many are open at once is the threads' affair."""

    def __init__(
        self,
        *,
        timeouts: Timeouts | None = None,
        idle_seconds: float = 60,
        ca_file: str | None = None,
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        self._timeouts = timeouts or Timeouts()
        self._idle_seconds = idle_seconds
        self._proxies = proxies
        self._connector = Connector(ca_file)
        self._lock = threading.Lock()
        self._idle: dict[_Key, list[SyncConnection]] = {}
        self._opened = self._reused = self._open_now = 0
        self._closed = False

    @property
    def counters(self) -> Counters:
        """Connections opened, used again, open now."""
        with self._lock:
            return Counters(self._opened, self._reused, self._open_now)

    def send(self, request: Request, timeouts: Timeouts | None = None) -> SyncResponse:
        """Sends a request and returns the answer as soon as its head is there. Any status is an answer.

        Retries as `Pool.send` does (`may_repeat`). Raises `UpstreamError` (status 504 for a timeout).
        """
        timeouts = timeouts or self._timeouts
        address = parse(request.url)
        key = (address.scheme, address.host, address.port)
        proxy = self._proxies.choose(*key)
        connection = self._take_idle(key) or self._open(address, proxy, key, timeouts.connect)
        started = time.monotonic()
        try:
            return self._exchange(connection, address, proxy, request, timeouts)
        except faults.ClosedEarly:
            if not connection.reused or not may_repeat(request, time.monotonic() - started):
                raise
        connection = self._open(address, proxy, key, timeouts.connect)
        return self._exchange(connection, address, proxy, request, timeouts)

    def close(self) -> None:
        """Closes the idle connections; those in use are closed when their answers end."""
        with self._lock:
            self._closed = True
            idle = [connection for stack in self._idle.values() for connection in stack]
            self._idle.clear()
        for connection in idle:
            self._drop(connection)

    def release(self, connection: SyncConnection, *, usable: bool) -> None:
        """A response gives its connection back."""
        connection.idle_since = time.monotonic()
        with self._lock:
            kept = usable and not self._closed
            if kept:
                self._idle.setdefault(connection.key, []).append(connection)
        if not kept:
            self._drop(connection)

    def _drop(self, connection: SyncConnection) -> None:
        connection.close()
        with self._lock:
            self._open_now -= 1

    def _exchange(
        self, connection: SyncConnection, address: Address, proxy: Proxy | None, request: Request, timeouts: Timeouts
    ) -> SyncResponse:
        connection.answers.begin(request.method)
        response = SyncResponse(self, connection, timeouts.read)
        through = proxy if address.scheme == "http" else None
        try:
            head = write_head(request, address, proxy_headers(through), absolute=through is not None)
        except BaseException:
            response.close()
            raise
        parts = [head, request.body] if isinstance(request.body, bytes) else [head]
        response.transmit(parts, request, timeouts.read)
        response.head(timeouts.head)
        return response

    def _take_idle(self, key: _Key) -> SyncConnection | None:
        while True:
            with self._lock:
                if self._closed:
                    raise faults.shutting_down()
                stack = self._idle.get(key)
                connection = stack.pop() if stack else None
            if connection is None:
                return None
            if not self._too_old(connection) and connection.quiet:
                break
            self._drop(connection)
        connection.reused = True
        with self._lock:
            self._reused += 1
        return connection

    def _too_old(self, connection: SyncConnection) -> bool:
        limit = self._idle_seconds
        announced = connection.answers.keep_alive_seconds
        if announced is not None:
            limit = min(limit, announced - 1)
        return time.monotonic() - connection.idle_since > limit

    def _open(self, address: Address, proxy: Proxy | None, key: _Key, seconds: float) -> SyncConnection:
        peer = peer_name(address, proxy)
        deadline = time.monotonic() + seconds
        sock: socket.socket | None = None
        try:
            target = (address.host, address.port) if proxy is None else (proxy.host, proxy.port)
            sock = socket.create_connection(target, timeout=seconds)
            tune(sock)
            if address.scheme == "https":
                if proxy is not None:
                    _tunnel(SyncConnection(sock, peer, key), address, proxy, deadline)
                sock.settimeout(max(0.001, deadline - time.monotonic()))
                sock = self._connector.tls.wrap_socket(sock, server_hostname=address.host)
            sock.setblocking(False)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, TimeoutError):
                raise faults.connect_timed_out(peer, seconds) from None
            if isinstance(error, OSError | ValueError):
                raise faults.connect_failed(peer, error) from error
            raise
        with self._lock:
            self._opened += 1
            self._open_now += 1
        return SyncConnection(sock, peer, key)


def _tunnel(connection: SyncConnection, address: Address, proxy: Proxy, deadline: float) -> None:
    """Asks for a tunnel on a connection whose socket has a timeout. Raises `UpstreamError`, `OSError`."""
    answers = connection.answers
    answers.begin("CONNECT")
    connection.sock.sendall(tunnel_request(address, proxy))
    while not answers.status:
        connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
        data = connection.sock.recv(_RECEIVE)
        if not data:
            raise faults.closed_early(connection.peer)
        try:
            answers.feed(data)
        except Broken as fault:
            raise faults.broken(connection.peer, fault) from None
    if not 200 <= answers.status < 300:
        raise faults.tunnel_refused(proxy.name, address.name, answers.status)
    if not answers.clean:
        raise ConnectionResetError("bytes of the proxy's before TLS")


def _wait(sock: socket.socket, deadline: float, *, read: bool = False, write: bool = False) -> bool:
    """Whether the socket is ready before the deadline, a time of the monotonic clock; 0 asks without waiting."""
    seconds = max(0.0, deadline - time.monotonic())
    if hasattr(select, "poll"):  # select() itself fails for descriptors from 1024 on
        poll = select.poll()
        poll.register(sock, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        return bool(poll.poll(seconds * 1000))
    ready = select.select([sock] if read else [], [sock] if write else [], [], seconds)
    return any(ready)
