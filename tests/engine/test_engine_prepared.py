"""What is remembered of a compaction made ahead: one a conversation, for a while; a rest after what went to waste."""

from __future__ import annotations

from tidegate.context.cut import Cut
from tidegate.engine.prepared import Preparations, Prepared

ONE, OTHER = (Prepared(Cut(at, (), 100), 64, 8000, b"link", b"", "http://up/v1") for at in (4, 8))


def test_the_newest_counts_until_it_is_too_old():
    kept = Preparations(keep=100)
    kept.begin(b"k", ONE, now=0)
    kept.begin(b"k", OTHER, now=10)
    assert kept.get(b"k", now=109) is OTHER
    assert kept.get(b"other", now=10) is None
    assert kept.get(b"k", now=110) is None


def test_after_two_in_a_row_that_went_to_waste_nothing_is_prepared_for_a_while():
    kept = Preparations(rest=3600)
    for now in (0, 10):
        assert not kept.rests(b"k", now=now)
        kept.begin(b"k", ONE, now=now)
        kept.wasted(b"k", now=now)
        assert kept.get(b"k", now=now) is None
    assert kept.rests(b"k", now=3609)
    assert not kept.rests(b"other", now=20)
    assert not kept.rests(b"k", now=3610)


def test_one_that_is_too_old_went_to_waste_too():
    kept = Preparations(keep=100)
    for now in (0, 200):
        kept.begin(b"k", ONE, now=now)
        kept.get(b"k", now=now + 150)
    assert kept.rests(b"k", now=400)


def test_one_that_was_used_in_between_ends_the_row():
    kept = Preparations()
    for end in (lambda: kept.wasted(b"k", now=0), lambda: kept.used(b"k"), lambda: kept.wasted(b"k", now=0)):
        kept.begin(b"k", ONE, now=0)
        end()
    assert not kept.rests(b"k", now=1)


def test_one_that_came_to_nothing_counts_neither_way():
    kept = Preparations()
    kept.begin(b"k", ONE, now=0)
    kept.wasted(b"k", now=0)
    kept.begin(b"k", ONE, now=0)
    assert kept.drop(b"k")
    assert not kept.drop(b"k")
    kept.wasted(b"k", now=0)  # there is none
    assert not kept.rests(b"k", now=1)
    kept.begin(b"k", ONE, now=0)
    kept.wasted(b"k", now=0)
    assert kept.rests(b"k", now=1)


def test_it_forgets_the_oldest():
    kept = Preparations(size=2)
    for key in (b"a", b"b", b"c"):
        kept.begin(key, ONE, now=0)
    assert [kept.get(key, now=1) for key in (b"a", b"b", b"c")] == [None, ONE, ONE]
