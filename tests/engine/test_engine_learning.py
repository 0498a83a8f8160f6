"""What a delivered answer teaches: a full window and an input cut in silence mean a compaction before the next turn;
an estimate that is too high means nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from playbook import Playbook, ok, overflow
from stage import HASHER, TENANT, body, history, kit, request, target, turn

from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Found, Report
from tidegate.engine.effects import Compact, Finish, Notify, Save, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.request import Kit
from tidegate.engine.view import plain, read_history
from tidegate.wire import read
from tidegate.wire.conversation import FinishReason, Usage

SMALL = body(history(2), max_tokens=2000)
"""About 900 tokens."""
MIDDLE = body(history(9), max_tokens=2000)
"""About 3,700."""


@dataclass
class Session:
    """A client's turns against one provider, whose counts are told; reports are kept as a store keeps them."""

    counts: Callable[[int], int]
    """Estimated tokens of what is sent, to what the provider counts."""
    window: int | None = None
    kit: Kit = field(default_factory=kit)
    turns: int = 0
    messages: list[dict[str, Any]] = field(default_factory=lambda: history(0)[:1])
    reports: list[Report] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

    def ask(self, size: int = 400, *, cached: int = 0, finish: FinishReason = "stop", output: int = 20) -> Playbook:
        """One more turn of about so many tokens, asked, answered and learned from; what happened, as a script."""
        asked, *answered = turn(self.turns, size)
        self.messages.append(asked)
        raw = body(self.messages, **self.fields)
        self.messages += answered
        self.turns += 1
        play = Playbook(exchange(request(raw, to=target(self.window)), self.kit))
        play.reply(Found((), tuple(reversed(self.reports))[:16]))
        if isinstance(play.effect, Compact):
            return play
        assert isinstance(play.effect, Send)
        estimate = plain(read_history(read("chat", raw), TENANT, HASHER, Ledger(HASHER))).tokens
        play.reply(ok()).reply(Finish(Usage(self.counts(estimate), output, cached), finish))
        if isinstance(play.effect, Save):
            assert isinstance(play.effect.record, Report)
            self.reports.append(play.effect.record)
            play.reply()
        play.done()
        return play

    def until_compacted(self, most: int, **how: Any) -> int | None:
        """How many turns were answered before one was compacted first; None where none was in so many."""
        for number in range(most):
            if isinstance(self.ask(**how).effect, Compact):
                return number
        return None


# -- a full window ---------------------------------------------------------------------------------------------------

FULL: list[tuple[FinishReason, Usage | None, str]] = [
    ("window", Usage(900, 0), "window-exceeded-unanswered"),
    ("window", Usage(900, 40), "finish-window"),
    ("window", None, "finish-window"),
    ("length", Usage(7960, 0), "length-without-output"),
    ("length", Usage(5000, 3000), "usage-fills-window"),
    ("stop", Usage(6000, 2000), "usage-fills-window"),
    ("tool_call", Usage(7990, 10), "usage-fills-window"),
    ("length", Usage(900, 90), "finish-length"),
]


@pytest.mark.parametrize(("finish", "usage", "rule"), FULL)
def test_a_full_window_means_a_compaction_before_the_next_turn(finish, usage, rule):
    play = Playbook(exchange(request(MIDDLE), kit())).reply(Found()).reply(ok())
    play.reply(Finish(usage, finish))
    assert play.detail("window_full")["rule"] == rule
    report = play.expect(Save).record
    assert isinstance(report, Report)
    assert report.input_tokens == 8000
    play.reply().done()

    longer = body([*history(9), {"role": "assistant", "content": "so"}, {"role": "user", "content": "and?"}])
    Playbook(exchange(request(longer), kit())).reply(Found((), (report,))).expect(Compact)


ORDINARY: list[tuple[FinishReason, Usage]] = [
    ("stop", Usage(900, 20)),
    ("tool_call", Usage(6000, 1900)),
    ("length", Usage(900, 2000)),
    ("length", Usage(900, 500)),
    ("filter", Usage(900, 0)),
    ("refusal", Usage(900, 10)),
]


@pytest.mark.parametrize(("finish", "usage"), ORDINARY)
def test_any_other_end_means_what_it_counted(finish, usage):
    play = Playbook(exchange(request(MIDDLE), kit())).reply(Found()).reply(ok()).reply(Finish(usage, finish))
    assert "window_full" not in play.events()
    report = play.expect(Save).record
    assert isinstance(report, Report)
    assert report.input_tokens == usage.input_tokens


def test_where_an_input_above_a_learned_limit_succeeds_the_limit_is_what_was_wrong():
    tools = kit()
    Playbook(exchange(request(body(history(22)), to=target(None)), tools)).reply(Found()).reply(overflow())
    assert tools.windows.limit("http://up/v1", "m") == 8000
    play = Playbook(exchange(request(MIDDLE, to=target(None)), tools)).reply(Found()).reply(ok())
    play.reply(Finish(Usage(8500, 20), "stop"))
    assert "window_full" not in play.events()
    assert tools.windows.limit("http://up/v1", "m") is None


def test_a_window_that_an_answer_filled_is_learned_where_nobody_knows_it():
    tools = kit()
    play = Playbook(exchange(request(SMALL, to=target(None)), tools)).reply(Found()).reply(ok())
    play.reply(Finish(Usage(950, 50), "window"))
    assert tools.windows.limit("http://up/v1", "m") == 1000
    told = play.detail("window_full")
    assert (told["rule"], told["tokens"], told["window"]) == ("finish-window", 950, 1000)


