"""The ASGI application: sends each request to what answers it, and tells a client what went wrong.

Knows HTTP as ASGI tells it and which errors have which status. Served by `tidegate.gateway.server`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache, partial

from tidegate import __version__
from tidegate.build import compiled
from tidegate.config import Settings
from tidegate.engine.checkpoint import Store, StoreError
from tidegate.engine.effects import UpstreamError
from tidegate.engine.request import Kit
from tidegate.gateway import diagnostics, manual
from tidegate.gateway.access import AccessLog
from tidegate.gateway.arrival import Arrival, ClientGone, Receive, Scope, Send, arrived
from tidegate.gateway.asgi import AsgiClient, CutShort, Seen
from tidegate.gateway.conversations import Conversations, fault
from tidegate.gateway.edge import Line
from tidegate.gateway.guard import Guard
from tidegate.gateway.keeper import Keeper
from tidegate.gateway.messages import BYPASS, bypasses, spoken
from tidegate.gateway.relay import relay
from tidegate.gateway.routes import Route, route
from tidegate.gateway.tally import Tally
from tidegate.gateway.targets import NoProvider, Targets, no_such
from tidegate.gateway.telling import tell
from tidegate.providers import Catalogue
from tidegate.store import Keys, SqliteStore
from tidegate.store.behind import Behind
from tidegate.upstream.client import Client
from tidegate.upstream.decode import BodyTooLarge
from tidegate.wire.conversation import JsonObject
from tidegate.wire.jsontext import dumps

access = logging.getLogger("tidegate.access")
log = logging.getLogger("tidegate")

_LONGEST_MODEL = 100
"""Characters of a model's name in the log."""


