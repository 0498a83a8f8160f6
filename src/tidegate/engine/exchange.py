"""The life of a request (replay, measure, decide, send, recover, learn) as a generator of effects.

Decides everything and does nothing: no socket, no clock, no store. Driven by `tidegate.drive`; tested as a script.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.compactors.openai_inband import asking
from tidegate.compactors.strategy import CompactionFailed
from tidegate.context.budget import harder
from tidegate.context.estimators import ESTIMATORS
from tidegate.engine import beyond, clearing, inband
from tidegate.engine.ahead import near, prepare, ready
from tidegate.engine.artifacts import TRANSIENT, stale_part, without
from tidegate.engine.checkpoint import Checkpoint, Found, StoreError
from tidegate.engine.clearing import Clearing, clearing_of
from tidegate.engine.compaction import ahead_of_time, compact, last_resort
from tidegate.engine.diagnostics import Completed, Failed, Key
from tidegate.engine.effects import (
    Action,
    Cost,
    Deliver,
    Effect,
    Find,
    Finish,
    Head,
    Made,
    NothingHelped,
    Notify,
    Outcome,
    Send,
    UpstreamError,
)
from tidegate.engine.eliding import early, elided
from tidegate.engine.keys import TRIES, of_a_key
from tidegate.engine.learning import keep, learn
from tidegate.engine.native import readable
from tidegate.engine.output import accepted, of_the_window, remembered, with_less_output
from tidegate.engine.planning import Plan, Why, plan, strategies_of
from tidegate.engine.portable import beside
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import CLEARING, ELIDE, INBAND, SUMMARY
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import History, View, applied, plain, read_history
from tidegate.overflow.verdict import Kind, Refusal, Sent, Verdict
from tidegate.wire.conversation import DialectName, JsonValue
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


BEYOND: Mapping[str, tuple[Callable[[Request, Kit], Life], frozenset[DialectName]]] = {
    "own_compaction": (beyond.own_compaction, frozenset({"responses"})),
    "server_held": (beyond.server_held, frozenset({"responses"})),
    "opaque_history": (beyond.opaque, frozenset({"chat", "responses", "messages"})),
}
"""What becomes of histories that can't be worked on, where there is more to it than passing them on: by the reason, and
for which APIs."""

ALLOWED_SHARE = 0.9
"""Of a rate allowance: what a request that was above all of it is made to fit, in estimated tokens."""


def exchange(request: Request, kit: Kit) -> Life:
    """One request, from its arrival to what was learned of its answer."""
    story, reason = _begin(request, kit)
    if story is not None:
        yield from story.watch() if kit.shadow else story.run()
    elif reason in BEYOND and not kit.shadow and request.conversation.dialect in BEYOND[reason][1]:
        yield from BEYOND[reason][0](request, kit)
    else:
        yield from relayed(reason)


def counted(request: Request, kit: Kit) -> Life:
    """A request to count tokens: what would be forwarded is counted, and nothing is compacted for it."""
    story, reason = _begin(request, kit)
    yield from story.count() if story else relayed(reason)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was made of a history without sending it. Tokens are calibrated estimates."""

    view: View
    """What is to be sent in its place."""
    made: Made | None
    """None where an earlier compaction was all that it took."""
    before: int
    after: int


Asked: TypeAlias = Generator[Effect, object, Compacted]


def requested(request: Request, kit: Kit, *, aim: int | None = None) -> Asked:
    """Compacts a history because somebody asked for it, whatever its size; later requests replay it like any other.

    `aim` are tokens to bring it down to; left out, the configured target. Never more than half of what there is: a
    target that would keep everything is not what was asked for. Raises `CompactionFailed`, also where there is nothing
    to compact.
    """
    story = _story(request, kit)
    view = yield from story.replay()
    before = story.sizing.measured(view).tokens
    wanted = story.sizing.limits().target if aim is None else aim
    half = before // 2
    return (yield from _asked(story, view, before, min(wanted, half) if wanted else half))


