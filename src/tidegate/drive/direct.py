"""Drives the ordinary exchange (found, sent, answered, learned) by plain calls: no task, no future, nothing awaited.

Knows effects and the two sides of a relay as protocols. What needs waiting (a compaction, a second send, a new
connection) it hands over to the asyncio driver, midway. Called by the gateway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tidegate.drive.answer import HeldAnswer, Incoming
from tidegate.drive.held import Held
from tidegate.engine.checkpoint import Report, Store
from tidegate.engine.effects import Deliver, Effect, Find, Head, Notify, Outcome, Prepare, Save, Send, UpstreamError
from tidegate.engine.exchange import Life
from tidegate.upstream.faults import ClosedEarly
from tidegate.upstream.http import STALE_SECONDS
from tidegate.wire.conversation import DialectName


class Listened(Incoming, Protocol):
    """An answer that calls its listener (`tidegate.upstream.response.Response`)."""

    listener: Callable[[bool], None] | None

    def take(self) -> bytes | None:
        """The next piece, empty at the end, None where there is none yet. Raises `UpstreamError`."""
        ...

    def expect(self, seconds: float) -> None:
        """Calls the listener with False when nothing has come for so long."""
        ...

    def late(self, seconds: float) -> None:
        """Ends it as one that took too long."""
        ...

    def pause(self) -> None:
        """Reads no further."""
        ...

    def resume(self) -> None:
        """Reads on."""
        ...

    def abandon(self) -> None:
        """Closes its connection if it is not whole."""
        ...


class Line(Protocol):
    """The client's side."""

    on_resume: Callable[[], None] | None
    on_gone: Callable[[], None] | None

    @property
    def paused(self) -> bool:
        """More is unsent than should be."""
        ...

    def write(self, piece: bytes) -> None:
        """A piece of the answer's body."""
        ...

    def end(self) -> None:
        """The answer is whole."""
        ...

    def abort(self) -> None:
        """The answer ends without a proper end."""
        ...


