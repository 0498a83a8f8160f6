"""Lets compaction ahead of the window rest where it keeps failing: a summarizer in trouble must not slow every turn.

Knows keys and times it is told; no clock. Called by the exchange. An overflow is always worth a try.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    until: float


class Breaker:
    """Rests double with each failure in a row, from `first` to `most` seconds; a success ends them. Bounded."""

    def __init__(self, *, first: float = 30.0, most: float = 600.0, size: int = 4096) -> None:
        self._first, self._most, self._size = first, most, size
        self._known: OrderedDict[bytes, _Failures] = OrderedDict()

    def rests(self, key: bytes, *, now: float) -> bool:
        """Whether a conversation's compaction rests."""
        known = self._known.get(key)
        return known is not None and now < known.until

    def failed(self, key: bytes, *, now: float) -> None:
        """One more failure in a row."""
        known = self._known.get(key)
        count = known.count + 1 if known else 1
        rest = min(self._most, self._first * 2 ** min(count - 1, 16))
        self._known[key] = _Failures(count, now + rest)
        self._known.move_to_end(key)
        while len(self._known) > self._size:
            self._known.popitem(last=False)

    def succeeded(self, key: bytes) -> None:
        """It works again."""
        self._known.pop(key, None)
