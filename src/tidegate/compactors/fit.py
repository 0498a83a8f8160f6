"""Makes the items of a compaction call fit the window: no provider compacts what is over it already.

Knows where each API keeps a tool's output, and estimates sizes; decides no cut and makes no call. Called by the engine
before a provider's own compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.compactors.outputs import edited, object_of
from tidegate.context.estimate import item_tokens
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName

LEAST: Final = 200
"""Estimated tokens of a tool's output below which it stays as it is."""


def fitted(dialect: DialectName, items: Sequence[bytes], room: int) -> tuple[bytes, ...] | None:
    """The items within `room` estimated tokens: the oldest large tool outputs give way to a line that says so, as few
    as need be. None where that is not enough.

    Only the output itself is replaced: its call, its ids, and everything else keep their bytes. What the user said,
    system items, thinking, and what a provider sealed are never touched.
    """
    kept = list(items)
    sizes = [_size(dialect, raw) for raw in items]
    over = sum(sizes) - room
    for n, raw in enumerate(items):
        if over <= 0:
            break
        smaller = _stubbed(dialect, raw) if sizes[n] >= LEAST else None
        if smaller is not None and (size := _size(dialect, smaller)) < sizes[n]:
            kept[n] = smaller
            over -= sizes[n] - size
    return tuple(kept) if over <= 0 else None


def stub(tokens: int) -> str:
    """What stands in the place of an output of so many tokens."""
    return f"[Tool output of about {tokens} tokens left out: it did not fit.]"


def _stubbed(dialect: DialectName, raw: bytes) -> bytes | None:
    """The item with its large outputs replaced, None where it has none that can be."""
    return edited(dialect, raw, lambda call, tokens, content: stub(tokens) if tokens >= LEAST else None)


def _size(dialect: DialectName, raw: bytes) -> int:
    value = object_of(raw)
    return item_tokens(dialect, REQUESTS[dialect].parts(value)) if value is not None else len(raw) // 4
