"""What a conversation carries along of what was read of its items.

Given by `context.recall`, which finds it again.
"""

from __future__ import annotations

from tidegate.context.entries import Top
from tidegate.context.fingerprint import Hasher
from tidegate.context.past import Past


class Note:
    """What was read of a conversation's items, or what to begin with. Given by `Recall`, used by `history_of`."""

    __slots__ = ("hasher", "kept", "past", "top")

    def __init__(self, hasher: Hasher, past: Past | None = None, kept: int = 0, top: Top | None = None) -> None:
        """The first `kept` items of `past` are the conversation's first chained items too."""
        self.hasher, self.past, self.kept, self.top = hasher, past, kept, top

    def following(self, kept: int, *, same_top: bool) -> Note:
        """The note of a body with the first `kept` chained items of this one's, and with the same top or another."""
        return Note(self.hasher, self.past, min(kept, self.kept), self.top if same_top else None)
