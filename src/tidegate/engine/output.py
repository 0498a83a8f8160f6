"""What to do where the prompt fits and the asked-for output does not: ask for less.

Knows numbers and the one field that changes. Called by the exchange.
"""

from __future__ import annotations

from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View
from tidegate.overflow.verdict import Verdict
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName, UnreadableBody

MARGIN = 16
"""Tokens left free below a limit that a refusal stated exactly."""

ESTIMATE_MARGIN = 0.02
"""Share of the window left free where the input's size is an estimate."""

USEFUL = 1024
"""Output tokens that are worth a request, whatever was asked for."""

USEFUL_SHARE = 0.25
"""Share of the asked-for output that is worth one too."""


def remembered(sizing: Sizing, view: View, together: int) -> int | None:
    """The output limit to ask for in place of the client's, which would be refused as it was on an earlier turn; None
    where it fits, or too little would be left."""
    asked = sizing.request.conversation.output_limit
    left = together - sizing.measured(view).tokens - int(together * ESTIMATE_MARGIN)
    return left if asked and _is_useful(left, asked) else None


def _is_useful(left: int, asked: int) -> bool:
    """Less than was asked for, and still of use."""
    return left < asked and left >= min(USEFUL, asked * USEFUL_SHARE) and left > 0


def of_the_window(verdict: Verdict) -> bool:
    """Whether a refusal says that input and output together do not fit the window; a model's own cap on its output is
    the client's affair."""
    stated = verdict.window is not None or verdict.input_tokens is not None
    return verdict.kind == "output_limit" and verdict.action == "clamp_output" and stated


def accepted(sizing: Sizing, view: View, verdict: Verdict) -> int | None:
    """The largest output limit worth asking for after a refusal; None where too little would be left."""
    asked = verdict.output_requested or sizing.request.conversation.output_limit
    window = verdict.window or sizing.limits().window
    if not asked:
        return None
    if verdict.output_limit is not None:
        left = verdict.output_limit
    elif window is None:
        return None
    elif verdict.input_tokens is not None:
        left = window - verdict.input_tokens - MARGIN
    else:
        left = window - sizing.measured(view).tokens - int(window * ESTIMATE_MARGIN)
    return left if _is_useful(left, asked) else None


def with_less_output(body: bytes, dialect: DialectName, tokens: int) -> bytes | None:
    """A body with a lower output limit, None where it can't be lowered so far."""
    requests = REQUESTS[dialect]
    try:
        return requests.with_output_limit(requests.read(body), tokens)
    except UnreadableBody:
        return None
