"""Requests that carry a conversation: reads one, finds its provider, and lets an exchange answer it.

Knows what an exchange needs; the decisions are the engine's. Called by the app.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.config import Settings
from tidegate.drive.aio import Driver, Pace
from tidegate.drive.direct import Begun, Direct
from tidegate.drive.flights import Flights
from tidegate.engine.checkpoint import Store
from tidegate.engine.effects import Notify, Outcome, UpstreamError
from tidegate.engine.exchange import Life, counted, exchange, relayed
from tidegate.engine.request import Kit, Request
from tidegate.gateway.arrival import Arrival, Receive, while_connected, whole_body
from tidegate.gateway.asgi import AsgiClient, CutShort
from tidegate.gateway.credentials import Tenants
from tidegate.gateway.edge import Edge, Line, Sender
from tidegate.gateway.heading import Headings
from tidegate.gateway.messages import bypasses, unbound
from tidegate.gateway.relay import pass_on
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import Choice, NoProvider, Targets
from tidegate.gateway.upstream import ClientUpstream
from tidegate.gateway.windows import Asking
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers
from tidegate.upstream.pool import Pool
from tidegate.wire.conversation import Conversation, DialectName, UnreadableBody
from tidegate.wire.discreet import Discreet
from tidegate.wire.own_compaction import own_compaction

steps = logging.getLogger("tidegate.steps")


class Reading(Discreet, frozen=True):
    """A request's body, read as far as it can be."""

    hidden: ClassVar[frozenset[str]] = frozenset({"body", "conversation"})

    choice: Choice
    body: bytes
    """As it goes upstream if nothing changes."""
    conversation: Conversation | None = None
    reason: str = ""
    """Why there is no conversation, or why it is left alone."""
    changed: bool = False
    """`body` is not the client's own: a provider's name was taken out of it, and it is not compressed."""


@dataclass(frozen=True, slots=True)
class Times:
    """See `tidegate.drive.direct.Times`."""

    head: float
    hold: float
    read: float


