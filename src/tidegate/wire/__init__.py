"""How each API writes a conversation and an answer: the dialects' modules by name."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.wire import (
    chat,
    chat_answers,
    messages,
    messages_answers,
    responses,
    responses_answers,
)
from tidegate.wire.conversation import Conversation, DialectName
from tidegate.wire.dialect import Answers, Requests

REQUESTS: Mapping[DialectName, Requests] = {"chat": chat, "responses": responses, "messages": messages}
ANSWERS: Mapping[DialectName, Answers] = {
    "chat": chat_answers,
    "responses": responses_answers,
    "messages": messages_answers,
}


def read(dialect: DialectName, body: bytes) -> Conversation:
    """The conversation in a body. Raises `UnreadableBody`."""
    return REQUESTS[dialect].read(body)
