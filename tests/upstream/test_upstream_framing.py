"""Chunks that come one to a packet are read past the parser; what is read is the same however the bytes come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.upstream.framing import Answers, Broken, whole_chunks

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(packets: list[bytes]) -> tuple[bytes, bool, bool, bool]:
    """(body, complete, reusable, broken)."""
    answers = Answers()
    answers.begin("POST")
    answers.feed(HEAD)
    broken = False
    try:
        for packet in packets:
            answers.feed(packet)
    except Broken:
        broken = True
    return b"".join(answers.pieces), answers.complete, answers.reusable, broken


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"3\r\nabc\r\n", [b"abc"]),
        (b"00A\r\n0123456789\r\n", [b"0123456789"]),
        (b"1\r\na\r\n2\r\nbc\r\n", [b"a", b"bc"]),
        (b"2\r\n\r\n\r\n", [b"\r\n"]),
        (b"0\r\n\r\n", []),
        (b"1\r\na\r\n0\r\n\r\n", []),
        (b"3\r\nabc", []),
        (b"3\r\nabcd\r\n", []),
        (b"3\r\nabc\r\n4", []),
        (b"3;x=y\r\nabc\r\n", []),
        (b"0x3\r\nabc\r\n", []),
        (b"+3\r\nabc\r\n", []),
        (b" 3\r\nabc\r\n", []),
        (b"-1\r\na\r\n", []),
        (b"3\nabc\n", []),
        (b"\r\nabc\r\n", []),
        (b"000000003\r\nabc\r\n", []),
        (b"", []),
    ],
)
def test_only_plain_whole_chunks_are_read_past_the_parser(data: bytes, found: list[bytes]) -> None:
    assert whole_chunks(data) == found


PIECES = st.one_of(
    st.binary(min_size=1, max_size=20).map(lambda body: b"%x\r\n%b\r\n" % (len(body), body)),
    st.sampled_from(
        [b"1;a=b\r\nx\r\n", b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"zz\r\n", b"2\r\na\r\n", b"\r\n", b"1\r\n"]
    ),
)


@given(st.lists(PIECES, max_size=6), st.data())
def test_an_answer_is_the_same_however_its_bytes_come(pieces: list[bytes], data: st.DataObject) -> None:
    body = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    packets = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True) if end > start]
    by_byte = read([body[n : n + 1] for n in range(len(body))])
    assert read(packets) == by_byte
    assert read([piece for piece in pieces if piece]) == by_byte
