"""Anthropic's context editing: the field by which a request asks for old tool results and thinking to be left out.

Knows the two edits that clear and their lawful order; decides nothing and calls nobody. Called by the engine. Source:
platform.claude.com/docs/en/build-with-claude/context-editing.
"""

from __future__ import annotations

from typing import Final

from tidegate.wire.conversation import JsonObject
from tidegate.wire.jsontext import dumps

FIELD: Final = "context_management"
TOOLS: Final = "clear_tool_uses_20250919"
THINKING: Final = "clear_thinking_20251015"


def asking(body: bytes, *, trigger: int, keep: int, at_least: int, thinking_turns: int = 0) -> bytes:
    """A body that asks for it, by a field at its end; all its other bytes stay.

    `trigger`: input tokens from which results are cleared; `keep`: newest tool uses that stay; `at_least`: tokens
    without which nothing is worth a new beginning in the prompt cache; `thinking_turns`: newest turns whose thinking
    stays, 0 to leave thinking alone. The body is a JSON object with other fields and without this one.
    """
    clears: JsonObject = {
        "type": TOOLS,
        "trigger": {"type": "input_tokens", "value": trigger},
        "keep": {"type": "tool_uses", "value": keep},
        "clear_at_least": {"type": "input_tokens", "value": at_least},
    }
    edits: list[JsonObject] = [clears]
    if thinking_turns:
        # The API wants it before all others.
        edits.insert(0, {"type": THINKING, "keep": {"type": "thinking_turns", "value": thinking_turns}})
    end = body.rindex(b"}")
    return b"".join((body[:end], b',"', FIELD.encode(), b'":', dumps({"edits": [*edits]}), body[end:]))
