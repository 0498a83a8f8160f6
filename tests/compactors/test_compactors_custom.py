"""What a compactor of the user's own is asked, in which order, and what of its answers is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from compactor_cases import DIALECTS, assistant, user

from tidegate.compactors.custom import Asked, work
from tidegate.compactors.strategy import Call, CompactionFailed, Reply, Summary
from tidegate.drive.rehearsal import answer
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName

WANTS = {"wants": True}
PLANS = {"wants": True, "plans": True}
PLAN: dict[str, Any] = {"call": {"body": {"temperature": 0}, "keep": [7]}}


def asked(dialect: DialectName = "chat", room: int = 100) -> Asked:
    items = (user(dialect, "first"), assistant(dialect, "done"), user(dialect, "second"))
    return Asked(
        dialect, "m", 1_000, "threshold", 900, room, items, 1, 2, "before", "Be brief.", None,
        item_tokens=(5, 6, 7), threshold=850, target=500,
    )  # fmt: skip


def told(value: object) -> Reply:
    return Reply(200, value if isinstance(value, bytes) else json.dumps(value).encode())


def answered(dialect: DialectName, text: str = "minutes") -> Reply:
    return told(answer(dialect, "m", text, 40, 9))


def run(replies: Mapping[str, Reply], shown: Asked | None = None) -> tuple[Summary, list[Call]]:
    """(what came of it, the calls): replies by path."""
    calls: list[Call] = []
    steps = work("notes", shown or asked(), 60.0)
    try:
        call = next(steps)
        while True:
            calls.append(call)
            call = steps.send(replies[call.path])
    except StopIteration as end:
        made: Summary = end.value
        return made, calls


def test_it_is_asked_whether_it_wants_to_and_then_for_its_text() -> None:
    made, calls = run({"/wants": told(WANTS), "/compact": told({"summary": " notes ", "input_tokens": 3})})
    assert (made.text, made.input_tokens, made.output_tokens, made.calls) == ("notes", 3, 0, 1)
    assert [(call.path, call.via, call.timeout) for call in calls] == [
        ("/wants", "notes", 2.0),
        ("/compact", "notes", 60.0),
    ]
    view = json.loads(calls[1].body)
    assert view == json.loads(calls[0].body)
    sizes = {"window": 1_000, "tokens": 900, "threshold": 850, "target": 500, "room": 100, "item_tokens": [5, 6, 7]}
    assert {key: view[key] for key in sizes} == sizes
    assert (view["since"], view["until"], view["previous"], view["system"]) == (1, 2, "before", "Be brief.")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_that_plans_has_its_call_made_and_is_shown_the_answer(dialect: DialectName) -> None:
    path = REQUESTS[dialect].PATH
    replies = {
        "/wants": told(PLANS),
        "/plan": told(PLAN),
        path: answered(dialect),
        "/finish": told({"summary": "notes", "output_tokens": 1}),
    }
    made, calls = run(replies, asked(dialect))
    assert [(call.path, call.via) for call in calls] == [
        ("/wants", "notes"),
        ("/plan", "notes"),
        (path, ""),
        ("/finish", "notes"),
    ]
    assert json.loads(calls[2].body) == {"model": "m", "temperature": 0}
    assert "idempotency-key" in calls[2].drop_headers
    shown = json.loads(calls[3].body)
    assert shown["keep"] == [7]
    assert (shown["reply"]["text"], shown["reply"]["finish"]) == ("minutes", "stop")
    assert shown["reply"]["body"] == json.loads(replies[path].body)
    assert (made.text, made.input_tokens, made.output_tokens) == ("notes", 40, 10)


def test_a_planned_call_may_stream_and_name_another_model() -> None:
    stream = b'data: {"choices":[{"delta":{"content":"min"}}]}\n\ndata: {"choices":[{"delta":{"content":"utes"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'  # noqa: E501
    plan = {"call": {"body": {"model": "other", "stream": True}}}
    replies = {"/wants": told(PLANS), "/plan": told(plan), "/chat/completions": told(stream)}
    _, calls = run({**replies, "/finish": told({"summary": "notes"})})
    assert json.loads(calls[2].body)["model"] == "other"
    assert calls[2].add_headers == {"accept": "text/event-stream"}
    shown = json.loads(calls[3].body)
    assert (shown["reply"]["text"], shown["reply"]["body"], shown["keep"]) == ("minutes", None, None)


REFUSED = Reply(429, b'{"error":{"message":"slow down"}}')

CASES: Mapping[str, tuple[dict[str, Reply], str]] = {
    "it does not want to": ({"/wants": told({"wants": False})}, "custom_unwanted"),
    "it says nothing of it": ({"/wants": told({})}, "custom_unwanted"),
    "it is not there": ({"/wants": Reply(0, error="refused")}, "custom_failed"),
    "it takes too long": ({"/wants": Reply(0, error="no answer within 2 seconds")}, "custom_too_slow"),
    "no text this time": ({"/wants": told(WANTS), "/compact": told({"summary": None})}, "custom_unwanted"),
    "no text at all": ({"/wants": told(WANTS), "/compact": told({})}, "custom_invalid"),
    "an empty text": ({"/wants": told(WANTS), "/compact": told({"summary": " \n"})}, "custom_invalid"),
    "a long text": ({"/wants": told(WANTS), "/compact": told({"summary": "x" * 801})}, "custom_invalid"),
    "half a letter": ({"/wants": told(WANTS), "/compact": told(b'{"summary":"\\ud800"}')}, "custom_invalid"),
    "no plan this time": ({"/wants": told(PLANS), "/plan": told({"call": None})}, "custom_unwanted"),
    "no plan at all": ({"/wants": told(PLANS), "/plan": told({})}, "custom_invalid"),
    "a plan without a body": ({"/wants": told(PLANS), "/plan": told({"call": {"model": "m"}})}, "custom_invalid"),
    "an empty body": ({"/wants": told(PLANS), "/plan": told({"call": {"body": {}}})}, "custom_invalid"),
    "a plan that fails": ({"/wants": told(PLANS), "/plan": Reply(500)}, "custom_failed"),
    "the call is refused": (
        {"/wants": told(PLANS), "/plan": told(PLAN), "/chat/completions": REFUSED}, "custom_call_failed"
    ),
    "the call is not answered": (
        {"/wants": told(PLANS), "/plan": told(PLAN), "/chat/completions": Reply(0)}, "custom_call_failed"
    ),
    "an error in its answer": (
        {"/wants": told(PLANS), "/plan": told(PLAN), "/chat/completions": told({"error": {"message": "x"}})},
        "custom_call_failed",
    ),
    "nothing is made of the answer": (
        {"/wants": told(PLANS), "/plan": told(PLAN), "/chat/completions": answered("chat"),
         "/finish": told({"summary": None})},
        "custom_unwanted",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("replies", "reason"), CASES.values(), ids=[*CASES])
def test_what_gives_nothing_of_use_has_a_reason(replies: dict[str, Reply], reason: str) -> None:
    with pytest.raises(CompactionFailed) as raised:
        run(replies)
    assert raised.value.reason == reason
