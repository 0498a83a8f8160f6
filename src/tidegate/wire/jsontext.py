"""JSON as bytes: strict decoding, deterministic encoding, and where in a body each value stands.

Knows no API's field names and builds no value it isn't asked for. Called by the dialects and by whoever holds
an item.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NoReturn, TypeAlias, TypeVar

import msgspec

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

_Parts = TypeVar("_Parts", dict[str, msgspec.Raw], list[msgspec.Raw])

_SPACE = b" \t\n\r"
_COMMA, _QUOTE, _CLOSE_OBJECT = b',"}'

_STRING_END = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape that msgspec may refuse: half of a surrogate pair, as JavaScript clients send when they cut a
text."""

_object_of_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_of_raw = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()
_compact = msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")


class UnreadableBody(ValueError):
    """The body is not a conversation Tidegate understands; the request is relayed untouched.

    The message names the key at fault and never quotes the body.
    """


def loads(raw: bytes) -> JsonValue:
    """The value of a whole JSON text in UTF-8. Lone surrogates are kept.

    Raises `ValueError` for malformed JSON, text that is not UTF-8, NaN and Infinity, numbers too large to
    hold, and nesting too deep to follow.
    """
    try:
        value: JsonValue = _any.decode(raw)
    except (ValueError, RecursionError):
        return _loads_slowly(raw)
    return value


