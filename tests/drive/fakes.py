"""An upstream and a client in memory, for both drivers: the same script is told to either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tidegate.compactors.strategy import Call, Reply
from tidegate.drive import aio, sync, thread_flights
from tidegate.drive.answer import HeldAnswer
from tidegate.drive.direct import Begun, Direct
from tidegate.drive.flights import Flights
from tidegate.drive.pieces import pieces as pieces_of
from tidegate.engine.checkpoint import Store
from tidegate.engine.effects import Head, Notify, Outcome, Prepare, UpstreamError
from tidegate.engine.exchange import Life

Headers = list[tuple[bytes, bytes]]
JSON: Headers = [(b"Content-Type", b"application/json")]
SSE: Headers = [(b"Content-Type", b"text/event-stream")]


@dataclass
class Scripted:
    """One answer of the upstream."""

    status: int
    pieces: list[bytes]
    headers: Headers = field(default_factory=lambda: list(JSON))
    cut: bool = False
    """The body breaks off after its pieces."""
    closed: bool = False

    def take(self) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        if self.cut:
            raise UpstreamError("cut before its end")
        return b""


@dataclass
class Script:
    """What the upstream does: answers by what is asked, and a record of what was."""

    answer: Callable[[bytes | None], Scripted]
    summary: Callable[[Call], Reply]
    sent: list[bytes | None] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    again: list[bool] = field(default_factory=list)
    given: list[Scripted] = field(default_factory=list)

    def give(self, body: bytes | None) -> Scripted:
        self.sent.append(body)
        answer = self.answer(body)
        self.given.append(answer)
        return answer

    def reply(self, call: Call) -> Reply:
        self.calls.append(call)
        return self.summary(call)


@dataclass
class Seen:
    """What the client got."""

    status: int = 0
    body: bytes = b""
    outcome: Outcome | None = None
    heartbeats: int = 0
    complete: bool = False
    notices: list[Notify] = field(default_factory=list)


class AsyncIncoming:
    def __init__(self, scripted: Scripted) -> None:
        self.scripted, self.status, self.headers = scripted, scripted.status, scripted.headers

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return self.scripted.take()

    async def close(self) -> None:
        self.scripted.closed = True


class SyncIncoming:
    def __init__(self, scripted: Scripted) -> None:
        self.scripted, self.status, self.headers = scripted, scripted.status, scripted.headers

    def read(self) -> bytes:
        return self.scripted.take()

    def close(self) -> None:
        self.scripted.closed = True


class AsyncUpstream:
    def __init__(self, script: Script, delay: float | asyncio.Event = 0) -> None:
        """`delay` of a summary: seconds, or until something happens."""
        self.script, self.delay = script, delay

    async def send(self, body: bytes | None, add_headers: Mapping[str, str], *, again: bool = False) -> AsyncIncoming:
        self.script.again.append(again)
        return AsyncIncoming(self.script.give(body))

    async def call(self, call: Call) -> Reply:
        await (self.delay.wait() if isinstance(self.delay, asyncio.Event) else asyncio.sleep(self.delay))
        return self.script.reply(call)


class SyncUpstream:
    def __init__(self, script: Script) -> None:
        self.script = script

    def send(self, body: bytes | None, add_headers: Mapping[str, str]) -> SyncIncoming:
        return SyncIncoming(self.script.give(body))

    def call(self, call: Call) -> Reply:
        return self.script.reply(call)


@dataclass
class AsyncClient:
    seen: Seen
    streams: bool = False
    begun: bool = False

    def can_wait_awake(self) -> bool:
        return self.streams

    async def heartbeat(self) -> None:
        self.begun = True
        self.seen.heartbeats += 1

    async def deliver(self, answer, head: Head, outcome: Outcome) -> bool:  # type: ignore[no-untyped-def]
        self.seen.status, self.seen.outcome = head.status, outcome
        async for piece in pieces_of(answer):
            self.seen.body += piece
        self.seen.complete = True
        return True


def drive_async(life: Life, script: Script, store: Store, **changes) -> Seen:  # type: ignore[no-untyped-def]
    seen = Seen()

    async def go() -> None:
        driver = aio.Driver(
            "chat", AsyncUpstream(script), AsyncClient(seen), store, Flights(), on_notify=seen.notices.append, **changes
        )
        await driver.drive(life)

    asyncio.run(go())
    return seen


def drive_sync(life: Life, script: Script, store: Store, **changes) -> Seen:  # type: ignore[no-untyped-def]
    seen = Seen()

    def deliver(answer: sync.HeldAnswer, head: Head, outcome: Outcome) -> bool:
        seen.status, seen.outcome = head.status, outcome
        for piece in answer.pieces():
            seen.body += piece
        seen.complete = True
        return True

    sync.Driver(
        "chat", SyncUpstream(script), store, thread_flights.Flights(), on_notify=seen.notices.append, **changes
    ).drive(life, deliver)
    return seen


class ListenedIncoming:
    """The same answer, told to a listener: its head, each piece and its end in turns of their own."""

    def __init__(self, scripted: Scripted, listener: Callable[[bool], None]) -> None:
        self.scripted, self.listener = scripted, listener
        self.status, self.headers = 0, []
        self.ready: list[bytes] = []
        self.news = asyncio.Event()
        self.over: UpstreamError | str | None = ""
        asyncio.get_running_loop().call_soon(self._head)

    def _head(self) -> None:
        self.status, self.headers = self.scripted.status, self.scripted.headers
        self._tell(self._next)

    def _next(self) -> None:
        if self.scripted.closed:
            return
        try:
            piece = self.scripted.take()
        except UpstreamError as error:
            self.over, self.scripted.closed = error, True
            self._tell(None)
            return
        if piece:
            self.ready.append(piece)
        else:
            self.over, self.scripted.closed = None, True
        self._tell(self._next if piece else None)

    def _tell(self, then: Callable[[], None] | None) -> None:
        self.news.set()
        if then is not None:
            asyncio.get_running_loop().call_soon(then)
        if self.listener is not None:
            self.listener(True)

    def take(self) -> bytes | None:
        if self.ready:
            return self.ready.pop(0)
        if isinstance(self.over, UpstreamError):
            raise self.over
        return b"" if self.over is None else None

    async def read(self) -> bytes:
        while (piece := self.take()) is None:
            self.news.clear()
            await self.news.wait()
        return piece

    async def close(self) -> None:
        self.scripted.closed = True

    def abandon(self) -> None:
        self.scripted.closed = True

    def expect(self, seconds: float) -> None: ...
    def late(self, seconds: float) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Line:
    on_gone: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None
    paused = False

    def __init__(self, seen: Seen) -> None:
        self.seen, self.cut = seen, False

    def write(self, piece: bytes) -> None:
        self.seen.body += piece

    def end(self) -> None:
        self.seen.complete = True

    def abort(self) -> None:
        self.cut = True


@dataclass(frozen=True)
class Times:
    head: float = 5
    hold: float = 5
    read: float = 5


class Edge:
    """What the gateway does for a direct exchange; `idle` says whether a connection is at hand."""

    def __init__(self, life: Life, script: Script, store: Store, seen: Seen, *, idle: bool) -> None:
        self.life, self.script, self.store, self.seen, self.idle = life, script, store, seen, idle
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handed: list[Begun] = []
        self.flights = Flights()
        self.delay: float | asyncio.Event = 0.0
        self.statuses: list[int] = []

    def send_now(self, body, add_headers, listener):  # type: ignore[no-untyped-def]
        return ListenedIncoming(self.script.give(body), listener) if self.idle else None

    def heard(self, status: int) -> None:
        self.statuses.append(status)

    def begin(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> None:
        self.seen.status, self.seen.outcome = head.status, outcome

    def prepare(self, effect: Prepare) -> bool:
        call = AsyncUpstream(self.script, self.delay).call
        return aio.prepare(effect, self.flights, call, 10, self.seen.notices.append)

    def done(self) -> None:
        self.over.set_result(None)

    def carry_on(self, begun: Begun) -> None:
        self.handed.append(begun)
        driver = aio.Driver(
            "chat",
            AsyncUpstream(self.script, self.delay),
            AsyncClient(self.seen),
            self.store,
            self.flights,
            on_notify=self.seen.notices.append,
        )

        async def go() -> None:
            try:
                await driver.drive(self.life, begun)
            except BaseException as error:
                self.over.set_exception(error)
            else:
                self.over.set_result(None)

        self.task = asyncio.ensure_future(go())


def drive_directly(life: Life, script: Script, store: Store, *, idle: bool = True) -> Seen:
    seen = Seen()

    async def go() -> None:
        line, edge = Line(seen), Edge(life, script, store, seen, idle=idle)
        Direct(life, "chat", line, edge, store, Times(), 1 << 20, seen.notices.append).start()
        await asyncio.wait_for(edge.over, 10)
        if line.cut:
            raise UpstreamError("the client saw a cut")

    asyncio.run(go())
    return seen


def drive_without_a_connection(life: Life, script: Script, store: Store) -> Seen:
    return drive_directly(life, script, store, idle=False)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]
