"""The marks by which clients say what a provider is to cache (`cache_control`): how many there are, where one may go.

Knows Anthropic's rules (https://platform.claude.com/docs/en/build-with-claude/prompt-caching), which gateways take over
into chat; knows no history. Called by the dialects, which count, and by the engine, which marks a summary.
"""

from __future__ import annotations

from typing import Final

from tidegate.wire.jsontext import JsonObject, JsonValue, dumps, loads

LIMIT: Final = 4
"""Marks that a request may bear, one that the API places by itself (a top-level `cache_control`) included."""

KEY: Final = "cache_control"

SHORT: Final = b'{"type":"ephemeral"}'
"""Five minutes, the API's own default."""

LONG: Final = b'{"type":"ephemeral","ttl":"1h"}'


def controls(value: JsonValue) -> list[JsonObject]:
    """The marks on a system prompt, a list of tools or items, or a single one of them, and on the blocks in it; none
    inside what a tool was given or gave as JSON."""
    if isinstance(value, list):
        return [control for part in value for control in controls(part)]
    if not isinstance(value, dict):
        return []
    here = value.get(KEY)
    found: list[JsonObject] = [here] if isinstance(here, dict) and here else []
    content = value.get("content")
    if isinstance(content, list):
        found += controls(content)
    function = value.get("function")
    if isinstance(function, dict) and function.get(KEY):
        found += controls({KEY: function[KEY]})
    return found


def is_long(control: JsonObject) -> bool:
    """Whether a mark asks for more than the default five minutes."""
    return control.get("ttl") == "1h"


def count(raw: bytes) -> int:
    """Marks on a raw value; 0 where it is none, or can't be read."""
    if KEY.encode() not in raw:
        return 0
    try:
        return len(controls(loads(raw)))
    except ValueError:
        return 0


def control_for(*, before: int, after: int, removed: int, automatic: bytes, long_after: bool) -> bytes:
    """The mark for a summary (raw JSON), empty for none.

    `before` are the marks that stand before it (tools, system), `after` those on the items kept, `removed` those that
    went with the items it replaces, `automatic` the raw top-level mark, empty for none. A client without marks gets
    none. One more than are left is never more than the client's own and one; it may not be more than the API's limit.
    Marks of an hour must come before those of five minutes, so it asks for an hour where a later one does.
    """
    placed = automatic not in (b"", b"null")
    left = before + after + placed
    if left + removed == 0 or left >= LIMIT:
        return b""
    return LONG if long_after or (placed and b'"1h"' in automatic) else SHORT


def marked(item: bytes, control: bytes) -> bytes:
    """A message (raw JSON) with the mark on its first text; a string content becomes a list for it. As it was where it
    has no text, or there is no mark to place."""
    if not control:
        return item
    value = loads(item)
    if not isinstance(value, dict):
        return item
    content = value.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not blocks:
        return item
    first = blocks[0]
    if not isinstance(first, dict) or first.get("type") != "text" or not first.get("text"):
        return item
    return dumps({**value, "content": [{**first, KEY: loads(control)}, *blocks[1:]]})
