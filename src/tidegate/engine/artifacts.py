"""What to do where the provider can't read an opaque part of a history any more: send it once without.

Knows which history may lose it; what must go with it is the dialect's (`wire.stale`). Called by the exchange.
"""

from __future__ import annotations

from collections.abc import Generator

from tidegate.engine.effects import Deliver, Effect, Head, Notify, Outcome, Send, UpstreamError
from tidegate.engine.request import Kit, Request
from tidegate.overflow.verdict import Refusal, Sent, Verdict
from tidegate.wire import REQUESTS
from tidegate.wire.stale import Stale, stale_in, without_stale

TRANSIENT = frozenset({"rate_limit", "quota", "auth", "server"})
"""Refusals that say nothing of the request itself: the newest one is what the client should see."""


def stale_part(body: bytes, head: Head, verdict: Verdict, request: Request) -> Stale | None:
    """What may be left out of a body that was refused; None where the refusal is of another kind, or nothing may be."""
    if verdict.action != "drop_artifact":
        return None
    try:
        conversation = REQUESTS[request.conversation.dialect].read(body)
        stale = stale_in(conversation, head.refusal or b"")
        return stale if stale and without_stale(conversation, stale) is not None else None
    except ValueError:  # nothing that JSON allows
        return None


def without(body: bytes, stale: Stale, request: Request) -> bytes:
    """A body without what is stale; the same where it has nothing of the kind."""
    try:
        return without_stale(REQUESTS[request.conversation.dialect].read(body), stale) or body
    except ValueError:
        return body


def opaque(request: Request, kit: Kit) -> Generator[Effect, object, None]:
    """A history with items that only its provider can read: it passes as it came, and once more without what the
    provider itself can't read any more. Where that does not help, the client gets the first answer."""
    yield Notify("skipped", {"reason": "opaque_history"})
    head = yield from _sent(None)
    verdict = yield from _judged(head, request, kit)
    raw = request.conversation.raw
    stale = stale_part(raw, head, verdict, request) if verdict else None
    if stale is not None:
        yield Notify("dropped", {"artifacts": stale.kind})
        try:
            again = yield from _sent(without(raw, stale, request))
        except UpstreamError as error:
            yield Notify("fault", {"where": "upstream", "error": str(error)})
        else:
            second = yield from _judged(again, request, kit)
            if second is None:
                yield Deliver(again.number, Outcome("recovered", reason="artifact_dropped"))
                return
            head = again if second.kind in TRANSIENT else head
    yield Deliver(head.number, Outcome(reason="opaque_history"))


def _sent(body: bytes | None) -> Generator[Effect, object, Head]:
    head = yield Send(body)
    assert isinstance(head, Head)
    return head


def _judged(head: Head, request: Request, kit: Kit) -> Generator[Effect, object, Verdict | None]:
    """What a refusal means, None for an answer."""
    if head.refusal is None:
        return None
    conversation = request.conversation
    sent = Sent(bytes=len(conversation.raw), output_limit=conversation.output_limit)
    refusal = Refusal(head.status, head.refusal, head.headers, head.in_stream)
    verdict = kit.classify(request.target.provider, refusal, sent)
    yield Notify("refused", {"kind": verdict.kind, "rule": verdict.evidence.rule, "status": head.status})
    return verdict
