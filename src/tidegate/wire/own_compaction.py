"""Tells a compaction that the agent makes itself, or orders from its provider: such a request passes
unchanged.

Knows the marks of clients, seen on the wire; judges no sizes. Called before anything is replayed or
compacted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tidegate.wire.conversation import Conversation, DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import loads
from tidegate.wire.untyped import objects_at, text_at

_TURN_METADATA = "x-codex-turn-metadata"

_ASCII_ESCAPE = re.compile(rb"\\u00[2-7]")
"""How JSON may write a character that needs no escape."""

_Mark: TypeAlias = Callable[[Conversation, Mapping[str, str]], bool]


def own_compaction(conversation: Conversation, headers: Mapping[str, str]) -> str | None:
    """Why the request is the agent's own compaction, as a short name for logs; None where it is none.

    Not told apart: a client that summarises by an ordinary call with no mark of its own, like LangChain's
    SummarizationMiddleware (1.5.2: one user message, no tools, wording set by its user). Such a call is a
    conversation of one message and is treated as one.
    """
    for reason, holds in _MARKS[conversation.dialect]:
        if holds(conversation, headers):
            return reason
    return None


def _codex_says_so(conversation: Conversation, headers: Mapping[str, str]) -> bool:
    length = len(_TURN_METADATA)
    texts = [headers[name].encode(errors="replace") for name in headers if len(name) == length and _is_metadata(name)]
    if raw := conversation.field("client_metadata"):
        texts.append(
            text_at(_object(raw), _TURN_METADATA).encode(errors="replace") if _may_say(raw, b"compaction") else b""
        )
    return any(
        text_at(_object(text), "request_kind") == "compaction" for text in texts if _may_say(text, b"compaction")
    )


def _is_metadata(name: str) -> bool:
    return name.lower() == _TURN_METADATA


def _ends_in_trigger(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    raw = _last_raw(conversation)
    return _may_say(raw, b"compaction_trigger") and text_at(_object(raw), "type") == "compaction_trigger"


def _asks_for_compaction(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    return conversation.field("compaction") not in (b"", b"null")


def _provider_compacts_input(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    raw = conversation.field("context_management")
    if not raw:
        return False
    value = _value(raw)
    edits = value if isinstance(value, list) else [value]
    return any(isinstance(edit, dict) and text_at(edit, "type") == "compaction" for edit in edits)


def _provider_compacts_messages(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    raw = conversation.field("context_management")
    edits = objects_at(_object(raw), "edits") if raw else []
    return any(text_at(edit, "type").startswith("compact_") for edit in edits)


def _last_words_open(start: bytes) -> _Mark:
    text = start.decode()

    def holds(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
        raw = _last_raw(conversation)
        if not _may_say(raw, start):
            return False
        last = _object(raw)
        return text_at(last, "role") == "user" and _last_text(last).lstrip().startswith(text)

    return holds


def _codex_summarises(conversation: Conversation, headers: Mapping[str, str]) -> bool:
    return not conversation.tools_key and _codex_words(conversation, headers)


def _summarization_agent(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    if conversation.tools_key:
        return False
    # "… context summarization agent", "… assistant"
    phrase = b"context summarization a"
    if conversation.system_key and conversation.system.find(phrase) >= 0:
        return True
    for n in range(conversation.lead):  # noqa: SIM110
        if conversation.item_raw(n).find(phrase) >= 0:
            return True
    return False


_codex_words = _last_words_open(b"You are performing a CONTEXT CHECKPOINT COMPACTION")

# opencode 1.18.33 ("… agent"), pi 1.6.0 ("… assistant"): a request of its own, without tools.
_AGENT_SUMMARY = ("agent_summary", _summarization_agent)

_MARKS: Mapping[DialectName, tuple[tuple[str, _Mark], ...]] = {
    "chat": (_AGENT_SUMMARY,),
    "responses": (
        # Codex 0.171: header, and client_metadata where there are no headers (WebSocket); remote and local
        # compaction.
        ("codex_compaction", _codex_says_so),
        # Codex 0.171 with the OpenAI provider ("remote v2"); any client of the public API.
        ("compaction_trigger", _ends_in_trigger),
        # openai SDK ≥ 2.18, pydantic-ai 2.62, VS Code: the provider compacts above a threshold.
        ("provider_compaction", _provider_compacts_input),
        # Codex 0.171, local compaction, should a proxy have dropped the header.
        ("codex_compaction", _codex_summarises),
        _AGENT_SUMMARY,
    ),
    "messages": (
        # anthropic SDK 2.14: compaction on demand (beta compact-2026-09-04).
        ("provider_compaction", _asks_for_compaction),
        # anthropic SDK 2.14 (tool_runner by default): compaction above a threshold (beta compact-2026-01-12).
        ("provider_compaction", _provider_compacts_messages),
        # Claude Code 2.1.332: last block of an ordinary request with the same headers, system and tools.
        ("claude_code_compaction", _last_words_open(b"CRITICAL: Respond with TEXT ONLY")),
        _AGENT_SUMMARY,
    ),
}


def _may_say(raw: bytes, words: bytes) -> bool:
    """Whether a JSON text may hold these ASCII words in a string: as they are, or some of it as escapes. Cheap; only
    then is it worth reading."""
    return raw.find(words) >= 0 or (raw.find(b"\\u00") >= 0 and _ASCII_ESCAPE.search(raw) is not None)


def _last_raw(conversation: Conversation) -> bytes:
    count = len(conversation.items)
    return conversation.item_raw(count - 1) if count else b""


def _value(raw: bytes) -> JsonValue:
    try:
        return loads(raw)
    except ValueError:
        return None


def _object(raw: bytes) -> JsonObject:
    value = _value(raw)
    return value if isinstance(value, dict) else {}


def _last_text(item: JsonObject) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = objects_at(item, "content")
    return text_at(parts[-1], "text") if parts else ""
