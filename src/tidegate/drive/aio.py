"""Drives an exchange on asyncio: performs its effects, keeps the client awake, falls back to a plain relay.

Knows effects, the upstream and the client's side as protocols; no HTTP server. Called by the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.drive.answer import HeldAnswer, Incoming
from tidegate.drive.direct import Begun
from tidegate.drive.flights import Ending, Flights
from tidegate.drive.held import to_fall_back_on
from tidegate.drive.late import too_late
from tidegate.engine.checkpoint import Report, Store
from tidegate.engine.effects import (
    Compact,
    Deliver,
    Effect,
    Find,
    Finish,
    Head,
    Made,
    Notify,
    Outcome,
    Prepare,
    Save,
    Send,
    UpstreamError,
    Work,
)
from tidegate.engine.exchange import Life
from tidegate.wire.conversation import DialectName

T = TypeVar("T")


class Upstream(Protocol):
    """Where this client's requests go, with this client's credential."""

    async def send(
        self, body: bytes | None, add_headers: Mapping[str, str], *, again: bool = False, credential: str = ""
    ) -> Incoming:
        """Sends the client's request, with another body if one is given. Raises `UpstreamError`.

        `again`: it went out before, on a kept connection that proved closed; now on a new one, and for the last time.
        `credential` names the one of several keys to use; nobody names one but where a request has `credentials`.
        """
        ...

    async def call(self, call: Call) -> Reply:
        """Makes one call of a compaction. Never raises but for cancellation."""
        ...


class Client(Protocol):
    """The side that waits for an answer."""

    begun: bool
    """A status has been sent (by a heartbeat), so nothing but events of the stream can follow."""

    def can_wait_awake(self) -> bool:
        """Whether heartbeats can be sent: the client asked for a stream."""
        ...

    async def heartbeat(self) -> None:
        """Keeps the client awake; begins the stream if it has not begun."""
        ...

    async def deliver(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> bool:
        """Relays an answer to its end; False where it was cut."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times and sizes of waiting, in seconds and bytes."""

    heartbeat_after: float = 5.0
    heartbeat_every: float = 10.0
    compaction_seconds: float = 540.0
    """All calls of one compaction together: clients send again after ten minutes."""
    hold_seconds: float = 15.0
    hold_bytes: int = 1 << 20


