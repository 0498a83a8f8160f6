"""Requests that carry a conversation: reads one, finds its provider, and lets an exchange answer it.

Knows what an exchange needs; the decisions are the engine's. Called by the app.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tidegate.config import Settings
from tidegate.context.budget import Policy
from tidegate.context.recall import history_of
from tidegate.drive.aio import Driver, Pace, prepare
from tidegate.drive.direct import Begun, Direct
from tidegate.drive.flights import Flights
from tidegate.engine import bridge
from tidegate.engine.checkpoint import Found, Store, StoreError
from tidegate.engine.effects import Notify, Outcome, Prepare, UpstreamError
from tidegate.engine.exchange import Life, counted, exchange, relayed
from tidegate.engine.keys import TRIES, of_a_key
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.view import read_history
from tidegate.gateway.arrival import Arrival, Receive
from tidegate.gateway.asgi import AsgiClient, CutShort
from tidegate.gateway.bridged import BridgedClient
from tidegate.gateway.credentials import Tenants
from tidegate.gateway.edge import Edge, Host, Line
from tidegate.gateway.heading import Headings
from tidegate.gateway.keyring import Keyring, Keyrings, Turns
from tidegate.gateway.kit import compactors_of
from tidegate.gateway.messages import BYPASS, hands_off, unbound
from tidegate.gateway.owners import lacks, named_by, named_in, sealed_in
from tidegate.gateway.receiving import while_connected, whole_body
from tidegate.gateway.relay import pass_on
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import Choice, NoProvider, Targets
from tidegate.gateway.telling import steps, tell
from tidegate.gateway.upstream import ClientUpstream
from tidegate.gateway.windows import Asking
from tidegate.overflow.verdict import Refusal, Sent
from tidegate.providers import Provider
from tidegate.upstream.by_litellm import ByLiteLLM
from tidegate.upstream.client import Client
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers
from tidegate.wire import REQUESTS
from tidegate.wire.bridge import Unmapped, responses_body
from tidegate.wire.conversation import Conversation, DialectName, UnreadableBody

REFUSAL_LIMIT = 1 << 20
"""Bytes of a refusal, unpacked, that are looked at to know whether it is meant for a key."""


class Reading:
    """A request's body, read as far as it can be. Nothing of it changes."""

    __slots__ = ("body", "changed", "choice", "conversation", "reason")

    def __init__(
        self,
        choice: Choice,
        body: bytes,
        conversation: Conversation | None = None,
        reason: str = "",
        changed: bool = False,
    ) -> None:
        self.choice, self.conversation = choice, conversation
        self.body = body
        """As it goes upstream if nothing changes."""
        self.reason = reason
        """Why there is no conversation, or why it is left alone."""
        self.changed = changed
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
        pool: Client,
        targets: Targets,
        environ: Mapping[str, str],
        before: Conversations | None = None,
    ) -> None:
        """`before`: those of other settings, whose compactions that go on and whose callers are these' too."""
        self.custom = compactors_of(settings)  # what may fail comes first: nothing of `before` has changed then
        self.kit, self.store, self.pool, self.targets, self.environ = kit, store, pool, targets, environ
        self.body_limit = settings.server.body_limit_bytes
        self.tenants: Tenants = before.tenants if before else Tenants(kit.hasher)
        self.headings = Headings(targets, environ)
        self.keyrings: Keyrings = Keyrings(kit.hasher, environ, before.keyrings if before else None)
        self.flights: Flights = before.flights if before else Flights()
        self.flights.prepare_at_once = settings.compaction.prepare_at_once
        self.asking: Asking = before.asking if before else Asking(targets, pool.beside(max_per_host=1))
        self.asking.follow(targets, enabled=settings.upstream.ask_windows)
        self.bridges = settings.compaction.bridge == "auto"
        self._unprepared: dict[Policy, Policy] = {}
        self.store_faults: Seldom = before.store_faults if before else Seldom(60)
        if kit.portable is not None:
            kit.portable.save = store.save
        stream = settings.stream
        self.pace = Pace(
            heartbeat_after=stream.heartbeat_after_seconds,
            heartbeat_every=stream.heartbeat_every_seconds,
            hold_seconds=stream.hold_seconds,
            hold_bytes=stream.hold_bytes,
        )
        self._sdks: dict[str, ByLiteLLM] = {}
        self.times = Times(pool.timeouts.head, stream.hold_seconds, pool.timeouts.read)

    async def answer(
        self, arrival: Arrival, where: Route, dialect: DialectName, client: AsgiClient, receive: Receive
    ) -> None:
        """Answers one request. Raises `NoProvider`, `BodyTooLarge`, `UpstreamError`, `ClientGone` and `CutShort`."""
        crossing = Crossing(self, arrival, where, dialect, await whole_body(arrival, receive, self.body_limit))
        work = crossing.drive(client) if crossing.bridge is None else self._over(crossing, crossing.bridge, client)
        await while_connected(work, receive, lambda: client.ended)

    def client_of(self, provider: Provider, dialect: DialectName | None) -> Client:
        """What reaches a provider."""
        if not provider.by_sdk(dialect):
            return self.pool
        known = self._sdks.get(provider.name)
        if known is None:
            sdk = provider.sdk
            known = self._sdks[provider.name] = ByLiteLLM(
                prefix=sdk.prefix,
                arguments=sdk.arguments,
                timeouts=self.pool.timeouts,
                body_limit=self.body_limit,
            )
        return known

    def held(self, body: bytes, encoding: bytes | None) -> tuple[bytes, tuple[str, ...]]:
        """(what several keys are chosen by, what only one account has), of the body of a client's own compaction: as a
        conversation that begins alike has them. Nothing of one that can't be read."""
        try:
            plain = decode_body(body, encoding.decode("latin-1"), self.body_limit) if encoding else body
        except (BodyTooLarge, BodyUnreadable):
            return b"", ()
        try:
            conversation = REQUESTS["responses"].read(plain)
            return _beginning(conversation, self.kit)[0], _held(conversation)
        except ValueError:
            return b"", tuple(named_by(plain))

    def unprepared(self, request: Request) -> Request:
        """The same, with nothing prepared behind its answer."""
        policy = self.kit.policy_for(request.target)
        quiet = self._unprepared.get(policy)
        if quiet is None:
            quiet = self._unprepared[policy] = replace(policy, prepare_percent=None)
        return request.to(replace(request.target, policy=quiet))

    async def _over(self, crossing: Crossing, over: Crossing, client: AsgiClient) -> None:
        """Answers a chat request by another API, or, where that comes to nothing, as what it is."""
        client.bridge = "responses"
        try:
            await over.drive_over(client, crossing)
        except UpstreamError as error:
            if client.answering:
                raise
            told = error
        except CutShort:
            raise
        except Exception as error:
            crossing.notify(fault("bridge", error))
            if client.answering:
                raise
            told = UpstreamError("fault")
        else:
            return
        crossing.notify(Notify("skipped", {"reason": "unbridged", "error": str(told)}))
        over.failed_over()
        client.bridge = "failed"
        await crossing.drive(client)

    def at_once(self, arrival: Arrival, where: Route, dialect: DialectName, line: Line, host: Host) -> None:
        """Answers one request, whose body is there, by plain calls; what needs waiting goes on in a task.

        Raises `NoProvider`, `BodyTooLarge` and `NeedsWaiting`, where nothing has been done yet.
        """
        crossing = Crossing(self, arrival, where, dialect, line.body)
        if crossing.bridge is not None or crossing.unmapped:
            raise NeedsWaiting
        edge = Edge(line, crossing, host)
        Direct(
            crossing.life, dialect, line, edge, self.store, self.times, self.pace.hold_bytes, crossing.notify
        ).start()


