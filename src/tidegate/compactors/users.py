"""The user's messages that are kept beside a sealed item which stands for everything else.

Knows Codex' rule (codex-rs, `compact_remote_v2`), which is OpenAI's own; makes no call. Called by strategy `openai`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tidegate.wire import responses
from tidegate.wire.content import as_list
from tidegate.wire.conversation import JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads
from tidegate.wire.untyped import text_at

TRUNCATED: Final = re.compile(r"…\d+ tokens truncated…")
"""What stands in the middle of a message that was cut, in OpenAI's answers too."""

BYTES_PER_TOKEN: Final = 4
"""By which the rule counts."""


def newest_users(items: Sequence[bytes], limit: int) -> tuple[bytes, ...]:
    """Raw JSON of the newest user messages within `limit` tokens, in order; the oldest that does not fit is cut in its
    middle, those before it are left out. Only words count: an image is free, and a message of images alone is one
    token."""
    kept: list[bytes] = []
    left = limit
    for raw in reversed(items):
        value = loads(raw)
        if not isinstance(value, dict) or not _is_user(value):
            continue
        text = words_of(value)
        size = max(1, tokens(text))
        if size > left:
            if left > 0:
                kept.append(_cut(value, text, left))
            break
        kept.append(raw)
        left -= size
    return tuple(reversed(kept))


def words_of(message: JsonObject) -> str:
    """A message's words, one line between its parts."""
    texts = [part if isinstance(part, str) else _text_of(part) for part in as_list(message.get("content"))]
    return "\n".join(text for text in texts if text)


def tokens(text: str) -> int:
    """UTF-8 bytes by four, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _is_user(value: JsonObject) -> bool:
    facts = responses.facts(value)
    return facts.kind == "message" and facts.role == "user"


def _text_of(part: JsonValue) -> str:
    return text_at(part, "text") if isinstance(part, dict) else ""


def _cut(message: JsonObject, text: str, left: int) -> bytes:
    """The message with its head and its tail only. It is no longer the one that bore its id."""
    data = text.encode("utf-8", "surrogatepass")
    half = left * BYTES_PER_TOKEN // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[len(data) - half :].decode("utf-8", "ignore")
    words: JsonValue = {"type": "input_text", "text": f"{head}…{tokens(text) - left} tokens truncated…{tail}"}
    media = [part for part in as_list(message.get("content")) if isinstance(part, dict) and "text" not in part]
    return dumps({**{key: part for key, part in message.items() if key != "id"}, "content": [words, *media]})
