"""Items of the three APIs as they are on the wire, read and cut: where a real history may be cut."""

from __future__ import annotations

import json

import pytest

from tidegate.context.cut import choose, newest_turn, safe_cuts
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.wire.conversation import DialectName, JsonObject

LEDGER = Ledger(Hasher(b"k" * 32))


def call(name: str) -> JsonObject:
    return {"id": name, "type": "function", "function": {"name": "read", "arguments": "{}"}}


def asks(*names: str) -> JsonObject:
    return {"role": "assistant", "content": None, "tool_calls": [call(name) for name in names]}


def use(name: str) -> JsonObject:
    return {"type": "tool_use", "id": name, "name": "read", "input": {}}


def answer(name: str) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": name, "content": "42 lines"}


USER: JsonObject = {"role": "user", "content": "Read the tide table"}
DONE: JsonObject = {"role": "assistant", "content": "High water is at noon"}
THOUGHT: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "g" * 400}
ASKED: JsonObject = {
    "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}",
}  # fmt: skip
ALSO_ASKED: JsonObject = {
    "type": "custom_tool_call", "id": "ct_1", "call_id": "c2", "name": "put", "input": "x",
}  # fmt: skip
GOT: JsonObject = {"type": "function_call_output", "call_id": "c1", "output": "42 lines"}
ALSO_GOT: JsonObject = {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"}


SEARCHES = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}


@pytest.mark.parametrize(
    ("dialect", "items", "allowed"),
    [
        ("chat", [USER, asks("a", "b"), {"role": "tool", "tool_call_id": "b", "content": "2"},
                  {"role": "tool", "tool_call_id": "a", "content": "1"}, DONE, USER], [0, 1, 4, 5, 6]),
        ("chat", [USER, {"role": "assistant", "function_call": {"name": "read", "arguments": "{}"}},
                  {"role": "function", "name": "read", "content": "1"},
                  {"role": "assistant", "function_call": {"name": "read", "arguments": "{}"}},
                  {"role": "function", "name": "read", "content": "2"}], [0, 1, 3, 5]),
        ("chat", [USER, asks("a", "b"), {"role": "tool", "tool_call_id": "a", "content": "1"}], [0, 1]),
        ("responses", [USER, THOUGHT, ASKED, ALSO_ASKED, GOT, ALSO_GOT, DONE, USER], [0, 1, 6, 7, 8]),
        ("responses", [USER, THOUGHT, {**DONE, "id": "msg_1"}, ASKED, GOT, USER], [0, 1, 5, 6]),
        ("responses", [USER, {"type": "web_search_call", "id": "ws_1", "action": {}}, DONE], [0, 1, 2, 3]),
        ("responses", [USER, {"type": "novel_call", "id": "nc_1", "call_id": "c9"}, USER,
                       {"type": "novel_call_output", "call_id": "c9"}, USER], [0, 1, 4, 5]),
        ("messages", [USER, {"role": "assistant", "content": [use("a"), use("b")]},
                      {"role": "user", "content": [answer("a"), answer("b")]}, DONE, USER], [0, 1, 3, 4, 5]),
        ("messages", [USER, {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}]}, USER], [0, 1, 2, 3]),
        ("messages", [USER, {"role": "assistant", "content": [use("a")]}], [0, 1]),
        # A tool of the provider's at work: its answer goes on with the next message, or is yet to come.
        ("messages", [USER, {"role": "assistant", "content": [SEARCHES]}, {"role": "assistant", "content": [
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}]}, USER], [0, 1, 3, 4]),
        ("messages", [USER, {"role": "assistant", "content": [SEARCHES]}], [0, 1]),
    ],
)  # fmt: skip
def test_cut_points(dialect: DialectName, items: list[JsonObject], allowed: list[int]) -> None:
    facts = [LEDGER.entry(dialect, json.dumps(item).encode()).facts for item in items]
    assert [i for i, safe in enumerate(safe_cuts(facts)) if safe] == allowed


def test_words_beside_tool_results_are_the_users_newest_and_stay_legal() -> None:
    mixed = {"role": "user", "content": [answer("a"), {"type": "text", "text": "And the wind?"}]}
    turn = [{"role": "assistant", "content": [use("b")]}, {"role": "user", "content": [answer("b")]}]
    items = [USER, {"role": "assistant", "content": [use("a")]}, mixed, *turn, *turn]
    entries = [LEDGER.entry("messages", json.dumps(item).encode()) for item in items]
    facts = [entry.facts for entry in entries]
    assert newest_turn(facts) == 2
    tokens = [entry.tokens for entry in entries]
    cut = choose(facts, tokens, covered=0, room=1, tail_max=1, min_gain=1, retain_system_max=0)
    assert cut is not None
    assert (cut.at, cut.retained) == (5, (1, 2))


def test_an_image_of_three_megabytes_is_sized_by_its_kind() -> None:
    data = "data:image/png;base64," + "iVBORw0KGgo" * 270_000
    items: dict[DialectName, JsonObject] = {
        "chat": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data}}]},
        "responses": {"role": "user", "content": [{"type": "input_image", "image_url": data}]},
        "messages": {"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": data[22:]}}]},
    }  # fmt: skip
    for dialect, item in items.items():
        assert LEDGER.entry(dialect, json.dumps(item).encode()).tokens < 10_000


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_base64_in_a_text_is_not_missed(dialect: DialectName) -> None:
    item = {"role": "user", "content": "See " + "iVBORw0KGgo" * 91_000}
    assert LEDGER.entry(dialect, json.dumps(item).encode()).tokens > 1_000_000
