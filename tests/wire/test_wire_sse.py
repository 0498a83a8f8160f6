"""Server-sent events: what is an event, however its bytes are cut."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.wire.sse import Event, Reader, comment, write


def read(*chunks: bytes) -> list[Event]:
    reader = Reader()
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.close()


EVENTS = {
    "unnamed": (b"data: one\n\n", [Event("", b"one")]),
    "named": (b"event: ping\ndata: {}\n\n", [Event("ping", b"{}")]),
    "name after data": (b"data: {}\nevent: ping\n\n", [Event("ping", b"{}")]),
    "last name wins": (b"event: a\nevent: b\ndata: x\n\n", [Event("b", b"x")]),
    "no space": (b"event:a\ndata:x\n\n", [Event("a", b"x")]),
    "only one space is taken": (b"data:  x \n\n", [Event("", b" x ")]),
    "colons in data": (b'data: {"a":1}\n\n', [Event("", b'{"a":1}')]),
    "many data lines": (b"data: a\ndata:\ndata: b\n\n", [Event("", b"a\n\nb")]),
    "empty data": (b"data:\n\n", [Event("", b"")]),
    "data without a colon": (b"data\n\n", [Event("", b"")]),
    "crlf": (b"event: a\r\ndata: x\r\n\r\ndata: y\r\n\r\n", [Event("a", b"x"), Event("", b"y")]),
    "lone cr": (b"event: a\rdata: x\r\rdata: y\r\r", [Event("a", b"x"), Event("", b"y")]),
    "mixed": (b"event: a\rdata: x\r\ndata: z\n\r\ndata: y\n\r", [Event("a", b"x\nz"), Event("", b"y")]),
    "one crlf ends a line, not an event": (b"data: a\r\ndata: b\n\n", [Event("", b"a\nb")]),
    "more blank lines": (b"\n\n\ndata: x\n\n\n\ndata: y\n\n", [Event("", b"x"), Event("", b"y")]),
    "byte order mark": (b"\xef\xbb\xbfdata: x\n\n", [Event("", b"x")]),
    "mark only at the very beginning": (b"data: x\n\n\xef\xbb\xbfdata: y\n\n", [Event("", b"x")]),
    "comment": (b": OPENROUTER PROCESSING\n\n", [Event("", b"", comment=True)]),
    "empty comment": (b":\n\n", [Event("", b"", comment=True)]),
    "comment with an event": (b": hello\ndata: x\n\n", [Event("", b"x")]),
    "id and retry are ignored": (b"id: 7\nretry: 10\n\nid: 8\ndata: x\n\n", [Event("", b"x")]),
    "unknown field": (b"foo: 7\ndatax: 8\n\n", []),
    "a name without data is no event": (b"event: ping\n\ndata: x\n\n", [Event("", b"x")]),
    "not utf-8": (b"event: \xff\ndata: \xfe\n\n", [Event("\ufffd", b"\xfe")]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("raw", "events"), EVENTS.values(), ids=EVENTS.keys())
def test_what_is_an_event(raw: bytes, events: list[Event]) -> None:
    assert read(raw) == events


@pytest.mark.parametrize(("raw", "events"), EVENTS.values(), ids=EVENTS.keys())
def test_a_byte_at_a_time_gives_the_same(raw: bytes, events: list[Event]) -> None:
    assert read(*(raw[i : i + 1] for i in range(len(raw)))) == events


CUT = {
    "no blank line": (b"data: x\n", [Event("", b"x", unterminated=True)]),
    "no line end": (b"data: [DONE]", [Event("", b"[DONE]", unterminated=True)]),
    "cr then end": (b"data: x\r", [Event("", b"x", unterminated=True)]),
    "in the middle of a name": (b"data: x\n\nevent: mess", [Event("", b"x")]),
    "comment": (b"data: x\n\n: pi", [Event("", b"x")]),
    "with a mark": (b"\xef\xbb\xbfdata: x", [Event("", b"x", unterminated=True)]),
}


@pytest.mark.parametrize(("raw", "events"), CUT.values(), ids=CUT.keys())
def test_an_event_cut_by_the_end_is_given_and_marked(raw: bytes, events: list[Event]) -> None:
    assert read(raw) == events


def test_an_event_is_given_with_its_last_byte_and_not_before() -> None:
    reader = Reader()
    assert reader.feed(b"data: x\r\n\r") == [Event("", b"x")]
    assert reader.feed(b"\ndata: y\n") == []
    assert reader.feed(b"\n") == [Event("", b"y")]


def test_pending_counts_the_bytes_of_the_event_that_is_not_complete() -> None:
    reader = Reader()
    reader.feed(b": hi\n\ndata: x\n\ndata: ")
    assert reader.pending == len(b"data: ")


def test_whole_events_may_be_skipped_unread() -> None:
    reader = Reader()
    assert reader.skip(b"data: x\n\ndata: y\n\n")
    assert not reader.skip(b"data: x\n\ndata: y\n")
    assert reader.feed(b"data: z") == []
    assert not reader.skip(b"\n\n")
    assert reader.feed(b"\n\n") == [Event("", b"z")]


RAW = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            [
                b"data: x",
                b"data",
                b"event: a",
                b": c",
                b"\n",
                b"\r",
                b"\r\n",
                b"\n\n",
                b"\xc3\xa9",
                b"\xef\xbb\xbf",
                b" ",
            ]
        ),
        max_size=25,
    ).map(b"".join),
)


@given(RAW, st.lists(st.integers(0, 80), max_size=8))
@settings(max_examples=200, deadline=None)
def test_chunking_changes_nothing(raw: bytes, cuts: list[int]) -> None:
    whole, pieces = Reader(), Reader()
    expected = whole.feed(raw)
    places = [0, *sorted(min(c, len(raw)) for c in cuts), len(raw)]
    got = [e for a, b in itertools.pairwise(places) for e in pieces.feed(raw[a:b])]
    assert (got, pieces.pending) == (expected, whole.pending)
    assert pieces.close() == whole.close()


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=40).filter(lambda data: b"\r" not in data),
            st.text(max_size=5).filter(lambda name: "\n" not in name and "\r" not in name),
        ),
        max_size=6,
    )
)
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read_back(events: list[tuple[bytes, str]]) -> None:
    assert read(b"".join(write(data, name) for data, name in events)) == [Event(name, data) for data, name in events]


def test_a_carriage_return_in_data_is_read_back_as_a_newline() -> None:
    assert read(write(b"a\r\nb\rc")) == [Event("", b"a\nb\nc")]


def test_a_name_of_two_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="one line"):
        write(b"", "a\ndata: injected")


@given(st.text(max_size=30))
@settings(max_examples=50, deadline=None)
def test_a_comment_is_only_a_comment(text: str) -> None:
    assert read(comment(text)) == [Event("", b"", comment=True)]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"], ids=["lf", "crlf"])
def test_a_frame_of_a_megabyte_in_small_chunks_takes_no_time(end: bytes) -> None:
    frame = b"data: " + b"x" * (1 << 20) + end
    chunks = [frame[i : i + 1024] for i in range(0, len(frame), 1024)]
    best = 9.0
    for _ in range(3):
        reader = Reader()
        begin = time.process_time()
        events = [event for chunk in chunks for event in reader.feed(chunk)]
        best = min(best, time.process_time() - begin)
        assert [len(event.data) for event in events] == [1 << 20]
    assert best < 0.1
