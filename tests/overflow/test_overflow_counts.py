"""Numbers as they are written: read whole, or not at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.overflow import Refusal, classify
from tidegate.overflow.counts import whole
from tidegate.providers import load

OPENAI = load().rules("openai")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("131072", 131_072),
        ("131,072", 131_072),
        ("131 072", 131_072),
        ("1 048 576", 1_048_576),
        ("1'048'576", 1_048_576),
        ("131_072", 131_072),
        ("200.000", 200_000),
        ("1.048.576", 1_048_576),
        ("1,31,072", 131_072),
        ("12288.0", 12_288),
        ("128k", 128_000),
        ("1000 k", 1_000_000),
        ("1.5m", 1_500_000),
        ("100万", 1_000_000),
        ("8000,", 8_000),
        ("8192.5", None),
        ("12,34", None),
        ("1,048.576", None),
        ("0.750", None),
    ],
)
def test_a_number_is_read_whole_or_not_at_all(written: str, number: int | None) -> None:
    assert whole(written) == number


@pytest.mark.parametrize("after", ["7", ",5", " kb", "mb ", " gib", "%"])
def test_a_number_that_goes_on_or_is_of_bytes_is_none(after: str) -> None:
    assert whole("128", after) is None


SPELLINGS = {
    "plain": str,
    "comma": lambda n: f"{n:,}",
    "space": lambda n: f"{n:,}".replace(",", " "),
    "no-break space": lambda n: f"{n:,}".replace(",", "\xa0"),
    "narrow no-break space": lambda n: f"{n:,}".replace(",", "\u202f"),
    "thin space": lambda n: f"{n:,}".replace(",", "\u2009"),
    "point": lambda n: f"{n:,}".replace(",", "."),
    "apostrophe": lambda n: f"{n:,}".replace(",", "’"),
    "underscore": lambda n: f"{n:,}".replace(",", "_"),
}
WORDINGS = (
    "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens.",
    "Sorry: the prompt has {1} tokens but the model supports at most {0} tokens",
)


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("how", SPELLINGS)
@given(window=st.integers(1_000, 4_000_000))
def test_a_spelling_does_not_change_a_number(how: str, wording: str, window: int) -> None:
    spell = SPELLINGS[how]
    body = json.dumps({"error": {"message": wording.format(spell(window), spell(window + 4_321))}})
    verdict = classify(Refusal(400, body), OPENAI)
    assert (verdict.kind, verdict.window or verdict.input_limit, verdict.input_tokens) == (
        "overflow",
        window,
        window + 4_321,
    )


@pytest.mark.parametrize(
    ("text", "window", "counted"),
    [
        ("This model's maximum context length is 1000k tokens. However, your messages resulted in 1100k tokens.",
         1_000_000, 1_100_000),
        ("This model's maximum context length is 128k", 128_000, None),
        ("This model's maximum context length is 128kb", None, None),
        ("This model's maximum context length is 131072.75 tokens", None, None),
        ("prompt is too long: 215.692 tokens > 200.000 maximum", 200_000, 215_692),
        ("prompt is too long: 215692 tokens &gt; 200000 maximum", 200_000, 215_692),
    ],
)  # fmt: skip
def test_what_can_not_be_read_is_not_stated(text: str, window: int | None, counted: int | None) -> None:
    verdict = classify(Refusal(400, json.dumps({"error": {"message": text}})), OPENAI)
    assert (verdict.action, verdict.window, verdict.input_tokens) == ("compact", window, counted)
