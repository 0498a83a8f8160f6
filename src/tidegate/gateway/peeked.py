"""An answer whose body was looked at before it is passed on, byte for byte.

Knows pieces; judges nothing. Called where a refusal decides whether the same request goes out with another key.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from tidegate.engine.effects import UpstreamError
from tidegate.upstream.client import Answer
from tidegate.upstream.http import Headers

MOST_BYTES: Final = 64 * 1024
MOST_SECONDS: Final = 5.0
"""A refusal is short and comes at once; what is not is passed on unread."""


class Peeked:
    """The same answer. `beginning` once, before all else."""

    __slots__ = ("_answer", "_next", "_pieces")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._pieces: deque[bytes] = deque()
        self._next: asyncio.Future[bytes] | None = None

    @property
    def status(self) -> int:
        """See `Answer`."""
        return self._answer.status

    @property
    def headers(self) -> Headers:
        """See `Answer`."""
        return self._answer.headers

    async def beginning(self) -> bytes:
        """The body as far as it came within those bounds. Whoever is cancelled here has done with it."""
        try:
            return await self._beginning()
        except asyncio.CancelledError:
            self.abandon()
            raise

    async def _beginning(self) -> bytes:
        loop = asyncio.get_running_loop()
        deadline, size = loop.time() + MOST_SECONDS, 0
        while size < MOST_BYTES:
            self._next = asyncio.ensure_future(self._answer.read())
            done, _ = await asyncio.wait({self._next}, timeout=max(0.0, deadline - loop.time()))
            if not done or self._next.exception() is not None:
                break  # whoever reads on gets its result
            piece, self._next = self._next.result(), None
            self._pieces.append(piece)
            size += len(piece)
            if not piece:
                break
        return b"".join(self._pieces)

    async def read(self) -> bytes:
        """See `Answer`."""
        if self._pieces:
            return self._pieces.popleft()
        if self._next is not None:
            pending, self._next = self._next, None
            return await pending
        return await self._answer.read()

    async def read_all(self, limit: int) -> bytes:
        """See `Answer`."""
        whole = bytearray()
        while piece := await self.read():
            whole += piece
            if len(whole) > limit:
                raise UpstreamError(f"the answer is longer than {limit} bytes")
        return bytes(whole)

    async def close(self) -> None:
        """See `Answer`."""
        self._leave()
        await self._answer.close()

    def abandon(self) -> None:
        """See `Answer`."""
        self._leave()
        self._answer.abandon()

    def _leave(self) -> None:
        if self._next is not None:
            self._next.cancel()
