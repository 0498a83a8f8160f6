"""What an endpoint lacks is remembered for a day, what nobody can read for a month, and neither without bound."""

from __future__ import annotations

from tidegate.engine.capabilities import ABSENT, DAY, IN_TROUBLE, Capabilities, Seen, Unreadable

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


def test_what_changed_is_told_once_and_again_where_it_could_not_be_saved() -> None:
    known = Capabilities()
    known.lacks(AT, "m", "openai", now=100.0)
    known.troubled(AT, "n", "openai", now=100.0)
    entries = known.changed()
    assert sorted((it.model, it.what, it.at) for it in entries) == [("m", "lacks", 100.0), ("n", "troubled", 100.0)]
    assert known.changed() == ()
    known.unsaved(entries)
    assert set(known.changed()) == set(entries)


def test_what_others_saw_counts_as_if_it_were_seen_here() -> None:
    known, other = Capabilities(), Capabilities()
    other.lacks(AT, "m", "openai", now=100.0)
    assert known.take_in(other) == 1
    assert known.missing(AT, "m", BOTH, now=101.0) == {"openai": ABSENT}
    assert known.changed() == ()
    assert known.take_in([Seen(AT, "m", "openai", "lacks", 50.0)]) == 0  # older than what is known
    assert known.missing(AT, "m", BOTH, now=99.0 + DAY) == {"openai": ABSENT}


def test_a_time_from_a_clock_that_was_wrong_keeps_nothing_away_for_longer() -> None:
    known = Capabilities()
    known.take_in([Seen(AT, "m", "openai", "lacks", 1000 * DAY), Seen(AT, "m", "xai", "lacks", 2.0)])
    assert known.missing(AT, "m", ("openai", "xai"), now=1.0) == {"xai": ABSENT}


def test_names_that_no_file_can_hold_stay_here() -> None:
    known = Capabilities()
    known.lacks(AT, "half \ud800", "openai", now=0.0)
    known.lacks(AT, "m" * 2000, "openai", now=0.0)
    assert known.changed() == ()
    assert known.missing(AT, "half \ud800", BOTH, now=1.0) == {"openai": ABSENT}


def test_what_an_endpoint_has_shown_to_have_holds_for_all_its_models_for_a_month() -> None:
    known = Capabilities(size=2)
    known.has(AT, "openai-trigger", now=0.0)
    assert [(seen.model, seen.strategy, seen.what) for seen in known.changed()] == [("", "openai-trigger", "has")]
    assert known.learned(AT, BOTH, now=30 * DAY - 1) == ("openai-trigger",)
    assert known.learned("https://other.example.com/v1", BOTH, now=1.0) == ()
    assert known.learned(AT, BOTH, now=30 * DAY) == ()
    for name in ("a", "b", "c"):
        known.has(AT, name, now=0.0)
    assert known.learned(AT, ("a", "b", "c"), now=1.0) == ("b", "c")
