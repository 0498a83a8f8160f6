"""Bytes between the simulator and a client: bodies in, answers and broken answers out.

Knows ASGI; nothing of any API. Called by the app.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

import zstandard

from tidegate.simulator.jsontext import JsonValue, encode
from tidegate.simulator.refusals import Refusal

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class Gone(Exception):
    """The client has left."""


class Exchange:
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.client: str = (scope.get("client") or ("", 0))[0]
        self.headers: dict[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.status = 0
        self._receive = receive
        self._send = send
        self._transport = (scope.get("state") or {}).get("transport")
        self._left = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    @property
    def key(self) -> str:
        """The caller's key, empty where there is none."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        bearer = token if scheme.lower() == "bearer" else ""
        return self.headers.get("x-api-key") or self.headers.get("api-key") or bearer

    async def body(self, most: int) -> bytes:
        """The whole request body, decompressed.

        Raises `Refusal` over `most` bytes or where it can't be read, `Gone` where the client left.
        """
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                _too_large()
            more = message.get("more_body", False)
        return _decompressed(b"".join(parts), self.headers.get("content-encoding", ""), most)

    async def wait(self, seconds: float) -> None:
        """Waits, unless the client leaves. Raises `Gone`."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_client())
        try:
            await asyncio.wait_for(self._left.wait(), seconds)
        except TimeoutError:
            return
        raise Gone

    async def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Status and headers of an answer that comes in pieces."""
        self.status = status
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_client())
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def part(self, data: bytes) -> None:
        """A piece of the answer. Raises `Gone`."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        if self._left.is_set():
            raise Gone

    async def end(self) -> None:
        """The answer is complete."""
        self._stop_watching()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, body: bytes, headers: Iterable[tuple[str, str]]) -> None:
        """A complete answer at once."""
        self.status = status
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        pairs.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body})

    async def json(self, status: int, value: JsonValue, headers: Iterable[tuple[str, str]] = ()) -> None:
        """A complete JSON answer."""
        await self.whole(status, encode(value), [("content-type", "application/json"), *headers])

    async def abort(self) -> None:
        """Breaks the connection off. Without a server that lends its transport, the answer just never ends."""
        self._stop_watching()
        # What was written last must be on its way before the line goes dead.
        await asyncio.sleep(0.01)
        if self._transport is not None:
            self._transport.abort()
            await asyncio.sleep(0)

    def close(self) -> None:
        """Lets go of what watched the client."""
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left.set()


def _too_large() -> None:
    raise Refusal("Request exceeds the maximum size", rule="size", status=413, type="request_too_large", kind="size")


def _decompressed(data: bytes, encoding: str, most: int) -> bytes:
    try:
        match encoding.lower().strip():
            case "" | "identity":
                return data
            case "gzip" | "deflate":
                unpacked = zlib.decompressobj(wbits=47 if encoding == "gzip" else 15)
                data = unpacked.decompress(data, most + 1)
                if not unpacked.eof and len(data) <= most:
                    raise EOFError
            case "zstd":
                data = zstandard.ZstdDecompressor().stream_reader(data).read(most + 1)
            case other:
                raise Refusal(f"Unsupported content encoding: {other}", rule="encoding", status=415, kind="body")
    except (EOFError, zlib.error, zstandard.ZstdError):
        raise Refusal("The request body could not be decompressed.", rule="encoding", kind="body") from None
    if len(data) > most:
        _too_large()
    return data
