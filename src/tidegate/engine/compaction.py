"""One compaction of a view: its strategies in turn, what is learned of each, whether the result is worth having.

Yields the one `Compact` effect and its notices; sends and stores nothing. Called by the exchange and by `ahead`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidegate.compactors import custom
from tidegate.compactors.strategy import Call, CompactionFailed, Elided, Minted, Reply, Summary
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.effects import Compact, Effect, Failure, Made, NothingHelped, Notify, OutOfTime, Work
from tidegate.engine.eliding import early, elided, shortened
from tidegate.engine.material import asked_of_custom, summary_of
from tidegate.engine.native import artifact_of, binding_of, minting
from tidegate.engine.planning import MIN_GAIN_REFUSED, OWN_FREES, Plan, Why, least_gain, plan, strategies_of
from tidegate.engine.request import Target
from tidegate.engine.router import ELIDE, LEARNED, SUMMARY
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View, applied, replaced, whole
from tidegate.wire.billing import billed
from tidegate.wire.conversation import DialectName, JsonValue

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
    if smaller is None or view.tokens - smaller.tokens < least_gain(sizing, view, why):
        if tried := _tried(failed):
            raise NothingHelped(tried)
        raise failed[-1] if failed else CompactionFailed("nothing_to_compact")
    return (yield from _without_asking(sizing, view, smaller, why, _tried(failed)))


def _tried(failed: list[CompactionFailed]) -> tuple[Failure, ...]:
    """All ways that gave nothing, and what they cost."""
    return tuple(one for error in failed if isinstance(error, NothingHelped) for one in error.failed)


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
    job = _Job(sizing, view, chosen, why, base)
    return Compact(job.key(), chosen.strategies[0], job.work)


@dataclass(frozen=True, slots=True)
class _Job:
    """One compaction, to be made by whichever of its strategies can."""

    sizing: Sizing
    view: View
    chosen: Plan
    why: Why
    base: View | None

    def key(self) -> bytes:
        """Equal where the result would be."""
        sizing, chosen, target, history = self.sizing, self.chosen, self.sizing.request.target, self.sizing.history
        dialect, kit = sizing.request.conversation.dialect, sizing.kit
        cuts = tuple({chosen.cut_for(name): None for name in chosen.strategies})
        numbers = [number for cut in cuts for number in (len(cut.retained), *cut.retained)]
        return kit.hasher.mix(
            "\0".join(chosen.strategies).encode(),
            binding_of(target, dialect).encode(),
            sizing.request.tenant,
            self.view.chain,
            *(history.chain.links[cut.at] for cut in cuts),
            history.head,
            target.endpoint.encode(),
            target.model.encode(),
            target.summary_model.encode(),
            *(model.encode() for model, _window in target.summarizers),
            kit.options(target, dialect).focus.encode(),
            *(number.to_bytes(8, "big") for number in (chosen.room, chosen.window or 0, *numbers)),
        )

    def work(self) -> Work:
        """Tries the strategies in turn. Raises `NothingHelped`."""
        kit, target = self.sizing.kit, self.sizing.request.target
        failed: list[Failure] = []
        asked = 0
        for name, to in _ways(self.chosen.strategies, target):
            if to is not target and (failed[-1].reason in SAME_ANYWHERE or asked >= kit.summary_max_calls):
                continue
            replies: list[bytes] = []
            try:
                result = yield from _noted(self._tried(name, to, asked), replies, target.credential)
                if name in LEARNED and name not in target.wanted.listed:
                    kit.capabilities.has(target.endpoint, name, now=self.sizing.request.now)
                return Made(result, name, tuple(failed))
            except CompactionFailed as error:
                failure = error
            except Exception:  # whatever a strategy has not foreseen in what it was answered
                failure = CompactionFailed("strategy_fault")
            failed.append(_failure(name, failure, self.sizing.request.conversation.dialect, replies))
            if isinstance(failure, OutOfTime):
                break
            asked += len(replies) if name == SUMMARY else 0
            self._learn(name, failure)
        raise NothingHelped(tuple(failed))

    def _tried(self, name: str, to: Target, calls: int) -> Generator[Call, Reply, Summary | Minted]:
        # Read here: where the work is a joined flight's, or is done in a thread, the request needs no time for it.
        sizing, view, chosen, kit = self.sizing, self.view, self.chosen, self.sizing.kit
        if name == SUMMARY:
            return (yield from summary_of(sizing, view, chosen, self.why, self.base, to, calls))
        if name in kit.custom:
            asked = asked_of_custom(sizing, view, chosen, self.why, self.base)
            return (yield from custom.work(name, asked, kit.custom[name]))
        cut, local = chosen.cut_for(name), sizing.measured(view).local
        most = local - max(1, local // OWN_FREES)
        return (yield from minting(name, sizing, view, cut.at, cut.retained, window=chosen.window, most=most))

    def _learn(self, name: str, failure: CompactionFailed) -> None:
        """What a failure says of the endpoint, for those that come after."""
        request, known = self.sizing.request, self.sizing.kit.capabilities
        target = request.target
        if failure.missing:
            known.lacks(target.endpoint, target.model, name, now=request.now)
        elif failure.reason in TROUBLE or failure.reason.startswith("compact_http_5"):
            known.troubled(target.endpoint, target.model, name, now=request.now)
        elif name in LEARNED and name not in target.wanted.names:
            # Nobody lists it, and what the endpoint has shown is not what it does here.
            known.lacks(target.endpoint, target.model, name, now=request.now)


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
