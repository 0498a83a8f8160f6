"""What a delivered answer teaches: what the provider counted, whether the window was full, whether input was cut.

Knows one view and its answer's end; sends nothing again. Called by the exchange once the client has its answer.
"""

from __future__ import annotations

from collections.abc import Generator

from tidegate.context.calibration import why_impossible
from tidegate.context.measured import Baseline
from tidegate.engine.checkpoint import Checkpoint, Report, StoreError
from tidegate.engine.effects import Effect, Finish, Notify, Save
from tidegate.engine.request import Request
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View
from tidegate.engine.warmth import Key
from tidegate.overflow.answered import CUT_IN_SILENCE, CUT_SHARE, CUT_SHORT, FILLED, FULL, LEAST, judge_success
from tidegate.overflow.verdict import Sent
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import Usage

SCANT = 256
"""Output tokens: no provider's own cap on answers is as low."""

CUTS_ASKED_FOR = frozenset({"truncation", "context_management", "transforms", "plugins"})
"""Fields by which a client lets the provider leave parts of the input out (OpenAI, Anthropic, OpenRouter)."""


def learn(
    sizing: Sizing, view: View, finish: Finish, sent: Sent, *, as_it_is: bool = True
) -> Generator[Effect, object, None]:
    """Learns from a complete answer to a view; `sent` is what was thought to go out.

    A full window is never sent again: the report then says that it is full, so that the next turn is compacted first.
    `as_it_is` is false where something was left out of the view: what the provider counted is then not its size.
    """
    request, target, windows = sizing.request, sizing.request.target, sizing.kit.windows
    usage = finish.usage
    tokens = usage.input_tokens if usage else 0
    if why_impossible(tokens, 0, None, len(view.body)) == "bytes":
        yield Notify("skipped", {"reason": "impossible_usage", "by": "bytes"})
        return
    if finish.finish == "error":
        # Whatever it counted, it did not succeed.
        return
    if as_it_is:
        length, cached = len(sizing.history.past), usage.cached_tokens if usage else None
        sizing.kit.warmth.answered(warmth_key(sizing, view), length, cached, now=request.now)
    verdict = judge_success(finish.finish, usage, sent=sent, answered=usage is None)
    rule = verdict.evidence.rule if verdict else ""
    full = bool(rule) and _is_full(rule, sizing, view, finish, as_it_is=as_it_is)
    if full:
        window = sizing.limits().window
        yield Notify("window_full", {"rule": rule, "tokens": tokens, "sent": sent.tokens, "window": window})
    elif tokens:
        windows.succeeded(target.endpoint, target.model, tokens, now=request.now)
    doubt = why_impossible(tokens, sizing.measured(view).local, sizing.limits().window) if tokens else ""
    if doubt:
        # Too few are kept, though never believed as a size: that a history grows and is counted as no larger tells that
        # it is cut.
        yield Notify("skipped", {"reason": "impossible_usage", "by": doubt})
    if doubt == "window":
        tokens = 0
    if full:
        tokens = max(tokens, sizing.limits().window or 0, sizing.measured(view).tokens)
    if tokens and (full or as_it_is):
        yield from keep(request, _report(sizing, view, tokens))


def warmth_key(sizing: Sizing, view: View) -> Key:
    """What the sendings of a view are remembered under."""
    target = sizing.request.target
    return sizing.history.chain.bucket, view.chain, target.endpoint, target.model


def keep(request: Request, record: Checkpoint | Report) -> Generator[Effect, object, None]:
    """Saves; a store that can't costs nothing but what it would have kept."""
    problem = ""
    try:
        yield Save(request.tenant, record)
    except StoreError as error:
        problem = str(error)
    if problem:
        yield Notify("fault", {"where": "store", "error": problem})


def _report(sizing: Sizing, view: View, tokens: int) -> Report:
    history, target = sizing.history, sizing.request.target
    length = len(history.entries)
    return Report(
        bucket=history.chain.bucket,
        length=length,
        chain=history.chain.link(length),
        checkpoint=view.chain,
        head=history.head,
        endpoint=target.endpoint,
        model=target.model,
        input_tokens=tokens,
    )


