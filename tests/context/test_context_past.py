"""What a turn adds to a known history says the same as the whole read anew."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from test_context_cut import REASONING, SYSTEM, call, human, result, says, unknown

from tidegate.context.cut import newest_words, safe_cuts
from tidegate.context.entries import Entry
from tidegate.context.fingerprint import Hasher
from tidegate.context.past import SEAMS, TENANTS, Past
from tidegate.wire.conversation import Facts

HASHER = Hasher(b"k" * 32)
TENANT = b"t" * 16
names = st.sampled_from(["a", "b", "c", "d"])
some = st.lists(names, max_size=2, unique=True)
ITEMS = st.one_of(
    some.map(lambda ids: human(*ids)),
    some.map(lambda ids: says(*ids)),
    some.map(lambda ids: result(*ids)),
    names.map(call),
    st.just(SYSTEM),
    st.just(REASONING),
    names.map(lambda name: unknown(name, ids=("u",))),
    st.just(Facts("message", "assistant", thinking=True)),
    st.just(Facts("compaction", "other", opaque=True)),
    names.map(lambda name: Facts("message", "user", human=True, calls=(name,), results=(name,))),
)


def entry(facts: Facts) -> Entry:
    return Entry(facts, len(repr(facts)), HASHER.item("chat", repr(facts).encode()))


def anew(facts: list[Facts]) -> Past:
    return Past().extended(0, [entry(item) for item in facts])


def words_below(facts: list[Facts], at: int) -> tuple[int, ...]:
    words = newest_words(facts)
    return words if words and words[0] < at else ()


@settings(max_examples=300, deadline=None)
@given(st.lists(ITEMS, min_size=1, max_size=12), st.data())
def test_a_longer_history_is_cut_like_one_that_was_never_seen(facts: list[Facts], data: st.DataObject) -> None:
    past = anew(facts)
    for _ in range(data.draw(st.integers(1, 4))):
        whole, safe = anew(facts), safe_cuts(facts)
        assert (past.entries, past.facts, past.odd) == (whole.entries, whole.facts, whole.odd)
        assert past.sums.tolist() == whole.sums.tolist()
        assert past.thoughts.tolist() == [sum(item.thinking for item in facts[:k]) for k in range(len(facts) + 1)]
        assert past.chain(HASHER, TENANT, "chat") == whole.chain(HASHER, TENANT, "chat")
        asked = data.draw(st.lists(st.integers(1, max(1, len(facts) - 1)), max_size=6))
        for at in asked if len(facts) > 1 else ():
            assert past.safe(at) == safe[at]
            if safe[at]:
                assert past.words_before(at) == words_below(facts, at)
            assert past.seam(at).speaks == first_to_speak(facts, at)
        kept = data.draw(st.integers(max(0, len(facts) - 3), len(facts)))
        new = data.draw(st.lists(ITEMS, min_size=kept == 0, max_size=4))
        facts, past = facts[:kept] + new, past.extended(kept, [entry(item) for item in new])


def first_to_speak(facts: list[Facts], at: int) -> int:
    spoken = (
        i
        for i, item in enumerate(facts)
        if i >= at and (item.role == "user" or (item.role == "assistant" and item.kind == "message" and not item.calls))
    )
    return next(spoken, -1)


def test_a_turn_more_leaves_the_earlier_history_as_it_was() -> None:
    before = anew([human(), says("a"), result("a")])
    before.chain(HASHER, TENANT, "chat")
    assert before.safe(1)
    after = before.extended(2, [entry(human())])
    assert [item.role for item in before.facts] == ["user", "assistant", "tool"]
    assert [item.role for item in after.facts] == ["user", "assistant", "user"]
    assert (before.safe(2), after.safe(2)) == (False, True)


def test_what_is_remembered_of_one_history_is_bounded() -> None:
    past = anew([item for n in range(50) for item in (human(), says(f"c{n}"), result(f"c{n}"))])
    one = past.weight
    for at in range(1, 150):
        past.safe(at)
        past.chain(HASHER, at.to_bytes(16, "big"), "chat")
    assert one == 0
    assert past.weight <= SEAMS * 64 * 50
    assert len(past._chains) <= TENANTS


def test_a_cut_is_looked_at_once_and_then_new_items_only() -> None:
    past = anew([item for n in range(500) for item in (says(f"c{n}"), result(f"c{n}"))])
    assert past.safe(400)
    called = past.seam(400).called
    for n in range(500, 520):
        past = past.extended(len(past) - 1, [entry(result(f"c{n - 1}")), entry(says(f"c{n}")), entry(result(f"c{n}"))])
        assert past.safe(400)
        assert past.seam(400).called is called
    past = past.extended(len(past), [entry(result("c7"))])
    assert not past.safe(400)
