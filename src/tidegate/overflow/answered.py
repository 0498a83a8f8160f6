"""Judges answers that came with success: was the window full all the same, or the input cut without a word?

Knows ends and token counts; not where an answer keeps them (`unwrap`, `wire`). Pure. Called by
`classify` and the engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.overflow.verdict import Evidence, Kind, Sent, Verdict
from tidegate.wire.conversation import FinishReason, Usage

_FULL = 0.99
"""An input of this share of the window leaves no room for an answer."""
CUT_SHARE = 0.7
"""A reported input below this share of the estimated one has been cut."""
LEAST = 1_024
"""Estimates of less than this are too rough to tell that an input was cut."""

FILLED = "usage-fills-window"
"""Input and output together reach the window, as far as that is known."""
FULL = frozenset({"window-exceeded-unanswered", "length-without-output", "finish-window", FILLED})
"""Rules that say that input and output together fill the window."""
CUT_SHORT = "finish-length"
"""An answer was cut by length: by the limit that was asked for, or by less than that."""
CUT_IN_SILENCE = "input-cut-in-silence"
"""Much less input was counted than is thought to have been sent: it was cut, or the estimate is too high."""

_ENDS: Mapping[FinishReason, Kind] = {
    "window": "truncated_output", "length": "truncated_output", "filter": "filter", "refusal": "filter",
    "error": "server",
}  # fmt: skip


def judge_success(
    finish: FinishReason | None, usage: Usage | None, *, sent: Sent | None = None, answered: bool | None = None
) -> Verdict | None:
    """What an answer with success says of the window; None where it is in order.

    `overflow` without certainty where no answer came because the input filled the window; `truncated_output` where an
    answer was cut, where the usage reaches the window, or where much less input was counted than was sent. Nothing
    helps this request then; the next one must be smaller. `answered`: whether there was any output, where the usage
    does not say.
    """
    prompt = usage.input_tokens if usage else 0
    output = usage.output_tokens if usage else 0
    silent = not output and not answered
    window = sent.window if sent else None
    if finish == "window" and silent:
        return plain("overflow", "window-exceeded-unanswered", certain=False, runner_up="truncated_output")
    if finish == "length" and silent and window and prompt >= _FULL * window:
        return plain("overflow", "length-without-output", certain=False, runner_up="truncated_output")
    filled = bool(window and prompt and prompt + output >= window)
    if finish is not None and finish in _ENDS and not (filled and finish == "length"):
        return plain(_ENDS[finish], f"finish-{finish}", certain=True)
    if filled:
        return plain("truncated_output", FILLED, certain=True)
    estimated = sent.tokens if sent else None
    if prompt and estimated and estimated >= LEAST and prompt < CUT_SHARE * estimated:
        return plain("truncated_output", CUT_IN_SILENCE, certain=False)
    return None


def plain(kind: Kind, rule: str, *, certain: bool, runner_up: Kind | None = None) -> Verdict:
    """A verdict that no rule of a file gave; what helps by then is left to the caller."""
    return Verdict(
        kind,
        "compact" if kind == "overflow" else "none",
        certain=certain,
        evidence=Evidence(rule, "classify"),
        runner_up=runner_up,
    )
