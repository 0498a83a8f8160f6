"""What an answer says it was billed for, whatever came of it: for the account, never for the size of a context.

Knows the usage objects of the three APIs; not which answers are of use. Called by the engine for what failed.
"""

from __future__ import annotations

from tidegate.wire import ANSWERS
from tidegate.wire.answers import count, events_of, is_json, read_object
from tidegate.wire.conversation import DialectName, JsonObject, Usage
from tidegate.wire.untyped import object_at, objects_at

_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")
"""Of Anthropic's usage: they are no part of its `input_tokens`."""


def billed(dialect: DialectName, body: bytes) -> Usage:
    """Tokens of a whole answer of any kind, streamed or not; zeros where it says nothing. Never raises.

    OpenAI and xAI fold a compaction into the ordinary usage; Anthropic counts it in `iterations` alone, each of which
    is billed (platform.claude.com, "Compaction": sum over `usage.iterations`).
    """
    try:
        counts = _counts(dialect, body)
    except Exception:  # whatever an answer holds that nobody has foreseen is no reason to fail for
        return Usage(0)
    samples = objects_at(counts, "iterations") or [counts]
    beside = _CACHED if dialect == "messages" else ()
    return Usage(
        sum(_first(it, "input_tokens", "prompt_tokens") + sum(count(it, key) for key in beside) for it in samples),
        sum(_first(it, "output_tokens", "completion_tokens") for it in samples),
    )


def _first(counts: JsonObject, *names: str) -> int:
    return next((found for name in names if (found := count(counts, name))), 0)


def _counts(dialect: DialectName, body: bytes) -> JsonObject:
    """The usage object; of a stream, its parts put together."""
    if is_json(body):
        answer = read_object(body) or {}
        return object_at(answer, "usage") or object_at(object_at(answer, "response"), "usage")
    counts: JsonObject = {}
    for event in events_of(body):
        said = ANSWERS[dialect].signal(event).counts or {}
        counts |= {key: value for key, value in said.items() if value is not None}
    return counts
