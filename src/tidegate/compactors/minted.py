"""What a compaction on the Responses API hands back, as bytes: the sealed item, and what stands beside it.

Knows which of it may be sent again and how; makes no call. Called by the strategies `openai` and `xai`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.compactors.strategy import CompactionFailed, Passage
from tidegate.wire import responses
from tidegate.wire.answers import count, failed, read_object
from tidegate.wire.conversation import Facts, JsonObject
from tidegate.wire.jsontext import array_spans, dumps, loads, object_spans
from tidegate.wire.untyped import ids_at, object_at, text_at

_BOM: Final = b"\xef\xbb\xbf"
_ARTIFACT: Final = b'"compaction"'


@dataclass(frozen=True, slots=True)
class Given:
    """One item, as bytes and parsed."""

    raw: bytes = field(repr=False)
    value: JsonObject = field(repr=False)

    @property
    def is_artifact(self) -> bool:
        """It is a sealed compaction, by any of its names."""
        return text_at(self.value, "type") in responses.COMPACTIONS and bool(text_at(self.value, "encrypted_content"))


def given(raw: bytes) -> Given:
    """An item from its JSON. Raises `CompactionFailed`."""
    try:
        value = loads(raw)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CompactionFailed("compact_unreadable")
    return Given(raw, value)


def error_in(body: bytes) -> bytes:
    """The body itself where it is an error under a 200, else empty."""
    answer = read_object(body)
    return body if answer is not None and failed(answer, "output") else b""


def output_of(body: bytes) -> list[Given]:
    """The items of an answer's `output`. Raises `CompactionFailed`."""
    body = body.removeprefix(_BOM)
    try:
        spans = array_spans(body, *object_spans(body)["output"])
    except (ValueError, KeyError) as error:
        raise CompactionFailed("compact_unreadable") from error
    return [given(body[start:end]) for start, end in spans]


def usage_of(body: JsonObject) -> tuple[int, int]:
    """Input and output tokens that an answer says it is billed for."""
    usage = object_at(body, "usage")
    return count(usage, "input_tokens"), count(usage, "output_tokens")


def the_artifact(items: Sequence[Given]) -> bytes:
    """Raw JSON of the one sealed compaction among these. Raises `CompactionFailed` for none and for more."""
    found = [item for item in items if item.is_artifact]
    if len(found) != 1:
        raise CompactionFailed("compact_two_artifacts" if found else "compact_no_artifact")
    return named(found[0])


def named(item: Given) -> bytes:
    """Raw JSON of a sealed compaction under the name that every endpoint knows; nothing else in it is touched."""
    if text_at(item.value, "type") == "compaction":
        return item.raw
    try:
        start, end = object_spans(item.raw)["type"]
    except ValueError as error:
        raise CompactionFailed("compact_unreadable") from error
    return item.raw[:start] + _ARTIFACT + item.raw[end:]


def repaired(items: Sequence[Given]) -> tuple[bytes, ...]:
    """Raw JSON of a returned window that can be sent again: in order, the sealed item as it is.

    An answer of the assistant without the reasoning it was made with loses its id, and a reasoning item without what it
    led to goes: the API refuses both (openai-agents-python#2727). So does a call or a result without the other.
    """
    facts = [responses.facts(item.value) for item in items]
    called = Counter(name for item in facts for name in item.calls)
    answered = Counter(name for item in facts for name in item.results)
    lone = (called - answered) + (answered - called)
    return tuple(_repaired(items, facts, frozenset(lone)))


def _repaired(items: Sequence[Given], facts: Sequence[Facts], lone: frozenset[str]) -> Iterator[bytes]:
    beside_reasoning = False
    for n, (item, its) in enumerate(zip(items, facts, strict=True)):
        if item.is_artifact:
            yield named(item)
            continue
        if its.kind == "reasoning":
            after = facts[n + 1] if n + 1 < len(facts) else None
            beside_reasoning = after is not None and after.role == "assistant" and after.kind != "reasoning"
            beside_reasoning = beside_reasoning and lone.isdisjoint((*after.calls, *after.results) if after else ())
            if beside_reasoning:
                yield item.raw
            continue
        if its.role not in ("assistant", "tool"):
            beside_reasoning = False
        if not lone.isdisjoint((*its.calls, *its.results)):
            continue
        if its.role == "assistant" and not beside_reasoning and ids_at(item.value, "id"):
            yield dumps({key: value for key, value in item.value.items() if key != "id"})
        else:
            yield item.raw


def leading(passage: Passage) -> tuple[bytes, ...]:
    """Raw JSON of the leading system items. They are compacted too: an API that reads only what comes after a sealed
    item must find in it what they say, and anew each time, since it fades when a sealed item is compacted again."""
    conversation = passage.conversation
    return tuple(conversation.item_raw(n) for n in range(conversation.lead))


def retained_value(passage: Passage, position: int) -> JsonObject:
    """The item at a chain position, parsed."""
    conversation = passage.conversation
    value = loads(conversation.item_raw(conversation.lead + position))
    return value if isinstance(value, dict) else {}


def systems(passage: Passage) -> tuple[int, ...]:
    """Those of the retained positions that hold system items."""
    return tuple(p for p in passage.retained if responses.facts(retained_value(passage, p)).role == "system")
