"""A transport for blocking clients: every conversation that passes through it is kept inside its window.

Knows httpx2's and httpx's transports; the decisions are the engine's. Made by `clients`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from tenacity import RetryError, Retrying, retry_if_result, stop_after_attempt

from tidegate.client.calls import TOO_LONG, Asking, Tells, reply
from tidegate.client.crossing import Crossing, crossing
from tidegate.client.house import House
from tidegate.client.places import place_of
from tidegate.compactors.strategy import Call, Reply
from tidegate.drive import sync
from tidegate.engine.effects import Outcome, UpstreamError
from tidegate.gateway.calls import CALL_ATTEMPTS, CALL_WAIT, REPLY_LIMIT, transient
from tidegate.upstream.custom import Compactors
from tidegate.upstream.http import Headers

if TYPE_CHECKING:
    import httpx2


class Transport(Protocol):
    """The transport below: the client's own."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request."""
        ...

    def close(self) -> None:
        """Closes connections."""
        ...


class Incoming:
    """An answer of the transport below; see `tidegate.drive.sync.Incoming`."""

    def __init__(self, asking: Asking, response: httpx2.Response) -> None:
        self._asking, self.response = asking, response
        self.status: int = response.status_code
        self.headers: Headers = list(response.headers.raw)
        self._pieces: Iterator[bytes] | None = None

    def read(self) -> bytes:
        """The next piece, as it came; empty at the end. Raises `UpstreamError`."""
        try:
            if self._pieces is None:
                self._pieces = iter(self.response.stream)  # type: ignore[arg-type]
            return next((piece for piece in self._pieces if piece), b"")
        except self._asking.library.TransportError as error:
            raise self._asking.fault(error) from error

    def close(self) -> None:
        """Done with it."""
        self.response.close()


@dataclass(frozen=True, slots=True)
class Upstream:
    """See `tidegate.drive.sync.Upstream`."""

    asking: Asking
    below: Transport
    custom: Compactors

    def send(self, body: bytes | None, add_headers: Mapping[str, str]) -> Incoming:
        """Sends the request. Raises `UpstreamError` from the library's own error."""
        try:
            response = self.below.handle_request(self.asking.sending(body, add_headers))
        except self.asking.library.TransportError as error:
            raise self.asking.fault(error) from error
        self.asking.crossing.heard(response.status_code)
        return Incoming(self.asking, response)

    def call(self, call: Call) -> Reply:
        """Makes a call of a compaction, and once more where it was lost."""
        if call.via:
            return self.custom.ask(call)
        attempts = Retrying(stop=stop_after_attempt(CALL_ATTEMPTS), wait=CALL_WAIT, retry=retry_if_result(transient))
        try:
            return attempts(self._call, call)
        except RetryError as error:
            last: Reply = error.last_attempt.result()
            return last

    def _call(self, call: Call) -> Reply:
        ends = time.monotonic() + call.timeout
        try:
            response = self.below.handle_request(self.asking.calling(call))
            body = bytearray()
            try:
                for piece in response.stream:  # type: ignore[union-attr]
                    body += piece
                    if len(body) > REPLY_LIMIT:
                        return Reply(0, error=TOO_LONG)
                    if time.monotonic() > ends:
                        return Reply(0, error=f"no answer within {call.timeout:g} seconds")
            finally:
                response.close()
        except self.asking.library.TransportError as error:
            return Reply(0, error=str(self.asking.fault(error)))
        return reply(response.status_code, list(response.headers.raw), bytes(body))


@dataclass(slots=True)
class Body:
    """The body of a delivered answer: read by the client whenever it likes, and what was learned of it is kept then."""

    asking: Tells
    passing: sync.Passing
    answer: sync.HeldAnswer
    over: bool = False
    pieces: Iterator[bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is read yet."""
        self.pieces = self.answer.pieces()

    def __iter__(self) -> Iterator[bytes]:
        """Its pieces. Raises the library's own error where it is cut."""
        try:
            yield from self.pieces
        except UpstreamError as error:
            self.passing.close()
            self.over = True
            self.asking.tell(error)
        self._end(complete=True)

    def close(self) -> None:
        """The client has seen enough: a stream whose end has been read was whole."""
        if not self.over:
            watch = self.answer.watch
            self._end(complete=self.answer.opened and watch is not None and watch.ended)

    def _end(self, *, complete: bool) -> None:
        if self.over:
            return
        self.over = True
        if complete:
            with suppress(StopIteration):
                self.passing.send(complete)
        self.passing.close()


def driver_of(one: Crossing, upstream: sync.Upstream, house: House) -> sync.Driver:
    """What drives an exchange in the calling thread, and tells its listeners."""
    return sync.Driver(
        one.dialect,
        upstream,
        house.store,
        house.flights,
        hold_bytes=house.pace.hold_bytes,
        on_notify=one.notify,
        on_made=one.announcer.made,
        on_prepared=one.announcer.prepared,
        on_slow=one.announcer.slow,
        lock=house.lock,
    )


def begun(asking: Tells, upstream: sync.Upstream, house: House) -> tuple[Body, Outcome]:
    """The answer that an exchange delivers, its body still to be read. Raises what the caller is told where there is
    none."""
    one = asking.crossing
    passing = driver_of(one, upstream, house).passing(one.life)
    try:
        delivery = next(passing, None)
    except UpstreamError as error:
        asking.tell(error)
    except BaseException:
        one.announcer.over(cancelled=True)
        raise
    finally:
        one.announcer.over()
    assert delivery is not None, "an exchange delivers an answer"
    return Body(asking, passing, delivery.answer), delivery.outcome


class Blocking:
    """What a blocking transport does, whatever library it is of."""

    library: ModuleType

    def __init__(self, below: Transport, house: House, keeps: object = None) -> None:
        """`below` sends what is to be sent; `keeps` is kept alive as long as this is."""
        self.below, self.house, self._keeps = below, house, keeps

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answers one request; what carries no conversation goes below as it is."""
        place = place_of(request.method, str(request.url))
        if place is None:
            return self.below.handle_request(request)
        house = self.house = self.house.current()
        raw = request.read()
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        with house.lock:
            one = crossing(house, house.kit, house.tenants, place, headers, raw)
        asking = Asking(self.library, request, one)
        body, outcome = begun(asking, Upstream(asking, self.below, house.custom), house)
        incoming = body.answer.incoming
        assert isinstance(incoming, Incoming)
        response: httpx2.Response = self.library.Response(
            status_code=incoming.status,
            headers=one.given(incoming.headers, outcome),
            stream=_stream(self.library)(body),
            extensions=incoming.response.extensions,
        )
        return response

    def close(self) -> None:
        """Closes the connections below."""
        self.below.close()


@lru_cache
def _stream(library: ModuleType) -> type[Any]:
    """A body of the library's own kind."""

    class Stream(library.SyncByteStream):  # type: ignore[misc, name-defined]
        """A body."""

        def __init__(self, body: Body) -> None:
            self._body = body

        def __iter__(self) -> Iterator[bytes]:
            return iter(self._body)

        def close(self) -> None:
            self._body.close()

    return Stream


@lru_cache
def transport_class(library: ModuleType) -> type[Any]:
    """The transport, of the library's own kind."""

    class TidegateTransport(Blocking, library.BaseTransport):  # type: ignore[misc, name-defined]
        """Keeps conversations inside their windows."""

    TidegateTransport.library = library
    return TidegateTransport