# -- an input cut in silence -----------------------------------------------------------------------------------------


def capped(window: int, factor: float = 1.0) -> Callable[[int], int]:
    """A server that cuts what does not fit, and counts what is left."""
    return lambda estimate: min(window, int(estimate * factor))


def by_message(window: int) -> Callable[[int], int]:
    """One that leaves whole messages out until the rest fits, so that its counts go up and down."""
    return lambda estimate: estimate if estimate <= window else window - (estimate * 7) % 400


@pytest.mark.parametrize("known", [None, 131_072], ids=["no window known", "a table says more"])
@pytest.mark.parametrize("counts", [capped(4096), by_message(4096), capped(4096, 0.8), capped(4096, 1.3)])
def test_a_history_that_grows_and_is_counted_as_no_larger_was_cut(known, counts):
    talk = Session(counts, window=known)
    answered = talk.until_compacted(60)
    assert answered is not None
    # Seen once it is half as much again, and by then two counts of a full window.
    assert answered * 410 < 4096 * 1.9
    limit = talk.kit.windows.limit("http://up/v1", "m")
    assert limit is not None
    assert 3500 <= limit <= 4200


def test_it_is_told_and_the_next_turn_is_compacted_to_what_fits():
    talk = Session(capped(4096))
    notices: list[Notify] = []
    play = talk.ask()
    while not isinstance(play.effect, Compact):
        notices += play.notices
        play = talk.ask()
    told = [dict(notice.detail) for notice in notices if notice.event == "window_full"]
    assert [(one["rule"], one["tokens"], one["window"]) for one in told] == [("input-cut-in-silence", 4096, 4097)]
    assert told[0]["sent"] > 4096 / 0.7
    play.summarise()
    assert len(play.expect(Send).body or b"") < 4096 * 4 * 0.7


def test_a_full_window_of_a_table_that_says_too_much_does_not_hide_it():
    talk = Session(capped(4096), window=131_072)
    for _ in range(11):
        talk.ask()
    assert "window_full" in talk.ask(finish="window").events()
    assert talk.reports[-1].input_tokens == 131_072
    assert talk.until_compacted(20) is not None


def test_large_turns_hide_a_cut_until_a_small_one_comes():
    # What is new alone would fill half a window: a provider that counts only that would say the same.
    talk = Session(capped(4096))
    for size in (400, 400, 400, 400, 3000, 3000, 3000):
        assert "window_full" not in talk.ask(size).events()
    assert "window_full" not in talk.ask().events()
    assert "window_full" in talk.ask().events()


HONEST: list[tuple[str, Callable[[int], int]]] = [
    ("estimates are much too high", lambda estimate: int(estimate * 0.6)),
    ("estimates are twice too high", lambda estimate: estimate // 2),
    ("estimates are too low", lambda estimate: int(estimate * 1.6)),
    ("estimates are good at first", lambda estimate: min(estimate, 2000 + max(0, estimate - 2000) // 3)),
    ("only the first count is good", lambda estimate: estimate if estimate < 600 else 300),
    ("cached tokens are left out", lambda estimate: estimate if estimate < 600 else 430),
    ("only what is new is counted", lambda estimate: estimate if estimate < 1700 else 1650 - estimate % 50),
    ("nothing is counted", lambda estimate: 0),
    ("one word is counted", lambda estimate: 1),
]


@pytest.mark.parametrize(("story", "counts"), HONEST)
def test_a_small_count_alone_is_no_cut(story, counts):
    talk = Session(counts)
    assert talk.until_compacted(40, size=1500 if "new" in story else 400) is None
    assert talk.kit.windows.limit("http://up/v1", "m") is None


def test_with_a_window_that_is_known_a_high_estimate_compacts_no_more_often_than_it_is_due():
    talk = Session(lambda estimate: int(estimate * 0.6), window=8000)
    answered = talk.until_compacted(40)
    assert answered is not None
    assert 6800 - 500 <= answered * 410 <= 6800 + 500


def test_tokens_that_were_cached_and_named_count():
    talk = Session(lambda estimate: min(estimate, 4096))
    assert talk.until_compacted(40, cached=20_000) is None


@pytest.mark.parametrize("name", ["truncation", "context_management", "transforms", "plugins"])
def test_a_cut_that_the_client_asked_for_is_its_own_affair(name):
    talk = Session(capped(4096), fields={name: "auto"})
    assert talk.until_compacted(40) is None


def test_thinking_that_a_provider_leaves_out_of_earlier_turns_is_no_cut():
    talk = Session(capped(4096))
    for number in range(6):
        talk.ask()
        talk.messages[-1] = {**talk.messages[-1], "reasoning_content": f"{number} hm " * 1500}
    assert all(talk.ask().events().count("window_full") == 0 for _ in range(12))


def test_the_same_request_again_is_no_longer_history():
    talk = Session(capped(4096))
    for _ in range(3):
        talk.ask()
    before = list(talk.messages)
    for _ in range(6):
        talk.messages = list(before)
        assert "window_full" not in talk.ask(size=3000).events()


def test_another_conversation_that_was_counted_whole_says_that_there_is_room():
    tools = kit()
    tools.windows.succeeded("http://up/v1", "m", 30_000, now=1000.0)
    talk = Session(capped(4096), kit=tools)
    assert talk.until_compacted(40) is None
    assert tools.windows.limit("http://up/v1", "m") is None
