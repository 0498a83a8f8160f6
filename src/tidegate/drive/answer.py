"""An upstream's answer on asyncio: its head is read and held, the rest waits.

Knows how to read and when to stop waiting; `held` knows what was read. Called by the asyncio driver.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tidegate.drive.held import Held
from tidegate.engine.effects import Head, UpstreamError
from tidegate.wire.conversation import DialectName


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


class HeldAnswer(Held):
    """One answer: `head()` once, then either its pieces (`drive.pieces`) or `close()`."""

    def __init__(
        self, number: int, incoming: Incoming, dialect: DialectName, *, hold_seconds: float, hold_bytes: int
    ) -> None:
        super().__init__(number, incoming.status, incoming.headers, dialect, hold_bytes)
        self.incoming, self.hold_seconds = incoming, hold_seconds
        self._next: asyncio.Future[bytes] | None = None

    async def head(self) -> Head:
        """Reads as far as needed to tell an answer from a refusal, for `hold_seconds` at most."""
        deadline = asyncio.get_running_loop().time() + self.hold_seconds
        while not self.enough():
            try:
                piece = await self._read_until(deadline)
            except UpstreamError as error:
                self.cut(error)
                break
            if piece is None:
                break
            self.hold(piece)
        return self.judged()

    async def close(self) -> None:
        """Gives the connection back, or ends it where the body was not read to its end."""
        if self._next is not None:
            self._next.cancel()
        await self.incoming.close()

    async def read(self) -> bytes:
        """The next piece that is not held, empty at the end. Raises `UpstreamError`."""
        if self._next is None:
            return await self.incoming.read()
        pending, self._next = self._next, None
        return await pending

    async def _read_until(self, deadline: float) -> bytes | None:
        """The next piece, or None when the time is up; the read goes on and the next one gets its result."""
        if self._next is None:
            self._next = asyncio.ensure_future(self.incoming.read())
        left = deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait({self._next}, timeout=max(0.0, left))
        return await self.read() if done else None
