"""Who wants to know when something is compacted: listeners of this process, called around the slow part.

Knows notices of an exchange; decides nothing. Public, and called by the transports and the `Compactor`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeVar

from tidegate.compactors.strategy import Summary
from tidegate.engine.effects import Made, Notify
from tidegate.wire.conversation import JsonValue

log = logging.getLogger("tidegate")

Kind = TypeVar("Kind")

Outcome: TypeAlias = Literal["compacted", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Compacting:
    """A compaction begins. Sizes in calibrated tokens."""

    request_id: str
    provider: str
    model: str
    why: str
    """`threshold`, `overflow`, `requested`, or `prepared` for one that is made between turns."""
    tokens: int
    """Of the request before."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction has ended, one way or another; each that began ends once."""

    request_id: str
    provider: str
    model: str
    why: str
    outcome: Outcome
    reason: str = ""
    """Why it failed: a short name."""
    strategy: str = ""
    dropped_count: int = 0
    """Items that the artifact stands for."""
    tokens_before: int = 0
    tokens_after: int = 0
    """0 for what was prepared between turns: the request that it is used for is not there yet."""
    summary: str = field(default="", repr=False)
    """Its text; empty for what only the provider can read."""
    calls: int = 0


Begins: TypeAlias = Callable[[Compacting], object]
Ends: TypeAlias = Callable[[Compacted], object]

_begins: Final[list[Begins]] = []
_ends: Final[list[Ends]] = []


def on_compacting(listener: Begins) -> Callable[[], None]:
    """Calls `listener` when a compaction begins in this process, in the thread or task that waits for it. Returns what
    takes it away again. What it raises is logged and changes nothing."""
    return _added(_begins, listener)


def on_compacted(listener: Ends) -> Callable[[], None]:
    """The same for when one has ended, failed or been cancelled."""
    return _added(_ends, listener)


def _added(listeners: list[Callable[[Kind], object]], listener: Callable[[Kind], object]) -> Callable[[], None]:
    listeners.append(listener)

    def remove() -> None:
        if listener in listeners:
            listeners.remove(listener)

    return remove


class Announcer:
    """Turns the notices of one exchange into a beginning and an end for each compaction: around its slow part, and only
    where there is one. What was prepared before is there at once."""

    __slots__ = (
        "_ahead",
        "_ahead_items",
        "_ahead_made",
        "_items",
        "_made",
        "_now",
        "_reason",
        "_slow",
        "model",
        "provider",
        "request_id",
    )

    def __init__(self, request_id: str, provider: str, model: str) -> None:
        self.request_id, self.provider, self.model = request_id, provider, model
        self._now: Compacting | None = None
        self._ahead: Compacting | None = None
        """One that is prepared in the background."""
        self._ahead_items = 0
        self._ahead_made: Made | None = None
        self._slow = False
        self._items = 0
        self._made: Made | None = None
        self._reason = ""

    def hears(self, notice: Notify) -> None:
        """One notice of the exchange."""
        detail = notice.detail
        match notice.event:
            case "compacting":
                self.over()
                self._now = self._begun(str(detail.get("why")), detail)
                self._items, self._reason, self._made = _number(detail.get("items")), "", None
            case "compaction_failed":
                self._reason = str(detail.get("reason", ""))
            case "compacted":
                self._end("compacted", _of(detail, self._items))
            case "preparing":
                self._ahead, self._ahead_items = self._begun("prepared", detail), _number(detail.get("items"))
                _tell(_begins, self._ahead)
            case "prepared" | "prepare_failed":
                began, self._ahead = self._ahead, None
                if began is not None:
                    made = notice.event == "prepared"
                    more = _of(detail, self._ahead_items if made else 0)
                    more |= {"tokens_before": began.tokens, "summary": _text(self._ahead_made)} if made else {}
                    _tell(_ends, self._ended(began, "compacted" if made else "failed", more))

    def slow(self) -> None:
        """The slow part of what is being compacted begins."""
        if self._now is not None and not self._slow:
            self._slow = True
            _tell(_begins, self._now)

    def made(self, made: Made) -> None:
        """What the slow part gave: only listeners of this process are shown its text."""
        self._made = made

    def prepared(self, made: Made) -> None:
        """The same of what is prepared in the background."""
        self._ahead_made = made

    def over(self, *, cancelled: bool = False) -> None:
        """The exchange has gone on without an end of what began: it failed, or nobody waits for it any more."""
        self._end("cancelled" if cancelled else "failed", {"reason": self._reason})

    def _begun(self, why: str, detail: Mapping[str, JsonValue]) -> Compacting:
        return Compacting(self.request_id, self.provider, self.model, why, _number(detail.get("tokens")))

    def _end(self, outcome: Outcome, more: Mapping[str, object]) -> None:
        began, slow, self._now, self._slow = self._now, self._slow, None, False
        if began is None or not slow:
            return
        text = _text(self._made) if outcome == "compacted" else ""
        _tell(_ends, self._ended(began, outcome, {**more, "summary": text}))

    def _ended(self, began: Compacting, outcome: Outcome, more: Mapping[str, object]) -> Compacted:
        return Compacted(began.request_id, began.provider, began.model, began.why, outcome, **more)  # type: ignore[arg-type]


def _of(detail: Mapping[str, JsonValue], items: int) -> dict[str, object]:
    return {
        "reason": str(detail.get("reason", "")),
        "strategy": str(detail.get("strategy", "")),
        "dropped_count": items,
        "tokens_before": _number(detail.get("before")),
        "tokens_after": _number(detail.get("after")),
        "calls": _number(detail.get("calls")),
    }


def _text(made: Made | None) -> str:
    return made.result.text if made is not None and isinstance(made.result, Summary) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _tell(listeners: list[Callable[[Kind], object]], event: Kind) -> None:
    for listener in tuple(listeners):
        try:
            listener(event)
        except Exception as error:
            # The type alone: a message may quote what it was told.
            log.warning("a listener for compactions failed: %s", type(error).__name__)
