"""Which stated limits are believed, and what makes them forgotten."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.overflow import Evidence, Kind, Refusal, Sent, Verdict, Windows, classify
from tidegate.overflow.learned import Learned, Source, effective, merged
from tidegate.providers import load

ENDPOINT, MODEL = "https://api.example/v1", "m-1"
NUMBERS = Sent(tokens=140_000, window=200_000)


def verdict(limit: int | None = 131_072, *, kind: Kind = "overflow", certain: bool = True, **numbers: int) -> Verdict:
    return Verdict(kind, "compact", certain, Evidence("r", "f.toml"), window=limit, **numbers)  # type: ignore[arg-type]


def test_a_stated_limit_is_learned_for_its_endpoint_and_model_only() -> None:
    windows = Windows()
    assert windows.learn(ENDPOINT, MODEL, verdict(), NUMBERS)
    assert windows.limit(ENDPOINT, MODEL) == 131_072
    assert windows.limit(ENDPOINT, "m-2") is None
    assert windows.limit("https://other.example/v1", MODEL) is None


def test_the_window_that_a_refused_output_limit_states_is_learned() -> None:
    windows = Windows()
    refused = verdict(8_000, kind="output_limit", input_tokens=6_148, output_requested=2_000)
    assert windows.learn(ENDPOINT, MODEL, refused, Sent(tokens=6_000, output_limit=2_000))
    assert windows.limit(ENDPOINT, MODEL) == 8_000


def test_an_input_limit_counts_before_the_window() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(400_000, input_limit=272_000), Sent(tokens=500_000))
    assert windows.limit(ENDPOINT, MODEL) == 272_000


@pytest.mark.parametrize("kind", ["rate_limit", "quota", "output_limit", "payload_bytes", "media_limit", "other_4xx"])
def test_only_overflows_teach(kind: Kind) -> None:
    assert not Windows().learn(ENDPOINT, MODEL, verdict(kind=kind), NUMBERS)


@pytest.mark.parametrize(
    ("given", "sent", "taken"),
    [
        (verdict(None), Sent(), False),
        (verdict(certain=False), NUMBERS, False),
        (verdict(0), NUMBERS, False),
        (verdict(255), Sent(tokens=300), False),
        (verdict(512), Sent(tokens=900), True),
        (verdict(512), None, False),
        (verdict(4_096), None, True),
        (verdict(21_000_000), Sent(tokens=30_000_000), False),
        (verdict(1_000_000), Sent(tokens=9_000), False),
        (verdict(131_072), Sent(tokens=60_000), True),
        (verdict(131_072, input_tokens=90_000), NUMBERS, False),
        (verdict(131_072, input_tokens=130_000, output_requested=8_000), NUMBERS, True),
    ],
)
def test_a_number_must_be_a_window_and_fit_what_was_sent(given: Verdict, sent: Sent | None, taken: bool) -> None:
    assert Windows().learn(ENDPOINT, MODEL, given, sent) is taken


def test_a_larger_success_lifts_a_limit() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS)
    windows.succeeded(ENDPOINT, MODEL, 60_000)
    assert windows.limit(ENDPOINT, MODEL) == 65_536
    windows.succeeded(ENDPOINT, MODEL, 70_000)
    assert windows.limit(ENDPOINT, MODEL) is None


def test_a_limit_below_what_has_succeeded_is_believed_the_second_time() -> None:
    windows = Windows()
    windows.succeeded(ENDPOINT, MODEL, 100_000)
    assert not windows.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS)
    assert windows.limit(ENDPOINT, MODEL) is None
    assert not windows.learn(ENDPOINT, MODEL, verdict(4_000), NUMBERS)
    assert windows.learn(ENDPOINT, MODEL, verdict(4_000), NUMBERS)
    assert windows.limit(ENDPOINT, MODEL) == 4_000


def test_an_old_limit_is_forgotten() -> None:
    windows = Windows(lasts=60)
    windows.learn(ENDPOINT, MODEL, verdict(), NUMBERS, now=1_000)
    assert windows.limit(ENDPOINT, MODEL, now=1_060) == 131_072
    assert windows.limit(ENDPOINT, MODEL, now=1_061) is None


def test_no_more_than_its_size_is_kept() -> None:
    windows = Windows(size=2)
    for model in ("a", "b", "c"):
        windows.learn(ENDPOINT, model, verdict(), NUMBERS)
    assert [windows.limit(ENDPOINT, model) for model in ("a", "b", "c")] == [None, 131_072, 131_072]


def test_what_one_request_left_for_its_prompt_is_not_the_models_limit() -> None:
    text = (
        "You passed 170753 input tokens and requested 32000 output tokens. However, the model's context length is only "
        "202752 tokens, resulting in a maximum input length of 170752 tokens."
    )
    judged = classify(Refusal(400, text), load().rules("vllm"), sent=Sent(tokens=260_000, window=262_144))
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, judged, Sent(tokens=260_000))
    assert judged.input_limit is None
    assert windows.limit(ENDPOINT, MODEL) in (None, 202_752)


def test_an_answer_that_filled_the_window_tells_its_size_where_nothing_smaller_is_known() -> None:
    windows = Windows()
    windows.filled(ENDPOINT, MODEL, 2_048)
    assert windows.limit(ENDPOINT, MODEL) == 2_048
    windows.filled(ENDPOINT, MODEL, 4_096)
    assert windows.limit(ENDPOINT, MODEL) == 2_048
    windows.succeeded(ENDPOINT, MODEL, 3_000)
    windows.filled(ENDPOINT, MODEL, 2_500)
    assert windows.limit(ENDPOINT, MODEL) is None


def test_a_limit_that_was_stated_once_is_tried_again_after_six_hours_and_then_lasts() -> None:
    windows, hour = Windows(), 3_600
    windows.learn(ENDPOINT, MODEL, verdict(4_000), NUMBERS, now=0)
    assert windows.limit(ENDPOINT, MODEL, now=6 * hour) == 4_000
    assert windows.limit(ENDPOINT, MODEL, now=6 * hour + 1) is None
    windows.learn(ENDPOINT, MODEL, verdict(4_000), NUMBERS, now=7 * hour)
    assert windows.limit(ENDPOINT, MODEL, now=7 * hour + 7 * 24 * hour) == 4_000
    assert windows.limit(ENDPOINT, MODEL, now=8 * hour + 7 * 24 * hour) is None


@pytest.mark.parametrize(("known", "lasts"), [(131_072, True), (131_000, True), (200_000, False), (None, False)])
def test_a_limit_that_a_table_had_told_before_lasts_at_once(known: int | None, lasts: bool) -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(131_072), Sent(tokens=140_000, window=known), now=0)
    assert (windows.limit(ENDPOINT, MODEL, now=86_400) == 131_072) is lasts


def test_a_limit_that_was_doubted_and_came_again_lasts() -> None:
    windows = Windows()
    windows.succeeded(ENDPOINT, MODEL, 100_000)
    windows.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS, now=1)
    windows.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS, now=2)
    assert windows.limit(ENDPOINT, MODEL, now=86_400) == 65_536


def test_an_honest_server_refuses_twice_in_a_week_and_not_each_hour() -> None:
    windows, refusals = Windows(), 0
    for hour in range(7 * 24):
        now = hour * 3_600.0
        if windows.limit(ENDPOINT, MODEL, now=now) is None:  # so the request is not shrunk, and is refused
            refusals += 1
            windows.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS, now=now)
    assert refusals == 2


@pytest.mark.parametrize(("stated", "counted"), [(1_000, 1_100), (1_000, None)])
def test_a_window_that_what_was_sent_exceeds_absurdly_was_read_wrong(stated: int, counted: int | None) -> None:
    given = verdict(stated, **({"input_tokens": counted} if counted else {}))
    assert not Windows().learn(ENDPOINT, MODEL, given, Sent(tokens=1_100_000))


# ── refusals that state no number ─────────────────────────────────────────────────────────────────────────────────────

UNSTATED = "Your input exceeds the context window of this model. Please adjust your input and try again."


def unstated(**numbers: int) -> Verdict:
    return verdict(None, **numbers)


def test_what_was_refused_without_a_number_is_no_larger_than_what_was_sent() -> None:
    judged = classify(Refusal(400, UNSTATED), load().rules("openai"), sent=Sent(tokens=130_000))
    windows = Windows()
    assert windows.learn(ENDPOINT, MODEL, judged, Sent(tokens=130_000), now=0)
    assert windows.limit(ENDPOINT, MODEL, now=600) == 130_000


def test_a_count_of_the_provider_is_better_than_our_estimate() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, unstated(input_tokens=128_500), Sent(tokens=150_000))
    assert windows.limit(ENDPOINT, MODEL) == 128_500


def test_a_smaller_size_that_is_refused_lowers_it_and_a_larger_does_not() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=130_000))
    assert not windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=180_000))
    assert windows.limit(ENDPOINT, MODEL) == 130_000
    assert windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=110_000))
    assert windows.limit(ENDPOINT, MODEL) == 110_000


def test_one_refusal_without_a_number_counts_for_an_hour_and_two_for_long() -> None:
    windows = Windows(lasts=86_400, lasts_unstated=3_600)
    windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=130_000), now=0)
    assert windows.limit(ENDPOINT, MODEL, now=3_600) == 130_000
    assert windows.limit(ENDPOINT, MODEL, now=3_601) is None
    windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=125_000), now=4_000)
    assert windows.limit(ENDPOINT, MODEL, now=80_000) == 125_000


def test_a_success_above_it_lifts_it() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=60_000))
    windows.succeeded(ENDPOINT, MODEL, 61_000)
    assert windows.limit(ENDPOINT, MODEL) is None


def test_below_what_has_succeeded_it_takes_two() -> None:
    windows = Windows()
    windows.succeeded(ENDPOINT, MODEL, 100_000)
    assert not windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=20_000))
    assert windows.limit(ENDPOINT, MODEL) is None
    assert windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=22_000))
    assert windows.limit(ENDPOINT, MODEL) == 22_000


def test_a_number_comes_before_a_size_that_was_refused() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=130_000))
    assert windows.learn(ENDPOINT, MODEL, verdict(131_072), Sent(tokens=140_000))
    assert not windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=125_000))
    assert windows.limit(ENDPOINT, MODEL) == 131_072


def test_a_server_that_has_become_smaller_is_believed_the_second_time() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(131_072), NUMBERS)
    assert not windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=40_000))
    assert windows.learn(ENDPOINT, MODEL, unstated(), Sent(tokens=36_000))
    assert windows.limit(ENDPOINT, MODEL) == 36_000


@pytest.mark.parametrize(
    "given",
    [verdict(None, kind="rate_limit"), verdict(None, kind="output_limit"), verdict(None, certain=False)],
)
def test_nothing_is_learned_of_what_was_sent_from_other_verdicts(given: Verdict) -> None:
    assert not Windows().learn(ENDPOINT, MODEL, given, Sent(tokens=130_000))


@pytest.mark.parametrize("sent", [None, Sent(), Sent(tokens=0), Sent(tokens=100), Sent(tokens=30_000_000)])
def test_without_a_size_nothing_is_learned(sent: Sent | None) -> None:
    windows = Windows()
    assert not windows.learn(ENDPOINT, MODEL, unstated(), sent)
    assert windows.limit(ENDPOINT, MODEL) is None


# ── kept over a restart ───────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_learned_survives_as_json() -> None:
    before = Windows()
    before.learn(ENDPOINT, "a", verdict(), NUMBERS, now=10)
    before.learn(ENDPOINT, "b", unstated(), Sent(tokens=50_000), now=20)
    before.succeeded(ENDPOINT, "c", 70_000, now=30)
    state = json.loads(json.dumps(before.dump()))
    after = Windows()
    assert after.load(state) == 3
    assert list(after) == list(before)
    assert after.dump() == before.dump()
    assert (after.limit(ENDPOINT, "a", now=40), after.limit(ENDPOINT, "b", now=40)) == (131_072, 50_000)


def test_the_newer_of_two_is_kept() -> None:
    old, new = Windows(), Windows()
    old.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS, now=10)
    new.learn(ENDPOINT, MODEL, verdict(131_072), NUMBERS, now=20)
    assert new.load(old.dump()) == 0
    assert new.limit(ENDPOINT, MODEL, now=20) == 131_072
    assert old.load(new.dump()) == 1
    assert old.limit(ENDPOINT, MODEL, now=20) == 131_072


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        "x",
        {},
        {"version": 2, "windows": []},
        {"version": 1, "windows": {}},
        {"version": 1, "windows": [None, 3, {}, {"endpoint": "e"}, {"endpoint": "e", "model": 3}]},
        {"version": 1, "windows": [{"endpoint": "e", "model": "m", "limit": -1}]},
        {"version": 1, "windows": [{"endpoint": "e", "model": "m", "limit": True}]},
        {"version": 1, "windows": [{"endpoint": "e", "model": "m", "limit": "1"}]},
        {"version": 1, "windows": [{"endpoint": "e", "model": "m", "source": "guessed"}]},
        {"version": 1, "windows": [{"endpoint": "e" * 2000, "model": "m"}]},
        {"version": 1, "windows": [{"endpoint": "e", "model": "m", "learned_at": "now"}]},
    ],
)
def test_what_is_no_dump_is_left_out(state: object) -> None:
    windows = Windows()
    assert windows.load(state) == 0  # type: ignore[arg-type]
    assert list(windows) == []


def test_what_teaches_nothing_is_no_change() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(kind="rate_limit"), NUMBERS)
    assert windows.changed() == ()
    windows.succeeded(ENDPOINT, MODEL, 5_000)
    windows.changed()
    windows.succeeded(ENDPOINT, MODEL, 4_000)
    assert windows.changed() == ()


def test_what_is_known_is_shown_for_diagnostics() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(), NUMBERS, now=5)
    [known] = windows
    assert (known.model, known.limit, known.source, known.learned_at, known.times) == (MODEL, 131_072, "stated", 5, 1)
    assert {name for entry in windows.dump()["windows"] for name in entry} <= {  # type: ignore[union-attr]
        "endpoint", "model", "limit", "source", "learned_at", "times", "doubted", "succeeded", "succeeded_at",
        "of_input",
    }  # fmt: skip


@pytest.mark.parametrize(
    "entry",
    [
        {"succeeded": 5_000, "succeeded_at": "now"},
        {"succeeded": 5_000, "succeeded_at": -1},
        {"limit": 5_000, "learned_at": True},
        {"limit": 5_000, "of_input": 1},
    ],
)
def test_an_entry_with_a_field_of_no_sense_is_left_out(entry: dict[str, object]) -> None:
    state = {"version": 1, "windows": [{"endpoint": "e", "model": "m", **entry}]}
    assert Windows().load(state) == 0  # type: ignore[arg-type]


def test_what_has_changed_is_told_once() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, "a", verdict(), NUMBERS)
    windows.succeeded(ENDPOINT, "b", 5_000)
    first = windows.changed()
    assert {known.model for known in first} == {"a", "b"}
    assert windows.changed() == ()
    windows.succeeded(ENDPOINT, "b", 6_000)
    assert [known.succeeded for known in windows.changed()] == [6_000]
    windows.unsaved(first)
    assert {known.model for known in windows.changed()} == {"a", "b"}


def test_what_was_saved_and_taken_up_need_not_be_saved_again() -> None:
    before, after = Windows(), Windows()
    before.learn(ENDPOINT, "a", verdict(), NUMBERS)
    after.take_in(before.changed())
    assert after.changed() == ()


def test_names_too_long_to_keep_are_not_told() -> None:
    windows = Windows()
    windows.succeeded(ENDPOINT, "m" * 2_000, 5_000)
    assert windows.changed() == ()


# ── what holds, of tables and of what was learned ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Table:
    window: int | None = None
    input_limit: int | None = None
    own_window: bool = False
    own_input_limit: bool = False
    told_at: float = 0.0


def learned(limit: int, source: Source = "stated", *, of_input: bool = False) -> Learned:
    return Learned(ENDPOINT, MODEL, limit=limit, source=source, of_input=of_input)


@pytest.mark.parametrize(
    ("table", "known", "succeeded", "held"),
    [
        (Table(), None, 0, (None, None)),
        (Table(200_000), None, 150_000, (200_000, None)),
        # A stated limit stands in the table's place, in both directions; alone where there is none.
        (Table(), learned(131_072), 0, (131_072, None)),
        (Table(200_000), learned(131_072), 0, (131_072, None)),
        (Table(32_768), learned(131_072), 0, (131_072, None)),
        # The table's input limit was measured for the table's window.
        (Table(400_000, 272_000), learned(400_000), 0, (400_000, 272_000)),
        (Table(400_000, 272_000), learned(128_000), 0, (128_000, 272_000)),
        (Table(400_000, 272_000), learned(1_000_000), 0, (1_000_000, None)),
        (Table(None, 272_000), learned(1_000_000), 0, (1_000_000, 272_000)),
        # One of the input is no window.
        (Table(), learned(272_000, of_input=True), 0, (None, 272_000)),
        (Table(400_000), learned(272_000, of_input=True), 0, (400_000, 272_000)),
        (Table(400_000, 128_000), learned(272_000, of_input=True), 0, (400_000, 272_000)),
        (Table(128_000), learned(272_000, of_input=True), 0, (272_000, 272_000)),
        # A bound that was inferred only lowers.
        (Table(), learned(60_000, "refused"), 0, (60_000, None)),
        (Table(32_768), learned(60_000, "refused"), 0, (32_768, None)),
        (Table(200_000, 150_000), learned(60_000, "refused"), 0, (60_000, 150_000)),
        (Table(32_768), learned(60_000, "filled"), 0, (32_768, None)),
        # A table is wrong where more has succeeded.
        (Table(8_192), None, 30_000, (30_000, None)),
        (Table(400_000, 100_000), None, 120_000, (400_000, 120_000)),
        (Table(8_192), learned(60_000, "refused"), 30_000, (30_000, None)),
        (Table(), None, 30_000, (None, None)),
        # What the user set is never raised, and lowered by what is learned.
        (Table(50_000, own_window=True), None, 70_000, (50_000, None)),
        (Table(50_000, own_window=True), learned(131_072), 0, (50_000, None)),
        (Table(50_000, own_window=True), learned(32_768), 0, (32_768, None)),
        (Table(50_000, own_window=True), learned(40_000, of_input=True), 0, (50_000, 40_000)),
        (Table(400_000, 50_000, own_input_limit=True), learned(60_000, of_input=True), 0, (400_000, 50_000)),
        (Table(100_000, 50_000, own_input_limit=True), learned(200_000), 70_000, (200_000, 50_000)),
    ],
)
def test_what_holds(table: Table, known: Learned | None, succeeded: int, held: tuple[int | None, int | None]) -> None:
    assert effective(table, known, succeeded) == held


def test_an_input_limit_that_was_stated_is_known_as_one() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(400_000, input_limit=272_000), Sent(tokens=500_000))
    assert windows.within(ENDPOINT, MODEL, Table(400_000)) == (400_000, 272_000)
    windows.learn(ENDPOINT, MODEL, verdict(300_000), Sent(tokens=500_000))
    assert windows.within(ENDPOINT, MODEL, Table(400_000)) == (300_000, None)


def test_what_is_old_does_not_count() -> None:
    windows = Windows(lasts=100)
    windows.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS, now=10)
    windows.succeeded(ENDPOINT, MODEL, 50_000, now=20)
    assert windows.within(ENDPOINT, MODEL, Table(8_192), now=110) == (65_536, None)
    assert windows.within(ENDPOINT, MODEL, Table(8_192), now=115) == (50_000, None)
    assert windows.within(ENDPOINT, MODEL, Table(8_192), now=121) == (8_192, None)
    windows.succeeded(ENDPOINT, MODEL, 9_000, now=130)
    assert windows.within(ENDPOINT, MODEL, Table(8_192), now=130) == (9_000, None)


def test_what_succeeded_before_the_server_told_its_window_may_have_been_another_configuration() -> None:
    windows = Windows()
    windows.succeeded(ENDPOINT, MODEL, 30_000, now=10)
    assert windows.within(ENDPOINT, MODEL, Table(8_192, told_at=20), now=30) == (8_192, None)
    windows.succeeded(ENDPOINT, MODEL, 31_000, now=40)
    assert windows.within(ENDPOINT, MODEL, Table(8_192, told_at=20), now=50) == (31_000, None)


SIZES = st.none() | st.integers(256, 2_000_000)
TABLES = st.builds(Table, SIZES, SIZES, st.booleans(), st.booleans())


def room(held: tuple[int | None, int | None]) -> float:
    return min((size for size in held if size is not None), default=math.inf)


@settings(max_examples=300, deadline=None)
@given(TABLES, st.integers(256, 2_000_000), st.sampled_from(get_args(Source)), st.booleans(), st.integers(0, 2_000_000))
def test_who_is_right(table: Table, limit: int, source: Source, of_input: bool, succeeded: int) -> None:
    of_input = of_input and source == "stated"
    alone, held = effective(table, None, succeeded), effective(table, learned(limit, source, of_input=of_input))
    for size, own, now in ((table.window, table.own_window, 0), (table.input_limit, table.own_input_limit, 1)):
        if size is not None and own:  # the user's is an upper bound, and a success does not touch it
            assert alone[now] == size
            assert (held[now] or 0) <= size
        elif size is not None:  # a table's allows what has succeeded
            assert alone[now] == max(size, succeeded)
    assert room(held) <= limit
    if source != "stated":
        assert room(held) == min(limit, room((table.window, table.input_limit)))
    elif of_input and not table.own_window and not table.own_input_limit:
        assert room(held) == limit
    elif not table.own_window:
        assert held[0] == (limit if not of_input else table.window and max(table.window, limit))


# ── two who watch the same model ──────────────────────────────────────────────────────────────────────────────────────


def test_the_newer_limit_and_the_larger_success_since_are_kept() -> None:
    old = replace(learned(65_536), learned_at=10, succeeded=60_000, succeeded_at=40)
    new = replace(learned(131_072), learned_at=20, succeeded=30_000, succeeded_at=30)
    both = merged(old, new)
    assert (both.limit, both.learned_at, both.succeeded, both.succeeded_at) == (131_072, 20, 60_000, 40)
    before = replace(new, learned_at=50, succeeded=0)
    assert merged(old, before) == before


def test_a_success_of_the_one_lifts_the_limit_of_the_other() -> None:
    limited = replace(learned(65_536), learned_at=10, times=1)
    larger = Learned(ENDPOINT, MODEL, succeeded=70_000, succeeded_at=20)
    assert merged(limited, larger).limit is None
    assert merged(limited, replace(larger, succeeded_at=5)) == limited


LEARNED = st.builds(
    Learned,
    st.just(ENDPOINT),
    st.just(MODEL),
    limit=SIZES,
    source=st.sampled_from(get_args(Source)),
    learned_at=st.integers(0, 4).map(float),
    times=st.integers(0, 2),
    doubted=SIZES,
    succeeded=st.integers(0, 2_000_000),
    succeeded_at=st.integers(0, 4).map(float),
    of_input=st.booleans(),
).map(lambda known: replace(known, succeeded=min(known.succeeded, known.limit or known.succeeded)))


@settings(max_examples=300, deadline=None)
@given(LEARNED, LEARNED)
def test_in_any_order_the_same_and_nothing_new_the_second_time(one: Learned, other: Learned) -> None:
    both = merged(one, other)
    assert both == merged(other, one)
    assert merged(one, one) == one
    assert merged(both, one).learned_at == merged(both, other).learned_at == both.learned_at
    assert both.learned_at >= max(one.learned_at, other.learned_at)


# ── whatever happens ──────────────────────────────────────────────────────────────────────────────────────────────────

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("stated"), st.integers(0, 400_000), st.integers(0, 400_000)),
        st.tuples(st.just("unstated"), st.none(), st.integers(0, 400_000)),
        st.tuples(st.just("success"), st.none(), st.integers(0, 400_000)),
        st.tuples(st.just("filled"), st.none(), st.integers(0, 400_000)),
        st.tuples(st.just("later"), st.none(), st.integers(0, 400_000)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_a_limit_is_a_window_and_never_below_what_just_succeeded(events: list[tuple[str, int | None, int]]) -> None:
    windows, now = Windows(lasts=100_000, lasts_unstated=10_000), 0.0
    for event, stated, size in events:
        if event in ("stated", "unstated"):
            windows.learn(ENDPOINT, MODEL, verdict(stated), Sent(tokens=size), now=now)
        elif event == "success":
            windows.succeeded(ENDPOINT, MODEL, size, now=now)
            for known in windows:
                assert known.succeeded >= size
                assert known.limit is None or known.limit >= known.succeeded or size < known.succeeded
        elif event == "filled":
            windows.filled(ENDPOINT, MODEL, size, now=now)
        else:
            now += size
        limit = windows.limit(ENDPOINT, MODEL, now=now)
        assert limit is None or 256 <= limit <= 20_000_000
    twin = Windows()
    twin.load(windows.dump())
    assert list(twin) == list(windows)
