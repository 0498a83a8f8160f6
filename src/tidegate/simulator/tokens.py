"""The simulator's own tokenizer: a token is four UTF-8 bytes of compact JSON.

Knows sizes only. The same figures stand behind usage, limits and count endpoints, so a client can be held to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from tidegate.simulator.jsontext import JsonValue, encode

PER_ITEM = 4
"""Tokens that each message, item, tool list or system text costs on top of its JSON."""
PER_MEDIA = 1000
"""Tokens of an image, a document, a file or a sound, whatever its bytes."""

MEDIA_TYPES = frozenset(
    {"image", "image_url", "input_image", "document", "file", "input_file", "input_audio", "computer_screenshot"}
)
_HINTS = tuple(name.encode() for name in ("image", "document", "file", "audio", "screenshot"))


def words(text: str) -> int:
    """Tokens of a text that the model writes."""
    return ceil(len(text.encode("utf-8", "surrogatepass")) / 4)


def item(value: JsonValue) -> int:
    """Tokens of one message, item, tool list or system text: ceil(bytes of its JSON / 4), media flat, plus four."""
    if not value:
        return 0
    raw = encode(value)
    media = 0
    if any(hint in raw for hint in _HINTS):
        stripped, media = _without_media(value)
        raw = encode(stripped)
    return ceil(len(raw) / 4) + PER_ITEM + media * PER_MEDIA


def items(values: Iterable[JsonValue]) -> int:
    """Tokens of several."""
    return sum(item(value) for value in values)


def scale(tokens: int, factor: float) -> int:
    """Real tokens where the tokenizer gives `tokens` and the settings say how far clients' rulers are off."""
    return tokens if factor == 1 else ceil(tokens * factor)


def _without_media(value: JsonValue) -> tuple[JsonValue, int]:
    if isinstance(value, list):
        pairs = [_without_media(entry) for entry in value]
        return [entry for entry, _ in pairs], sum(count for _, count in pairs)
    if isinstance(value, dict):
        if isinstance(value.get("type"), str) and value["type"] in MEDIA_TYPES:
            return {"type": value["type"]}, 1
        found = {key: _without_media(entry) for key, entry in value.items()}
        return {key: entry for key, (entry, _) in found.items()}, sum(count for _, count in found.values())
    return value, 0
