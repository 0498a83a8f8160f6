"""How a checkpoint is written down, and which of those that match are worth reading.

Knows values only: no file, no clock. Called by the stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from tidegate.engine.checkpoint import Artifact, ArtifactKind

REPORTS_PER_BUCKET: Final = 16
"""Newest reports kept under one (tenant, bucket)."""
LONGEST_OF_A_KIND: Final = 2
"""Matching checkpoints given back with the same binding and head: the longest, and a spare."""


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    """An artifact as it is written: a list, at whose end more may come."""

    kind: ArtifactKind
    text: bytes
    items: tuple[bytes, ...]
    retained: tuple[int, ...]
    binding: str
    sealed_tokens: int = 0
    elided: tuple[tuple[int, int], ...] = ()
    base: int = 0


_unpacked: Final = msgspec.msgpack.Decoder(_Packed)

Row = TypeVar("Row")
Read = TypeVar("Read")


def pack(artifact: Artifact) -> bytes:
    """The artifact as bytes. Half a surrogate pair, which a cut text may end with, survives."""
    text = artifact.text.encode("utf-8", "surrogatepass")
    packed = _Packed(
        artifact.kind,
        text,
        artifact.items,
        artifact.retained,
        artifact.binding,
        artifact.sealed_tokens,
        artifact.elided,
        artifact.base,
    )
    return msgspec.msgpack.encode(packed)


def unpack(raw: bytes) -> Artifact:
    """What `pack` wrote. Raises `ValueError` for anything else."""
    packed = _unpacked.decode(raw)
    text = packed.text.decode("utf-8", "surrogatepass")
    return Artifact(
        packed.kind,
        text,
        packed.items,
        packed.retained,
        packed.binding,
        packed.sealed_tokens,
        packed.elided,
        packed.base,
    )


def place_of(row: Sequence[object]) -> bytes:
    """What a sealed artifact is bound to: all that its row says in clear. No row can borrow another's.

    `row` holds the columns before `created_at`. Raises `ValueError` for what is no row.
    """
    try:
        return msgspec.msgpack.encode(tuple(row))  # types and lengths are in it: no two rows are alike
    except (TypeError, OverflowError) as exc:
        raise ValueError("not a row") from exc


def longest_of_each_kind(
    rows: Iterable[Row],
    kind_of: Callable[[Row], Hashable],
    read: Callable[[Row], Read | None],
) -> Iterator[tuple[Row, Read, bool]]:
    """Reads rows that come longest first, `LONGEST_OF_A_KIND` of a kind; what `read` cannot is absent.

    Yields the row, what was read, and whether it is the first of its kind: the one that will be used.
    """
    taken: Counter[Hashable] = Counter()
    for row in rows:
        kind = kind_of(row)
        if taken[kind] >= LONGEST_OF_A_KIND:
            continue
        result = read(row)
        if result is None:
            continue
        taken[kind] += 1
        yield row, result, taken[kind] == 1
