"""A compaction is begun in the band below the threshold, behind an answer, and used when one is due; no sooner."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_world import Gateway, Provider, items_of, new_kit, target_of
from histories import examples
from hypothesis import given
from hypothesis import strategies as st
from playbook import Playbook, chat_reply, ok, overflow, refused
from stage import body, checkpoint, history, kit, request, target, turn

from tidegate.compactors.strategy import CompactionFailed, Summary
from tidegate.context.budget import Policy
from tidegate.engine.checkpoint import Checkpoint, Found
from tidegate.engine.effects import Compact, Deliver, Failure, Finish, Made, NothingHelped, Notify, Prepare, Save, Send
from tidegate.engine.exchange import counted, exchange
from tidegate.engine.request import Kit
from tidegate.wire.conversation import Usage

WORDS = "## Goal\nMend the failing tests of the shop, file by file."
BELOW, BAND, FULL = history(10), history(15), history(18)
"""About 4,400, 6,600 and 7,900 tokens of a window of 8,000: the band is from 5,600 to 6,800."""


def eager(**changes: Any) -> Kit:
    return kit(Policy(), **changes)


def begin(messages, tools: Kit, *, found: Found | None = None, at: float = 1000.0, window: int | None = 8000, **more):
    asked = request(body(messages), to=target(window, **more), at=at)
    return Playbook(exchange(asked, tools)).reply(found or Found())


def answered(play: Playbook, *, finish: Finish | None = None) -> Playbook:
    """The play after a delivered answer, whatever had to be saved before."""
    play.reply(ok())
    while isinstance(play.effect, Save):
        play.reply()
    play.expect(Deliver)
    play.reply(finish or Finish())
    while isinstance(play.effect, Save):
        play.reply()
    return play


def make(effect: Prepare, text: str = WORDS) -> Made:
    """Runs its work to the end."""
    work = effect.work()
    try:
        next(work)
        while True:
            work.send(chat_reply(text))
    except StopIteration as end:
        made: Made = end.value
        return made


def prepared(tools: Kit, messages=BAND, **more: Any) -> Prepare:
    """One that has begun."""
    play = answered(begin(messages, tools, **more))
    effect = play.expect(Prepare)
    play.reply(True).done()
    assert "preparing" in play.events()
    return effect


# -- when it begins --------------------------------------------------------------------------------------------------


def test_below_the_band_nothing_is_prepared():
    answered(begin(BELOW, eager())).done()


def test_in_the_band_a_compaction_is_begun_behind_the_answer():
    effect = prepared(eager())
    assert make(effect).result.text.endswith(WORDS)  # type: ignore[union-attr]


def test_the_answers_own_length_counts():
    answered(begin(BELOW, eager()), finish=Finish(Usage(4100, 900), "stop")).done()
    answered(begin(BELOW, eager()), finish=Finish(Usage(4100, 1600), "stop")).expect(Prepare)


def test_a_report_above_the_estimate_counts_and_an_impossible_one_does_not():
    answered(begin(BELOW, eager()), finish=Finish(Usage(5700, 1), "stop")).expect(Prepare)
    answered(begin(BELOW, eager()), finish=Finish(Usage(10**6, 1), "stop")).done()


@pytest.mark.parametrize(
    "policy",
    [Policy(prepare_percent=None), Policy(enabled=False), Policy(prepare_percent=84)],
    ids=["off", "nothing is compacted ahead", "the band begins later"],
)
def test_nothing_is_prepared_where_it_is_not_wanted(policy):
    answered(begin(BAND, kit(policy))).done()


def test_nothing_is_prepared_for_an_unknown_window():
    answered(begin(BAND, eager(), window=None)).done()


@pytest.mark.parametrize("finish", [Finish(complete=False), None], ids=["cut", "no end"])
def test_nothing_is_prepared_behind_an_answer_that_was_cut(finish):
    play = begin(BAND, eager()).reply(ok())
    play.expect(Deliver)
    play.reply(finish).done()


def test_nothing_is_prepared_for_a_request_that_is_left_alone_or_only_counted():
    play = Playbook(exchange(request(body(BAND), to=target(), hands_off="bypassed"), eager()))
    play.reply(ok()).reply(Finish()).done()
    play = Playbook(counted(request(body(BAND), to=target()), eager())).reply(Found())
    play.reply(ok()).reply(Finish()).done()


def test_nothing_is_prepared_behind_a_refusal():
    play = begin(BAND, eager()).reply(refused(0, 503, "overloaded", kind="server_error"))
    play.expect(Deliver)
    play.reply(Finish()).done()


def test_a_compacted_request_is_out_of_the_band():
    answered(begin(FULL, eager()).summarise()).done()


def test_where_a_compaction_has_just_failed_none_is_prepared():
    play = begin(FULL, eager())
    play.expect(Compact)
    answered(play.fail(CompactionFailed("summary_empty"))).done()


def test_one_is_prepared_at_a_time():
    tools = eager()
    prepared(tools)
    answered(begin([*BAND, *turn(15, 100)], tools)).done()


def test_one_that_could_not_begin_is_tried_again_on_the_next_turn():
    tools = eager()
    for _ in range(3):
        play = answered(begin(BAND, tools))
        play.expect(Prepare)
        play.reply(False).done()
        assert "preparing" not in play.events()
    assert not tools.preparations.rests(b"", now=1000)


# -- when it is used -------------------------------------------------------------------------------------------------


def test_the_turn_that_is_due_finds_it_made():
    tools = eager()
    effect = prepared(tools)
    made = make(effect)
    cost = {"calls": 1, "input_tokens": made.result.input_tokens, "output_tokens": made.result.output_tokens}
    assert effect.ended(made) == Notify("prepared", {"strategy": "summary", "failed": "", **cost})
    play = begin(FULL, tools)
    compact = play.expect(Compact)
    assert (compact.key, compact.strategy) == (effect.key, effect.strategy)
    play.reply(made)
    sent = json.loads(play.expect(Send).body or b"")["messages"]
    assert "file by file" in sent[1]["content"]
    assert sent[2:] == FULL[-len(sent[2:]) :]
    saved = play.reply(ok()).expect(Save).record
    assert isinstance(saved, Checkpoint)
    outcome = play.reply().expect(Deliver).outcome
    assert (outcome.action, outcome.reason, outcome.compactions) == ("compacted", "prepared", 1)
    # It cuts as deep as one that is made when it is due.
    assert outcome.tokens_after is not None
    assert outcome.tokens_after < 4400
    play.reply(Finish()).done()


def test_the_work_can_be_done_anew_where_nothing_is_left_of_it():
    tools = eager()
    prepared(tools)
    play = begin(FULL, tools).summarise()
    play.expect(Send)
    assert play.reply(ok()).reply().expect(Deliver).outcome.reason == "prepared"


def test_it_is_not_used_before_the_threshold():
    tools = eager()
    make(prepared(tools))
    play = begin([*BAND, *turn(15, 100)], tools)
    assert play.expect(Send).body is None


def test_where_it_does_not_make_the_history_small_enough_the_ordinary_one_takes_its_place():
    tools = eager()
    effect = prepared(tools)
    longer = [*BAND, *turn(15, 5000), *history(1)[1:]]
    assert begin(longer, tools).expect(Compact).key != effect.key


def test_where_its_summary_is_longer_than_was_thought_another_compaction_follows():
    tools = eager()
    effect = prepared(tools)
    big = Made(Summary("word " * 2700, 1), "summary")
    play = begin(FULL, tools).reply(big)
    second = play.expect(Compact)
    assert second.key != effect.key
    play.summarise()
    play.expect(Send)
    outcome = play.reply(ok()).reply().expect(Deliver).outcome
    assert (outcome.compactions, outcome.reason) == (2, "")


def test_it_leaves_the_recoveries_their_own_compactions():
    tools = eager(max_compactions=1)
    made = make(prepared(tools))
    play = begin(FULL, tools).reply(made)
    play.expect(Send)
    play.reply(overflow(0, window=3000, tokens=3500)).summarise()
    assert play.expect(Send).body is not None
    play.reply(overflow(1, window=3000, tokens=3400))
    assert play.expect(Deliver).outcome.reason == "compaction_limit"


def test_a_refusal_for_size_uses_it_where_it_is_small_enough():
    tools = eager()
    effect = prepared(tools)
    play = begin([*BAND, *turn(15, 100)], tools).reply(overflow(0, window=8000, tokens=8100))
    assert play.expect(Compact).key == effect.key
    play.reply(make(effect))
    outcome = play.reply(ok(1)).reply().expect(Deliver).outcome
    assert (outcome.action, outcome.reason) == ("recovered", "prepared")


def test_a_refusal_that_states_a_smaller_window_makes_a_new_one():
    tools = eager()
    effect = prepared(tools)
    play = begin([*BAND, *turn(15, 100)], tools).reply(overflow(0, window=2500, tokens=6600))
    assert play.expect(Compact).key != effect.key


# -- when it fails ---------------------------------------------------------------------------------------------------


def test_one_that_failed_counts_as_any_failed_compaction():
    tools = eager()
    effect = prepared(tools)
    lost = NothingHelped((Failure("summary", "summary_unreachable", False, 2, 70, 5),))
    cost = {"calls": 2, "input_tokens": 70, "output_tokens": 5}
    assert effect.ended(lost) == Notify("prepare_failed", {"reason": "summary_unreachable", **cost})
    play = begin(FULL, tools)
    assert play.expect(Send).body is None
    assert answered(play).events()[-1] != "preparing"
    assert begin(FULL, tools, at=1031).expect(Compact).key != effect.key


def test_a_request_that_waited_for_one_that_failed_counts_it_once():
    tools = eager()
    effect = prepared(tools)
    play = begin(FULL, tools)
    play.expect(Compact)
    effect.ended(CompactionFailed("summary_empty"))
    play.fail(CompactionFailed("summary_empty"))
    assert play.expect(Send).body is None
    begin(FULL, tools, at=1031).expect(Compact)  # twice in a row would be a minute


def test_one_that_is_no_smaller_went_to_waste():
    tools = eager()
    for _ in range(2):
        prepared(tools)
        play = begin(FULL, tools).reply(Made(Summary("word " * 9000, 1), "summary"))
        assert play.expect(Send).body is None
        answered(play).done()
    answered(begin(BAND, tools)).done()


# -- when the history goes elsewhere ---------------------------------------------------------------------------------


def elsewhere(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same beginning, then other words."""
    return [*messages[:3], {**messages[3], "content": "another result " + "xyz " * 400}, *messages[4:]]


