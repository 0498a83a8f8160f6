"""Rules as data: what loading refuses, and how a pattern reads numbers."""

from __future__ import annotations

import pytest

from tidegate.overflow import Refusal, classify
from tidegate.overflow.pattern import BadRule, Pattern
from tidegate.overflow.rules import RulesFile, RuleSpec, check
from tidegate.providers import load

SHARED = RulesFile(counter={"rate": ("per minute",)})


def rule(**fields: object) -> RuleSpec:
    given = {"file": "f.toml", "id": "r", "kind": "overflow", "pattern": "too long", "sample": "Too long", **fields}
    return RuleSpec(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"pattern": "a.*b", "sample": "ab"}, "upper bound"),
        ({"pattern": "(?:a+)+b", "sample": "ab"}, "upper bound"),
        ({"pattern": r"\d+ tokens", "sample": "1 tokens"}, "upper bound"),
        ({"pattern": "(?:ab{0,90}){0,90}c", "sample": "c"}, "allowed: 400"),
        ({"pattern": "(", "sample": "("}, "refusals.r: pattern"),
        ({"sample": "fine"}, "sample"),
        ({"pattern": "Too Long"}, "lower-cased"),
        ({"sample": "too long per minute", "unless": ("rate",)}, "sample"),
        ({"unless": ("a.*",)}, "unless"),
        ({"pattern": None}, "code, type, pattern"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(bad: dict[str, object], says: str) -> None:
    with pytest.raises(BadRule, match=r"refusals\.r") as refused:
        check([rule(**bad)], SHARED)
    assert says in str(refused.value)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(BadRule, match="unique"):
        check([rule(), rule()], SHARED)


def test_a_sample_that_an_earlier_rule_takes_for_another_kind_is_refused() -> None:
    with pytest.raises(BadRule, match="matched first by 'bytes'"):
        check([rule(id="bytes", kind="payload_bytes", pattern="too", sample="too"), rule()], SHARED)


def test_good_rules_pass() -> None:
    check([rule(), rule(id="code", code=("e1",), pattern=None, sample='{"code":"e1"}')], SHARED)


CATALOGUE = load()
SAMPLES = [
    (name, rule)
    for name in (*CATALOGUE.names, None)
    for rule in CATALOGUE.rules(name).all
    if rule.file == f"{name or '_shared'}.toml"
]


def test_every_rule_in_the_files_is_safe_and_knows_its_sample() -> None:
    CATALOGUE.check()


@pytest.mark.parametrize(("provider", "rule"), SAMPLES, ids=[f"{name or 'any'}-{rule.id}" for name, rule in SAMPLES])
def test_every_sample_is_judged_as_its_rule_says(provider: str | None, rule: RuleSpec) -> None:
    verdict = classify(Refusal(rule.status[0] if rule.status else 400, rule.sample), CATALOGUE.rules(provider))
    by_numbers = rule.kind == "overflow" and verdict.output_requested is not None  # the prompt alone would have fitted
    assert verdict.kind in (rule.kind, "output_limit" if by_numbers else rule.kind), verdict.evidence


def test_numbers_are_marked_by_role_and_may_have_separators() -> None:
    found = Pattern("<input> tokens > <window>").search("prompt: 213,462 tokens > 200_000 maximum")
    assert found is not None
    assert found.groupdict() == {"input": "213,462", "window": "200_000"}


@pytest.mark.parametrize("before", [0, 1_000, 30_000])
def test_a_pattern_is_found_wherever_it_stands(before: int) -> None:
    text = "words of a long page " * (before // 21) + "prompt is too long: 9 tokens"
    assert Pattern("prompt is too long: <input> tokens").search(text)


@pytest.mark.parametrize(
    ("source", "anchors"),
    [
        ("prompt is too long: <input> tokens", ("prompt is too long: ",)),
        ("(?:too many|number of) images", ("too many", "number of")),
        ("(?:ab|cd){0,1}efg", ("efg",)),
        (r"\d{1,3}", ("",)),
    ],
)
def test_a_pattern_knows_what_it_needs(source: str, anchors: tuple[str, ...]) -> None:
    assert Pattern(source).anchors == anchors
