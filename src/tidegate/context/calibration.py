"""How far the local estimate is from what the provider counts.

Knows sizes and reports of the view in question only (the caller picks those); knows no store and no identity
of views. Called by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.context.measured import Baseline, Measured

RATIO_MAX: Final = 3.0


def measure(
    sums: Sequence[int],
    overhead: int,
    artifact_tokens: int,
    covered: int,
    baselines: Sequence[Baseline],
    *,
    window: int | None = None,
    ratio_max: float = RATIO_MAX,
) -> Measured:
    """The size of a view: `overhead`, the artifact with what is retained beside it (`artifact_tokens`), and
    the chain items from `covered` on; `sums[k]` is the estimate of the first k of them, from 0 to n.

    The report of the longest beginning counts, the first given among equals. Impossible reports are passed
    over: none or zero, above twice the window, below a third of the estimate for the same view (a server that
    cut the prompt silently), or of a beginning that this view does not have.
    """
    fixed = overhead + artifact_tokens - sums[covered]
    length = len(sums) - 1
    estimate = fixed + sums[length]
    for report in sorted(baselines, key=_longest_first) if len(baselines) > 1 else baselines:
        if not covered <= report.length <= length:
            continue
        then = fixed + sums[report.length]
        if why_impossible(report.input_tokens, then, window):
            continue
        baseline = report.input_tokens + sums[length] - sums[report.length]
        ratio = min(ratio_max, max(1.0, report.input_tokens / then)) if then > 0 else 1.0
        return Measured(max(estimate, baseline), estimate, baseline, ratio)
    return Measured(estimate, estimate, None, 1.0)


def _longest_first(report: Baseline) -> int:
    return -report.length


def why_impossible(reported: int, estimated: int, window: int | None, size_bytes: int | None = None) -> str:
    """Why input tokens that were reported can't be those of what was sent, of so many estimated tokens and bytes, to a
    model of that window: `none`, `bytes`, `estimate`, `window`; empty where they can."""
    if reported <= 0:
        return "none"
    if size_bytes is not None and reported > size_bytes:
        # No tokenizer makes more tokens than bytes: a sum over rounds of the provider's own tools, or nonsense.
        return "bytes"
    if reported * 3 < estimated:
        return "estimate"
    return "window" if window and reported > 2 * window else ""
