"""The names of a history's beginnings, one after the other.

Knows bytes, not how they were hashed. Made by `context.fingerprint`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.context.links import LINK_BYTES, Links, Prefixes
from tidegate.wire.conversation import DialectName


class Chain:
    """The names of every beginning of one history: `links[k]` is the hash of its first k items, 32 bytes
    each.

    `links[0]` depends on tenant and dialect only, so no two tenants and no two dialects share a link. Nothing of
    it changes.
    """

    __slots__ = ("bucket", "dialect", "joined", "tenant")

    def __init__(self, tenant: bytes, dialect: DialectName, joined: bytes, bucket: bytes = b"") -> None:
        self.tenant, self.dialect = tenant, dialect
        self.joined = joined
        """All links, one after the other."""
        self.bucket = bucket or joined[LINK_BYTES : 2 * LINK_BYTES]
        """`links[1]`, under which a history's checkpoints are listed; empty for a history without items. Given on
        where it is known: much is remembered under it, and then under one object."""

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Chain(dialect={self.dialect!r}, length={len(self)})"

    def __eq__(self, other: object) -> bool:
        """Equal where all links are."""
        if not isinstance(other, Chain):
            return NotImplemented
        return (self.tenant, self.dialect, self.joined) == (other.tenant, other.dialect, other.joined)

    def __hash__(self) -> int:
        """Of the links."""
        return hash(self.joined)

    def __len__(self) -> int:
        """How many items the history has."""
        return len(self.joined) // LINK_BYTES - 1

    @property
    def links(self) -> Links:
        """The links, from the one of no items on."""
        return Links(self.joined)

    def link(self, length: int) -> bytes:
        """`links[length]` for a length that the history has."""
        return self.bucket if length == 1 else self.joined[length * LINK_BYTES : (length + 1) * LINK_BYTES]

    def prefixes(self) -> Mapping[int, bytes]:
        """Every length from 1 to n with its link."""
        return Prefixes(self.joined)

    def cut(self, length: int) -> Chain:
        """The chain of the first `length` items."""
        return Chain(
            self.tenant, self.dialect, self.joined[: (length + 1) * LINK_BYTES], self.bucket if length else b""
        )
