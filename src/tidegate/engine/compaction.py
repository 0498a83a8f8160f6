"""One compaction of a view: where to cut, which strategies to try in turn, whether the result is worth having.

Yields the one `Compact` effect and its notices; sends and stores nothing. Called by the exchange and by `ahead`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, TypeAlias

from tidegate.compactors import custom, summary
from tidegate.compactors.ride import LOOKBACK
from tidegate.compactors.strategy import Call, CompactionFailed, Elided, Minted, Reply, Ride, Span, Summary
from tidegate.compactors.summary import Options
from tidegate.context.budget import Budget, Policy
from tidegate.context.cut import Cut, choose
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.effects import Compact, Effect, Failure, Made, NothingHelped, Notify, OutOfTime, Work
from tidegate.engine.eliding import early, elided, shortened
from tidegate.engine.learning import warmth_key
from tidegate.engine.native import NATIVE, artifact_of, binding_of, claude_ways, largest, minting
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.router import ELIDE, LEARNED, SUMMARY, WITHIN, route, watched
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import (
    ANTHROPIC,
    View,
    applied,
    barred_cuts,
    cuts_after_answers,
    items_to_summarise,
    plain,
    replaced,
    same_role_cuts,
    whole,
)
from tidegate.overflow.verdict import Refusal, Sent
from tidegate.wire.billing import billed
from tidegate.wire.conversation import DialectName, JsonValue
from tidegate.wire.jsontext import loads

Why: TypeAlias = Literal["threshold", "overflow", "requested"]

Compacting: TypeAlias = Generator[Effect, object, tuple[View, Made]]

TROUBLE = frozenset(
    {
        "custom_failed",
        "custom_too_slow",
        "custom_invalid",
        "compact_unreachable",
        "compact_cut_off",
        "compact_unavailable",
    }
)
"""Failures of a provider's own compaction that say nothing of what it was asked, as its errors of 500 and more do."""

SAME_ANYWHERE = frozenset({"summary_nothing", "summary_http_401"})
"""What another model at the same provider would meet too."""

MIN_GAIN = 0.1
"""A compaction ahead of the window that would free less than this share of the history is not worth a call."""

MIN_GAIN_REFUSED = 128
"""Tokens that are worth a call where the request was refused for its size, or somebody asked for it."""

REFUSED_SHARE = 0.7
"""Of a refused request's size: the window that is assumed where it stays unknown."""

HOUR = 3600.0
"""Seconds that a mark of an hour keeps what it marks."""


OWN_RECENT = 20_000
"""Newest tokens that Claude's own compaction leaves as they are, at most, where nobody says how many (pi's number)."""

OWN_RECENT_SHARE = 10
"""The part of the window that they are at most (Planck's)."""

OWN_RECENT_PART = 4
"""The part of the history that they are at most."""

OWN_FREES = 4
"""The part of the whole request that a provider's own compaction has to free, or it was of no use."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where to cut, and the room for what replaces the items before it. Estimated tokens."""

    cut: Cut
    """For a text: what is kept is as much as the aim leaves room for."""
    room: int
    window: int | None
    """Of the model in use, as far as is known or assumed; real tokens."""
    strategies: tuple[str, ...] = (SUMMARY,)
    """To be tried in turn."""
    own: Cut | None = None
    """For the provider's own compaction, which no aim bounds; None where none is tried."""

    def cut_for(self, strategy: str) -> Cut:
        """Where a strategy cuts."""
        return self.own if self.own is not None and strategy in NATIVE else self.cut

    @property
    def first(self) -> Cut:
        """Where the first of the strategies cuts."""
        return self.cut_for(self.strategies[0])


def names_of(request: Request, kit: Kit) -> tuple[str, ...]:
    """Ways that can be tried at this request's target, best first."""
    target, known, now = request.target, kit.capabilities, request.now
    wanted = target.wanted.with_learned(known.learned(target.endpoint, LEARNED, now=now))
    missing = known.missing(target.endpoint, target.model, watched(wanted.names), now=now)
    return route(request.conversation.dialect, wanted, target.means, missing).names


def strategies_of(sizing: Sizing) -> tuple[str, ...]:
    """Those of them that have calls of their own."""
    return tuple(name for name in names_of(sizing.request, sizing.kit) if name not in WITHIN)


