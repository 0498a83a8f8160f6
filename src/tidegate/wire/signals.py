"""One event of an answer, and what it means in one shape for all three dialects.

Knows no API's field names. Made by `sse` and the answer modules, read by `watch`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from tidegate.wire.conversation import FinishReason, JsonObject, Usage

SignalKind: TypeAlias = Literal["lifecycle", "content", "error", "end", "ignored"]


class Event:
    """One event: its name (empty for unnamed) and its data lines joined by newlines; or only a comment. Nothing of it
    changes."""

    __slots__ = ("comment", "data", "name", "unterminated")

    def __init__(self, name: str, data: bytes, comment: bool = False, unterminated: bool = False) -> None:
        self.name, self.data, self.comment = name, data, comment
        self.unterminated = unterminated
        """The stream ended before the blank line: all there is at some providers, a cut piece at others."""

    def __eq__(self, other: object) -> bool:
        """Equal where all four parts are."""
        if not isinstance(other, Event):
            return NotImplemented
        same = self.name == other.name and self.data == other.data
        return same and self.comment == other.comment and self.unterminated == other.unterminated

    def __hash__(self) -> int:
        """Of name and data."""
        return hash((self.name, self.data))

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        return f"Event({self.name!r}, {len(self.data)} bytes, comment={self.comment})"


class Signal:
    """What one event means. `lifecycle` shows the client nothing yet (`response.created`, `message_start`,
    ping, comment, a chat chunk with a role and no words); `content` does; `error` carries the error's raw
    JSON; `end` is terminal. Nothing of it changes."""

    __slots__ = ("calls", "compacts", "counts", "error", "finish", "kind", "usage")

    def __init__(
        self,
        kind: SignalKind,
        usage: Usage | None = None,
        finish: FinishReason | None = None,
        error: bytes = b"",
        counts: JsonObject | None = None,
        calls: bool = False,
        compacts: bool = False,
    ) -> None:
        self.kind: SignalKind = kind
        self.usage = usage
        self.finish: FinishReason | None = finish
        self.error = error
        """The whole data of the event that failed, as the provider wrote it."""
        self.counts = counts
        """The event's usage object as it is: later ones replace earlier ones field by field (Anthropic's
        `message_delta` repeats only what changed), then `usage_of` reads the sum."""
        self.calls = calls
        """The event holds a whole tool call, where the terminal event need not tell (Responses)."""
        self.compacts = compacts
        """The event holds a compaction item."""

    def __eq__(self, other: object) -> bool:
        """Equal where all parts are."""
        return isinstance(other, Signal) and self._parts() == other._parts()

    def __hash__(self) -> int:
        """Of kind and error."""
        return hash((self.kind, self.error))

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        told = f"counts={self.counts!r}, calls={self.calls}, compacts={self.compacts}"
        return f"Signal({self.kind!r}, usage={self.usage!r}, finish={self.finish!r}, {told})"

    def _parts(self) -> tuple[object, ...]:
        return self.kind, self.usage, self.finish, self.error, self.counts, self.calls, self.compacts
