"""Results that the model has not answered yet stay as they are, though the user has said more after them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playbook import Playbook
from stage import body, history, kit, request, target

from tidegate.engine.checkpoint import Found
from tidegate.engine.effects import Find, Send
from tidegate.engine.exchange import exchange

CALL = {"id": "call_new", "type": "function", "function": {"name": "read", "arguments": "{}"}}


def asked(turns: int, size: int) -> bytes:
    """Turns of 1,000 tokens, then a result of that size, then a word of the user's."""
    talk: list[dict[str, Any]] = history(turns, 1000)[:-1]
    return body([
        *talk,
        {"role": "user", "content": "look once more"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_new", "content": "the very line " + "abcdefg " * (size // 2)},
        {"role": "user", "content": "and be quick"},
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("turns", "size", "stays"),
    [
        (30, 4_000, True),  # within what is kept anyway
        (18, 18_000, True),  # nearly half of the window
        (10, 26_000, False),  # more than half
    ],
)
def test_they_stay_as_long_as_half_the_window_holds_them(turns, size, stays):
    play = Playbook(exchange(request(asked(turns, size), to=target(40_000)), kit()))
    play.expect(Find)
    sent = play.reply(Found()).summarise().expect(Send)
    messages = json.loads(sent.body or b"")["messages"]
    assert messages[-1] == {"role": "user", "content": "and be quick"}
    results = [m for m in messages if m["role"] == "tool"]
    assert ([m["content"][:13] for m in results[-1:]] == ["the very line"]) is stays