class Edge(Protocol):
    """What the gateway does for an exchange that is driven directly."""

    def send_now(
        self, body: bytes | None, add_headers: Mapping[str, str], listener: Callable[[bool], None]
    ) -> Listened | None:
        """Sends without waiting; None where that can't be."""
        ...

    def heard(self, status: int) -> None:
        """An answer of this status has come to the client's credential."""
        ...

    def begin(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> None:
        """Writes the head of the answer to the line. Raises `UpstreamError` for one that HTTP does not have."""
        ...

    def prepare(self, effect: Prepare) -> bool:
        """Begins work that goes on in the background; see `Prepare`."""
        ...

    def carry_on(self, begun: Begun) -> None:
        """Goes on with the asyncio driver from there; takes over the line."""
        ...

    def done(self) -> None:
        """It is over, whatever came of it. Called once, and not where the exchange was handed over."""
        ...


class Times(Protocol):
    """How long is waited."""

    @property
    def head(self) -> float:
        """Seconds for the answer's head."""
        ...

    @property
    def hold(self) -> float:
        """Seconds for the first content."""
        ...

    @property
    def read(self) -> float:
        """Seconds for each further byte."""
        ...


@dataclass(frozen=True, slots=True)
class Begun:
    """An exchange that was driven directly so far. One of `effect`, `error` and `fault` is given."""

    effect: Effect | None = None
    """What is to be performed next."""
    error: Exception | None = None
    """What the exchange is to be told of its last effect."""
    fault: bool = False
    """The exchange has failed: the request is to be relayed plainly."""
    answer: HeldAnswer | None = None
    head: Head | None = None
    original: bool = False
    """What was answered is the client's own request."""
    again: bool = False
    """`effect` is a sending that met a connection which had just been closed."""


class Direct:
    """One exchange. `start` runs it as far as it goes; the rest comes by the callbacks of line and answer."""

    __slots__ = (
        "_answer", "_deadline", "_delivering", "_dialect", "_edge", "_head", "_hold_bytes", "_life", "_line",
        "_notify", "_over", "_response", "_sent", "_started", "_store", "_times", "_told",
    )  # fmt: skip

    def __init__(
        self,
        life: Life,
        dialect: DialectName,
        line: Line,
        edge: Edge,
        store: Store,
        times: Times,
        hold_bytes: int,
        notify: Callable[[Notify], None],
    ) -> None:
        self._life, self._dialect, self._line, self._edge = life, dialect, line, edge
        self._store, self._times, self._hold_bytes, self._notify = store, times, hold_bytes, notify
        self._response: Listened | None = None
        self._answer: HeldAnswer | None = None
        self._head: Head | None = None
        self._sent: Send | None = None
        self._deadline = self._started = 0.0
        self._delivering = False
        self._over = False
        self._told = False
        """All of the answer has been written but its end."""

    def start(self) -> None:
        """Runs up to the first wait. Never raises."""
        self._line.on_gone = self._gone
        self._guarded(self._begin)

    # --- the exchange's side

    def _begin(self) -> None:
        self._perform(next(self._life))

    def _perform(self, effect: Effect) -> None:
        """Performs effects until one waits for something, or is another driver's."""
        life = self._life
        while True:
            result: object = None
            if isinstance(effect, Notify):
                self._notify(effect)
            elif isinstance(effect, Find):
                try:
                    result = self._store.find(effect.tenant, effect.bucket, effect.chains) if effect.bucket else None
                except Exception as error:
                    effect = life.throw(error)
                    continue
            elif isinstance(effect, Send):
                if self._sent is not None or not self._send(effect):
                    self._hand_over(effect)
                return
            elif isinstance(effect, Deliver) and self._head is not None and not self._delivering:
                self._deliver(effect)
                return
            elif isinstance(effect, Save) and isinstance(effect.record, Report):
                try:
                    self._store.report(effect.tenant, effect.record)
                except Exception as error:
                    effect = life.throw(error)
                    continue
            elif isinstance(effect, Prepare):
                result = self._edge.prepare(effect)
            else:
                self._hand_over(effect)
                return
            try:
                effect = life.send(result)
            except StopIteration:  # here, and not farther out: each frame that it passes costs
                self._lived()
                return

    def _send(self, effect: Send) -> bool:
        """Whether the wait for its answer has begun; if not, it takes more than a plain call."""
        try:
            self._response = self._edge.send_now(effect.body, effect.add_headers, self._news)
        except UpstreamError as error:
            self._failed(error)
            return True
        if self._response is None:
            return False
        self._sent, self._started = effect, time.monotonic()
        return True

    def _resume(self, result: object) -> None:
        try:
            effect = self._life.send(result)
        except StopIteration:
            self._lived()
            return
        self._perform(effect)

    def _hand_over(self, effect: Effect) -> None:
        self._pass_on(Begun(effect, answer=self._answer, head=self._head))

    def _pass_on(self, begun: Begun) -> None:
        """Lets go of line and answer, which are another's from now on."""
        self._over = True
        self._line.on_gone = self._line.on_resume = None
        if self._told:
            self._line.end()
        if self._response is not None:
            self._response.listener = None
            self._response.resume()
        original = self._sent is not None and self._sent.body is None
        self._edge.carry_on(replace(begun, original=original))

    # --- the upstream's side

    def _news(self, in_time: bool) -> None:
        if not self._over:
            self._guarded(self._read if in_time else self._waited)

    def _waited(self) -> None:
        """Nothing has come for as long as it was waited for."""
        response, answer = self._response, self._answer
        assert response is not None
        if self._delivering and self._line.paused:
            response.expect(self._times.read)  # it is the client who takes its time
        elif answer is not None and self._head is None:
            self._judge(answer)  # held long enough: whatever this stream will say, it is the answer
        else:
            response.late(self._times.read if response.status else self._times.head)

    def _read(self) -> None:
        response = self._response
        assert response is not None
        if self._delivering:
            self._relay(response)
            return
        answer = self._answer
        if answer is None:
            if not response.status:
                self._lost(response)
                return
            self._edge.heard(response.status)
            answer = self._answer = HeldAnswer(
                0, response, self._dialect, hold_seconds=self._times.hold, hold_bytes=self._hold_bytes
            )
        if self._head is not None:
            return
        while not answer.enough():
            try:
                piece = response.take()
            except UpstreamError as error:
                if answer.status < 400:
                    self._failed(error)
                    return
                answer.cut(error)
                break
            if piece is None:
                now = time.monotonic()
                self._deadline = self._deadline or now + self._times.hold
                response.expect(max(0.01, min(self._deadline - now, self._times.read)))
                return
            answer.hold(piece)
        self._judge(answer)

    def _judge(self, answer: Held) -> None:
        head = self._head = answer.judged()
        self._resume(head)

    def _lost(self, response: Listened) -> None:
        """It ended without a head: a kept connection that was closed may be tried again, on a new one."""
        try:
            response.take()
        except UpstreamError as error:
            self._failed(error)

    def _failed(self, error: UpstreamError) -> None:
        sent, self._response, self._answer = self._sent, None, None
        stale = isinstance(error, ClosedEarly) and time.monotonic() - self._started < STALE_SECONDS
        self._pass_on(Begun(sent, again=True) if stale else Begun(error=error))

    # --- the client's side

    def _deliver(self, effect: Deliver) -> None:
        answer, head, response = self._answer, self._head, self._response
        assert answer is not None
        assert head is not None
        assert response is not None
        try:
            self._edge.begin(answer, head, effect.outcome)
        except UpstreamError as error:
            self._failed(error)
            return
        self._delivering = answer.opened = True
        line = self._line
        held, answer.held = answer.held, []
        for piece in held:
            line.write(piece)
        if answer.broken is not None:
            self._cut()
        elif answer.at_end:
            self._whole(answer)
        else:
            line.on_resume = self._drained
            self._relay(response)

    def _relay(self, response: Listened) -> None:
        """Passes on what has come: written first, looked at after."""
        answer, line = self._answer, self._line
        assert answer is not None
        while True:
            try:
                piece = response.take()
            except UpstreamError:
                self._cut()
                return
            if piece is None:
                break
            if not piece:
                self._whole(answer)
                return
            line.write(piece)
            answer.show(piece)
        if line.paused:
            response.pause()
        response.expect(self._times.read)

    def _drained(self) -> None:
        if self._response is not None and not self._over:
            self._response.resume()

    def _whole(self, answer: HeldAnswer) -> None:
        """The answer has come whole. What is left to do is done before its end is told: the client may send its next
        turn the moment this one ends, through any worker."""
        self._line.on_gone = self._line.on_resume = None
        self._told = True
        try:
            self._resume(answer.finish(complete=True))
        finally:
            self._line.end()

    def _cut(self) -> None:
        """The upstream's answer broke off: the client sees the cut too."""
        self._line.on_gone = self._line.on_resume = None
        self._line.abort()
        self._end()

    def _gone(self) -> None:
        """The client has left: the upstream need not go on."""
        if self._over:
            return
        if self._response is not None:
            self._response.abandon()
        self._end()

    def _end(self) -> None:
        """Ends the exchange, wherever it stands."""
        if not self._over:
            self._life.close()
            self._lived()

    def _lived(self) -> None:
        """The exchange has come to its own end."""
        if not self._over:
            self._over = True
            self._line.on_gone = self._line.on_resume = None
            if self._response is not None:
                self._response.listener = None
            self._edge.done()

    # --- faults

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs a step; a bug in it costs no more than what the exchange would have done for the request."""
        try:
            step()
        except StopIteration:
            self._lived()
        except Exception as fault:
            if self._over:
                raise
            # The type alone: a message may quote what it failed on.
            self._notify(Notify("fault", {"where": "engine", "error": type(fault).__name__}))
            if self._delivering:
                self._abandon()
            else:
                self._pass_on(Begun(fault=True, answer=self._answer, head=self._head))

    def _abandon(self) -> None:
        """A fault after the client's answer has begun: where the client has it whole, nothing but learning is lost."""
        if self._answer is not None and not self._answer.at_end and self._response is not None:
            self._response.abandon()
            self._line.abort()
        self._end()
