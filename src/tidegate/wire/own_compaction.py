"""Tells a compaction that the agent makes itself, or orders from its provider: such a request passes
unchanged.

Knows the marks of clients, seen on the wire; judges no sizes. Called before anything is replayed or
compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate.wire.body import item_value
from tidegate.wire.conversation import Conversation, JsonObject, JsonValue
from tidegate.wire.jsontext import loads
from tidegate.wire.untyped import objects_at, text_at

_TURN_METADATA = "x-codex-turn-metadata"


def own_compaction(conversation: Conversation, headers: Mapping[str, str]) -> str | None:
    """Why the request is the agent's own compaction, as a short name for logs; None where it is none.

    Not told apart: a client that summarises by an ordinary call with no mark of its own, like LangChain's
    SummarizationMiddleware (1.5.2: one user message, no tools, wording set by its user). Such a call is a
    conversation of one message and is treated as one.
    """
    for reason, dialects, holds in _MARKS:
        if conversation.dialect in dialects and holds(conversation, headers):
            return reason
    return None


def _codex_says_so(conversation: Conversation, headers: Mapping[str, str]) -> bool:
    texts = [value for name, value in headers.items() if name.lower() == _TURN_METADATA]
    texts.append(text_at(_object(conversation.fields.get("client_metadata")), _TURN_METADATA))
    return any(text_at(_object(text.encode(errors="replace")), "request_kind") == "compaction" for text in texts)


def _ends_in_trigger(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    return text_at(_last(conversation), "type") == "compaction_trigger"


def _asks_for_compaction(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    return conversation.fields.get("compaction", b"null") != b"null"


def _provider_compacts_input(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    value = _value(conversation.fields.get("context_management"))
    edits = value if isinstance(value, list) else [value]
    return any(isinstance(edit, dict) and text_at(edit, "type") == "compaction" for edit in edits)


def _provider_compacts_messages(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    edits = objects_at(_object(conversation.fields.get("context_management")), "edits")
    return any(text_at(edit, "type").startswith("compact_") for edit in edits)


def _last_words_open(start: str) -> Callable[[Conversation, Mapping[str, str]], bool]:
    def holds(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
        last = _last(conversation)
        return text_at(last, "role") == "user" and _last_text(last).lstrip().startswith(start)

    return holds


def _codex_summarises(conversation: Conversation, headers: Mapping[str, str]) -> bool:
    opens = _last_words_open("You are performing a CONTEXT CHECKPOINT COMPACTION")
    return not conversation.tools and opens(conversation, headers)


def _summarization_agent(conversation: Conversation, _headers: Mapping[str, str]) -> bool:
    # "… context summarization agent", "… assistant"
    phrase = b"context summarization a"
    leading = conversation.items[: conversation.lead]
    told = phrase in conversation.system or any(phrase in item.raw for item in leading)
    return told and not conversation.tools


_ALL = frozenset({"chat", "responses", "messages"})
_RESPONSES = frozenset({"responses"})
_MESSAGES = frozenset({"messages"})

_MARKS: tuple[tuple[str, frozenset[str], Callable[[Conversation, Mapping[str, str]], bool]], ...] = (
    # Codex 0.171: header, and client_metadata where there are no headers (WebSocket); remote and local
    # compaction.
    ("codex_compaction", _RESPONSES, _codex_says_so),
    # Codex 0.171 with the OpenAI provider ("remote v2"); any client of the public API.
    ("compaction_trigger", _RESPONSES, _ends_in_trigger),
    # openai SDK ≥ 2.18, pydantic-ai 2.62, VS Code: the provider compacts above a threshold.
    ("provider_compaction", _RESPONSES, _provider_compacts_input),
    # Codex 0.171, local compaction, should a proxy have dropped the header.
    ("codex_compaction", _RESPONSES, _codex_summarises),
    # anthropic SDK 2.14: compaction on demand (beta compact-2026-09-04).
    ("provider_compaction", _MESSAGES, _asks_for_compaction),
    # anthropic SDK 2.14 (tool_runner by default): compaction above a threshold (beta compact-2026-01-12).
    ("provider_compaction", _MESSAGES, _provider_compacts_messages),
    # Claude Code 2.1.332: last block of an ordinary request with the same headers, system and tools.
    ("claude_code_compaction", _MESSAGES, _last_words_open("CRITICAL: Respond with TEXT ONLY")),
    # opencode 1.18.33 ("… agent"), pi 1.6.0 ("… assistant"): a request of its own, without tools.
    ("agent_summary", _ALL, _summarization_agent),
)


def _value(raw: bytes | None) -> JsonValue:
    if raw is None:
        return None
    try:
        return loads(raw)
    except ValueError:
        return None


def _object(raw: bytes | None) -> JsonObject:
    value = _value(raw)
    return value if isinstance(value, dict) else {}


def _last(conversation: Conversation) -> JsonObject:
    return (item_value(conversation.items[-1]) or {}) if conversation.items else {}


def _last_text(item: JsonObject) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = objects_at(item, "content")
    return text_at(parts[-1], "text") if parts else ""
