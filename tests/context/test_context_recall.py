"""A body read by what is new in it is read as if it were new: whatever changed, wherever it changed."""

from __future__ import annotations

import contextlib
import json
import threading
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import tidegate.context.recall as recall_module
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.context.note import Note
from tidegate.context.recall import Recall, history_of
from tidegate.wire import REQUESTS, read
from tidegate.wire.conversation import Conversation, DialectName, UnreadableBody

HASHER = Hasher(b"k" * 32)
DIALECTS: list[DialectName] = ["chat", "responses", "messages"]

ITEMS = [
    b'{"role":"user","content":"hi"}',
    '{"role":"user","content":"größer als 漢字 😀"}'.encode(),
    rb'{"role":"user","content":"cut \ud83d"}',
    rb'{"role":"user","content":"a pair \ud83d\ude00, a path C:\\udc00"}',
    b'{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f"}}]}',
    b'{"role":"tool","tool_call_id":"c1","content":"]}, \\"messages\\":[{}]"}',
    b'{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}',
    b'{"type":"function_call_output","call_id":"c1","output":"done"}',
    b'{"type":"item_reference","id":"rs_1"}',
    b'{"type":"reasoning","id":"rs_1","summary":[]}',
    b'{"type":"compaction","id":"cmp_1","encrypted_content":"xxxx"}',
    b'{"role":"system","content":"Be brief"}',
    b'{ "role" : "assistant" ,\r\n "content" : [ {"type":"thinking","thinking":"x","signature":"s"} ] }',
    b'{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}',
    b'{"role":"user","content":[{"type":"unheard_of","ref":"c1"}]}',
    b'{"n":1e999}',
    b'{"n":' + b"1" * 5000 + b"}",
    b"{}",
    b'{"role":"user","content":"' + b"long " * 120 + b'"}',
]
FIELDS = [
    b'"stream":true', b'"stream" : false', b'"max_tokens":100', b'"tools":[{"name":"t"}]', b'"tools":[]',
    b'"system":"Be brief"', b'"instructions":"Be brief"', b'"previous_response_id":"resp_1"', b'"thread":"t"',
    b'"metadata":{"user_id":"\xc3\xa9"}', rb'"user":"\ud800"', b'"n":1e999', rb'"\ud800":1', rb'"\u006d":1',
    b'"response_format":{"type":"json_object"}', b'"text":{}', b'"x":"' + b"y" * 700 + b'"',
]  # fmt: skip
ODD = [
    b"]", b"[", b"}", b"{", b",", b'"', b"\xff", b"\xc3", rb"\ud800", b"{}", b",{}", b".5", b"e5", b"null",
    b" ", b"\r\n", b"\x00", b',"model":"again"', b',"messages":[]', b',"input":[]', b"]}", b'],"x":[{}', b',"tools":[]',
    b"//",
]  # fmt: skip


class Talk:
    """A client's conversation as the bytes it sends."""

    def __init__(self, dialect: DialectName, lead: int, before: list[bytes], after: list[bytes]) -> None:
        system = b'{"role":"system","content":"' + b"You are an agent of few words. " * 8 + b'"}'
        self.dialect = dialect
        self.items = [system] * lead
        self.before, self.after = [b'"model":"m"', *before], after
        self.gap, self.between, self.end = b"", b",", b""

    def body(self) -> bytes:
        key = b"input" if self.dialect == "responses" else b"messages"
        array = b'"%b":[%b%b%b]' % (key, self.gap, self.between.join(self.items), self.end)
        return b"{" + b",".join([*self.before, array, *self.after]) + b"}"


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    fields = draw(st.lists(st.sampled_from(FIELDS), max_size=4, unique_by=lambda field: field.split(b":")[0]))
    split = draw(st.integers(0, len(fields)))
    talk = Talk(draw(st.sampled_from(DIALECTS)), draw(st.integers(0, 2)), fields[:split], fields[split:])
    talk.items += draw(st.lists(st.sampled_from(ITEMS), max_size=20))
    return talk


