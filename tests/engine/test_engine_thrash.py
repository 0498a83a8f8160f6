"""Compaction that is of no use is not begun again at once: nor where the window fills again behind it, nor where what
is left is still too large, nor where the result was no smaller. What is known of it survives across requests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from engine_world import Exchange, Gateway, Provider, new_kit, target_of
from stage import TENANT

from tidegate.context.budget import Policy
from tidegate.engine.breaker import Bounds, Breaker
from tidegate.engine.effects import Compact, Find, Made
from tidegate.engine.request import Kit

KEY = b"k"
Json = dict[str, Any]


def compact(breaker: Breaker, length: int, now: float = 0.0, tokens: int = 10) -> bool:
    return breaker.compacted(KEY, length=length, tokens=tokens, threshold=100, now=now)


@pytest.mark.parametrize(
    ("lengths", "opened"),
    [
        ([20, 24, 28, 32], [False, False, False, True]),
        ([20, 25, 30, 35], [False] * 4),
        ([20, 22, 24, 40, 42, 44, 46], [False, False, False, False, False, False, True]),
        # The same history twice is one request's two compactions; a shorter one is another branch.
        ([20, 20, 20, 20, 20], [False] * 5),
        ([20, 22, 20, 22, 20, 22], [False] * 6),
        ([20, 22, 24, 26, 28], [False, False, False, True, True]),
    ],
)
def test_repeated_quick_refills(lengths: list[int], opened: list[bool]) -> None:
    breaker = Breaker(Bounds(refills=3, refill_messages=4))
    assert [compact(breaker, length) for length in lengths] == opened
    assert breaker.rests(KEY, now=29) == opened[-1]
    assert not breaker.rests(b"another", now=0)


def test_rests_after_refills_double_and_end_with_a_compaction_that_lasts() -> None:
    breaker, now = Breaker(Bounds(first=10, most=25, refills=1)), 0.0
    compact(breaker, 10)
    rests = []
    for length in (12, 14, 16):
        breaker.succeeded(KEY)
        assert compact(breaker, length, now)
        rest = next(n for n in range(100) if not breaker.rests(KEY, now=now + n))
        rests.append(rest)
        now += rest
    assert rests == [10, 20, 25]
    assert not compact(breaker, 90, now)
    assert not breaker.rests(KEY, now=now)


@pytest.mark.parametrize(("percent", "held"), [(10, 109), (50, 149), (1, 100)])
def test_a_floor_above_the_trigger_holds_until_the_history_has_grown(percent: float, held: int) -> None:
    breaker = Breaker(Bounds(regrow_percent=percent))
    compact(breaker, 10, tokens=100)
    assert breaker.held(KEY, held)
    assert not breaker.held(KEY, held + 2)
    compact(breaker, 40, tokens=99)
    assert not breaker.held(KEY, 100)


def test_what_did_not_change_is_counted_and_held() -> None:
    breaker = Breaker()
    breaker.unchanged(KEY, 1000)
    breaker.unchanged(KEY, 1200)
    assert breaker.state(KEY).unchanged == 2
    assert breaker.held(KEY, 1300)
    assert not breaker.held(KEY, 1321)


# -- through the engine -----------------------------------------------------------------------------------------------


class Session:
    """A chat client that sends all it has, and adds a call and its result each turn."""

    def __init__(self, kit: Kit, window: int, kind: type[Gateway] = Gateway) -> None:
        self.gateway = kind("chat", target_of("chat", window), Provider("chat", window), kit=kit)
        self.messages: list[Json] = [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Mend it."},
        ]
        self.number = 0

    def turn(self, words: int, now: float = 1000.0) -> Exchange:
        self.number += 1
        name = f"c{self.number}"
        call = {"id": name, "type": "function", "function": {"name": "read", "arguments": "{}"}}
        self.messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": name, "content": f"line {self.number} " + "work " * words},
        ]
        return self.gateway.serve(json.dumps({"model": "m", "messages": self.messages}).encode())


def reasons(seen: list[Exchange]) -> list[str]:
    return [it.outcome.reason for it in seen if it.outcome]


QUIET = Policy(prepare_percent=None)


def test_a_window_that_each_turn_fills_again_is_not_compacted_before_each() -> None:
    session = Session(new_kit(QUIET), 4000)
    seen = [session.turn(2_500) for _ in range(9)]
    told = [notice for it in seen for notice in it.notices if notice.event == "thrashing"]
    assert told
    assert told[0].detail["refills"] == 3
    assert [it.outcome.action for it in seen if it.outcome][-2:] == ["recovered", "recovered"]
    assert all(it.answered for it in seen), "what is refused is compacted and sent again"


def test_a_floor_above_the_threshold_is_compacted_once_until_the_history_has_grown() -> None:
    session = Session(new_kit(QUIET), 8000)
    session.messages[0]["content"] = "Rules. " + "Never do it. " * 2_080
    seen = [session.turn(400)]
    while not seen[-1].compactions:
        seen.append(session.turn(60))
    assert seen[-1].outcome is not None
    seen = [session.turn(20) for _ in range(6)]
    assert [it.compactions for it in seen] == [0] * 6
    assert set(reasons(seen)) == {"floor_above_threshold"}
    later = [session.turn(60) for _ in range(12)]
    assert sum(it.compactions for it in later) < len(later) / 2
    assert all(it.answered for it in [*seen, *later])


class Swollen(Gateway):
    """Joins flights whose summaries are longer than all that they stand for."""

    def _compact(self, effect: Compact, seen: Exchange) -> Made:
        made = super()._compact(effect, seen)
        return replace(made, result=replace(made.result, text="word " * 9_000))


def test_a_result_that_is_no_smaller_is_thrown_away_counted_and_not_asked_for_again() -> None:
    kit = new_kit(QUIET)
    session = Session(kit, 4000, kind=Swollen)
    seen = [session.turn(220)]
    while not seen[-1].compactions:
        seen.append(session.turn(220))
    assert seen[-1].outcome is not None
    assert (seen[-1].answered, seen[-1].outcome.reason) == (True, "no_smaller")
    assert seen[-1].originals == [True], "the client's own bytes go"
    assert not seen[-1].checkpoints
    found = next(it for it in seen[-1].effects if isinstance(it, Find))
    conversation = kit.hasher.mix(TENANT, found.bucket, b"m")
    assert kit.breaker.state(conversation).unchanged == 1
    again = session.turn(5)
    assert again.outcome is not None
    assert (again.compactions, again.outcome.reason) == (0, "floor_above_threshold")


@pytest.mark.parametrize("bounds", [Bounds(refills=1), Bounds(refills=9)])
def test_bounds_are_the_users(bounds: Bounds) -> None:
    session = Session(new_kit(QUIET, breaker=Breaker(bounds)), 4000)
    seen = [session.turn(2_500) for _ in range(6)]
    assert ("recovered" in {it.outcome.action for it in seen if it.outcome}) == (bounds.refills == 1)
