"""Compacts ahead of time: in the band below the threshold, behind the client's back, for the turn that will need it.

Decides when and what; the work is a driver's, and nothing is changed before the threshold. Called by the exchange.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from math import ceil

from tidegate.compactors.strategy import CompactionFailed
from tidegate.engine.compaction import compaction_of
from tidegate.engine.diagnostics import Failed
from tidegate.engine.effects import Cost, Effect, Made, NothingHelped, Notify, Prepare
from tidegate.engine.eliding import elided
from tidegate.engine.planning import Plan, plan, strategies_of
from tidegate.engine.prepared import Prepared
from tidegate.engine.request import Target
from tidegate.engine.router import ELIDE
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View, may_cut, whole
from tidegate.wire.conversation import Usage


def near(sizing: Sizing, view: View, usage: Usage | None, freed: int = 0) -> int:
    """Tokens that the next turn begins with where that is near the threshold, or over it; else 0. `freed`: those that
    the provider leaves out of this view, and will out of the next one."""
    soft = (sizing.shown[-1] if sizing.shown else sizing.limits()).soft
    if soft is None:
        return 0
    tokens = sizing.measured(view).tokens - freed
    if usage is not None:
        # What can't be a size of this view is a sum over several rounds.
        reported = usage.input_tokens if usage.input_tokens <= len(view.body) else 0
        tokens = max(tokens, reported) + usage.output_tokens
    return tokens if tokens >= soft else 0


def prepare(
    sizing: Sizing, view: View, conversation: bytes, tokens: int, strategies: tuple[str, ...] | None = None
) -> Generator[Effect, object, None]:
    """Begins a compaction of this view for a later turn, where none is prepared. `tokens` is what `near` gave;
    `strategies` are tried in place of all that can be."""
    kit, request = sizing.kit, sizing.request
    kept, now = kit.preparations, sizing.request.now
    known = kept.get(conversation, now=now)
    if known is not None:
        if _stands(sizing, view, known):
            return
        kept.wasted(conversation, now=now)
    breaker = kit.breaker
    if kept.rests(conversation, now=now) or breaker.rests(conversation, now=now) or breaker.held(conversation, tokens):
        return
    names = strategies_of(sizing) if strategies is None else strategies
    found = _plan(sizing, view, tokens, names)
    if found is None:
        return
    view, chosen = found
    links, key = sizing.history.chain.link, (sizing.history.chain.bucket, request.target.model)
    prepared = Prepared(
        chosen.cut,
        chosen.room,
        chosen.window,
        links(chosen.cut.at),
        view.chain,
        _place(request.target),
        chosen.strategies,
        chosen.own,
        links(chosen.own.at) if chosen.own else b"",
    )
    work = compaction_of(sizing, view, chosen)

    def ended(ending: Made | CompactionFailed) -> Notify:
        if isinstance(ending, Made):
            kit.breaker.succeeded(conversation)
            failed = ", ".join(f"{it.strategy}: {it.reason}" for it in ending.failed)
            return Notify("prepared", {"strategy": ending.strategy, "failed": failed, **_told(ending.cost)})
        if kept.get(conversation, now=now) is prepared:
            kept.drop(conversation)
        kit.breaker.failed(conversation, now=now)
        kit.records.failed(key, Failed(now, "prepared", ending.reason))
        cost = ending.cost if isinstance(ending, NothingHelped) else Cost()
        return Notify("prepare_failed", {"reason": ending.reason, **_told(cost)})

    kept.begin(conversation, prepared, now=now)
    begun: object = False
    try:
        begun = yield Prepare(work.key, work.strategy, work.work, ended)
    finally:
        if begun is not True:
            kept.drop(conversation)
    if begun is True:
        yield Notify("preparing", {"items": chosen.first.at, "from": view.covered, "tokens": tokens})


def _plan(sizing: Sizing, view: View, tokens: int, names: tuple[str, ...]) -> tuple[View, Plan] | None:
    """A view of that many tokens with nothing elided, and how that is compacted ahead of time; None where it is not."""
    limits = sizing.limits()
    if not limits.threshold or not limits.target:
        return None
    # By the time it is used the history has grown to the threshold: then it comes down to the target.
    aim = max(limits.target - max(0, limits.threshold - tokens), limits.target // 2)
    short = elided(sizing, view, limits.target) if names[:1] == (ELIDE,) else None
    if short is not None and sizing.measured(short).tokens <= limits.target:
        return None  # takes no time when it is due
    slow = tuple(name for name in names if name != ELIDE)
    view = whole(sizing.history, view, sizing.request.target)
    chosen = plan(sizing, view, aim, "threshold", slow) if slow else None
    return None if chosen is None else (view, chosen)


def _told(cost: Cost) -> Mapping[str, int]:
    return {"calls": cost.calls, "input_tokens": cost.input_tokens, "output_tokens": cost.output_tokens}


def ready(sizing: Sizing, view: View, conversation: bytes) -> Plan | None:
    """The compaction that was prepared, where it stands for the beginning of this history and makes it small enough.

    One that does not is thrown away: what comes now takes its place.
    """
    kept, now, threshold = sizing.kit.preparations, sizing.request.now, sizing.limits().threshold
    view = whole(sizing.history, view, sizing.request.target)
    known = kept.get(conversation, now=now)
    if known is None or threshold is None:
        return None
    if _stands(sizing, view, known) and _size_after(sizing, view, known) < threshold:
        return Plan(known.cut, known.room, known.window, known.strategies, known.own)
    kept.wasted(conversation, now=now)
    return None


def _place(target: Target) -> str:
    """Where a compaction is of use: what one credential has sealed is of none with another."""
    return f"{target.endpoint} {target.credential}"


def _stands(sizing: Sizing, view: View, known: Prepared) -> bool:
    """Whether this view begins with what was to be compacted, and may be cut there."""
    target = sizing.request.target
    same = known.onto == view.chain and known.place == _place(target)
    return same and all(
        view.covered < cut.at and may_cut(sizing.history, cut.at, link, target) for cut, link in known.cuts
    )


def _size_after(sizing: Sizing, view: View, known: Prepared) -> int:
    """Real tokens at most, with a summary that takes all its room."""
    history, sums = sizing.history, sizing.history.past.sums
    kept = max(
        sums[-1] - sums[cut.at] + sum(history.entries[position].tokens for position in cut.retained)
        for cut, _link in known.cuts
    )
    return ceil((history.overhead + known.room + kept) * sizing.measured(view).ratio)
