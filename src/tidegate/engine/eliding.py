"""Leaves old tool results out of what is forwarded, or cuts the largest ones: the tiers that ask nobody.

Chooses which; how an item is rewritten is `compactors.elide`'s to know, how it is spliced the view's. Called by
`compaction`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegate.compactors.elide import LEAST, WHOLE
from tidegate.context.cut import unanswered
from tidegate.engine.checkpoint import ELIDED, Artifact, Checkpoint
from tidegate.engine.router import ELIDE
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View, replaced, rewritten_item

TAIL_SHARE: Final = 8
"""The part of what is aimed for that the newest items may take without being looked at."""

EARLY_GAIN: Final = 2
"""The part of a history that has to go where none need go yet: half of it."""

CUTS: Final = (8_000, 2_000, 500)
"""Characters kept at either end of the largest results, ever fewer until it fits."""


def elided(sizing: Sizing, view: View, aim: int) -> View | None:
    """A view without the large tool results that stand before the newest ones; None where there are none. `aim` is in
    real tokens.

    All of them go at once, so that this happens seldom: what stays keeps its bytes, and its place in prompt caches,
    until the history has grown to the threshold again. Where the policy wants no more than enough, the oldest go, until
    the aim is reached. What a tool says went wrong stays.
    """
    known, base = _known(view)
    room = sizing.measured(view).shrunk(aim)
    enough = view.tokens - room if sizing.policy.elides_enough else None
    end = _tail(sizing, room)
    gone = dict(known.elided)
    new: dict[int, int] = {}
    saved = 0
    for p in range(base, end):
        if enough is not None and saved >= enough:
            break
        if gone.get(p) == WHOLE or not _large(sizing, p):
            continue
        saves = _saves(sizing, p, WHOLE)
        if saves > 0:
            new[p], saved = WHOLE, saved + saves
    return _view(sizing, view, known, base, {**gone, **new}) if new else None


def early(sizing: Sizing, view: View) -> View | None:
    """A view without old tool results although no compaction is due yet: it costs no call, so it may come as soon as
    `elide_percent` of the window is reached, and whenever half of the history would go. None where it is not the
    first way, or that little is to be gained."""
    limits, size = sizing.limits(), sizing.measured(view)
    if not limits.window or size.tokens * 100 < limits.window * sizing.kit.elide_percent:
        return None
    least = (size.local - sizing.history.overhead) // EARLY_GAIN
    (known, base), past = _known(view), sizing.history.past
    gone = dict(known.elided)
    most = sum(past.entries[p].tokens for p in range(base, len(past)) if gone.get(p) != WHOLE and _large(sizing, p))
    if most < least:  # a look at the sizes alone
        return None
    smaller = elided(sizing, view, limits.target or size.tokens)
    return smaller if smaller is not None and view.tokens - smaller.tokens >= least else None


def shortened(sizing: Sizing, view: View, aim: int) -> View | None:
    """A view in which the largest tool results, the newest too, are cut in their middle until it fits: the last resort.
    None where that does not make it smaller. What the user said is never touched.
    """
    history, (known, base) = sizing.history, _known(view)
    sizes = sorted(
        ((history.entries[p].tokens, p) for p in range(base, len(history.past)) if _large(sizing, p)), reverse=True
    )
    kept = dict(known.elided)
    saved = {p: _saves(sizing, p, keep) for p, keep in kept.items()}
    over = view.tokens - sizing.measured(view).shrunk(aim)
    enough = sum(saved.values()) + over
    for keep in CUTS:
        for tokens, position in sizes:
            if tokens * 4 <= 2 * keep or kept.get(position, keep + 1) <= keep:
                continue
            saves = _saves(sizing, position, keep)
            if saves <= saved.get(position, 0):
                continue
            kept[position], saved[position] = keep, saves
            if sum(saved.values()) >= enough:
                return _view(sizing, view, known, base, kept)
    return _view(sizing, view, known, base, kept) if kept != dict(known.elided) else None


def _known(view: View) -> tuple[Artifact, int]:
    """What stands in a view already, and where what it stands for ends."""
    if view.checkpoint is None:
        return Artifact("text"), 0
    artifact = view.checkpoint.artifact
    return artifact, artifact.stands_for(view.checkpoint.length)


def _saves(sizing: Sizing, position: int, keep: int) -> int:
    """Estimated tokens that are saved where an item's results are left out, or cut."""
    entry = sizing.history.entries[position]
    return entry.tokens - rewritten_item(sizing.history, position, keep)[1]


def _large(sizing: Sizing, position: int) -> bool:
    entry = sizing.history.entries[position]
    return entry.tokens >= LEAST and bool(entry.facts.results)


def _tail(sizing: Sizing, aim: int) -> int:
    """Where the newest items begin: the assistant's last turn and all after it, which the model has not answered yet,
    in whole groups; and before that whatever fits a share of the aim, estimated; or, by Rho's rule, all that fits it
    beside what is never compacted and the room for a summary."""
    history = sizing.history
    past, sums = history.past, history.past.sums
    start = unanswered(past.facts, past.safe)
    room = aim // TAIL_SHARE
    if sizing.policy.elides_enough:
        room = aim - history.overhead - sizing.policy.room(sizing.limits().window or aim, aim)
    while start > 0 and sums[-1] - sums[start - 1] <= room:
        start -= 1
    return start


def _view(sizing: Sizing, view: View, known: Artifact, base: int, gone: dict[int, int]) -> View | None:
    """The history with these results elided."""
    history, request, target = sizing.history, sizing.request, sizing.request.target
    length = max(gone) + 1
    checkpoint = view.checkpoint
    binding = known.binding if known.elided else known.binding + ELIDED
    artifact = replace(known, binding=binding, elided=tuple(sorted(gone.items())), base=base)
    made = Checkpoint(
        tenant=request.tenant,
        bucket=history.chain.bucket,
        length=length,
        chain=history.chain.link(length),
        head=history.head,
        dialect=request.conversation.dialect,
        artifact=artifact,
        provider=target.provider,
        endpoint=target.endpoint,
        model=target.model,
        strategy=ELIDE,
        tokens_before=checkpoint.tokens_before if checkpoint else 0,
        tokens_after=0,
    )
    return replaced(history, made, target)