def kept_inside(request: Request, kit: Kit) -> Generator[Effect, object, Compacted | None]:
    """Brings a history down to the target where it is due; None where the history is to be sent as it is.

    Raises `CompactionFailed` where it is due and can't be done.
    """
    story = _story(request, kit)
    view = yield from story.replay()
    before = story.sizing.measured(story.whole).tokens
    if story.sizing.not_due(view):
        after = story.sizing.measured(view).tokens
        return Compacted(view, None, before, after) if view.checkpoint is not None else None
    return (yield from _asked(story, view, before, story.sizing.limits().target or before // 2))


def _story(request: Request, kit: Kit) -> _Story:
    story, reason = _begin(request, kit)
    if story is None:
        raise CompactionFailed(reason)
    return story


def _asked(story: _Story, view: View, before: int, aim: int) -> Asked:
    story.note(view, "")
    record = story.kit.records.begins(story.key)
    try:
        smaller, made = yield from compact(story.sizing, view, aim, "requested", base=story.base_of(view))
    except CompactionFailed as error:
        story.in_vain(view, "requested", error.reason)
        raise
    finally:
        story.kit.records.ends(record)
    assert smaller.checkpoint is not None
    story.came_to(smaller, "requested")
    yield from keep(story.request, smaller.checkpoint)
    return Compacted(smaller, made, before, story.sizing.measured(smaller).tokens)


def relayed(reason: str) -> Life:
    """A request that passes as it came, for the named reason."""
    yield Notify("skipped", {"reason": reason})
    yield Send(None)
    yield Deliver(0, Outcome(reason=reason))


def _begin(request: Request, kit: Kit) -> tuple[_Story | None, str]:
    """The story of a request, or why it must pass untouched."""
    conversation = request.conversation
    if request.hands_off:
        return None, request.hands_off
    if conversation.server_held:
        return None, "server_held"
    if len(conversation.items) <= conversation.lead:
        return None, "empty"
    try:
        estimator = ESTIMATORS[kit.policy_for(request.target).estimator]
        history = read_history(conversation, request.tenant, kit.hasher, kit.ledger, estimator)
    except ValueError:  # no object, or nothing that JSON allows
        return None, "unreadable_item"
    if history.opaque:
        return None, "opaque_history"
    return _Story(request, kit, history), ""


@dataclass(slots=True)
class _Refused:
    """The refusals met so far: the first is the provider's own answer to the client's request."""

    first: Head
    last: Head
    verdict: Verdict
    """Of the last."""
    kind: Kind
    """Of the first."""
    too_large: bool
    """One of them was for the request's size."""

    @classmethod
    def added(cls, before: _Refused | None, head: Head, verdict: Verdict) -> _Refused:
        """With one more."""
        too_large = verdict.kind == "overflow" or of_the_window(verdict)
        if before is None:
            return cls(head, head, verdict, verdict.kind, too_large)
        return cls(before.first, head, verdict, before.kind, before.too_large or too_large)


class _Story:
    """One request while it lives. Its methods are the chapters, in order."""

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

    def run(self) -> Life:
        """Replay, measure, decide; then send and all that follows."""
        self.keeps_to_key = True
        view = yield from self.replay()
        figures = self.sizing.figures(view)
        self.window = figures["window"]
        yield Notify("measured", dict(figures))
        self.reason = self.sizing.not_due(view)
        due = not self.reason
        if due:
            self.reason = self._held_back(figures["tokens"] or 0)
        self.note(view, self.reason)
        if self.reason == "below_threshold" and self.sizing.elides():
            view = yield from self._elide(view)
        smaller = yield from self._decide(view, due=due)
        if self.action == "compacted" and not due:
            self.reason = ""
        yield from self._send(smaller)

    def watch(self) -> Life:
        """Decides and tells, and changes nothing: no call, no rewriting, and a refusal is passed on."""
        view = self.whole
        figures = self.sizing.figures(view)
        self.window = figures["window"]
        yield Notify("measured", dict(figures))
        before, after = self.sizing.measured(view).tokens, None
        self.reason = self.sizing.not_due(view) or self._held_back(figures["tokens"] or 0)
        short = early(self.sizing, view) if self.reason == "below_threshold" and self.sizing.elides() else None
        would: dict[str, JsonValue] = {}
        if short is not None:
            self.reason, after = "shadow_due", self.sizing.measured(short).tokens
            would = {"after": after, "ways": ELIDE}
        elif not self.reason:
            self.reason, after, would = self._would(view)
        sizes = {name: figures[name] for name in ("tokens", "window", "threshold", "target")}
        yield Notify("shadow", {"reason": self.reason, **sizes, **would})
        self.note(view, self.reason)
        head = yield from self._try(view)
        if head.refusal is not None:
            verdict = yield from self._judge(head, view)
            too_long = verdict.action == "compact" or of_the_window(verdict)
            reason = "shadow_overflow" if too_long else verdict.kind
            if too_long:
                yield Notify("shadow", {"reason": reason, **sizes})
            yield Deliver(head.number, Outcome(reason=reason, tokens_before=before, tokens_after=after))
            return
        finish = yield Deliver(head.number, Outcome(reason=self.reason, tokens_before=before, tokens_after=after))
        if isinstance(finish, Finish) and finish.complete and not finish.compacts:
            yield from learn(self.sizing, view, finish, Sent(before, self.window))

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

    def count(self) -> Life:
        """Replay and send, without a thought of size."""
        view = yield from self.replay()
        head = yield from self._try(view)
        yield Deliver(head.number, Outcome(self.action, checkpoint=_name(view)))

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

    def base_of(self, view: View) -> View | None:
        """The view that a summary carries on where a sealed artifact stands in this one."""
        return self._replayed(text_only=True) if _is_sealed(view) else None

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

    # -- sending and recovering ----------------------------------------------------------------------------------

    def _send(self, view: View) -> Life:
        """Sends until there is an answer, or nothing left to try."""
        if len(self.kit.clamps) and self.sizing.policy.on_overflow:
            self.together = self.kit.clamps.together(self._here, now=self.request.now)
        refused: _Refused | None = None
        dropped: Head | None = None
        passed: Head | None = None
        """What another key was told."""
        while True:
            lost: UpstreamError | None = None
            try:
                head = yield from self._try(view)
            except UpstreamError as error:
                if refused is None and self.asks is None and passed is None:
                    raise
                lost = error
            if lost is not None:
                if refused is None and self.asks is not None:
                    self.asks, self.first, self.unasked = None, None, (None,)
                    continue
                yield from self._lost(lost)
                if refused is not None:
                    break
                assert passed is not None
                yield Deliver(passed.number, Outcome(reason=self.reason))
                return
            if head.refusal is None:
                if self.unasked:
                    inband.refused(self.unasked[0], self.request, self.kit)
                    self.reason = self.reason or "in_band_refused"
                if self.kept:
                    clearing.refused(self.request, self.kit)
                    if not self.reason:
                        self.reason = "clearing_refused"
                yield from self._deliver_answer(view, head)
                return
            verdict = yield from self._judge(head, view)
            if self.clears is not None and clearing.at_fault(head, verdict):
                # So is what it is answered with nothing left out.
                self.clears, self.kept = None, True
                continue
            if self.asks is not None and inband.at_fault(head, verdict):
                # What the same request is answered without the field is the client's answer, whatever it is.
                self.asks, self.first, self.unasked = None, None, (head,)
                continue
            if self._is_for_another_key(head, verdict):
                view, passed = (yield from self._with_next_key(view, verdict)), head
                continue
            refused = _Refused.added(refused, head, verdict)
            if self._ask_for_less(view, verdict):
                continue
            if self._leave_out(view, head, verdict):
                yield Notify("dropped", {"artifacts": self.stale.kind if self.stale else ""})
                dropped = head
                continue
            if not self.disowned and _is_sealed(view) and _unread(head, verdict):
                view = yield from self._anew(view)
                dropped = head
                continue
            if verdict.action == "compact" or of_the_window(verdict):
                smaller = yield from self._recover(view, verdict)
            elif verdict.admission and self.kit.shrink_on_admission:
                smaller = yield from self._fit_allowance(view, verdict)
                refused.too_large = refused.too_large or smaller is not None
            elif (
                view.checkpoint
                and verdict.kind not in TRANSIENT
                and (refused.first is head or refused.first is dropped)
            ):
                # The rewritten history may be what was refused: the client's own bytes get their chance.
                yield from self._send_original(refused, view)
                return
            else:
                break
            if smaller is None:
                break
            view, dropped = smaller, None
        yield from self._deliver_refusal(refused)

    def _try(self, view: View) -> Generator[Effect, object, Head]:
        body = view.body
        if self.stale is not None:
            body = without(body, self.stale, self.request)
        output = self.output
        if output is None and self.together is not None:
            output = remembered(self.sizing, view, self.together)
        if output is not None:
            less = with_less_output(body, self.request.conversation.dialect, output)
            self.lessened = self.output is None and less is not None
            body = less or body
        if self.asks is not None:
            body = asking(body, self.asks)
        headers = view.add_headers
        if self.clears is not None:
            body, headers = self.clears.body(body), self.clears.headers(headers)
        credential = self.request.target.credential if self.keeps_to_key or _is_sealed(view) else ""
        head = yield Send(None if body is self.request.conversation.raw else body, headers, credential)
        assert isinstance(head, Head)
        return head

    def _is_for_another_key(self, head: Head, verdict: Verdict) -> bool:
        """Whether the key in use was refused, by the refusal's words and by what is known of the request, and there is
        another."""
        if not self.keys or not of_a_key(verdict):
            return False
        refusal = Refusal(head.status, head.refusal or b"", head.headers, head.in_stream)
        if not of_a_key(self.kit.classify(self.request.target.provider, refusal, Sent())):
            return False
        self.keys, self.keys_refused = self.keys[1:], self.keys_refused + 1
        return bool(self.keys) and self.keys_refused < TRIES

    def _use(self, key: str) -> None:
        """From now on the request goes out with that one of several keys."""
        self.keys = (key, *(other for other in self.keys if other != key))
        target = dataclasses.replace(self.request.target, credential=key)
        self.request = self.request.to(target)
        before = self.sizing
        self.sizing = Sizing(self.request, self.kit, self.history, before.reports, before.observed)

    def _with_next_key(self, view: View, verdict: Verdict) -> Generator[Effect, object, View]:
        """What to send with the next of several keys: the same, or, where the last one has sealed a part of it, what
        this one can read of the same past, compacted where that is too much."""
        yield Notify("rekeyed", {"kind": verdict.kind})
        self._use(self.keys[0])
        if not _is_sealed(view):
            return view
        self.asks, self.first, self.clears = None, None, None
        fresh = self._replayed()
        self.action = "replayed" if fresh.checkpoint else "relayed"
        aim = self.sizing.limits().target
        if aim and not self.sizing.not_due(fresh):
            smaller = yield from self._compact(fresh, aim, "threshold")
            if smaller is not None:
                self.action = "compacted"
                return smaller
        return fresh

    def _leave_out(self, view: View, head: Head, verdict: Verdict) -> bool:
        """Whether the same view is worth sending without what the provider can't read any more. Once a request.

        Never without Tidegate's own artifact alone: the items that it stands for take its place.
        """
        if self.stale is not None:
            return False
        stale = stale_part(view.body, head, verdict, self.request)
        if stale is None or (stale.kind == "compaction" and _is_sealed(view)):
            return False
        self.stale, self.action, self.reason = stale, "recovered", "artifact_dropped"
        return True

    def _anew(self, view: View) -> Generator[Effect, object, View]:
        """What to send in place of a view whose artifact was refused by the provider that made it: what an older
        summary leaves, or the items themselves, summed up where they are too many. Once a request."""
        self._disown(view)
        yield Notify("dropped", {"artifacts": "checkpoint"})
        self.stale, self.action, self.clears = None, "recovered", None
        fresh = self._replayed(text_only=True)
        target = self.sizing.limits().target
        if target and not self.sizing.not_due(fresh):
            fresh = (yield from self._compact(fresh, target, "threshold")) or fresh
        self.reason = "artifact_unreadable"
        return fresh

    def _disown(self, view: View) -> None:
        """From now on that artifact counts as absent. Where it was minted a moment ago, its strategy is of no use."""
        checkpoint, target, now = view.checkpoint, self.request.target, self.request.now
        assert checkpoint is not None
        self.disowned = True
        self.kit.unreadable.add(checkpoint.tenant, checkpoint.chain, checkpoint.artifact.binding, now=now)
        if self.compactions:
            self.kit.capabilities.lacks(target.endpoint, target.model, checkpoint.strategy, now=now)

    def _ask_for_less(self, view: View, verdict: Verdict) -> bool:
        """Whether the same view is worth sending with a lower output limit: the prompt fits, the output asked for does
        not, and what is left of it is of use. Once a request."""
        if not of_the_window(verdict) or self.output is not None or not self.sizing.policy.on_overflow:
            return False
        tokens = accepted(self.sizing, view, verdict)
        dialect = self.request.conversation.dialect
        if tokens is None or with_less_output(view.body, dialect, tokens) is None:
            return False
        self.output, self.action, self.reason = tokens, "recovered", "output_clamped"
        self.together = (verdict.input_tokens or self.sizing.measured(view).tokens) + tokens
        return True

    def _lost(self, error: UpstreamError) -> Life:
        """No answer to a further try: there is a refusal to deliver, which says more than that."""
        yield Notify("fault", {"where": "upstream", "error": str(error)})
        self.reason = "upstream_lost"

    def _judge(self, head: Head, view: View) -> Generator[Effect, object, Verdict]:
        """What a refusal means; a window it states is learned."""
        target, sent = self.request.target, self.sizing.sent(view, self.clears.freed if self.clears else 0)
        refusal = Refusal(head.status, head.refusal or b"", head.headers, head.in_stream)
        verdict = self.kit.classify(target.provider, refusal, sent)
        yield Notify("refused", {"kind": verdict.kind, "rule": verdict.evidence.rule, "status": head.status})
        if self.kit.windows.learn(target.endpoint, target.model, verdict, sent, now=self.request.now):
            limit = self.kit.windows.limit(target.endpoint, target.model, now=self.request.now)
            self.window = self.sizing.limits().window
            yield Notify("learned", {"window": limit})
        return verdict

    def _send_original(self, refused: _Refused, rewritten: View) -> Life:
        view, self.stale, self.clears = self.whole, None, None
        lost: UpstreamError | None = None
        try:
            head = yield from self._try(view)
        except UpstreamError as error:
            lost = error
        if lost is not None:
            yield from self._lost(lost)
            yield from self._deliver_refusal(refused)
            return
        if head.refusal is None:
            self.action, self.reason = "relayed", "rewritten_history_refused"
            if _is_sealed(rewritten):
                self._disown(rewritten)
            yield from self._deliver_answer(view, head)
            return
        verdict = yield from self._judge(head, view)
        if verdict.kind == "overflow" and _is_sealed(rewritten):
            # Nothing says whether it was the artifact; were it kept, every turn from now on might end here.
            self._disown(rewritten)
        # An overflow of the whole history says nothing new; the refusal of the short one names the client's mistake.
        chosen = refused.first if verdict.kind == "overflow" else head
        yield Deliver(chosen.number, Outcome(reason=refused.verdict.kind))

    # -- delivering and learning ---------------------------------------------------------------------------------

    def _deliver_answer(self, view: View, head: Head) -> Life:
        # Before the answer: the client may send its next turn the moment this one ends.
        if view.checkpoint and self.compactions and self.action in ("compacted", "recovered"):
            yield from keep(self.request, view.checkpoint)
        before = self.sizing.measured(self.whole).tokens
        asked, freed = self.asks is not None, self.clears.freed if self.clears else 0
        own = view.checkpoint.strategy if view.checkpoint else INBAND if asked else ""
        if self.output is not None and self.together is not None:
            self.kit.clamps.add(self._here, self.together, now=self.request.now)
        if self.lessened and self.action in ("relayed", "replayed"):
            self.action, self.reason = "recovered", "output_clamped"
        outcome = Outcome(
            self.action,
            reason="asked_in_band" if asked else "asked_to_clear" if freed else self.reason,
            strategy=CLEARING if freed else own,
            checkpoint=_name(view),
            tokens_before=before,
            tokens_after=(before if view is self.whole else self.sizing.measured(view).tokens) - freed,
            compactions=self.compactions,
            summary_calls=self.summary_calls,
            compaction_input_tokens=self.billed[0],
            compaction_output_tokens=self.billed[1],
        )
        finish = yield Deliver(head.number, outcome)
        if isinstance(finish, Finish) and finish.compacts:
            # Its usage has a compaction in it, which is no size of this view.
            self.kit.given.add(self._conversation, len(self.history.past), now=self.request.now)
        elif isinstance(finish, Finish) and finish.complete:
            sent = Sent(outcome.tokens_after, self.window)
            yield from learn(self.sizing, view, finish, sent, as_it_is=self.stale is None and not freed)
            yield from _told(finish)
            if freed and not clearing.happened(finish, self.sizing.measured(view).tokens, freed):
                clearing.in_vain(self.request, self.kit)
            tokens = near(self.sizing, view, finish.usage, freed)
            if tokens and (most := clearing.freed_at_most(self.sizing, view)):
                # As long as the provider can be asked to clear, nothing else need be prepared.
                tokens = near(self.sizing, view, None, most)
            # Where the client's own bytes had to go instead, or summaries fail, another one is of no use.
            if tokens and not asked and not self.failed and self.reason != "rewritten_history_refused":
                yield from prepare(self.sizing, view, self._conversation, tokens, self.first)
            if self.kit.portable is not None and not self.failed and _is_sealed(view):
                yield from beside(self.sizing, view, self.base_of(view), self.found)

    def _deliver_refusal(self, refused: _Refused) -> Life:
        transient = refused.verdict.kind in TRANSIENT
        unrecovered = refused.too_large and not transient
        told = refused.verdict.kind if transient else refused.kind
        outcome = Outcome(
            "unrecovered" if unrecovered else "relayed",
            reason=self.reason if unrecovered else told,
            tokens_before=self.sizing.measured(self.whole).tokens,
            compactions=self.compactions,
            summary_calls=self.summary_calls,
            compaction_input_tokens=self.billed[0],
            compaction_output_tokens=self.billed[1],
        )
        yield Deliver(refused.last.number if transient else refused.first.number, outcome)


def _told(finish: Finish) -> Life:
    """What the provider says that it left out."""
    cleared = finish.usage.cleared if finish.usage else None
    if cleared is not None:
        detail = {"tokens": cleared.input_tokens, "tool_uses": cleared.tool_uses, "thinking": cleared.thinking_turns}
        yield Notify("cleared", detail)


def _unread(head: Head, verdict: Verdict) -> bool:
    """Whether a refusal means that something sealed can't be read; to Anthropic's block, without the beta it needs, the
    API objects as it would to any unknown one, by its name."""
    unknown = verdict.kind == "unsupported" and b"compaction" in (head.refusal or b"")
    return verdict.action == "drop_artifact" or unknown


def _reach(checkpoint: Checkpoint) -> tuple[int, int]:
    """What it replaces counts for more than how far it goes on from there, leaving results out."""
    return checkpoint.artifact.stands_for(checkpoint.length), checkpoint.length


def _is_sealed(view: View) -> bool:
    return view.checkpoint is not None and view.checkpoint.artifact.kind == "opaque"


def _name(view: View) -> str:
    return view.checkpoint.id if view.checkpoint else ""
