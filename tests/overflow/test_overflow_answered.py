"""Answers that came with success although the window was full, or the input was cut in silence."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.overflow import Refusal, Sent, classify, judge_success
from tidegate.overflow.answered import FULL
from tidegate.overflow.verdict import Action, Kind
from tidegate.wire.conversation import FinishReason, Usage

SENT = Sent(tokens=30_000, window=32_768)

CASES: list[tuple[FinishReason | None, Usage | None, Sent | None, bool | None, Kind | None, Action | None]] = [
    ("stop", Usage(30_000, 200), SENT, None, None, None),
    ("tool_call", Usage(30_000, 200), SENT, None, None, None),
    ("stop", None, None, None, None, None),
    (None, None, SENT, None, None, None),
    # the window ended the answer, or left no room for one
    ("window", Usage(32_760, 8), SENT, None, "truncated_output", "none"),
    ("window", Usage(32_768, 0), SENT, None, "overflow", "compact"),
    ("window", None, None, None, "overflow", "compact"),
    ("window", None, None, True, "truncated_output", "none"),
    ("length", Usage(32_700, 0), SENT, None, "overflow", "compact"),
    ("length", Usage(32_700, 0), SENT, True, "truncated_output", "none"),
    ("length", Usage(32_700, 5), SENT, None, "truncated_output", "none"),
    ("length", Usage(20_000, 0), Sent(window=32_768), None, "truncated_output", "none"),
    ("length", Usage(32_700, 0), None, None, "truncated_output", "none"),
    # more than the window was used
    ("stop", Usage(32_000, 768), SENT, None, "truncated_output", "none"),
    ("stop", Usage(40_000, 10), SENT, None, "truncated_output", "none"),
    # much less was counted than was sent
    ("stop", Usage(4_096, 200), Sent(tokens=30_000), None, "truncated_output", "none"),
    ("stop", Usage(22_000, 200), Sent(tokens=30_000), None, None, None),
    ("stop", Usage(100, 200), Sent(tokens=900), None, None, None),
    ("stop", Usage(0, 200), Sent(tokens=30_000), None, None, None),
    # other ends
    ("filter", Usage(10, 0), SENT, None, "filter", "none"),
    ("refusal", Usage(30_000, 9), SENT, None, "filter", "none"),
    ("error", None, None, None, "server", "none"),
    ("compaction", Usage(30_000, 9), SENT, None, None, None),
]


@pytest.mark.parametrize(("finish", "usage", "sent", "answered", "kind", "action"), CASES)
def test_a_success_is_judged(
    finish: FinishReason | None,
    usage: Usage | None,
    sent: Sent | None,
    answered: bool | None,
    kind: Kind | None,
    action: Action | None,
) -> None:
    verdict = judge_success(finish, usage, sent=sent, answered=answered)
    assert (verdict and verdict.kind, verdict and verdict.action) == (kind, action)
    assert not (verdict and verdict.kind == "overflow" and verdict.certain), "an end is a sign, not a refusal"


BODIES = [
    ({"choices": [{"finish_reason": "model_context_window_exceeded"}], "usage": {"prompt_tokens": 9}}, "overflow"),
    ({"stop_reason": "model_context_window_exceeded", "usage": {"output_tokens": 40}}, "truncated_output"),
    (
        {"choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 32_700, "completion_tokens": 0}},
        "overflow",
    ),
    ({"choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 32_700}}, "truncated_output"),
    ({"done_reason": "stop", "prompt_eval_count": 4_096, "eval_count": 60}, "truncated_output"),
    ({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 29_000}}, "other_4xx"),
    (
        {"stop_reason": "end_turn", "usage": {"input_tokens": 9, "cache_read_input_tokens": 29_000}},
        "other_4xx",
    ),
]


@pytest.mark.parametrize(("body", "kind"), BODIES)
def test_the_body_of_a_success_is_judged_alike(body: object, kind: Kind) -> None:
    assert classify(Refusal(200, json.dumps(body)), sent=SENT).kind == kind


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([None, *get_args(FinishReason)]),
    st.none() | st.builds(Usage, st.integers(-5, 10**9), st.integers(-5, 10**9)),
    st.none() | st.builds(Sent, st.none() | st.integers(0, 10**9), st.none() | st.integers(0, 10**9)),
    st.sampled_from([None, True, False]),
)
def test_any_success_is_judged_without_raising(
    finish: FinishReason | None, usage: Usage | None, sent: Sent | None, answered: bool | None
) -> None:
    verdict = judge_success(finish, usage, sent=sent, answered=answered)
    assert verdict is None or verdict.kind in ("overflow", "truncated_output", "filter", "server")
    if answered or (usage and usage.output_tokens > 0):
        assert verdict is None or verdict.action == "none", "what was answered is not asked again"


RULES = [
    ("length", Usage(32_700, 100), SENT, "usage-fills-window"),
    ("length", Usage(20_000, 100), SENT, "finish-length"),
    ("length", Usage(32_700, 100), None, "finish-length"),
    ("window", Usage(32_700, 100), SENT, "finish-window"),
    ("stop", Usage(32_700, 100), SENT, "usage-fills-window"),
    ("filter", Usage(32_700, 100), SENT, "finish-filter"),
    ("stop", Usage(4_096, 100), SENT, "input-cut-in-silence"),
]


@pytest.mark.parametrize(("finish", "usage", "sent", "rule"), RULES)
def test_the_rule_tells_a_full_window_from_an_answer_cut_by_its_own_limit(
    finish: FinishReason, usage: Usage, sent: Sent | None, rule: str
) -> None:
    verdict = judge_success(finish, usage, sent=sent)
    assert verdict is not None
    assert verdict.evidence.rule == rule
    assert (rule in FULL) == (rule in ("usage-fills-window", "finish-window"))
