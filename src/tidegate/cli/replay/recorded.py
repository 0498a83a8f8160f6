"""What a recorded session is, whatever file it comes from: the requests in their order.

Knows bodies and items; no file format. Called by the readers of each format and by `playing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import dumps

FILLER: Final = b"word"
"""Stands in for words that a file does not hold: each with its space counts as more than one token nowhere."""


class Unreadable(ValueError):
    """A file is no recorded session; the text says where and why, and holds none of its words."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a session."""

    dialect: DialectName
    body: bytes = field(repr=False)
    line: int | None = None
    """Where in the file: the line with the request, or with the beginning of its answer."""
    at: float | None = None
    """Seconds since the epoch, where the file tells."""
    aside: bool = False
    """Of a sub-agent."""


Requests: TypeAlias = Callable[[bytes], Iterator[Asked]]
"""The requests, in order; given raw JSON of a text that stands before the system prompt, empty for none."""


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded session. `requests` may be called as often as it is played."""

    file: str
    format: str
    """For people: `requests`, `a transcript`, `a session of Claude Code` ..."""
    requests: Requests = field(repr=False)
    window: int | None = None
    """Tokens, where the file tells."""
    reported: int | None = None
    """Input tokens that the provider counted in the first request, where the file tells."""
    lacks: str = ""
    """What its requests held and the file does not."""
    notes: tuple[str, ...] = ()
    """What else whoever reads the figures should know."""


def filler(tokens: int) -> bytes:
    """A text of about so many tokens, as JSON."""
    return dumps(" ".join([FILLER.decode()] * max(1, tokens * 4 // (len(FILLER) + 1))))


def body_of(fields: Mapping[str, JsonValue], key: str, items: Sequence[bytes]) -> bytes:
    """A body with these fields, and raw items under `key`."""
    top = dumps({**fields})[1:-1]
    return b"{" + top + (b"," if top else b"") + dumps(key) + b":[" + b",".join(items) + b"]}"


def with_words_before(dialect: DialectName, fields: JsonObject, words: str) -> JsonObject:
    """The fields with words before the system prompt that stands among them."""
    key = "instructions" if dialect == "responses" else "system"
    own = fields.get(key)
    if isinstance(own, list):
        return {**fields, key: [{"type": "text", "text": words}, *own]}
    return {**fields, key: f"{words}\n\n{own}" if isinstance(own, str) and own else words}


def is_answer(dialect: DialectName, item: JsonObject) -> bool:
    """Whether the model wrote an item."""
    return REQUESTS[dialect].facts(item).role == "assistant"


def before_each_answer(dialect: DialectName, items: Sequence[JsonObject]) -> Iterator[int]:
    """Of a transcript: how many of its items each request held, one for each answer of the model, and one for what
    stands after the last of them."""
    answering = False
    for position, item in enumerate(items):
        begins = is_answer(dialect, item) and not answering
        answering = is_answer(dialect, item)
        if begins and position:
            yield position
    if items and not answering:
        yield len(items)


def when(stamp: object) -> float | None:
    """Seconds since the epoch of a time as ISO 8601; None for anything else."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else None
    except ValueError:
        return None


def count_of(value: object) -> int | None:
    """A number of tokens, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
