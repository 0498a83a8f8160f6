"""The words by which patterns are looked up: nothing that matches may be passed over."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.overflow.pattern import Index, Pattern
from tidegate.overflow.text import Text
from tidegate.providers import load

GENERIC = load().rules("generic")
PATTERNS = GENERIC._patterns
SEARCHES = [re.compile(pattern.source, re.MULTILINE) for pattern in PATTERNS]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(SEARCHES).flatmap(lambda compiled: st.from_regex(compiled, fullmatch=True)),
    st.sampled_from(["", " ", "error: ", "(", "1 validation error\n"]),
    st.sampled_from(["", " ", ".", "s of it", "\n{}", "é"]),
)
def test_every_pattern_that_matches_is_among_those_looked_at(middle: str, before: str, after: str) -> None:
    text = Text(f"{before}{middle}{after}".lower())
    looked_at = GENERIC._index.among(text)
    for position, compiled in enumerate(SEARCHES):
        if position not in looked_at and (found := compiled.search(text.string)):
            assert inside_a_word(text.string, found), (PATTERNS[position].written, text.string)


def inside_a_word(text: str, found: re.Match[str]) -> bool:
    """Literals begin where words do: `exceed` of "exceeds", not of "unexceeded"."""
    at = found.start()
    return at > 0 and text[at - 1 : at + 1].isalnum()


def test_few_are_looked_at() -> None:
    text = Text("the upstream request timed out while the model was being loaded; try again in a minute, please " * 20)
    assert len(GENERIC._index.among(text)) < len(PATTERNS) / 8


@pytest.mark.parametrize(
    ("source", "text", "among"),
    [
        ("exceeds the limit", "it exceeds the limit", True),
        ("exceeds the limit", "the limit exceeds", True),  # words only; the search tells
        ("exceeds the limit", "it exceeds", False),
        ("exceed", "it exceeds", True),
        ("exceed", "it is unexceeded", False),
        (r"too (?:long|big)\b", "too longish", False),
        (r"too (?:long|big)", "too longish", True),
        ("(?:ab|cd)efgh", "x abefgh", True),
        ("(?:ab|cd)efgh", "x ab efg", False),
        ("上下文", "超过上下文长度", True),
        ("上下文", "context", False),
        (r"\d{1,4}", "anything", True),  # nothing to look it up by
    ],
)
def test_a_pattern_is_looked_up_by_its_words(source: str, text: str, among: bool) -> None:
    assert (0 in Index([Pattern(source)]).among(Text(text))) is among


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60).map(str.lower))
def test_words_are_runs_of_letters_and_digits(string: str) -> None:
    text = Text(string)
    assert text.words == {word.encode() for word in re.findall("[a-z0-9]+", string)}
    assert text.stems == {word[:4] for word in text.words}
    assert text.numbered == (len(re.findall("[0-9]", string)) > 1)
