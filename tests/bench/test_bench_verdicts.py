"""Medians, ratios, bars and the comparison with stored ratios."""

import json
from pathlib import Path

import pytest

from rig.bars import BARS, CHECKS, KEPT, PLAIN, watched
from rig.scenarios import BY_NAME
from rig.verdicts import Bar, Figures, Verdict, Worse, added, judge, median, number, ratio, table, total, worsened

FIGURES: Figures = {
    "1k": {
        "direct": [{"p50": 10.0}, {"p50": 20.0}, {"p50": 10.0}],
        "nginx": [{"cpu": 10.0, "p50": 40.0}, {"cpu": 40.0, "p50": 90.0}, {"cpu": 10.0, "p50": 30.0}],
        "tidegate": [{"cpu": 30.0, "p50": 110.0}, {"cpu": 80.0, "p50": 220.0}, {"cpu": 50.0}],
    }
}


def test_a_median_is_over_the_rounds_that_have_the_figure() -> None:
    assert median(FIGURES, "1k", "tidegate", "cpu") == 50
    assert median(FIGURES, "1k", "tidegate", "p50") == 165
    assert median(FIGURES, "1k", "absent", "cpu") is None


def test_a_ratio_is_the_median_of_each_rounds_own() -> None:
    assert ratio(FIGURES, "1k", "cpu", "tidegate", "nginx") == 3  # of 3, 2 and 5: a slow round slows both


def test_what_is_added_is_told_above_the_same_rounds_base() -> None:
    assert added(FIGURES, "1k", "p50", "nginx") == 30  # of 30, 70, 20


@pytest.mark.parametrize("base", ["absent", "direct"])
def test_without_a_base_there_is_no_ratio(base: str) -> None:
    assert ratio(FIGURES, "1k", "cpu", "tidegate", base) is None


def test_failures_of_all_rounds_count() -> None:
    assert total({"s": {"g": [{"failures": 1.0}, {"failures": 2.0}]}}, "s", "g", "failures") == 3


@pytest.mark.parametrize(
    ("value", "least", "met", "stretched"),
    [
        (2.0, False, True, True),
        (2.5, False, True, False),
        (4.0, False, True, False),
        (4.1, False, False, False),
        (1.0, True, False, False),
        (4.0, True, True, True),
        (None, False, None, False),
    ],
)
def test_a_bar_is_met_up_to_its_limit(value: float | None, least: bool, met: bool | None, stretched: bool) -> None:
    bar = Bar(1, "CPU", lambda figures, gateway: value, 4.0, stretch=2.0, least=least)
    [verdict] = judge([bar], {})
    assert verdict == Verdict(bar, value)
    assert (verdict.met, verdict.stretched) == (met, stretched)


def test_bars_are_a_multiple_of_the_plain_nginx_and_show_that_of_the_one_that_keeps_its_connections() -> None:
    cpu = {"tidegate": 90.0, PLAIN: 45.0, KEPT: 20.0}
    first = {"tidegate": 220.0, PLAIN: 120.0, KEPT: 70.0, "direct": 20.0}
    figures: Figures = {
        "1k_c32": {name: [{"cpu_us": value}] for name, value in cpu.items()},
        "first_20": {name: [{"first_byte_p50_us": value}] for name, value in first.items()},
    }
    found = {one.bar.what: (one.value, one.beside) for one in judge(BARS, figures) if one.value is not None}
    assert found == {
        "CPU, 1 KB, 32 at once, against nginx": (2, 4.5),
        "Added time to first byte, against nginx": (2, 4),
    }


STORED = {"1 KB": 3.0, "1 MB": 5.0}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"1 KB": 5.9, "1 MB": 0.1}, []),
        ({"1 KB": 6.0, "1 MB": 5.0}, [Worse("1 KB", 3.0, 6.0)]),
        ({"1 KB": 3.0, "1 MB": None}, [Worse("1 MB", 5.0, None)]),
        ({"1 KB": 3.0, "1 MB": 5.0, "new": 99.0}, []),
    ],
    ids=["within twice the stored", "twice the stored", "not measured any more", "never stored"],
)
def test_a_ratio_is_worse_from_twice_the_stored_one(found: dict[str, float | None], expected: list[Worse]) -> None:
    assert worsened(STORED, found) == expected


def test_every_bar_goes_without_figures() -> None:
    assert {verdict.met for verdict in judge(BARS, {})} == {None}


def test_no_stall_counts_only_where_there_was_a_compaction() -> None:
    [bar] = [bar for bar in BARS if bar.point == 6]
    idle, busy, waiting = ({"waited": waited, "summaries": n} for waited, n in ((0.0, 0.0), (0.0, 2.0), (1.0, 2.0)))
    assert [judge([bar], {"stall": {"tidegate": [one]}})[0].met for one in (idle, busy, waiting)] == [None, True, False]


def test_what_is_watched_has_a_scenario_and_a_stored_ratio_for_each_form_and_base() -> None:
    stored = json.loads((Path(__file__).parents[2] / "bench" / "baseline.json").read_text())
    assert set(stored) == {"tidegate", "tidegate-compiled"}
    assert [set(by_base) for by_base in stored.values()] == [{"nginx", "relay"}] * 2
    for ratios in (ratios for by_base in stored.values() for ratios in by_base.values()):
        assert list(ratios) == [name for name, _, _ in CHECKS] == list(watched({}, "nginx"))
    assert all(scenario in BY_NAME for _, scenario, _ in CHECKS)


def test_a_table_reads_as_text_too() -> None:
    assert table(["gateway", "µs"], [["nginx", "9"], ["tidegate", "120"]]).splitlines() == [
        "| gateway  |  µs |",
        "|----------|----:|",
        "| nginx    |   9 |",
        "| tidegate | 120 |",
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, ""), (0.0, "0.00"), (3.14159, "3.14"), (45.67, "45.7"), (12345.6, "12,346")]
)
def test_figures_have_three_digits_that_count(value: float | None, shown: str) -> None:
    assert number(value) == shown