class NeedsWaiting(Exception):
    """A request that can't be answered by plain calls."""


class Crossing:
    """One request on its way: what was read of it, where it goes, and what is to become of it.

    Making one raises `NoProvider` and `BodyTooLarge`; whatever else goes wrong, the request is relayed.
    """

    __slots__ = (
        "_counted", "_credentials", "_heading", "_house", "arrival", "bridge", "dialect", "life", "reading", "request",
        "unmapped", "upstream",
    )  # fmt: skip

    def __init__(
        self,
        house: Conversations,
        arrival: Arrival,
        where: Route,
        dialect: DialectName,
        body: bytes,
        over: Reading | None = None,
        counted: int = 0,
    ) -> None:
        """`over`: what is sent in place of `body`, by another API than the client's, and the tokens that it takes."""
        self._house, self.arrival, self.dialect, self._counted = house, arrival, dialect, counted
        self.bridge: Crossing | None = None
        """The same request by another API, to be tried first."""
        self.unmapped = ""
        """Why that can't be, where it would have been its time."""
        self.request: Request | None = None
        self.reading = reading = over or self._read(where, body)
        # Of a client's own compaction it is seen whether there was one.
        provider, watched = reading.choice.provider, reading.reason in ("", "own_compaction")
        keyring = house.keyrings.of(provider, arrival.headers)
        turns: Turns | None = None
        own = ("", "")
        self._credentials: tuple[str, ...] = ()
        """Names of the keys that it may go out with, the conversation's own first; none where there is no choice."""
        if keyring is not None:
            beginning, bound = _beginning(reading.conversation, house.kit)
            held = _held(reading.conversation) if bound and reading.conversation else ()
            names = keyring.order_for(beginning, held)
            own = names[0], keyring.key(names[0])

            def headed(name: str, ring: Keyring = keyring) -> Headers:
                found = house.headings.of(
                    arrival, where, provider, dialect, watched=watched, own=(name, ring.key(name))
                )
                return unbound(found.headers) if reading.changed else found.headers

            def meant(status: int, told: bytes, sent_back: Headers, name: str = provider.name) -> bool:
                named = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in sent_back}
                words = _unpacked(told, named.get("content-encoding", ""))
                verdict = house.kit.classify(name, Refusal(status, words, named), Sent())
                return of_a_key(verdict)

            turns = Turns(
                keyring, tuple(names if bound else names[:TRIES]), headed, bound, meant, _lacking, held,
                notes=dialect == "responses",
            )  # fmt: skip
            self._credentials = (names[0],) if bound else keyring.rested(names)
        self._heading = heading = house.headings.of(arrival, where, provider, dialect, watched=watched, own=own)
        self.upstream = ClientUpstream(
            house.client_of(provider, dialect) if provider.through else house.pool,
            arrival.method,
            heading.url,
            heading.root,
            arrival.query,
            unbound(heading.headers) if reading.changed else heading.headers,
            reading.body,
            lines=None if reading.changed else heading.lines,
            custom=house.custom,
            turns=turns,
        )
        self.life: Life = self._life(where)

    @property
    def provider(self) -> str:
        """Whose answer it will be."""
        return self.reading.choice.provider.name

    @property
    def model(self) -> str:
        """As the provider names it."""
        return self.reading.choice.model

    async def drive(self, client: AsgiClient, begun: Begun | None = None) -> None:
        """Drives the exchange; whatever the driver itself fails at, the client's request is relayed."""
        house = self._house
        client.provider, client.model = self.provider, self.model
        client.streams = self.reading.conversation is not None and self.reading.conversation.stream
        if self.unmapped:
            client.bridge = f"unmapped {self.unmapped}"
        # Only here: a crossing that held what holds it would outlive its request.
        upstream = self.upstream.telling(self.heard)
        driver = Driver(self.dialect, upstream, client, house.store, house.flights, house.pace, self.notify)
        failed = False
        try:
            await driver.drive(self.life, begun)
        except (UpstreamError, CutShort):
            raise
        except Exception as error:
            self.notify(fault("driver", error))
            if client.begun:
                raise
            failed = True
        if failed:
            client.outcome = Outcome(reason="fault")
            await pass_on(await upstream.send(None, {}), client)

    async def drive_over(self, client: AsgiClient, own: Crossing) -> None:
        """Drives the exchange for a client of another API, whose `own` request this stands for. Raises `UpstreamError`,
        also where that one should be sent."""
        house, conversation = self._house, own.reading.conversation
        assert conversation is not None
        client.provider, client.model, client.streams = self.provider, self.model, conversation.stream
        upstream, written = self.upstream.telling(self.heard), BridgedClient(client, conversation)
        driver = Driver(self.dialect, upstream, written, house.store, house.flights, house.pace, self.notify)
        await driver.drive(self.life)

    def failed_over(self) -> None:
        """This way is not tried again for a while."""
        if self.request is not None:
            target, now = self.request.target, self.request.now
            self._house.kit.capabilities.troubled(target.endpoint, target.model, bridge.BRIDGE, now=now)

    def prepare(self, effect: Prepare) -> bool:
        """Begins a compaction for a later turn, with this client's credential."""
        house = self._house
        return prepare(effect, house.flights, self.upstream.call, house.pace.compaction_seconds, self.notify)

    def notify(self, notice: Notify) -> None:
        """Tells the log."""
        if notice.event == "fault":
            of_the_store = notice.detail.get("where") == "store"
            tell(self.arrival.id, notice, quietly=of_the_store and not self._house.store_faults.due())
        elif notice.event == "shadow" or steps.isEnabledFor(logging.DEBUG):
            tell(self.arrival.id, notice)

    def heard(self, status: int) -> None:
        """An answer of this status has come to the client's credential."""
        if not 200 <= status < 300:
            return
        house, heading, reading = self._house, self._heading, self.reading
        try:
            house.tenants.accepted(heading.secret, heading.root)
            if reading.conversation is not None and not reading.reason:
                house.asking.heard(reading.choice.provider, reading.choice.model, heading.root, heading.headers)
        except Exception as error:
            self.notify(fault("tenant", error))

    def _read(self, where: Route, body: bytes) -> Reading:
        house, arrival, dialect = self._house, self.arrival, self.dialect
        try:
            encoding = arrival.header(b"content-encoding")
            plain = decode_body(body, encoding.decode("latin-1"), house.body_limit) if encoding else body
            conversation = house.kit.recall.read(dialect, plain)
            choice = house.targets.choose(where, dialect, conversation.model)
            changed = choice.model != conversation.model
            if changed:
                conversation = conversation.with_model(choice.model)
                body = conversation.raw
            reason = hands_off(arrival.header(BYPASS), conversation, arrival.plain)
            return Reading(choice, body, conversation, reason, changed)
        except (NoProvider, BodyTooLarge):
            raise
        except (UnreadableBody, BodyUnreadable):
            reason = "unreadable_body"
        except Exception as error:
            self.notify(fault("reading", error))
            reason = "fault"
        return Reading(house.targets.choose(where, dialect, ""), body, reason=reason)

    def _life(self, where: Route) -> Life:
        """What is to become of a request; whatever fails here, it is relayed."""
        house, reading, heading = self._house, self.reading, self._heading
        if reading.conversation is None or reading.reason not in ("", "own_compaction"):
            return relayed(reading.reason)
        try:
            target = self._target()
            tenant = house.tenants.of(heading.secret, heading.root)
            arrival, reason = self.arrival, reading.reason
            request = Request(
                arrival.id,
                reading.conversation,
                tenant,
                target,
                arrival.began,
                reason,
                counted=self._counted,
                credentials=self._credentials,
            )
            if where.kind == "count":
                return counted(request, house.kit)
            if self._counted:
                self.request = bridge.taken_over(request, house.kit)
                return bridge.bridged(exchange(self.request or request, house.kit))
            if house.bridges and self.dialect == "chat" and not reason and self._build_bridge(where, request):
                request = house.unprepared(request)
            return exchange(request, house.kit)
        except Exception as error:
            self.notify(fault("target", error))
            return relayed("fault")

    def _target(self) -> Target:
        """What is known of where it goes; of several keys the conversation's own belongs to that."""
        target = self._house.targets.target(self.reading.choice, self.dialect)
        return replace(target, credential=self._credentials[0]) if self._credentials else target

    def asked(self) -> Request | None:
        """The request as one that is to be compacted at once; None where its body can't be read."""
        house, reading, heading = self._house, self.reading, self._heading
        if reading.conversation is None:
            return None
        target = self._target()
        tenant = house.tenants.of(heading.secret, heading.root)
        return Request(self.arrival.id, reading.conversation, tenant, target, self.arrival.began)

    def _build_bridge(self, where: Route, request: Request) -> bool:
        """Finds the same request by the Responses API, where the provider has both and this history is due. Whether it
        will have its turn if not now: then no summary is prepared for it."""
        house, choice = self._house, self.reading.choice
        if not choice.provider.bridge or "responses" not in choice.provider.dialects or where.base != "api":
            return False
        size = bridge.size(request, house.kit, self._known(request))
        if not size.near:
            return False
        try:
            body = responses_body(request.conversation)
        except Unmapped as error:
            self.unmapped = error.what if size.due else ""
            return False
        if size.due:
            reading = Reading(choice, body, house.kit.recall.read("responses", body), changed=True)
            there = Route("conversation", "/responses", "api", "responses", where.provider)
            over = Crossing(house, self.arrival, there, "responses", body, reading, size.tokens)
            self.bridge = over if over.request is not None else None
        return True

    def _known(self, request: Request) -> Found:
        """What the store has of earlier sendings of this history."""
        kit = self._house.kit
        chain = read_history(request.conversation, request.tenant, kit.hasher, kit.ledger).chain
        try:
            found = self._house.store.find(request.tenant, chain.bucket, chain.prefixes())
        except StoreError:
            return Found()
        return found if isinstance(found, Found) else Found()


def _beginning(conversation: Conversation | None, kit: Kit) -> tuple[bytes, bool]:
    """(what a conversation is known by, whoever asks: its first item, however it is written, and its model; whether it
    holds, or names, what only one account may read)."""
    if conversation is None:
        return b"", False
    first, bound = b"", conversation.server_held
    try:
        past, _ = history_of(conversation, kit.hasher, kit.ledger)
        first = past.entries[0].fingerprint if past.entries else b""
        bound = bound or past.odd is not None
    except UnreadableBody:
        pass
    return first + conversation.model.encode(), bound


def _held(conversation: Conversation) -> tuple[str, ...]:
    """What only one account may read, by its seals and names; the newest last."""
    return (*sealed_in(conversation), *named_in(conversation))


def _lacking(status: int, told: bytes, headers: Headers) -> bool:
    named = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in headers}
    return lacks(_unpacked(told, named.get("content-encoding", "")))


def _unpacked(told: bytes, encoding: str) -> bytes:
    """The words of a refusal; none where they can't be read."""
    try:
        return decode_body(told, encoding, REFUSAL_LIMIT)
    except (BodyUnreadable, BodyTooLarge):
        return b""


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
