"""One compaction of a view: where to cut, what to ask, whether the result is worth having.

Yields the one `Compact` effect and its notices; sends and stores nothing. Called by the exchange and by `ahead`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, TypeAlias

from tidegate.compactors import summary
from tidegate.compactors.ride import LOOKBACK
from tidegate.compactors.strategy import CompactionFailed, Reply, Ride, Span, Summary
from tidegate.compactors.summary import Options
from tidegate.context.budget import summary_room
from tidegate.context.cut import Cut, choose
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.effects import Compact, Effect, Notify, Work
from tidegate.engine.learning import warmth_key
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View, applied, barred_cuts, items_to_summarise, replaced
from tidegate.overflow.verdict import Refusal, Sent

Why: TypeAlias = Literal["threshold", "overflow"]

STRATEGY = "summary"

MIN_GAIN = 0.1
"""A compaction ahead of the window that would free less than this share of the history is not worth a call."""

MIN_GAIN_REFUSED = 128
"""Tokens that are worth a call where the request was refused for its size."""

REFUSED_SHARE = 0.7
"""Of a refused request's size: the window that is assumed where it stays unknown."""

HOUR = 3600.0
"""Seconds that a mark of an hour keeps what it marks."""

MIN_ROOM = 64
"""Tokens a summary gets at least."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A cut, and the room for what replaces the items before it. Estimated tokens."""

    cut: Cut
    room: int
    window: int | None
    """Of the model in use, as far as is known or assumed; real tokens."""


