"""What is known of each conversation's compactions: its size when it was last looked at, what was decided and why, what
was completed, what failed.

Numbers and names, never words; no clock. Told by the exchange, shown by the gateway. Bounded, in memory only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from tidegate.context.budget import Budget
from tidegate.context.measured import Measured

if TYPE_CHECKING:
    from tidegate.engine.request import Request, Target

Key: TypeAlias = tuple[bytes, str]
"""What a conversation is known by: the first link of its chain, which tells tenants and APIs apart, and its model."""

REQUESTED: Final = "requested"
IN_PROGRESS: Final = "in_progress"

LONGEST_MODEL: Final = 1_024
"""Characters of a model's name above which nothing is noted: it is the client's."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The last compaction that came to its end. Calibrated tokens; `at` is when its request arrived, seconds since the
    epoch. One that left the history as it was is `unchanged`, with the same size twice."""

    at: float
    why: str
    strategy: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The last compaction that came to nothing."""

    at: float
    why: str
    reason: str


class Runs:
    """What became of one conversation's compactions."""

    __slots__ = ("completed", "failed", "failures", "last", "running", "unchanged")

    def __init__(self) -> None:
        self.running = 0
        """Those that requests wait for just now."""
        self.completed = 0
        """All that came to an end, those that changed nothing included."""
        self.unchanged = 0
        self.failures = 0
        self.last: Completed | None = None
        self.failed: Failed | None = None


_NONE: Final = Runs()
"""Of all conversations that had none yet, most of them: never written to."""


class Record:
    """What is known of one conversation."""

    __slots__ = ("at", "checks", "covered", "items", "limits", "reason", "runs", "size", "target", "tenant")

    def __init__(self, tenant: bytes, target: Target) -> None:
        self.tenant, self.target = tenant, target
        self.at = 0.0
        """When the request of the last check arrived."""
        self.reason = ""
        """What the last check came to."""
        self.checks = 0
        self.size: Measured | None = None
        self.limits: Budget | None = None
        self.items = 0
        """Of the history, as the client sent it."""
        self.covered = 0
        """How many of them a checkpoint stood for."""
        self.runs = _NONE

    def own(self) -> Runs:
        """What became of its compactions, to be written to: made when there is one."""
        if self.runs is _NONE:
            self.runs = Runs()
        return self.runs


class Records:
    """Records of conversations; the one that was checked longest ago is forgotten first.

    A record takes about 500 bytes, and shares with others what is the same for all of a model.
    """

    def __init__(self, *, size: int = 4096) -> None:
        self._size = size
        self._known: OrderedDict[Key, Record] = OrderedDict()
        self.completions = self.unchanged = self.failures = 0
        """Of all conversations, the forgotten ones included."""

    def __len__(self) -> int:
        """How many conversations are known."""
        return len(self._known)

    def __iter__(self) -> Iterator[tuple[Key, Record]]:
        """All of them, the one that was checked last first."""
        return iter(list(reversed(self._known.items())))

    def checked(
        self, key: Key, request: Request, reason: str, size: Measured, limits: Budget, items: int, covered: int
    ) -> None:
        """A request was measured, and nothing is done for that reason; empty where a compaction is asked for."""
        record = self._known.get(key)
        if record is None:
            if len(key[1]) > LONGEST_MODEL:
                return
            record = self._known[key] = Record(request.tenant, request.target)
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
            record.tenant, record.target = request.tenant, request.target
        record.at, record.size, record.limits = request.now, size, limits
        record.reason = reason or (IN_PROGRESS if record.runs.running else REQUESTED)
        record.items, record.covered = items, covered
        record.checks += 1

    def refused(self, key: Key, reason: str) -> None:
        """What the last check asked for was not begun."""
        if (record := self._known.get(key)) is not None:
            record.reason = reason

    def begins(self, key: Key) -> Record | None:
        """A request waits for a compaction. It must be told of its end: `ends`."""
        record = self._known.get(key)
        if record is not None:
            record.own().running += 1
        return record

    def ends(self, record: Record | None) -> None:
        """It waits no longer, however that ended."""
        if record is not None:
            record.own().running -= 1

    def completed(self, key: Key, made: Completed, *, unchanged: bool = False) -> None:
        """A compaction came to its end."""
        self.completions += 1
        self.unchanged += unchanged
        if (record := self._known.get(key)) is not None:
            own = record.own()
            own.completed += 1
            own.unchanged += unchanged
            own.last = made

    def failed(self, key: Key, failure: Failed) -> None:
        """A compaction came to nothing: what was completed before stays what it was."""
        self.failures += 1
        if (record := self._known.get(key)) is not None:
            own = record.own()
            own.failures += 1
            own.failed = failure