def dumps(value: JsonValue) -> bytes:
    """Compact JSON, keys in their own order. A value with lone surrogates is written in ASCII escapes."""
    try:
        return _compact.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _dumps_slowly(value, sort_keys=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def canonical_dumps(value: JsonValue) -> bytes:
    """Compact JSON with sorted keys at every depth: equal values give equal bytes."""
    try:
        return _sorted.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _dumps_slowly(value, sort_keys=True)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def object_spans(raw: bytes) -> dict[str, tuple[int, int]]:
    """Where each top-level value of a JSON object stands in its text (start, end), in the order of the text.

    Only the top level is looked at, but the whole text is checked to be JSON in UTF-8. Raises
    `UnreadableBody` where it is not, where it is no object, and where a key comes twice (two readers could
    then see two different bodies).
    """
    check_utf8(raw)
    spans = _object_spans(raw)
    if spans is not None:
        return spans
    plain = _without_surrogates(raw)
    try:
        spans = _object_spans(plain)
    except UnreadableBody:
        spans = None
    if spans is None or _keys_differ(raw, plain, spans):
        return _object_spans_slowly(raw)
    return spans


def array_spans(raw: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Where each value of the JSON array `raw[start:end]` stands in `raw`. Raises `UnreadableBody` for
    anything else."""
    values = _decoded(_list_of_raw, memoryview(raw)[start:end], "not a JSON array")
    if values is None:
        values = _decoded(_list_of_raw, _without_surrogates(raw[start:end]), "not a JSON array")
    if values is None:
        raise UnreadableBody("not a JSON array")
    spans: list[tuple[int, int]] = []
    pos = start + 1
    for value in values:
        while raw[pos] in _SPACE:
            pos += 1
        stop = pos + len(memoryview(value))
        spans.append((pos, stop))
        pos = stop
        while raw[pos] in _SPACE:
            pos += 1
        pos += 1
    return spans


def _decoded(decoder: msgspec.json.Decoder[_Parts], raw: bytes | memoryview, told: str) -> _Parts | None:
    """The parts of a text, None where it may be refused for no more than half a surrogate pair in it."""
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError) as error:
        if _SURROGATE.search(raw) is None:
            raise UnreadableBody(told) from error
        return None


def _without_surrogates(raw: bytes) -> bytes:
    """The same text with other characters in the place of surrogates: as long, and JSON where it was JSON but for
    halves of pairs. Where a value stands must not hang on what another one holds."""
    return _SURROGATE.sub(rb"\\u00", raw)


def _keys_differ(raw: bytes, plain: bytes, spans: Mapping[str, tuple[int, int]]) -> bool:
    done = 0
    for start, end in spans.values():
        if raw[done:start] != plain[done:start]:
            return True
        done = end
    return False


def _object_spans(raw: bytes) -> dict[str, tuple[int, int]] | None:
    values = _decoded(_object_of_raw, raw, "the body is not a JSON object")
    if values is None:
        return None
    spans: dict[str, tuple[int, int]] = {}
    pos = _skip(raw, _skip(raw, 0) + 1)
    for key, value in values.items():
        name, pos = _key(raw, pos)
        data = bytes(value)
        if name != key or not raw.startswith(data, pos):
            raise UnreadableBody("a top-level key comes twice")
        spans[key] = (pos, pos + len(data))
        pos = _skip(raw, pos + len(data))
        if raw[pos] == _COMMA:
            pos = _skip(raw, pos + 1)
    if raw[pos] != _CLOSE_OBJECT:
        raise UnreadableBody("a top-level key comes twice")
    return spans


def check_utf8(raw: bytes) -> None:
    """Raises `UnreadableBody` where the text is not UTF-8: msgspec leaves the text of a Raw unchecked."""
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise UnreadableBody("the body is not UTF-8") from error


def _skip(raw: bytes, pos: int) -> int:
    end = len(raw)
    while pos < end and raw[pos] in _SPACE:
        pos += 1
    return pos


def _key(raw: bytes, pos: int) -> tuple[str, int]:
    """The key whose opening quote is at `pos`, and where its value begins."""
    match = _STRING_END.match(raw, pos + 1) if raw[pos : pos + 1] == b'"' else None
    if match is None:
        raise UnreadableBody("a top-level key comes twice")
    key = loads(raw[pos : match.end()])
    return str(key), _skip(raw, _skip(raw, match.end()) + 1)


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return number


_slow = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _loads_slowly(raw: bytes) -> JsonValue:
    try:
        value: JsonValue = _slow.decode(raw.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def _dumps_slowly(value: JsonValue, *, sort_keys: bool) -> bytes:
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False).encode("ascii")


def _value_end(text: str, pos: int) -> int:
    """Where the JSON value that begins at `pos` ends."""
    try:
        _value, end = _slow.raw_decode(text, pos)
    except (ValueError, RecursionError) as error:
        raise UnreadableBody("the body is not JSON") from error
    return end


def _object_spans_slowly(raw: bytes) -> dict[str, tuple[int, int]]:
    # In Latin-1 a character is a byte, so positions in the text are positions in the bytes.
    text = raw.decode("latin-1")
    spans: dict[str, tuple[int, int]] = {}
    pos = _skip(raw, 0)
    if raw[pos : pos + 1] != b"{":
        raise UnreadableBody("the body is not a JSON object")
    pos = _skip(raw, pos + 1)
    more = raw[pos : pos + 1] != b"}"
    while more:
        after_key = _value_end(text, pos)
        if raw[pos] != _QUOTE:
            raise UnreadableBody("the body is not a JSON object")
        key = str(loads(raw[pos:after_key]))
        colon = _skip(raw, after_key)
        if raw[colon : colon + 1] != b":":
            raise UnreadableBody("the body is not a JSON object")
        start = _skip(raw, colon + 1)
        end = _value_end(text, start)
        if key in spans:
            raise UnreadableBody("a top-level key comes twice")
        spans[key] = (start, end)
        pos, more = _after_value(raw, end, b"}")
    if _skip(raw, pos + 1) != len(raw):
        raise UnreadableBody("the body is not a JSON object")
    return spans


def _after_value(raw: bytes, pos: int, close: bytes) -> tuple[int, bool]:
    """Where the next value begins, and True; or where the closing bracket stands, and False."""
    pos = _skip(raw, pos)
    mark = raw[pos : pos + 1]
    if mark == close:
        return pos, False
    if mark != b",":
        raise UnreadableBody("the body is not JSON")
    return _skip(raw, pos + 1), True
