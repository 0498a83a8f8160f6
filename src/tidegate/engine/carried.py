"""Which clients send back the compaction items that a provider put into their answers.

Knows keys, lengths and times it is told; no history. Written after an answer, read before a request.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

DAY: Final = 86_400.0


class Given:
    """Conversations whose answer held a compaction item, and how many items they had then, for `keep` seconds. A later
    and longer request of one that reads like any other has come without it. Bounded; the oldest go first."""

    def __init__(self, *, keep: float = DAY, size: int = 4096) -> None:
        self._keep, self._size = keep, size
        self._known: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def add(self, conversation: bytes, length: int, *, now: float) -> None:
        """An answer to so many items held one."""
        self._known.pop(conversation, None)
        self._known[conversation] = length, now + self._keep
        while len(self._known) > self._size:
            self._known.popitem(last=False)

    def in_vain(self, conversation: bytes, length: int, *, now: float) -> bool:
        """Whether one was given to this conversation before it had so many items, all of which Tidegate can read."""
        known = self._known.get(conversation)
        if known is None:
            return False
        if now >= known[1]:
            self._known.pop(conversation, None)
            return False
        return length > known[0]
