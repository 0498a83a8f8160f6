"""When a compaction is due: the vectors of each trigger, and what a name and the settings over it make of them."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.context.budget import Budget, Policy, budget, harder, reserve_threshold
from tidegate.context.policies import NAMED, chosen

# -- reserve (oh-my-pi, Rho Elixir): W -> the size that is still not due ----------------------------------------------

RESERVE = [
    (100, 85), (4096, 3482), (8192, 6964), (10_000, 8500), (16_384, 13_927), (19_274, 16_383), (19_275, 16_384),
    (19_276, 2892), (20_000, 3616), (32_768, 16_384), (65_536, 49_152), (109_226, 92_842), (109_227, 92_843),
    (128_000, 108_800), (131_072, 111_412), (200_000, 170_000), (272_000, 231_200), (400_000, 340_000),
    (1_000_000, 850_000), (1_048_576, 891_290), (1, 0),
]  # fmt: skip
EXPLICIT = [
    (10_000, 16_384, 8500), (18_000, 16_384, 1616), (200_000, 50_000, 150_000), (200_000, 0, 170_000),
    (200_000, 10, 170_000),
]  # fmt: skip


@pytest.mark.parametrize(("window", "threshold"), RESERVE)
def test_reserve(window: int, threshold: int) -> None:
    assert reserve_threshold(window) == threshold
    due = budget(Policy(trigger="reserve"), window=window).threshold
    assert due == min(window, threshold + 1), "strictly above it"


@pytest.mark.parametrize(("window", "reserve", "threshold"), EXPLICIT)
def test_reserve_of_so_many_tokens(window: int, reserve: int, threshold: int) -> None:
    assert reserve_threshold(window, reserve) == threshold
    assert budget(Policy(trigger="reserve", reserve_tokens=reserve), window=window).threshold == threshold + 1


# -- percent (Rho Rust): rounded up, due at it ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percent", "target", "window", "due", "aim"),
    [
        (85, 50, 1000, 850, 500),
        (85, 99, 1000, 850, 840),
        (85, 84, 1000, 850, 840),
        (85, 50, 1001, 851, 501),
        (100, 100, 1000, 1000, 990),
        (1, 1, 1000, 10, 9),
        (85, 50, 200_000, 170_000, 100_000),
        (85, 50, 1_000_000, 850_000, 500_000),
    ],
)
def test_percent(percent: float, target: float, window: int, due: int, aim: int) -> None:
    policy = chosen([{"threshold_percent": percent, "target_percent": target}]).policy
    found = budget(policy, window=window)
    assert (found.threshold, found.target) == (due, aim)


@pytest.mark.parametrize(("window", "due"), [(1000, 800), (999, 799), (128_000, 102_400), (3, 2), (1, 1)])
def test_percent_rounded_down(window: int, due: int) -> None:
    assert budget(Policy(threshold_percent=80, rounds_down=True), window=window).threshold == due


# -- tokens (RubyPi): strictly above, whatever the window -------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "window", "due"),
    [(8000, None, 8001), (8000, 200_000, 8001), (100, 200_000, 101), (1, None, 2)],
)
def test_tokens(most: int, window: int | None, due: int) -> None:
    found = budget(Policy(trigger="tokens", max_tokens=most, target_percent=None), window=window)
    assert (found.threshold, found.target, found.window) == (due, due - 1, window)


def test_tokens_that_the_window_has_not() -> None:
    found = budget(Policy(trigger="tokens", max_tokens=8000, target_percent=None), window=4000)
    assert (found.threshold, found.target) == (4000, 2400)


@pytest.mark.parametrize("trigger", ["percent", "reserve", "off"])
def test_without_a_window_only_tokens_are_a_trigger(trigger: Any) -> None:
    assert budget(Policy(trigger=trigger), window=None) == Budget()


@pytest.mark.parametrize("trigger", ["reserve", "tokens"])
@pytest.mark.parametrize("window", [10_000, 20_000, 200_000])
def test_a_percentage_of_the_window_is_no_aim_near_a_threshold_that_is_none(trigger: Any, window: int) -> None:
    found = budget(Policy(trigger=trigger, target_percent=90), window=window)
    assert found.target is not None
    assert found.threshold is not None
    assert found.target == int(found.threshold * 0.6)


# -- off, and what is asked for all the same --------------------------------------------------------------------------


def test_off_is_not_automatic_and_has_sizes_for_those_who_ask() -> None:
    off = Policy(trigger="off")
    assert not off.automatic
    assert budget(off, window=200_000) == Budget(200_000, 200_000, 170_000, 100_000, None)


@pytest.mark.parametrize(
    ("window", "sent", "aim"),
    [(1_000_000, 1_000, 500), (200_000, 190_000, 95_000), (200_000, 400_000, 100_000), (None, 1_000, 500)],
)
def test_a_refused_request_aims_at_half_of_it_at_most(window: int | None, sent: int, aim: int) -> None:
    assert harder(budget(Policy(), window=window), sent) == aim


# -- a name, and the settings over it ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "window", "due", "automatic", "recovers"),
    [
        ("default", 200_000, 170_000, True, True),
        ("rho", 200_000, 170_000, False, False),
        ("rho-elixir", 200_000, 170_001, True, True),
        ("rubypi", 200_000, 8_001, True, False),
        ("planck", 200_000, 160_000, True, False),
    ],
)
def test_named(name: str, window: int, due: int, automatic: bool, recovers: bool) -> None:
    policy = chosen([{"policy": name}]).policy
    assert policy == NAMED[name].policy
    assert budget(policy, window=window).threshold == due
    assert (policy.automatic, policy.on_overflow) == (automatic, recovers)


LEVELS = [
    ([], "default", {}),
    ([{"policy": "rubypi", "max_tokens": 9000}], "rubypi", {"max_tokens": 9000, "preserve_last_n": 4}),
    ([{"policy": "planck", "keep_recent_tokens": 7}], "planck", {"keep_recent_tokens": 7, "keep_recent_percent": None}),
    ([{"policy": "rho-elixir", "keep_recent_percent": 5}], "rho-elixir", {"keep_recent_tokens": None}),
    # Rho recovers from a refusal only where it compacts by itself.
    ([{"policy": "rho", "enabled": True}], "rho", {"enabled": True, "on_overflow": True}),
    ([{"policy": "rho", "enabled": True, "on_overflow": False}], "rho", {"on_overflow": False}),
    # A model's name begins anew, but for switches; a model's settings lie over the provider's, those over the house's.
    ([{"threshold_percent": 70}, {}, {"policy": "planck"}], "planck", {"threshold_percent": 80}),
    ([{"enabled": False, "on_overflow": True}, {}, {"policy": "planck"}], "planck",
     {"enabled": False, "on_overflow": True}),
    ([{"threshold_percent": 70}, {"threshold_percent": 60}, {}], "default", {"threshold_percent": 60}),
    ([{"threshold_percent": 70}, {"trigger": "off"}, {"trigger": "percent"}], "default",
     {"threshold_percent": 70, "trigger": "percent"}),
]  # fmt: skip


@pytest.mark.parametrize(("levels", "name", "expected"), LEVELS)
def test_settings_lie_over_a_name(levels: list[dict[str, object]], name: str, expected: dict[str, object]) -> None:
    made = chosen(levels)
    assert made.name == name
    assert {key: getattr(made.policy, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ({"target_percent": 99}, ["target_percent 99 is not below threshold_percent 85; 84 is used, one below it"]),
        ({"max_tokens": 5}, ["max_tokens has no effect: the trigger is percent"]),
        ({"policy": "rubypi", "threshold_percent": 60}, ["threshold_percent has no effect: the trigger is tokens"]),
        ({"trigger": "off", "reserve_tokens": 5}, []),
        ({"trigger": "reserve", "target_percent": 99}, []),
    ],
)
def test_what_cannot_be_meant_is_told(level: dict[str, object], told: list[str]) -> None:
    assert list(chosen([level]).told) == told


def test_policies_that_are_equal_are_one_to_what_remembers_them() -> None:
    assert hash(Policy()) == hash(Policy())
    assert len({Policy(), Policy(), Policy(trigger="off")}) == 2


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"preserve_last_n": 0}, {"reserve_tokens": -1}, {"keep_recent_percent": 0}]
)
def test_what_no_policy_can_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Policy(**wrong)
