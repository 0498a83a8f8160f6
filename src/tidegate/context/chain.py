"""The names of a history's beginnings, one after the other.

Knows bytes, not how they were hashed. Made by `context.fingerprint`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, overload

import msgspec

from tidegate.wire.conversation import DialectName

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

    def __contains__(self, length: object) -> bool:
        """Whether the history has as many items."""
        return isinstance(length, int) and 1 <= length <= len(self)

    def __iter__(self) -> Iterator[int]:
        """The lengths."""
        return iter(range(1, len(self) + 1))

    def __len__(self) -> int:
        """How many items the history has."""
        return len(self._joined) // LINK_BYTES - 1


class Chain(msgspec.Struct, frozen=True, gc=False):
    """The names of every beginning of one history: `links[k]` is the hash of its first k items, 32 bytes
    each.

    `links[0]` depends on tenant and dialect only, so no two tenants and no two dialects share a link.
    """

    tenant: bytes
    dialect: DialectName
    joined: bytes
    """All links, one after the other."""

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Chain(dialect={self.dialect!r}, length={len(self)})"

    def __len__(self) -> int:
        """How many items the history has."""
        return len(self.joined) // LINK_BYTES - 1

    @property
    def links(self) -> Links:
        """The links, from the one of no items on."""
        return Links(self.joined)

    def link(self, length: int) -> bytes:
        """`links[length]` for a length that the history has."""
        return self.joined[length * LINK_BYTES : (length + 1) * LINK_BYTES]

    @property
    def bucket(self) -> bytes:
        """`links[1]`, under which a history's checkpoints are listed; empty for a history without items."""
        return self.joined[LINK_BYTES : 2 * LINK_BYTES]

    def prefixes(self) -> Mapping[int, bytes]:
        """Every length from 1 to n with its link."""
        return Prefixes(self.joined)

    def cut(self, length: int) -> Chain:
        """The chain of the first `length` items."""
        return Chain(self.tenant, self.dialect, self.joined[: (length + 1) * LINK_BYTES])
