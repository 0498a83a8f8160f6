"""The end of a compaction whose calls took too long together: what it was billed for so far is still told.

Knows generators; no clock. Called by both drivers.
"""

from __future__ import annotations

from contextlib import suppress

from tidegate.compactors.strategy import CompactionFailed
from tidegate.engine.effects import OutOfTime, Work


def too_late(steps: Work) -> CompactionFailed:
    """Ends the work; what to raise in its place."""
    late = OutOfTime("summary_too_slow")
    try:
        with suppress(StopIteration, ValueError):  # it has ended, or thinks just now in a thread of its own
            steps.throw(late)
    except CompactionFailed as failure:
        return failure
    return late
