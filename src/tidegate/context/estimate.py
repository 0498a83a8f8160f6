"""How many tokens a piece of a conversation takes, without a tokenizer.

Knows rules of thumb of text and the published rules of media; knows no model (calibration corrects by what a
provider reports). Called by the ledger and the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidegate.wire.conversation import Conversation, DialectName, Part, PartKind
from tidegate.wire.jsontext import canonical_dumps, loads

ITEM_OVERHEAD: Final = 4
"""Tokens of an item beside its content: its role and the marks around it."""

REQUEST_OVERHEAD: Final = 8
"""Tokens of a request beside everything that is written in it."""

CALL_OVERHEAD: Final = 8
IMAGE_UNKNOWN: Final = 1_200
PDF_PAGE: Final = 2_000

AUDIO_BYTES_PER_TOKEN: Final = 1_000
"""OpenAI counts ten tokens a second of audio; a second of speech as 64 kbit/s MP3 is about 10,700 characters
of base64."""

OPAQUE_BYTES_PER_TOKEN: Final = 4
"""Encrypted content is about as long as the text that it hides."""

RUN: Final = 512
"""Characters without a break from which base64 is taken for what it is: about a token each."""

# Every run of 512 covers one whole block of 256 that begins at a multiple of 256, so it is enough to try
# those.
_BLOCK: Final = RUN // 2
_DENSE_BLOCK: Final = re.compile(rf"[A-Za-z0-9+/_=-]{{{_BLOCK}}}")
_DENSE: Final = re.compile(r"[A-Za-z0-9+/_=-]*")


def text_tokens(text: str) -> int:
    """Tokens of a text: UTF-8 bytes ÷ 4, rounded up, except that unbroken base64 counts a token a character.

    Scripts written without spaces (Han, Kana, Hangul, Thai, Lao, Khmer, Myanmar, Tibetan, …) take three or
    four bytes a character, so they count 0.75 or 1, and an emoji counts 1. A long path, a hash or a repeated
    letter of 512 characters and more counts as base64 does: too much rather than too little.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    dense = _unbroken(text) if len(text) >= RUN else 0
    return dense + -(-(size - dense) // 4)


def _unbroken(text: str) -> int:
    """Characters in runs of at least `RUN` that look like base64. Linear in the length, and quick where there
    are none."""
    total = 0
    at = 0
    floor = 0
    match_block = _DENSE_BLOCK.match
    last = len(text) - _BLOCK
    while at <= last:
        if match_block(text, at) is None:
            at += _BLOCK
            continue
        before = _DENSE.match(text[max(floor, at - _BLOCK) : at][::-1])
        after = _DENSE.match(text, at)
        assert before is not None
        assert after is not None
        start, end = at - before.end(), after.end()
        if end - start >= RUN:
            total += end - start
        floor = end
        at = -(-end // _BLOCK) * _BLOCK
    return total


def image_tokens(dialect: DialectName, part: Part) -> int:
    """Tokens of an image by the API's own rule where its size is known, else 1,200."""
    return _IMAGE_RULES[dialect](part)


def _tiled_image(part: Part) -> int:
    """OpenAI, "Calculating costs" of images: 85, and 170 for every tile of 512 px of the image scaled to fit
    2,048 px and then to a shorter side of 768 px; 85 in all at low detail."""
    if part.detail == "low":
        return 85
    if not part.width or not part.height:
        return IMAGE_UNKNOWN
    scale = min(1.0, 2048 / max(part.width, part.height))
    scale = min(scale, 768 / min(part.width, part.height))
    width, height = max(1, round(part.width * scale)), max(1, round(part.height * scale))
    return 85 + 170 * -(-width // 512) * -(-height // 512)


def _area_image(part: Part) -> int:
    """Anthropic, "Vision": width × height ÷ 750 of the image scaled to a longer side of 1,568 px, about 1,600
    at most."""
    if not part.width or not part.height:
        return IMAGE_UNKNOWN
    scale = min(1.0, 1568 / max(part.width, part.height))
    width, height = max(1, round(part.width * scale)), max(1, round(part.height * scale))
    return min(1_600, -(-width * height // 750))


_IMAGE_RULES: Final[Mapping[DialectName, Callable[[Part], int]]] = {
    "chat": _tiled_image,
    "responses": _tiled_image,
    "messages": _area_image,
}


def _words(_: DialectName, part: Part) -> int:
    return text_tokens(part.text)


def _call(_: DialectName, part: Part) -> int:
    return CALL_OVERHEAD + text_tokens(part.name) + text_tokens(part.text)


def _thinking(_: DialectName, part: Part) -> int:
    # A signature carries the whole thought in encrypted form where the words beside it are a summary or left
    # out.
    return max(text_tokens(part.text), part.data_bytes // OPAQUE_BYTES_PER_TOKEN)


def _file(_: DialectName, part: Part) -> int:
    if part.text and not part.pages and not part.data_bytes:
        return text_tokens(part.text)
    return text_tokens(part.text) + PDF_PAGE * (part.pages or 1)


def _audio(_: DialectName, part: Part) -> int:
    if not part.data_bytes:
        return IMAGE_UNKNOWN + text_tokens(part.text)
    return -(-part.data_bytes // AUDIO_BYTES_PER_TOKEN) + text_tokens(part.text)


def _opaque(_: DialectName, part: Part) -> int:
    return part.data_bytes // OPAQUE_BYTES_PER_TOKEN + text_tokens(part.text)


_PART_RULES: Final[Mapping[PartKind, Callable[[DialectName, Part], int]]] = {
    "text": _words,
    "thinking": _thinking,
    "call": _call,
    "result": _words,
    "image": image_tokens,
    "file": _file,
    "audio": _audio,
    "opaque": _opaque,
    "json": _words,
}


def part_tokens(dialect: DialectName, part: Part) -> int:
    """Tokens of one piece of an item; base64 of media is never counted as text."""
    return _PART_RULES[part.kind](dialect, part)


def item_tokens(dialect: DialectName, parts: Iterable[Part]) -> int:
    """Tokens of one item: its pieces and what stands around them."""
    return ITEM_OVERHEAD + sum(_PART_RULES[part.kind](dialect, part) for part in parts)


def request_overhead(conversation: Conversation) -> int:
    """Tokens of what is sent beside the items: system prompt, tools and output schema."""
    return (
        REQUEST_OVERHEAD
        + _system_tokens(conversation.system)
        + _json_tokens(conversation.tools)
        + _json_tokens(conversation.schema)
    )


def _system_tokens(raw: bytes) -> int:
    return sum(text_tokens(text) for text in system_texts(raw))


def system_texts(raw: bytes) -> list[str]:
    """The texts of a top-level system prompt, raw JSON, a list's blocks one each; what is no text as its JSON."""
    if not raw:
        return []
    try:
        value = loads(raw)
    except (ValueError, RecursionError):
        return [_plain(raw)]
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        texts = []
        for block in value:
            text = block.get("text") if isinstance(block, dict) else block
            texts.append(text if isinstance(text, str) else canonical_dumps(block).decode("utf-8", "replace"))
        return texts
    return [] if value is None else [_plain(raw)]


def _json_tokens(raw: bytes) -> int:
    return text_tokens(_plain(raw))


def _plain(raw: bytes) -> str:
    """JSON as text, in which escapes don't count six bytes for one character."""
    if b"\\u" in raw:
        try:
            raw = canonical_dumps(loads(raw))
        except (ValueError, RecursionError):
            pass
    return raw.decode("utf-8", "replace")
