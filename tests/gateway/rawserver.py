"""An upstream that answers with exactly the bytes a test gives it, and keeps every byte it was sent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias


class _Sign:
    """A step that is no bytes."""


CUT: Final = _Sign()
"""Break the connection off."""
CLOSE: Final = _Sign()
"""End the connection in good order."""
HOLD: Final = _Sign()
"""Wait until the other side leaves."""

Step: TypeAlias = "bytes | float | _Sign"
Steps: TypeAlias = "tuple[Step, ...]"


@dataclass
class Seen:
    """One request as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    """The body has come to its end."""
    left: threading.Event = field(default_factory=threading.Event)
    """The other side closed before the answer's end."""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    def one(self, name: str) -> str | None:
        found = self.all(name)
        assert len(found) <= 1, f"{name} came {len(found)} times"
        return found[0] if found else None


def answer(
    body: bytes = b'{"ok":true}', *, status: str = "200 OK", kind: str | None = "application/json", extra: str = ""
) -> bytes:
    """A whole answer; `extra` are header lines, each with its line end."""
    kind = f"Content-Type: {kind}\r\n" if kind else ""
    return f"HTTP/1.1 {status}\r\n{kind}{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chunks(*pieces: bytes, end: bool = True) -> list[bytes]:
    """Pieces of a chunked body, each as one chunk."""
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + ([b"0\r\n\r\n"] if end else [])


def stream_head(extra: str = "", kind: str = "text/event-stream") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{extra}Transfer-Encoding: chunked\r\n\r\n".encode()


class RawServer:
    """`then` sets the steps for the next requests, one call a request; without, `default` answers."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Seen] = []
        self.connections = 0
        self.default: Callable[[Seen], Steps] = lambda seen: (answer(),)
        self._next: deque[Steps] = deque()

    def then(self, *steps: Step) -> None:
        self._next.append(steps)

    def reset(self) -> None:
        self.seen.clear()
        self._next.clear()
        self.default = lambda seen: (answer(),)

    def wait(self, count: int = 1, seconds: float = 5.0) -> Seen:
        """The newest request, once so many have come."""
        deadline = time.monotonic() + seconds
        while len(self.seen) < count:
            assert time.monotonic() < deadline, f"{len(self.seen)} of {count} requests came"
            time.sleep(0.002)
        return self.seen[-1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            if self.seen:
                self.seen[-1].left.set()
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head[:-4].split("\r\n")
        method, target, _ = line.split(" ")
        pairs = [field.split(": ", 1) for field in fields]
        seen = Seen(method, target, [(name, value) for name, value in pairs])
        self.seen.append(seen)
        await self._body(reader, seen)
        seen.whole = True
        for step in self._next.popleft() if self._next else self.default(seen):
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, float):
                if await self._left_within(reader, step):
                    seen.left.set()
                    return False
            elif step is HOLD:
                await self._left_within(reader, 30.0)
                seen.left.set()
                return False
            else:
                if step is CUT:
                    writer.transport.abort()
                return False
        return True

    async def _body(self, reader: asyncio.StreamReader, seen: Seen) -> None:
        if seen.one("transfer-encoding"):
            while size := int((await reader.readline()).strip(), 16):
                seen.body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
            return
        left = int(seen.one("content-length") or 0)
        while left:
            piece = await reader.read(min(left, 65536))
            if not piece:
                raise ConnectionError
            seen.body += piece
            left -= len(piece)

    async def _left_within(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while await reader.read(65536):
                    pass
                return True
        except TimeoutError:
            return False


@contextmanager
def raw_server() -> Iterator[RawServer]:
    server, loop, ready = RawServer(), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        listening.close()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True, name="raw upstream")
    thread.start()
    assert ready.wait(5)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)
        loop.close()
