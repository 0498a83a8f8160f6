"""What comes in the place of tool results that are left out, or cut in their middle, in the history that is forwarded.

Knows one item at a time and its calls' names; chooses nothing. Called by the engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tidegate.compactors.outputs import edited, object_of
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.untyped import objects_at, text_at

LEAST: Final = 200
"""Estimated tokens of an output below which it stays as it is."""

WHOLE: Final = 0
"""How many characters are kept of an output that is left out."""


FAILED: Final = re.compile(
    r"\W{0,4}(?:(?:[\w.]{0,40} )?(?:error|exception)\b|traceback \(most recent|fatal:|panic:|(?:command )?failed\b"
    r"|(?:process )?exit(?:ed with)?(?: code| status)?:? ?[1-9]|.{0,40}command not found)",
    re.IGNORECASE,
)
"""How an output begins by which a tool says that it went wrong, where the API has no field for that."""


def rewritten(dialect: DialectName, raw: bytes, keep: int, names: Mapping[str, str]) -> bytes:
    """The item with its large outputs left out (`keep` is `WHOLE`), but for what a tool says went wrong; or cut to
    `keep` characters of their beginning and end. `names`: of the tools, by the ids of their calls. The same item gives
    the same bytes every time."""

    errors = _errors(raw) if keep == WHOLE else frozenset[str]()

    def say(call: str, tokens: int, content: JsonValue) -> str | None:
        if tokens < LEAST:
            return None
        text = _text_of(content)
        if keep == WHOLE:
            failed = call in errors or (text is not None and FAILED.match(text) is not None)
            return None if failed else left_out(names.get(call, ""), tokens)
        return cut(text, keep) if text is not None and len(text) > 2 * keep else None

    return edited(dialect, raw, say) or raw


def _errors(raw: bytes) -> frozenset[str]:
    """Ids of the calls whose results are marked as errors (Messages)."""
    if b'"is_error"' not in raw:
        return frozenset()
    value = object_of(raw) or {}
    return frozenset(text_at(it, "tool_use_id") for it in objects_at(value, "content") if it.get("is_error") is True)


def left_out(name: str, tokens: int) -> str:
    """What stands in the place of an output of so many tokens."""
    whose = f"the output of {name}" if name else "a tool's output"
    return f"[Left out to save room: {whose}, about {tokens} tokens. Call the tool again if it is needed.]"


def cut(text: str, keep: int) -> str:
    """The first and the last `keep` characters, and between them how many are gone."""
    gone = f"[... {len(text) - 2 * keep} characters left out: too long for the window ...]"
    return f"{text[:keep]}\n\n{gone}\n\n{text[-keep:]}"


def _text_of(content: JsonValue) -> str | None:
    """An output's text; None where it is more than text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    return (
        "\n".join(text for text in texts if isinstance(text, str)) if all(isinstance(t, str) for t in texts) else None
    )


def names_in(dialect: DialectName, value: JsonObject) -> dict[str, str]:
    """The names of the tools that an item calls, by the ids of the calls."""
    if dialect == "responses":
        name, call = text_at(value, "name"), text_at(value, "call_id")
        return {call: name} if call and name else {}
    if dialect == "chat":
        found = {}
        for made in objects_at(value, "tool_calls"):
            function = made.get("function")
            name = text_at(function, "name") if isinstance(function, dict) else ""
            found[text_at(made, "id")] = name or text_at(made, "name")
        return found
    return {text_at(block, "id"): text_at(block, "name") for block in objects_at(value, "content")}
