"""A transport for asynchronous clients on asyncio: the twin of `blocking`.

Knows httpx2's and httpx's transports; the decisions are the engine's. Made by `clients`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from tenacity import AsyncRetrying, RetryError, retry_if_result, stop_after_attempt

from tidegate.client.calls import TOO_LONG, Asking, Tells, reply
from tidegate.client.crossing import Crossing, crossing
from tidegate.client.house import House
from tidegate.client.places import place_of
from tidegate.compactors.strategy import Call, Reply
from tidegate.drive import aio
from tidegate.drive.answer import HeldAnswer
from tidegate.drive.flights import Flights
from tidegate.drive.pieces import pieces
from tidegate.engine.effects import Head, Outcome, UpstreamError
from tidegate.gateway.calls import CALL_ATTEMPTS, CALL_WAIT, REPLY_LIMIT, transient
from tidegate.upstream.custom import Compactors
from tidegate.upstream.http import Headers

if TYPE_CHECKING:
    import httpx2

_under_way: set[asyncio.Task[None]] = set()
"""Exchanges whose answers are still to be read: a loop itself does not keep its tasks."""

LAST_SECONDS = 1.0
"""How long the exchange of an answer that a client has left may take to keep what was learned."""


class AsyncTransport(Protocol):
    """The transport below: the client's own."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request."""
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...


class Incoming:
    """An answer of the transport below; see `tidegate.drive.answer.Incoming`."""

    def __init__(self, asking: Asking, response: httpx2.Response) -> None:
        self._asking, self.response = asking, response
        self.status: int = response.status_code
        self.headers: Headers = list(response.headers.raw)
        self._pieces: AsyncIterator[bytes] | None = None

    async def read(self) -> bytes:
        """The next piece, as it came; empty at the end. Raises `UpstreamError`."""
        try:
            if self._pieces is None:
                self._pieces = aiter(self.response.stream)  # type: ignore[arg-type]
            async for piece in self._pieces:
                if piece:
                    return piece
            return b""
        except self._asking.library.TransportError as error:
            raise self._asking.fault(error) from error

    async def close(self) -> None:
        """Done with it."""
        await self.response.aclose()


@dataclass(frozen=True, slots=True)
class Upstream:
    """See `tidegate.drive.aio.Upstream`."""

    asking: Asking
    below: AsyncTransport
    custom: Compactors

    async def send(
        self, body: bytes | None, add_headers: Mapping[str, str], *, again: bool = False, credential: str = ""
    ) -> Incoming:
        """Sends the request. Raises `UpstreamError` from the library's own error."""
        try:
            response = await self.below.handle_async_request(self.asking.sending(body, add_headers))
        except self.asking.library.TransportError as error:
            raise self.asking.fault(error) from error
        self.asking.crossing.heard(response.status_code)
        return Incoming(self.asking, response)

    async def call(self, call: Call) -> Reply:
        """Makes a call of a compaction, and once more where it was lost."""
        if call.via:
            return await self.custom.ask_async(call)
        attempts = AsyncRetrying(
            stop=stop_after_attempt(CALL_ATTEMPTS), wait=CALL_WAIT, retry=retry_if_result(transient)
        )
        try:
            return await attempts(self._call, call)
        except RetryError as error:
            last: Reply = error.last_attempt.result()
            return last

    async def _call(self, call: Call) -> Reply:
        try:
            async with asyncio.timeout(call.timeout):
                response = await self.below.handle_async_request(self.asking.calling(call))
                body = bytearray()
                try:
                    async for piece in response.stream:  # type: ignore[union-attr]
                        body += piece
                        if len(body) > REPLY_LIMIT:
                            return Reply(0, error=TOO_LONG)
                finally:
                    await response.aclose()
        except TimeoutError:
            return Reply(0, error=f"no answer within {call.timeout:g} seconds")
        except self.asking.library.TransportError as error:
            return Reply(0, error=str(self.asking.fault(error)))
        return reply(response.status_code, list(response.headers.raw), bytes(body))


