"""Refusals of providers and wordings that the labelled ones do not have, collected after the rules were written.

What was measured before any rule was changed for them stands in docs/classifier.md; from then on they only guard.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.overflow import Refusal, Verdict, classify
from tidegate.providers import load

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "corpus" / "held_out.jsonl").read_text("utf-8").splitlines()
]
NO_OVERFLOWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "corpus" / "no_overflow.jsonl").read_text("utf-8").splitlines()
]
GENERIC = load().rules("generic")
FINER = {"stale_artifact": "other_4xx", "unsupported": "other_4xx"}


def judge(case: dict[str, object]) -> Verdict:
    refusal = Refusal(case["http_status"], case["body"], in_stream=case["stream_event"])  # type: ignore[arg-type]
    return classify(refusal, GENERIC)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_refusal_nobody_listed_is_of_its_kind(case: dict[str, object]) -> None:
    verdict = judge(case)
    assert FINER.get(verdict.kind, verdict.kind) == FINER.get(str(case["kind"]), case["kind"]), verdict.evidence
    assert verdict.evidence.rule != "unreadable"
    if case["kind"] in ("overflow", "output_limit"):
        assert (verdict.input_tokens, verdict.window or verdict.input_limit) == (case["input_tokens"], case["window"])
    else:
        assert (verdict.input_tokens, verdict.window, verdict.input_limit) == (None, None, None)


@pytest.mark.parametrize("case", NO_OVERFLOWS, ids=lambda case: case["id"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_only_sounds_like_an_overflow_is_none(case: dict[str, object], wrapped: bool) -> None:
    body = json.dumps({"error": {"message": "Provider returned error", "metadata": {"raw": case["body"]}}})
    refusal = Refusal(case["http_status"], body if wrapped else case["body"])  # type: ignore[arg-type]
    verdict = classify(refusal, GENERIC)
    assert verdict.action != "compact", verdict.evidence
    assert (verdict.window, verdict.input_limit) == (None, None)


def test_each_has_a_source_and_is_not_among_the_labelled() -> None:
    labelled = (Path(__file__).parents[1] / "corpus" / "refusals.jsonl").read_text("utf-8").splitlines()
    bodies = {json.loads(line)["body"] for line in labelled}
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert [case["id"] for case in CASES if case["body"] in bodies or not case["source"]] == []
