"""What a summarizer, or a compactor of the user's own, is shown of a view that is to be compacted.

Knows items, earlier summaries and what is likely to be cached; chooses no cut. Called by `compaction`.
"""

from __future__ import annotations

from collections.abc import Generator
from math import ceil

from tidegate.compactors import custom, summary
from tidegate.compactors.ride import LOOKBACK
from tidegate.compactors.strategy import Call, Reply, Ride, Span, Summary
from tidegate.compactors.summary import Options
from tidegate.engine.learning import warmth_key
from tidegate.engine.planning import Plan, Why
from tidegate.engine.request import Target
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View, items_to_summarise, plain
from tidegate.overflow.verdict import Refusal, Sent
from tidegate.wire.conversation import JsonValue
from tidegate.wire.jsontext import loads

HOUR = 3600.0
"""Seconds that a mark of an hour keeps what it marks."""


def summary_of(
    sizing: Sizing, view: View, chosen: Plan, why: Why, base: View | None, target: Target, asked: int
) -> Generator[Call, Reply, Summary]:
    """A summary of the items before the cut, by the model that the `target` names, where `asked` calls were made for it
    already. What only a provider can read is no part of it: where such an artifact stands in the view, the items
    themselves are summed up, from the end of the `base`'s own summary on."""
    request, kit, history = sizing.request, sizing.kit, sizing.history
    at, retained, first = chosen.cut.at, chosen.cut.retained, target is sizing.request.target
    sealed = view.checkpoint is not None and view.checkpoint.artifact.kind == "opaque"
    start = (base or plain(history)) if sealed else view
    options = kit.options(target, request.conversation.dialect)
    sums = history.past.sums

    def overflows(reply: Reply) -> bool:
        refusal = Refusal(reply.status, reply.body, reply.headers)
        return kit.classify(target.provider, refusal, Sent()).action == "compact"

    span = Span(
        conversation=request.conversation,
        values=items_to_summarise(history, start, at, retained),
        retained=retained,
        previous=start.checkpoint.artifact.text if start.checkpoint else "",
        model=target.summary_model or target.model,
        window=target.summary_window if target.summary_model else chosen.window,
        room=chosen.room,
        size=start.artifact_tokens + sums[at] - sums[start.covered],
        ratio=sizing.measured(view).ratio,
        max_calls=kit.summary_max_calls - asked,
        ride=_ride(sizing, view, at, options) if why == "threshold" and start is view and first else None,
    )
    return (yield from summary.work(span, options, overflows))


def asked_of_custom(sizing: Sizing, view: View, chosen: Plan, why: Why, base: View | None) -> custom.Asked:
    """What a compactor of the user's own is shown: the items themselves, whatever a provider has sealed."""
    request, history = sizing.request, sizing.history
    sealed = view.checkpoint is not None and view.checkpoint.artifact.kind == "opaque"
    start = (base or plain(history)) if sealed else view
    conversation, limits = request.conversation, sizing.limits()

    def field(name: str) -> JsonValue:
        raw = conversation.field(name)
        return loads(raw) if raw else None

    lead = [loads(conversation.item_raw(n)) for n in range(conversation.lead)]
    return custom.Asked(
        dialect=conversation.dialect,
        model=request.target.model,
        window=chosen.window,
        trigger=why,
        tokens=sizing.measured(view).tokens,
        room=chosen.room,
        items=tuple(history.value(p) for p in range(len(history.past))),
        since=start.covered,
        until=chosen.cut.at,
        previous=start.checkpoint.artifact.text if start.checkpoint else "",
        system=field("system") or field("instructions") or lead or None,
        tools=field("tools"),
        retained=chosen.cut.retained,
        item_tokens=tuple(entry.tokens for entry in history.entries),
        threshold=limits.threshold,
        target=limits.target,
    )


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
