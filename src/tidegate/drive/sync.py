"""Drives an exchange by blocking calls: the twin of `aio` for synchronous client transports.

Knows effects, a blocking upstream and a blocking client side as protocols. Called by the client transports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias, TypeVar

from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.drive.held import Held, to_fall_back_on
from tidegate.drive.late import too_late
from tidegate.drive.thread_flights import Flights
from tidegate.engine.checkpoint import Checkpoint, Store
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

COMPACTION_SECONDS: Final = 540.0
"""All calls of one compaction together: clients send again after ten minutes."""

T = TypeVar("T")


class Incoming(Protocol):
    """What a blocking upstream client gives for an answer (`tidegate.client.blocking`)."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """As the upstream sent them."""
        ...

    def read(self) -> bytes:
        """The next piece, empty at the end."""
        ...

    def close(self) -> None:
        """Done with it."""
        ...


class Upstream(Protocol):
    """Where this client's requests go, with this client's credential."""

    def send(self, body: bytes | None, add_headers: Mapping[str, str]) -> Incoming:
        """Sends the client's request, with another body if one is given. Raises `UpstreamError`."""
        ...

    def call(self, call: Call) -> Reply:
        """Makes one call of a compaction. Never raises."""
        ...


class HeldAnswer(Held):
    """An answer whose head is read and held: `head()` once, then `pieces()` or `close()`."""

    def __init__(self, number: int, incoming: Incoming, dialect: DialectName, hold_bytes: int) -> None:
        super().__init__(number, incoming.status, incoming.headers, dialect, hold_bytes)
        self.incoming = incoming

    def head(self) -> Head:
        """Reads as far as needed to tell an answer from a refusal."""
        try:
            while not self.enough():
                self.hold(self.incoming.read())
        except UpstreamError as error:
            self.cut(error)
        return self.judged()

    def pieces(self) -> Iterator[bytes]:
        """The whole body, held pieces first. Raises `UpstreamError` where it is cut."""
        self.opened = True
        yield from self.held
        self.held = []
        if self.broken is not None:
            raise self.broken
        while not self.at_end:
            piece = self.incoming.read()
            if piece:
                self.show(piece)
                yield piece
            else:
                self.at_end = True

    def close(self) -> None:
        """Gives the connection back, or ends it."""
        self.incoming.close()


@dataclass(frozen=True, slots=True)
class Delivery:
    """An answer for the client: whoever is given it consumes `answer.pieces()`, and says whether it came whole."""

    answer: HeldAnswer
    head: Head
    outcome: Outcome


Passing: TypeAlias = Generator[Delivery, bool, None]


