"""What an answer says it was billed for, in every shape that providers have for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.wire.billing import billed


def sse(*events: Any) -> bytes:
    return "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events).encode()


CASES: dict[str, tuple[Any, bytes, tuple[int, int]]] = {
    "chat": ("chat", b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}', (9, 2)),
    "chat, streamed": (
        "chat",
        sse(
            {"choices": [], "usage": None},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
            "[DONE]",
        ),
        (9, 2),
    ),
    "responses": ("responses", b'{"output":[],"usage":{"input_tokens":9,"output_tokens":2}}', (9, 2)),
    "responses, cached ones are in it": (
        "responses",
        b'{"output":[],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8},"output_tokens":2}}',
        (9, 2),
    ),
    "responses, in an event's shape": (
        "responses",
        b'{"response":{"usage":{"input_tokens":9,"output_tokens":2}}}',
        (9, 2),
    ),
    "xai": (
        "responses",
        b'{"output":[],"usage":{"input_tokens":9,"output_tokens":2,"dropped_message_count":1}}',
        (9, 2),
    ),
    "messages, caches beside it": (
        "messages",
        b'{"usage":{"input_tokens":1,"cache_creation_input_tokens":3,"cache_read_input_tokens":5,"output_tokens":2}}',
        (9, 2),
    ),
    "messages, iterations": (
        "messages",
        b'{"usage":{"input_tokens":0,"output_tokens":0,"iterations":[{"type":"compaction","input_tokens":4,'
        b'"cache_read_input_tokens":3,"output_tokens":1},{"type":"message","input_tokens":2,"output_tokens":1}]}}',
        (9, 2),
    ),
    "messages, no iterations": ("messages", b'{"usage":{"input_tokens":9,"output_tokens":2,"iterations":[]}}', (9, 2)),
    "messages, streamed": (
        "messages",
        sse(
            {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        ),
        (9, 2),
    ),
    "nothing": ("chat", b"", (0, 0)),
    "a page": ("chat", b"<html>busy</html>", (0, 0)),
    "an error": ("responses", b'{"error":{"message":"no"}}', (0, 0)),
    "half of it": ("messages", b'{"usage":{"input_tokens":', (0, 0)),
    "nonsense": ("messages", b'{"usage":{"input_tokens":"many","iterations":7}}', (0, 0)),
    "a list": ("chat", b"[1,2]", (0, 0)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_what_an_answer_was_billed_for(name: str) -> None:
    dialect, body, expected = CASES[name]
    found = billed(dialect, body)
    assert (found.input_tokens, found.output_tokens) == expected
