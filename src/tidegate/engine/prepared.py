"""Which conversation has a compaction under way for a later turn: one each at most, and none where they went to waste.

Knows keys, places and times it is told; no clock, no history and no summary. Called by `ahead`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidegate.context.cut import Cut
from tidegate.engine.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Prepared:
    """A compaction planned ahead. Sizes in estimated tokens, `window` in real ones."""

    cut: Cut
    room: int
    window: int | None
    link: bytes
    """Chain of the items before the cut: a history that has another there went elsewhere."""
    onto: bytes
    """Chain of the checkpoint that it carries forward, empty for none."""
    place: str
    """Endpoint and credential."""
    strategies: tuple[str, ...] = ("summary",)
    """To be tried in turn."""
    own: Cut | None = None
    """For the provider's own compaction, where one is tried."""
    own_link: bytes = b""

    @property
    def cuts(self) -> tuple[tuple[Cut, bytes], ...]:
        """Each of the cuts, with its chain."""
        one = (self.cut, self.link)
        return (one,) if self.own is None or self.own == self.cut else (one, (self.own, self.own_link))


@dataclass(frozen=True, slots=True)
class _Known:
    prepared: Prepared | None = None
    until: float = 0.0
    """When it is too old to be used."""
    wasted: int = 0
    """In a row."""
    rest: float = 0.0


class Preparations:
    """What is prepared, for `keep` seconds; after `most` in a row that nobody used, none for `rest` seconds. Bounded.

    Holds a few numbers a conversation: the summary itself is with the driver, which finds it by the compaction's key.
    """

    def __init__(self, *, keep: float = 1800.0, most: int = 2, rest: float = 3600.0, size: int = 4096) -> None:
        self._keep, self._most, self._rest, self._size = keep, most, rest, size
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    def get(self, key: bytes, *, now: float) -> Prepared | None:
        """What is prepared for a conversation."""
        known = self._known.get(key)
        if known is None or known.prepared is None:
            return None
        if now >= known.until:
            self.wasted(key, now=now)
            return None
        return known.prepared

    def rests(self, key: bytes, *, now: float) -> bool:
        """Whether nothing is to be prepared for it, after what went to waste."""
        known = self._known.get(key)
        return known is not None and now < known.rest

    def begin(self, key: bytes, prepared: Prepared, *, now: float) -> None:
        """This is being prepared; the newest counts."""
        known = self._known.get(key, _Known())
        self._keep_known(key, replace(known, prepared=prepared, until=now + self._keep))

    def drop(self, key: bytes) -> bool:
        """It came to nothing and cost nothing. Whether there was one."""
        known = self._known.get(key)
        if known is None or known.prepared is None:
            return False
        self._keep_known(key, replace(known, prepared=None))
        return True

    def used(self, key: bytes) -> None:
        """It was of use."""
        self._known.pop(key, None)

    def wasted(self, key: bytes, *, now: float) -> None:
        """It was paid for and will not be used."""
        known = self._known.get(key)
        if known is None or known.prepared is None:
            return
        count = known.wasted + 1
        if count < self._most:
            self._keep_known(key, _Known(wasted=count))
        else:
            self._keep_known(key, _Known(rest=now + self._rest))

    def _keep_known(self, key: bytes, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > self._size:
            self._known.popitem(last=False)


def nowhere(checkpoint: Checkpoint) -> None:
    """Keeps nothing."""


class Portable:
    """Where such texts are kept, and for which checkpoints one was begun: once each, as long as it is remembered."""

    __slots__ = ("_begun", "_size", "save")

    def __init__(self, save: Callable[[Checkpoint], None] = nowhere, *, size: int = 4096) -> None:
        self.save = save
        """Raises `StoreError`."""
        self._begun: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        self._size = size

    def begun(self, checkpoint: Checkpoint) -> bool:
        """Whether one was begun; from now on it was."""
        key = checkpoint.tenant, checkpoint.chain
        if key in self._begun:
            return True
        self._begun[key] = None
        if len(self._begun) > self._size:
            self._begun.popitem(last=False)
        return False

    def not_begun(self, checkpoint: Checkpoint) -> None:
        """As many are made already as may be: another turn may begin it."""
        self._begun.pop((checkpoint.tenant, checkpoint.chain), None)
