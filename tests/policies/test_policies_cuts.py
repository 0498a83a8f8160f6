"""What each system keeps: where its rules cut a history, and where the engine does under its name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from policy_world import TENANT, answer, body, call, cut, measured, new_kit, result, target, user, whole

from tidegate.context.budget import Policy
from tidegate.context.cut import choose
from tidegate.context.policies import NAMED
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.planning import plan
from tidegate.engine.request import Request
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import read_history, replaced
from tidegate.wire import read
from tidegate.wire.conversation import Facts

Messages = list[dict[str, Any]]


def talk(count: int, characters: int) -> Messages:
    """Messages of so many characters, the user's and the assistant's by turns; words, no base64."""
    return [(answer if n % 2 else user)(_words(characters)) for n in range(count)]


def _words(characters: int) -> str:
    return ("word " * (characters // 5 + 1))[:characters]


# -- Rho (Elixir): the newest whole messages that fit 20,000 tokens ---------------------------------------------------


@pytest.mark.parametrize(
    ("characters", "kept"),
    [(20_000, 4), (20_001, 3), (19_996, 4), (40_000, 2), (80_000, 1), (80_004, 1), (120_000, 1), (4_000, 20)],
)
def test_rho_elixir_keeps_what_fits(characters: int, kept: int) -> None:
    count = max(6, 480_000 // characters + 2)
    found = cut("rho-elixir", body(talk(count, characters)), 200_000)
    assert found is not None
    assert found.at == count - kept


@pytest.mark.parametrize(("reported", "kept"), [(None, 4), (60_000, 2), (40_000, 3), (29_000, 4)])
def test_rho_elixir_keeps_less_where_the_provider_counted_more(reported: int | None, kept: int) -> None:
    """20,000 by the ratio of the provider's count to the estimate, 30,000 here: 10,000, 15,000; never more."""
    reports = None if reported is None else (6, reported)
    found = cut("rho-elixir", body(talk(6, 20_000)), 60_000, reports=reports)
    assert found is not None
    assert 6 - found.at == kept


def test_rho_elixir_never_begins_with_a_result() -> None:
    messages = [
        *talk(4, 40_000),
        user("go"),
        call("read", {"path": _words(4_000)}),
        result(_words(76_000)),
        answer("ok"),
    ]
    found = cut("rho-elixir", body(messages), 200_000)
    assert found is not None
    assert (found.at, found.retained) == (7, (4,))


@pytest.mark.parametrize("name", ["default", "rho", "rho-elixir", "rubypi", "planck"])
def test_nothing_to_summarize(name: str) -> None:
    assert cut(name, body([user(_words(400_000))]), 128_000) is None


# -- RubyPi: the last four messages -----------------------------------------------------------------------------------

TAIL = [answer("b"), user("c"), answer("d")]
TWO_CALLS = {**call("a", {}), "tool_calls": [call(name, {}, n)["tool_calls"][0] for n, name in ((1, "a"), (2, "b"))]}

RUBYPI: list[tuple[str, Messages, int]] = [
    ("the last four", talk(10, 4_000), 6),
    ("a result at the head goes with its call", [*talk(6, 5_000), call("a", {}), result("x" * 400), *TAIL], 8),
    ("so do several", [*talk(5, 6_000), TWO_CALLS, result("one", 1), result("two", 2), *TAIL[:2]], 8),
    ("a call at the head stays with its result", [*talk(7, 5_000), call("a", {}), result("x"), *TAIL[:2]], 7),
]


@pytest.mark.parametrize(("story", "messages", "at"), RUBYPI)
def test_rubypi_keeps_the_last_four(story: str, messages: Messages, at: int) -> None:
    found = cut("rubypi", body(messages), 200_000)
    assert found is not None
    assert found.at == at, story


def test_rubypi_has_nothing_to_drop_of_four_messages() -> None:
    """Where these alone are above the limit fewer are kept: RubyPi would be above it again on the next turn."""
    found = cut("rubypi", body(talk(4, 9_000)), 200_000)
    assert found is not None
    assert found.at == 2
    small = measured("rubypi", body(talk(4, 1_000)), 200_000)
    assert small.not_due(whole(small)) == "below_threshold"


