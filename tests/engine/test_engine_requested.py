"""A compaction that somebody asks for: at any size, by the automatic path, and replayed like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from engine_world import SHORT, Exchange, Gateway, Provider, new_kit, ruler, target_of

from tidegate.compactors.strategy import CompactionFailed
from tidegate.compactors.summary import focused
from tidegate.context.budget import Policy
from tidegate.engine.checkpoint import Report
from tidegate.engine.exchange import Compacted, kept_inside, requested

DIALECTS = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])


def body(dialect: str, turns: int) -> bytes:
    items: list[dict[str, Any]] = []
    for number in range(turns):
        items += [
            {"role": "user", "content": f"Question {number}: " + "what of it? " * 40},
            {"role": "assistant", "content": f"Answer {number}: FACT-{number} " + "this of it. " * 40},
        ]
    items.append({"role": "user", "content": "And now?"})
    if dialect == "responses":
        return json.dumps({"model": "m", "input": items, "max_output_tokens": 100}).encode()
    return json.dumps({"model": "m", "messages": items, "max_tokens": 100}).encode()


def gateway(dialect: str, window: int | None, **changes: Any) -> Gateway:
    kit = new_kit(**changes)
    return Gateway(dialect, target_of(dialect, window), Provider(dialect, window), kit=kit)


def asked(world: Gateway, raw: bytes, **how: Any) -> tuple[Compacted, Exchange]:
    made: list[Compacted] = []

    def life(request: Any, kit: Any) -> Any:
        made.append((yield from requested(request, kit, **how)))

    seen = world.serve(raw, life=life)
    return made[0], seen


@DIALECTS
@pytest.mark.parametrize("window", [200_000, None], ids=["far below the threshold", "window unknown"])
def test_it_halves_what_no_threshold_would_have_touched(dialect, window):
    raw = body(dialect, 10)
    got, seen = asked(gateway(dialect, window), raw)
    assert got.after <= got.before // 2 + 40
    assert ruler(dialect, got.view.body) < ruler(dialect, raw) * 0.6
    assert json.loads(got.view.body)["model"] == "m"
    assert seen.sent == []


@DIALECTS
def test_the_next_request_replays_it(dialect):
    world = gateway(dialect, 200_000)
    raw = body(dialect, 10)
    got, _ = asked(world, raw)
    seen = world.serve(raw)
    assert seen.outcome is not None
    assert seen.outcome.action == "replayed"
    assert seen.sent == [got.view.body]


@DIALECTS
def test_it_works_where_automatic_compaction_is_off(dialect):
    world = gateway(dialect, 1600, policy=Policy(enabled=False, on_overflow=False))
    got, _ = asked(world, body(dialect, 10))
    assert got.after < got.before


@DIALECTS
def test_asked_again_it_builds_on_what_was_there(dialect):
    world = gateway(dialect, 200_000)
    first, _ = asked(world, body(dialect, 10))
    second, seen = asked(world, body(dialect, 16))
    assert second.view.covered > first.view.covered
    assert all(f"FACT-{number}" in second.view.body.decode() for number in range(10))
    assert len(seen.calls) == 1


def test_where_there_is_nothing_to_compact_that_is_said():
    with pytest.raises(CompactionFailed, match="nothing_to_compact"):
        asked(gateway("chat", 200_000), body("chat", 0))


def test_a_lower_aim_cuts_deeper():
    shallow, _ = asked(gateway("chat", 200_000), body("chat", 20))
    deep, _ = asked(gateway("chat", 200_000), body("chat", 20), aim=shallow.before // 6)
    assert deep.after < shallow.after


@DIALECTS
def test_a_focus_is_told_to_the_summarizer_and_makes_another_summary(dialect):
    world = gateway(dialect, 200_000, options=lambda target, dialect: focused(SHORT, " the port numbers "))
    got, seen = asked(world, body(dialect, 10))
    assert "Additional focus: the port numbers" in seen.calls[0].body.decode()
    plain, other = asked(gateway(dialect, 200_000), body(dialect, 10))
    assert "Additional focus" not in other.calls[0].body.decode()
    keys = [effect.key for each in (seen, other) for effect in each.effects if type(effect).__name__ == "Compact"]
    assert len(set(keys)) == 2
    assert got.view.covered == plain.view.covered


def test_what_must_not_be_touched_is_refused_with_the_reason():
    world = gateway("responses", 200_000)
    raw = json.dumps({"model": "m", "previous_response_id": "resp_1", "input": [{"role": "user", "content": "x"}]})
    with pytest.raises(CompactionFailed, match="server_held"):
        asked(world, raw.encode())


def test_a_report_is_not_needed_and_one_that_is_there_counts():
    world = gateway("chat", 200_000)
    raw = body("chat", 10)
    world.answer = replace(world.answer, factor=2.0)  # type: ignore[type-var]
    world.serve(raw)
    assert any(isinstance(record, Report) for record in world.kept)
    got, _ = asked(world, raw)
    assert got.before > ruler("chat", raw) * 1.5


# -- only where it is due --------------------------------------------------------------------------------------------


def due(world: Gateway, raw: bytes) -> tuple[Compacted | None, Exchange]:
    made: list[Compacted | None] = []

    def life(request: Any, kit: Any) -> Any:
        made.append((yield from kept_inside(request, kit)))

    seen = world.serve(raw, life=life)
    return made[0], seen


@DIALECTS
def test_below_the_threshold_a_history_is_left_as_it_is(dialect):
    got, seen = due(gateway(dialect, 200_000), body(dialect, 10))
    assert got is None
    assert seen.calls == []


@DIALECTS
def test_above_it_the_history_comes_down_to_the_target(dialect):
    raw = body(dialect, 10)
    window = ruler(dialect, raw)
    got, _ = due(gateway(dialect, window), raw)
    assert got is not None
    assert got.before > window * 0.8
    assert got.after <= window * 0.55


@DIALECTS
def test_what_was_compacted_before_is_used_again_without_a_call(dialect):
    raw = body(dialect, 10)
    world = gateway(dialect, ruler(dialect, raw))
    first, _ = due(world, raw)
    again, seen = due(world, raw)
    assert first is not None
    assert again is not None
    assert (again.view.body, again.made, seen.calls) == (first.view.body, None, [])
