"""JSON in and out of the simulator, lone surrogates included.

Knows msgspec and the standard library's codec; knows nothing of any API. Called by every module here.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import msgspec

JsonObject: TypeAlias = dict[str, Any]
JsonValue: TypeAlias = Any


class NotJson(ValueError):
    """The bytes are no JSON text."""


def decode(data: bytes | str) -> JsonValue:
    """Reads JSON. msgspec refuses lone surrogates, which clients that cut text in the middle of a pair do send.

    Raises `NotJson`.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def encode(value: JsonValue) -> bytes:
    """Compact JSON, UTF-8; `\\u` escapes only where a lone surrogate forces them."""
    try:
        return msgspec.json.encode(value)
    except UnicodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def as_object(value: JsonValue) -> JsonObject:
    """The object, or an empty one where the value is something else."""
    return value if isinstance(value, dict) else {}


def objects(value: JsonValue) -> list[JsonObject]:
    """The objects of a list, or nothing where the value is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text_of(content: JsonValue) -> str:
    """The words of a content field in any of the APIs' forms: a string, or a list of parts that have `text`."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in objects(content) if isinstance(part.get("text"), str))