def plan(sizing: Sizing, view: View, aim: int, why: Why, strategies: tuple[str, ...] | None = None) -> Plan | None:
    """The cuts by which a view gets smaller; None: nothing to gain.

    A text is cut for so that the view comes down to `aim` real tokens, or as near as whole groups allow. A provider's
    own compaction decides itself how much remains, so neither an aim nor the target percentage counts for it: it is
    given all but the newest group; Claude all but the newest turns. Strategies that can't be cut for are left out.
    """
    names = strategies_of(sizing) if strategies is None else strategies
    own = _own_cut(sizing, view, why, names) if any(name in NATIVE for name in names) else None
    text = _text_cut(sizing, view, aim, why) if any(name not in NATIVE for name in names) else None
    names = tuple(name for name in names if (own if name in NATIVE else text) is not None)
    cut = text or own
    if cut is None:
        return None
    policy, limits, size = sizing.policy, sizing.limits(), sizing.measured(view)
    room = policy.room(limits.window or size.tokens, size.shrunk(aim))
    assumed = int(size.tokens * REFUSED_SHARE) if why == "overflow" else None
    return Plan(cut, room, limits.window or assumed, names, own)


def _own_cut(sizing: Sizing, view: View, why: Why, names: tuple[str, ...]) -> Cut | None:
    """The latest cut whose items the provider's own compaction takes within its window; for Claude's the earliest that
    leaves no more than the newest turns: beside its block they stay valid, thinking and all."""
    history, policy, size, limits = sizing.history, sizing.policy, sizing.measured(view), sizing.limits()
    claude = ANTHROPIC in names
    barred = barred_cuts(history, sizing.request.target) | (_barred_for_claude(sizing, view) if claude else frozenset())
    local = size.local - history.overhead
    keep = 0
    if claude:
        recent = policy.recent(limits.window)
        if recent is None:
            recent = min(OWN_RECENT, (limits.window or size.tokens) // OWN_RECENT_SHARE)
        keep = min(size.shrunk(recent), local // OWN_RECENT_PART)
    window = limits.window or (int(size.tokens * REFUSED_SHARE) if why == "overflow" else None)
    limit = min((it for it in (window, limits.limit) if it), default=None)
    half = (size.shrunk(window) if window else size.local) // 2
    return choose(
        history.facts,
        [entry.tokens for entry in history.entries],
        covered=view.covered,
        room=keep,
        tail_max=half,
        head_max=None if limit is None else size.shrunk(largest(limit)) - history.overhead - view.artifact_tokens,
        min_gain=_least_gain(sizing, view, why),
        retain_system_max=half // 4,
        barred=barred,
        keep_last=policy.preserve_last_n if claude else None,
        unanswered_max=min(half, local - size.local // OWN_FREES),
    )


def _barred_for_claude(sizing: Sizing, view: View) -> frozenset[int]:
    """Positions at which Claude's own compaction, as it would be asked for first, can't end or would cost thinking."""
    way = next(iter(claude_ways(sizing, view)), None)
    if way == "threshold":
        return cuts_after_answers(sizing.history)
    return same_role_cuts(sizing.history) if sizing.request.target.binds_thinking else frozenset()


def _text_cut(sizing: Sizing, view: View, aim: int, why: Why) -> Cut | None:
    """The cut that brings a view down to `aim` real tokens, a summary that takes all its room included."""
    history, policy = sizing.history, sizing.policy
    size, limits = sizing.measured(view), sizing.limits()
    recent = _recent(policy, limits, aim, why)
    aim = size.shrunk(aim)
    room = policy.room(limits.window or size.tokens, aim)
    half_window = size.shrunk(limits.window) // 2 if limits.window else aim
    # A refused request has to get small; else it is enough that it is not due again at once.
    most = (
        aim if why == "overflow" or limits.threshold is None else max(aim, (aim + size.shrunk(limits.threshold)) // 2)
    )
    return choose(
        history.facts,
        [entry.tokens for entry in history.entries],
        covered=view.covered,
        room=max(0, aim - history.overhead - room),
        tail_max=half_window if recent is None else min(half_window, max(1, size.shrunk(recent))),
        min_gain=_least_gain(sizing, view, why),
        retain_system_max=max(0, aim // 4),
        barred=barred_cuts(history, sizing.request.target),
        keep_last=policy.preserve_last_n,
        unanswered_max=min(half_window, max(0, most - history.overhead - room)),
    )


def _recent(policy: Policy, limits: Budget, aim: int, why: Why) -> int | None:
    """Real tokens at the end that stay as they are, at most. What is made ahead of time leaves out as much of them as
    is still to come, half of them at most: the aim is lower by that then."""
    recent = policy.recent(limits.window)
    if recent is None or why != "threshold" or limits.target is None:
        return recent
    return max(recent // 2, recent - max(0, limits.target - aim))


def compact(
    sizing: Sizing,
    view: View,
    aim: int,
    why: Why,
    prepared: Plan | None = None,
    *,
    base: View | None = None,
    strategies: tuple[str, ...] | None = None,
) -> Compacting:
    """(a smaller view, what was made for it). Raises `CompactionFailed`, also where there is nothing to gain.

    What was `prepared` on an earlier turn is used in place of a plan for this one. `base` is the view that a summary
    carries on where an opaque artifact stands in this one; `strategies` are tried in place of all that can be.
    """
    names = strategies_of(sizing) if strategies is None else strategies
    if not names:
        yield Notify("compaction_failed", {"reason": "no_strategy", "named_by": sizing.request.target.wanted.by})
        raise CompactionFailed("no_strategy")
    if ELIDE in names:
        return (yield from _in_tiers(sizing, view, aim, why, prepared, base, names))
    shown, view = view, whole(sizing.history, view, sizing.request.target)
    chosen = prepared or plan(sizing, view, aim, why, names)
    if chosen is None:
        raise CompactionFailed("nothing_to_compact")
    before = sizing.measured(shown).tokens
    yield Notify("compacting", {"why": why, "items": chosen.first.at, "from": view.covered, "tokens": before})
    try:
        made = yield compaction_of(sizing, view, chosen, why, base)
    except NothingHelped as error:
        yield from _told(error.failed)
        raise
    except CompactionFailed as error:
        yield Notify("compaction_failed", {"reason": error.reason})
        raise
    assert isinstance(made, Made)
    yield from _told(made.failed)
    checkpoint = checkpoint_of(sizing, chosen.cut_for(made.strategy).at, made, before)
    # The newest words may be others by now than those that an earlier turn kept beside the summary.
    place = applied if prepared else replaced
    smaller = place(sizing.history, checkpoint, sizing.request.target)
    if smaller is None or smaller.checkpoint is None or smaller.tokens >= shown.tokens:
        paid = made.result
        lost = Failure(made.strategy, "no_smaller", False, paid.calls, paid.input_tokens, paid.output_tokens)
        yield from _told((lost,))
        raise NothingHelped((*made.failed, lost))
    after = sizing.measured(smaller).tokens
    checkpoint = replace(smaller.checkpoint, tokens_after=after)
    yield Notify(
        "compacted",
        {
            "checkpoint": checkpoint.id,
            "strategy": made.strategy,
            "before": before,
            "after": after,
            "calls": made.result.calls,
            "input_tokens": made.result.input_tokens,
            "output_tokens": made.result.output_tokens,
        },
    )
    return smaller.with_checkpoint(checkpoint), made


def _in_tiers(
    sizing: Sizing,
    view: View,
    aim: int,
    why: Why,
    prepared: Plan | None,
    base: View | None,
    names: tuple[str, ...],
) -> Compacting:
    """Ways in their order, of which one asks nobody: it counts where it is enough, or where nothing else helps."""
    at = names.index(ELIDE)
    failed: list[CompactionFailed] = []
    if names[:at]:
        try:
            return (yield from compact(sizing, view, aim, why, prepared, base=base, strategies=names[:at]))
        except CompactionFailed as error:
            failed.append(error)
    smaller = elided(sizing, view, aim)
    enough = smaller is not None and smaller.tokens <= sizing.measured(view).shrunk(aim)
    if names[at + 1 :] and not enough:
        try:
            later = yield from compact(sizing, view, aim, why, prepared, base=base, strategies=names[at + 1 :])
            return later[0], replace(later[1], failed=(*_tried(failed), *later[1].failed))
        except CompactionFailed as error:
            failed.append(error)
    if smaller is None or view.tokens - smaller.tokens < _least_gain(sizing, view, why):
        if tried := _tried(failed):
            raise NothingHelped(tried)
        raise failed[-1] if failed else CompactionFailed("nothing_to_compact")
    return (yield from _without_asking(sizing, view, smaller, why, _tried(failed)))


def _tried(failed: list[CompactionFailed]) -> tuple[Failure, ...]:
    """All ways that gave nothing, and what they cost."""
    return tuple(one for error in failed if isinstance(error, NothingHelped) for one in error.failed)


def _least_gain(sizing: Sizing, view: View, why: Why) -> int:
    """Estimated tokens that a compaction has to free."""
    local = sizing.measured(view).local - sizing.history.overhead
    return MIN_GAIN_REFUSED if why != "threshold" else int(MIN_GAIN * local)


def ahead_of_time(sizing: Sizing, view: View) -> Generator[Effect, object, View | None]:
    """The view without old tool results where that is the first way and worth it before anything is due; None where it
    is not."""
    smaller = early(sizing, view)
    if smaller is None or strategies_of(sizing)[:1] != (ELIDE,):
        return None
    return (yield from _without_asking(sizing, view, smaller, "threshold"))[0]


def last_resort(sizing: Sizing, view: View, aim: int) -> Compacting:
    """Cuts the largest tool results, the newest too, where nothing else helped after a refusal. Raises
    `CompactionFailed`."""
    smaller = shortened(sizing, view, aim)
    if smaller is None or view.tokens - smaller.tokens < MIN_GAIN_REFUSED:
        raise CompactionFailed("nothing_to_compact")
    return (yield from _without_asking(sizing, view, smaller, "overflow"))


def _without_asking(
    sizing: Sizing, view: View, smaller: View, why: Why, failed: tuple[Failure, ...] = ()
) -> Compacting:
    before, after = sizing.measured(view).tokens, sizing.measured(smaller).tokens
    assert smaller.checkpoint is not None
    checkpoint = replace(smaller.checkpoint, tokens_before=before, tokens_after=after)
    items = len(checkpoint.artifact.elided)
    yield Notify("compacting", {"why": why, "items": items, "from": view.covered, "tokens": before})
    told: dict[str, JsonValue] = {"checkpoint": checkpoint.id, "strategy": ELIDE, "before": before, "after": after}
    yield Notify("compacted", {**told, "calls": 0, "input_tokens": 0, "output_tokens": 0})
    return smaller.with_checkpoint(checkpoint), Made(Elided(), ELIDE, failed)


def _told(failed: tuple[Failure, ...]) -> Generator[Effect, object, None]:
    for failure in failed:
        cost = {"calls": failure.calls, "input_tokens": failure.input_tokens, "output_tokens": failure.output_tokens}
        yield Notify("compaction_failed", {"reason": failure.reason, "strategy": failure.strategy, **cost})


def compaction_of(
    sizing: Sizing, view: View, chosen: Plan, why: Why = "threshold", base: View | None = None
) -> Compact:
    """The effect that carries out a plan. Its key is the same for every history that begins with these items."""
    request, target, kit, history = sizing.request, sizing.request.target, sizing.kit, sizing.history
    cuts = tuple({chosen.cut_for(name): None for name in chosen.strategies})
    numbers = [number for cut in cuts for number in (len(cut.retained), *cut.retained)]
    key = kit.hasher.mix(
        "\0".join(chosen.strategies).encode(),
        binding_of(target, request.conversation.dialect).encode(),
        request.tenant,
        view.chain,
        *(history.chain.links[cut.at] for cut in cuts),
        history.head,
        target.endpoint.encode(),
        target.model.encode(),
        target.summary_model.encode(),
        *(model.encode() for model, _window in target.summarizers),
        kit.options(target, request.conversation.dialect).focus.encode(),
        *(number.to_bytes(8, "big") for number in (chosen.room, chosen.window or 0, *numbers)),
    )

    local = sizing.measured(view).local
    most = local - max(1, local // OWN_FREES)

    def one(name: str, to: Target, calls: int) -> Generator[Call, Reply, Summary | Minted]:
        # Read here: where the work is a joined flight's, or is done in a thread, the request needs no time for it.
        if name == SUMMARY:
            return (yield from _summary(sizing, view, chosen, why, base, to, calls))
        if name in kit.custom:
            asked = _asked_of_custom(sizing, view, chosen, why, base)
            return (yield from custom.work(name, asked, kit.custom[name]))
        cut = chosen.cut_for(name)
        return (yield from minting(name, sizing, view, cut.at, cut.retained, window=chosen.window, most=most))

    def work() -> Work:
        failed: list[Failure] = []
        asked = 0
        for name, to in _ways(chosen.strategies, target):
            if to is not target and (failed[-1].reason in SAME_ANYWHERE or asked >= kit.summary_max_calls):
                continue
            replies: list[bytes] = []
            try:
                result = yield from _noted(one(name, to, asked), replies, target.credential)
                if name in LEARNED and name not in target.wanted.listed:
                    kit.capabilities.has(target.endpoint, name, now=request.now)
                return Made(result, name, tuple(failed))
            except CompactionFailed as error:
                failure = error
            except Exception:  # whatever a strategy has not foreseen in what it was answered
                failure = CompactionFailed("strategy_fault")
            failed.append(_failure(name, failure, request.conversation.dialect, replies))
            if isinstance(failure, OutOfTime):
                break
            asked += len(replies) if name == SUMMARY else 0
            if failure.missing:
                kit.capabilities.lacks(target.endpoint, target.model, name, now=request.now)
            elif failure.reason in TROUBLE or failure.reason.startswith("compact_http_5"):
                kit.capabilities.troubled(target.endpoint, target.model, name, now=request.now)
            elif name in LEARNED and name not in target.wanted.names:
                # Nobody lists it, and what the endpoint has shown is not what it does here.
                kit.capabilities.lacks(target.endpoint, target.model, name, now=request.now)
        raise NothingHelped(tuple(failed))

    return Compact(key, chosen.strategies[0], work)


def _ways(names: tuple[str, ...], target: Target) -> Iterator[tuple[str, Target]]:
    """What is tried in turn: the strategies, the summary with one model after the other."""
    for name in names:
        yield name, target
        if name == SUMMARY:
            for model, window in target.summarizers:
                yield name, replace(target, summary_model=model, summary_window=window)


def _noted(
    steps: Generator[Call, Reply, Summary | Minted], replies: list[bytes], credential: str
) -> Generator[Call, Reply, Summary | Minted]:
    """The same calls, with that one of several keys; the bodies of their replies are noted."""
    try:
        call = next(steps)
        while True:
            reply = yield replace(call, credential=credential) if credential else call
            replies.append(reply.body)
            call = steps.send(reply)
    except StopIteration as end:
        result: Summary | Minted = end.value
        return result
    finally:
        steps.close()


def _failure(name: str, error: CompactionFailed, dialect: DialectName, replies: list[bytes]) -> Failure:
    """What came of a strategy in vain, and what it was billed for."""
    bills = [billed(dialect, body) for body in replies]
    read, written = sum(bill.input_tokens for bill in bills), sum(bill.output_tokens for bill in bills)
    return Failure(name, error.reason, error.missing, len(replies), read, written)


def _summary(
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


def _asked_of_custom(sizing: Sizing, view: View, chosen: Plan, why: Why, base: View | None) -> custom.Asked:
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


def checkpoint_of(sizing: Sizing, at: int, made: Made, before: int) -> Checkpoint:
    """What is kept of a compaction of the first `at` items, `before` tokens before it."""
    request, target, history = sizing.request, sizing.request.target, sizing.history
    result, dialect = made.result, request.conversation.dialect
    if isinstance(result, Minted):
        artifact = artifact_of(result, target, dialect)
    else:
        assert isinstance(result, Summary)
        artifact = Artifact("text", text=result.text, retained=result.retained)
    return Checkpoint(
        tenant=request.tenant,
        bucket=history.chain.bucket,
        length=at,
        chain=history.chain.links[at],
        head=history.head,
        dialect=dialect,
        artifact=artifact,
        provider=target.provider,
        endpoint=target.endpoint,
        model=target.model,
        strategy=made.strategy,
        tokens_before=before,
        tokens_after=0,
    )
