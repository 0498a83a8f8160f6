"""An upstream and a client in memory, for both drivers: the same script is told to either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tidegate.compactors.strategy import Call, Reply
from tidegate.drive import aio, sync
from tidegate.drive.flights import Flights
from tidegate.engine.checkpoint import Store
from tidegate.engine.effects import Head, Notify, Outcome, UpstreamError
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
    def __init__(self, script: Script, delay: float = 0) -> None:
        self.script, self.delay = script, delay

    async def send(self, body: bytes | None, add_headers: Mapping[str, str]) -> AsyncIncoming:
        return AsyncIncoming(self.script.give(body))

    async def call(self, call: Call) -> Reply:
        await asyncio.sleep(self.delay)
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
        async for piece in answer.pieces():
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
        "chat", SyncUpstream(script), deliver, store, sync.Flights(), on_notify=seen.notices.append, **changes
    ).drive(life)
    return seen


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]
