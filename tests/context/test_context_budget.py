"""When a compaction is due, what it aims for, and how long a summary may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.context.budget import Budget, Policy, budget, harder, summary_room


@pytest.mark.parametrize(
    ("policy", "request_", "expected"),
    [
        (Policy(), {"window": 200_000}, Budget(200_000, 200_000, 170_000, 100_000)),
        (Policy(), {"window": 1001}, Budget(1001, 1001, 851, 501)),
        (Policy(85, 99), {"window": 1000}, Budget(1000, 1000, 850, 849)),
        (Policy(7, 5), {"window": 100}, Budget(100, 100, 7, 5)),
        (Policy(100, 100), {"window": 100}, Budget(100, 100, 100, 99)),
        # Room for the answer counts only where the provider counts it, and half the window at most.
        (Policy(), {"window": 10_000, "output_limit": 4_000}, Budget(10_000, 10_000, 8_500, 5_000)),
        (
            Policy(),
            {"window": 10_000, "output_limit": 1_000, "counts_output": True},
            Budget(10_000, 9_000, 8_500, 5_000),
        ),
        (
            Policy(),
            {"window": 10_000, "output_limit": 4_000, "counts_output": True},
            Budget(10_000, 6_000, 6_000, 3_600),
        ),
        (
            Policy(),
            {"window": 10_000, "output_limit": 64_000, "counts_output": True},
            Budget(10_000, 5_000, 5_000, 3_000),
        ),
        (Policy(), {"window": 10_000, "counts_output": True}, Budget(10_000, 10_000, 8_500, 5_000)),
        # A provider that takes less than its window (272k of 400k).
        (Policy(), {"window": 400_000, "input_limit": 272_000}, Budget(400_000, 272_000, 272_000, 163_200)),
        (Policy(), {"window": None, "input_limit": 1_000}, Budget(1_000, 1_000, 850, 500)),
        # Of the input alone: the output takes nothing from it.
        (
            Policy(),
            {"window": None, "input_limit": 10_000, "output_limit": 4_000, "counts_output": True},
            Budget(10_000, 10_000, 8_500, 5_000),
        ),
        (
            Policy(),
            {"window": 40_000, "input_limit": 27_000, "output_limit": 10_000, "counts_output": True},
            Budget(40_000, 27_000, 27_000, 16_200),
        ),
        (Policy(), {"window": None}, Budget()),
        (Policy(), {"window": 0}, Budget()),
        (Policy(), {"window": 1}, Budget(1, 1, 1, 0)),
    ],
)
def test_budget(policy: Policy, request_: dict[str, int], expected: Budget) -> None:
    assert replace(budget(policy, **request_), soft=None) == expected


@pytest.mark.parametrize(
    ("policy", "request_", "soft"),
    [
        (Policy(), {"window": 200_000}, 140_000),
        (Policy(prepare_percent=60), {"window": 1000}, 600),
        # In proportion where the threshold is pushed down.
        (Policy(), {"window": 10_000, "output_limit": 64_000, "counts_output": True}, 4_118),
        (Policy(), {"window": 400_000, "input_limit": 272_000}, 224_000),
        # Between the target and the threshold, whatever was asked for.
        (Policy(60, 40), {"window": 1000}, 480),
        (Policy(85, 80), {"window": 1000}, 801),
        (Policy(85, 50, prepare_percent=20), {"window": 1000}, 501),
        (Policy(1, 0.5), {"window": 100}, 1),
        (Policy(prepare_percent=None), {"window": 1000}, None),
        (Policy(enabled=False), {"window": 1000}, None),
        (Policy(), {"window": None}, None),
    ],
)
def test_a_compaction_is_prepared_in_a_band_between_the_target_and_the_threshold(
    policy: Policy, request_: dict[str, int], soft: int | None
) -> None:
    assert budget(policy, **request_).soft == soft


@given(
    st.floats(0.1, 100),
    st.floats(0.1, 100),
    st.integers(1, 2_000_000),
    st.none() | st.integers(1, 2_000_000),
    st.none() | st.integers(0, 2_000_000),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_target_is_below_threshold_is_within_limit(
    high: float, low: float, window: int, input_limit: int | None, output: int | None, counts: bool
) -> None:
    made = budget(Policy(high, low), window=window, input_limit=input_limit, output_limit=output, counts_output=counts)
    assert made.limit is not None
    assert made.threshold is not None
    assert made.target is not None
    assert made.soft is not None
    assert made.target < made.soft <= made.threshold
    assert 0 <= made.target < made.threshold <= made.limit <= window
    assert made.limit >= min(window / 2, input_limit or window) - 1
    assert summary_room(made) * 3 <= made.target


@pytest.mark.parametrize(
    "changes", [{"threshold_percent": 0}, {"target_percent": 101}, {"keep_recent_tokens": 0}, {"prepare_percent": 0}]
)
def test_a_policy_names_what_is_wrong_with_it(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        Policy(**changes)


@pytest.mark.parametrize(
    ("size", "target", "room"),
    [
        (8_000, None, 800),
        (Budget(8_000, 8_000, 6_800, 4_000), None, 800),
        (200_000, None, 8_192),
        (32_000, None, 3_200),
        (2_048, None, 256),
        (600, None, 100),
        (Budget(8_000, 8_000, 6_800, 900), None, 300),
        (8_000, 900, 300),
        (Budget(), 3_000, 1_000),
        (Budget(), None, 256),
        (0, None, 0),
    ],
)
def test_room_for_a_summary_grows_with_the_window(size: int | Budget, target: int | None, room: int) -> None:
    assert summary_room(size, target) == room


@pytest.mark.parametrize(
    ("size", "sent", "target"),
    [
        (Budget(8_000, 8_000, 6_800, 4_000), 9_000, 4_000),
        (Budget(8_000, 8_000, 6_800, 4_000), 5_000, 2_500),
        (Budget(), 5_000, 2_500),
        (Budget(), -1, 0),
    ],
)
def test_after_an_overflow_the_target_is_harder(size: Budget, sent: int, target: int) -> None:
    assert harder(size, sent) == target