@dataclass(slots=True)
class Handed:
    """An answer on its way from the exchange to whoever reads it; see `tidegate.drive.aio.Client`."""

    answer: HeldAnswer | None = None
    outcome: Outcome = field(default_factory=Outcome)
    here: asyncio.Event = field(default_factory=asyncio.Event)
    read: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Whether it came whole, once its reader is done."""
    begun: bool = False

    def can_wait_awake(self) -> bool:
        """An SDK waits as long as its timeouts say."""
        return False

    async def heartbeat(self) -> None:
        """Nothing is sent before the answer."""

    async def deliver(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> bool:
        """Hands the answer over and waits until it is read."""
        self.answer, self.outcome = answer, outcome
        self.here.set()
        return await self.read


@dataclass(slots=True)
class Body:
    """The body of a delivered answer: read by the client whenever it likes, and what was learned of it is kept then."""

    asking: Tells
    task: asyncio.Task[None]
    handed: Handed
    answer: HeldAnswer

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its pieces. Raises the library's own error where it is cut."""
        try:
            async for piece in pieces(self.answer):
                yield piece
        except UpstreamError as error:
            await self._leave()
            self.asking.tell(error)
        if not self.handed.read.done():
            self.handed.read.set_result(True)
        await self._ended(None)

    async def close(self) -> None:
        """The client has seen enough: a stream whose end has been read was whole."""
        watch = self.answer.watch
        if not self.handed.read.done() and self.answer.opened and watch is not None and watch.ended:
            self.handed.read.set_result(True)
            await self._ended(LAST_SECONDS)
        await self._leave()

    def __del__(self) -> None:
        """Nobody can read it any more: whoever drops an answer without closing it ends the exchange."""
        if self.task.done():
            return
        try:
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)
        except RuntimeError:  # the loop is closed
            _under_way.discard(self.task)

    async def _ended(self, seconds: float | None) -> None:
        """Waits until what was learned is kept."""
        await asyncio.wait({self.task}, timeout=seconds)
        if self.task.done() and not self.task.cancelled() and (error := self.task.exception()):
            self.asking.crossing.failed(error)

    async def _leave(self) -> None:
        """Ends the exchange, whatever it does."""
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})


class Waiting:
    """What an asynchronous transport does, whatever library it is of."""

    library: ModuleType

    def __init__(self, below: AsyncTransport, house: House, keeps: object = None) -> None:
        """`below` sends what is to be sent; `keeps` is kept alive as long as this is."""
        self.below, self.house, self._keeps = below, house, keeps

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answers one request; what carries no conversation goes below as it is."""
        place = place_of(request.method, str(request.url))
        if place is None or not _on_asyncio():
            return await self.below.handle_async_request(request)
        house = self.house = self.house.current()
        tools = house.here()
        raw = await request.aread()
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        one = crossing(house, tools.kit, tools.tenants, place, headers, raw)
        asking = Asking(self.library, request, one)
        body, outcome = await begun(asking, Upstream(asking, self.below, house.custom), house, tools.flights)
        incoming = body.answer.incoming
        assert isinstance(incoming, Incoming)
        response: httpx2.Response = self.library.Response(
            status_code=incoming.status,
            headers=one.given(incoming.headers, outcome),
            stream=_stream(self.library)(body),
            extensions=incoming.response.extensions,
        )
        return response

    async def aclose(self) -> None:
        """Closes the connections below."""
        await self.below.aclose()


def driver_of(one: Crossing, upstream: aio.Upstream, handed: Handed, house: House, flights: Flights) -> aio.Driver:
    """What drives an exchange in the running event loop, and tells its listeners."""
    return aio.Driver(
        one.dialect,
        upstream,
        handed,
        house.store,
        flights,
        house.pace,
        one.notify,
        one.announcer.made,
        one.announcer.prepared,
        one.announcer.slow,
    )


async def begun(asking: Tells, upstream: aio.Upstream, house: House, flights: Flights) -> tuple[Body, Outcome]:
    """The answer that an exchange delivers, its body still to be read. Raises what the caller is told where there is
    none."""
    handed = Handed()
    driver = driver_of(asking.crossing, upstream, handed, house, flights)
    task = asyncio.create_task(driver.drive(asking.crossing.life))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    answer = await _handed_over(task, handed, asking)
    return Body(asking, task, handed, answer), handed.outcome


async def _handed_over(task: asyncio.Task[None], handed: Handed, asking: Tells) -> HeldAnswer:
    here = asyncio.ensure_future(handed.here.wait())
    try:
        await asyncio.wait({task, here}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        asking.crossing.announcer.over(cancelled=True)
        raise
    finally:
        here.cancel()
        asking.crossing.announcer.over()
    if handed.answer is not None:
        return handed.answer
    error = task.exception()
    if isinstance(error, UpstreamError):
        asking.tell(error)
    raise error or RuntimeError("an exchange delivers an answer")


def _on_asyncio() -> bool:
    """Whether asyncio runs this; under trio a request goes below as it is."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


@lru_cache
def _stream(library: ModuleType) -> type[Any]:
    """A body of the library's own kind."""

    class Stream(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """A body."""

        def __init__(self, body: Body) -> None:
            self._body = body

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self._body.pieces()

        async def aclose(self) -> None:
            await self._body.close()

    return Stream


@lru_cache
def transport_class(library: ModuleType) -> type[Any]:
    """The transport, of the library's own kind."""

    class AsyncTidegateTransport(Waiting, library.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        """Keeps conversations inside their windows."""

    AsyncTidegateTransport.library = library
    return AsyncTidegateTransport
