"""The gateway's two sides of an exchange that is driven directly: a line to the client, a kept connection upstream.

Knows the line, the pool and the client's answer; decides nothing. Driven by `tidegate.drive.direct`, which hands over
to the asyncio driver what needs waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Protocol

from tidegate.drive.answer import HeldAnswer
from tidegate.drive.direct import Begun, Listened
from tidegate.engine.effects import Head, Outcome, Prepare
from tidegate.engine.exchange import Life
from tidegate.gateway.arrival import Arrival, ClientGone, Message
from tidegate.gateway.asgi import AsgiClient, Seen
from tidegate.gateway.messages import answer_headers
from tidegate.gateway.upstream import ClientUpstream
from tidegate.upstream.http import Headers
from tidegate.wire.conversation import DialectName


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

    def start(self, status: int, headers: Headers, *, soon: bool = False) -> None:
        """The head of the answer; `soon`: a piece of its body follows at once."""
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


class Crossing(Protocol):
    """A request on its way (`tidegate.gateway.conversations`)."""

    arrival: Arrival
    dialect: DialectName
    life: Life
    upstream: ClientUpstream

    @property
    def provider(self) -> str:
        """Whose answer it will be."""
        ...

    @property
    def model(self) -> str:
        """As the provider names it."""
        ...

    def heard(self, status: int) -> None:
        """An answer has come."""
        ...

    def prepare(self, effect: Prepare) -> bool:
        """Begins work in the background."""
        ...

    async def drive(self, client: AsgiClient, begun: Begun | None = None) -> None:
        """Goes on with what needs waiting."""
        ...


class Host(Protocol):
    """The application, as far as it is needed here."""

    async def told(self, arrival: Arrival, client: AsgiClient, work: Coroutine[object, object, None]) -> None:
        """Awaits the work for a client, who is told what goes wrong in it."""
        ...

    def log(self, arrival: Arrival, seen: Seen) -> None:
        """Writes the line of a request that is over."""
        ...


class Edge:
    """See `tidegate.drive.direct.Edge`. Also what is said of the request when it is over."""

    __slots__ = ("_crossing", "_host", "_line", "outcome", "own", "status")

    def __init__(self, line: Line, crossing: Crossing, host: Host) -> None:
        self._line, self._crossing, self._host = line, crossing, host
        self.outcome = _NOTHING
        self.status = 0
        self.own = ""

    @property
    def provider(self) -> str:
        """Whose answer it was."""
        return self._crossing.provider

    @property
    def model(self) -> str:
        """And of which model."""
        return self._crossing.model

    def send_now(
        self, body: bytes | None, add_headers: Mapping[str, str], listener: Callable[[bool], None]
    ) -> Listened | None:
        """Sends on an idle connection."""
        return self._crossing.upstream.send_now(body, add_headers, listener)

    def heard(self, status: int) -> None:
        """An answer has come."""
        self._crossing.heard(status)

    def prepare(self, effect: Prepare) -> bool:
        """Begins a compaction for a later turn."""
        return self._crossing.prepare(effect)

    def begin(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> None:
        """Writes the answer's head."""
        headers = answer_headers(head.status, answer.incoming.headers, self._crossing.arrival.id, outcome)
        self.outcome, self.status = outcome, head.status
        self._line.start(head.status, headers, soon=bool(answer.held))

    def done(self) -> None:
        """It is over."""
        self._host.log(self._crossing.arrival, self)

    def carry_on(self, begun: Begun) -> None:
        """Goes on in a task, which a client that leaves cancels."""
        crossing, sender = self._crossing, Sender(self._line)
        client = AsgiClient(sender, crossing.dialect, crossing.arrival.id, crossing.arrival.headers)
        work = self._host.told(crossing.arrival, client, self._rest(begun, client, sender))
        task = asyncio.get_running_loop().create_task(work)
        running.add(task)
        task.add_done_callback(partial(self._landed, client))

    def _landed(self, client: AsgiClient, task: asyncio.Task[None]) -> None:
        running.discard(task)
        if not client.ended:
            self._line.abort()  # the client sees that its answer was cut

    async def _rest(self, begun: Begun, client: AsgiClient, sender: Sender) -> None:
        task = asyncio.current_task()
        assert task is not None
        gone = False

        def left() -> None:
            nonlocal gone
            sender.leave()
            if not client.ended:
                gone = True
                task.cancel()

        self._line.on_gone = left
        try:
            await self._crossing.drive(client, begun)
        except asyncio.CancelledError:
            if gone and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            self._line.on_gone = None


_NOTHING = Outcome()

running: set[asyncio.Task[None]] = set()
"""Tasks that go on: the loop itself holds them weakly."""
