"""When a compaction is due and what it aims for, in tokens.

Knows a window, a policy and a request's own output limit; knows no conversation. Called by the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Final

SUMMARY_MIN: Final = 256
SUMMARY_MAX: Final = 8_192

FORCED_TARGET: Final = Fraction(60, 100)
"""Share of the threshold to aim for where the room for output has pushed the threshold down."""

SOFT: Final = Fraction(80, 100)
"""Share of the threshold from which to prepare where what was asked for is no less than the threshold."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user asked for. Percentages are of the context window; raises `ValueError` outside 0 … 100."""

    threshold_percent: float = 85
    """A compaction is due from here."""
    target_percent: float = 50
    """What a compaction aims for."""
    enabled: bool = True
    """Compact before the window is full."""
    on_overflow: bool = True
    """Compact after a provider refused a request as too long."""
    keep_recent_tokens: int | None = None
    """Newest tokens that a compaction leaves as they are, at most; None for half the window."""
    prepare_percent: float | None = 70
    """A compaction is prepared from here, between turns; None for never."""

    def __post_init__(self) -> None:
        """Refuses what can't be meant."""
        for name in ("threshold_percent", "target_percent"):
            if not 0 < getattr(self, name) <= 100:
                raise ValueError(f"{name} must be above 0 and at most 100, not {getattr(self, name)}")
        if self.prepare_percent is not None and not 0 < self.prepare_percent <= 100:
            raise ValueError(f"prepare_percent must be above 0 and at most 100, not {self.prepare_percent}")
        if self.keep_recent_tokens is not None and self.keep_recent_tokens < 1:
            raise ValueError(f"keep_recent_tokens must be at least 1, not {self.keep_recent_tokens}")


@dataclass(frozen=True, slots=True)
class Budget:
    """Sizes for one request, in tokens; all None where the window is unknown."""

    window: int | None = None
    limit: int | None = None
    """Input tokens that fit."""
    threshold: int | None = None
    """A compaction is due when the input takes as many."""
    target: int | None = None
    """What a compaction aims for; always below the threshold."""
    soft: int | None = None
    """A compaction is prepared when the next input will take as many; above the target. None for never."""


def budget(
    policy: Policy,
    *,
    window: int | None,
    input_limit: int | None = None,
    output_limit: int | None = None,
    counts_output: bool = False,
) -> Budget:
    """The sizes that hold for a request.

    `input_limit` is what the provider accepts as input where that is less than the window (percentages are of it
    where the window is unknown). `output_limit` is what the request asks for; where the provider counts it into
    the window (`counts_output`), room for it is kept free, half the window at most. An input limit is of the input
    alone: the output takes nothing from it.
    """
    limits = []
    if input_limit and input_limit > 0:
        limits.append(input_limit)
    if window and window > 0:
        counted = output_limit if counts_output and output_limit and output_limit > 0 else 0
        limits.append(window - min(counted, window // 2))
    else:
        window = input_limit
    if not limits or not window:
        return Budget()
    limit = min(limits)
    wanted = max(1, ceil(_percent(policy.threshold_percent, window)))
    threshold = min(wanted, limit)
    target = min(floor(_percent(policy.target_percent, window)), threshold - 1)
    if threshold < wanted:
        target = min(target, floor(threshold * FORCED_TARGET))
    target = max(0, target)
    return Budget(window, limit, threshold, target, _soft(policy, threshold, target))


def _soft(policy: Policy, threshold: int, target: int) -> int | None:
    """Where the band below the threshold begins, in the same proportion to it wherever that lies."""
    if policy.prepare_percent is None or not policy.enabled:
        return None
    share = Fraction(str(policy.prepare_percent)) / Fraction(str(policy.threshold_percent))
    return min(threshold, max(target + 1, ceil(threshold * (share if share < 1 else SOFT))))


def summary_room(size: Budget | int, target: int | None = None) -> int:
    """Tokens a summary may take: a tenth of the window, from 256 to 8,192, and never over a third of the
    target.

    `size` is a budget, or a window (whose target is then taken for half of it); `target` overrides, as after
    an overflow. A budget whose window is unknown gives a third of `target`, or 256 where that is not given
    either.
    """
    window = size if isinstance(size, int) else size.window
    if target is None:
        target = size // 2 if isinstance(size, int) else size.target
    room = SUMMARY_MAX if window is None else min(SUMMARY_MAX, max(SUMMARY_MIN, window // 10))
    if target is None:
        return SUMMARY_MIN
    return max(0, min(room, target // 3))


def harder(size: Budget, sent_tokens: int) -> int:
    """The target after an overflow: the configured one, or half of what was sent where that is less."""
    half = max(0, sent_tokens) // 2
    return half if size.target is None else min(size.target, half)


def _percent(percent: float, of: int) -> Fraction:
    # Exact: in floats 7 % of 100 rounds up to 8.
    return Fraction(str(percent)) * of / 100
