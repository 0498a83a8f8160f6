"""The life of a request (replay, measure, decide, send, recover, learn) as a generator of effects.

Decides everything and does nothing: no socket, no clock, no store. Driven by `tidegate.drive`; tested as a script.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidegate.compactors.strategy import CompactionFailed
from tidegate.context.budget import harder
from tidegate.engine.checkpoint import Checkpoint, Found, Report, StoreError
from tidegate.engine.compaction import Why, compact
from tidegate.engine.effects import (
    Action,
    Deliver,
    Effect,
    Find,
    Finish,
    Head,
    Notify,
    Outcome,
    Save,
    Send,
    UpstreamError,
)
from tidegate.engine.output import accepted, of_the_window, with_less_output
from tidegate.engine.request import Kit, Request
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import History, View, applied, plain, read_history
from tidegate.overflow.verdict import Refusal, Verdict

Life: TypeAlias = Generator[Effect, object, None]

DEEP = 10
"""Of a size that was refused twice by an unknown window: the share that the last try aims for."""

SCANT = 256
"""Output tokens: no provider's own cap on answers is as low."""

NO_FAULT = frozenset({"nothing_to_compact", "no_smaller"})
"""Failed compactions that say nothing of the summarizer."""

TRANSIENT = frozenset({"rate_limit", "quota", "auth", "server"})
"""Refusals that say nothing of the request itself: the newest one is what the client should see."""


def exchange(request: Request, kit: Kit) -> Life:
    """One request, from its arrival to what was learned of its answer."""
    story, reason = _begin(request, kit)
    yield from story.run() if story else relayed(reason)


def counted(request: Request, kit: Kit) -> Life:
    """A request to count tokens: what would be forwarded is counted, and nothing is compacted for it."""
    story, reason = _begin(request, kit)
    yield from story.count() if story else relayed(reason)


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
        history = read_history(conversation, request.tenant, kit.hasher, kit.ledger)
    except ValueError:  # no object, or nothing that JSON allows
        return None, "unreadable_item"
    if any(entry.facts.opaque or entry.facts.reference for entry in history.entries):
        return None, "opaque_history"
    return _Story(request, kit, history), ""


@dataclass(slots=True)
class _Refused:
    """The refusals met so far: the first is the provider's own answer to the client's request."""

    first: Head
    last: Head
    verdict: Verdict