def next_body(draw: Callable[..., object], talk: Talk) -> bytes:
    """One more request: most often more items, sometimes anything else."""
    new = st.lists(st.sampled_from(ITEMS), max_size=4)
    match draw(
        st.sampled_from(["more"] * 4 + ["edit", "rewind", "mend", "settings", "gap", "odd", "odd at an end", "cut"])
    ):
        case "more":
            talk.items += draw(new)
        case "edit" if talk.items:
            talk.items[draw(st.integers(0, len(talk.items) - 1))] = draw(st.sampled_from(ITEMS))
        case "rewind":
            talk.items = talk.items[: draw(st.integers(0, len(talk.items)))] + draw(new)
        case "mend":
            talk.items = [item for item in talk.items if item not in (ITEMS[8], ITEMS[15], ITEMS[16])]
            talk.before, talk.after = talk.before[:1], []
        case "settings":
            talk.after = draw(st.lists(st.sampled_from(FIELDS), max_size=3))
        case "gap":
            spaces = st.sampled_from([b"", b" ", b"\r\n", b"\t "])
            talk.gap, talk.end, talk.between = draw(spaces), draw(spaces), draw(spaces) + b"," + draw(spaces)
        case "odd":
            return spoilt(draw, talk.body(), None)
        case "odd at an end":
            return spoilt(draw, talk.body(), talk)
        case "cut":
            return talk.body()[: -draw(st.integers(1, 40))]
    return talk.body()


def spoilt(draw: Callable[..., object], raw: bytes, talk: Talk | None) -> bytes:
    """Something put into a body: anywhere, or right after an item."""
    ends = [raw.find(item) + len(item) for item in talk.items] if talk else []
    at = draw(st.sampled_from(ends)) if ends else draw(st.integers(0, len(raw)))
    return raw[:at] + draw(st.sampled_from(ODD)) + raw[at + draw(st.integers(0, 2)) :]


def told(reader: Callable[[DialectName, bytes], Conversation], dialect: DialectName, raw: bytes) -> object:
    try:
        return reader(dialect, raw)
    except UnreadableBody as error:
        return str(error)


def said(conversation: Conversation, ledger: Ledger) -> object:
    """All that is known of a history, but for the note."""
    try:
        past, top = history_of(conversation, HASHER, ledger)
    except UnreadableBody as error:
        return str(error)
    chains = [past.chain(HASHER, tenant, conversation.dialect) for tenant in (b"a" * 16, b"b" * 16)]
    numbers = (past.sums, past.humans, past.turns, past.thoughts, past.odd)
    return past.entries, numbers, past.facts, chains, top


@settings(max_examples=250, deadline=None)
@given(talks(), st.data())
def test_a_body_is_read_as_if_nothing_had_been_read_before(talk: Talk, data: st.DataObject) -> None:
    recall, ledger = Recall(HASHER), Ledger(HASHER)
    raw = talk.body()
    for _ in range(data.draw(st.integers(2, 6))):
        whole = told(read, talk.dialect, raw)
        known = told(recall.read, talk.dialect, raw)
        assert known == whole
        if isinstance(known, Conversation) and isinstance(whole, Conversation):
            event(f"begun with a known past: {isinstance(known.note, Note) and known.note.kept > 0}")
            assert list(known.items) == list(whole.items)
            assert list(known.fields.items()) == list(whole.fields.items())
            assert said(known, ledger) == said(whole, Ledger(HASHER))
        raw = next_body(data.draw, talk)


# -- what is saved ---------------------------------------------------------------------------------------------------


def message(n: int, words: str = "words ", role: str = "user") -> dict[str, object]:
    return {"role": role, "content": f"{n} {words * 30}"}


def body(count: int, start: int = 0, **more: object) -> bytes:
    system = {"role": "system", "content": "You are an agent. " * 20}
    return json.dumps(
        {"model": "m", "messages": [system, *(message(start + n) for n in range(count))], **more}
    ).encode()


