"""What every store keeps to, in memory or on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import OTHER, TENANT, Clock, checkpoint, history, report

from tidegate.engine.checkpoint import Artifact, Found, Report, Store, StoreError
from tidegate.store import MemoryStore, SqliteStore
from tidegate.store.seal import Sealer

KEY = bytes(range(32))
DAY = 86_400.0
CHAT = history("a", "b", "c", "d", "e", "f")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    made: Store = (
        MemoryStore(clock=clock, retention_days=30)
        if request.param == "memory"
        else SqliteStore(tmp_path / "c.db", Sealer(KEY), clock=clock, retention_days=30)
    )
    yield made
    made.close()


def lengths(found: Found) -> list[int]:
    return [c.length for c in found.checkpoints]


def find(store: Store, chains: dict[int, bytes], tenant: bytes = TENANT) -> Found:
    return store.find(tenant, chains[1], chains)


def test_a_new_store_finds_nothing(store: Store) -> None:
    assert find(store, CHAT) == Found()
    assert store.find(TENANT, CHAT[1], {}) == Found()


def test_a_checkpoint_comes_back_as_it_was_with_its_time(store: Store, clock: Clock) -> None:
    artifact = Artifact("opaque", "half a pair \ud800", (b'{"a": 1}', b""), (2, 0), "openai|gpt-x")
    saved = checkpoint(CHAT, 3, artifact=artifact, dialect="responses")
    store.save(saved)
    assert find(store, CHAT).checkpoints == (replace(saved, created_at=clock.now),)


REQUESTS = [
    ("the same history", history("a", "b", "c", "d", "e", "f"), [4, 2]),
    ("a longer one", history("a", "b", "c", "d", "e", "f", "g"), [4, 2]),
    ("as long as the checkpoint", history("a", "b", "c", "d"), [4, 2]),
    ("shorter than the longest", history("a", "b", "c"), [2]),
    ("shorter than any", history("a"), []),
    ("forked after the shorter", history("a", "b", "X", "d", "e"), [2]),
    ("edited inside", history("a", "X", "c", "d", "e"), []),
    ("another beginning", history("X", "b", "c", "d"), []),
]


@pytest.mark.parametrize(("request_", "expected"), [c[1:] for c in REQUESTS], ids=[c[0] for c in REQUESTS])
def test_finds_what_the_request_begins_with_longest_first(
    store: Store, request_: dict[int, bytes], expected: list[int]
) -> None:
    store.save(checkpoint(CHAT, 2))
    store.save(checkpoint(CHAT, 4))
    assert lengths(find(store, request_)) == expected


def test_forks_of_one_beginning_keep_apart(store: Store) -> None:
    fork = history("a", "b", "X", "Y")
    store.save(checkpoint(CHAT, 3, "main"))
    store.save(checkpoint(fork, 3, "fork"))
    assert [c.artifact.text for c in find(store, CHAT).checkpoints] == ["main"]
    assert [c.artifact.text for c in find(store, fork).checkpoints] == ["fork"]


def test_tenants_never_see_each_other(store: Store) -> None:
    store.save(checkpoint(CHAT, 3, "mine"))
    store.save(checkpoint(CHAT, 3, "theirs", tenant=OTHER))
    store.report(OTHER, report(CHAT, 2, 5))
    assert [c.artifact.text for c in find(store, CHAT).checkpoints] == ["mine"]
    assert [c.artifact.text for c in find(store, CHAT, OTHER).checkpoints] == ["theirs"]
    assert find(store, CHAT).reports == ()
    assert find(store, CHAT, b"third") == Found()


def test_a_checkpoint_is_never_edited(store: Store, clock: Clock) -> None:
    store.save(checkpoint(CHAT, 3, "first"))
    clock.now += 5
    store.save(checkpoint(CHAT, 3, "second", model="other"))
    (kept,) = find(store, CHAT).checkpoints
    assert (kept.artifact.text, kept.model, kept.created_at) == ("first", "gpt-x", clock.now - 5)


def test_bindings_stand_side_by_side(store: Store) -> None:
    store.save(checkpoint(CHAT, 3))
    store.save(checkpoint(CHAT, 3, binding="openai|gpt-x"))
    store.save(checkpoint(CHAT, 3, binding="xai|grok"))
    assert {c.artifact.binding for c in find(store, CHAT).checkpoints} == {"", "openai|gpt-x", "xai|grok"}


def test_the_longest_and_a_spare_of_each_binding_and_head(store: Store) -> None:
    for length in (2, 3, 4):
        store.save(checkpoint(CHAT, length))
    store.save(checkpoint(CHAT, 2, binding="openai|gpt-x"))
    store.save(checkpoint(CHAT, 1, head=b"k" * 32))
    assert lengths(find(store, CHAT)) == [4, 3, 2, 1]
    assert [c.artifact.kind for c in find(store, CHAT).checkpoints] == ["text", "text", "opaque", "text"]


def test_many_lengths_are_all_looked_up(store: Store) -> None:
    long = history(*map(str, range(400)))
    for length in range(1, 400, 3):
        store.save(checkpoint(long, length, head=str(length).encode()))
    assert lengths(find(store, long)) == list(range(1, 400, 3))[::-1]


def test_reports_of_prefixes_newest_first(store: Store) -> None:
    for length, tokens in ((2, 10), (3, 20), (4, 30)):
        store.report(TENANT, report(CHAT, length, tokens))
    shorter = history("a", "b", "c")
    assert find(store, shorter).reports == (report(CHAT, 3, 20), report(CHAT, 2, 10))
    assert find(store, history("a", "X", "c", "d")).reports == ()


def test_a_report_comes_back_as_it_was(store: Store) -> None:
    saved = Report(CHAT[1], 4, CHAT[4], CHAT[2], b"head", "http://e", "m", 123_456)
    store.report(TENANT, saved)
    assert find(store, CHAT).reports == (saved,)


def test_the_newest_sixteen_reports_of_a_bucket_are_kept(store: Store) -> None:
    other = history("x", "y")
    store.report(TENANT, report(other, 2, 7))
    for tokens in range(20):
        store.report(TENANT, report(CHAT, 2, tokens, model=f"gpt-{tokens}"))
    assert [r.input_tokens for r in find(store, CHAT).reports] == list(range(19, 3, -1))
    assert [r.input_tokens for r in find(store, other).reports] == [7]


def test_a_report_of_the_same_view_takes_the_place_of_the_older_one(store: Store) -> None:
    for tokens in (1000, 1010, 1005):
        store.report(TENANT, report(CHAT, 2, tokens))
        store.report(TENANT, report(CHAT, 3, 2 * tokens))
    assert [r.input_tokens for r in find(store, CHAT).reports] == [2010, 1005]


def test_what_is_unused_for_the_retention_goes(store: Store, clock: Clock) -> None:
    used, unused = history("u", "v"), history("w", "x")
    store.save(checkpoint(used, 2))
    store.save(checkpoint(unused, 2))
    clock.now += 20 * DAY
    assert lengths(find(store, used)) == [2]
    store.report(TENANT, report(CHAT, 1))  # a store on disk writes uses down with the next write
    clock.now += 20 * DAY
    if isinstance(store, SqliteStore):
        store.sweep()
    assert lengths(find(store, used)) == [2]
    assert lengths(find(store, unused)) == []


def test_a_closed_store_says_so(store: Store) -> None:
    store.save(checkpoint(CHAT, 2))
    store.close()
    store.close()
    for call in (
        lambda: find(store, CHAT),
        lambda: store.save(checkpoint(CHAT, 3)),
        lambda: store.report(TENANT, report(CHAT, 2)),
    ):
        with pytest.raises(StoreError, match="is closed"):
            call()


def test_threads_share_a_store(store: Store) -> None:
    chats = [history(f"t{n}", *map(str, range(12))) for n in range(4)]
    failures: list[BaseException] = []

    def work(chains: dict[int, bytes]) -> None:
        try:
            for length in range(2, 12):
                store.save(checkpoint(chains, length))
                assert lengths(find(store, chains))[0] == length
                store.report(TENANT, report(chains, length))
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(chains,)) for chains in chats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [lengths(find(store, chains))[0] for chains in chats] == [11] * 4


ITEMS = st.lists(st.sampled_from("ab"), min_size=1, max_size=6)
SAVES = st.lists(
    st.tuples(ITEMS, st.integers(1, 6), st.sampled_from([TENANT, OTHER]), st.sampled_from(["", "x", "y"])),
    max_size=14,
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(saves=SAVES, asked=st.lists(st.tuples(ITEMS, st.sampled_from([TENANT, OTHER])), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_agrees_with_a_plain_dictionary(
    kind: str, tmp_path_factory: pytest.TempPathFactory, saves: list, asked: list
) -> None:
    store: Store = (
        MemoryStore() if kind == "memory" else SqliteStore(tmp_path_factory.mktemp("model") / "c.db", Sealer(KEY))
    )
    model: dict[tuple[bytes, bytes, str], tuple[int, str]] = {}
    for number, (items, length, tenant, binding) in enumerate(saves):
        chains = history(*items)
        length = min(length, len(items))
        text = f"summary {number}"
        model.setdefault((tenant, chains[length], binding), (length, text))
        # a head of its own: a kind of its own, so that nothing is left out as a spare
        store.save(checkpoint(chains, length, text, tenant=tenant, binding=binding, head=str(number).encode()))
    for items, tenant in asked:
        chains = history(*items)
        found = find(store, chains, tenant).checkpoints
        seen = {(c.tenant, c.chain, c.artifact.binding): (c.length, _text(c.artifact)) for c in found}
        assert len(seen) == len(found)
        assert seen == {key: value for key, value in model.items() if key[0] == tenant and key[1] in chains.values()}
        assert all(chains[c.length] == c.chain for c in found)
        assert [c.length for c in found] == sorted((c.length for c in found), reverse=True)
    store.close()


def _text(artifact: Artifact) -> str:
    return artifact.items[0].decode() if artifact.items else artifact.text