@dataclass(slots=True)
class Driver:
    """Drives one exchange. `on_notify` hears what happens; it must not raise."""

    dialect: DialectName
    upstream: Upstream
    client: Client
    store: Store
    """Its `report` is quick: nothing waits for it."""
    flights: Flights
    pace: Pace = field(default_factory=Pace)
    on_notify: Callable[[Notify], None] = lambda notify: None
    on_made: Callable[[Made], None] = lambda made: None
    """Hears what a compaction gave, its words included: for listeners of this process, never for a log."""
    on_prepared: Callable[[Made], None] = lambda made: None
    """The same of one that was prepared between turns, before `on_notify` hears that it has ended."""
    on_slow: Callable[[], None] = lambda: None
    """Hears that a compaction is about to ask a model, in this thread or task."""
    answers: list[HeldAnswer] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    delivered: bool = False
    delivering: bool = False
    originals: list[int] = field(default_factory=list)
    again: bool = False
    """The next sending is the second of its request."""

    async def drive(self, life: Life, begun: Begun | None = None) -> None:
        """Runs the exchange to its end, from where it was driven directly so far. Raises `UpstreamError` where nothing
        could be delivered, and nothing else of Tidegate's own making: a fault inside falls back to the client's own
        request."""
        try:
            try:
                if begun is None:
                    await self._steps(life, next(life, None))
                else:
                    await self._go_on(life, begun)
            except (UpstreamError, asyncio.CancelledError):
                raise
            except Exception as fault:
                if self.delivering:
                    if not self.delivered:
                        raise
                    # The client has its answer whole: what was to be learned of it is lost, nothing else.
                    self._tell_fault(fault)
                    return
                self._tell_fault(fault)
                await self._relay_plainly()
        finally:
            life.close()
            for answer in self.answers:
                await answer.close()

    async def result(self, asked: Generator[Effect, object, T]) -> T:
        """Runs what sends nothing for a client, and gives what comes of it. Raises what it raises."""
        try:
            effect = next(asked)
            while True:
                error: Exception | None = None
                result: object = None
                try:
                    result = await self._perform(effect)
                except Exception as raised:
                    error = raised
                effect = asked.send(result) if error is None else asked.throw(error)
        except StopIteration as end:
            made: T = end.value
            return made
        finally:
            asked.close()

    async def _go_on(self, life: Life, begun: Begun) -> None:
        if begun.answer is not None and begun.head is not None:
            self.answers.append(begun.answer)
            self.heads.append(begun.head)
            if begun.original:
                self.originals.append(begun.answer.number)
        elif begun.answer is not None:
            await begun.answer.close()
        self.again = begun.again
        if begun.fault:
            await self._relay_plainly()
        elif begun.error is None:
            await self._steps(life, begun.effect)
        else:
            with suppress(StopIteration):
                await self._steps(life, life.throw(begun.error))

    async def _steps(self, life: Life, effect: Effect | None) -> None:
        while effect is not None:
            try:
                result = await self._perform(effect)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except Exception as error:
                try:
                    effect = life.throw(error)
                except StopIteration:
                    return
                continue
            try:
                effect = life.send(result)
            except StopIteration:
                return

    async def _perform(self, effect: Effect) -> object:
        match effect:
            case Find(tenant=tenant, bucket=bucket, chains=chains):
                return self.store.find(tenant, bucket, chains) if bucket else None
            case Save(tenant=tenant, record=record):
                if isinstance(record, Report):
                    self.store.report(tenant, record)
                else:
                    await asyncio.to_thread(self.store.save, record)
                return None
            case Compact(key, _, work):
                return await self._compact(key, work)
            case Prepare():
                seconds = self.pace.compaction_seconds
                return prepare(effect, self.flights, self.upstream.call, seconds, self.on_notify, self.on_prepared)
            case Send():
                return await self._send(effect)
            case Deliver(number=number, outcome=outcome):
                return await self._deliver(number, outcome)
            case Notify():
                self.on_notify(effect)
                return None

    async def _send(self, effect: Send) -> Head:
        incoming = await self._awake(self._first(effect))
        answer = HeldAnswer(
            len(self.answers),
            incoming,
            self.dialect,
            hold_seconds=self.pace.hold_seconds,
            hold_bytes=self.pace.hold_bytes,
        )
        self.answers.append(answer)
        if effect.body is None:
            self.originals.append(answer.number)
        head = await self._awake(answer.head())
        self.heads.append(head)
        return head

    async def _first(self, effect: Send) -> Incoming:
        """Sends; whether it is for the second time counts for the first sending of this driver only."""
        again, self.again = self.again, False
        send = self.upstream.send
        if effect.credential:
            return await send(effect.body, effect.add_headers, again=again, credential=effect.credential)
        return await send(effect.body, effect.add_headers, again=again)

    async def _awake(self, work: Coroutine[object, object, T]) -> T:
        """Awaits the work; a client whose stream a heartbeat has begun is kept awake meanwhile."""
        if not self.client.begun:
            return await work
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self.pace.heartbeat_every)
                if not task.done():
                    await self.client.heartbeat()
            return task.result()
        finally:
            task.cancel()

    async def _deliver(self, number: int, outcome: Outcome) -> Finish:
        for answer in self.answers:
            if answer.number != number:
                await answer.close()
        answer, begun = self.answers[number], self.client.begun
        self.delivering = True
        try:
            complete = await self.client.deliver(answer, self.heads[number], outcome)
        except Exception:
            # Where the client has seen none of it, the answer can still be given plainly.
            self.delivering = answer.opened or self.client.begun != begun
            raise
        self.delivered = True
        return answer.finish(complete=complete)

    async def _compact(self, key: bytes, work: Callable[[], Work]) -> Made:
        landed = self.flights.landed(key)
        if landed is not None:
            self.on_made(landed)
            return landed
        self.on_slow()
        flight = self.flights.join(key, lambda: run_work(work, self.upstream.call, self.pace.compaction_seconds))
        try:
            wait = self.pace.heartbeat_after
            while not flight.task.done():
                timeout = wait if self.client.can_wait_awake() else None
                await asyncio.wait({flight.task}, timeout=timeout)
                if not flight.task.done():
                    await self.client.heartbeat()
                    wait = self.pace.heartbeat_every
            made = flight.task.result()
            self.on_made(made)
            return made
        finally:
            self.flights.leave(flight)

    def _tell_fault(self, fault: Exception) -> None:
        # The type alone: a message may quote what it failed on.
        self.on_notify(Notify("fault", {"where": "engine", "error": type(fault).__name__}))

    async def _relay_plainly(self) -> None:
        """The client's own request, as if Tidegate were not there; an answer that is there already is used."""
        number = to_fall_back_on(self.heads, self.originals)
        if number is None:
            number = (await self._send(Send(None))).number
        await self._deliver(number, Outcome(reason="fault"))


def prepare(
    effect: Prepare,
    flights: Flights,
    call: Callable[[Call], Awaitable[Reply]],
    seconds: float,
    tell: Callable[[Notify], None],
    made: Callable[[Made], None] = lambda made: None,
) -> bool:
    """Performs a `Prepare`: its work goes on after the request it was begun in, with that client's `call`."""

    def ended(ending: Ending) -> None:
        if not isinstance(ending, BaseException):
            made(ending)
            tell(effect.ended(ending))
            return
        if isinstance(ending, CompactionFailed):
            tell(effect.ended(ending))
            return
        # The type alone: a message may quote what it failed on.
        tell(Notify("fault", {"where": "engine", "error": type(ending).__name__}))
        tell(effect.ended(CompactionFailed("fault")))

    return flights.prepare(effect.key, lambda: run_work(effect.work, call, seconds), ended)


async def run_work(work: Callable[[], Work], call: Callable[[Call], Awaitable[Reply]], seconds: float = 540.0) -> Made:
    """Runs a compaction's calls one after the other. Raises what the strategy raises (`CompactionFailed`), and the same
    where they take too long together.

    A strategy thinks in a thread: laying out a long transcript takes seconds that other requests need.
    """
    steps = work()
    try:
        async with asyncio.timeout(seconds):
            reply: Reply | None = None
            while True:
                request = await asyncio.to_thread(_advance, steps, reply)
                if not isinstance(request, Call):
                    return request
                reply = await call(request)
    except TimeoutError:
        raise too_late(steps) from None
    finally:
        with suppress(ValueError):  # cancelled while it thinks: it ends by itself
            steps.close()


def _advance(steps: Work, reply: Reply | None) -> Call | Made:
    """The next call, or what came of them all."""
    try:
        return next(steps) if reply is None else steps.send(reply)
    except StopIteration as end:
        made: Made = end.value
        return made