@pytest.mark.parametrize(("extra", "due"), [(0, "below_threshold"), (1, "")])
def test_rubypi_is_due_above_eight_thousand(extra: int, due: str) -> None:
    sizing = measured("rubypi", body([user("x" * (4 * 8_000 - 40 + extra))]), None)
    assert sizing.measured(whole(sizing)).tokens == 8_000 + extra
    assert sizing.not_due(whole(sizing)) == due


@pytest.mark.parametrize(
    ("name", "characters", "due"),
    [
        # 200,000: due above 170,000, of bytes; at 160,000, of characters.
        ("rho-elixir", 680_000, "below_threshold"), ("rho-elixir", 680_001, ""),
        ("planck", 639_999, "below_threshold"), ("planck", 640_000, ""),
        ("rho", 800_000, "disabled"),
    ],
)  # fmt: skip
def test_the_others_are_due_by_the_window(name: str, characters: int, due: str) -> None:
    sizing = measured(name, body([user("x" * characters)]), 200_000, model="claude-x")
    assert sizing.not_due(whole(sizing)) == due


@pytest.mark.parametrize("last", [1, 2, 3, 5, 9])
def test_so_many_messages_are_kept_whoever_asks_for_them(last: int) -> None:
    policy = Policy(preserve_last_n=last)
    raw = body(talk(20, 2_000))
    kit = new_kit()
    request = Request("r1", read("chat", raw), TENANT, target(policy, 10_000), 1.0)
    sizing = Sizing(request, kit, read_history(request.conversation, TENANT, kit.hasher, kit.ledger))
    made = plan(sizing, whole(sizing), 5_000, "threshold", ("summary",))
    assert made is not None
    assert made.cut.at == 20 - min(last, 7), "what fits is kept, and no more than asked for"


def test_a_number_of_messages_is_moved_to_a_place_that_parts_nothing() -> None:
    facts = [Facts("message", "user", human=True), Facts("message", "assistant", calls=("a",)),
             Facts("message", "tool", results=("a",)), Facts("message", "user", human=True)]  # fmt: skip
    limits: Any = {"covered": 0, "room": 100, "tail_max": 100, "min_gain": 1, "retain_system_max": 0}
    places = [choose(facts, [1] * 4, keep_last=last, **limits) for last in (1, 2, 3, 4)]
    assert [it.at if it else None for it in places] == [3, 3, 1, 1]


# -- Planck: a tenth of the window ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("characters", "window", "kept"),
    [(4_000, 100_000, 10), (4_003, 100_000, 10), (4_004, 100_000, 9), (4_000, 99_999, 9), (60_000, 100_000, 1)],
)
def test_planck_keeps_a_tenth_of_the_window(characters: int, window: int, kept: int) -> None:
    count = 320_000 // characters + 1
    found = cut("planck", body(talk(count, characters)), window)
    assert found is not None
    assert found.at == count - kept


def test_planck_parts_no_call_from_its_result() -> None:
    """Its own code may; see the page on policies."""
    messages = [*talk(78, 4_000), user("go"), call("a", {"path": _words(6_000)}), result(_words(36_000)), answer("ok")]
    found = cut("planck", body(messages), 100_000)
    assert found is not None
    assert (found.at, found.retained) == (81, (78,))


# -- Rho (Rust): groups within the target, less what is before them and a reserve -------------------------------------


@pytest.mark.parametrize(
    ("target_tokens", "room"),
    [(0, 0), (100, 100), (511, 511), (1_000, 512), (5_120, 512), (10_000, 1_000), (81_920, 8_192), (500_000, 8_192)],
)
def test_rho_keeps_a_reserve_of_the_target_for_the_summary(target_tokens: int, room: int) -> None:
    assert NAMED["rho"].policy.room(200_000, target_tokens) == room


