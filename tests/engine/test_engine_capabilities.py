"""What an endpoint lacks is remembered for a day, what nobody can read for a month, and neither without bound."""

from __future__ import annotations

from tidegate.engine.capabilities import ABSENT, DAY, IN_TROUBLE, Capabilities, Unreadable

AT = "https://api.example.com/v1"
BOTH = ("openai", "openai-trigger")


def test_what_is_missing_is_asked_for_again_after_a_day() -> None:
    known = Capabilities()
    known.lacks(AT, "m", "openai", now=100.0)
    assert known.missing(AT, "m", BOTH, now=100.0 + DAY - 1) == {"openai": ABSENT}
    assert known.missing(AT, "m", BOTH, now=100.0 + DAY) == {}


def test_it_is_missing_there_and_for_that_model_only() -> None:
    known = Capabilities()
    known.lacks(AT, "m", "openai", now=0.0)
    assert known.missing("https://other.example.com/v1", "m", BOTH, now=1.0) == {}
    assert known.missing(AT, "n", BOTH, now=1.0) == {}
    assert known.missing(AT, "m", ("openai-trigger",), now=1.0) == {}


def test_the_oldest_is_forgotten_first() -> None:
    known = Capabilities(size=2)
    for model in ("a", "b", "a", "c"):
        known.lacks(AT, model, "openai", now=0.0)
    assert [bool(known.missing(AT, model, BOTH, now=1.0)) for model in "abc"] == [True, False, True]


def test_an_artifact_is_unreadable_by_its_place_and_its_binding() -> None:
    known = Unreadable()
    known.add(b"t", b"chain", "xai https://x", now=0.0)
    assert known.holds(b"t", b"chain", "xai https://x", now=1.0)
    assert not known.holds(b"u", b"chain", "xai https://x", now=1.0)
    assert not known.holds(b"t", b"other", "xai https://x", now=1.0)
    assert not known.holds(b"t", b"chain", "", now=1.0)
    assert not known.holds(b"t", b"chain", "xai https://x", now=31 * DAY)


def test_what_is_in_trouble_rests_for_minutes() -> None:
    known = Capabilities(rest=300.0)
    known.troubled(AT, "m", "openai", now=0.0)
    assert known.missing(AT, "m", BOTH, now=299.0) == {"openai": IN_TROUBLE}
    assert known.missing(AT, "m", BOTH, now=300.0) == {}
    known.troubled(AT, "m", "openai", now=0.0)
    known.lacks(AT, "m", "openai", now=0.0)
    assert known.missing(AT, "m", BOTH, now=1.0) == {"openai": ABSENT}