def _is_full(rule: str, sizing: Sizing, view: View, finish: Finish, *, as_it_is: bool) -> bool:
    """Whether the window is full, by the rule that `judge_success` found; its size is learned where that is new."""
    request, target, windows = sizing.request, sizing.request.target, sizing.kit.windows
    usage = finish.usage or Usage(0)
    used = usage.input_tokens + usage.output_tokens
    if rule == FILLED:
        # An input larger than a learned limit has succeeded: then that limit is what was wrong.
        windows.succeeded(target.endpoint, target.model, usage.input_tokens, now=request.now)
        window = sizing.limits().window
        return window is not None and used >= window
    if rule == CUT_IN_SILENCE:
        fits = cut_in_silence(sizing, view, usage) if as_it_is else None
        if fits is not None:
            windows.filled(target.endpoint, target.model, fits, now=request.now)
        return fits is not None
    full = rule in FULL or (rule == CUT_SHORT and _ran_out(finish, request.conversation.output_limit))
    if full and finish.usage and target.window is None:
        windows.filled(target.endpoint, target.model, used, now=request.now)
    return full


def _ran_out(finish: Finish, asked: int | None) -> bool:
    """Whether an answer that was cut by length was cut by the window: far below the length it was allowed."""
    if finish.usage is None or not asked:
        return False
    return finish.usage.output_tokens < min(SCANT, asked // 4)


def cut_in_silence(sizing: Sizing, view: View, usage: Usage) -> int | None:
    """The input that is sure to fit, where a provider has cut this one without a word (Ollama); None where the small
    count has another cause.

    Estimates may be far too high, above all for media and for scripts that a tokenizer knows well, so a count far below
    them proves nothing. What proves a cut is that a history that grew was counted as no larger than it was before:

    - the client has not asked for cuts;
    - an earlier beginning of this very view was counted about as estimated: the estimates are good here;
    - a later beginning, shorter than the view now, was counted as no less than all of it now. Thinking may go from one
      turn to the next by the API's own rules, and counts for one token a byte;
    - what was counted is a window's worth: no less than half of the largest count, more than twice what is new since
      the last one. A provider that leaves cached tokens out counts what is new; those it names are added.
    """
    history, conversation = sizing.history, sizing.request.conversation
    if not CUTS_ASKED_FOR.isdisjoint(conversation.fields):
        return None
    counted = usage.input_tokens + usage.cached_tokens
    if counted >= CUT_SHARE * sizing.measured(view).tokens:
        return None
    fixed = history.overhead + view.artifact_tokens
    earlier: list[tuple[Baseline, int]] = []
    for report in sizing.baselines(view):
        if view.covered <= report.length < len(history.entries):
            estimate = fixed + sum(entry.tokens for entry in history.entries[view.covered : report.length])
            if report.input_tokens * CUT_SHARE <= estimate:  # what is far above says that a window was full
                earlier.append((report, estimate))
    trusted = [report.length for report, estimate in earlier if report.input_tokens >= CUT_SHARE * estimate]
    later = [report.input_tokens for report, _ in earlier if trusted and report.length > min(trusted)]
    if not later:
        return None
    new = history.entries[max(report.length for report, _ in earlier) :]
    most = max(report.input_tokens for report, _ in earlier)
    least = max(LEAST, most // 2, 2 * sum(entry.tokens for entry in new))
    largest = max(later)
    return largest + 1 if least <= counted <= largest - _thinking_bytes(sizing, view) else None


def _thinking_bytes(sizing: Sizing, view: View) -> int:
    """Bytes of what a provider may leave out of earlier turns: no more tokens than that."""
    history = sizing.history
    requests = REQUESTS[history.conversation.dialect]
    return sum(
        len(part.text.encode("utf-8", "replace")) + part.data_bytes
        for position in range(view.covered, len(history.entries))
        for part in requests.parts(history.value(position))
        if part.kind in ("thinking", "opaque")
    )