class App:
    """The gateway. One instance a process."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        kit: Kit,
        store: Store,
        pool: Client,
        environ: Mapping[str, str] | None = None,
        keys: Keys | None = None,
    ) -> None:
        """`keys`: those of the store; they make the key of all diagnostics where the settings give none."""
        self.store, self.pool = store, pool
        self.environ = os.environ if environ is None else environ
        self.keys = keys or Keys.random()
        self.keeper = Keeper(kit.windows, store, kit.capabilities)
        self.on_serving: Callable[[], None] | None = None
        """Called in the loop once it serves."""
        self.tally = Tally()
        self.access_log: AccessLog | None = None
        """Where lines of requests go in place of the logger."""
        self.kept = Behind(store, on_fault=self._store_faulted) if isinstance(store, SqliteStore) else store
        """The store as requests see it: what takes a disk's time is done behind their backs."""
        self._go_by(settings, catalogue, kit, None)

    def follow(self, settings: Settings, catalogue: Catalogue, kit: Kit) -> None:
        """Goes by other settings from now on. Requests that are under way end as they began, and what was learned goes
        on to hold. What is set of the server, the store and the connections is not looked at.

        Raises `ConfigError`, and nothing has changed then.
        """
        self._go_by(settings, catalogue, kit.after(self.kit), self.conversations)

    def _go_by(self, settings: Settings, catalogue: Catalogue, kit: Kit, before: Conversations | None) -> None:
        targets = Targets(settings, catalogue, before.targets if before else None)
        self.conversations = Conversations(settings, kit, self.kept, self.pool, targets, self.environ, before)
        self.settings, self.catalogue, self.kit, self.targets = settings, catalogue, kit, targets
        self._route = lru_cache(maxsize=1024)(partial(route, providers=catalogue.names, single=targets.single))
        self.guard = Guard(settings.server.host, settings.server.allowed_hosts, settings.server.allowed_origins)
        self.admin_key = diagnostics.admin_key(settings, self.keys)

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
                await self.keeper.start()
                if self.on_serving is not None:
                    self.on_serving()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.conversations.asking.close()
                await self.conversations.flights.close()
                await self.pool.close()
                await self.keeper.stop()
                await asyncio.to_thread(self.kept.close)
                if self.access_log is not None:
                    self.access_log.flush()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def gathers(self, arrival: Arrival) -> bool:
        """Whether a request carries a conversation that may be answered by plain calls, once its body is whole."""
        if arrival.method != "POST" or arrival.upgrades:
            return False
        where = self._route(arrival.path)
        if where.dialect is None or where.kind not in ("conversation", "count"):
            return False
        return not self._refusal(arrival) and not self._passes(arrival, where)

    def at_once(self, line: Line) -> bool:
        """Answers such a request through its line; False where it must be answered over ASGI."""
        arrival = line.arrival
        where = self._route(arrival.path)
        if where.dialect is None:
            return False
        try:
            self.conversations.at_once(arrival, where, where.dialect, line, self)
        except Exception:
            return False  # it will happen again there, and be told
        return True

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = arrived(scope)
        client = AsgiClient(send, spoken(arrival.plain), arrival.id, arrival.headers)
        await self.told(arrival, client, self._answer(arrival, client, receive))

    async def told(self, arrival: Arrival, client: AsgiClient, work: Coroutine[object, object, None]) -> None:
        """Awaits the work for a client, who is told what goes wrong in it."""
        status, text, reason = 0, "", ""
        try:
            try:
                await work
            except NoProvider as error:
                status, text, reason = 404, str(error), "unknown_provider"
            except BodyTooLarge as error:
                status, text, reason = 413, str(error), "request_too_large"
            except UpstreamError as error:
                status, text, reason = error.status, str(error), "upstream_unreachable"
            except (ClientGone, CutShort):
                pass  # an answer without an end closes the connection
            except Exception as error:
                tell(arrival.id, fault("gateway", error))
                status, reason = 500, "internal_error"
                text = "Tidegate failed on this request, and could not relay it either."
            if reason:
                await client.fail(status, text, reason)
        finally:
            self.log(arrival, client)

    def _passes(self, arrival: Arrival, where: Route) -> bool:
        """Whether nothing of a conversation needs to be read, so that it is streamed up while it comes: its client
        wants it left alone, and where it goes does not hang on its model."""
        asked = arrival.header(BYPASS)
        return asked is not None and bypasses(asked) and (self.targets.single or where.provider is not None)

    def _refusal(self, arrival: Arrival) -> str:
        host, origin = arrival.header(b"host") or b"", arrival.header(b"origin") or b""
        return self.guard.refusal(host.decode("latin-1"), origin.decode("latin-1"))

    async def _answer(self, arrival: Arrival, client: AsgiClient, receive: Receive) -> None:
        where = self._route(arrival.path)
        client.dialect = where.dialect or client.dialect
        refusal = self._refusal(arrival)
        if refusal:
            await client.fail(403, refusal, "foreign_origin")
            return
        if arrival.path in ("/livez", "/readyz"):
            await self._health(arrival.path, client)
            return
        if arrival.path == manual.PATH and arrival.method == "POST":
            await manual.compact(self.conversations, arrival, client, receive, self._route)
            return
        if arrival.path.startswith(diagnostics.PATH) and arrival.method == "GET":
            await diagnostics.show(self.conversations, self.settings, self.tally, self.admin_key, arrival, client)
            return
        if where.kind == "other" and arrival.path.startswith("/tidegate/v1/"):
            await client.fail(404, "Tidegate has no such path of its own, or not with this method.", "no_such_path")
            return
        if where.kind == "unknown_provider":
            raise no_such(where.provider, self.catalogue)
        if arrival.upgrades:
            # Codex falls back to POST at once on 426, and only on 426.
            await client.fail(426, "WebSocket is not served on this path. Use POST.", "upgrade_not_served")
            return
        speaks = where.kind != "other" and where.dialect is not None and arrival.method == "POST"
        if speaks and where.dialect is not None and not self._passes(arrival, where):
            await self.conversations.answer(arrival, where, where.dialect, client, receive)
            return
        reason = "bypassed" if speaks else "not_a_conversation"
        await relay(
            arrival, where, client, receive, reason,
            targets=self.targets, client_of=self.conversations.client_of, environ=self.environ,
            capabilities=self.kit.capabilities, keyrings=self.conversations.keyrings,
            held=self.conversations.held, body_limit=self.conversations.body_limit,
        )  # fmt: skip

    async def _health(self, path: str, client: AsgiClient) -> None:
        problem = await asyncio.to_thread(self._store_problem) if path == "/readyz" else ""
        if problem:
            await client.answer(503, dumps({"status": "unready", "store": problem}), "health_check")
        else:
            told: JsonObject = {"status": "ok", "version": __version__, "compiled": compiled()}
            await client.answer(200, dumps(told), "health_check")

    def _store_problem(self) -> str:
        """What hinders the store, without its place on the disk; empty where it works."""
        store = self.store
        if not isinstance(store, SqliteStore):
            return ""
        try:
            store.check()
        except StoreError as error:
            log.warning("%s", error)
            return f"sqlite: {str(error).removeprefix(f'store {store.path}: ')}"
        except Exception as error:
            return f"sqlite: {type(error).__name__}"
        return ""

    def _store_faulted(self, error: StoreError) -> None:
        if self.conversations.store_faults.due():
            log.warning("%s", error)

    def log(self, arrival: Arrival, client: Seen) -> None:
        """Counts a request that is over, and writes its line."""
        outcome, own, status = client.outcome, client.own, client.status
        happened: str = "answered" if own else outcome.action if status else "unanswered"
        reason = own or outcome.reason
        self.tally.count(happened, reason)
        if not access.isEnabledFor(logging.INFO):
            return
        parts = [arrival.id, arrival.method, arrival.path, str(status) if status else "-", happened]
        if reason:
            parts.append(f"({reason})")
        if provider := client.provider:
            parts.append(provider)
        if model := client.model:
            parts.append(_printable(model))
        before, after = outcome.tokens_before, outcome.tokens_after
        if after is not None:
            parts.append(f"{before}->{after} tokens")
        parts.append(f"{int((time.time() - arrival.began) * 1000 + 0.5)}ms")
        line = " ".join(parts)
        if self.access_log is not None:
            self.access_log.write(line)
        else:
            access.info("%s", line)


@lru_cache(maxsize=1024)
def _printable(name: str) -> str:
    """A client's name for a model as one short word: a line of the log stays a line."""
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in name[:_LONGEST_MODEL])
