"""What endpoints have been seen to lack or to have, and which artifacts their own provider can't read any more. All
bounded.

Knows names and times it is told; no clock, no network. Written after an answer, read before a compaction and on
replay; a keeper saves it and takes up what other processes saw.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

DAY: Final = 86_400.0

ABSENT: Final = "the endpoint did not have it when last asked; it is asked again after a day"
IN_TROUBLE: Final = (
    "it failed a few minutes ago, slowly or for no fault of the request; it is tried again after a while"
)

What: TypeAlias = Literal["lacks", "troubled", "has"]
"""What was seen: the endpoint can't do it, it was in trouble with it, or it has done it though no file says so."""

PROVEN: Final = 30 * DAY
"""Seconds that what an endpoint has done counts."""

_LONGEST_NAME: Final = 1_024
"""Characters of an endpoint's and a model's name together, to be kept beyond this process."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing seen of a strategy at an endpoint, for a model there."""

    endpoint: str
    model: str
    strategy: str
    what: What
    at: float
    """Seconds since the epoch."""

    @property
    def nameable(self) -> bool:
        """Whether its names can be kept: not too long, and text that has an encoding (a client chose the model's)."""
        names = self.endpoint + self.model + self.strategy
        return len(names) <= _LONGEST_NAME and (names.isascii() or names == names.encode(errors="replace").decode())


_Key: TypeAlias = tuple[str, str, str, What]


class Capabilities:
    """Strategies that an endpoint does not have for a model, for `keep` seconds, and those that are in trouble there,
    for `rest` seconds; then they are tried again. And those that an endpoint has shown to have, for whatever model, for
    `proven` seconds. May be shared by threads."""

    def __init__(self, *, keep: float = DAY, rest: float = 300.0, proven: float = PROVEN, size: int = 4096) -> None:
        self._lasts: Mapping[What, float] = {"lacks": keep, "troubled": rest, "has": proven}
        self._size = size
        self._seen: OrderedDict[_Key, float] = OrderedDict()
        self._unsaved: set[_Key] = set()

    def lacks(self, endpoint: str, model: str, strategy: str, *, now: float) -> None:
        """The endpoint has said that it can't do this."""
        self._put((endpoint, model, strategy, "lacks"), now)

    def troubled(self, endpoint: str, model: str, strategy: str, *, now: float) -> None:
        """It gave no answer, or a server's failure: waiting for that with every compaction helps nobody."""
        self._put((endpoint, model, strategy, "troubled"), now)

    def has(self, endpoint: str, strategy: str, *, now: float) -> None:
        """The endpoint has given an artifact by this way, or one that is its own came back and was taken."""
        self._put((endpoint, "", strategy, "has"), now)

    def learned(self, endpoint: str, strategies: tuple[str, ...], *, now: float) -> tuple[str, ...]:
        """Those of the strategies that the endpoint has shown to have."""
        if not self._seen:
            return ()
        return tuple(name for name in strategies if self._holds((endpoint, "", name, "has"), now))

    def missing(self, endpoint: str, model: str, strategies: tuple[str, ...], *, now: float) -> Mapping[str, str]:
        """Those of the strategies that need not be tried, and why."""
        if not self._seen:
            return {}
        found = {name: IN_TROUBLE for name in strategies if self._holds((endpoint, model, name, "troubled"), now)}
        return found | {name: ABSENT for name in strategies if self._holds((endpoint, model, name, "lacks"), now)}

    def until(self, seen: Seen) -> float:
        """When that counts no more, seconds since the epoch."""
        return seen.at + self._lasts[seen.what]

    def changed(self) -> tuple[Seen, ...]:
        """What has changed since this was asked last, for a keeper that saves it."""
        taken: list[Seen] = []
        while self._unsaved:  # one by one: another thread may add meanwhile
            key = self._unsaved.pop()
            at = self._seen.get(key)
            if at is not None and (seen := Seen(*key, at)).nameable:
                taken.append(seen)
        return tuple(taken)

    def unsaved(self, entries: Iterable[Seen]) -> None:
        """These could not be saved: they count as changed again."""
        self._unsaved.update(_key(seen) for seen in entries)

    def take_in(self, entries: Iterable[Seen]) -> int:
        """Takes up what was saved, by this process or another, where it is newer than what is known; how much was."""
        taken = 0
        for seen in entries:
            key = _key(seen)
            known = self._seen.get(key)
            if seen.what in self._lasts and (known is None or seen.at > known):
                self._remember(key, seen.at)
                taken += 1
        return taken

    def __iter__(self) -> Iterator[Seen]:
        """What is known, what counts no more included; the oldest first."""
        return (Seen(*key, at) for key, at in tuple(self._seen.items()))

    def _put(self, key: _Key, now: float) -> None:
        self._remember(key, now)
        self._unsaved.add(key)

    def _remember(self, key: _Key, at: float) -> None:
        self._seen.pop(key, None)
        self._seen[key] = at
        while len(self._seen) > self._size:
            gone, _ = self._seen.popitem(last=False)
            self._unsaved.discard(gone)

    def _holds(self, key: _Key, now: float) -> bool:
        """A time that is as far ahead as it may be old came from a clock that was wrong."""
        at = self._seen.get(key)
        return at is not None and abs(now - at) < self._lasts[key[3]]


def _key(seen: Seen) -> _Key:
    return seen.endpoint, seen.model, seen.strategy, seen.what


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
