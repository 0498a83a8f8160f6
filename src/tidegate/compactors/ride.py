"""The summary call that rides: the session's own request up to the cut, and one message that asks for the summary, so
that the provider reads its input from the prompt cache.

Knows which requests may be continued so, and what that costs beside a transcript. Called by the summary strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tidegate.compactors.strategy import Ride
from tidegate.wire import REQUESTS
from tidegate.wire.cache_marks import LIMIT, SHORT, controls, count, marked
from tidegate.wire.conversation import Conversation
from tidegate.wire.jsontext import JsonObject, JsonValue, dumps, loads

Riding: TypeAlias = Literal["auto", "always", "off"]

LOOKBACK: Final = 20
"""Blocks before a mark that Anthropic searches for what it has cached."""

_PLAIN: Final = (None, "auto", "none")
"""Tool choices that leave the model free to answer in words."""

_TO_EMPTY: Final = frozenset({"stop", "stop_sequences", "modalities", "audio", "prediction", "background"})
"""Fields that would cut or bend a summary, or make it something else than one answer in words."""


@dataclass(frozen=True, slots=True)
class Caching:
    """How a provider caches the beginnings of requests. Prices are shares of the price of an input token."""

    read: float
    """Of a token read from the cache."""
    write: float = 1.0
    """Of a token that is read anew, and written to the cache."""
    marks: bool = False
    """Only what the client marks is cached (`cache_control`)."""
    minimum: int = 1024
    """Tokens below which nothing is cached."""
    lifetime: float = 300.0
    """Seconds since its last use that something is sure to be cached."""


def cost(ride: Ride, caching: Caching, request_tokens: int) -> float:
    """Price of a ride's input, in full-price tokens: what is cached at the reading price, the rest, and the
    `request_tokens` of the message that asks, at the writing price. Output costs the same either way."""
    cached = ride.cached if ride.cached >= caching.minimum else 0
    return caching.read * cached + caching.write * (ride.tokens - cached + request_tokens)


@dataclass(frozen=True, slots=True)
class Continued:
    """A body ready to be sent."""

    body: bytes
    limit: int | None
    """The output limit in it, None where it states none."""
    stream: bool


def continued(
    ride: Ride, like: Conversation, request: str, *, room: int, free: int | None, caching: Caching | None
) -> Continued | None:
    """The ridden request with one user message after its items; None where it can't be.

    The items up to the cut and every field that a provider's cache hangs on keep their bytes. Only the output limit may
    change (no cache hangs on that): to leave `room` real tokens for the summary, thinking not counted, within the
    `free` ones of the window.
    """
    conversation = REQUESTS[like.dialect].read(ride.body)
    stop = len(conversation.items) - ride.after
    if not conversation.lead < stop or not may_be_continued(conversation):
        return None
    tail = conversation.raw[conversation.items[stop].start : conversation.items[-1].end] if ride.after else b""
    if tail != ride.tail:  # what is forwarded is not laid out like the history it stands for
        return None
    item = REQUESTS[like.dialect].text_item("user", request)
    if caching is not None and caching.marks:
        total = _marks_before(conversation, stop)
        automatic = conversation.field("cache_control") not in (b"", b"null")
        if total >= LIMIT and not automatic:
            return None
        # The API's own goes on the last block by itself; a client without marks gets none.
        item = marked(item, SHORT) if total and not automatic else item
    least = room + _thinking(conversation, room)
    if free is not None and free < least:
        return None
    raw, start, end = conversation.raw, conversation.items[stop - 1].end, conversation.items[-1].end
    body = b"".join((raw[:start], b",", item, raw[end:]))
    own = conversation.output_limit
    limit = own if own is None else max(least, own if free is None else min(own, free))
    if limit != own:
        fields: Mapping[str, bytes] = {
            name: dumps(limit)
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
            if conversation.field(name) not in (b"", b"null")
        }
        body = REQUESTS[like.dialect].read(body).replace_fields(fields)
    return Continued(body, limit, conversation.stream)


def may_be_continued(conversation: Conversation) -> bool:
    """Whether a request leaves its model free to answer one more message in plain words: no forced tool, no format for
    the answer, no stop words, one answer."""
    fields = conversation.fields
    if any(fields.get(name, b"null") not in (b"null", b"[]", b"false") for name in _TO_EMPTY):
        return False
    if fields.get("n", b"null") not in (b"null", b"1"):
        return False
    chosen = (_value(fields.get(name)) for name in ("tool_choice", "function_call"))
    return all(map(_free_choice, chosen)) and _plain_format(_value(conversation.schema or None))


def _free_choice(choice: JsonValue) -> bool:
    if isinstance(choice, dict):
        inner = choice.get("allowed_tools")
        mode = inner.get("mode") if isinstance(inner, dict) else choice.get("mode")
        return choice.get("type") in ("auto", "none") or (choice.get("type") == "allowed_tools" and mode == "auto")
    return choice in _PLAIN


def _plain_format(schema: JsonValue) -> bool:
    if not isinstance(schema, dict):
        return schema is None
    shape = schema.get("format", schema)
    return not isinstance(shape, dict) or shape.get("type") in (None, "text")


def _thinking(conversation: Conversation, room: int) -> int:
    """Real tokens that an answer may spend on thinking before its words: the budget that was given, as much again as
    the words where thinking has none, nothing where none was asked for."""
    asked = _value(conversation.fields.get("thinking"))
    if isinstance(asked, dict) and asked.get("type") not in (None, "disabled"):
        budget = asked.get("budget_tokens")
        return budget if isinstance(budget, int) else room
    effort = _value(conversation.fields.get("reasoning_effort"))
    reasoning = _value(conversation.fields.get("reasoning"))
    if isinstance(reasoning, dict):
        effort = reasoning.get("effort", "medium")
    return 0 if effort in (None, "none") else room


def _marks_before(conversation: Conversation, stop: int) -> int:
    items: list[JsonValue] = [_object(conversation.items[n].raw) for n in range(stop)]
    return len(controls(items)) + count(conversation.system) + count(conversation.tools)


def _object(raw: bytes) -> JsonObject | None:
    value = _value(raw) if b"cache_control" in raw else None
    return value if isinstance(value, dict) else None


def _value(raw: bytes | None) -> JsonValue:
    try:
        return loads(raw) if raw else None
    except ValueError:
        return None
