"""What an explanation names: the rule that decides among those that hold, and what turns the others off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.overflow import Refusal, classify
from tidegate.overflow.explain import considered
from tidegate.providers import load

GENERIC = load().rules("generic")
CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "corpus" / "refusals.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_rule_that_decides_is_among_those_that_hold(case: dict[str, object]) -> None:
    refusal = Refusal(case["http_status"], case["body"], in_stream=case["stream_event"])  # type: ignore[arg-type]
    verdict, touched = classify(refusal, GENERIC), considered(refusal, GENERIC)
    holding = [rule.evidence.rule for rule in touched if not rule.against]
    if verdict.evidence.source != "classify":
        assert verdict.evidence.rule in holding
        assert holding[0] == verdict.evidence.rule
    assert all(len(rule.against) <= 120 and len(rule.evidence.matched) <= 120 for rule in touched)


def test_a_success_touches_nothing() -> None:
    assert considered(Refusal(200, '{"choices": [{"finish_reason": "stop"}]}'), GENERIC) == ()
