"""`openai-inband`: asks the provider to compact within the request itself, where nothing else helps or it is its turn.

Knows when that may be asked for, and what to do where it is refused; what the provider makes of it is its own. Called
by the exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate.compactors.openai_inband import FIELD
from tidegate.engine.effects import Head
from tidegate.engine.planning import names_of
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import INBAND
from tidegate.engine.sizing import Sizing, limits_of
from tidegate.engine.view import History, View
from tidegate.overflow.verdict import Kind, Verdict
from tidegate.wire.untyped import text_at

EARLY: Final = 0.5
"""Share of the threshold from which it is asked for, since the provider's own count decides: sizes here are estimates,
and the answer counts too."""

AT_FAULT: Final = frozenset[Kind]({"unsupported", "other_4xx", "server"})
"""Refusals that may be for the field, so that the same request gets its chance without it."""

LOOKED_AT: Final = 16
"""Newest reasoning items that are looked at to see whether a client sends sealed ones back."""


def threshold_of(request: Request, kit: Kit) -> int | None:
    """Tokens from which the provider is asked to compact; None where this request can't ask for it: the route does not
    have the way, the client sets the field itself, compaction is switched off, or the window is not known."""
    conversation = request.conversation
    policy = kit.policy_for(request.target)
    if not policy.automatic or FIELD in conversation.field_spans or INBAND not in names_of(request, kit):
        return None
    limits = limits_of(request, kit)
    if limits.threshold is None or limits.limit is None:
        return None
    # Where less input is taken than the window holds, the budget's own threshold may be all of that: what comes with
    # the next turn needs room here, since nothing saves a request that is over it.
    share = int(limits.limit * policy.threshold_percent / 100)
    threshold = max(min(limits.threshold, share), request.target.means.least_inband)
    return threshold if threshold <= limits.limit else None


@dataclass(frozen=True, slots=True)
class Turn:
    """Where asking for it stands among the ways of a request."""

    first: tuple[str, ...]
    """What is tried before."""
    threshold: int
    """Input tokens from which the provider is to compact."""


def turn_of(sizing: Sizing, view: View, conversation: Callable[[], bytes]) -> Turn | None:
    """When it is asked for in this request; None where it is of no use.

    It needs a client that carries sealed items: one that sends such back already, or any where the settings say so. A
    client that was given one and came back without, and a provider that counted a beginning of this view above the
    threshold and gave none, are not asked again. Nor does it save a request that is over the window.
    """
    request, kit, history = sizing.request, sizing.kit, sizing.history
    if history.conversation.dialect != "responses":
        return None
    size, limits = sizing.measured(view).tokens, sizing.shown[-1] if sizing.shown else sizing.limits()
    if not limits.threshold or not limits.limit or not limits.threshold * EARLY <= size < limits.limit:
        return None
    threshold = threshold_of(request, kit)
    if threshold is None or not (kit.inband_for_all or _carries(history)):
        return None
    if kit.given.in_vain(conversation(), len(history.past), now=request.now):
        return None
    if any(known.input_tokens >= threshold for known in sizing.baselines(view)):
        return None
    names = names_of(request, kit)
    return Turn(names[: names.index(INBAND)], threshold)


def _carries(history: History) -> bool:
    """Whether the client sends sealed reasoning back, so that it would a sealed compaction too."""
    if b'"encrypted_content"' not in history.conversation.raw:
        return False
    facts = history.past.facts
    thoughts = [position for position, known in enumerate(facts) if known.kind == "reasoning"]
    return any(text_at(history.value(position), "encrypted_content") for position in thoughts[-LOOKED_AT:])


def at_fault(head: Head, verdict: Verdict) -> bool:
    """Whether a refusal may be for the field that was added."""
    guessed = verdict.kind == "overflow" and not verdict.certain
    return guessed or verdict.kind in AT_FAULT or _names_it(head)


def refused(head: Head | None, request: Request, kit: Kit) -> None:
    """The same request was answered without the field: what its refusal (or that there was no answer) says of the
    endpoint is remembered."""
    target, now = request.target, request.now
    if head is None or (head.status >= 500 and not _names_it(head)):
        kit.capabilities.troubled(target.endpoint, target.model, INBAND, now=now)
    else:
        kit.capabilities.lacks(target.endpoint, target.model, INBAND, now=now)


def repeatable(request: Request, head: Head | None) -> bool:
    """Whether the request may go out once more. One that adds to a conversation which the server holds may have done so
    already, unless it was refused as wrong."""
    if request.conversation.field("conversation") in (b"", b"null"):
        return True
    return head is not None and 400 <= head.status < 500


def _names_it(head: Head) -> bool:
    return FIELD.encode() in (head.refusal or b"")
