"""What a refusal of a stale artifact means, and what is sent without it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.wire import read
from tidegate.wire.stale import Stale, foreign_in, stale_in, without_stale

Json = dict[str, Any]


def conversation(dialect: str, items: list[Any], **fields: Any):
    key = "input" if dialect == "responses" else "messages"
    return read(dialect, json.dumps({"model": "m", key: items, **fields}).encode())  # type: ignore[arg-type]


def after(dialect: str, items: list[Any], told: str, **fields: Any) -> list[Any] | None:
    """The items that are sent after a refusal in these words; None where nothing may be dropped."""
    asked = conversation(dialect, items, **fields)
    stale = stale_in(asked, told.encode())
    body = without_stale(asked, stale) if stale else None
    return None if body is None else json.loads(body)["input" if dialect == "responses" else "messages"]


# -- Responses -------------------------------------------------------------------------------------------------------

ASK: Json = {"role": "user", "content": "go on"}
CODE = "The encrypted content for item {} could not be verified."
VAGUE = "Could not decrypt the provided encrypted_content."
BLOB = "Could not decode the compaction blob. Ensure it is unmodified from the compact response."


def reasoning(name: str, sealed: str | None = "gAAAseal-x1=") -> Json:
    held = {} if sealed is None else {"encrypted_content": sealed}
    return {"type": "reasoning", "id": name, "summary": [], **held}


def says(name: str | None = "msg_1") -> Json:
    named = {} if name is None else {"id": name}
    return {"type": "message", "role": "assistant", **named, "content": [{"type": "output_text", "text": "so"}]}


def call(name: str | None = "fc_1", link: str = "call_1") -> Json:
    named = {} if name is None else {"id": name}
    return {"type": "function_call", **named, "call_id": link, "name": "read", "arguments": "{}"}


def result(link: str = "call_1") -> Json:
    return {"type": "function_call_output", "call_id": link, "output": "found"}


def compaction(name: str, sealed: str = "gAAAcomp-y2=") -> Json:
    return {"type": "compaction", "id": name, "encrypted_content": sealed}


def of(kind: str, name: str = "x_1", **more: Any) -> Json:
    return {"type": kind, "id": name, **more}


REASONING = [
    ("what was made beside it loses its id", [ASK, reasoning("rs_1"), says(), ASK], [ASK, says(None), ASK]),
    ("calls too, and their links stay", [ASK, reasoning("rs_1"), says(), call(), result()],
     [ASK, says(None), call(None), result()]),
    ("calls after a result of the same answer",
     [ASK, reasoning("rs_1"), call(), result(), call("fc_2", "call_2"), result("call_2")],
     [ASK, call(None), result(), call(None, "call_2"), result("call_2")]),
    ("what was made after other words keeps its id", [ASK, reasoning("rs_1"), says(), ASK, says("msg_2"), ASK],
     [ASK, says(None), ASK, says("msg_2"), ASK]),
    ("all sealed reasoning, whichever was named",
     [ASK, reasoning("rs_1"), says(), ASK, reasoning("rs_2"), says("m"), ASK],
     [ASK, says(None), ASK, says(None), ASK]),
    ("reasoning that the provider keeps stays with what it made",
     [ASK, reasoning("rs_1"), says(), ASK, reasoning("rs_2", None), says("msg_2"), ASK],
     [ASK, says(None), ASK, reasoning("rs_2", None), says("msg_2"), ASK]),
    ("a search that the provider ran goes along", [ASK, reasoning("rs_1"), of("web_search_call", "ws_1"), says(), ASK],
     [ASK, says(None), ASK]),
    ("a search of an answer without reasoning stays",
     [ASK, of("web_search_call", "ws_1"), says(), reasoning("rs_1"), says("m")],
     [ASK, of("web_search_call", "ws_1"), says(), says(None)]),
    ("nothing but reasoning", [ASK, reasoning("rs_1"), ASK], [ASK, ASK]),
    ("the instructions stay", [{"role": "developer", "content": "be brief"}, ASK, reasoning("rs_1"), says(), ASK],
     [{"role": "developer", "content": "be brief"}, ASK, says(None), ASK]),
]  # fmt: skip


@pytest.mark.parametrize(("story", "items", "expected"), REASONING)
@pytest.mark.parametrize(
    "told", [CODE.format("rs_1"), VAGUE, "The encrypted content gAAA...-x1= could not be verified."]
)
def test_sealed_reasoning_goes_with_all_that_asks_for_it(story, items, expected, told):
    assert after("responses", items, told) == expected


def lsh(**more: Any) -> list[Json]:
    return [of("local_shell_call", "lsh_1", status="completed", action={}, **more),
            {"type": "local_shell_call_output", "id": "lsh_1", "output": "found"}]  # fmt: skip


STAYS = [
    ("a computer's call needs its id", [ASK, reasoning("rs_1"), of("computer_call", "cu_1", call_id="c", action={}),
                                        {"type": "computer_call_output", "call_id": "c", "output": {}}]),
    ("an unknown item may need it", [ASK, reasoning("rs_1"), of("novelty_call"), ASK]),
    ("a result names the id", [ASK, reasoning("rs_1"), *lsh()]),
    ("an approval names the id", [ASK, reasoning("rs_1"), of("mcp_approval_request", "mcpr_1"),
                                  {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}]),
    ("there is none", [ASK, says(), ASK]),
    ("the provider keeps it", [ASK, reasoning("rs_1", None), says(), ASK]),
    ("a text as input", "go on"),
]  # fmt: skip


@pytest.mark.parametrize(("story", "items"), STAYS)
def test_nothing_is_dropped_where_something_hangs_on_it_or_there_is_nothing(story, items):
    assert after("responses", items, CODE.format("rs_1")) is None


COMPACTIONS = [
    ("the one that is named", [ASK, compaction("cmp_1"), says(), compaction("cmp_2"), ASK], CODE.format("cmp_1"),
     [ASK, says(), compaction("cmp_2"), ASK]),
    ("the one whose content is shown", [compaction("cmp_1"), ASK, compaction("cmp_2", "gAAAother-z3="), ASK],
     "The encrypted content gAAA...-z3= could not be verified.", [compaction("cmp_1"), ASK, ASK]),
    ("all where none is named", [ASK, compaction("cmp_1"), says(), ASK], BLOB, [ASK, says(), ASK]),
    ("reasoning where the words fit both", [compaction("cmp_1"), ASK, reasoning("rs_1"), says(), ASK], VAGUE,
     [compaction("cmp_1"), ASK, says(None), ASK]),
    ("the compaction where the words say so", [compaction("cmp_1"), ASK, reasoning("rs_1"), says(), ASK], BLOB,
     [ASK, reasoning("rs_1"), says(), ASK]),
    ("reasoning that was taken for one", [ASK, reasoning("rs_1"), says(), ASK], BLOB, [ASK, says(None), ASK]),
    ("not where nothing of the user's would be left", [compaction("cmp_1"), says(), call(), result()], BLOB, None),
]  # fmt: skip


@pytest.mark.parametrize(("story", "items", "told", "expected"), COMPACTIONS)
def test_a_compaction_goes_where_it_is_meant(story, items, told, expected):
    assert after("responses", items, told) == expected


# -- Messages --------------------------------------------------------------------------------------------------------

THOUGHT: Json = {"type": "thinking", "thinking": "hm", "signature": "sig"}
SEALED: Json = {"type": "redacted_thinking", "data": "AAAA"}
TEXT: Json = {"type": "text", "text": "so"}
USE: Json = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"n": 1.0}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"}
SUMMARY: Json = {"type": "compaction", "content": "Earlier", "signature": "sig"}
FAILED: Json = {"type": "compaction", "content": None}
WANTED = {"type": "adaptive"}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks) or "go on"}


def model(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def at(message: int, kind: str = "thinking") -> str:
    return f"messages.{message}.content.0: Invalid `signature` in `{kind}` block"


BOUND = " The block is bound to a different conversation. Remove the block, or set"
OPEN = [user(), model(THOUGHT, TEXT), user(), model(THOUGHT, USE), user(RESULT)]
THINKING = [
    ("blocks go whole", [user(), model(THOUGHT, SEALED, TEXT), user()], at(1), WANTED, [user(), model(TEXT), user()]),
    ("a message of nothing else goes", [user(), model(THOUGHT), model(TEXT), user()], at(1), WANTED,
     [user(), model(TEXT), user()]),
    ("all of them, whichever was named", [user(), model(THOUGHT, TEXT), user(), model(THOUGHT, TEXT), user()], at(1),
     WANTED, [user(), model(TEXT), user(), model(TEXT), user()]),
    ("not of the answer that still goes on", OPEN, at(1), WANTED, [user(), model(TEXT), *OPEN[2:]]),
    ("not where that is the one that fails", OPEN, at(3), WANTED, None),
    ("not where that is the only one", OPEN[2:], "Invalid `signature` in `thinking` block", WANTED, None),
    ("also of that where it is bound to another past", OPEN, at(3) + BOUND, WANTED,
     [user(), model(TEXT), user(), model(USE), user(RESULT)]),
    ("also of that where no thinking is asked for", OPEN, at(3), None,
     [user(), model(TEXT), user(), model(USE), user(RESULT)]),
    ("also where it is turned off", OPEN, at(3), {"type": "disabled"},
     [user(), model(TEXT), user(), model(USE), user(RESULT)]),
    ("results and words in one message", [*OPEN[:4], user(RESULT, TEXT)], at(3), WANTED, None),
    ("a finished round is no open one", [*OPEN, model(TEXT), user()], at(3), WANTED,
     [user(), model(TEXT), user(), model(USE), user(RESULT), model(TEXT), user()]),
    ("an answer the client has begun", [user(), model(THOUGHT, TEXT)], at(1), WANTED, None),
    ("there is none", [user(), model(TEXT), user()], at(1), WANTED, None),
    ("behind a compaction that stands first", [model(SUMMARY), model(THOUGHT, TEXT), user()], at(1), WANTED,
     [model(SUMMARY), model(TEXT), user()]),
    ("where a compaction holds all that was asked", [model(SUMMARY), model(THOUGHT, USE), user(RESULT), model(TEXT),
     user(RESULT)], at(1), WANTED, [model(SUMMARY), model(USE), user(RESULT), model(TEXT), user(RESULT)]),
    ("not behind a compaction that failed", [model(FAILED), model(THOUGHT, TEXT), user()], at(1), WANTED, None),
]  # fmt: skip


@pytest.mark.parametrize(("story", "items", "told", "thinking", "expected"), THINKING)
def test_thinking_goes_where_the_api_lets_it(story, items, told, thinking, expected):
    fields = {"thinking": thinking} if thinking else {}
    assert after("messages", items, told, **fields) == expected


BLOCKS = [
    ("with its message", [user(), model(TEXT), model(SUMMARY), user()], [user(), model(TEXT), user()]),
    ("out of its message", [user(), model(SUMMARY, TEXT), user()], [user(), model(TEXT), user()]),
    ("from the beginning", [model(SUMMARY), user(), model(TEXT), user()], [user(), model(TEXT), user()]),
    ("not where the history would begin with an answer", [model(SUMMARY, TEXT), user()], None),
    ("not where nothing of the user's would be left", [user(SUMMARY), model(USE), user(RESULT)], None),
]


@pytest.mark.parametrize(("story", "items", "expected"), BLOCKS)
def test_a_compaction_block_goes(story, items, expected):
    assert after("messages", items, '{"details":{"error_code":"compaction_signature_invalid"}}') == expected


# -- Chat ------------------------------------------------------------------------------------------------------------


def test_what_a_gateway_sealed_goes_and_words_stay():
    signed = {"role": "assistant", "content": "so", "reasoning": "hm",
              "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}  # fmt: skip
    thought = {"role": "assistant", "content": None, "thinking_blocks": [THOUGHT], "tool_calls": []}
    assert after("chat", [ASK, signed, ASK, thought, ASK], at(1)) == [
        ASK, {"role": "assistant", "content": "so", "reasoning": "hm"}, ASK,
        {"role": "assistant", "content": None, "tool_calls": []}, ASK,
    ]  # fmt: skip
    assert after("chat", [ASK, {"role": "assistant", "content": "so"}, ASK], at(1)) is None


# -- whatever comes --------------------------------------------------------------------------------------------------

ANY = {
    "responses": st.sampled_from([ASK, reasoning("rs_1"), reasoning("rs_2", None), says(), says(None), call(), result(),
                                  compaction("cmp_1"), of("web_search_call"), of("computer_call", call_id="c"), *lsh(),
                                  of("novelty"), {"x": 1}]),
    "messages": st.sampled_from([user(), user(RESULT), user(RESULT, TEXT), model(THOUGHT, TEXT), model(THOUGHT, USE),
                                 model(SEALED), model(TEXT), model(USE), model(SUMMARY, TEXT), model(SUMMARY),
                                 {"role": "system", "content": "x"}, {"role": "assistant", "content": "so"}]),
    "chat": st.sampled_from([ASK, {"role": "assistant", "content": "so", "reasoning_details": 1}, {"role": "tool"}]),
}  # fmt: skip
WORDS = st.sampled_from(
    [CODE.format("rs_1"), CODE.format("cmp_1"), VAGUE, BLOB, at(1), at(3) + BOUND, "", "messages.99999"]
)


TALKS = st.sampled_from([*ANY]).flatmap(lambda d: st.tuples(st.just(d), st.lists(ANY[d], min_size=1, max_size=9)))


@settings(max_examples=150, deadline=None)
@given(TALKS, WORDS, st.sampled_from([{}, {"thinking": WANTED}]))
def test_what_stays_keeps_its_order_and_its_bytes(talk, told, fields):
    dialect, items = talk
    asked = conversation(dialect, items, **fields)
    stale = stale_in(asked, told.encode())
    body = without_stale(asked, stale) if stale else None
    if body is None:
        return
    left = read(dialect, body)
    assert len(body) < len(asked.raw)
    assert {k: v for k, v in left.fields.items() if k != left.items_key} == {
        k: v for k, v in asked.fields.items() if k != asked.items_key
    }
    position = 0
    for item in left.items:
        while not (
            asked.items[position].raw == item.raw or _less(json.loads(asked.items[position].raw), json.loads(item.raw))
        ):
            position += 1
        position += 1
    again = stale_in(left, told.encode())
    assert again is None or again.kind != stale.kind or stale.positions or without_stale(left, again) is None


def _less(before: Json, now: Json) -> bool:
    """The same, but for an id, sealed fields, or whole blocks."""
    if isinstance(before.get("content"), list) and before != now and before.get("role") == now.get("role"):
        blocks = iter(before["content"])
        if all(any(block == other for other in blocks) for block in now["content"]):
            return {**before, "content": 0} == {**now, "content": 0} or _less(
                {**before, "content": 0}, {**now, "content": 0}
            )
    return {k: v for k, v in before.items() if k not in ("id", "reasoning_details", "thinking_blocks")} == now


def test_a_named_compaction_is_told_by_its_place():
    asked = conversation("responses", [ASK, compaction("cmp_1"), ASK])
    assert stale_in(asked, CODE.format("cmp_1").encode()) == Stale("compaction", frozenset({1}))


FOREIGN = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "grok", "status": "completed"}


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("Unknown parameter: 'input[1].status'.", True),
        ("Invalid type for 'input[1].content': expected an array, but got null instead.", True),
        ("Unknown parameter: 'input[0].status'.", False),
        ("Unknown parameter: 'input[2].status'.", False),
        ("Unknown parameter: 'input[9].status'.", False),
        ("Unknown parameter: 'status'.", False),
    ],
)
def test_what_another_maker_sealed_is_known_by_its_place(told: str, found: bool) -> None:
    items = [{"role": "user", "content": "hi"}, FOREIGN, {"type": "reasoning", "summary": [], "status": "completed"}]
    body = read("responses", json.dumps({"model": "m", "input": items}).encode())
    assert foreign_in(body, told.encode()) == (Stale("thinking") if found else None)
    other = read("messages", json.dumps({"model": "m", "messages": items[:1]}).encode())
    assert foreign_in(other, told.encode()) is None
