"""How requests of this process ended, counted.

Knows names and numbers; no request. Told by the app, shown by the diagnostics.
"""

from __future__ import annotations

import time

from tidegate.wire.conversation import JsonObject, JsonValue


class Tally:
    """How requests of this process ended."""

    def __init__(self) -> None:
        self.began = time.time()
        self.ends: dict[tuple[str, str], int] = {}
        """Counts by action and reason."""

    def count(self, action: str, reason: str) -> None:
        """One request is over."""
        ends, ending = self.ends, (action, reason)
        ends[ending] = ends.get(ending, 0) + 1

    def told(self) -> JsonObject:
        """As JSON."""
        actions: dict[str, JsonValue] = {}
        reasons: dict[str, JsonValue] = {}
        for (action, reason), count in sorted(self.ends.items()):
            actions[action] = _more(actions.get(action), count)
            if reason:
                reasons[reason] = _more(reasons.get(reason), count)
        return {"total": sum(self.ends.values()), "actions": actions, "reasons": reasons}


def _more(known: JsonValue, count: int) -> int:
    return count + (known if isinstance(known, int) else 0)