def plan(sizing: Sizing, view: View, aim: int, why: Why) -> Plan | None:
    """The cut that brings a view down to `aim` real tokens, or as near as whole groups allow; None: nothing to gain."""
    history, policy = sizing.history, sizing.kit.policy
    size, limits = sizing.measured(view), sizing.limits()
    aim = int(aim / size.ratio)
    room = max(MIN_ROOM, min(summary_room(limits.window or size.tokens), aim // 3))
    half_window = int(limits.window / size.ratio) // 2 if limits.window else aim
    cut = choose(
        history.facts,
        [entry.tokens for entry in history.entries],
        covered=view.covered,
        room=max(0, aim - history.overhead - room),
        tail_max=min(half_window, policy.keep_recent_tokens or half_window),
        min_gain=MIN_GAIN_REFUSED if why == "overflow" else int(MIN_GAIN * (size.local - history.overhead)),
        retain_system_max=max(0, aim // 4),
        barred=barred_cuts(history, sizing.request.target),
    )
    if cut is None:
        return None
    assumed = int(size.tokens * REFUSED_SHARE) if why == "overflow" else None
    return Plan(cut, room, limits.window or assumed)


def compact(
    sizing: Sizing, view: View, aim: int, why: Why, prepared: Plan | None = None
) -> Generator[Effect, object, tuple[View, int]]:
    """(a smaller view, summary calls made). Raises `CompactionFailed`, also where there is nothing to gain.

    What was `prepared` on an earlier turn is used in place of a plan for this one.
    """
    chosen = prepared or plan(sizing, view, aim, why)
    if chosen is None:
        raise CompactionFailed("nothing_to_compact")
    before = sizing.measured(view).tokens
    yield Notify("compacting", {"why": why, "items": chosen.cut.at, "from": view.covered, "tokens": before})
    try:
        made = yield compaction_of(sizing, view, chosen, why)
    except CompactionFailed as error:
        yield Notify("compaction_failed", {"reason": error.reason})
        raise
    if not isinstance(made, Summary):
        raise CompactionFailed("no_summary")
    checkpoint = _checkpoint(sizing, chosen.cut.at, made, before)
    # The newest words may be others by now than those that an earlier turn kept beside the summary.
    place = applied if prepared else replaced
    smaller = place(sizing.history, checkpoint, sizing.request.target)
    if smaller is None or smaller.checkpoint is None or smaller.tokens >= view.tokens:
        yield Notify("compaction_failed", {"reason": "no_smaller"})
        raise CompactionFailed("no_smaller")
    after = sizing.measured(smaller).tokens
    checkpoint = replace(smaller.checkpoint, tokens_after=after)
    yield Notify("compacted", {"checkpoint": checkpoint.id, "before": before, "after": after, "calls": made.calls})
    return smaller.with_checkpoint(checkpoint), made.calls


def compaction_of(sizing: Sizing, view: View, chosen: Plan, why: Why = "threshold") -> Compact:
    """The effect that makes a plan's summary. Its key is the same for every history that begins with these items."""
    request, target, kit, history = sizing.request, sizing.request.target, sizing.kit, sizing.history
    at, retained = chosen.cut.at, chosen.cut.retained
    model = target.summary_model or target.model
    ratio = sizing.measured(view).ratio
    options = kit.options(target, request.conversation.dialect)
    key = kit.hasher.mix(
        STRATEGY.encode(),
        request.tenant,
        view.chain,
        history.chain.links[at],
        target.endpoint.encode(),
        model.encode(),
        *(number.to_bytes(8, "big") for number in (chosen.room, chosen.window or 0, *retained)),
    )

    def overflows(reply: Reply) -> bool:
        refusal = Refusal(reply.status, reply.body, reply.headers)
        return kit.classify(target.provider, refusal, Sent()).action == "compact"

    def work() -> Work:
        # Read here: where the work is a joined flight's, or is done in a thread, the request needs no time for it.
        span = Span(
            conversation=request.conversation,
            values=items_to_summarise(history, view, at, retained),
            retained=retained,
            previous=view.checkpoint.artifact.text if view.checkpoint else "",
            model=model,
            window=target.summary_window if target.summary_model else chosen.window,
            room=chosen.room,
            size=view.artifact_tokens + history.past.sums[at] - history.past.sums[view.covered],
            ratio=ratio,
            max_calls=kit.summary_max_calls,
            ride=_ride(sizing, view, at, options) if why == "threshold" else None,
        )
        return (yield from summary.work(span, options, overflows))

    return Compact(key, STRATEGY, work)


def _ride(sizing: Sizing, view: View, at: int, options: Options) -> Ride | None:
    """The view for a summary call that continues it up to the cut, and not beyond: a summary must not tell of what
    comes after the items that it stands for. None where that can't be lawful, or nothing says that it is cached.

    After an overflow nothing rides: sizes have just proved wrong.
    """
    target, history = sizing.request.target, sizing.history
    conversation, past = history.conversation, history.past
    if options.ride == "off" or target.summary_model not in ("", target.model) or view.add_headers:
        return None
    before = past.entries[at - 1].facts
    if target.merge_user and (before.role != "assistant" or before.calls):
        return None
    known = _known_length(sizing, view, at, options)
    if options.ride == "auto" and not known:
        return None
    fixed, ratio = history.overhead + view.artifact_tokens, sizing.measured(view).ratio
    start, end = conversation.items[conversation.lead + at].start, conversation.items[-1].end
    return Ride(
        body=view.body,
        after=len(past) - at,
        tail=conversation.raw[start:end],
        tokens=ceil((fixed + past.sums[at] - past.sums[view.covered]) * ratio),
        cached=ceil((fixed + past.sums[known] - past.sums[view.covered]) * ratio) if known else 0,
    )


def _known_length(sizing: Sizing, view: View, at: int, options: Options) -> int:
    """How many items, up to the cut, the provider is likely to have in its cache; 0 where it is not."""
    caching, past, now = options.caching, sizing.history.past, sizing.request.now
    if caching is None:
        return 0
    sendings = sizing.kit.warmth.sendings(warmth_key(sizing, view))
    if not caching.marks:
        # Any later use of a longer beginning keeps this one.
        recent = [it.length for it in sendings if now - it.at <= caching.lifetime]
        return min(max(recent), at) if recent and max(recent) > view.covered else 0
    marks = past.marks[-1] + sizing.history.marks + bool(sizing.history.conversation.field("cache_control"))
    if not marks or past.thoughts[at] > past.thoughts[view.covered]:
        # A client without marks has nothing cached; words after thinking make older models leave that out of what is
        # read again, and of the cache.
        return 0
    # Read again is what ended at a mark: a request's last items, not long before the cut.
    long = past.entries[-1].facts.long_mark
    lifetime = max(caching.lifetime, HOUR) if long else caching.lifetime
    ends = [it.length for it in sendings if at - LOOKBACK // 2 <= it.length <= at and now - it.at <= lifetime]
    return max((length for length in ends if length > view.covered), default=0)


def _checkpoint(sizing: Sizing, at: int, made: Summary, before: int) -> Checkpoint:
    request, target, history = sizing.request, sizing.request.target, sizing.history
    return Checkpoint(
        tenant=request.tenant,
        bucket=history.chain.bucket,
        length=at,
        chain=history.chain.links[at],
        head=history.head,
        dialect=request.conversation.dialect,
        artifact=Artifact("text", text=made.text, retained=made.retained),
        provider=target.provider,
        endpoint=target.endpoint,
        model=target.model,
        strategy=STRATEGY,
        tokens_before=before,
        tokens_after=0,
    )
