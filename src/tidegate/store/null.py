"""A store that remembers nothing, where none is wanted.

Knows no values. Called by drivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.engine.checkpoint import Checkpoint, Found, Report


@dataclass(frozen=True, slots=True)
class NullStore:
    """Remembers nothing."""

    def find(self, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]) -> Found:
        """Nothing."""
        return Found()

    def save(self, checkpoint: Checkpoint) -> None:
        """Forgets."""

    def report(self, tenant: bytes, report: Report) -> None:
        """Forgets."""

    def close(self) -> None:
        """Nothing to close."""
