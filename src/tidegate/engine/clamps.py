"""Which conversations asked for more output than fits beside their input, so that later turns ask for less at once.

Knows numbers and times it is told; no clock. Written and read by the exchange.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

REMEMBERED: Final = 6 * 3600.0
"""Seconds that a refusal of an output limit counts for later turns; then the client's own is tried again."""


class Clamps:
    """Conversations whose output limit did not fit beside their input, and the tokens that both together may take; for
    `keep` seconds. Bounded; the oldest go first."""

    def __init__(self, *, keep: float = REMEMBERED, size: int = 4096) -> None:
        self._keep, self._size = keep, size
        self._known: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        """How many conversations are known."""
        return len(self._known)

    def add(self, conversation: bytes, together: int, *, now: float) -> None:
        """So many tokens did fit."""
        self._known.pop(conversation, None)
        self._known[conversation] = together, now + self._keep
        while len(self._known) > self._size:
            self._known.popitem(last=False)

    def together(self, conversation: bytes, *, now: float) -> int | None:
        """Tokens of input and output that fit, None where nothing was refused."""
        known = self._known.get(conversation)
        if known is None or now >= known[1]:
            return None
        return known[0]
