"""`context-edit`: asks Anthropic to leave old tool results out of what the model is shown, ahead of any compaction.

Knows when that may be asked for, how much it frees and which results go; the edits are `compactors.context_edit`'s.
Called by the exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from tidegate.compactors.context_edit import FIELD, asking
from tidegate.engine.effects import Finish, Head
from tidegate.engine.planning import names_of
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import CLEARING
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View, thinks, way_of
from tidegate.overflow.verdict import Kind, Verdict

KEEP: Final = 3
"""Newest tool uses that always stay: Anthropic's own number."""
STAND_IN: Final = 40
"""Tokens of what stands in the place of a result."""
SURE_SHARE: Final = 2
"""Of what is thought to be freed, the part that the provider must find too."""

AT_FAULT: Final = frozenset[Kind]({"unsupported", "other_4xx"})
"""Refusals that may be for the field, so that the same request gets its chance without it."""
_NAMES: Final = (FIELD.encode(), b"clear_tool_uses", b"clear_thinking", b"anthropic-beta", b"beta flag")


@dataclass(frozen=True, slots=True)
class Clearing:
    """What is asked for in one request. Real tokens, as estimated."""

    beta: str
    trigger: int
    keep: int
    """Newest tool uses whose results stay."""
    freed: int
    thinking_turns: int = 0
    """Newest turns whose thinking stays; 0: all of it."""

    def body(self, body: bytes) -> bytes:
        """With the field."""
        at_least = max(1, self.freed // SURE_SHARE)
        return asking(body, trigger=self.trigger, keep=self.keep, at_least=at_least, thinking_turns=self.thinking_turns)

    def headers(self, added: Mapping[str, str]) -> Mapping[str, str]:
        """With the beta, beside what else is added."""
        known = added.get("anthropic-beta")
        return {**added, "anthropic-beta": f"{known},{self.beta}" if known else self.beta}


def clearing_of(sizing: Sizing, view: View) -> Clearing | None:
    """What to ask for so that a view which is due stays below the threshold; None where that does not do, where it is
    not wanted or not to be had, and where the client or an artifact manages the context already."""
    limits, target = sizing.limits(), sizing.request.target
    if not limits.threshold or not limits.target or not _lawful(sizing, view):
        return None
    uses = _uses(sizing, view)
    gone = _gone(sizing, view, uses, limits.threshold, limits.target)
    freed = _freed(sizing, view, sum(use.gain for use in uses[:gone]))
    if not freed or sizing.measured(view).tokens - freed >= limits.threshold:
        return None
    facts = sizing.history.past.facts
    turns = [position for position in range(view.covered, len(facts)) if facts[position].thinking]
    kept = sum(position > uses[gone - 1].result for position in turns)
    # Where thinking is bound to what came before, nothing says whether the rest of it stays valid.
    thinking = thinks(sizing.request.conversation) and not target.binds_thinking and 0 < kept < len(turns)
    return Clearing(target.means.context_edit, limits.target, len(uses) - gone, freed, kept if thinking else 0)


def freed_at_most(sizing: Sizing, view: View) -> int:
    """Real tokens that could be cleared of a view, all but the newest results; 0 where that can't be asked for."""
    if not _lawful(sizing, view):
        return 0
    return _freed(sizing, view, sum(use.gain for use in _uses(sizing, view)[:-KEEP]))


def _lawful(sizing: Sizing, view: View) -> bool:
    request = sizing.request
    carried = way_of(view.checkpoint.artifact, request.conversation.dialect) if view.checkpoint else None
    managed = FIELD in request.conversation.field_spans or carried == "threshold"
    return not managed and CLEARING in names_of(request, sizing.kit)


class _Use(NamedTuple):
    """A tool use: where it stands, where its result does, and how many estimated tokens that would free."""

    at: int
    result: int
    gain: float


def _uses(sizing: Sizing, view: View) -> list[_Use]:
    """Those that are forwarded as they are, the oldest first; what is not answered yet gives nothing."""
    past = sizing.history.past
    results: dict[str, tuple[int, float]] = {}
    for position in range(view.covered, len(past)):
        known = past.facts[position]
        for name in known.results:
            # Beside words of the user's own a result's size is not told apart.
            share = past.entries[position].tokens / len(known.results) - STAND_IN if known.role == "tool" else 0.0
            results[name] = position, max(0.0, share)
    return [
        _Use(position, *results.get(name, (position, 0.0)))
        for position in range(view.covered, len(past))
        for name in past.facts[position].calls
    ]


def _gone(sizing: Sizing, view: View, uses: Sequence[_Use], threshold: int, target: int) -> int:
    """How many of them go. Found by walking the history from its beginning: each time it passes the threshold, it is
    brought down to the target. So the boundary hangs on what is before it, and stays where it is for many turns: what
    the provider has cached up to there stays good."""
    history, ratio = sizing.history, sizing.measured(view).ratio
    sums = history.past.sums
    fixed = history.overhead + view.artifact_tokens - sums[view.covered]
    met = gone = 0
    freed = 0.0
    for position in range(view.covered, len(history.past)):
        while met < len(uses) and uses[met].at <= position:
            met += 1
        if (fixed + sums[position + 1] - freed) * ratio < threshold:
            continue
        while met - gone > KEEP and (fixed + sums[position + 1] - freed) * ratio > target:
            freed += uses[gone].gain
            gone += 1
    return gone


def _freed(sizing: Sizing, view: View, estimated: float) -> int:
    """Real tokens that are freed, no more than is sure: what was reported of a beginning counts for what is left."""
    size = sizing.measured(view)
    left = max(size.tokens - estimated, (size.local - estimated) * size.ratio)
    return max(0, size.tokens - ceil(left))


def at_fault(head: Head, verdict: Verdict) -> bool:
    """Whether a refusal may be for the edits that were added."""
    return verdict.kind in AT_FAULT or any(name in (head.refusal or b"") for name in _NAMES)


def refused(request: Request, kit: Kit) -> None:
    """The same request was answered without: the endpoint does not have it."""
    target = request.target
    kit.capabilities.lacks(target.endpoint, target.model, CLEARING, now=request.now)


def happened(finish: Finish, before: int, freed: int) -> bool:
    """Whether an answer's own count fits what was to be left out of `before` tokens: where the field is passed over, a
    200 comes all the same. Without a count it is taken to have happened, unless the window ran out."""
    counted = finish.usage.input_tokens if finish.usage else 0
    return finish.finish != "window" and counted <= before - freed // SURE_SHARE


def in_vain(request: Request, kit: Kit) -> None:
    """What was to be freed was not, or not in time: other ways come first for a while."""
    target = request.target
    kit.capabilities.troubled(target.endpoint, target.model, CLEARING, now=request.now)