def test_rho_keeps_the_newest_groups_that_fit() -> None:
    # A message of 3,980 characters is 4 + 1 + 995 tokens; 50,000 less the request's 3 and a reserve of 5,000 is 44,997.
    found = cut("rho", body(talk(90, 3_980)), 100_000)
    assert found is not None
    assert found.at == 90 - 44


@pytest.mark.parametrize(
    ("reported", "aim"), [(None, 50_000), (45_000, 50_000), (90_000, 50_000), (135_000, 33_333), (180_000, 25_000)]
)
def test_rho_shrinks_its_budget_and_never_enlarges_it(reported: int | None, aim: int) -> None:
    messages = talk(90, 3_968)
    sizing = measured("rho", body(messages), 100_000, reports=None if reported is None else (90, reported))
    size = sizing.measured(whole(sizing))
    assert size.local == 3 + 90 * 997
    exact = 50_000 if not reported or reported <= size.local else 50_000 * size.local // reported
    assert size.shrunk(50_000) == exact
    assert abs(exact - aim) <= 200


# -- what all of them keep --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("rounds", [1, 6, 40])
def test_the_users_newest_words_stay_and_the_tail_is_half_the_window_at_most(name: str, rounds: int) -> None:
    words = user("Please do the thing. " + _words(900))
    messages = [*talk(60, 8_000), words]
    for n in range(rounds):
        messages += [call("run", {"n": n}, n), result(_words(7_000), n)]
    found = cut(name, body(messages), 100_000)
    assert found is not None
    sizing = measured(name, body(messages), 100_000)
    entries, sums = sizing.history.entries, sizing.history.past.sums
    assert found.at <= 60 or 60 in found.retained
    newest = len(entries) - 2
    assert found.at <= newest
    assert sums[-1] - sums[found.at] <= 50_000 or found.at == newest


# -- merging of the summary into a leading user message ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "after", "merged"),
    [
        ("rubypi", user("and now?"), True),
        ("rubypi", answer("done"), False),
        ("default", user("and now?"), False),
        ("rho", user("and now?"), False),
        ("planck", answer("done"), False),
    ],
)
def test_a_summary_goes_into_the_user_message_after_it(name: str, after: dict[str, Any], merged: bool) -> None:
    messages = [
        {"role": "system", "content": "Be helpful"},
        user("old"),
        answer("older"),
        after,
        answer("yes"),
        user("end"),
    ]
    raw = body(messages)
    kit = new_kit()
    conversation = read("chat", raw)
    history = read_history(conversation, TENANT, kit.hasher, kit.ledger)
    checkpoint = Checkpoint(
        tenant=TENANT, bucket=history.chain.bucket, length=2, chain=history.chain.links[2], head=history.head,
        dialect="chat", artifact=Artifact("text", text="SUMMARY"), provider="openai", endpoint="http://up/v1",
        model="m", strategy="summary", tokens_before=9, tokens_after=9,
    )  # fmt: skip
    view = replaced(history, checkpoint, target(NAMED[name].policy, 9_000))
    system, first, *rest = json.loads(view.body)["messages"]
    assert system == messages[0], "the system prompt is never written over"
    assert first["role"] == "user", "a summary is the user's, never the system's"
    assert "SUMMARY" in first["content"]
    if merged:
        assert first["content"].endswith("\n\nand now?")
        assert rest == messages[4:]
    else:
        assert rest == messages[3:]
    assert json.loads(raw)["messages"] == messages, "what came in is not changed"


def test_a_policy_is_taken_from_the_target_and_else_from_the_kit() -> None:
    raw = body(talk(9, 4_000))
    kit = new_kit(replace(Policy(), threshold_percent=10))
    own, none = target(Policy(threshold_percent=20), 10_000), target(None, 10_000)
    for to, threshold in ((own, 2_000), (none, 1_000)):
        request = Request("r1", read("chat", raw), TENANT, to, 1.0)
        sizing = Sizing(request, kit, read_history(request.conversation, TENANT, kit.hasher, kit.ledger))
        assert sizing.limits().threshold == threshold
