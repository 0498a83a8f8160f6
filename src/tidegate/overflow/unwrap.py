"""Finds what a refusal says under whatever wraps it: codes, types, inner statuses, texts, and fields with numbers.

Knows the places where gateways and providers put an error, and where they echo the request; judges nothing. Called by
`classify`. Bounded: up to 1 MiB is parsed, then at most 400 nodes, 24 levels and 48 KiB of text are looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import msgspec

from tidegate.overflow.echo import without_echo
from tidegate.overflow.verdict import Refusal
from tidegate.wire.conversation import JsonObject, JsonValue

MAX_BODY = 1024 * 1024
"""Bytes of a body, or characters of a text in it, that are parsed; of a longer one the ends are read, as text."""
MAX_TEXT = 48 * 1024
"""Characters of all texts together that are judged."""
MAX_DEPTH = 24
MAX_NODES = 400
MAX_KEYS = 200
_MOST_CONTAINERS = 24_000
_MOST_ITEMS = 120_000
"""Lists, objects and commas of all that is parsed: a megabyte of nothing else would take a tenth of a second."""
_SMALL = 4 * 1024
"""Characters in which they need not be counted: as many as can be are assumed."""
_END = 24 * 1024
"""Characters of each end of what is not parsed."""
_MAX_EMBEDDED = 4
"""How many `{` of a text are tried as the beginning of JSON."""
_LONGEST_NAME = 40


class Said:
    """What a refusal says, innermost first, all of it lower case. Filled by `unwrap`, then left alone."""

    __slots__ = (
        "codes", "containers", "error", "finish", "items", "left", "nodes", "numbers", "param", "parse", "statuses",
        "texts", "types", "usage",
    )  # fmt: skip

    def __init__(self, status: int | None) -> None:
        """`status` is the answer's own."""
        self.statuses: list[int] = [] if status is None else [status]
        """HTTP statuses: the answer's own, then those named inside."""
        self.codes: list[str] = []
        self.types: list[str] = []
        self.texts: list[str] = []
        self.numbers: dict[str, int] = {}
        """Whole numbers in fields of an error object, by key: `n_prompt_tokens`, `n_ctx`, …"""
        self.param = ""
        self.finish = ""
        """Why an answer ended, where the body is an answer and not an error."""
        self.usage: dict[str, int] = {}
        self.error = status is None
        """False where the body is an ordinary answer or stream event without an error in it."""
        self.nodes = MAX_NODES
        """Of JSON and texts, that may still be looked at."""
        self.left = MAX_TEXT
        """Characters of text that may still be kept."""
        self.parse = 2 * MAX_BODY
        """Characters, …"""
        self.containers = _MOST_CONTAINERS
        self.items = _MOST_ITEMS
        """… lists and objects, and commas that may still be parsed."""

    @property
    def text(self) -> str:
        """All texts, a line each: what patterns are matched against."""
        return "\n".join(dict.fromkeys(self.texts)) if len(self.texts) > 1 else "".join(self.texts)

    def close(self) -> Said:
        """Itself, turned the inside out."""
        if len(self.codes) > 1:
            self.codes.reverse()
        if len(self.types) > 1:
            self.types.reverse()
        if len(self.texts) > 1:
            self.texts.reverse()
        for status in self.statuses:
            if status >= 400:
                self.error = True
        return self


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
_FINISH_KEYS = frozenset({"finish_reason", "stop_reason", "finishreason", "done_reason", "blockreason"})
_WRAPPER = re.compile(
    r"err|detail|cause|response|resp\b|metadata|raw|upstream|inner|exception|fault|failure|result|data|body|choices|original|incomplete|feedback|candidates|event"
)
_LABEL = re.compile(r"(?<![\w)\]])\[([a-z_]{4,60}|\d{3,6})\](?![.\w\[])")
"""Not an index: `messages[401].content`."""
_CLASS = re.compile(r"\b([a-z]+(?:error|exception))\b")
_LEADING_STATUS = re.compile(r"(?:^|\bstatus(?: code)?[:= ]+|\bapi error: |(?<![\w)\]])\[)([45]\d\d)\b(?!\]?[.\w\[])")
_TAG = re.compile(r"<[^<>]{0,400}>")
_BLANK = re.compile(r"\s+")
_COUNT_KEY = re.compile(r"token|ctx|context|limit|length|window|max|retry|resets_in")
_DECODER = json.JSONDecoder()

_ECHO, _CODE, _TYPE, _TEXT, _WRAP, _ERROR, _USAGE, _COUNT, _FINISH, _DELTA, _PARAM = (1 << bit for bit in range(11))
"""What a field is for, by its name; several may hold."""


def unwrap(refusal: Refusal) -> Said:
    """What a refusal says. Never raises; unreadable bytes become text."""
    said = Said(refusal.status)
    if refusal.headers:
        _read_headers(refusal, said)
    body = refusal.body
    if (len(body) <= _SMALL or _affordable(body, said)) and (value := _json(body)) is not None:
        if isinstance(value, str):
            _read_document(value.strip(), said)
        elif isinstance(value, dict | list):
            _read(value, said, 0)
        return said.close()
    text = body if isinstance(body, str) else _text_of(body)
    for document in _documents(text.strip() if len(text) <= MAX_BODY else _ends(text), said):
        if isinstance(document, str):
            _read_document(document, said)
        else:
            _read(document, said, 0)
    return said.close()