def test_another_history_throws_it_away():
    tools = eager()
    effect = prepared(tools)
    play = begin(elsewhere(FULL), tools)
    assert play.expect(Compact).key != effect.key
    play.summarise()
    play.expect(Send)
    answered(play)
    assert begin(FULL, tools).expect(Compact).key != effect.key


def test_another_history_in_the_band_gets_its_own():
    tools = eager()
    one = prepared(tools)
    other = prepared(tools, elsewhere(BAND))
    assert one.key != other.key
    assert begin(elsewhere(FULL), tools).expect(Compact).key == other.key


def test_two_in_a_row_for_nothing_are_the_last_for_an_hour():
    tools = eager()
    prepared(tools)
    prepared(tools, elsewhere(BAND))
    answered(begin(BAND, tools)).done()
    answered(begin(BAND, tools, at=1000 + 3500)).done()
    answered(begin(BAND, tools, at=1000 + 3700)).expect(Prepare)


def test_a_short_request_with_the_same_beginning_throws_nothing_away():
    tools = eager()
    effect = prepared(tools)
    answered(begin(history(1), tools)).done()
    assert begin(FULL, tools).expect(Compact).key == effect.key


def test_a_rewind_to_before_the_cut_throws_it_away_once_it_is_in_the_band_again():
    tools = eager()
    effect = prepared(tools)
    rewound = [*BAND[:9], *(message for number in range(20, 33) for message in turn(number))]
    assert answered(begin(rewound, tools)).expect(Prepare).key != effect.key


