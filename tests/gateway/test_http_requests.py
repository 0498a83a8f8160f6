"""Requests are read the same however their bytes are cut, and whatever else comes is refused, not crashed on."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.gateway.arrival import Arrival
from tidegate.gateway.http1_framing import HEAD_LIMIT, Refused
from tidegate.gateway.http1_line import Line
from tidegate.gateway.http1_requests import KnownHead, Requests

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"


class Nobody:
    """A line's connection that wants nothing."""

    def taken(self, line: Line) -> None:
        """Nothing."""


def read(*pieces: bytes) -> tuple[list[Line], int]:
    """(the requests in what comes in these pieces, the status they are refused with or 0)."""
    lines: list[Line] = []
    requests = Requests(lambda arrival: Line(Nobody(), arrival), lines.append)  # type: ignore[arg-type]
    try:
        for piece in pieces:
            requests.feed(piece)
    except Refused as refused:
        return lines, refused.status
    return lines, 0


def said(lines: list[Line]) -> list[object]:
    return [
        (
            line.arrival.method, line.arrival.path, line.arrival.query, line.arrival.headers, line.arrival.length,
            dict(line.arrival.plain), line.eleven, line.keep, line.expects, line.complete, line.take()[0],
        )
        for line in lines
    ]  # fmt: skip


def post(body: bytes, *lines: bytes) -> bytes:
    head = [b"POST /v1/chat?x=1 HTTP/1.1", b"Host: gate", *lines, b"Content-Length: %d" % len(body), b"X-Last: y"]
    return b"\r\n".join([*head, b"", body])


def chunked(body: bytes, *lines: bytes, size: int = 3) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x;ext\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nTrailer: t\r\n\r\n"
    head = [b"POST /v1/chat HTTP/1.1", b"Host: gate", *lines, b"Transfer-Encoding: chunked"]
    return b"\r\n".join([*head, b"", coded])


STREAM = b"".join(
    [
        post(b'{"a":1}'),
        post(b'{"a":22}'),
        post(b""),
        chunked(b"0123456789"),
        post(b"{}", b"Authorization: Bearer sk"),
        b"GET / HTTP/1.1\r\nHost: gate\r\n\r\n",
        post(b"GET /evil HTTP/1.1\r\nHost: gate\r\n\r\n", *OFFER.split(b"\r\n")[:2]),
        chunked(b"abcdefgh", *OFFER.split(b"\r\n")[:2]),
        b"\r\n" + post(b"last", b"Connection: close"),
    ]
)
WHOLE, _ = read(STREAM)


def test_the_stream_of_the_tests_is_what_they_take_it_for():
    assert read(STREAM)[1] == 0
    assert [line.arrival.length for line in WHOLE] == [7, 8, 0, None, 2, None, 34, None, 4]
    assert [line.complete for line in WHOLE] == [True] * 9
    assert [line.size for line in WHOLE] == [7, 8, 0, 10, 2, 0, 34, 8, 4]
    assert [line.keep for line in WHOLE] == [True] * 8 + [False]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12, unique=True))
def test_any_cut_of_the_bytes_gives_the_same_requests(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    lines, refused = read(*pieces)
    assert refused == 0
    assert said(lines) == said(read(STREAM)[0])


def test_byte_by_byte_as_well():
    lines, refused = read(*[STREAM[at : at + 1] for at in range(len(STREAM))])
    assert (said(lines), refused) == (said(read(STREAM)[0]), 0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(STREAM.split(b"\r\n")), st.just(b"\r\n")), max_size=20)
)
def test_no_bytes_crash_the_reading(pieces):
    for line in read(*pieces)[0]:
        assert line.size >= 0
    whole, refused = read(b"".join(pieces))
    assert refused in (0, 400, 405, 408, 414, 417, 431, 501, 505)
    assert [line.arrival.headers for line in whole] == [line.arrival.headers for line in read(*pieces)[0]] or refused


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(STREAM) - 1), st.binary(min_size=1, max_size=3))
def test_no_damage_crashes_the_reading(place, damage):
    damaged = STREAM[:place] + damage + STREAM[place + len(damage) :]
    whole, refused = read(damaged)
    split, refused_split = read(*[damaged[at : at + 7] for at in range(0, len(damaged), 7)])
    assert (refused == 0) == (refused_split == 0)
    assert said(split) == said(whole)


# -- heads that come again ---------------------------------------------------------------------------------------------


def reread(*requests: bytes) -> list[object]:
    """What is read of each by itself, by the parser alone."""
    return [read(request)[0] for request in requests]


DIGITS = (0, 1, 9, 10, 4096, 70_000)


@pytest.mark.parametrize("size", DIGITS)
def test_a_head_that_comes_again_is_the_same_request_with_another_body(size):
    first, second = post(b"a" * 5, b"X: \t y "), post(b"b" * size, b"X: \t y ")
    (_, again), refused = read(first, second)
    (alone,), _ = read(second)
    assert refused == 0
    assert again.arrival.alike is not alone.arrival.alike
    assert said([again]) == said([alone])


