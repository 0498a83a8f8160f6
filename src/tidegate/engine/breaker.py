"""Lets compaction ahead of the window rest where it is of no use: it fails, its result is still too large, or the
window fills again at once.

Knows keys, sizes and times it is told; no clock. Called by the exchange. An overflow is always worth a try.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Bounds:
    """When compaction of a conversation rests, and for how long."""

    first: float = 30.0
    """Seconds of the first rest; each in a row is twice as long."""
    most: float = 600.0
    """Seconds of the longest."""
    refills: int = 3
    """Compactions in a row, each soon after the one before, after which it rests."""
    refill_messages: int = 2
    """Messages of the history that make a compaction soon after the one before: so many new ones, or fewer."""
    regrow_percent: float = 10.0
    """By how much a history must grow where what a compaction left, or could not make smaller, is due again at once."""


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a conversation."""

    rests: int = 0
    """Rests in a row."""
    until: float = 0.0
    """When the last of them ends, seconds since the epoch."""
    length: int = 0
    """Messages of the history when it was last compacted."""
    quick: int = 0
    """Compactions in a row that came soon after the one before."""
    floor: int = 0
    """Tokens below which it can't be brought, as far as was seen; 0 for none."""
    unchanged: int = 0
    """Results that were thrown away since they were no smaller than what they were to replace."""


_NEW = State()


class Breaker:
    """What is known of conversations, each under a key; the least recently changed are forgotten first."""

    def __init__(self, bounds: Bounds | None = None, *, size: int = 4096) -> None:
        self.bounds = bounds or Bounds()
        self._size = size
        self._known: OrderedDict[bytes, State] = OrderedDict()

    def within(self, bounds: Bounds) -> Breaker:
        """One with other bounds, that knows what this one knows and will know."""
        other = Breaker(bounds, size=self._size)
        other._known = self._known
        return other

    def state(self, key: bytes) -> State:
        """What is known of a conversation."""
        return self._known.get(key, _NEW)

    def rests(self, key: bytes, *, now: float) -> bool:
        """Whether a conversation's compaction rests."""
        known = self._known.get(key)
        return known is not None and now < known.until

    def held(self, key: bytes, tokens: int) -> bool:
        """Whether a history of so many tokens is as small as it gets, but for little."""
        known = self._known.get(key)
        return known is not None and tokens < known.floor * (1 + self.bounds.regrow_percent / 100)

    def failed(self, key: bytes, *, now: float) -> None:
        """One more failure in a row."""
        self._keep(key, self._resting(self.state(key), now))

    def succeeded(self, key: bytes) -> None:
        """It works again: what comes next is a first failure."""
        known = self._known.get(key)
        if known is not None and known.quick < self.bounds.refills:
            self._keep(key, replace(known, rests=0, until=0.0))

    def compacted(self, key: bytes, *, length: int, tokens: int, threshold: int | None, now: float) -> bool:
        """A history of so many messages was brought down to so many tokens before it was sent. Whether that was once
        too often, soon after the one before: then it rests."""
        known = self.state(key)
        floor = tokens if threshold is not None and tokens >= threshold else 0
        new = length - known.length if known.length else 0
        if not 0 < new <= self.bounds.refill_messages:
            # The same once more within one request, another branch of the history, or a while later.
            quick, rests, until = (known.quick, known.rests, known.until) if new == 0 else (0, 0, 0.0)
            self._keep(key, State(rests, until, length, quick, floor, known.unchanged))
            return False
        known = replace(known, length=length, quick=known.quick + 1, floor=floor)
        opens = known.quick >= self.bounds.refills
        self._keep(key, self._resting(known, now) if opens else known)
        return opens

    def unchanged(self, key: bytes, tokens: int) -> None:
        """What was made of a history of so many tokens is no smaller; 0 where that says nothing of its floor."""
        known = self.state(key)
        self._keep(key, replace(known, floor=tokens or known.floor, unchanged=known.unchanged + 1))

    def _resting(self, known: State, now: float) -> State:
        rest = min(self.bounds.most, self.bounds.first * 2 ** min(known.rests, 16))
        return replace(known, rests=known.rests + 1, until=now + rest)

    def _keep(self, key: bytes, state: State) -> None:
        self._known[key] = state
        self._known.move_to_end(key)
        while len(self._known) > self._size:
            self._known.popitem(last=False)
