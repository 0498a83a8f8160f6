"""What a view measures once a provider has reported its size."""

from __future__ import annotations

import pytest

from tidegate.context.calibration import measure
from tidegate.context.measured import Baseline, Measured

SUMS = [0, 100, 200, 300, 400]


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], Measured(450, 450, None, 1.0)),
        # Reported for the first three items: 350 were estimated, 525 counted.
        ([Baseline(3, 525)], Measured(625, 450, 625, 1.5)),
        # A report below the estimate never makes a view smaller, nor a budget larger.
        ([Baseline(3, 300)], Measured(450, 450, 400, 1.0)),
        # The longest beginning counts, the newest report of it.
        ([Baseline(2, 500), Baseline(4, 700), Baseline(4, 9_999)], Measured(700, 450, 700, 700 / 450)),
        ([Baseline(4, 2_000)], Measured(2_000, 450, 2_000, 3.0)),
        # Impossible ones: nothing, absurd, a prompt that was cut silently, another view.
        ([Baseline(4, 0)], Measured(450, 450, None, 1.0)),
        ([Baseline(4, -5)], Measured(450, 450, None, 1.0)),
        ([Baseline(4, 675_947_905)], Measured(450, 450, None, 1.0)),
        ([Baseline(4, 149)], Measured(450, 450, None, 1.0)),
        ([Baseline(5, 500)], Measured(450, 450, None, 1.0)),
        ([Baseline(4, 0), Baseline(3, 525)], Measured(625, 450, 625, 1.5)),
    ],
)
def test_the_larger_of_estimate_and_report(reports: list[Baseline], expected: Measured) -> None:
    assert measure(SUMS, 50, 0, 0, reports, window=10_000) == expected


def test_covered_items_count_as_their_artifact() -> None:
    reports = [Baseline(3, 360), Baseline(1, 9_000)]
    assert measure(SUMS, 50, 30, 2, reports, window=10_000) == Measured(460, 280, 460, 2.0)


def test_without_a_window_nothing_is_too_large() -> None:
    assert measure(SUMS, 50, 0, 0, [Baseline(4, 30_000)]).tokens == 30_000


def test_a_report_twice_the_window_is_still_believed() -> None:
    assert measure(SUMS, 50, 0, 0, [Baseline(4, 900)], window=450).tokens == 900
    assert measure(SUMS, 50, 0, 0, [Baseline(4, 901)], window=450).baseline is None
