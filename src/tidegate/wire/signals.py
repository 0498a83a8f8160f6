"""One event of an answer, and what it means in one shape for all three dialects.

Knows no API's field names. Made by `sse` and the answer modules, read by `watch`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tidegate.wire.conversation import FinishReason, JsonObject, Usage

SignalKind: TypeAlias = Literal["lifecycle", "content", "error", "end", "ignored"]


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event: its name (empty for unnamed) and its data lines joined by newlines; or only a comment."""

    name: str
    data: bytes
    comment: bool = False
    unterminated: bool = False
    """The stream ended before the blank line: all there is at some providers, a cut piece at others."""


class Signal(msgspec.Struct, frozen=True):
    """What one event means. `lifecycle` shows the client nothing yet (`response.created`, `message_start`,
    ping, comment, a chat chunk with a role and no words); `content` does; `error` carries the error's raw
    JSON; `end` is terminal."""

    kind: SignalKind
    usage: Usage | None = None
    finish: FinishReason | None = None
    error: bytes = b""
    """The whole data of the event that failed, as the provider wrote it."""
    counts: JsonObject | None = None
    """The event's usage object as it is: later ones replace earlier ones field by field (Anthropic's
    `message_delta` repeats only what changed), then `usage_of` reads the sum."""
    calls: bool = False
    """The event holds a whole tool call, where the terminal event need not tell (Responses)."""
    compacts: bool = False
    """The event holds a compaction item."""
