"""Content lists as a reader sees them: each part by its type, unknown types as their JSON.

Knows what all dialects' contents have in common; the types are theirs, in tables. Called by the dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from tidegate.wire.conversation import Part
from tidegate.wire.jsontext import JsonObject, JsonValue
from tidegate.wire.untyped import ids_at, json_text, short_strings, text_at, unique, words_and_payload

Reader: TypeAlias = Callable[[JsonObject], Iterator[Part]]
ReaderOf: TypeAlias = Callable[[str], Reader | None]
"""The reader of a part's type, None for an unknown type."""

_NOTHING = Part("text")


def as_list(content: JsonValue) -> list[JsonValue]:
    """A content's parts: a string is one part, null is none."""
    if isinstance(content, list):
        return content
    return [] if content is None else [content]


def pieces(content: JsonValue, reader_of: ReaderOf) -> Iterator[Part]:
    """What a content says, in order; empty texts left out."""
    for part in as_list(content):
        yield from _pieces_of(part, reader_of)


def _pieces_of(part: JsonValue, reader_of: ReaderOf) -> Iterator[Part]:
    if isinstance(part, str):
        if part:
            yield Part("text", part)
    elif isinstance(part, dict) and (reader := reader_of(text_at(part, "type"))):
        yield from (piece for piece in reader(part) if piece != _NOTHING)
    else:
        yield from json_pieces(part)


def json_pieces(value: JsonValue) -> Iterator[Part]:
    """A value of unknown type: its JSON, and apart from it the base64 it held."""
    words, left_out = words_and_payload(value)
    yield Part("json", words)
    if left_out:
        yield Part("opaque", data_bytes=left_out)


def result_pieces(found: Sequence[Part], *, name: str = "", call: str = "") -> Iterator[Part]:
    """A tool's result: all its words as one `result`, then what is no words."""
    words = "\n".join(piece.text for piece in found if piece.kind in ("text", "json") and piece.text)
    yield Part("result", words, name=name, id=call)
    yield from (piece for piece in found if piece.kind not in ("text", "json"))


def text_piece(part: JsonObject) -> Iterator[Part]:
    """The reader of every type that holds words under `text`."""
    yield Part("text", text_at(part, "text"))


def words_of(value: JsonValue) -> str:
    """A tool's arguments as text: APIs send a string of JSON or the JSON itself."""
    return value if isinstance(value, str) else "" if value is None else json_text(value)


def unknown_parts(content: JsonValue, reader_of: ReaderOf) -> list[JsonValue]:
    """The parts of a type that no reader knows."""
    if content is None or isinstance(content, str):
        return []
    return [
        part
        for part in as_list(content)
        if not isinstance(part, str) and not (isinstance(part, dict) and reader_of(text_at(part, "type")))
    ]


def own_ids(item: JsonObject, unknown: Sequence[JsonValue]) -> tuple[str, ...]:
    """The ids an item and its unknown parts go by: another unknown thing may name them."""
    if not unknown:
        return ids_at(item, "id")
    named = [
        name for part in unknown if isinstance(part, dict) for name in ids_at(part, "id", "call_id", "tool_use_id")
    ]
    return unique([*ids_at(item, "id"), *named])


def mentioned(unknown: Sequence[JsonValue]) -> tuple[str, ...]:
    """Everything in unknown parts that could be another item's id."""
    if not unknown:
        return ()
    return unique(short_strings([*unknown]))


def without_cache_control(value: JsonValue) -> JsonValue:
    """An object without its own `cache_control`; anything else as it is."""
    if isinstance(value, dict) and "cache_control" in value:
        return {key: part for key, part in value.items() if key != "cache_control"}
    return value