def _affordable(body: bytes | str, said: Said, since: int = 0) -> bool:
    """Whether there is little enough of it to be parsed: characters, lists, objects, commas."""
    size = len(body) - since
    if size > min(MAX_BODY, said.parse):
        return False
    said.parse -= size
    if size <= _SMALL:
        said.containers -= size // 3
        return said.containers >= 0
    lists, objects, comma = ("[", "{", ",") if isinstance(body, str) else (b"[", b"{", b",")
    said.containers -= body.count(lists, since) + body.count(objects, since)  # type: ignore[arg-type]
    said.items -= body.count(comma, since)  # type: ignore[arg-type]
    return said.containers >= 0 and said.items >= 0


def _text_of(body: bytes) -> str:
    if len(body) > 8 * _END:
        body = body[: 4 * _END] + b"\n" + body[-4 * _END :]
    return body.decode("utf-8", "replace")


def _ends(text: str) -> str:
    """Both ends of a text: of the last one what begins with an error's field, since the rest may be an echo that began
    in the middle."""
    found = _ERROR_FIELD.search(text, max(_END, len(text) - _END))
    return text[:_END] + ("\n" + text[found.start() :] if found else "")


_ERROR_FIELD = re.compile(r'(?<!\\)"(?:errors?|detail|error_message|error_msg)" ?: ?["{\[]')
"""Of the answer itself: in a text of the client's the quotes are escaped."""


def _read_document(text: str, said: Said) -> None:
    said.error = True
    _read_text(text, said, 0)


def _read_headers(refusal: Refusal, said: Said) -> None:
    for name, value in (refusal.headers or {}).items():
        if name.lower() == "x-amzn-errortype":
            said.types.append(value.partition(":")[0].lower())


def _documents(text: str, said: Said) -> Iterator[JsonValue]:
    """What a body that is no JSON holds: the data of its SSE events, or its text."""
    if not text:
        return
    if text.startswith(("event:", "data:", ":", "id:")):
        for line in text[:MAX_TEXT].splitlines()[:40]:
            if line.startswith("data:"):
                parsed = _json(line[5:]) if _affordable(line, said) else None
                yield parsed or line[5:].strip()
        return
    if text[0] == "<":
        yield _BLANK.sub(" ", _TAG.sub(" ", text[:MAX_TEXT]))
        return
    yield text


def _json(text: str | bytes) -> JsonValue:
    """None where it is no JSON (or `null`)."""
    if text[:1] not in _JSON_STARTS and not text[:64].strip():
        text = text.strip()
    if text[:1] not in _JSON_STARTS:
        return None
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


_JSON_STARTS = frozenset('{[" \n\r\t') | {bytes([byte]) for byte in b'{[" \n\r\t'}


def _read(value: JsonValue, said: Said, depth: int) -> None:
    if depth > MAX_DEPTH or said.nodes <= 0:
        return
    said.nodes -= 1
    if isinstance(value, list):
        for item in value[:20]:
            if isinstance(item, dict | list):
                _read(item, said, depth + 1)
            elif isinstance(item, str) and depth > 0:
                _read_text(item, said, depth + 1)
    elif isinstance(value, dict):
        _read_object(value, said, depth)


def _read_object(value: JsonObject, said: Said, depth: int) -> None:
    items = value.items() if len(value) <= MAX_KEYS else islice(value.items(), MAX_KEYS)
    for key, inner in items:
        if inner is None or isinstance(inner, bool):
            continue
        name = key.lower()
        uses = _uses(name) if len(name) <= _LONGEST_NAME else _WRAP * ("err" in name)
        if uses & _ECHO:
            if uses & _DELTA and isinstance(inner, dict):
                _read_delta(inner, said)
        elif isinstance(inner, str):
            if uses and not (name == "text" and "finish_reason" in value):  # the model's words
                _read_string(uses, inner, said, depth)
        elif isinstance(inner, int | float):
            if uses:
                _read_number(name, uses, inner, said)
        elif uses & _USAGE:
            _read_usage(inner, said)
        elif uses & _WRAP:
            said.error = said.error or "err" in name
            _read(inner, said, depth + 1)


@lru_cache(maxsize=512)
def _uses(name: str) -> int:
    """What a field of this name is for."""
    if name in _ECHOES:
        return _ECHO | _DELTA * (name == "delta")
    return (
        _CODE * (name in _CODE_KEYS)
        | _TYPE * (name in _TYPE_KEYS)
        | _TEXT * (name in _TEXT_KEYS)
        | _WRAP * bool(_WRAPPER.search(name))
        | _ERROR * ("err" in name or "exception" in name)
        | _USAGE * (name in ("usage", "usagemetadata", "prompt_eval_count", "eval_count"))
        | _COUNT * bool(_COUNT_KEY.search(name))
        | _FINISH * (name in _FINISH_KEYS)
        | _PARAM * (name == "param")
    )


