"""Watches an answer pass: has content begun, did an error come, what usage and ending were reported.

Never changes or holds a byte. Called by the drivers with each chunk of a 200 answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.wire.conversation import FinishReason, Usage

SignalKind: TypeAlias = Literal["lifecycle", "content", "error", "end", "ignored"]


@dataclass(frozen=True, slots=True)
class Signal:
    """What one event means. `lifecycle` shows the client nothing yet (`response.created`, `message_start`, ping, comment,
    a chat chunk with a role and no words); `content` does; `error` carries the error's raw JSON."""

    kind: SignalKind
    usage: Usage | None = None
    finish: FinishReason | None = None
    error: bytes = b""