def test_another_checkpoint_another_endpoint_or_a_long_time_throws_it_away():
    own = checkpoint(body(FULL), 8)
    for change in ({"endpoint": "http://other/v1"}, {"at": 1000 + 1801}, {"found": Found((own,))}):
        tools = eager()
        prepared(tools)
        play = begin([*FULL, *history(1, 1200)[1:]], tools, **change).summarise()
        assert play.reply(ok()).reply().expect(Deliver).outcome.reason == ""


# -- over a session --------------------------------------------------------------------------------------------------


SIZES = st.lists(st.integers(100, 1500), min_size=12, max_size=30)


@examples(60)
@given(SIZES, st.booleans())
def test_between_compactions_the_forwarded_beginning_is_stable(sizes: list[int], background: bool) -> None:
    gate = Gateway(
        "chat", target_of("chat", 8000), Provider("chat", 8000), kit=new_kit(Policy()), background=background
    )
    messages, before, used = history(0)[:1], [], 0
    for number, size in enumerate(sizes):
        asked, *rest = turn(number, size)
        messages += [asked]
        seen = gate.serve(body(messages))
        messages += rest
        assert seen.answered
        assert seen.outcome is not None
        now = items_of("chat", seen.sent[-1])
        if seen.outcome.action in ("compacted", "recovered"):
            used += 1
        else:
            assert now[: len(before)] == before
        before = now
    if background:
        # Every summary but the last has been used, and none was made twice.
        assert len(gate.prepared) <= used + 1
