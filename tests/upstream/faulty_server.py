"""A server that does as it is told, right or wrong: each test writes down what happens on a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Received:
    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str:
        found = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(found) == 1, f"{name}: {found}"
        return found[0]

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def __contains__(self, name: str) -> bool:
        return any(key.lower() == name.lower() for key, _ in self.headers)


class Peer:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Server) -> None:
        self.reader, self.writer, self.server = reader, writer, server

    async def head(self) -> Received | None:
        try:
            raw = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        line, *fields = raw[:-4].decode("latin-1").split("\r\n")
        return Received(line, [tuple(f.split(": ", 1)) for f in fields], b"")  # type: ignore[misc]

    async def request(self) -> Received | None:
        """The next request, None where the client has gone."""
        got = await self.head()
        if got is None:
            return None
        try:
            if "transfer-encoding" in got:
                chunks = []
                while size := int(await self.reader.readline(), 16):
                    chunks.append(await self.reader.readexactly(size))
                    await self.reader.readexactly(2)
                await self.reader.readline()
                got.body = b"".join(chunks)
            elif "content-length" in got:
                got.body = await self.reader.readexactly(int(got["content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return None
        self.server.requests.append(got)
        return got

    async def send(self, *pieces: bytes, pause: float = 0) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            if pause:
                await asyncio.sleep(pause)

    async def gone(self) -> bool:
        """Waits until the client closes."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Server:
    script: Script
    tls: ssl.SSLContext | None = None
    scheme: str = "http"
    port: int = 0
    connections: int = 0
    open: int = 0
    requests: list[Received] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.scheme = "https" if self.tls else "http"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # connections just accepted become tasks
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.001)  # transports close their sockets in the next rounds

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        self.connections += 1
        self.open += 1
        try:
            await self.script(Peer(reader, writer, self))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.close()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"


def answers(*raw: bytes, then: Script | None = None) -> Script:
    """Each request of each connection gets the next answer; the last one for good. Keeps the connection open."""

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(raw[min(len(peer.server.requests), len(raw)) - 1])
        if then is not None:
            await then(peer)

    return script


def once(raw: bytes, *, reset: bool = False) -> Script:
    """One answer, then the connection is closed."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(raw)
        if reset:
            await asyncio.sleep(0.05)
            peer.reset()

    return script


async def settled(condition: Callable[[], bool], seconds: float = 3) -> None:
    """Waits for a condition that the other side brings about."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen")


@contextlib.contextmanager
def in_a_thread(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """The server for callers that block: its loop runs in a thread."""
    server = Server(script, tls)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(5)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


def settle(condition: Callable[[], bool], seconds: float = 3) -> None:
    """`settled` for callers that block."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("did not happen")