def test_heads_that_are_alike_are_known_as_such():
    lines, _ = read(post(b"a"), post(b"bc"), post(b"d", b"X: 1"), post(b"d", b"X: 1"))
    keys = [line.arrival.alike for line in lines]
    assert keys[0] is keys[1]
    assert keys[2] is keys[3]
    assert keys[0] is not keys[2]
    assert len({line.arrival.id for line in lines}) == 4


@pytest.mark.parametrize(
    "length", [b"+3", b"-3", b"3 3", b"3,3", b"0x3", b"", b" ", b"\xb2", b"3\x00", b"1" * 40, b"3\r\nContent-Length: 4"]
)
def test_a_length_that_is_none_is_refused_behind_a_known_head_too(length):
    good = post(b"abc")
    lines, refused = read(good, good, good.replace(b"Content-Length: 3", b"Content-Length: " + length))
    assert (len(lines), refused) == (2, 400)


@pytest.mark.parametrize("before", [b"", b"X-Note: Content-Length: 7\r\n", b"Content-Length-Not: 7\r\n"])
def test_only_the_length_may_differ(before):
    def request(host: bytes, body: bytes) -> bytes:
        head = b"POST / HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n" % (host, before, len(body))
        return head + body

    lines, _ = read(request(b"a", b"x"), request(b"a", b"xyz"), request(b"b", b"xy"), request(b"a", b""))
    assert [line.arrival.header(b"host") for line in lines] == [b"a", b"a", b"b", b"a"]
    assert [line.take()[0] for line in lines] == [b"x", b"xyz", b"xy", b""]


@pytest.mark.parametrize("line", [b"Connection: close", b"Expect: 100-continue"])
def test_what_changes_the_connection_is_read_each_time(line):
    raw = post(b"abc", line)
    arrival = read(raw)[0][0].arrival
    assert isinstance(arrival, Arrival)
    lines, _ = read(post(b"a"), raw)
    assert (lines[1].keep, lines[1].expects) == (line != b"Connection: close", line == b"Expect: 100-continue")


def test_a_head_without_a_length_or_a_large_one_is_not_remembered():
    arrival = Arrival("POST", "/", b"", [(b"content-length", b"3")])
    assert KnownHead.of(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", arrival) is None
    large = b"POST / HTTP/1.1\r\nX: %b\r\nContent-Length: 3\r\n\r\nabc" % (b"x" * 9000)
    assert KnownHead.of(large, arrival) is None


def test_a_client_whose_heads_never_come_again_is_not_remembered_for_ever():
    requests = [post(b"a", b"X-Id: %d" % number) for number in range(20)]
    lines, refused = read(*requests)
    assert (len(lines), refused) == (20, 0)
    assert len({line.arrival.alike for line in lines}) == 20


# -- sizes -------------------------------------------------------------------------------------------------------------


def headed(size: int) -> bytes:
    """A request whose header lines are so many bytes."""
    host, filler = b"Host: gate\r\n", b"X: "
    return b"GET / HTTP/1.1\r\n" + host + filler + b"a" * (size - len(host) - len(filler) - 2) + b"\r\n\r\n"


@pytest.mark.parametrize("step", [1 << 20, 1000])
@pytest.mark.parametrize(("size", "refused"), [(HEAD_LIMIT - 1000, 0), (HEAD_LIMIT + 1, 431), (HEAD_LIMIT * 3, 431)])
def test_a_head_has_its_limit(step, size, refused):
    raw = headed(size)
    assert read(*[raw[at : at + step] for at in range(0, len(raw), step)])[1] == refused


def test_a_large_body_in_the_same_read_does_not_count_as_its_head():
    assert read(post(b"x" * 200_000))[1] == 0
    assert read(chunked(b"x" * 200_000, size=100_000))[1] == 0


def test_a_head_that_never_ends_is_refused_without_being_kept():
    pieces = [b"GET / HTTP/1.1\r\nX: "] + [b"a" * 1000] * 100
    assert read(*pieces) == ([], 431)


def test_a_target_has_its_limit():
    assert read(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 16_383))[1] == 0
    assert read(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 16_384))[1] == 414


# -- what is read of a head --------------------------------------------------------------------------------------------


def test_the_authority_of_an_absolute_target_takes_the_hosts_place():
    (line,), _ = read(b"GET http://other:81?q HTTP/1.1\r\nHost: gate\r\n\r\n")
    assert (line.arrival.path, line.arrival.query, line.arrival.header(b"host")) == ("/", b"q", b"other:81")


def test_names_are_in_lower_case_and_values_without_space_around():
    (line,), _ = read(b"GET / HTTP/1.1\r\nHOST:gate\r\nX-Some-Name: \t a b\t \r\nx-some-name:\r\n\r\n")
    assert line.arrival.headers == [(b"host", b"gate"), (b"x-some-name", b"a b"), (b"x-some-name", b"")]


def test_http_1_0_needs_no_host_and_waits_for_no_leave():
    (line,), _ = read(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na")
    assert (line.eleven, line.keep, line.expects) == (False, False, False)
