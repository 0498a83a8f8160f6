"""When a compaction is due and what it aims for, in tokens.

Knows a window, a policy and a request's own output limit; knows no conversation. Called by the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from fractions import Fraction
from math import ceil, floor
from typing import Final, Literal, TypeAlias

SUMMARY_MIN: Final = 256
SUMMARY_MAX: Final = 8_192
RHO_ROOM_MIN: Final = 512

MIN_ROOM: Final = 64
"""Tokens a summary gets at least."""

FORCED_TARGET: Final = Fraction(60, 100)
"""Share of the threshold to aim for at most where a percentage of the window says little of it: where the room for
output has pushed the threshold down, or it is no percentage of the window itself."""

SOFT: Final = Fraction(80, 100)
"""Share of the threshold from which to prepare where what was asked for is no less than the threshold."""

RESERVE_TOKENS: Final = 16_384
"""Kept free by the trigger `reserve` where no number is given."""

RESERVE_PERCENT: Final = 15
"""Of the window: no less is kept free by the trigger `reserve`."""

Trigger: TypeAlias = Literal["percent", "reserve", "tokens", "off"]
"""What begins a compaction ahead of the window: a share of the window is reached, no reserve is left of it, a number of
tokens is passed; or nothing does."""

Counts: TypeAlias = Literal["larger", "reported", "estimate"]
"""Which size counts: the larger of the provider's and the estimate, the provider's where there is one, or the estimate
alone."""


_LEAST: Final = (("keep_recent_tokens", 1), ("max_tokens", 1), ("preserve_last_n", 1), ("reserve_tokens", 0))


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user asked for. Percentages are of the context window; raises `ValueError` outside 0 … 100.

    `context.policies` has the named ones, and what each field comes from.
    """

    threshold_percent: float = 85
    """A compaction is due from here, where the trigger is `percent`."""
    target_percent: float | None = 50
    """What a compaction aims for; None for anything below the threshold."""
    enabled: bool = True
    """Compact before the window is full."""
    on_overflow: bool = True
    """Compact after a provider refused a request as too long."""
    keep_recent_tokens: int | None = None
    """Newest tokens that a compaction leaves as they are, at most; None for half the window."""
    prepare_percent: float | None = 70
    """A compaction is prepared from here, between turns; None for never."""
    trigger: Trigger = "percent"
    reserve_tokens: int | None = None
    """Kept free by the trigger `reserve`, and 15 % of the window at least; None for 16,384, or 15 % of a window that
    those would fill."""
    max_tokens: int = 8_000
    """A compaction is due above it, where the trigger is `tokens`."""
    keep_recent_percent: float | None = None
    """The same as `keep_recent_tokens`, by the window; the lesser counts."""
    keep_recent_least: int = 0
    """Tokens that `keep_recent_percent` stands for in a window where it is less."""
    preserve_last_n: int | None = None
    """Newest items that a compaction leaves as they are, at most; None for any number."""
    rounds_down: bool = False
    """A threshold by percentage is rounded down, as Planck's is, not up."""
    estimator: str = "tidegate"
    """Name of the rules by which text is counted; see `context.estimators`."""
    counts: Counts = "larger"
    room_by_target: bool = False
    """The room for a summary is a tenth of the target, 512 to 8,192 tokens, as Rho's (Rust) is."""
    elides_enough: bool = False
    """Where old tool results are left out, it is the oldest ones, until what is aimed for is reached, and nothing ahead
    of a compaction that is due, as Rho (Rust) does; else all of them at once, and as soon as that is worth it."""
    merges_summary: bool = False
    """A summary goes into the user message after it, where one follows; else it does only where an API wants that."""
    windows: tuple[tuple[str, int], ...] = ()
    """Windows by patterns of model names, the first that matches: no model's counts as larger."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuses what can't be meant."""
        for name in ("threshold_percent", "target_percent", "prepare_percent", "keep_recent_percent"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 100:
                raise ValueError(f"{name} must be above 0 and at most 100, not {value}")
        for name, least in _LEAST:
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        told = tuple(getattr(self, it.name) for it in fields(self) if it.compare)
        object.__setattr__(self, "_hash", hash(told))

    def __hash__(self) -> int:
        """Found once: budgets are looked up by it for every request."""
        return self._hash

    @property
    def automatic(self) -> bool:
        """Whether anything but a refusal, or somebody who asks for it, begins a compaction."""
        return self.enabled and self.trigger != "off"

    def window_for(self, model: str, window: int | None) -> int | None:
        """The window that counts for a model, where that many tokens are known of it."""
        stated = next((size for pattern, size in self.windows if fnmatchcase(model.lower(), pattern)), None)
        return stated if window is None else window if stated is None else min(stated, window)

    def room(self, window: int, target: int) -> int:
        """Tokens that a summary may take, of a window and of what is aimed for: 64 at least, or all of the target."""
        if self.room_by_target:
            return min(target, max(RHO_ROOM_MIN, min(SUMMARY_MAX, target // 10)))
        return max(MIN_ROOM, min(summary_room(window), target // 3))

    def recent(self, window: int | None) -> int | None:
        """Newest tokens to be left as they are, at most; None for as many as other limits allow."""
        limits = [] if self.keep_recent_tokens is None else [self.keep_recent_tokens]
        if self.keep_recent_percent is not None and window:
            limits.append(max(self.keep_recent_least, floor(_percent(self.keep_recent_percent, window))))
        return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class Budget:
    """Sizes for one request, in tokens; all None where the window is unknown and needed."""

    window: int | None = None
    limit: int | None = None
    """Input tokens that fit."""
    threshold: int | None = None
    """A compaction is due when the input takes as many: one more than what a strict `>` is compared with."""
    target: int | None = None
    """What a compaction aims for; always below the threshold."""
    soft: int | None = None
    """A compaction is prepared when the next input will take as many; above the target. None for never."""


def reserve_threshold(window: int, reserve_tokens: int | None = None) -> int:
    """Tokens above which a compaction is due so that a reserve of the window stays free: 15 % of it or
    `reserve_tokens`, whichever is more; 15 % alone where that would leave nothing of the window, or, where no number
    is given, no more than 15 %. Source: oh-my-pi `compaction.ts`, which Rho (Elixir) follows."""
    share = window * RESERVE_PERCENT // 100
    reserve = max(share, RESERVE_TOKENS if reserve_tokens is None else reserve_tokens)
    least = max(1, share)
    if reserve >= window or (reserve_tokens is None and reserve >= window - least):
        reserve = least
    return max(0, min(window - 1, window - reserve))


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
    alone: the output takes nothing from it. Only the trigger `tokens` needs neither.
    """
    limits = []
    if input_limit and input_limit > 0:
        limits.append(input_limit)
    if window and window > 0:
        counted = output_limit if counts_output and output_limit and output_limit > 0 else 0
        limits.append(window - min(counted, window // 2))
    else:
        window = input_limit if input_limit and input_limit > 0 else None
    limit = min(limits, default=None)
    wanted = _due(policy, window)
    if wanted is None:
        return Budget()
    threshold = wanted if limit is None else min(wanted, limit)
    target = threshold - 1
    if window is not None and policy.target_percent is not None:
        target = min(target, ceil(_percent(policy.target_percent, window)))
    if threshold < wanted or (policy.trigger in ("reserve", "tokens") and policy.target_percent is not None):
        target = min(target, floor(threshold * FORCED_TARGET))
    target = max(0, target)
    return Budget(window, limit, threshold, target, _soft(policy, threshold, target))


def _due(policy: Policy, window: int | None) -> int | None:
    """The first size at which a compaction is due, None where the window is needed for it and unknown."""
    if policy.trigger == "tokens":
        return policy.max_tokens + 1
    if window is None:
        return None
    if policy.trigger == "reserve":
        return reserve_threshold(window, policy.reserve_tokens) + 1
    share = _percent(policy.threshold_percent, window)
    return max(1, floor(share) if policy.rounds_down else ceil(share))


def _soft(policy: Policy, threshold: int, target: int) -> int | None:
    """Where the band below the threshold begins, in the same proportion to it wherever that lies."""
    if policy.prepare_percent is None or not policy.automatic:
        return None
    share = SOFT
    if policy.trigger == "percent":
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
