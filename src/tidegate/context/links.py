"""The links of a chain as sequence and mapping, cut out of their joined bytes when asked for.

Knows bytes only. Made by `context.chain`, read by the stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, overload

LINK_BYTES: Final = 32


class Links(Sequence[bytes]):
    """The links of a chain, cut out of all of them when asked for."""

    __slots__ = ("_count", "_joined")

    def __init__(self, joined: bytes) -> None:
        self._joined = joined
        self._count = len(joined) // LINK_BYTES

    def __len__(self) -> int:
        """One more than the chain has items."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...

    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        """A link, or several."""
        if isinstance(index, slice):
            return tuple(self[k] for k in range(*index.indices(self._count)))
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError("the chain has no such link")
        return self._joined[index * LINK_BYTES : (index + 1) * LINK_BYTES]

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of the same links."""
        return tuple(self) == tuple(other) if isinstance(other, Links | tuple | list) else NotImplemented

    def __hash__(self) -> int:
        """Of the links."""
        return hash(self._joined)


class Prefixes(Mapping[int, bytes]):
    """Every length from 1 to n with its link."""

    __slots__ = ("_joined",)

    def __init__(self, joined: bytes) -> None:
        self._joined = joined

    def __getitem__(self, length: int) -> bytes:
        """The link of the first `length` items."""
        end = (length + 1) * LINK_BYTES
        if length < 1 or end > len(self._joined):
            raise KeyError(length)
        return self._joined[end - LINK_BYTES : end]

    def get(self, length: int, default: object = None) -> bytes | None:  # type: ignore[override]
        """The link of the first `length` items, None where the history has no such beginning."""
        end = (length + 1) * LINK_BYTES
        return self._joined[end - LINK_BYTES : end] if length >= 1 and end <= len(self._joined) else None

    def __contains__(self, length: object) -> bool:
        """Whether the history has as many items."""
        return isinstance(length, int) and 1 <= length <= len(self)

    def __iter__(self) -> Iterator[int]:
        """The lengths."""
        return iter(range(1, len(self) + 1))

    def __len__(self) -> int:
        """How many items the history has."""
        return len(self._joined) // LINK_BYTES - 1