class Watched:
    """A recall, and the bodies that it read whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: int) -> None:
        self.whole: list[int] = []
        self.parsed: list[int] = []
        self.recall = Recall(HASHER, **options)
        self.ledger = Ledger(HASHER)
        for name in DIALECTS:
            monkeypatch.setattr(REQUESTS[name], "read", self._watch(REQUESTS[name].read, self.whole))
        monkeypatch.setattr(recall_module, "array_spans", self._watch(recall_module.array_spans, self.parsed))

    @staticmethod
    def _watch(read: Callable[..., object], seen: list[int]) -> Callable[..., object]:
        return lambda raw, *place: (seen.append(len(raw)), read(raw, *place))[1]

    def read(self, raw: bytes, dialect: DialectName = "chat") -> Conversation:
        conversation = self.recall.read(dialect, raw)
        history_of(conversation, HASHER, self.ledger)
        return conversation

    def is_whole(self, raw: bytes) -> bool:
        before = len(self.whole)
        self.read(raw)
        return len(self.whole) > before


@pytest.mark.pure
def test_a_turn_more_costs_the_new_items_only(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for count in range(20, 60):
        watched.read(body(count, stream=True))
    assert len(watched.whole) == 1
    assert max(watched.parsed) < 300
    assert len(watched.recall) == 1


def test_the_very_same_body_costs_no_parsing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    first, again = watched.read(body(20)), watched.read(body(20))
    assert again == first
    assert again.note is first.note
    assert (len(watched.whole), watched.parsed) == (1, [])


@pytest.mark.parametrize("tools", [1, 100], ids=["short tail", "long tail"])
def test_what_stands_after_the_items_may_change(monkeypatch: pytest.MonkeyPatch, tools: int) -> None:
    watched = Watched(monkeypatch)
    more = {"tools": [{"name": f"tool {n}"} for n in range(tools)]}
    for count in range(20, 30):
        watched.read(body(count, metadata={"turn": "x" * count}, **more))
    assert len(watched.whole) == 1
    assert max(watched.parsed) < len(json.dumps(more)) + 600


def test_cache_marks_may_move_over_the_newest_items(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    marked = {"type": "text", "text": "words " * 30, "cache_control": {"type": "ephemeral"}}
    plain = {key: value for key, value in marked.items() if key != "cache_control"}
    for count in range(20, 60, 2):
        content = [*([plain] for _ in range(count - 3)), *([marked] for _ in range(3))]
        turn = [{"role": ["user", "assistant"][n % 2], "content": part} for n, part in enumerate(content)]
        watched.read(
            json.dumps({"model": "m", "system": "You are an agent. " * 20, "messages": turn}).encode(), "messages"
        )
    assert len(watched.whole) == 1
    assert len(watched.recall) == 1


def test_sessions_that_begin_alike_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for count in range(20, 25):
        for session in range(100):
            watched.read(body(count, start=1000 * session))
    assert len(watched.whole) == 100
    assert len(watched.recall) == 100


def test_a_fork_keeps_both_ways_known(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.read(body(40))
    other = json.loads(body(16))
    other["messages"] += [message(n, "other ") for n in range(24)]
    assert not watched.is_whole(json.dumps(other).encode())
    assert not watched.is_whole(body(41))
    other["messages"].append(message(50))
    assert not watched.is_whole(json.dumps(other).encode())


@pytest.mark.pure
def test_an_edit_far_back_is_found_by_the_marks_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.read(body(200))
    edited = json.loads(body(200))
    edited["messages"][150]["content"] = edited["messages"][150]["content"].replace("words", "WORDS")
    assert not watched.is_whole(json.dumps(edited).encode())
    assert watched.parsed[-1] < len(body(200)) // 2


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m","messages":[]}',
        body(0),
        json.dumps({"model": "m", "input": "x" * 300}).encode(),
        json.dumps({"model": "m", "input": [message(1)], "previous_response_id": "resp_1"}).encode(),
        json.dumps({"model": "m", "\ud800": 1, "messages": [message(1), message(2)]}).encode(),
    ],
)
def test_what_says_too_little_is_not_remembered(raw: bytes) -> None:
    recall = Recall(HASHER)
    recall.read("responses" if b"input" in raw else "chat", raw)
    assert len(recall) == 0


def test_dialects_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    raw = json.dumps({"model": "m", "messages": [message(n) for n in range(9)]}).encode()
    assert watched.read(raw, "chat").dialect == "chat"
    assert watched.read(raw, "messages").dialect == "messages"
    assert len(watched.whole) == 2


def test_another_model_s_name_keeps_what_was_read() -> None:
    recall, ledger = Recall(HASHER), Ledger(HASHER)
    first = recall.read("chat", body(20))
    history_of(first, HASHER, ledger)
    renamed = first.with_model("another")
    assert renamed == read("chat", renamed.raw)
    assert history_of(renamed, HASHER, ledger)[0] is history_of(first, HASHER, ledger)[0]


def test_a_note_of_another_key_s_making_is_not_believed() -> None:
    conversation = Recall(HASHER).read("chat", body(3))
    history_of(conversation, HASHER, Ledger(HASHER))
    other = Hasher(b"o" * 32)
    past, top = history_of(conversation, other, Ledger(other))
    assert top.head != history_of(conversation, HASHER, Ledger(HASHER))[1].head
    assert past.entries[0].fingerprint == Ledger(other).entry("chat", conversation.item_raw(1)).fingerprint


def test_a_hash_decides_where_all_else_looks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_module, "hash", lambda _value: 7, raising=False)
    recall = Recall(HASHER)
    for start in range(5):
        for count in (5, 6, 9, 3):
            assert recall.read("chat", body(count, start=start)) == read("chat", body(count, start=start))


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_memory_is_bounded_and_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, max_bytes=200_000)
    for session in range(200):
        watched.read(body(10, start=1000 * session))
        assert not watched.is_whole(body(10))
        assert watched.recall.weight <= 200_000
    assert 5 < len(watched.recall) < 60
    assert watched.is_whole(body(10, start=1000))


def test_a_body_too_large_for_it_is_read_whole_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, max_bytes=10_000)
    assert watched.is_whole(body(100))
    assert watched.is_whole(body(100))
    assert len(watched.recall) == 0


@pytest.mark.parametrize("count", [2, 40, 400])
def test_what_it_takes_is_no_more_than_it_says(count: int) -> None:
    recall, ledger = Recall(HASHER), Ledger(HASHER)
    history_of(recall.read("chat", body(count, start=10**7)), HASHER, ledger)
    bodies = [body(count, start=1000 * session) for session in range(20)]
    tracemalloc.start()
    before, weight = tracemalloc.get_traced_memory()[0], recall.weight
    for raw in bodies:
        past, _top = history_of(recall.read("chat", raw), HASHER, ledger)
        past.chain(HASHER, b"t" * 16, "chat")
    del past, _top
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken <= recall.weight - weight
    # Beside what its items take, an idle conversation takes no more than this.
    assert recall.weight - weight - 20 * (count + 1) * (recall_module.ITEM_BYTES + 16) <= 20 * 8_192


def test_threads_may_share_it() -> None:
    recall, ledger = Recall(HASHER, max_bytes=300_000), Ledger(HASHER)
    failures: list[BaseException] = []

    def work(offset: int) -> None:
        try:
            for n in range(150):
                raw = body(8 + n // 10, start=1000 * (n * (offset + 1) % 9))
                conversation = recall.read("chat", raw)
                assert conversation == read("chat", raw)
                assert said(conversation, ledger) == said(read("chat", raw), Ledger(HASHER))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert recall.weight <= 300_000
    with contextlib.suppress(KeyError):
        alone = [kept if isinstance(kept, tuple) else (kept,) for kept in recall._at.values()]
        assert all(record in recall._records for kept in alone for record in kept)
