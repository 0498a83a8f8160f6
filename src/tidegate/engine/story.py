"""One request while it lives: what is known of it, which view of its history is sent, and how that gets smaller.

Decides and does nothing; sends nothing (`sending`). Used by `exchange`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import TypeAlias

from tidegate.compactors.strategy import CompactionFailed
from tidegate.context.budget import harder
from tidegate.engine import clearing, inband
from tidegate.engine.ahead import ready
from tidegate.engine.checkpoint import Checkpoint, Found, StoreError
from tidegate.engine.clearing import Clearing, clearing_of
from tidegate.engine.compaction import ahead_of_time, compact, last_resort
from tidegate.engine.diagnostics import Completed, Failed, Key
from tidegate.engine.effects import (
    Action,
    Cost,
    Effect,
    Find,
    Head,
    NothingHelped,
    Notify,
)
from tidegate.engine.eliding import elided
from tidegate.engine.native import readable
from tidegate.engine.planning import Plan, Why, plan, strategies_of
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import ELIDE, SUMMARY
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import History, View, applied, plain
from tidegate.overflow.verdict import Verdict
from tidegate.wire.conversation import JsonValue
from tidegate.wire.stale import Stale

Life: TypeAlias = Generator[Effect, object, None]

SHORTENED = 2
"""How often tool results are cut for one request: where nobody tells the window, the first time is a guess."""

DEEP = 10
"""Of a size that was refused twice by an unknown window: the share that the last try aims for."""

NO_FAULT = frozenset({"nothing_to_compact", "no_smaller", "no_strategy"})
"""Failed compactions that say nothing of the summarizer."""

NOT_BEGUN = frozenset({"nothing_to_compact", "no_strategy", "fixed_part_too_large", "compaction_limit"})
"""Reasons for which nobody was asked."""

ALLOWED_SHARE = 0.9
"""Of a rate allowance: what a request that was above all of it is made to fit, in estimated tokens."""


class Story:
    """One request, up to the view of it that is sent."""

    def __init__(self, request: Request, kit: Kit, history: History) -> None:
        self.request, self.kit, self.history = request, kit, history
        self.whole = plain(history)
        self.sizing = Sizing(request, kit, history)
        if request.counted:
            self.sizing = self.sizing.refused(self.whole, request.counted)
        self.compactions = 0
        self.allowed = kit.max_compactions
        """One more where one was prepared: that leaves what recoveries need."""
        self.failed = False
        """A compaction was tried in vain."""
        self.summary_calls = 0
        self.billed = [0, 0]
        """Input and output tokens of compactions."""
        self.found: tuple[Checkpoint, ...] = ()
        """What the store has for this history, longest first."""
        self.disowned = False
        """An artifact of Tidegate's own was refused by the provider that made it: only text is trusted from here on."""
        self.action: Action = "relayed"
        self.reason = ""
        self.output: int | None = None
        """Output limit to send in place of the client's, once a refusal has shown that it does not fit."""
        self.together: int | None = None
        """Tokens that input and output may take together, as a refusal of this turn or of an earlier one has shown."""
        self.lessened = False
        """Less output was asked for because of an earlier turn's refusal."""
        self.stale: Stale | None = None
        """What is left out, once a refusal has shown that the provider can't read it any more."""
        self.shortened = 0
        """How often tool results were cut, or that was tried."""
        self.shrunk = False
        """It was made to fit a rate allowance, or that was tried."""
        self.window: int | None = None
        self.asks: int | None = None
        """Tokens from which the provider is asked to compact within the request."""
        self.first: tuple[str, ...] | None = None
        """Where that can be asked for: the ways that are tried before."""
        self.unasked: tuple[Head | None, ...] = ()
        """What was answered to a request that asked for it, where the same was sent again without; None for nothing."""
        self.clears: Clearing | None = None
        """What the provider is asked to leave out of the request."""
        self.kept = False
        """That was refused, and the same sent again without."""
        self.keys = request.credentials
        """Those of several keys that were not refused for this request, the one in use first."""
        self.keys_refused = 0
        self.keeps_to_key = False
        """Each sending names the one in use, so that what is compacted is bound to the one that is answered."""
        self._name = b""

    def _would(self, view: View) -> tuple[str, int | None, dict[str, JsonValue]]:
        """(reason, tokens, figures) of what a compaction would leave, as far as a plan tells."""
        reason, target = "shadow_due", self.sizing.limits().target
        short = elided(self.sizing, view, target) if target and strategies_of(self.sizing)[:1] == (ELIDE,) else None
        if short is not None and target and self.sizing.measured(short).tokens <= target:
            after = self.sizing.measured(short).tokens
            return reason, after, {"after": after, "ways": ELIDE}
        slow = tuple(name for name in strategies_of(self.sizing) if name != ELIDE)
        chosen = plan(self.sizing, view, target, "threshold", slow) if target and slow else None
        if chosen is None:
            reason = "nothing_to_compact"
            return reason, None, {}
        after = int((self.history.overhead + chosen.room + chosen.first.kept_tokens) * self.sizing.measured(view).ratio)
        return reason, after, {"items": chosen.first.at, "after": after, "ways": ",".join(chosen.strategies)}

    def _held_back(self, tokens: int) -> str:
        """Why a compaction that is due would be of no use, empty where it may be."""
        reason, breaker, conversation = "", self.kit.breaker, self._conversation
        if breaker.rests(conversation, now=self.request.now):
            reason = "breaker_open"
        elif breaker.held(conversation, tokens):
            reason = "floor_above_threshold"
        return reason

    def _decide(self, view: View, *, due: bool) -> Generator[Effect, object, View]:
        """The view to send: compacted where that is due, or as it is, and the provider asked to compact it."""
        self.clears = clearing_of(self.sizing, view) if due else None
        if self.clears is not None:
            self.reason = ""
            yield Notify("asking", {"keep": self.clears.keep, "tokens": self.clears.freed})
            return view
        asked = inband.turn_of(self.sizing, view, lambda: self._conversation)
        smaller = view
        if asked is not None:
            self.first = asked.first
        if not self.reason and self.first != ():
            smaller = yield from self._compact_before(view)
        if asked is not None and smaller is view and (due or not asked.first):
            self.asks = asked.threshold
            yield Notify("asking", {"threshold": asked.threshold})
        return smaller

    def replay(self) -> Generator[Effect, object, View]:
        """The view that the longest applicable checkpoint gives, or the history as it is."""
        chain, found = self.history.chain, Found()
        problem = ""
        try:
            result = yield Find(self.request.tenant, chain.bucket, chain.prefixes())
            found = result if isinstance(result, Found) else found
        except StoreError as error:
            problem = str(error)
        if problem:
            yield Notify("fault", {"where": "store", "error": problem})
        self.sizing = self.sizing.told(found.reports)
        self.found = found.checkpoints
        view = self._replayed() if self.found else self.whole
        if view.checkpoint is not None:
            self.action = "replayed"
            yield Notify("replayed", {"checkpoint": view.checkpoint.id, "items": view.covered})
        return view

    def _replayed(self, *, text_only: bool = False) -> View:
        """The view of the longest checkpoint that this target can read; the whole history where there is none."""
        for checkpoint in sorted(self.found, key=_reach, reverse=True):
            if text_only and checkpoint.artifact.kind != "text":
                continue
            reader = self._reader(checkpoint)
            if reader is None:
                continue
            view = applied(self.history, checkpoint, self.request.target)
            if view is not None and view.tokens < self.whole.tokens:
                if reader != self.request.target.credential:
                    self._use(reader)
                return view
        return self.whole

    def _reader(self, checkpoint: Checkpoint) -> str | None:
        """The key, of several, with which a checkpoint can be read at this target: the one in use, if it can; None:
        with none."""
        target, refused, now = self.request.target, self.kit.unreadable, self.request.now
        for key in self.keys or (target.credential,):
            at = target if key == target.credential else dataclasses.replace(target, credential=key)
            if readable(checkpoint, self.history, at, refused, now=now):
                return key
        return None

    def _use(self, key: str) -> None:
        """From now on the request goes out with that one of several keys."""
        self.keys = (key, *(other for other in self.keys if other != key))
        target = dataclasses.replace(self.request.target, credential=key)
        self.request = self.request.to(target)
        before = self.sizing
        self.sizing = Sizing(self.request, self.kit, self.history, before.reports, before.observed)

    def base_of(self, view: View) -> View | None:
        """The view that a summary carries on where a sealed artifact stands in this one."""
        return self._replayed(text_only=True) if is_sealed(view) else None

    # -- compaction ----------------------------------------------------------------------------------------------

    def _compact_before(self, view: View) -> Generator[Effect, object, View]:
        """The view after a compaction that was due before sending; the same view where it failed."""
        target = self.sizing.limits().target
        if not target:
            return view
        prepared = ready(self.sizing, view, self._conversation)
        smaller = yield from self._compact(view, target, "threshold", prepared)
        if smaller is None:
            return view
        self.action = "compacted"
        if prepared and not self.sizing.not_due(smaller):
            still = yield from self._compact(smaller, target, "threshold")
            if still is not None:
                return still
            self.reason = "prepared"
        return smaller

    def _recover(self, view: View, verdict: Verdict) -> Generator[Effect, object, View | None]:
        """A smaller view to send after an overflow, None where there is none."""
        if self.clears is not None:
            clearing.in_vain(self.request, self.kit)
        self.asks = self.first = self.clears = None
        if not self.sizing.policy.on_overflow:
            self.reason = "overflow_off"
            return None
        self.sizing = self.sizing.refused(view, verdict.input_tokens)
        limits, sent = self.sizing.limits(), self.sizing.measured(view).tokens
        aim = harder(limits, sent)
        stated = verdict.window or verdict.input_limit
        if self.compactions and self.request.target.window is None and stated is None:
            # Half was not enough and nothing says what is: the last try goes deep.
            aim = min(aim, sent // DEEP)
        prepared = ready(self.sizing, view, self._conversation)
        smaller = yield from self._compact(view, aim, "overflow", prepared)
        if smaller is None and prepared:
            smaller = yield from self._compact(view, aim, "overflow")
        last = self.kit.last_resort and self.shortened < SHORTENED and not self.sizing.fixed_part_fills()
        if smaller is None and last:
            # Refused again, its size is another one than was thought.
            smaller = yield from self._shorten(view, aim if self.shortened else limits.threshold or aim)
        if smaller is not None:
            self.action = "recovered"
        return smaller

    def _elide(self, view: View) -> Generator[Effect, object, View]:
        """The view without old tool results, where that is wanted first and worth it already; else the same."""
        smaller = yield from ahead_of_time(self.sizing, view)
        if smaller is None:
            return view
        self.compactions, self.allowed = self.compactions + 1, self.allowed + 1
        self.action = "compacted"
        self.came_to(smaller, "threshold")
        return smaller

    def _shorten(self, view: View, aim: int) -> Generator[Effect, object, View | None]:
        """The last resort: the largest tool results cut in their middle, without asking anybody."""
        self.shortened += 1
        try:
            smaller, _ = yield from last_resort(self.sizing, view, aim)
        except CompactionFailed:
            return None
        self.reason = "shortened"
        self.came_to(smaller, "overflow")
        return smaller

    def _fit_allowance(self, view: View, verdict: Verdict) -> Generator[Effect, object, View | None]:
        """A view that fits a rate allowance which the whole request was above; None where there is none. Once, and not
        again for a while where the newest turn alone is above it: that costs a summary each time."""
        output = self.request.conversation.output_limit or 0
        aim = int((verdict.allowance or 0) * ALLOWED_SHARE) - output
        if self.shrunk or aim <= 0 or self.kit.breaker.rests(self._conversation, now=self.request.now):
            return None
        self.shrunk = True
        self.asks = self.first = self.clears = None
        self.sizing = self.sizing.refused(view, (verdict.requested or 0) - output)
        smaller = yield from self._compact(view, aim, "overflow")
        if smaller is None:
            return None
        if self.sizing.measured(smaller).tokens > aim:
            self.kit.breaker.failed(self._conversation, now=self.request.now)
            return None
        self.action = "recovered"
        return smaller

    def _compact(
        self, view: View, aim: int, why: Why, prepared: Plan | None = None
    ) -> Generator[Effect, object, View | None]:
        if self.sizing.fixed_part_fills():
            self.reason = "fixed_part_too_large"
            self.in_vain(view, why, self.reason)
            return None
        self.allowed += prepared is not None
        if self.compactions >= self.allowed:
            self.reason = "compaction_limit"
            self.in_vain(view, why, self.reason)
            return None
        self.compactions += 1
        kit, conversation, now = self.kit, self._conversation, self.request.now
        only = tuple(name for name in strategies_of(self.sizing) if name == SUMMARY) if self.disowned else self.first
        base = self.base_of(view)
        record = kit.records.begins(self.key)
        try:
            smaller, made = yield from compact(self.sizing, view, aim, why, prepared, base=base, strategies=only)
        except CompactionFailed as error:
            self.reason, self.failed = error.reason, True
            self.in_vain(view, why, error.reason)
            if isinstance(error, NothingHelped):
                self._pay(error.cost)
            if error.reason == "no_smaller":
                # What was prepared was cut for another size: that says nothing of this one's floor.
                kit.breaker.unchanged(conversation, 0 if prepared else self.sizing.measured(view).tokens)
            if error.reason in NO_FAULT:
                if prepared:
                    kit.preparations.wasted(conversation, now=now)
            elif not prepared or kit.preparations.drop(conversation):  # else its own end has told already
                kit.breaker.failed(conversation, now=now)
            return None
        finally:
            kit.records.ends(record)
        self.came_to(smaller, why)
        kit.breaker.succeeded(conversation)
        yield from self._made(smaller, why)
        if prepared:
            kit.preparations.used(conversation)
        self._pay(made.cost)
        self.reason = "artifact_dropped" if self.stale else "prepared" if prepared else ""
        return smaller

    def _made(self, smaller: View, why: Why) -> Generator[Effect, object, None]:
        """Remembers what a compaction came to, so that the next one is not begun in vain."""
        if why != "threshold":
            return
        tokens, threshold = self.sizing.measured(smaller).tokens, self.sizing.limits().threshold
        breaker, length, now = self.kit.breaker, len(self.history.past), self.request.now
        if breaker.compacted(self._conversation, length=length, tokens=tokens, threshold=threshold, now=now):
            quick = breaker.state(self._conversation).quick
            yield Notify("thrashing", {"refills": quick, "tokens": tokens, "threshold": threshold})

    # -- what is known of it for diagnostics -------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        """What is known of this conversation is kept under it."""
        return self.history.chain.bucket, self.request.target.model

    def note(self, view: View, reason: str) -> None:
        """It was measured: why nothing is done for it, empty where something is."""
        limits = self.sizing.shown[-1] if self.sizing.shown else self.sizing.limits()
        size = self.sizing.measured(view)
        self.kit.records.checked(self.key, self.request, reason, size, limits, len(self.history.past), view.covered)

    def came_to(self, smaller: View, why: Why) -> None:
        """A compaction came to its end."""
        made = smaller.checkpoint
        assert made is not None
        done = Completed(self.request.now, why, made.strategy, made.tokens_before, made.tokens_after)
        self.kit.records.completed(self.key, done)

    def in_vain(self, view: View, why: Why, reason: str) -> None:
        """A compaction came to nothing, or was not begun."""
        records, now = self.kit.records, self.request.now
        if reason == "no_smaller":
            tokens = self.sizing.measured(view).tokens
            records.completed(self.key, Completed(now, why, "unchanged", tokens, tokens), unchanged=True)
        elif reason in NOT_BEGUN and why != "overflow":
            records.refused(self.key, reason)
        else:
            records.failed(self.key, Failed(now, why, reason))

    def _pay(self, cost: Cost) -> None:
        self.summary_calls += cost.calls
        self.billed[0] += cost.input_tokens
        self.billed[1] += cost.output_tokens

    @property
    def _conversation(self) -> bytes:
        """What compactions of this conversation are counted under. Few requests ask, so it is hashed for those only."""
        if not self._name:
            request, bucket = self.request, self.history.chain.bucket
            self._name = self.kit.hasher.mix(request.tenant, bucket, request.target.model.encode())
        return self._name

    @property
    def _here(self) -> bytes:
        """The conversation at this endpoint."""
        return self.kit.hasher.mix(self._conversation, self.request.target.endpoint.encode())


def _reach(checkpoint: Checkpoint) -> tuple[int, int]:
    """What it replaces counts for more than how far it goes on from there, leaving results out."""
    return checkpoint.artifact.stands_for(checkpoint.length), checkpoint.length


def is_sealed(view: View) -> bool:
    """Whether it holds what only a provider can read."""
    return view.checkpoint is not None and view.checkpoint.artifact.kind == "opaque"


def name_of(view: View) -> str:
    """The checkpoint in it, empty for none."""
    return view.checkpoint.id if view.checkpoint else ""
