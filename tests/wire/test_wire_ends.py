"""What a JSON answer says of its end is the same, whether its words are read or not."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.wire import chat_answers, messages_answers, responses_answers
from tidegate.wire.answers import is_json

WORDS = st.sampled_from(
    ["stop", "length", "error", "tool_calls", "content_filter", "end_turn", "tool_use", "max_tokens", "refusal",
     "model_context_window_exceeded", "completed", "incomplete", "failed", "assistant", "text", "function_call", ""]
)  # fmt: skip
KEYS = st.sampled_from(
    ["choices", "finish_reason", "stop_reason", "usage", "prompt_tokens", "completion_tokens", "input_tokens",
     "output_tokens", "error", "type", "message", "code", "index", "content", "output", "status", "name", "detail",
     "incomplete_details", "reason", "x_groq", "tool_calls", "base_resp", "status_code", "role", "delta"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-2, 500) | WORDS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)
CHOICE = st.fixed_dictionaries({"finish_reason": LEAVES, "message": VALUES}, optional={"index": st.integers(0, 1)})
COUNTS = st.fixed_dictionaries(
    {"prompt_tokens": st.integers(-2, 500)},
    optional={
        "completion_tokens": st.integers(-2, 50),
        "prompt_tokens_details": st.none() | st.fixed_dictionaries({"cached_tokens": LEAVES}),
        "prompt_cache_hit_tokens": LEAVES,
        "cached_tokens": LEAVES,
    },
)
ORDINARY = st.fixed_dictionaries(
    {"choices": st.lists(CHOICE, max_size=2), "usage": COUNTS},
    optional=dict.fromkeys(("error", "base_resp", "type", "x_groq", "code", "message", "detail"), LEAVES),
)
ANSWER = (
    ORDINARY
    | st.dictionaries(KEYS, VALUES, max_size=6)
    | st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2)}, optional={"usage": VALUES, "error": VALUES})
)


@pytest.mark.parametrize("dialect", [chat_answers, messages_answers, responses_answers])
@given(answer=ANSWER)
@settings(max_examples=300, deadline=None)
def test_an_end_is_the_same_with_and_without_the_words(dialect: ModuleType, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    assert is_json(body)
    whole, end = dialect.read_answer(body), dialect.read_end(body)
    assert (end.finish, end.usage, end.error) == (whole.finish, whole.usage, whole.error)


@pytest.mark.parametrize("dialect", [chat_answers, messages_answers, responses_answers])
@pytest.mark.parametrize("body", [b"{", b"[]", b"[1]", b"{}", b'{"a":1}x'])
def test_an_end_of_what_is_no_answer(dialect: ModuleType, body: bytes) -> None:
    whole, end = dialect.read_answer(body), dialect.read_end(body)
    assert (end.finish, end.usage, end.error) == (whole.finish, whole.usage, whole.error)
