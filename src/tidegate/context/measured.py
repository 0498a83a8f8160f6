"""Sizes: what a provider has counted, and what that makes of an estimate.

Made by `context.calibration` and by the engine.
"""

from __future__ import annotations


class Baseline:
    """What a provider reported for an earlier sending of the same view: its first `length` chain items, the
    covered ones among them replaced as they are now."""

    __slots__ = ("input_tokens", "length")

    def __init__(self, length: int, input_tokens: int) -> None:
        self.length = length
        self.input_tokens = input_tokens
        """Cache reads and writes included."""

    def __repr__(self) -> str:
        """Both numbers."""
        return f"Baseline(length={self.length}, input_tokens={self.input_tokens})"


class Measured:
    """The size of a view, in tokens. Nothing of it changes."""

    __slots__ = ("baseline", "local", "ratio", "tokens")

    def __init__(self, tokens: int, local: int, baseline: int | None, ratio: float) -> None:
        self.tokens = tokens
        """The calibrated size: the larger of the two below, or the one that the policy counts by."""
        self.local = local
        """The estimate alone."""
        self.baseline = baseline
        """A reported size and the estimate of what came after it, None without a usable report."""
        self.ratio = ratio
        """Real tokens per estimated token, at least 1, for shrinking budgets that are compared with estimates."""

    def __repr__(self) -> str:
        """All four numbers."""
        return f"Measured({self.tokens}, {self.local}, {self.baseline}, {self.ratio})"

    def __eq__(self, other: object) -> bool:
        """Equal where all numbers are."""
        if not isinstance(other, Measured):
            return NotImplemented
        return (self.tokens, self.local, self.baseline, self.ratio) == (
            other.tokens,
            other.local,
            other.baseline,
            other.ratio,
        )

    def __hash__(self) -> int:
        """Of all four."""
        return hash((self.tokens, self.local, self.baseline, self.ratio))

    def shrunk(self, budget: int) -> int:
        """A budget of real tokens as one of estimated tokens: never a larger one, rounded down."""
        # A whole number must not become the one below it by the last digit of a quotient.
        return budget if self.ratio <= 1 else int(budget / self.ratio + 1e-6)
