"""Which tool results are left out: Rho's (Rust) oldest until its target is reached, or all that are old."""

from __future__ import annotations

from typing import Any

import pytest
from policy_world import body, call, measured, result, target, user, whole

from tidegate.context.policies import NAMED
from tidegate.engine.eliding import early, elided
from tidegate.engine.router import ELIDE, SUMMARY, Wanted

FIRST = Wanted((ELIDE, SUMMARY), "the test")
WINDOW = 40_000
"""Due at 34,000 by Rho, which aims for 20,000."""


def rounds(count: int, characters: int = 1_600) -> list[dict[str, Any]]:
    messages = [user("Read them all.")]
    for number in range(count):
        words = (f"line {number} " * characters)[:characters]
        messages += [call("read", {"path": f"{number}.py"}, number), result(words, number)]
    return messages


def left_out(name: str, messages: list[dict[str, Any]], aim: int | None = None) -> tuple[list[int], int]:
    """(rounds whose results are gone, tokens that are left)."""
    sizing = measured(name, body(messages), WINDOW, wanted=FIRST)
    aim = aim or sizing.limits().target
    assert aim
    view = elided(sizing, whole(sizing), aim)
    assert view is not None
    assert view.checkpoint is not None
    return [(position - 2) // 2 for position, _ in view.checkpoint.artifact.elided], view.tokens


def test_rho_leaves_out_the_oldest_until_its_target_is_reached() -> None:
    gone, tokens = left_out("rho", rounds(26, 6_400))
    assert gone == [*range(len(gone))]
    assert 20_000 - 1_600 < tokens <= 20_000, "one result less would be too much"
    assert 10 < len(gone) < 20


def test_default_leaves_out_all_that_are_old() -> None:
    gone, tokens = left_out("default", rounds(26, 6_400))
    assert gone == [*range(len(gone))]
    assert len(gone) > 20
    assert tokens < 10_000


def test_rho_touches_nothing_of_the_tail_that_fits_its_target_beside_a_summary() -> None:
    """20,000 less 2,000 for a summary: what the user says at the beginning can't be made smaller by this."""
    messages = [user("word " * 20_000), *rounds(60)[1:]]
    gone, tokens = left_out("rho", messages)
    assert tokens > 20_000
    sizing = measured("rho", body(messages), WINDOW, wanted=FIRST)
    sums = sizing.history.past.sums
    kept = sums[-1] - sums[2 * (gone[-1] + 1) + 1]
    assert kept <= 18_000 - sizing.history.overhead
    assert kept > 18_000 - sizing.history.overhead - 900


@pytest.mark.parametrize(("name", "ahead"), [("rho", False), ("default", True)])
def test_only_ours_leaves_out_before_anything_is_due(name: str, ahead: bool) -> None:
    sizing = measured(name, body(rounds(70)), WINDOW, wanted=FIRST)
    assert sizing.not_due(whole(sizing)) in ("below_threshold", "disabled")
    assert sizing.elides() == ahead
    assert (early(sizing, whole(sizing)) is not None) == ahead


def test_a_target_under_rho_has_its_rule() -> None:
    made = target(NAMED["rho"].policy, WINDOW)
    assert made.policy is not None
    assert made.policy.elides_enough
    assert NAMED["rho"].first == (ELIDE,)
    assert not any(named.policy.elides_enough for name, named in NAMED.items() if name != "rho")