class _Story:
    """One request while it lives. Its methods are the chapters, in order."""

    def __init__(self, request: Request, kit: Kit, history: History) -> None:
        self.request, self.kit, self.history = request, kit, history
        self.whole = plain(history)
        self.sizing = Sizing(request, kit, history)
        self.compactions = 0
        self.summary_calls = 0
        self.action: Action = "relayed"
        self.reason = ""
        self.output: int | None = None
        """Output limit to send in place of the client's, once a refusal has shown that it does not fit."""

    def run(self) -> Life:
        """Replay, measure, decide; then send and all that follows."""
        view = yield from self._replay()
        yield Notify("measured", dict(self.sizing.figures(view)))
        self.reason = self.sizing.not_due(view)
        if not self.reason and self.kit.breaker.rests(self._conversation, now=self.request.now):
            self.reason = "breaker_open"
        if not self.reason:
            view = yield from self._compact_before(view)
        yield from self._send(view)

    def count(self) -> Life:
        """Replay and send, without a thought of size."""
        view = yield from self._replay()
        head = yield from self._try(view)
        yield Deliver(head.number, Outcome(self.action, checkpoint=_name(view)))

    def _replay(self) -> Generator[Effect, object, View]:
        """The view that the longest applicable checkpoint gives, or the history as it is."""
        history, chain, found = self.history, self.history.chain, Found()
        try:
            result = yield Find(self.request.tenant, chain.bucket, chain.prefixes())
            found = result if isinstance(result, Found) else found
        except StoreError as error:
            yield Notify("fault", {"where": "store", "error": str(error)})
        self.sizing = replace(self.sizing, reports=found.reports)
        for checkpoint in found.checkpoints:
            text = checkpoint.artifact.kind == "text"
            view = applied(history, checkpoint, self.request.target) if text else None
            if view is not None and view.tokens < self.whole.tokens:
                self.action = "replayed"
                yield Notify("replayed", {"checkpoint": checkpoint.id, "items": checkpoint.length})
                return view
        return self.whole

    # -- compaction ----------------------------------------------------------------------------------------------

    def _compact_before(self, view: View) -> Generator[Effect, object, View]:
        """The view after a compaction that was due before sending; the same view where it failed."""
        target = self.sizing.limits().target
        smaller = (yield from self._compact(view, target, "threshold")) if target else None
        if smaller is None:
            return view
        self.action = "compacted"
        return smaller

    def _recover(self, view: View, verdict: Verdict) -> Generator[Effect, object, View | None]:
        """A smaller view to send after an overflow, None where there is none."""
        if not self.kit.policy.on_overflow:
            self.reason = "overflow_off"
            return None
        self.sizing = self.sizing.refused(view, verdict.input_tokens)
        limits, sent = self.sizing.limits(), self.sizing.measured(view).tokens
        aim = harder(limits, sent)
        stated = verdict.window or verdict.input_limit
        if self.compactions and self.request.target.window is None and stated is None:
            # Half was not enough and nothing says what is: the last try goes deep.
            aim = min(aim, sent // DEEP)
        smaller = yield from self._compact(view, aim, "overflow")
        if smaller is not None:
            self.action = "recovered"
        return smaller

    def _compact(self, view: View, aim: int, why: Why) -> Generator[Effect, object, View | None]:
        if self.compactions >= self.kit.max_compactions:
            self.reason = "compaction_limit"
            return None
        self.compactions += 1
        try:
            smaller, calls = yield from compact(self.sizing, view, aim, why)
        except CompactionFailed as error:
            self.reason = error.reason
            if error.reason not in NO_FAULT:
                self.kit.breaker.failed(self._conversation, now=self.request.now)
            return None
        self.kit.breaker.succeeded(self._conversation)
        self.summary_calls += calls
        self.reason = ""
        return smaller

    @property
    def _conversation(self) -> bytes:
        """What compactions of this conversation are counted under."""
        return self.kit.hasher.mix(self.request.tenant, self.history.chain.bucket, self.request.target.model.encode())

    # -- sending and recovering ----------------------------------------------------------------------------------

    def _send(self, view: View) -> Life:
        """Sends until there is an answer, or nothing left to try."""
        refused: _Refused | None = None
        while True:
            try:
                head = yield from self._try(view)
            except UpstreamError as error:
                if refused is None:
                    raise
                yield from self._lost(error)
                break
            if head.refusal is None:
                yield from self._deliver_answer(view, head)
                return
            verdict = yield from self._judge(head, view)
            refused = _Refused(refused.first if refused else head, head, verdict)
            if self._ask_for_less(view, verdict):
                continue
            if verdict.action == "compact" or of_the_window(verdict):
                smaller = yield from self._recover(view, verdict)
                if smaller is None:
                    break
                view = smaller
            elif view.checkpoint and refused.first is head and verdict.kind not in TRANSIENT:
                # The rewritten history may be what was refused: the client's own bytes get their chance.
                yield from self._send_original(refused)
                return
            else:
                break
        yield from self._deliver_refusal(refused)

    def _try(self, view: View) -> Generator[Effect, object, Head]:
        body = view.body if view.body is not self.request.conversation.raw else None
        if self.output is not None:
            body = with_less_output(view, self.sizing, self.output) or body
        head = yield Send(body, view.add_headers)
        assert isinstance(head, Head)
        return head

    def _ask_for_less(self, view: View, verdict: Verdict) -> bool:
        """Whether the same view is worth sending with a lower output limit: the prompt fits, the output asked for does
        not, and what is left of it is of use. Once a request."""
        if not of_the_window(verdict) or self.output is not None or not self.kit.policy.on_overflow:
            return False
        tokens = accepted(self.sizing, view, verdict)
        if tokens is None or with_less_output(view, self.sizing, tokens) is None:
            return False
        self.output, self.action, self.reason = tokens, "recovered", "output_clamped"
        return True

    def _lost(self, error: UpstreamError) -> Life:
        """No answer to a further try: there is a refusal to deliver, which says more than that."""
        yield Notify("fault", {"where": "upstream", "error": str(error)})
        self.reason = "upstream_lost"

    def _judge(self, head: Head, view: View) -> Generator[Effect, object, Verdict]:
        """What a refusal means; a window it states is learned."""
        target, sent = self.request.target, self.sizing.sent(view)
        refusal = Refusal(head.status, head.refusal or b"", head.headers, head.in_stream)
        verdict = self.kit.classify(target.provider, refusal, sent)
        yield Notify("refused", {"kind": verdict.kind, "rule": verdict.evidence.rule, "status": head.status})
        if self.kit.windows.learn(target.endpoint, target.model, verdict, sent, now=self.request.now):
            limit = self.kit.windows.limit(target.endpoint, target.model, now=self.request.now)
            yield Notify("learned", {"window": limit})
        return verdict

    def _send_original(self, refused: _Refused) -> Life:
        view = self.whole
        try:
            head = yield from self._try(view)
        except UpstreamError as error:
            yield from self._lost(error)
            yield from self._deliver_refusal(refused)
            return
        if head.refusal is None:
            self.action, self.reason = "relayed", "rewritten_history_refused"
            yield from self._deliver_answer(view, head)
            return
        verdict = yield from self._judge(head, view)
        # An overflow of the whole history says nothing new; the refusal of the short one names the client's mistake.
        chosen = refused.first if verdict.kind == "overflow" else head
        yield Deliver(chosen.number, Outcome(reason=refused.verdict.kind))

    # -- delivering and learning ---------------------------------------------------------------------------------

    def _deliver_answer(self, view: View, head: Head) -> Life:
        # Before the answer: the client may send its next turn the moment this one ends.
        if view.checkpoint and self.compactions and self.action in ("compacted", "recovered"):
            yield from self._save(view.checkpoint)
        before = self.sizing.measured(self.whole).tokens
        outcome = Outcome(
            self.action,
            reason=self.reason,
            strategy=view.checkpoint.strategy if view.checkpoint else "",
            checkpoint=_name(view),
            tokens_before=before,
            tokens_after=before if view is self.whole else self.sizing.measured(view).tokens,
            compactions=self.compactions,
            summary_calls=self.summary_calls,
        )
        finish = yield Deliver(head.number, outcome)
        if isinstance(finish, Finish) and finish.complete:
            yield from self._learn(view, finish)

    def _deliver_refusal(self, refused: _Refused) -> Life:
        transient = refused.verdict.kind in TRANSIENT
        too_large = refused.verdict.kind == "overflow" or of_the_window(refused.verdict)
        overflow = not transient and (too_large or refused.first is not refused.last)
        outcome = Outcome(
            "unrecovered" if overflow else "relayed",
            reason=self.reason if overflow else refused.verdict.kind,
            tokens_before=self.sizing.measured(self.whole).tokens,
            compactions=self.compactions,
            summary_calls=self.summary_calls,
        )
        yield Deliver(refused.last.number if transient else refused.first.number, outcome)

    def _learn(self, view: View, finish: Finish) -> Life:
        target, history = self.request.target, self.history
        tokens = finish.usage.input_tokens if finish.usage else 0
        if tokens > len(view.body):
            # No tokenizer makes more tokens than bytes: a sum over rounds of the provider's own tools, or nonsense.
            yield Notify("skipped", {"reason": "impossible_usage"})
            return
        if finish.finish == "window" or self._ran_out(finish):
            # Cut because the window ran out: whatever was reported, the next turn must be smaller.
            if target.window is None and finish.usage:
                full = tokens + finish.usage.output_tokens
                self.kit.windows.filled(target.endpoint, target.model, full, now=self.request.now)
            tokens = max(tokens, self.sizing.limits().window or 0, self.sizing.measured(view).tokens)
        elif tokens:
            self.kit.windows.succeeded(target.endpoint, target.model, tokens, now=self.request.now)
        if tokens:
            length = len(history.entries)
            yield from self._save(
                Report(
                    bucket=history.chain.bucket,
                    length=length,
                    chain=history.chain.links[length],
                    checkpoint=view.chain,
                    head=history.head,
                    endpoint=target.endpoint,
                    model=target.model,
                    input_tokens=tokens,
                )
            )

    def _ran_out(self, finish: Finish) -> bool:
        """Whether an answer that was cut by length was cut by the window: far below the length it was allowed."""
        asked = self.request.conversation.output_limit
        if finish.finish != "length" or finish.usage is None or not asked:
            return False
        return finish.usage.output_tokens < min(SCANT, asked // 4)

    def _save(self, record: Checkpoint | Report) -> Life:
        try:
            yield Save(self.request.tenant, record)
        except StoreError as error:
            yield Notify("fault", {"where": "store", "error": str(error)})


def _name(view: View) -> str:
    return view.checkpoint.id if view.checkpoint else ""
