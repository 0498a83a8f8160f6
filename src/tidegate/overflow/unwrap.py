"""Finds what a refusal says under whatever wraps it: codes, types, inner statuses, texts, and fields with numbers.

Knows the places where gateways and providers put an error, and where they echo the request; judges nothing. Called by
`classify`. Bounded: a body is parsed whole, then at most 400 nodes, 24 levels and 48 KiB of text are looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from tidegate.overflow.verdict import Refusal
from tidegate.wire.conversation import JsonObject, JsonValue

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a body that are parsed; of a longer one only the beginning is read, as text."""
MAX_TEXT = 48 * 1024
"""Characters of all texts together that are judged."""
MAX_DEPTH = 24
MAX_NODES = 400
MAX_KEYS = 200
_MAX_EMBEDDED = 4
"""How many `{` of a text are tried as the beginning of JSON."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a refusal says, innermost first. Everything is lower case but `texts`."""

    statuses: tuple[int, ...] = ()
    """HTTP statuses: the answer's own, then those named inside."""
    codes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    texts: tuple[str, ...] = field(default=(), repr=False)
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Whole numbers in fields of an error object, by key: `n_prompt_tokens`, `n_ctx`, …"""
    param: str = ""
    finish: str = ""
    """Why an answer ended, where the body is an answer and not an error."""
    usage: Mapping[str, int] = field(default_factory=dict)
    error: bool = True
    """False where the body is an ordinary answer or stream event without an error in it."""

    @property
    def text(self) -> str:
        """All texts, a line each, lower case: what patterns are matched against."""
        return "\n".join(self.texts).lower()


_CODE_KEYS = frozenset(
    {"code", "error_code", "errorcode", "status_code", "reason", "error_type", "errortype", "limit_source"}
)
_TYPE_KEYS = frozenset({"type", "__type", ":exception-type", "status", "exception", "name"})
_TEXT_KEYS = frozenset(
    {
        "message", "msg", "error_message", "error_msg", "errormessage", "status_msg", "detail", "details", "error",
        "error_description", "description", "title", "raw", "reason", "body", "text", "cause", "hint",
    }
)  # fmt: skip
_ECHOES = frozenset(
    {
        "failed_generation", "content", "messages", "input", "input_value", "prompt", "request", "request_body",
        "flagged_input", "output", "output_text", "delta", "tools", "arguments", "instructions", "system", "ctx",
        "previous_errors", "headers", "body_sent", "payload", "query", "user_message", "params", "parameters",
    }
)  # fmt: skip
"""Fields that repeat the request or the model's words: never read."""
_WRAPPER = re.compile(
    r"err|detail|cause|response|resp\b|metadata|raw|upstream|inner|exception|fault|failure|result|data|body|choices|original|incomplete|feedback|candidates|event"
)
_ECHOED = (
    "invalid user message=", "input_value=", "'input':", '"input":', "failed_generation", "received model group=",
    "context_window_fallbacks=", "available model group fallbacks", "set 'context_window_fallback",
)  # fmt: skip
"""Where, in a text, an echo of the request or a gateway's own trailer begins."""
_LABEL = re.compile(r"\[([a-z_]{4,60}|\d{3,6})\]")
_CLASS = re.compile(r"\b([a-z]+(?:error|exception))\b")
_LEADING_STATUS = re.compile(r"(?:^|\bstatus(?: code)?[:= ]+|\bapi error: |\[)([45]\d\d)\b")
_TAG = re.compile(r"<[^<>]{0,400}>")
_BLANK = re.compile(r"\s+")
_COUNT_KEY = re.compile(r"token|ctx|context|limit|length|window|max|retry|resets_in")
_DECODER = json.JSONDecoder()


def unwrap(refusal: Refusal) -> Said:
    """What a refusal says. Never raises; unreadable bytes become text."""
    seen = _Seen()
    if refusal.status is not None:
        seen.statuses.append(refusal.status)
    body = refusal.body
    text = body if isinstance(body, str) else body[:MAX_BODY].decode("utf-8", "replace")
    for name, value in (refusal.headers or {}).items():
        if name.lower() == "x-amzn-errortype":
            seen.types.append(value.partition(":")[0].lower())
    for document in _documents(text.strip()):
        if isinstance(document, str):
            seen.error = True
            _read_text(document, seen, 0)
        else:
            _read(document, seen, 0)
    return seen.said(refusal)


class _Seen:
    """What has been found so far, outermost first."""

    __slots__ = ("codes", "error", "finish", "left", "nodes", "numbers", "param", "statuses", "texts", "types", "usage")

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.codes: list[str] = []
        self.types: list[str] = []
        self.texts: list[str] = []
        self.numbers: dict[str, int] = {}
        self.param = ""
        self.finish = ""
        self.usage: dict[str, int] = {}
        self.error = False
        self.nodes = MAX_NODES
        self.left = MAX_TEXT

    def said(self, refusal: Refusal) -> Said:
        failed = refusal.status is None or any(status >= 400 for status in self.statuses)
        return Said(
            statuses=tuple(dict.fromkeys(self.statuses)),
            codes=tuple(dict.fromkeys(reversed(self.codes))),
            types=tuple(dict.fromkeys(reversed(self.types))),
            texts=tuple(dict.fromkeys(reversed(self.texts))),
            numbers=self.numbers,
            param=self.param,
            finish=self.finish,
            usage=self.usage,
            error=failed or self.error,
        )


