"""Which beginnings of a conversation were sent when, and whether the provider said that it had them cached: what a
provider is likely to have in its prompt cache.

Knows lengths and times of views, by keyed hashes; keeps nothing across a restart. Written after each answer, read
before a compaction.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Final, NamedTuple, TypeAlias

CAPACITY: Final = 4_096
"""Conversations that are remembered."""

SENDINGS: Final = 128
"""Of each, the newest: 12 bytes apiece."""

Key: TypeAlias = tuple[bytes, bytes, str, str]
"""Bucket, chain of the checkpoint in the view, endpoint, model."""


class Sending(NamedTuple):
    """The first `length` chained items of a view, answered `at` (seconds since the epoch)."""

    length: int
    at: float


_UNTOLD, _NOT_CACHED, _CACHED = -1.0, 0.0, 1.0
"""What the newest answer said of cached tokens: nothing before an answer that could. It leads what is kept of a
conversation; length and time of each sending follow."""


class Warmth:
    """A bounded memory of sendings; the conversations that were longest silent go first. May be shared by threads."""

    __slots__ = ("_kept", "_size")

    def __init__(self, *, size: int = CAPACITY) -> None:
        """Remembers so many conversations at most."""
        self._size = size
        self._kept: OrderedDict[Key, array[float]] = OrderedDict()

    def __len__(self) -> int:
        """How many conversations are remembered."""
        return len(self._kept)

    def answered(self, key: Key, length: int, cached_tokens: int | None, *, now: float) -> None:
        """An answer has come to the first `length` items; its usage named so many cached tokens, None without usage."""
        kept = self._kept
        known = kept.get(key)
        if known is None:
            # What was sent under another checkpoint began otherwise: there is nothing yet that could be cached.
            kept[key] = array("d", (_UNTOLD, length, now))
            while len(kept) > self._size:
                kept.popitem(last=False)
            return
        known[0] = _UNTOLD if cached_tokens is None else _CACHED if cached_tokens > 0 else _NOT_CACHED
        known.append(length)
        known.append(now)
        if len(known) > 4 * SENDINGS:
            del known[1 : -2 * SENDINGS]
        try:
            kept.move_to_end(key)
        except KeyError:  # forgotten by another thread just now
            pass

    def sendings(self, key: Key) -> tuple[Sending, ...]:
        """What was sent of a conversation, oldest first; nothing where its provider has been seen not to cache."""
        known = self._kept.get(key)
        if known is None or known[0] == _NOT_CACHED:
            return ()
        told = known.tolist()
        return tuple(Sending(int(length), at) for length, at in zip(told[1::2], told[2::2], strict=False))
