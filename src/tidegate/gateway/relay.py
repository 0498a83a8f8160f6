"""Requests that carry no conversation, or one that is to be left alone: streamed up and streamed down as they are.

Knows HTTP and where a path belongs; reads no body. Called by the app.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping

from tidegate.compactors.openai import COMPACT_PATH
from tidegate.engine.capabilities import Capabilities
from tidegate.engine.effects import Outcome
from tidegate.engine.router import UNARY
from tidegate.gateway.arrival import Arrival, Receive
from tidegate.gateway.asgi import AsgiClient
from tidegate.gateway.credentials import with_key
from tidegate.gateway.keyring import Keyrings, Turns
from tidegate.gateway.messages import forwarded, readable, spoken
from tidegate.gateway.owners import LARGEST, sealed_by
from tidegate.gateway.receiving import body_pieces, while_connected, whole_body
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import Targets
from tidegate.providers import Provider
from tidegate.upstream.client import Answer, Client
from tidegate.upstream.http import Headers, Request
from tidegate.wire.conversation import DialectName
from tidegate.wire.watch import Watch

SMALL = 1 << 20
"""Bytes of a body that is read whole first: such a request may go out again where a kept connection proves stale."""

_KEPT = re.compile(r"/(?:responses|conversations)/([^/]+)")
"""A response or conversation that the provider keeps, by its path."""

BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods that need no `Content-Length: 0` to say that there is no body."""


async def relay(
    arrival: Arrival,
    where: Route,
    client: AsgiClient,
    receive: Receive,
    reason: str,
    *,
    targets: Targets,
    client_of: Callable[[Provider, DialectName | None], Client],
    environ: Mapping[str, str],
    capabilities: Capabilities,
    keyrings: Keyrings,
    held: Callable[[bytes, bytes | None], tuple[bytes, tuple[str, ...]]],
    body_limit: int,
) -> None:
    """Relays one request, for the named reason. `held` tells of a body, encoded as named, by what several keys are
    chosen and what only one account has; such bodies have `body_limit` bytes at most. Raises `NoProvider`,
    `BodyTooLarge`, `UpstreamError` and `ClientGone`."""
    client.outcome = Outcome(reason=reason)
    provider = targets.other(where, where.dialect or spoken(arrival.plain))
    client.provider = provider.name
    pool = client_of(provider, where.dialect)
    url = targets.url(where, provider, arrival.query)
    compacts = where.path == COMPACT_PATH
    kept = None if compacts else _KEPT.match(where.path)
    keyring = keyrings.of(provider, arrival.headers) if compacts or kept else None
    read = asyncio.Event()
    body: AsyncIterator[bytes] | bytes | None
    if keyring and arrival.method not in BODILESS:
        body, length = await whole_body(arrival, receive, body_limit), None
        read.set()
    else:
        body, length = await _body(arrival, receive, read)
    turns: Turns | None = None
    if keyring:
        beginning, names = b"", tuple[str, ...]((kept[1],) if kept else ())
        if compacts and isinstance(body, bytes):
            beginning, names = held(body, arrival.header(b"content-encoding"))
        # Another key is asked only where this one's account has not got what is named or sealed.
        turns = Turns(
            keyring, tuple(keyring.order_for(beginning, names)), lambda name: headed(keyring.key(name)), bound=True,
            meant=lambda *refusal: False, held=names,
        )  # fmt: skip

    def headed(key: str) -> Headers:
        found = with_key(forwarded(arrival.headers), provider, environ, key)
        return readable(found) if compacts else found

    async def exchange() -> None:
        name = ""
        try:
            if turns is None:
                response = await pool.send(Request(arrival.method, url, headed(""), body, length))
            else:
                response, name = await turns.ask(
                    lambda name: pool.send(Request(arrival.method, url, turns.headers(name), body, length))
                )
        finally:
            read.set()
        if not compacts or response.status != 200:
            await pass_on(response, client)
            return
        watch, copy = Watch("responses", "application/json"), bytearray()

        def see(piece: bytes) -> None:
            watch.feed(piece)
            if keyring and len(copy) + len(piece) <= LARGEST:
                copy.extend(piece)

        await pass_on(response, client, see)
        watch.close()
        if watch.compacts:
            capabilities.has(targets.root(provider, where.dialect), UNARY, now=arrival.began)
        if keyring:
            keyring.owners.minted(sealed_by(bytes(copy)), name)

    await while_connected(exchange(), receive, lambda: client.ended, read)


async def pass_on(response: Answer, client: AsgiClient, see: Callable[[bytes], None] | None = None) -> None:
    """Gives a client an upstream's answer as it comes, and shows it to whoever wants to `see` it. Raises
    `UpstreamError` where it is cut."""
    try:
        await client.answer_head(response.status, response.headers)
        while piece := await response.read():
            await client.piece(piece)
            if see is not None:
                see(piece)
    finally:
        await response.close()
    await client.end()


async def _body(
    arrival: Arrival, receive: Receive, read: asyncio.Event
) -> tuple[AsyncIterator[bytes] | bytes | None, int | None]:
    """(the body, its length where it is a stream of known length). Sets `read` once it has been read to its end."""
    length = arrival.length
    if length is not None and 0 < length <= SMALL:
        whole = await whole_body(arrival, receive, SMALL)
        read.set()
        return whole, None
    if not length and "transfer-encoding" not in arrival.plain:
        read.set()
        return (None if arrival.method in BODILESS else b""), None

    async def streamed() -> AsyncIterator[bytes]:
        async for piece in body_pieces(receive):
            yield piece
        read.set()

    return streamed(), length
