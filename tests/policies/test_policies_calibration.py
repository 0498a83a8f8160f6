"""What a provider's count is worth: of the very request that was sent, as long as that is the beginning of this one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from policy_world import TENANT, Json, answer, body, new_kit, target, user, whole

from tidegate.context.budget import Policy
from tidegate.context.calibration import measure, why_impossible
from tidegate.context.estimators import ESTIMATORS
from tidegate.context.measured import Baseline, Measured
from tidegate.context.policies import NAMED
from tidegate.engine.checkpoint import Report
from tidegate.engine.effects import Finish, Notify, Save
from tidegate.engine.learning import learn
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import read_history
from tidegate.overflow.verdict import Sent
from tidegate.wire import read
from tidegate.wire.conversation import FinishReason, Usage

TALK = [user("one " * 400), answer("two " * 400), user("three " * 400)]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
HOUSE = target(None, 100_000)


def sizing_of(raw: bytes, to: Target = HOUSE, kit: Kit | None = None) -> Sizing:
    kit = kit or new_kit()
    request = Request("r1", read("chat", raw), TENANT, to, 1000.0)
    estimator = ESTIMATORS[kit.policy_for(to).estimator]
    return Sizing(request, kit, read_history(request.conversation, TENANT, kit.hasher, kit.ledger, estimator))


def report_of(raw: bytes, tokens: int, to: Target = HOUSE, checkpoint: bytes = b"") -> Report:
    """What is kept of an answer to a request."""
    history = sizing_of(raw, to).history
    length = len(history.past)
    return Report(
        history.chain.bucket,
        length,
        history.chain.link(length),
        checkpoint,
        history.head,
        to.endpoint,
        to.model,
        tokens,
    )


# -- the count, and what came since -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimated_then", "reported", "estimated_now", "tokens"),
    [(100, 150, 100, 150), (100, 150, 130, 180), (100, 60, 130, 90), (100, 100, 100, 100)],
)
def test_rhos_count_is_the_report_and_the_estimate_of_what_came_since(
    estimated_then: int, reported: int, estimated_now: int, tokens: int
) -> None:
    sums = [0, estimated_then, estimated_now]
    found = measure(sums, 0, 0, 0, [Baseline(1, reported)])
    assert found.baseline == tokens
    assert found.tokens == max(tokens, estimated_now)


@pytest.mark.parametrize(
    ("target_tokens", "estimated", "measured", "budget"),
    [
        (1000, 450, 675, 666), (1000, 450, 450, 1000), (1000, 450, 300, 1000), (700, 450, 700, 450), (0, 450, 900, 0),
        (500_000, 100_000, 200_000, 250_000), (1_000_003, 333_333, 333_334, 999_999),
    ],
)  # fmt: skip
def test_a_budget_is_only_ever_shrunk(target_tokens: int, estimated: int, measured: int, budget: int) -> None:
    found = measure([0, estimated], 0, 0, 0, [Baseline(1, measured)])
    assert found.shrunk(target_tokens) == budget


def test_a_budget_without_a_count_is_what_it_is() -> None:
    assert Measured(10, 10, None, 1.0).shrunk(999) == 999


# -- what makes it another request ------------------------------------------------------------------------------------

LATER = [*TALK, answer("four"), user("five")]

SAME: list[tuple[str, bytes, Target]] = [
    ("the same", body(TALK), HOUSE),
    ("more after it", body(LATER), HOUSE),
    ("other settings, which are no part of the history", body(LATER, temperature=0.5), HOUSE),
    ("another policy", body(LATER), replace(HOUSE, policy=NAMED["rho-elixir"].policy)),
]
OTHER: list[tuple[str, bytes, Target]] = [
    ("another model", body(LATER), replace(HOUSE, model="n")),
    ("another endpoint", body(LATER), replace(HOUSE, endpoint="http://other/v1")),
    ("other tools", body(LATER, tools=TOOLS), HOUSE),
    ("another system prompt", body([{"role": "system", "content": "s"}, *LATER]), HOUSE),
    ("an edit of the first message", body([user("One " * 400), *LATER[1:]]), HOUSE),
    ("an edit of the last message that was counted", body([*TALK[:2], user("four " * 400), *LATER[3:]]), HOUSE),
    ("a shorter history", body(TALK[:2]), HOUSE),
]


@pytest.mark.parametrize(("story", "raw", "to"), SAME, ids=[it[0] for it in SAME])
def test_it_counts_for(story: str, raw: bytes, to: Target) -> None:
    found = sizing_of(raw, to).told((report_of(body(TALK), 3_000),))
    assert found.measured(whole(found)).baseline is not None


@pytest.mark.parametrize(("story", "raw", "to"), OTHER, ids=[it[0] for it in OTHER])
def test_it_does_not_count_for(story: str, raw: bytes, to: Target) -> None:
    found = sizing_of(raw, to).told((report_of(body(TALK), 3_000),))
    size = found.measured(whole(found))
    assert (size.baseline, size.tokens) == (None, size.local)


def test_a_count_of_a_compacted_view_is_not_one_of_the_whole_nor_the_other_way_round() -> None:
    report = report_of(body(TALK), 3_000, checkpoint=b"c" * 32)
    found = sizing_of(body(LATER)).told((report,))
    assert found.measured(whole(found)).baseline is None


def test_an_edit_of_the_settings_keeps_it() -> None:
    """A restart with another policy finds in the store what was counted before."""
    report = report_of(body(TALK), 3_000)
    for name in ("default", "rho", "rho-elixir"):
        found = sizing_of(body(LATER), kit=new_kit(replace(NAMED[name].policy, enabled=True))).told((report,))
        assert found.measured(whole(found)).baseline is not None


def test_a_request_keeps_the_settings_that_it_began_with() -> None:
    old, new = Policy(threshold_percent=60), Policy(threshold_percent=90)
    kit = new_kit(old)
    running = sizing_of(body(TALK), kit=kit)
    assert sizing_of(body(TALK), kit=replace(kit, policy=new)).limits().threshold == 90_000
    assert running.limits().threshold == 60_000


# -- what is believed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "estimated", "window", "size_bytes", "why"),
    [
        (0, 100, 1_000, 400, "none"), (-1, 100, 1_000, 400, "none"),
        (401, 100, 1_000, 400, "bytes"), (400, 100, 1_000, 400, ""),
        (2_001, 700, 1_000, 9_000, "window"), (2_000, 700, 1_000, 9_000, ""), (2_001, 700, None, 9_000, ""),
        (33, 100, 1_000, 400, "estimate"), (34, 100, 1_000, 400, ""),
    ],
)  # fmt: skip
def test_what_can_not_be(reported: int, estimated: int, window: int | None, size_bytes: int, why: str) -> None:
    assert why_impossible(reported, estimated, window, size_bytes) == why


def learned(usage: Usage | None, *, to: Target = HOUSE, end: FinishReason = "stop") -> tuple[list[Report], list[Any]]:
    """(the reports that are kept, what is flagged) of an answer to `TALK`."""
    found = sizing_of(body(TALK), to)
    view = whole(found)
    kept: list[Report] = []
    flagged: list[Any] = []
    for effect in learn(found, view, Finish(usage, end), Sent(found.measured(view).tokens, to.window)):
        match effect:
            case Save(record=Report() as report):
                kept.append(report)
            case Notify(event="skipped", detail=detail):
                flagged.append(detail["by"])
    return kept, flagged


OWN = target(None, 2_000, own_window=True)

BELIEVED: list[tuple[Usage | None, Json, int, list[str]]] = [
    (Usage(1_500, 10), {}, 1, []),
    (Usage(len(body(TALK)) + 1, 10), {}, 0, ["bytes"]),
    # Kept to tell whether the server cuts what it is sent; `measure` passes it over.
    (Usage(100, 10), {}, 1, ["estimate"]),
    (Usage(0, 10), {}, 0, []),
    (None, {}, 0, []),
    (Usage(1_500, 10), {"end": "error"}, 0, []),
    (Usage(1_500, 10), {"end": "length"}, 1, []),
]


@pytest.mark.parametrize(("usage", "how", "kept", "flagged"), BELIEVED)
def test_what_is_kept_and_what_is_flagged(usage: Usage | None, how: Json, kept: int, flagged: list[str]) -> None:
    reports, told = learned(usage, **how)
    assert (len(reports), told) == (kept, flagged)


def test_a_count_far_below_the_estimate_never_becomes_a_size() -> None:
    (low,), _ = learned(Usage(100, 10))
    found = sizing_of(body(LATER)).told((low,))
    assert found.measured(whole(found)).baseline is None


def test_a_count_above_twice_the_users_window_says_that_it_is_full_and_no_more() -> None:
    reports, flagged = learned(Usage(4_500, 0), to=OWN)
    assert flagged == ["window"]
    assert [report.input_tokens for report in reports] == [2_000]
    found = sizing_of(body(LATER), OWN).told(tuple(reports))
    assert found.not_due(whole(found)) == ""
