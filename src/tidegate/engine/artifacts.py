"""What to do where the provider can't read an opaque part of a history any more: send it once without.

Knows which history may lose it; what must go with it is the dialect's (`wire.stale`). Called by the exchange
and for histories beyond its reach.
"""

from __future__ import annotations

from tidegate.engine.effects import Head
from tidegate.engine.request import Request
from tidegate.overflow.verdict import Kind, Verdict
from tidegate.wire import REQUESTS
from tidegate.wire.stale import Stale, foreign_in, stale_in, without_stale

TRANSIENT = frozenset({"rate_limit", "quota", "auth", "server"})
"""Refusals that say nothing of the request itself: the newest one is what the client should see."""

SHAPE = frozenset[Kind]({"unsupported", "other_4xx"})
"""Refusals that may be about fields which another maker's items have."""


def stale_part(body: bytes, head: Head, verdict: Verdict, request: Request) -> Stale | None:
    """What may be left out of a body that was refused; None where the refusal is of another kind, or nothing may be."""
    if verdict.action != "drop_artifact" and verdict.kind not in SHAPE:
        return None
    find = stale_in if verdict.action == "drop_artifact" else foreign_in
    try:
        conversation = REQUESTS[request.conversation.dialect].read(body)
        stale = find(conversation, head.refusal or b"")
        return stale if stale and without_stale(conversation, stale) is not None else None
    except ValueError:  # nothing that JSON allows
        return None


def without(body: bytes, stale: Stale, request: Request) -> bytes:
    """A body without what is stale; the same where it has nothing of the kind."""
    try:
        return without_stale(REQUESTS[request.conversation.dialect].read(body), stale) or body
    except ValueError:
        return body