@dataclass(slots=True)
class Driver:
    """Drives one exchange in the calling thread, or, where its answer is read later, in whichever thread reads it."""

    dialect: DialectName
    upstream: Upstream
    store: Store
    flights: Flights
    hold_bytes: int = 1 << 20
    compaction_seconds: float = COMPACTION_SECONDS
    """All calls of one compaction together."""
    on_notify: Callable[[Notify], None] = lambda notify: None
    on_made: Callable[[Made], None] = lambda made: None
    """Hears what a compaction gave, its words included: for listeners of this process, never for a log."""
    on_prepared: Callable[[Made], None] = lambda made: None
    """The same of one that was prepared between turns, before `on_notify` hears that it has ended."""
    on_slow: Callable[[], None] = lambda: None
    """Hears that a compaction is about to ask a model, in this thread or task."""
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Held while the exchange thinks: what it thinks with is shared by all threads."""
    answers: list[HeldAnswer] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    originals: list[int] = field(default_factory=list)
    delivering: bool = False
    delivered: bool = False

    def drive(self, life: Life, deliver: Callable[[HeldAnswer, Head, Outcome], bool]) -> None:
        """Runs the exchange to its end. `deliver` gives an answer to the client and says whether it came whole.

        Raises as `passing` does.
        """
        passing = self.passing(life)
        try:
            delivery = next(passing)
            while True:
                try:
                    complete = deliver(delivery.answer, delivery.head, delivery.outcome)
                except Exception as error:
                    delivery = passing.throw(error)
                else:
                    delivery = passing.send(complete)
        except StopIteration:
            return
        finally:
            passing.close()

    def result(self, asked: Generator[Effect, object, T]) -> T:
        """Runs what sends nothing for a client, and gives what comes of it. Raises what it raises."""
        try:
            effect = self._thought(asked, None, None)
            while True:
                error: Exception | None = None
                result: object = None
                try:
                    result = self._perform(effect)
                except Exception as raised:
                    error = raised
                effect = self._thought(asked, result, error)
        except StopIteration as end:
            made: T = end.value
            return made
        finally:
            asked.close()

    def _thought(self, asked: Generator[Effect, object, T], result: object, error: Exception | None) -> Effect:
        with self.lock:
            return asked.send(result) if error is None else asked.throw(error)

    def passing(self, life: Life) -> Passing:
        """The exchange, as far as the answer that it delivers; sent whether that came whole, it goes on to its end.
        Closing it before is a client that left.

        Raises `UpstreamError` where nothing could be delivered, and nothing else of Tidegate's own making: a fault
        inside falls back to the client's own request.
        """
        failed = False
        try:
            try:
                yield from self._steps(life)
            except UpstreamError:
                raise
            except Exception as fault:
                if self.delivering and not self.delivered:
                    raise
                self.on_notify(Notify("fault", {"where": "engine", "error": type(fault).__name__}))
                failed = not self.delivered
            if failed:
                yield from self._relay_plainly()
        finally:
            life.close()
            for answer in self.answers:
                answer.close()

    def _steps(self, life: Life) -> Passing:
        with self.lock:
            effect = next(life, None)
        while effect is not None:
            error: Exception | None = None
            result: object = None
            try:
                result = self._perform(effect)
                if isinstance(effect, Deliver):
                    result = yield from self._deliver(effect.number, effect.outcome)
            except Exception as raised:
                error = raised
            try:
                with self.lock:
                    effect = life.send(result) if error is None else life.throw(error)
            except StopIteration:
                return

    def _perform(self, effect: Effect) -> object:
        match effect:
            case Find(tenant=tenant, bucket=bucket, chains=chains):
                return self.store.find(tenant, bucket, chains) if bucket else None
            case Save(tenant=tenant, record=record):
                if isinstance(record, Checkpoint):
                    self.store.save(record)
                else:
                    self.store.report(tenant, record)
                return None
            case Compact(key, _, work):
                return self._compact(key, work)
            case Prepare():
                return self._prepare(effect)
            case Send(body=body, add_headers=add_headers):
                return self._send(body, add_headers)
            case Notify():
                self.on_notify(effect)
                return None
            case Deliver():
                return None  # what it takes is done by whoever is passed the answer

    def _compact(self, key: bytes, work: Callable[[], Work]) -> Made:
        def start() -> Made:
            self.on_slow()
            return run_work(work, self.upstream.call, self.compaction_seconds)

        made = self.flights.run(key, start)
        self.on_made(made)
        return made

    def _prepare(self, effect: Prepare) -> bool:
        def ended(ending: Made | Exception) -> None:
            if isinstance(ending, Made):
                self.on_prepared(ending)
            if not isinstance(ending, Exception) or isinstance(ending, CompactionFailed):
                self.on_notify(effect.ended(ending))
            else:
                self.on_notify(Notify("fault", {"where": "engine", "error": type(ending).__name__}))
                self.on_notify(effect.ended(CompactionFailed("fault")))

        call, seconds = self.upstream.call, self.compaction_seconds
        return self.flights.prepare(effect.key, lambda: run_work(effect.work, call, seconds), ended)

    def _send(self, body: bytes | None, add_headers: Mapping[str, str]) -> Head:
        incoming = self.upstream.send(body, add_headers)
        answer = HeldAnswer(len(self.answers), incoming, self.dialect, self.hold_bytes)
        self.answers.append(answer)
        if body is None:
            self.originals.append(answer.number)
        head = answer.head()
        self.heads.append(head)
        return head

    def _deliver(self, number: int, outcome: Outcome) -> Generator[Delivery, bool, Finish]:
        for answer in self.answers:
            if answer.number != number:
                answer.close()
        answer = self.answers[number]
        self.delivering = True
        complete = False
        try:
            complete = yield Delivery(answer, self.heads[number], outcome)
        except Exception:
            # Where the client has seen none of it, the answer can still be given plainly.
            self.delivering = answer.opened
            raise
        self.delivered = True
        return answer.finish(complete=complete)

    def _relay_plainly(self) -> Passing:
        number = to_fall_back_on(self.heads, self.originals)
        if number is None:
            number = self._send(None, {}).number
        yield from self._deliver(number, Outcome(reason="fault"))


def run_work(work: Callable[[], Work], call: Callable[[Call], Reply], seconds: float = COMPACTION_SECONDS) -> Made:
    """Runs a compaction's calls one after the other. Raises what the strategy raises (`CompactionFailed`), and the same
    where they take too long together: no call gets more than what is left of that time."""
    steps = work()
    end = time.monotonic() + seconds
    try:
        request = next(steps)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise too_late(steps)
            reply = call(replace(request, timeout=min(request.timeout, left)))
            request = steps.send(reply)
    except StopIteration as ended:
        made: Made = ended.value
        return made
    finally:
        steps.close()
