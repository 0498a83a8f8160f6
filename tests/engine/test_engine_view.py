"""How a summary stands in a body: where, beside what, and merged into what. Each case is a body before and after."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_world import new_kit, target_of
from stage import HASHER, TENANT

from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.view import View, applied, barred_cuts, read_history
from tidegate.wire import read

Json = dict[str, Any]
KEYS = {"chat": "messages", "responses": "input", "messages": "messages"}


def view_of(
    dialect: str, items: list[Json], length: int, retained: tuple[int, ...] = (), fields: Json | None = None, **to: Any
) -> View | None:
    """The view of these items with the first `length` summed up as `S`."""
    raw = json.dumps({"model": "m", KEYS[dialect]: items, **(fields or {})}).encode()
    past = read_history(read(dialect, raw), TENANT, HASHER, Ledger(HASHER))  # type: ignore[arg-type]
    point = Checkpoint(
        tenant=TENANT, bucket=past.chain.bucket, length=length, chain=past.chain.links[length], head=past.head,
        dialect=dialect, artifact=Artifact("text", text="S", retained=retained), provider="openai",  # type: ignore[arg-type]
        endpoint="http://up/v1", model="m", strategy="summary", tokens_before=0, tokens_after=0,
    )  # fmt: skip
    return applied(past, point, target_of(dialect, 8000, **to))


def sent(view: View | None, dialect: str) -> list[Any]:
    """The items of a view, short: the summary as `S`, a message that it was merged into with `S` before its words."""
    assert view is not None
    return [short(item) for item in json.loads(view.body)[KEYS[dialect]]]


def short(item: Json) -> Any:
    def words(text: str) -> str:
        if not text.startswith("<conversation_summary"):
            return text
        return "S" + text.partition("</conversation_summary>")[2].replace("\n\n", "+", 1)

    content = item.get("content")
    if isinstance(content, str):
        return words(content)
    if isinstance(content, list):
        parts = [words(part["text"]) if "text" in part else part["type"] for part in content]
        return parts[0] if len(parts) == 1 else parts
    return item.get("type") or "call"


def user(text: Any) -> Json:
    return {"role": "user", "content": text}


def says(text: Any) -> Json:
    return {"role": "assistant", "content": text}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def call(name: str, text: str | None = None) -> Json:
    function = {"id": name, "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return {"role": "assistant", "content": text, "tool_calls": [function]}


def result(name: str) -> Json:
    return {"role": "tool", "tool_call_id": name, "content": f"result {name}"}


def use(name: str) -> Json:
    return {"type": "tool_use", "id": name, "name": "read", "input": {}}


def answer(name: str) -> Json:
    return {"type": "tool_result", "tool_use_id": name, "content": "found"}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig"}

# -- where the summary stands ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "items", "length", "retained", "to", "expected"),
    [
        ("chat", [user("a"), says("b"), user("c")], 2, (), {}, ["S", "c"]),
        ("chat", [user("a"), says("b"), user("c")], 2, (), {"merge_user": True}, ["S+c"]),
        ("chat", [user("a"), says("b"), user(None)], 2, (0,), {"merge_user": True}, ["S+a", "call"]),
        ("chat", [user("a"), says("b"), user([{"type": "text", "text": "c"}])], 2, (), {"merge_user": True},
         [["S", "c"]]),
        ("chat", [user("a"), says("b"), says("c")], 2, (0,), {}, ["S", "a", "c"]),
        ("chat", [user("a"), says("b"), says("c")], 2, (0,), {"merge_user": True}, ["S+a", "c"]),
        ("chat", [system("lead"), user("a"), says("b"), user("c")], 2, (), {"merge_user": True}, ["lead", "S+c"]),
        ("responses", [user("a"), says("b"), user("c")], 2, (), {}, ["S", "c"]),
        ("messages", [user("a"), says("b"), user("c")], 2, (), {}, [["S", "c"]]),
        ("messages", [user("a"), says("b"), says("c"), user("d")], 2, (), {}, ["S", "c", "d"]),
        ("messages", [user("a"), says("b"), says([use("x")]), user([answer("x")])], 2, (0,), {},
         [["S", "a"], "tool_use", "tool_result"]),
        ("messages", [says([use("x")]), user([answer("x"), {"type": "text", "text": "and"}]), says("c"), says("d")],
         3, (0, 1), {}, ["S", "tool_use", ["tool_result", "and"], "d"]),
    ],
)  # fmt: skip
def test_the_summary_stands_before_what_is_kept(
    dialect: str, items: list[Json], length: int, retained: tuple[int, ...], to: Json, expected: list[Any]
) -> None:
    assert sent(view_of(dialect, items, length, retained, **to), dialect) == expected


@pytest.mark.parametrize(
    ("dialect", "items", "retained", "expected"),
    [
        ("chat", [user("a"), system("rule"), says("b"), says("c"), user("d")], (1,), ["rule", "S", "d"]),
        ("chat", [system("lead"), user("a"), says("b"), system("rule"), says("c"), user("d")], (2,),
         ["lead", "rule", "S", "d"]),
        ("chat", [user("a"), system("reminder"), says("b"), says("c"), says("d")], (0, 1),
         ["S", "a", "reminder", "d"]),
        ("messages", [user("a"), system("rule"), says("b"), says("c"), user("d")], (1,), ["S", "rule", "d"]),
        ("messages", [user("a"), system("reminder"), says("b"), says("c"), says("d"), user("e")], (0, 1),
         [["S", "a"], "reminder", "d", "e"]),
    ],
)  # fmt: skip
def test_instructions_keep_their_place_among_what_is_kept(
    dialect: str, items: list[Json], retained: tuple[int, ...], expected: list[Any]
) -> None:
    assert sent(view_of(dialect, items, 4, retained), dialect) == expected


@pytest.mark.parametrize("dialect", ["messages", "chat"])
def test_a_merged_message_reads_the_same_however_the_client_writes_its_text(dialect: str) -> None:
    # Clients write the message that bears a cache mark as a list, and as a string when the mark has moved on.
    def mark(text: str) -> Json:
        return user([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}])

    past = [user("a"), says("b")]
    one = view_of(dialect, [*past, mark("c"), says("d")], 2, merge_user=True)
    other = view_of(dialect, [*past, user("c"), says("d"), mark("e")], 2, merge_user=True)
    assert sent(one, dialect) == [["S", "c"], "d"]
    assert sent(other, dialect) == [["S", "c"], "d", "e"]


def test_the_newest_words_stay_with_what_they_name() -> None:
    named = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"}
    told = {"type": "function_call_output", "call_id": "c1", "output": "found"}
    words = {"type": "message", "role": "user", "content": [{"type": "input_echo", "of": "c1"}]}
    later = [{"type": "message", "role": "assistant", "content": "x"} for _ in range(3)]
    view = view_of("responses", [user("a"), named, told, words, *later], 5)
    assert sent(view, "responses") == ["S", "function_call", "function_call_output", "input_echo", "x", "x"]


# -- where it may not stand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("story", "dialect", "items", "length"),
    [
        ("between a call and its result", "chat", [user("a"), call("x"), result("x"), user("b")], 2),
        ("before a lost result", "chat", [user("a"), says("b"), result("x"), user("c")], 2),
        ("inside a turn that began with thinking", "messages",
         [user("a"), says([THOUGHT]), says([use("x")]), user([answer("x")])], 2),
        ("with nothing after it", "chat", [user("a"), says("b")], 2),
    ],
)  # fmt: skip
def test_no_view_that_would_break_a_rule(story: str, dialect: str, items: list[Json], length: int) -> None:
    assert view_of(dialect, items, length) is None


ROUND = [call("x"), result("x")]


@pytest.mark.parametrize(
    ("items", "barred"),
    [
        ([user("a"), says("b"), user("c"), says("d")], {1 - 1} - {0}),
        ([user("a"), *ROUND, says("b"), user("c")], set()),
        ([user("a"), says("b"), *ROUND, user("c")], {2, 3}),
        ([user("a"), *ROUND, *ROUND], set()),
        ([user("a"), says("b"), *ROUND, *ROUND, user("c"), *ROUND], {2, 3, 4, 5}),
    ],
)
def test_a_tool_round_does_not_part_a_summary_from_the_next_message(items: list[Json], barred: set[int]) -> None:
    # Mistral and llama.cpp templates leave tool rounds out when they count whose turn it is.
    raw = json.dumps({"model": "m", "messages": items}).encode()
    past = read_history(read("chat", raw), TENANT, HASHER, new_kit().ledger)
    assert barred_cuts(past, target_of("chat", 8000, merge_user=True)) == barred
    assert barred_cuts(past, target_of("chat", 8000)) == frozenset()
    for at in barred:
        assert view_of("chat", items, at, merge_user=True) is None
    for at in {*range(1, len(items))} - barred:
        assert (view_of("chat", items, at, merge_user=True) is None) == (view_of("chat", items, at) is None)


# -- thinking that is bound to its past ------------------------------------------------------------------------------

LOOP = [
    user("a"), says([THOUGHT, use("x")]), user([answer("x")]), says([THOUGHT, use("y")]), user([answer("y")]),
    says([THOUGHT]), says([THOUGHT, use("z")]), user([answer("z")]),
]  # fmt: skip


def test_the_api_drops_bound_thinking_whose_past_is_gone() -> None:
    asked = {"type": "adaptive", "block_binding": {"other": 1}}
    view = view_of("messages", LOOP, 3, (0,), {"thinking": asked}, binds_thinking=True)
    assert view is not None
    body = json.loads(view.body)
    assert body["messages"][1:] == LOOP[3:]
    assert body["thinking"] == {
        "type": "adaptive",
        "block_binding": {"other": 1, "prefix_mismatch_behavior": "drop_block"},
    }
    assert view.add_headers == {"anthropic-beta": "thinking-binding-controls-2026-08-01"}


@pytest.mark.parametrize("fields", [{}, {"thinking": None}, {"thinking": {"type": "disabled"}}])
def test_a_request_without_thinking_leaves_bound_blocks_out(fields: Json) -> None:
    view = view_of("messages", LOOP, 3, (0,), fields, binds_thinking=True)
    assert sent(view, "messages") == [["S", "a"], "tool_use", "tool_result", "tool_use", "tool_result"]
    assert view is not None
    assert view.add_headers == {}
    assert {name: value for name, value in json.loads(view.body).items() if name not in ("model", "messages")} == fields


def test_thinking_that_is_bound_to_nothing_stays_as_it_is() -> None:
    view = view_of("messages", LOOP, 3, (0,), {"thinking": {"type": "adaptive"}})
    assert view is not None
    assert json.loads(view.body)["messages"][1:] == LOOP[3:]
    assert view.add_headers == {}


def test_without_any_thinking_kept_nothing_is_asked_of_the_api() -> None:
    plain = [user("a"), says([THOUGHT, {"type": "text", "text": "b"}]), user("c"), says("d"), user("e")]
    view = view_of("messages", plain, 2, (), {"thinking": {"type": "adaptive"}}, binds_thinking=True)
    assert view is not None
    assert json.loads(view.body)["thinking"] == {"type": "adaptive"}
