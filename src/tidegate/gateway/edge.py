"""The gateway's two sides of an exchange that is driven directly: a line to the client, a kept connection upstream.

Knows the line, the pool and the client's answer; decides nothing. Driven by `tidegate.drive.direct`, which hands over
to the asyncio driver what needs waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.drive.answer import HeldAnswer
from tidegate.drive.direct import Begun, Listened
from tidegate.engine.effects import Head, Outcome
from tidegate.gateway.arrival import Arrival, ClientGone, Message
from tidegate.gateway.asgi import AsgiClient
from tidegate.gateway.upstream import ClientUpstream
from tidegate.upstream.http import Headers


class Line(Protocol):
    """The client's side of one request (`tidegate.gateway.http1`)."""

    arrival: Arrival
    body: bytes
    on_resume: Callable[[], None] | None
    """Called when it may be written to again."""
    on_gone: Callable[[], None] | None
    """Called where the client leaves before its answer has ended."""

    @property
    def paused(self) -> bool:
        """More is unsent than should be."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """The head of the answer."""
        ...

    def write(self, piece: bytes) -> None:
        """A piece of its body."""
        ...

    def end(self) -> None:
        """The answer is whole."""
        ...

    def abort(self) -> None:
        """The answer ends without a proper end."""
        ...


class Sender:
    """A line as ASGI's `send`: waits while the client is slow."""

    __slots__ = ("_gone", "_line", "_waiter")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False

    async def __call__(self, message: Message) -> None:
        """Sends one message."""
        line = self._line
        if message["type"] == "http.response.start":
            line.start(message["status"], message["headers"])
            return
        if piece := message.get("body", b""):
            line.write(piece)
        if not message.get("more_body", False):
            line.end()
        elif line.paused and not self._gone:
            self._waiter = asyncio.get_running_loop().create_future()
            line.on_resume = self.wake
            await self._waiter

    def wake(self) -> None:
        """There is room again, or nobody to wait for."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self) -> None:
        """The client has gone."""
        self._gone = True
        self.wake()


@dataclass(slots=True)
class Edge:
    """See `tidegate.drive.direct.Edge`."""

    line: Line
    sender: Sender
    client: AsgiClient
    upstream: ClientUpstream = field(repr=False)
    drive: Callable[[Begun], Coroutine[object, object, None]]
    """Goes on with what needs waiting."""
    told: Callable[[Coroutine[object, object, None]], Coroutine[object, object, None]]
    """Awaits that, and tells the client what goes wrong in it."""
    over: Callable[[], None]
    """Hears of the end."""

    def send_now(
        self, body: bytes | None, add_headers: Mapping[str, str], listener: Callable[[bool], None]
    ) -> Listened | None:
        """Sends on an idle connection."""
        return self.upstream.send_now(body, add_headers, listener)

    def heard(self, status: int) -> None:
        """An answer has come."""
        self.upstream.on_status(status)

    def begin(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> None:
        """Writes the answer's head."""
        self.client.outcome = outcome
        self.line.start(head.status, self.client.begun_answer(head.status, answer.incoming.headers))

    def done(self) -> None:
        """It is over."""
        self.client.ended = True
        self.over()

    def carry_on(self, begun: Begun) -> None:
        """Goes on in a task, which a client that leaves cancels."""
        task = asyncio.get_running_loop().create_task(self.told(self._rest(begun)))
        running.add(task)
        task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        running.discard(task)
        if not self.client.ended:
            self.line.abort()  # the client sees that its answer was cut

    async def _rest(self, begun: Begun) -> None:
        task = asyncio.current_task()
        assert task is not None
        gone = False

        def left() -> None:
            nonlocal gone
            self.sender.leave()
            if not self.client.ended:
                gone = True
                task.cancel()

        self.line.on_gone = left
        try:
            await self.drive(begun)
        except asyncio.CancelledError:
            if gone and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            self.line.on_gone = None


running: set[asyncio.Task[None]] = set()
"""Tasks that go on: the loop itself holds them weakly."""
