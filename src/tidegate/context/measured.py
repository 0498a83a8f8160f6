"""Sizes: what a provider has counted, and what that makes of an estimate.

Made by `context.calibration` and by the engine.
"""

from __future__ import annotations

import msgspec


class Baseline(msgspec.Struct, frozen=True):
    """What a provider reported for an earlier sending of the same view: its first `length` chain items, the
    covered ones among them replaced as they are now."""

    length: int
    input_tokens: int
    """Cache reads and writes included."""


class Measured(msgspec.Struct, frozen=True):
    """The size of a view, in tokens."""

    tokens: int
    """The calibrated size: the larger of the two below, or the one that the policy counts by."""
    local: int
    """The estimate alone."""
    baseline: int | None
    """A reported size and the estimate of what came after it, None without a usable report."""
    ratio: float
    """Real tokens per estimated token, at least 1, for shrinking budgets that are compared with estimates."""

    def shrunk(self, budget: int) -> int:
        """A budget of real tokens as one of estimated tokens: never a larger one, rounded down."""
        # A whole number must not become the one below it by the last digit of a quotient.
        return budget if self.ratio <= 1 else int(budget / self.ratio + 1e-6)
