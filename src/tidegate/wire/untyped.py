"""Reads JSON whose types nobody promised: a wrong type is an absence, never an error.

Knows no dialect. Called by the dialects wherever they look into an item.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidegate.wire.jsontext import JsonObject, JsonValue, dumps

_ID = re.compile(r"\S{1,128}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-=\r\n]{512}")
_PAYLOAD_KEYS = frozenset(
    {"data", "file_data", "b64_json", "encrypted_content", "encrypted_stdout", "image_url", "result"}
)
_DATA_URL = re.compile(r"data:[^,]{0,256};base64,", re.IGNORECASE)
_SHORTEST_PAYLOAD = 512
_DEEPEST = 64


def text_at(item: JsonObject, key: str) -> str:
    """The string under `key`, else empty."""
    value = item.get(key)
    return value if isinstance(value, str) else ""


def object_at(item: JsonObject, key: str) -> JsonObject:
    """The object under `key`, else an empty one."""
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def objects_at(item: JsonObject, key: str) -> list[JsonObject]:
    """The objects in the list under `key`; anything else in it is passed over."""
    value = item.get(key)
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def ids_at(item: JsonObject, *keys: str) -> tuple[str, ...]:
    """The non-empty strings under these keys."""
    return tuple(text for key in keys if (text := text_at(item, key)))


def json_text(value: JsonValue) -> str:
    """Compact JSON as text; empty where the value can't be written (nested too deeply)."""
    try:
        return dumps(value).decode()
    except ValueError:
        return ""


def words_and_payload(value: JsonValue) -> tuple[str, int]:
    """Compact JSON text of a value without its base64 payloads, and the length of what was left out."""
    text = json_text(value)
    if len(text) < _SHORTEST_PAYLOAD:
        return text, 0
    lean, left_out = _without_payloads(value, _DEEPEST)
    return (json_text(lean), left_out) if left_out else (text, 0)


def _without_payloads(value: JsonValue, depth: int, key: str = "") -> tuple[JsonValue, int]:
    if isinstance(value, str):
        return ("", len(value)) if _is_payload(value, key) else (value, 0)
    if depth == 0 or not isinstance(value, dict | list):
        return value, 0
    left_out = 0
    if isinstance(value, list):
        parts: list[JsonValue] = []
        for part in value:
            lean, size = _without_payloads(part, depth - 1, key)
            parts.append(lean)
            left_out += size
        return parts, left_out
    fields: JsonObject = {}
    for name, part in value.items():
        fields[name], size = _without_payloads(part, depth - 1, name)
        left_out += size
    return fields, left_out


def _is_payload(text: str, key: str) -> bool:
    if len(text) < _SHORTEST_PAYLOAD:
        return False
    if _DATA_URL.match(text):
        return True
    return key in _PAYLOAD_KEYS and _BASE64.match(text) is not None


def short_strings(value: JsonValue) -> Iterator[str]:
    """Every string in a value, key or not, that could be an id: without spaces, 128 characters at most."""
    waiting: list[JsonValue] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if _ID.fullmatch(value):
                yield value
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.keys()
            waiting += value.values()


def unique(texts: Iterator[str] | list[str]) -> tuple[str, ...]:
    """The texts in their first order, each once."""
    return tuple(dict.fromkeys(texts))