class Conversations:
    """Answers conversations. One instance a process."""

    def __init__(
        self,
        settings: Settings,
        kit: Kit,
        store: Store,
        pool: Pool,
        targets: Targets,
        environ: Mapping[str, str],
    ) -> None:
        self.kit, self.store, self.pool, self.targets, self.environ = kit, store, pool, targets, environ
        self.body_limit = settings.server.body_limit_bytes
        self.tenants = Tenants(kit.hasher)
        self.headings = Headings(targets, environ)
        self.flights = Flights()
        self.asking = Asking(targets, pool.beside(max_per_host=1), enabled=settings.upstream.ask_windows)
        self.store_faults = Seldom(60)
        stream = settings.stream
        self.pace = Pace(
            heartbeat_after=stream.heartbeat_after_seconds,
            heartbeat_every=stream.heartbeat_every_seconds,
            hold_seconds=stream.hold_seconds,
            hold_bytes=stream.hold_bytes,
        )
        self.times = Times(pool.timeouts.head, stream.hold_seconds, pool.timeouts.read)

    async def answer(
        self, arrival: Arrival, where: Route, dialect: DialectName, client: AsgiClient, receive: Receive
    ) -> None:
        """Answers one request. Raises `NoProvider`, `BodyTooLarge`, `UpstreamError`, `ClientGone` and `CutShort`."""
        body = await whole_body(arrival, receive, self.body_limit)
        notify = self._notify(arrival)
        upstream, life = self._prepare(arrival, where, dialect, client, body, notify)
        work = self._drive(self._driver(dialect, upstream, client, notify), upstream, life, None, client, notify)
        await while_connected(work, receive, lambda: client.ended)

    def at_once(
        self,
        arrival: Arrival,
        where: Route,
        dialect: DialectName,
        client: AsgiClient,
        line: Line,
        sender: Sender,
        told: Callable[[Coroutine[object, object, None]], Coroutine[object, object, None]],
        over: Callable[[], None],
    ) -> None:
        """Answers one request, whose body is there, by plain calls; what needs waiting is awaited in `told`.

        Raises `NoProvider` and `BodyTooLarge`, where nothing has been done yet.
        """
        notify = self._notify(arrival)
        upstream, life = self._prepare(arrival, where, dialect, client, line.body, notify)

        async def drive(begun: Begun) -> None:
            await self._drive(self._driver(dialect, upstream, client, notify), upstream, life, begun, client, notify)

        edge = Edge(line, sender, client, upstream, drive, told, over)
        Direct(life, dialect, line, edge, self.store, self.times, self.pace.hold_bytes, notify).start()

    def _notify(self, arrival: Arrival) -> Callable[[Notify], None]:
        def notify(notice: Notify) -> None:
            if notice.event == "fault":
                of_the_store = notice.detail.get("where") == "store"
                tell(arrival, notice, quietly=of_the_store and not self.store_faults.due())
            elif steps.isEnabledFor(logging.DEBUG):
                tell(arrival, notice)

        return notify

    def _prepare(
        self,
        arrival: Arrival,
        where: Route,
        dialect: DialectName,
        client: AsgiClient,
        body: bytes,
        notify: Callable[[Notify], None],
    ) -> tuple[ClientUpstream, Life]:
        """Where a request goes and what is to become of it. Raises `NoProvider` and `BodyTooLarge`."""
        reading = self._read(arrival, where, dialect, body, notify)
        provider = reading.choice.provider
        client.provider, client.model = provider.name, reading.choice.model
        heading = self.headings.of(arrival, where, provider, dialect, watched=not reading.reason)
        secret, root = heading.secret, heading.root
        upstream = ClientUpstream(
            self.pool,
            arrival.method,
            heading.url,
            root,
            arrival.query,
            unbound(heading.headers) if reading.changed else heading.headers,
            reading.body,
            self._listener(secret, root, notify, lambda: self._ask(reading, root, heading.headers)),
            None if reading.changed else heading.lines,
        )
        client.streams = reading.conversation is not None and reading.conversation.stream
        life = self._life(arrival, where, dialect, reading, self.tenants.of(secret, root), notify)
        return upstream, life

    def _driver(
        self, dialect: DialectName, upstream: ClientUpstream, client: AsgiClient, notify: Callable[[Notify], None]
    ) -> Driver:
        return Driver(dialect, upstream, client, self.store, self.flights, self.pace, notify)

    async def _drive(
        self,
        driver: Driver,
        upstream: ClientUpstream,
        life: Life,
        begun: Begun | None,
        client: AsgiClient,
        notify: Callable[[Notify], None],
    ) -> None:
        """Drives an exchange; whatever the driver itself fails at, the client's request is relayed."""
        try:
            await driver.drive(life, begun)
        except (UpstreamError, CutShort):
            raise
        except Exception as error:
            notify(fault("driver", error))
            if client.begun:
                raise
            client.outcome = Outcome(reason="fault")
            await pass_on(await upstream.send(None, {}), client)

    def _read(
        self, arrival: Arrival, where: Route, dialect: DialectName, body: bytes, notify: Callable[[Notify], None]
    ) -> Reading:
        try:
            encoding = arrival.plain.get("content-encoding", "")
            plain = decode_body(body, encoding, self.body_limit) if encoding else body
            conversation = self.kit.recall.read(dialect, plain)
            choice = self.targets.choose(where, dialect, conversation.model)
            changed = choice.model != conversation.model
            if changed:
                conversation = conversation.with_model(choice.model)
                body = conversation.raw
            return Reading(choice, body, conversation, _hands_off(arrival, conversation), changed)
        except (NoProvider, BodyTooLarge):
            raise
        except (UnreadableBody, BodyUnreadable):
            reason = "unreadable_body"
        except Exception as error:
            notify(fault("reading", error))
            reason = "fault"
        return Reading(self.targets.choose(where, dialect, ""), body, reason=reason)

    def _life(
        self,
        arrival: Arrival,
        where: Route,
        dialect: DialectName,
        reading: Reading,
        tenant: bytes,
        notify: Callable[[Notify], None],
    ) -> Life:
        """What is to become of a request; whatever fails here, it is relayed."""
        if reading.conversation is None or reading.reason:
            return relayed(reading.reason)
        try:
            target = self.targets.target(reading.choice, dialect)
            request = Request(arrival.id, reading.conversation, tenant, target, arrival.began)
            return counted(request, self.kit) if where.kind == "count" else exchange(request, self.kit)
        except Exception as error:
            notify(fault("target", error))
            return relayed("fault")

    def _ask(self, reading: Reading, root: str, headers: Headers) -> None:
        if reading.conversation is not None and not reading.reason:
            self.asking.heard(reading.choice.provider, reading.choice.model, root, headers)

    def _listener(
        self, secret: bytes, root: str, notify: Callable[[Notify], None], ask: Callable[[], None]
    ) -> Callable[[int], None]:
        def heard(status: int) -> None:
            if 200 <= status < 300:
                try:
                    self.tenants.accepted(secret, root)
                    ask()
                except Exception as error:
                    notify(fault("tenant", error))

        return heard


def _hands_off(arrival: Arrival, conversation: Conversation) -> str:
    if bypasses(arrival.plain):
        return "bypassed"
    return "own_compaction" if own_compaction(conversation, arrival.plain) else ""


def fault(where: str, error: BaseException) -> Notify:
    """The notice of a bug. The type alone: a message may quote what it failed on."""
    return Notify("fault", {"where": where, "error": type(error).__name__})


@dataclass(slots=True)
class Seldom:
    """What is worth saying once in so many seconds, however often it happens."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    next_time: float = 0.0

    def due(self) -> bool:
        """Whether it is time to say it; it counts as said then."""
        now = self.clock()
        if now < self.next_time:
            return False
        self.next_time = now + self.seconds
        return True


def tell(arrival: Arrival, notice: Notify, *, quietly: bool = False) -> None:
    """Writes a notice to the log; a fault as a warning, unless it is to be told `quietly`."""
    level = logging.WARNING if notice.event == "fault" and not quietly else logging.DEBUG
    if steps.isEnabledFor(level):
        detail = " ".join(f"{key}={value}" for key, value in notice.detail.items())
        steps.log(level, "%s %s %s", arrival.id, notice.event, detail)
