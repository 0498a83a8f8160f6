"""Values that are made for every request: quick to build, never changed, and printed without what must not be shown.

Knows nothing of their meaning. Called by every room that has such values.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Discreet(msgspec.Struct, frozen=True):
    """A frozen value whose printed form leaves out the fields named in `hidden`: words, keys, hashes."""

    hidden: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        """The fields that may be shown."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self.hidden)
        return f"{type(self).__name__}({', '.join(shown)})"
