"""The ASGI application: reads a request, finds its provider, and lets an exchange or a plain relay answer it.

Knows HTTP as ASGI tells it; the decisions are the engine's. Served by `tidegate.gateway.server`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass

from tidegate import __version__
from tidegate.config import Settings
from tidegate.drive.aio import Driver, Pace
from tidegate.drive.flights import Flights
from tidegate.engine.checkpoint import Store
from tidegate.engine.effects import Notify, Outcome, UpstreamError
from tidegate.engine.exchange import counted, exchange, relayed
from tidegate.engine.request import Kit, Request
from tidegate.gateway.asgi import AsgiClient, CutShort, Receive, Scope, Send
from tidegate.gateway.credentials import Tenants, credential, with_key
from tidegate.gateway.guard import Guard
from tidegate.gateway.messages import BYPASS, forwarded, outcome_headers, returned
from tidegate.gateway.routes import Route, route
from tidegate.gateway.targets import Choice, NoProvider, Targets
from tidegate.gateway.upstream import ClientUpstream
from tidegate.providers import Catalogue
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers
from tidegate.upstream.http import Request as HttpRequest
from tidegate.upstream.pool import Pool
from tidegate.upstream.url import join
from tidegate.wire import read
from tidegate.wire.conversation import Conversation, DialectName, UnreadableBody
from tidegate.wire.jsontext import dumps
from tidegate.wire.own_compaction import own_compaction

access = logging.getLogger("tidegate.access")
steps = logging.getLogger("tidegate.steps")

BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})


class ClientGone(Exception):
    """The client left before its request had come whole."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One HTTP request: what is known before its body is read."""

    id: str
    method: str
    path: str
    """As it stood in the request line, percent-encoded."""
    query: bytes
    headers: Headers
    plain: Mapping[str, str]
    began: float


