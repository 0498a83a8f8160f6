"""Histories that no way of Tidegate's own can work on: those that the provider holds, and those with items that only it
can read. They pass as they came, but for what the provider may be asked to do itself.

Decides what is sent and delivered; reads no words. Called by the exchange.
"""

from __future__ import annotations

from collections.abc import Generator

from tidegate.compactors.openai_inband import FIELD, asking, pruned
from tidegate.engine import inband
from tidegate.engine.artifacts import TRANSIENT, stale_part, without
from tidegate.engine.effects import Deliver, Effect, Finish, Head, Notify, Outcome, Send, UpstreamError
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import DIALECT_OF, INBAND, TRIGGER, UNARY
from tidegate.overflow.verdict import Refusal, Sent, Verdict

Asked = tuple[Head, Verdict | None, Outcome]
"""The head of an answer, what it means if it is a refusal, and what to tell the client of what was sent."""


def own_compaction(request: Request, kit: Kit) -> Generator[Effect, object, None]:
    """A compaction that the client asks for itself: it passes as it came. Where the answer holds one, the endpoint has
    that way."""
    yield Notify("skipped", {"reason": request.hands_off})
    head = yield from _sent(None)
    finish = yield Deliver(head.number, Outcome(reason=request.hands_off))
    if isinstance(finish, Finish) and finish.compacts:
        way = INBAND if FIELD in request.conversation.field_spans else TRIGGER
        kit.capabilities.has(request.target.endpoint, way, now=request.now)


def server_held(request: Request, kit: Kit) -> Generator[Effect, object, None]:
    """A history that the provider holds: it can do no more than be asked to compact it."""
    yield Notify("skipped", {"reason": "server_held"})
    head, _verdict, outcome = yield from _first(request, kit, "server_held")
    yield Deliver(head.number, outcome)


def opaque(request: Request, kit: Kit) -> Generator[Effect, object, None]:
    """A history with items that only its provider can read: it is asked to compact it, where that is its way, and to
    read it once more without what it can't read any more. Where that does not help, the client gets the first
    answer."""
    yield Notify("skipped", {"reason": "opaque_history"})
    head, verdict, outcome = yield from _first(request, kit, "opaque_history")
    raw = request.conversation.raw
    stale = stale_part(raw, head, verdict, request) if verdict else None
    if stale is not None:
        yield Notify("dropped", {"artifacts": stale.kind})
        again: Head | None = None
        try:
            again = yield from _sent(without(raw, stale, request))
        except UpstreamError as error:
            problem = str(error)
        if again is None:
            yield Notify("fault", {"where": "upstream", "error": problem})
        else:
            second = yield from _judged(again, request, kit)
            if second is None:
                yield Deliver(again.number, Outcome("recovered", reason="artifact_dropped"))
                return
            head = again if second.kind in TRANSIENT else head
    if head.refusal is None:
        _took_its_own(request, kit)
    yield Deliver(head.number, outcome)


def _took_its_own(request: Request, kit: Kit) -> None:
    """An endpoint that takes a compaction item has made it, as far as can be known: it may make another. Where its
    provider's file has a way of the provider's own, that says more."""
    wanted = request.target.wanted
    if request.conversation.dialect == "responses" and DIALECT_OF.keys().isdisjoint(wanted.listed):
        kit.capabilities.has(request.target.endpoint, UNARY, now=request.now)


def _first(request: Request, kit: Kit, reason: str) -> Generator[Effect, object, Asked]:
    """The answer to the request, which asks for a compaction where it can. Where that is refused for what may be just
    that, or has no answer, the client's own goes out. Raises `UpstreamError`."""
    body, untouched = _asking(request, kit, reason), Outcome(reason=reason)
    if body is None:
        head = yield from _sent(None)
        return head, (yield from _judged(head, request, kit)), untouched
    yield Notify("asking", {"reason": reason})
    asked: Head | None = None
    verdict: Verdict | None = None
    lost: UpstreamError | None = None
    try:
        asked = yield from _sent(body)
    except UpstreamError as error:
        lost = error
    if asked is not None:
        verdict = yield from _judged(asked, request, kit)
        if verdict is None:
            return asked, None, Outcome(reason="asked_in_band", strategy=INBAND)
        if not inband.at_fault(asked, verdict):
            return asked, verdict, untouched
    if not inband.repeatable(request, asked):
        return (yield from _given_up(asked, lost)), verdict, untouched
    plain: Head | None = None
    try:
        plain = yield from _sent(None)
    except UpstreamError as error:
        lost = error
    if plain is None:
        return (yield from _given_up(asked, lost)), verdict, untouched
    verdict = yield from _judged(plain, request, kit)
    if verdict is not None:
        return plain, verdict, untouched
    inband.refused(asked, request, kit)
    return plain, None, Outcome(reason="in_band_refused")


def _given_up(head: Head | None, lost: UpstreamError | None) -> Generator[Effect, object, Head]:
    """The refusal, where there is one; else the error is raised."""
    if head is None:
        raise lost or UpstreamError("The provider did not answer.")
    if lost is not None:
        yield Notify("fault", {"where": "upstream", "error": str(lost)})
    return head


def _asking(request: Request, kit: Kit, reason: str) -> bytes | None:
    """The body that asks for a compaction, None where it can't.

    References alone are no proof that the client would refer to a compaction as well.
    """
    conversation = request.conversation
    held = any(conversation.field(name) not in (b"", b"null") for name in ("previous_response_id", "conversation"))
    if reason == "server_held" and not (held or kit.inband_for_all):
        return None
    threshold = inband.threshold_of(request, kit)
    if threshold is None:
        return None
    return asking(conversation.raw if held else pruned(conversation), threshold)


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
