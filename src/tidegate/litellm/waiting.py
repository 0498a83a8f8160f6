"""`litellm.acompletion` with every conversation kept inside its window: the twin of `blocking`.

Knows how litellm answers an asynchronous call; the decisions are the engine's. Put in place by `installed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from tidegate.client.crossing import crossing
from tidegate.client.house import House
from tidegate.client.waiting import Body, begun
from tidegate.compactors.strategy import Call, Reply
from tidegate.engine.effects import UpstreamError
from tidegate.litellm.asking import Asking, Heard, Passed, answered, asked, elsewhere, lost, replied, streamed
from tidegate.litellm.blocking import looked_after

_closing: Final[set[asyncio.Future[None]]] = set()
"""Streams that nobody reads on, while they end: asyncio itself keeps no task alive."""


class Incoming(Heard):
    """An answer; see `tidegate.drive.answer.Incoming`."""

    def __init__(self, response: Any = None, error: Exception | None = None, *, stream: bool = False) -> None:
        super().__init__(response, error, stream=stream)
        self._chunks: AsyncIterator[Any] | None = aiter(response) if stream else None

    async def begin(self) -> None:
        """Reads a stream's first chunk: many providers are asked only then. Raises what litellm raises."""
        self.waiting.append(await self._next())

    async def read(self) -> bytes:
        """The next piece; empty at the end. Raises `UpstreamError`."""
        if self.waiting:
            return self.waiting.popleft()
        if not self.stream:
            return b""
        try:
            return await self._next()
        except Exception as error:
            raise UpstreamError(type(error).__name__) from error

    async def close(self) -> None:
        """Done with it."""
        close = getattr(self.response, "aclose", None) if self.stream else None
        if close is not None:
            await close()

    async def _next(self) -> bytes:
        assert self._chunks is not None
        with looked_after():
            async for chunk in self._chunks:
                return self.piece(chunk)
        self.stream = False
        return b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Upstream:
    """See `tidegate.drive.aio.Upstream`."""

    asking: Asking
    acompletion: Callable[..., Awaitable[Any]]
    house: House

    async def send(
        self, body: bytes | None, add_headers: Mapping[str, str], *, again: bool = False, credential: str = ""
    ) -> Incoming:
        """Calls litellm. Raises `UpstreamError` from an exception that stands for no answer."""
        kwargs = self.asking.asked.sending(body, add_headers)
        try:
            with looked_after():
                response = await self.acompletion(**kwargs)
            incoming = Incoming(response, stream=bool(kwargs.get("stream")))
            if incoming.stream:
                await incoming.begin()
        except Exception as error:
            if not answered(error):
                raise UpstreamError(type(error).__name__) from error
            incoming = Incoming(error=error)
        self.asking.crossing.heard(incoming.status)
        return incoming

    async def call(self, call: Call) -> Reply:
        """Makes a call of a compaction."""
        if call.via:
            return await self.house.custom.ask_async(call)
        known = elsewhere(call)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(call.timeout):
                with looked_after():
                    return replied(await self.acompletion(**self.asking.asked.calling(call)))
        except TimeoutError:
            return Reply(0, error=f"no answer within {call.timeout:g} seconds")
        except Exception as error:
            return lost(error)


async def kept(acompletion: Callable[..., Awaitable[Any]], house: House, kwargs: dict[str, Any]) -> Any:
    """Calls `acompletion` and gives what it gives. Raises what litellm raises."""
    told = asked(kwargs, house)
    if told is None:
        return await acompletion(**kwargs)
    tools = house.here()
    one = crossing(house, tools.kit, tools.tenants, told.place, told.headers, told.raw)
    asking = Asking(told, one)
    body, outcome = await begun(asking, Upstream(asking, acompletion, house), house, tools.flights)
    incoming = body.answer.incoming
    assert isinstance(incoming, Incoming)
    response = incoming.given(one.given([], outcome))
    if kwargs.get("stream") and incoming.error is None:
        own: Any = type(response)
        return streamed(response, _stream(own), _chunks(body, Passed(incoming)), body)
    async for _ in body.pieces():
        pass
    if incoming.error is not None:
        raise incoming.error
    return response


async def _chunks(body: Body, passed: Passed) -> AsyncIterator[Any]:
    async for piece in body.pieces():
        for chunk in passed.of(piece):
            yield chunk


def _close_later(body: Body) -> None:
    task = asyncio.ensure_future(body.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


@lru_cache
def _stream(kind: type[Any]) -> type[Any]:
    class Stream(kind):  # type: ignore[misc]
        """A stream of litellm's."""

        def __aiter__(self) -> AsyncIterator[Any]:
            return self

        async def __anext__(self) -> Any:
            return await anext(self.__dict__["_tidegate"][0])

        async def aclose(self) -> None:
            chunks, body = self.__dict__["_tidegate"]
            with suppress(RuntimeError):  # somebody waits for the next one
                await chunks.aclose()
            await body.close()

        def __del__(self) -> None:
            """Nobody reads on."""
            body: Body = self.__dict__["_tidegate"][1]
            with suppress(RuntimeError):  # its loop is closed
                if not body.task.done():
                    body.task.get_loop().call_soon_threadsafe(_close_later, body)

    Stream.__name__ = Stream.__qualname__ = kind.__name__
    return Stream
