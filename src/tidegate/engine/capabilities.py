"""What endpoints have been seen to lack, and which artifacts their own provider can't read any more. Both bounded.

Knows names and times it is told; no clock, no network. Written after a compaction or a refusal, read before a
compaction and on replay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Final

DAY: Final = 86_400.0

ABSENT: Final = "the endpoint did not have it when last asked; it is asked again after a day"
IN_TROUBLE: Final = (
    "it failed a few minutes ago, slowly or for no fault of the request; it is tried again after a while"
)


class Capabilities:
    """Strategies that an endpoint does not have for a model, for `keep` seconds, and those that are in trouble there,
    for `rest` seconds; then they are tried again."""

    def __init__(self, *, keep: float = DAY, rest: float = 300.0, size: int = 4096) -> None:
        self._keep, self._rest = keep, rest
        self._missing: _Until = _Until(size)
        self._troubled: _Until = _Until(size)

    def lacks(self, endpoint: str, model: str, strategy: str, *, now: float) -> None:
        """The endpoint has said that it can't do this."""
        self._missing.put((endpoint, model, strategy), now + self._keep)

    def troubled(self, endpoint: str, model: str, strategy: str, *, now: float) -> None:
        """It gave no answer, or a server's failure: waiting for that with every compaction helps nobody."""
        self._troubled.put((endpoint, model, strategy), now + self._rest)

    def missing(self, endpoint: str, model: str, strategies: tuple[str, ...], *, now: float) -> Mapping[str, str]:
        """Those of the strategies that need not be tried, and why."""
        if not self._missing and not self._troubled:
            return {}
        found = {name: IN_TROUBLE for name in strategies if self._troubled.holds((endpoint, model, name), now)}
        return found | {name: ABSENT for name in strategies if self._missing.holds((endpoint, model, name), now)}


class Unreadable:
    """Opaque artifacts that were refused by whoever made them: they count as absent."""

    def __init__(self, *, keep: float = 30 * DAY, size: int = 4096) -> None:
        self._keep = keep
        self._known: _Until = _Until(size)

    def add(self, tenant: bytes, chain: bytes, binding: str, *, now: float) -> None:
        """That artifact of this tenant for this history was refused."""
        self._known.put((tenant, chain, binding), now + self._keep)

    def holds(self, tenant: bytes, chain: bytes, binding: str, *, now: float) -> bool:
        """Whether it was."""
        return bool(self._known) and self._known.holds((tenant, chain, binding), now)


class _Until:
    """Keys until a time. The oldest go first; may be shared by threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._until: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def put(self, key: Hashable, until: float) -> None:
        self._until.pop(key, None)
        self._until[key] = until
        while len(self._until) > self._size:
            self._until.popitem(last=False)

    def holds(self, key: Hashable, now: float) -> bool:
        until = self._until.get(key)
        if until is not None and now >= until:
            self._until.pop(key, None)
            return False
        return until is not None
