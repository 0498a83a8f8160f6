"""How each API writes a conversation: the dialects by name."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.wire import chat
from tidegate.wire.conversation import Conversation, DialectName
from tidegate.wire.dialect import Requests

REQUESTS: Mapping[DialectName, Requests] = {"chat": chat}


def read(dialect: DialectName, body: bytes) -> Conversation:
    """The conversation in a body. Raises `UnreadableBody`."""
    return REQUESTS[dialect].read(body)
