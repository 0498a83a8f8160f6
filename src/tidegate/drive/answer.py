"""An upstream's answer while it is still undecided who gets it: its head is read and held, the rest waits.

Knows streams and watches; decides nothing. Called by the asyncio driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from tidegate.engine.effects import Finish, Head
from tidegate.wire.conversation import DialectName
from tidegate.wire.watch import Watch

REFUSAL_LIMIT = 1 << 20
"""Bytes of a refusal that are read to judge it."""

JSON_HOLD = 1 << 18
"""Bytes of a plain answer that are held to see whether it is an error in disguise."""


class Incoming(Protocol):
    """What an upstream client gives for an answer (`tidegate.upstream.http.Response`)."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """As the upstream sent them."""
        ...

    async def read(self) -> bytes:
        """The next piece, empty at the end."""
        ...

    async def close(self) -> None:
        """Done with it."""
        ...


class HeldAnswer:
    """One answer: `head()` once, then either `pieces()` or `close()`."""

    def __init__(
        self, number: int, incoming: Incoming, dialect: DialectName, *, hold_seconds: float, hold_bytes: int
    ) -> None:
        self.number, self.incoming = number, incoming
        self.hold_seconds, self.hold_bytes = hold_seconds, hold_bytes
        self.plain = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in incoming.headers}
        self.content_type = self.plain.get("content-type", "")
        encoded = self.plain.get("content-encoding", "identity").strip().lower() not in ("", "identity")
        self.watch = None if encoded else Watch(dialect, self.content_type)
        self.held: list[bytes] = []
        self.at_end = False
        self.broken = False
        self._next: asyncio.Future[bytes] | None = None

    @property
    def streamed(self) -> bool:
        """Whether it is a stream of events."""
        return self.content_type.lower().startswith("text/event-stream")

    async def head(self) -> Head:
        """Reads as far as needed to tell an answer from a refusal."""
        status = self.incoming.status
        if status >= 400:
            await self._hold(REFUSAL_LIMIT, None, stop=lambda: False)
            return Head(self.number, status, self.plain, b"".join(self.held))
        if status != 200 or self.watch is None:
            return Head(self.number, status, self.plain)
        watch = self.watch
        if self.streamed:
            await self._hold(
                self.hold_bytes,
                self.hold_seconds,
                stop=lambda: watch.begun or bool(watch.error) or watch.ended,
            )
            if watch.error_before_content:
                return Head(self.number, status, self.plain, watch.error, in_stream=True)
        else:
            await self._hold(JSON_HOLD, self.hold_seconds, stop=lambda: False)
            if self.at_end:
                watch.close()
                if watch.error:
                    return Head(self.number, status, self.plain, b"".join(self.held))
        return Head(self.number, status, self.plain)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The whole body, held pieces first. Raises `UpstreamError` where it is cut."""
        for piece in self.held:
            yield piece
        self.held = []
        while not self.at_end:
            piece = await self._read()
            if piece:
                yield piece
                if self.watch is not None:
                    self.watch.feed(piece)

    def finish(self, *, complete: bool) -> Finish:
        """How it ended, as far as the watch could see."""
        if self.watch is None:
            return Finish(complete=complete)
        self.watch.close()
        failed = bool(self.watch.error)
        ended = self.watch.ended or not self.streamed
        return Finish(self.watch.usage, self.watch.finish, complete and ended and not failed)

    async def close(self) -> None:
        """Gives the connection back, or ends it where the body was not read to its end."""
        if self._next is not None:
            self._next.cancel()
        await self.incoming.close()

    async def _hold(self, limit: int, seconds: float | None, *, stop: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        size = 0
        while not self.at_end and size < limit and not stop():
            if deadline is None:
                piece = await self._read()
            else:
                piece_or_none = await self._read_until(deadline)
                if piece_or_none is None:
                    return
                piece = piece_or_none
            if piece:
                size += len(piece)
                self.held.append(piece)
                if self.watch is not None:
                    self.watch.feed(piece)

    async def _read(self) -> bytes:
        if self._next is not None:
            pending, self._next = self._next, None
            piece = await pending
        else:
            piece = await self.incoming.read()
        if not piece:
            self.at_end = True
        return piece

    async def _read_until(self, deadline: float) -> bytes | None:
        """The next piece, or None when the time is up; the read goes on and the next one gets its result."""
        if self._next is None:
            self._next = asyncio.ensure_future(self.incoming.read())
        left = deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait({self._next}, timeout=max(0.0, left))
        if not done:
            return None
        return await self._read()
