"""Compaction ahead of the window rests after failures, doubling, and never where a request was refused for its size."""

from __future__ import annotations

import pytest
from playbook import Playbook, ok, overflow
from stage import body, history, kit, request, target

from tidegate.compactors.strategy import CompactionFailed
from tidegate.engine.breaker import Bounds, Breaker
from tidegate.engine.checkpoint import Found
from tidegate.engine.effects import Compact, Deliver, Finish, Send
from tidegate.engine.exchange import exchange

FULL = body(history(18))


def test_rests_double_up_to_a_bound_and_end_with_a_success():
    breaker, now = Breaker(Bounds(first=10, most=35)), 0.0
    lengths = []
    for _ in range(4):
        breaker.failed(b"k", now=now)
        rest = 0.0
        while breaker.rests(b"k", now=now + rest):
            rest += 5
        lengths.append(rest)
        now += rest
    assert lengths == [10, 20, 35, 35]
    breaker.succeeded(b"k")
    assert not breaker.rests(b"k", now=now)
    assert not breaker.rests(b"other", now=0)


def test_it_forgets_the_oldest():
    breaker = Breaker(size=2)
    for key in (b"a", b"b", b"c"):
        breaker.failed(key, now=0)
    assert [breaker.rests(key, now=1) for key in (b"a", b"b", b"c")] == [False, True, True]


def told(raw, tools, *, at: float, window: int | None = 8000) -> Playbook:
    return Playbook(exchange(request(raw, to=target(window), at=at), tools)).reply(Found())


@pytest.mark.parametrize(("later", "tries"), [(1, False), (29, False), (31, True)])
def test_a_summarizer_that_failed_is_left_alone_for_a_while(later, tries):
    tools = kit()
    play = told(FULL, tools, at=1000)
    play.expect(Compact)
    play.fail(CompactionFailed("summary_unreachable")).reply(ok()).reply(Finish())
    again = told(FULL, tools, at=1000 + later)
    if tries:
        again.expect(Compact)
    else:
        assert again.expect(Send).body is None
        again.reply(ok())
        assert again.expect(Deliver).outcome.reason == "breaker_open"


def test_an_overflow_is_worth_a_try_even_then():
    tools = kit()
    play = told(FULL, tools, at=1000)
    play.fail(CompactionFailed("summary_unreachable")).reply(ok()).reply(Finish())
    again = told(FULL, tools, at=1001)
    again.reply(overflow(0, window=7000, tokens=7300))
    again.expect(Compact)


def test_another_conversation_is_not_made_to_wait():
    tools = kit()
    told(FULL, tools, at=1000).fail(CompactionFailed("summary_unreachable"))
    other = body([{"role": "user", "content": "another beginning"}, *history(18)[1:]])
    told(other, tools, at=1001).expect(Compact)
