"""How a request is sent until there is an answer to give, and what is learned of that.

Decides and does nothing: which view is sent is `story`'s. Used by `exchange`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from tidegate.compactors.openai_inband import asking
from tidegate.engine import clearing, inband
from tidegate.engine.ahead import near, prepare
from tidegate.engine.artifacts import TRANSIENT, stale_part, without
from tidegate.engine.effects import (
    Deliver,
    Effect,
    Finish,
    Head,
    Notify,
    Outcome,
    Send,
    UpstreamError,
)
from tidegate.engine.eliding import early
from tidegate.engine.keys import TRIES, of_a_key
from tidegate.engine.learning import keep, learn
from tidegate.engine.output import accepted, of_the_window, remembered, with_less_output
from tidegate.engine.portable import beside
from tidegate.engine.router import CLEARING, ELIDE, INBAND
from tidegate.engine.story import Life, Story, is_sealed, name_of
from tidegate.engine.view import View
from tidegate.overflow.verdict import Kind, Refusal, Sent, Verdict
from tidegate.wire.conversation import JsonValue


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


class Sending(Story):
    """One request while it lives. Its methods are the chapters, in order."""

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

    def count(self) -> Life:
        """Replay and send, without a thought of size."""
        view = yield from self.replay()
        head = yield from self._try(view)
        yield Deliver(head.number, Outcome(self.action, checkpoint=name_of(view)))

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
            if not self.disowned and is_sealed(view) and _unread(head, verdict):
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
        credential = self.request.target.credential if self.keeps_to_key or is_sealed(view) else ""
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

    def _with_next_key(self, view: View, verdict: Verdict) -> Generator[Effect, object, View]:
        """What to send with the next of several keys: the same, or, where the last one has sealed a part of it, what
        this one can read of the same past, compacted where that is too much."""
        yield Notify("rekeyed", {"kind": verdict.kind})
        self._use(self.keys[0])
        if not is_sealed(view):
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
        if stale is None or (stale.kind == "compaction" and is_sealed(view)):
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
            if is_sealed(rewritten):
                self._disown(rewritten)
            yield from self._deliver_answer(view, head)
            return
        verdict = yield from self._judge(head, view)
        if verdict.kind == "overflow" and is_sealed(rewritten):
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
            checkpoint=name_of(view),
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
            if self.kit.portable is not None and not self.failed and is_sealed(view):
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