def _documents(text: str) -> Iterator[JsonValue]:
    """The JSON values of a body: the body itself, or the data of its SSE events; else its text."""
    if not text:
        return
    if text[0] in '{["':
        value = _json(text)
        if value is not None:
            yield value
            return
    if text.startswith(("event:", "data:", ":", "id:")):
        for line in text[:MAX_TEXT].splitlines()[:40]:
            if line.startswith("data:"):
                yield _json(line[5:]) or line[5:].strip()
        return
    if text[0] == "<":
        yield _BLANK.sub(" ", _TAG.sub(" ", text[:MAX_TEXT]))
        return
    yield text


def _json(text: str | bytes) -> JsonValue:
    """None where it is no JSON (or `null`)."""
    try:
        value: JsonValue = msgspec.json.decode(text)
        return value
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        value = json.loads(text)  # lone surrogates
    except (ValueError, RecursionError):
        return None
    return value


def _read(value: JsonValue, seen: _Seen, depth: int) -> None:
    if depth > MAX_DEPTH or seen.nodes <= 0:
        return
    seen.nodes -= 1
    if isinstance(value, list):
        for item in value[:20]:
            if isinstance(item, dict | list):
                _read(item, seen, depth + 1)
            elif isinstance(item, str) and depth > 0:
                _read_text(item, seen, depth + 1)
    elif isinstance(value, dict):
        _read_object(value, seen, depth)


def _read_object(value: JsonObject, seen: _Seen, depth: int) -> None:
    for key, inner in islice(value.items(), MAX_KEYS):
        name = key.lower()
        if name in _ECHOES:
            continue
        if isinstance(inner, dict | list):
            if name == "usage" or name == "usagemetadata":
                _read_usage(inner, seen)
            elif _WRAPPER.search(name):
                seen.error = seen.error or "err" in name
                _read(inner, seen, depth + 1)
        else:
            _read_field(name, inner, seen, depth)
    if value.get("delta") is not None and isinstance(value["delta"], dict):
        _read_finish(value["delta"], seen)
    _read_finish(value, seen)


def _read_finish(value: JsonObject, seen: _Seen) -> None:
    for key in ("finish_reason", "stop_reason", "finishReason", "done_reason", "blockReason"):
        reason = value.get(key)
        if isinstance(reason, str):
            seen.finish = reason.lower()


def _read_usage(value: JsonValue, seen: _Seen) -> None:
    if isinstance(value, dict):
        for key, count in value.items():
            if isinstance(count, int) and not isinstance(count, bool):
                seen.usage[key] = count


def _read_field(name: str, value: str | float | bool | None, seen: _Seen, depth: int) -> None:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        number = int(value) if abs(value) < 1e12 else 0
        if "err" in name or (name == "status_code" and number):
            seen.error = True
        if name in _CODE_KEYS or name == "status":
            _read_number(number, seen)
        elif _COUNT_KEY.search(name):
            seen.numbers.setdefault(name, number)
        return
    if name == "param":
        seen.param = seen.param or value.lower()[:200]
    if "err" in name or "exception" in name:
        seen.error = True
    text = value.strip()
    if name in _CODE_KEYS and text and len(text) < 100:
        if text.isdigit() and len(text) < 9:
            _read_number(int(text), seen)
        elif " " not in text:
            seen.codes.append(text.lower())
    if name in _TYPE_KEYS and text and len(text) < 100 and " " not in text:
        seen.types.append(text.lower().rpartition("#")[2])
        if text in ("error", "response.failed"):
            seen.error = True
    if name in _TEXT_KEYS and text:
        _read_text(text, seen, depth)


def _read_number(number: int, seen: _Seen) -> None:
    if 100 <= number <= 599:
        seen.statuses.append(number)
    else:
        seen.codes.append(str(number))


def _read_text(text: str, seen: _Seen, depth: int) -> None:
    """A text: JSON inside it is read as JSON, what stands around it as text; echoes are cut off."""
    if seen.left <= 0 or seen.nodes <= 0:
        return
    seen.nodes -= 1
    text = text[: seen.left]
    before, inner = _embedded(text) if depth <= MAX_DEPTH and "{" in text else (text, None)
    before = _without_echo(before).strip()
    if before:
        seen.left -= len(before)
        _read_labels(before.lower(), seen)
        seen.texts.append(before)
    if inner is not None:
        _read(inner, seen, depth + 1)


def _embedded(text: str) -> tuple[str, JsonValue]:
    """A text's words before its JSON object, and that object; all of the text and None where it has none."""
    if text.startswith("b'{") and text.endswith("'"):
        text = text[2:-1]
    position = -1
    for _ in range(_MAX_EMBEDDED):
        position = text.find("{", position + 1)
        if position < 0:
            break
        try:
            value, _end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value:
            return text[:position].removesuffix("b'"), value
    return text, None


def _without_echo(text: str) -> str:
    lowered = text.lower()
    starts = [start for marker in _ECHOED if (start := lowered.find(marker)) >= 0]
    return text[: min(starts)] if starts else text


def _read_labels(text: str, seen: _Seen) -> None:
    """Codes, error classes and statuses that gateways write into the text: `[1261]`, `litellm.RateLimitError: 400`."""
    head = text[:300]
    if "[" in head:
        for label in _LABEL.findall(head):
            if label.isdigit():
                _read_number(int(label), seen)
            else:
                seen.codes.append(label)
    if "error" in head or "exception" in head:
        seen.types.extend(_CLASS.findall(head))
    status = _LEADING_STATUS.search(head)
    if status:
        seen.statuses.append(int(status[1]))
