"""What is remembered of a body: where its items end, and keyed hashes of its beginnings.

Made and read by `context.recall`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import msgspec

from tidegate.context.note import Note
from tidegate.wire.conversation import Conversation


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The end of one item: what comes before it has been read."""

    count: int
    """Items up to it, leading ones included."""
    offset: int
    digest: bytes
    """Keyed hash of the body up to `offset`: it alone decides."""
    near: int
    """A few bytes before `offset`."""
    sample: int
    """Of the bytes from `near` to `offset`: unequal ones say no, at no cost."""


class Record(msgspec.Struct, frozen=True, eq=False):
    """A body that was read."""

    keys: tuple[int, ...]
    size: int
    """Bytes of the body."""
    told: Conversation
    """The conversation without its bytes."""
    starts: array[int]
    ends: array[int]
    marks: tuple[Mark, ...]
    """Ascending; the first is after the first chained item or later."""
    tail_size: int
    """Bytes from the bracket that closes the items on."""
    tail: bytes
    """Those bytes, or a keyed hash of them."""
    spans: Mapping[str, tuple[int, int]]
    """Top-level values, as they stood in the body whose tail was read last."""
    shift: int
    """Bytes by which the tail has moved since."""
    note: Note
    weight: int
    """Bytes of memory it takes, roughly."""
