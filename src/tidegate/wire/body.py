"""The top level of a request body: typed fields, the span of every item, the leading system items.

Knows no dialect; builds no item's value but those at the front. Called by the dialects' `read`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.wire.conversation import Item, Items, RawFields
from tidegate.wire.jsontext import JsonObject, UnreadableBody, array_spans, loads, object_spans

_NOTHING = (b"", b"null", b"[]")
_OPEN_OBJECT = ord("{")


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object as bytes, with its top-level fields."""

    raw: bytes
    spans: Mapping[str, tuple[int, int]]
    fields: RawFields

    def text(self, key: str) -> str:
        """A required string. Raises `UnreadableBody`."""
        value = self._load(key)
        if not isinstance(value, str):
            raise UnreadableBody(f"`{key}` must be a string")
        return value

    def count(self, *keys: str) -> int | None:
        """The first of these fields that is a positive whole number."""
        for key in keys:
            value = self._load(key)
            if type(value) is int and value > 0:
                return value
        return None

    def flag(self, key: str) -> bool:
        """True where the field says `true`."""
        return self.fields.get(key) == b"true"

    def present(self, key: str) -> bool:
        """True where the field is there and not null."""
        return self.fields.get(key, b"null") != b"null"

    def key_of(self, *keys: str) -> str:
        """The first of these fields that says something (not null, not an empty list), else empty."""
        return next((key for key in keys if self.fields.get(key, b"") not in _NOTHING), "")

    def items(self, key: str) -> Items:
        """The objects of a required list. Raises `UnreadableBody`."""
        if key not in self.spans:
            raise UnreadableBody(f"`{key}` is missing")
        raw = self.raw
        start, end = self.spans[key]
        if raw[start : start + 1] != b"[":
            raise UnreadableBody(f"`{key}` must be a list")
        return items_of(raw, array_spans(raw, start, end), key)

    def _load(self, key: str) -> object:
        if key not in self.spans:
            return None
        try:
            return loads(self.fields[key])
        except ValueError as error:
            raise UnreadableBody(f"`{key}` can't be read") from error


def read_body(raw: bytes) -> Body:
    """The body's fields. Raises `UnreadableBody` where it is no JSON object."""
    spans = object_spans(raw)
    return Body(raw, spans, RawFields(raw, spans))


def items_of(raw: bytes, spans: Sequence[tuple[int, int]], key: str) -> Items:
    """The objects that stand at these places in `raw`. Raises `UnreadableBody` where one is no object."""
    starts = array("Q", [start for start, _end in spans])
    if any(raw[start] != _OPEN_OBJECT for start in starts):
        raise UnreadableBody(f"`{key}` must hold objects only")
    return Items(raw, starts, array("Q", [end for _start, end in spans]))


def leading(items: Sequence[Item], is_system: Callable[[JsonObject], bool]) -> int:
    """How many items at the beginning are system items; the one after them is the last that is looked at."""
    for n, item in enumerate(items):
        value = item_value(item)
        if value is None or not is_system(value):
            return n
    return len(items)


def item_value(item: Item) -> JsonObject | None:
    """The item's value, None where it can't be built (a number too large, nesting too deep)."""
    try:
        value = loads(item.raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
