"""What is known of an item, and of what stands beside the items, once they are read.

Made by `context.ledger`.
"""

from __future__ import annotations

import msgspec

from tidegate.wire.conversation import Facts


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One item, read."""

    facts: Facts
    tokens: int
    """Estimated size."""
    fingerprint: bytes
    units: int = 0
    """The same before it is rounded, where the estimator counts in parts of a token."""


class Top(msgspec.Struct, frozen=True, gc=False):
    """What stands beside and before the chained items, read: system prompt, leading items, tools, schema."""

    head: bytes
    """`Hasher.head`."""
    tokens: int
    """Estimated size of all of it."""
    marks: int = 0
    """Cache marks on all of it."""
    units: int = 0
    """What the last token of it holds, where the estimator counts in parts of a token: `tokens` is then without it."""
