"""Cache marks: where they are seen, when a summary gets one, what it asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.wire import REQUESTS
from tidegate.wire.cache_marks import LIMIT, LONG, SHORT, control_for, controls, count, marked

FIVE = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("story", "value", "expected"),
    [
        ("a string", "text", 0),
        ("nothing", None, 0),
        ("a block", [{**TEXT, **FIVE}, TEXT], 1),
        ("a tool", [{"name": "read", "input_schema": {}, **HOUR}], 1),
        ("a chat tool, inside", [{"type": "function", "function": {"name": "read", **FIVE}}], 1),
        ("a message of its own", {"role": "user", "content": "a", **FIVE}, 1),
        ("a tool result and a part of it", {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [{**TEXT, **FIVE}], **FIVE}]}, 2),
        ("a tool's input", {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "n", "input": {**FIVE}}]}, 0),
        ("a tool's schema", [{"name": "read", "input_schema": {"properties": {**FIVE}}}], 0),
        ("a mark that says nothing", {**TEXT, "cache_control": None}, 0),
        ("words about marks", [{"type": "text", "text": '"cache_control": {"type": "ephemeral"}'}], 0),
    ],
)  # fmt: skip
def test_marks_are_seen_where_the_api_looks_for_them(story: str, value: Any, expected: int) -> None:
    assert len(controls(value)) == expected
    assert count(json.dumps(value).encode()) == expected


def test_what_cannot_be_read_has_none() -> None:
    assert count(b'{"cache_control": ') == 0


@pytest.mark.parametrize("dialect", ["messages", "chat"])
def test_an_item_tells_of_its_marks(dialect: str) -> None:
    facts = REQUESTS[dialect].facts  # type: ignore[index]
    assert (facts({"role": "user", "content": [TEXT]}).marks, facts({"role": "user", "content": "a"}).marks) == (0, 0)
    one = facts({"role": "user", "content": [TEXT, {**TEXT, **FIVE}]})
    assert (one.marks, one.long_mark) == (1, False)
    two = facts({"role": "user", "content": [{**TEXT, **HOUR}, {**TEXT, **FIVE}]})
    assert (two.marks, two.long_mark) == (2, True)


@pytest.mark.parametrize(
    ("story", "given", "expected"),
    [
        ("a client without marks", {}, b""),
        ("marks that are null", {"automatic": b"null"}, b""),
        ("Claude Code: two on the system prompt, one on the newest block", {"before": 2, "after": 1}, SHORT),
        ("OpenCode: two on the system prompt, two on the newest", {"before": 2, "after": 2}, b""),
        ("pi: system prompt, last tool, newest block", {"before": 2, "after": 1}, SHORT),
        ("all of them on what was replaced", {"removed": 1}, SHORT),
        ("four, one of them replaced", {"before": 2, "after": 1, "removed": 1}, SHORT),
        ("the API's own counts", {"before": 3, "automatic": b'{"type":"ephemeral"}'}, b""),
        ("the API's own alone", {"automatic": b'{"type":"ephemeral"}'}, SHORT),
        ("an hour later on", {"before": 1, "after": 1, "long_after": True}, LONG),
        ("an hour by the API's own", {"automatic": b'{"type": "ephemeral", "ttl": "1h"}'}, LONG),
        ("an hour before only", {"before": 1}, SHORT),
        ("more than the API takes", {"before": 3, "after": 2}, b""),
    ],
)  # fmt: skip
def test_when_a_summary_is_marked(story: str, given: dict[str, Any], expected: bytes) -> None:
    plain = {"before": 0, "after": 0, "removed": 0, "automatic": b"", "long_after": False}
    assert control_for(**{**plain, **given}) == expected


@settings(deadline=None, max_examples=100)
@given(*[st.integers(0, 5)] * 3, st.booleans(), st.booleans())
def test_never_more_than_the_client_s_and_one_nor_than_the_limit(
    before: int, after: int, removed: int, automatic: bool, long_after: bool
) -> None:
    own = SHORT if automatic else b""
    control = control_for(before=before, after=after, removed=removed, automatic=own, long_after=long_after)
    total = before + after + automatic + bool(control)
    client = before + after + removed + automatic
    assert total <= client + 1
    assert total <= max(LIMIT, before + after + automatic)
    assert control == b"" or client


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": [{**TEXT, **FIVE}]}),
        ({"role": "user", "content": [TEXT, {**TEXT, **HOUR}]},
         {"role": "user", "content": [{**TEXT, **FIVE}, {**TEXT, **HOUR}]}),
        ({"role": "user", "content": ""}, None),
        ({"role": "user", "content": []}, None),
        ({"role": "user", "content": [{"type": "text", "text": ""}]}, None),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}]}, None),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, None),
        ({"role": "user", "content": None}, None),
    ],
)  # fmt: skip
def test_the_mark_goes_on_the_first_words_and_on_nothing_else(item: dict[str, Any], expected: Any) -> None:
    raw = json.dumps(item).encode()
    found = marked(raw, SHORT)
    assert json.loads(found) == expected if expected else found == raw
    assert marked(raw, b"") == raw
