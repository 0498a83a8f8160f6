"""`litellm.completion` with every conversation kept inside its window.

Knows how litellm answers a blocking call; the decisions are the engine's. Put in place by `installed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tidegate.client.blocking import Body, begun
from tidegate.client.crossing import crossing
from tidegate.client.house import House
from tidegate.compactors.strategy import Call, Reply
from tidegate.engine.effects import UpstreamError
from tidegate.litellm.asking import (
    Asking,
    Heard,
    Passed,
    answered,
    asked,
    elsewhere,
    inside,
    lost,
    replied,
    streamed,
)


@contextmanager
def looked_after() -> Iterator[None]:
    """Calls that litellm makes in this block are its own."""
    token = inside.set(True)
    try:
        yield
    finally:
        inside.reset(token)


class Incoming(Heard):
    """An answer; see `tidegate.drive.sync.Incoming`."""

    def __init__(self, response: Any = None, error: Exception | None = None, *, stream: bool = False) -> None:
        super().__init__(response, error, stream=stream)
        self._chunks: Iterator[Any] = iter(response) if stream else iter(())

    def begin(self) -> None:
        """Reads a stream's first chunk: many providers are asked only then. Raises what litellm raises."""
        self.waiting.append(self._next())

    def read(self) -> bytes:
        """The next piece; empty at the end. Raises `UpstreamError`."""
        if self.waiting:
            return self.waiting.popleft()
        if not self.stream:
            return b""
        try:
            return self._next()
        except Exception as error:
            raise UpstreamError(type(error).__name__) from error

    def close(self) -> None:
        """Done with it."""
        close = getattr(self.response, "close", None) if self.stream else None
        if close is not None:
            close()

    def _next(self) -> bytes:
        with looked_after():
            for chunk in self._chunks:
                return self.piece(chunk)
        self.stream = False
        return b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Upstream:
    """See `tidegate.drive.sync.Upstream`."""

    asking: Asking
    completion: Callable[..., Any]
    house: House

    def send(self, body: bytes | None, add_headers: Mapping[str, str]) -> Incoming:
        """Calls litellm. Raises `UpstreamError` from an exception that stands for no answer."""
        kwargs = self.asking.asked.sending(body, add_headers)
        try:
            with looked_after():
                response = self.completion(**kwargs)
            incoming = Incoming(response, stream=bool(kwargs.get("stream")))
            if incoming.stream:
                incoming.begin()
        except Exception as error:
            if not answered(error):
                raise UpstreamError(type(error).__name__) from error
            incoming = Incoming(error=error)
        self.asking.crossing.heard(incoming.status)
        return incoming

    def call(self, call: Call) -> Reply:
        """Makes a call of a compaction."""
        if call.via:
            return self.house.custom.ask(call)
        known = elsewhere(call)
        if known is not None:
            return known
        try:
            with looked_after():
                return replied(self.completion(**self.asking.asked.calling(call)))
        except Exception as error:
            return lost(error)


def kept(completion: Callable[..., Any], house: House, kwargs: dict[str, Any]) -> Any:
    """Calls `completion` and gives what it gives. Raises what litellm raises."""
    told = asked(kwargs, house)
    if told is None:
        return completion(**kwargs)
    with house.lock:
        one = crossing(house, house.kit, house.tenants, told.place, told.headers, told.raw)
    asking = Asking(told, one)
    body, outcome = begun(asking, Upstream(asking, completion, house), house)
    incoming = body.answer.incoming
    assert isinstance(incoming, Incoming)
    response = incoming.given(one.given([], outcome))
    if kwargs.get("stream") and incoming.error is None:
        own: Any = type(response)
        return streamed(response, _stream(own), _chunks(body, Passed(incoming)), body)
    for _ in body:
        pass
    if incoming.error is not None:
        raise incoming.error
    return response


def _chunks(body: Body, passed: Passed) -> Iterator[Any]:
    for piece in body:
        yield from passed.of(piece)


@lru_cache
def _stream(kind: type[Any]) -> type[Any]:
    class Stream(kind):  # type: ignore[misc]
        """A stream of litellm's."""

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return next(self.__dict__["_tidegate"][0])

        def close(self) -> None:
            chunks, body = self.__dict__["_tidegate"]
            chunks.close()
            body.close()

        def __del__(self) -> None:
            """Nobody reads on."""
            with suppress(Exception):
                self.close()

    Stream.__name__ = Stream.__qualname__ = kind.__name__
    return Stream
