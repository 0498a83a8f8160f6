"""Where a history may be cut, and where it is cut: tables of cases in short letters, and what holds for any
history."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.context.cut import Cut, choose, groups, links, newest_turn, safe_cuts
from tidegate.wire.conversation import Facts


def human(*results: str) -> Facts:
    return Facts("message", "user", human=True, results=results)


def says(*calls: str) -> Facts:
    return Facts("message", "assistant", calls=calls)


def result(*ids: str) -> Facts:
    return Facts("message", "tool", results=ids)


def call(*ids: str) -> Facts:
    return Facts("function_call", "assistant", calls=ids)


def unknown(*mentions: str, ids: tuple[str, ...] = ()) -> Facts:
    return Facts("novelty", "other", mentions=mentions, ids=ids)


SYSTEM = Facts("message", "system")
REASONING = Facts("reasoning", "assistant", leans_on_next=True)
THOUGHT = Facts("reasoning", "assistant")


def cuts(*facts: Facts) -> list[int]:
    return [i for i, safe in enumerate(safe_cuts(facts)) if safe]


@pytest.mark.parametrize(
    ("story", "facts", "allowed"),
    [
        ("nothing", [], [0]),
        ("plain talk", [human(), says(), human()], [0, 1, 2, 3]),
        ("a call and its result", [human(), says("a"), result("a"), says()], [0, 1, 3, 4]),
        (
            "parallel calls in one message",
            [human(), says("a", "b"), result("a"), result("b"), says()],
            [0, 1, 4, 5],
        ),
        (
            "parallel calls, results interleaved",
            [human(), call("a"), call("b"), result("b"), result("a"), says()],
            [0, 1, 5, 6],
        ),
        ("results in one user message", [says("a", "b"), result("a", "b"), human()], [0, 2, 3]),
        ("a late result", [says("a"), human(), says(), result("a"), human()], [0, 4, 5]),
        ("a second result", [says("a"), result("a"), result("a"), says()], [0, 3, 4]),
        (
            "an id used again",
            [says("a"), result("a"), human(), says("a"), result("a"), human()],
            [0, 2, 3, 5, 6],
        ),
        (
            "an id used again after a call without a result",
            [says("a"), human(), says("a"), result("a"), human()],
            [0, 1, 2, 4, 5],
        ),
        ("one id twice in one turn", [says("", ""), result(""), result(""), human()], [0, 3, 4]),
        (
            "a call that answers itself",
            [human(), Facts("mcp", "assistant", calls=("a",), results=("a",))],
            [0, 1, 2],
        ),
        ("a call in flight at the end", [human(), says("a")], [0, 1]),
        ("a call in flight, its fellow answered", [human(), says("a", "b"), result("b")], [0, 1]),
        ("a call in flight, a later fellow answered", [human(), call("a"), call("b"), result("b")], [0, 1]),
        ("a forgotten call before words of the user", [says("a"), human(), says()], [0, 1, 2, 3]),
        ("a forgotten call before a new turn", [says("a", "b"), result("b"), says()], [0, 2, 3]),
        ("a result without a call", [human(), result("x"), says()], [0, 2, 3]),
        ("results without calls", [human(), result("x"), result("y"), says()], [0, 3, 4]),
        ("a history that begins with a lost result", [result("x"), says(), human()], [0, 1, 2, 3]),
        (
            "a block of results, one without its call",
            [human(), says("a", "b"), result("a"), result("x"), result("b"), human()],
            [0, 1, 5, 6],
        ),
        ("reasoning and its message", [human(), REASONING, says(), human()], [0, 1, 3, 4]),
        ("reasoning before nothing yet", [human(), REASONING], [0, 1]),
        (
            "reasoning and its run of calls",
            [human(), THOUGHT, call("a"), call("b"), result("a"), result("b"), says()],
            [0, 1, 6, 7],
        ),
        (
            "a run begun by reasoning ends at the user",
            [THOUGHT, says(), says(), human(), says()],
            [0, 3, 4, 5],
        ),
        (
            "an unknown item that names a call",
            [human(), says("a"), result("a"), human(), unknown("a")],
            [0, 1, 5],
        ),
        (
            "an unknown item that names a later item",
            [unknown("m"), says(), Facts("x", "other", ids=("m",))],
            [0, 3],
        ),
        ("unknown items that name nobody", [unknown("user", "on"), says(), unknown("on")], [0, 1, 2, 3]),
        ("an unknown item that names itself", [unknown("u", ids=("u",)), says()], [0, 1, 2]),
    ],
)
def test_cut_points(story: str, facts: list[Facts], allowed: list[int]) -> None:
    assert cuts(*facts) == allowed


def test_links_tell_what_an_item_must_stay_with() -> None:
    assert links([human(), says("a"), result("a"), says("b")]) == [0, 1, 1, 3, 3]


def test_groups_lie_between_the_cut_points() -> None:
    facts = [human(), says("a"), result("a"), says(), human(), says("b")]
    assert groups(facts) == [range(0, 1), range(1, 3), range(3, 4), range(4, 5), range(5, 6)]
    assert groups([]) == []


@pytest.mark.parametrize(
    ("facts", "position"),
    [([], None), ([says()], None), ([human(), says(), human(), says("a"), result("a")], 2)],
)
def test_newest_turn(facts: list[Facts], position: int | None) -> None:
    assert newest_turn(facts) == position


def test_a_long_history_is_judged_quickly() -> None:
    facts = [human(), *(f for i in range(1000) for f in (says(f"c{i}"), result(f"c{i}")))]
    assert sum(safe_cuts(facts)) == 1002


BIG = 1_000_000


def pick(facts: list[Facts], tokens: list[int], room: int, **changes: int) -> Cut | None:
    limits = {"covered": 0, "tail_max": BIG, "min_gain": 1, "retain_system_max": 0, **changes}
    return choose(facts, tokens, room=room, **limits)


TALK = [human(), says(), human(), says(), human()]
STEPS = [human(), says("a"), result("a"), says("b"), result("b"), says("c"), result("c")]


class TestChoose:
    def test_takes_the_earliest_cut_that_fits(self) -> None:
        assert pick(TALK, [10] * 5, room=30) == Cut(2, (), 30)

    def test_a_short_tail_limit_cuts_later(self) -> None:
        assert pick(TALK, [10] * 5, room=30, tail_max=20) == Cut(3, (), 20)

    def test_cuts_inside_a_turn_and_keeps_the_users_words(self) -> None:
        assert pick(STEPS, [10] * 7, room=50) == Cut(3, (0,), 50)

    def test_never_splits_a_pair_to_fit_better(self) -> None:
        assert pick(STEPS, [10] * 7, room=45) == Cut(5, (0,), 30)

    def test_the_newest_group_stays_whole_though_it_does_not_fit(self) -> None:
        assert pick(STEPS, [10, 10, 10, 10, 10, 500, 500], room=100) == Cut(5, (0,), 1010)

    def test_a_call_in_flight_stays_with_what_follows(self) -> None:
        facts = [human(), says(), human(), says("a", "b"), result("a")]
        assert pick(facts, [10] * 5, room=1) == Cut(3, (2,), 30)

    def test_never_cuts_everything(self) -> None:
        assert pick([human()], [10], room=1) is None

    def test_nothing_legal_to_cut(self) -> None:
        assert pick([says("a"), result("a")], [10, 10], room=1) is None

    def test_only_what_is_not_covered_yet_is_a_candidate(self) -> None:
        assert pick(STEPS, [10] * 7, room=50, covered=3) == Cut(5, (0,), 30)
        assert pick(STEPS, [10] * 7, room=50, covered=5) is None

    def test_words_retained_before_are_retained_again_and_cost_no_gain(self) -> None:
        tokens = [500, 10, 10, 10, 10, 10, 10]
        assert pick(STEPS, tokens, room=530, covered=3, min_gain=20) == Cut(5, (0,), 520)
        assert pick(STEPS, tokens, room=530, covered=3, min_gain=21) is None

    def test_too_little_gain_is_no_cut(self) -> None:
        assert pick(TALK, [10] * 5, room=30, min_gain=20) == Cut(2, (), 30)
        assert pick(TALK, [10] * 5, room=30, min_gain=21) is None

    def test_retained_words_are_no_gain(self) -> None:
        assert pick([human(), says(), says()], [1000, 5, 5], room=1, min_gain=6) is None

    def test_system_items_inside_stay_newest_first_while_they_fit(self) -> None:
        facts = [human(), SYSTEM, says(), SYSTEM, says(), human()]
        tokens = [10, 7, 10, 8, 10, 10]
        assert pick(facts, tokens, room=10, retain_system_max=15) == Cut(5, (1, 3), 25)
        assert pick(facts, tokens, room=20, retain_system_max=14) == Cut(5, (3,), 18)
        assert pick(facts, tokens, room=10, retain_system_max=7) == Cut(5, (), 10)

    def test_words_beside_results_keep_the_calls_they_answer(self) -> None:
        # Anthropic: one user message may answer a call and say something too.
        facts = [human(), says("a", "b"), human("a", "b"), says("c"), result("c"), says("d"), result("d")]
        cut = pick(facts, [10] * 7, room=40)
        assert cut == Cut(5, (1, 2), 40)

    def test_results_that_the_model_has_not_answered_stay_though_the_user_has_said_more(self) -> None:
        facts = [human(), says("a"), result("a"), says("b", "c"), result("b"), result("c"), human()]
        tokens = [10, 10, 10, 10, 200, 200, 10]
        assert pick(facts, tokens, room=50) == Cut(6, (), 10)
        assert pick(facts, tokens, room=50, unanswered_max=420) == Cut(3, (), 420)
        assert pick(facts, tokens, room=50, unanswered_max=419) == Cut(6, (), 10)

    def test_parallel_calls_of_one_item_each_are_one_turn(self) -> None:
        facts = [human(), says(), says("a"), says("b"), result("a"), result("b"), human()]
        assert pick(facts, [10] * 7, room=10, unanswered_max=50) == Cut(2, (), 50)

    def test_results_that_are_answered_need_not_stay(self) -> None:
        facts = [human(), says("a"), result("a"), says(), human()]
        assert pick(facts, [10] * 5, room=10, unanswered_max=1000) == Cut(4, (), 10)

    def test_unanswered_results_stay_only_where_something_is_gained(self) -> None:
        facts = [human(), says("a"), result("a"), human()]
        assert pick(facts, [10] * 4, room=10, unanswered_max=1000, min_gain=20) == Cut(3, (), 10)

    def test_sizes_must_match_the_items(self) -> None:
        with pytest.raises(ValueError, match="5 items, but 4 sizes"):
            pick(TALK, [10] * 4, room=30)


# -- any history
# ---------------------------------------------------------------------------------------------------

names = st.integers(0, 5).map(lambda n: f"c{n}")


def _round(dialect: str, ids: list[str], mixed: bool, keep: list[bool]) -> list[Facts]:
    answered = [name for name, kept in zip(ids, keep, strict=False) if kept]
    if dialect == "responses":
        return [REASONING, *(call(i) for i in ids), *(result(i) for i in reversed(answered))]
    if dialect == "messages":
        return [says(*ids), *([(human if mixed else result)(*answered)] if answered else [])]
    return [says(*ids), *(result(i) for i in answered)]


@st.composite
def histories(draw: st.DrawFn, *, clean: bool = False) -> list[Facts]:
    """Histories of all three APIs; a clean one has every call answered and nothing but messages."""
    dialect = draw(st.sampled_from(["chat", "messages"] if clean else ["chat", "responses", "messages"]))
    facts: list[Facts] = []
    kinds = "hhaarrrrs" if clean else "hhaaarrrrrrsou"
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=16)):
        if kind == "h":
            facts.append(human())
        elif kind == "a":
            facts += [REASONING, says()] if dialect == "responses" else [says()]
        elif kind == "s":
            facts.append(SYSTEM)
        elif kind == "o":
            facts.append(result(draw(names)))
        elif kind == "u":
            facts.append(unknown(draw(names), "user", ids=("u1",)))
        else:
            ids = draw(st.lists(names, min_size=1, max_size=3, unique=True))
            keep = [clean or draw(st.integers(0, 3)) > 0 for _ in ids]
            facts += _round(dialect, ids, draw(st.booleans()), keep)
    return facts


def _matched(facts: list[Facts]) -> list[tuple[int, int]]:
    """(call, result) pairs the slow way: for each result, the nearest earlier open call of its id, else any
    earlier one."""
    taken: set[tuple[int, str]] = set()
    pairs = []
    for j, item in enumerate(facts):
        for name in item.results:
            earlier = [i for i in range(j) if name in facts[i].calls]
            free = [i for i in earlier if (i, name) not in taken]
            chosen = max(free or earlier, default=None)
            if chosen is not None:
                taken.add((chosen, name))
                pairs.append((chosen, j))
    return pairs


def _lost(items: list[Facts]) -> Counter[str]:
    """Results that have no call before them, by id."""
    seen: set[str] = set()
    lost: Counter[str] = Counter()
    for item in items:
        lost.update(name for name in item.results if name not in seen)
        seen.update(item.calls)
    return lost


@given(histories())
@settings(max_examples=200, deadline=None)
def test_safe_cuts_are_those_that_part_no_pair(facts: list[Facts]) -> None:
    pairs = _matched(facts)
    safe = safe_cuts(facts)
    assert len(safe) == len(facts) + 1
    assert safe[0]
    for at in range(len(facts) + 1):
        if any(i < at <= j for i, j in pairs):
            assert not safe[at], f"a cut at {at} parts a call from its result"


@given(histories(clean=True))
@settings(max_examples=150, deadline=None)
def test_without_other_ties_every_cut_that_parts_no_pair_is_safe(facts: list[Facts]) -> None:
    pairs = _matched(facts)
    expected = [not any(i < at <= j for i, j in pairs) for at in range(len(facts) + 1)]
    assert safe_cuts(facts) == expected


sizes = st.integers(4, 400)


@given(histories(), st.data())
@settings(max_examples=250, deadline=None)
def test_what_is_kept_is_legal_and_holds_the_newest_words(facts: list[Facts], data: st.DataObject) -> None:
    tokens = data.draw(st.lists(sizes, min_size=len(facts), max_size=len(facts)))
    room = data.draw(st.integers(0, sum(tokens)))
    lost_before = _lost(facts)
    last_group = groups(facts)[-1]
    newest = newest_turn(facts)
    covered = 0
    for _ in range(4):
        cut = choose(facts, tokens, covered=covered, room=room, tail_max=room, min_gain=1, retain_system_max=200)
        if cut is None:
            break
        assert covered < cut.at < len(facts)
        assert cut.at <= last_group.start
        assert list(cut.retained) == sorted(set(cut.retained))
        assert all(p < cut.at for p in cut.retained)
        assert newest is None or newest >= cut.at or newest in cut.retained
        kept = [*cut.retained, *range(cut.at, len(facts))]
        assert cut.kept_tokens == sum(tokens[i] for i in kept)
        pairs = _matched(facts)
        assert all((i in kept) == (j in kept) for i, j in pairs if i >= cut.at or j >= cut.at)
        # Nothing kept has lost a call that it had, and the span that goes to a summary has lost none either.
        assert _lost([facts[i] for i in kept]) <= lost_before
        assert _lost(facts[covered : cut.at]) <= lost_before
        if cut.kept_tokens > room:
            assert not any(safe_cuts(facts)[cut.at + 1 : len(facts)]), "a later cut was left untried"
        covered = cut.at


@given(histories(), st.integers(0, 2000), st.integers(0, 2000))
@settings(max_examples=100, deadline=None)
def test_more_room_never_cuts_later(facts: list[Facts], one: int, other: int) -> None:
    tokens = [50] * len(facts)
    small, large = sorted((one, other))
    tight = pick(facts, tokens, room=small)
    loose = pick(facts, tokens, room=large)
    if tight is not None and loose is not None:
        assert loose.at <= tight.at
