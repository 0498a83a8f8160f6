"""An upstream's answer while it is still undecided who gets it: its head is read and held, the rest waits.

Knows streams and watches; decides nothing. Called by the asyncio driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from tidegate.engine.effects import Finish, Head
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
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
        self.encoding = self.plain.get("content-encoding", "").strip().lower()
        self.watch = None if self.encoding not in ("", "identity") else Watch(dialect, self.content_type)
        self.held: list[bytes] = []
        self.at_end = False
        self.opened = False
        """Some of it has been given away."""
        self._next: asyncio.Future[bytes] | None = None

    @property
    def streamed(self) -> bool:
        """Whether it is a stream of events."""
        return self.content_type.lower().startswith("text/event-stream")

    async def head(self) -> Head:
        """Reads as far as needed to tell an answer from a refusal, for `hold_seconds` at most."""
        status = self.incoming.status
        if status >= 400:
            await self._hold(REFUSAL_LIMIT, stop=lambda: False)
            return Head(self.number, status, self.plain, self._refusal())
        if status != 200 or self.watch is None:
            return Head(self.number, status, self.plain)
        if self.streamed:
            await self._hold(self.hold_bytes, stop=self._told)
            if self.watch is not None and self.watch.error_before_content:
                return Head(self.number, status, self.plain, self.watch.error, in_stream=True)
        else:
            await self._hold(JSON_HOLD, stop=lambda: False)
            if self.at_end and self._close_watch() and self.watch is not None and self.watch.error:
                return Head(self.number, status, self.plain, b"".join(self.held))
        return Head(self.number, status, self.plain)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The whole body, held pieces first. Raises `UpstreamError` where it is cut."""
        self.opened = True
        for piece in self.held:
            yield piece
        self.held = []
        while not self.at_end:
            piece = await self._read()
            if piece:
                yield piece
                self._feed(piece)

    def finish(self, *, complete: bool) -> Finish:
        """How it ended, as far as the watch could see."""
        if not self._close_watch() or self.watch is None:
            return Finish(complete=complete)
        failed = bool(self.watch.error)
        ended = self.watch.ended or not self.streamed
        return Finish(self.watch.usage, self.watch.finish, complete and ended and not failed)

    async def close(self) -> None:
        """Gives the connection back, or ends it where the body was not read to its end."""
        if self._next is not None:
            self._next.cancel()
        await self.incoming.close()

    async def _hold(self, limit: int, *, stop: Callable[[], bool]) -> None:
        deadline = asyncio.get_running_loop().time() + self.hold_seconds
        size = 0
        while not self.at_end and size < limit and not stop():
            piece = await self._read_until(deadline)
            if piece is None:
                return
            if piece:
                size += len(piece)
                self.held.append(piece)
                self._feed(piece)

    def _told(self) -> bool:
        watch = self.watch
        return watch is None or watch.begun or bool(watch.error) or watch.ended

    def _refusal(self) -> bytes:
        """The body of a refusal as it can be read: some servers compress errors, whatever was asked for."""
        body = b"".join(self.held)
        try:
            return decode_body(body, self.encoding, REFUSAL_LIMIT) if self.encoding else body
        except (BodyUnreadable, BodyTooLarge):
            return body

    def _feed(self, piece: bytes) -> None:
        """Shows a piece to the watch. A watch that fails is done without: what it watches goes on."""
        if self.watch is not None:
            try:
                self.watch.feed(piece)
            except Exception:
                self.watch = None

    def _close_watch(self) -> bool:
        """Ends the watch; False where there is none."""
        if self.watch is not None:
            try:
                self.watch.close()
            except Exception:
                self.watch = None
        return self.watch is not None

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
