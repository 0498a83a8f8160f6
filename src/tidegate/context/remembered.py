"""What is remembered of a body: where its items end, and keyed hashes of its beginnings.

Made and read by `context.recall`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from tidegate.context.note import Note
from tidegate.wire.conversation import Conversation


class Mark:
    """The end of one item: what comes before it has been read. Nothing of it changes."""

    __slots__ = ("count", "digest", "near", "offset", "sample")

    def __init__(self, count: int, offset: int, digest: bytes, near: int, sample: int) -> None:
        self.count = count
        """Items up to it, leading ones included."""
        self.offset = offset
        self.digest = digest
        """Keyed hash of the body up to `offset`: it alone decides."""
        self.near = near
        """A few bytes before `offset`."""
        self.sample = sample
        """Of the bytes from `near` to `offset`: unequal ones say no, at no cost."""


class Record:
    """A body that was read. Nothing of it changes."""

    __slots__ = (
        "ends", "keys", "marks", "note", "shift", "size", "spans", "starts", "tail", "tail_size", "told", "weight",
    )  # fmt: skip

    def __init__(
        self,
        keys: tuple[int, ...],
        size: int,
        told: Conversation,
        starts: array[int],
        ends: array[int],
        marks: tuple[Mark, ...],
        tail_size: int,
        tail: bytes,
        spans: Mapping[str, tuple[int, int]],
        shift: int,
        note: Note,
        weight: int,
    ) -> None:
        self.keys = keys
        self.size = size
        """Bytes of the body."""
        self.told = told
        """The conversation without its bytes."""
        self.starts, self.ends = starts, ends
        self.marks = marks
        """Ascending; the first is after the first chained item or later."""
        self.tail_size = tail_size
        """Bytes from the bracket that closes the items on."""
        self.tail = tail
        """Those bytes, or a keyed hash of them."""
        self.spans = spans
        """Top-level values, as they stood in the body whose tail was read last."""
        self.shift = shift
        """Bytes by which the tail has moved since."""
        self.note = note
        self.weight = weight
        """Bytes of memory it takes, roughly."""