def _read_delta(value: JsonObject, said: Said) -> None:
    """Why a streamed answer ended; its words are the model's own."""
    for key, inner in islice(value.items(), MAX_KEYS):
        if key.lower() in _FINISH_KEYS and isinstance(inner, str):
            said.finish = inner.lower()


def _read_usage(value: JsonValue, said: Said) -> None:
    if isinstance(value, dict):
        for key, count in islice(value.items(), MAX_KEYS):
            if isinstance(count, int) and not isinstance(count, bool):
                said.usage[key] = count


def _read_number(name: str, uses: int, value: float, said: Said) -> None:
    number = int(value) if abs(value) < 1e12 else 0
    if uses & _ERROR or (name == "status_code" and number):
        said.error = True
    if uses & _CODE or name == "status":
        _read_code(number, said)
    elif uses & _USAGE:
        said.usage[name] = number
    elif uses & _COUNT:
        said.numbers.setdefault(name, number)


def _read_string(uses: int, value: str, said: Said, depth: int) -> None:
    text = value.strip()
    if uses & _ERROR:
        said.error = True
    if uses & _FINISH:
        said.finish = text.lower()
    if not text:
        return
    if uses & _PARAM:
        said.param = said.param or text.lower()[:200]
        if " " in text:  # some gateways put the words there
            _read_text(text, said, depth)
    if uses & (_CODE | _TYPE) and len(text) < 100:
        if uses & _CODE and text.isdecimal() and text.isascii() and len(text) < 9:
            _read_code(int(text), said)
        elif " " not in text:
            word = text.lower()
            if uses & _CODE:
                said.codes.append(word)
            if uses & _TYPE:
                said.types.append(word.rpartition("#")[2] if "#" in word else word)
                if word in _ERROR_TYPES:
                    said.error = True
    if uses & _TEXT:
        _read_text(text, said, depth)


_ERROR_TYPES = frozenset({"error", "response.failed"})
"""Types of stream events that are errors."""


def _read_code(number: int, said: Said) -> None:
    if 100 <= number <= 599:
        if number not in said.statuses:
            said.statuses.append(number)
    else:
        said.codes.append(str(number))


def _read_text(text: str, said: Said, depth: int) -> None:
    """A text: JSON inside it is read as JSON, what stands around it as text; echoes are cut out."""
    if said.left <= 0 or said.nodes <= 0:
        return
    said.nodes -= 1
    inner: JsonValue = None
    if "{" in text and depth <= MAX_DEPTH:
        text, inner = _embedded(text, said)
    if len(text) > said.left:
        text = _ends(text)[: said.left]
    text = without_echo(_spelled(text.lower())).strip()
    if text:
        while "  " in text:
            text = text.replace("  ", " ")
        said.left -= len(text)
        _read_labels(text[:300], said)
        said.texts.append(text)
    if inner is not None:
        _read(inner, said, depth + 1)


def _spelled(text: str) -> str:
    """With one kind of blank and of apostrophe, and without HTML's names for characters."""
    if not text.isascii():
        for blank in ("\xa0", "\u2009", "\u202f"):
            text = text.replace(blank, " ")
        text = text.replace("’", "'")
    if "&" in text:
        for name, character in _ENTITIES:
            text = text.replace(name, character)
    return text.replace("\t", " ") if "\t" in text else text


_ENTITIES = (
    ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&nbsp;", " "), ("&#39;", "'"), ("&#x27;", "'"),
    ("&#34;", '"'), ("&apos;", "'"), ("&#x60;", "`"), ("&#96;", "`"), ("&#62;", ">"), ("&#60;", "<"), ("&#160;", " "),
)  # fmt: skip


def _embedded(text: str, said: Said) -> tuple[str, JsonValue]:
    """A text's words before its JSON object, and that object; all of the text and None where it has none."""
    if text.startswith("b'{") and text.endswith("'"):
        text = text[2:-1]
    position = -1
    for _ in range(_MAX_EMBEDDED):
        position = text.find("{", position + 1)
        if position < 0 or not _affordable(text, said, position):
            break
        try:
            value, _end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value:
            return text[:position].removesuffix("b'"), value
    return text, None


def _read_labels(head: str, said: Said) -> None:
    """Codes, error classes and statuses that gateways write into the text: `[1261]`, `litellm.RateLimitError: 400`."""
    bracket = "[" in head
    if bracket:
        for label in _LABEL.findall(head):
            if label.isdecimal():
                _read_code(int(label), said)
            else:
                said.codes.append(label)
    if "error" in head or "exception" in head:
        said.types.extend(_CLASS.findall(head))
    if bracket or head[0] in "45" or "status" in head or "api error" in head:
        status = _LEADING_STATUS.search(head)
        if status and int(status[1]) not in said.statuses:
            said.statuses.append(int(status[1]))