class App:
    """The gateway. One instance a process."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        kit: Kit,
        store: Store,
        pool: Pool,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.settings, self.catalogue, self.kit, self.store, self.pool = settings, catalogue, kit, store, pool
        self.environ = os.environ if environ is None else environ
        self.targets = Targets(settings, catalogue)
        self.tenants = Tenants(kit.hasher)
        self.flights = Flights()
        self.guard = Guard(settings.server.host, settings.server.allowed_hosts, settings.server.allowed_origins)
        stream = settings.stream
        self.pace = Pace(
            stream.heartbeat_after_seconds,
            stream.heartbeat_every_seconds,
            stream.hold_seconds,
            stream.hold_bytes,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.pool.close()
                self.store.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        plain = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        raw_path = scope.get("raw_path") or scope["path"].encode()
        arrival = Arrival(
            os.urandom(8).hex(),
            scope["method"],
            raw_path.decode("latin-1").partition("?")[0],
            scope["query_string"],
            headers,
            plain,
            time.time(),
        )
        client = AsgiClient(send, "chat", arrival.id, False, headers)
        try:
            await self._route(arrival, client, receive, send)
        except NoProvider as error:
            await client.fail(404, str(error), "unknown_provider")
        except BodyTooLarge as error:
            await client.fail(413, str(error), "request_too_large")
        except UpstreamError as error:
            if client.begun and not client.streams:
                return  # the answer has begun: only cutting it tells the client
            await client.fail(error.status, str(error), "upstream_unreachable")
        except (ClientGone, CutShort):
            pass
        finally:
            self._log(arrival, client)

    async def _route(self, arrival: Arrival, client: AsgiClient, receive: Receive, send: Send) -> None:
        refusal = self.guard.refusal(arrival.plain.get("host", ""), arrival.plain.get("origin", ""))
        if refusal:
            await client.fail(403, refusal, "foreign_origin")
            return
        if arrival.path in ("/livez", "/readyz"):
            await self._health(arrival.path, client)
            return
        where = route(arrival.path, self.catalogue.names, single=self.targets.single)
        if where.dialect is not None:
            client.dialect = where.dialect
        if where.kind == "unknown_provider":
            known = ", ".join(self.catalogue.names)
            raise NoProvider(f"There is no provider named {where.provider!r} in the path. Known providers: {known}.")
        if "upgrade" in arrival.plain and where.dialect == "responses":
            # Codex falls back to POST at once on 426, and only on 426.
            await client.fail(426, "WebSocket is not served on this path. Use POST.", "upgrade_not_served")
            return
        if where.dialect is None or arrival.method != "POST":
            await self._relay(arrival, where, client, receive, send)
            return
        await self._conversation(arrival, where, where.dialect, client, receive)

    async def _health(self, path: str, client: AsgiClient) -> None:
        if path == "/readyz":
            problem = await asyncio.to_thread(self._store_problem)
            if problem:
                await client.answer(503, dumps({"status": "unready", "store": problem}))
                return
        await client.answer(200, dumps({"status": "ok", "version": __version__}))

    def _store_problem(self) -> str:
        try:
            self.store.find(b"\0" * 16, b"\0" * 32, {})
        except Exception as error:
            return str(error) or type(error).__name__
        return ""

    # -- conversations -------------------------------------------------------------------------------------------

    async def _conversation(
        self, arrival: Arrival, where: Route, dialect: DialectName, client: AsgiClient, receive: Receive
    ) -> None:
        body = await self._body(arrival, receive)
        encoding = arrival.plain.get("content-encoding", "")
        conversation, choice, original = self._read(where, dialect, body, encoding)
        provider = choice.provider
        root = self.targets.root(provider, dialect)
        headers = with_key(
            [*self._without_encodings(arrival.headers), (b"accept-encoding", b"identity")],
            provider,
            self.environ,
        )
        url = (
            join(root, where.path, arrival.query)
            if where.versioned
            else join(self.targets.host(provider), where.path, arrival.query)
        )
        secret = credential(headers)
        upstream = ClientUpstream(
            self.pool, arrival.method, url, root, arrival.query, headers, original,
            b"" if original is not body else encoding.encode("latin-1"),
            lambda status: self.tenants.accepted(secret) if 200 <= status < 300 else None,
        )  # fmt: skip
        client.streams = conversation is not None and conversation.stream
        driver = Driver(
            dialect,
            upstream,
            client,
            self.store,
            self.flights,
            self.pace,
            lambda notify: self._note(arrival, notify),
        )
        if conversation is None:
            life = relayed("unreadable_body")
        else:
            request = Request(
                arrival.id,
                conversation,
                self.tenants.of(secret, provider.name.encode()),
                self.targets.target(choice, dialect),
                arrival.began,
                self._hands_off(arrival, conversation),
            )
            life = counted(request, self.kit) if where.kind == "count" else exchange(request, self.kit)
        await self._while_connected(driver.drive(life), receive)

    def _read(
        self, where: Route, dialect: DialectName, body: bytes, encoding: str
    ) -> tuple[Conversation | None, Choice, bytes]:
        """(the conversation or None where it can't be read, its provider, the body as it goes upstream)."""
        limit = self.settings.server.body_limit_bytes
        try:
            plain = decode_body(body, encoding, limit) if encoding else body
            conversation = read(dialect, plain)
        except (UnreadableBody, BodyUnreadable):
            return None, self.targets.choose(where, dialect, ""), body
        choice = self.targets.choose(where, dialect, conversation.model)
        if choice.model == conversation.model:
            return conversation, choice, body
        renamed = conversation.replace_fields({"model": dumps(choice.model)})
        return read(dialect, renamed), choice, renamed

    def _hands_off(self, arrival: Arrival, conversation: Conversation) -> str:
        if arrival.plain.get(BYPASS.decode(), "").strip().lower() not in ("", "0", "false", "no", "off"):
            return "bypassed"
        return "own_compaction" if own_compaction(conversation, arrival.plain) else ""

    @staticmethod
    def _without_encodings(headers: Headers) -> Headers:
        return [pair for pair in forwarded(headers) if pair[0] not in (b"accept-encoding", b"content-encoding")]

    async def _body(self, arrival: Arrival, receive: Receive) -> bytes:
        limit = self.settings.server.body_limit_bytes
        too_large = BodyTooLarge(
            f"The request body is larger than {limit} bytes, this gateway's limit. "
            "Raise server.body_limit_bytes to allow it."
        )
        declared = arrival.plain.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        pieces: list[bytes] = []
        size = 0
        async for piece in _body_pieces(receive):
            size += len(piece)
            if size > limit:
                raise too_large
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _while_connected(self, work: Coroutine[object, object, None], receive: Receive) -> None:
        """Runs the work; a client that leaves cancels it."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    raise ClientGone from None
            task.result()
        finally:
            watch.cancel()
            if not task.done():
                task.cancel()

    # -- everything else -----------------------------------------------------------------------------------------

    async def _relay(self, arrival: Arrival, where: Route, client: AsgiClient, receive: Receive, send: Send) -> None:
        """Any other path: streamed up and down as it is."""
        provider = self.targets.other(where, speaks_messages="anthropic-version" in arrival.plain)
        root = self.targets.root(provider) if where.versioned else self.targets.host(provider)
        headers = with_key(forwarded(arrival.headers), provider, self.environ)
        secret = credential(headers)
        request = HttpRequest(
            arrival.method, join(root, where.path, arrival.query), headers, *self._streamed(arrival, receive)
        )
        client.outcome = Outcome(reason="not_a_conversation")
        response = await self.pool.send(request)
        try:
            if 200 <= response.status < 300:
                self.tenants.accepted(secret)
            client.begun, client.status = True, response.status
            await send(
                {
                    "type": "http.response.start",
                    "status": response.status,
                    "headers": [*returned(response.headers), *outcome_headers(arrival.id, client.outcome)],
                }
            )
            while piece := await response.read():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.close()

    @staticmethod
    def _streamed(arrival: Arrival, receive: Receive) -> tuple[AsyncIterator[bytes] | bytes | None, int | None]:
        length = arrival.plain.get("content-length", "")
        if length.isdigit() and int(length):
            return _body_pieces(receive), int(length)
        if "transfer-encoding" in arrival.plain:
            return _body_pieces(receive), None
        return (None if arrival.method in BODILESS else b""), None

    # -- telling -------------------------------------------------------------------------------------------------

    def _note(self, arrival: Arrival, notify: Notify) -> None:
        level = logging.WARNING if notify.event == "fault" else logging.DEBUG
        if steps.isEnabledFor(level):
            detail = " ".join(f"{key}={value}" for key, value in notify.detail.items())
            steps.log(level, "%s %s %s", arrival.id, notify.event, detail)

    def _log(self, arrival: Arrival, client: AsgiClient) -> None:
        if not access.isEnabledFor(logging.INFO):
            return
        outcome = client.outcome
        access.info(
            "%s %s %s %s %s%s%s %.0fms",
            arrival.id,
            arrival.method,
            arrival.path,
            client.status or "-",
            outcome.action,
            f" ({outcome.reason})" if outcome.reason else "",
            f" {outcome.tokens_before}->{outcome.tokens_after} tokens" if outcome.tokens_after is not None else "",
            (time.time() - arrival.began) * 1000,
        )


async def _body_pieces(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes. Raises `ClientGone` where it stops."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body", False):
            return


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
