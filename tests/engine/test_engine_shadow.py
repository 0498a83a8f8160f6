"""Shadow: it decides and tells, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_world import Exchange, Gateway, Provider, new_kit, ruler, target_of

from tidegate.engine.checkpoint import Checkpoint
from tidegate.engine.router import ELIDE, SUMMARY, Wanted

DIALECTS = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])


def body(dialect: str, turns: int = 10) -> bytes:
    items: list[dict[str, Any]] = []
    for number in range(turns):
        items += [
            {"role": "user", "content": f"Question {number}: " + "what of it? " * 40},
            {"role": "assistant", "content": f"Answer {number}: " + "this of it. " * 40},
        ]
    items.append({"role": "user", "content": "And now?"})
    return json.dumps(
        {"model": "m", "input" if dialect == "responses" else "messages": items, "max_tokens": 9}
    ).encode()


def served(dialect: str, window: int, real: int | None = None, **changes: Any) -> tuple[Exchange, Gateway]:
    to = target_of(dialect, window, **changes)
    world = Gateway(dialect, to, Provider(dialect, real or window), kit=new_kit(shadow=True), background=True)
    return world.serve(body(dialect)), world


@DIALECTS
def test_what_is_due_is_told_and_sent_as_it_came(dialect):
    seen, world = served(dialect, int(ruler(dialect, body(dialect)) * 1.05))
    assert seen.outcome is not None
    assert (seen.outcome.action, seen.outcome.reason) == ("relayed", "shadow_due")
    assert seen.outcome.tokens_before is not None
    assert seen.outcome.tokens_after is not None
    assert seen.outcome.tokens_after < seen.outcome.tokens_before
    assert seen.sent == [body(dialect)]
    assert seen.calls == []
    assert not any(isinstance(record, Checkpoint) for record in world.kept)
    assert world.prepared == {}


def decisions(seen: Exchange) -> list[Any]:
    return [notice.detail for notice in seen.notices if notice.event == "shadow"]


@DIALECTS
@pytest.mark.parametrize(
    ("window", "real", "reasons"),
    [(1.05, 1.05, ["shadow_due"]), (100, 100, ["below_threshold"]), (100, 0.5, ["below_threshold", "shadow_overflow"])],
)
def test_each_decision_is_told_once_in_numbers(dialect, window, real, reasons):
    size = ruler(dialect, body(dialect))
    seen, _ = served(dialect, int(size * window), real=int(size * real))
    told = decisions(seen)
    assert [it["reason"] for it in told] == reasons
    for it in told:
        assert {"tokens", "window", "threshold", "target"} <= set(it)
        assert all(isinstance(value, int) for key, value in it.items() if key not in ("reason", "ways"))
    if reasons == ["shadow_due"]:
        assert told[0]["after"] < told[0]["threshold"] <= told[0]["tokens"]
        assert told[0]["items"] > 0
        assert told[0]["ways"].split(",")[-1] == SUMMARY


@DIALECTS
def test_a_refusal_for_length_is_passed_on(dialect):
    seen, _ = served(dialect, 10**6, real=500)
    assert seen.outcome is not None
    assert (seen.answered, seen.outcome.reason, len(seen.sent)) == (False, "shadow_overflow", 1)


@DIALECTS
def test_what_is_not_due_is_told_as_ever(dialect):
    seen, _ = served(dialect, 10**6)
    assert seen.outcome is not None
    assert seen.outcome.reason == "below_threshold"


def test_a_way_that_asks_nobody_is_told_of_too():
    rounds: list[dict[str, Any]] = [{"role": "user", "content": "Read."}]
    for number in range(12):
        function = {"name": "read", "arguments": "{}"}
        call = {"id": f"c{number}", "type": "function", "function": function}
        rounds += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "line " * 300},
        ]
    raw = json.dumps({"model": "m", "messages": rounds}).encode()
    window = int(ruler("chat", raw) * 1.05)
    to = target_of("chat", window, wanted=Wanted((ELIDE, SUMMARY), "the test"))
    seen = Gateway("chat", to, Provider("chat", window), kit=new_kit(shadow=True)).serve(raw)
    assert seen.outcome is not None
    assert seen.outcome.reason == "shadow_due"
    assert [it["ways"] for it in decisions(seen)] == [ELIDE]
    assert seen.sent == [raw]
