"""Where an answer begins and ends, what is made of a broken one, and how fast it may come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from clients import Make, Tried
from faulty_server import CHUNKED, OK, Peer, Server, answers, once, settled

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import Request, Response, Timeouts
from tidegate.upstream.client import Answer
from tidegate.upstream.http import HEAD_LIMIT

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
async def pool(make: Make) -> AsyncIterator[Tried]:
    pool = make(timeouts=Timeouts(connect=2, head=2, read=2))
    yield pool
    await pool.close()


async def read(response: Answer) -> bytes:
    got = b""
    while piece := await response.read():
        got += piece
    return got


# --- where it ends


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (LENGTH % 5 + b"hello", b"hello"),
        (LENGTH % 0, b""),
        (CHUNKED + b"5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\n\r\n", b"hello!"),
        (CHUNKED + b"5\r\nhello\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH % 2 + b"ok", b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 P\r\n\r\n" + LENGTH % 2 + b"ok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"\r\n" + LENGTH % 2 + b"ok", b"ok"),
    ],
)
@pytest.mark.parametrize("split", [False, True], ids=["whole", "byte by byte"])
async def test_an_answer_ends_where_it_says_and_the_connection_lives_on(
    pool: Tried, answer: bytes, body: bytes, split: bool
) -> None:
    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            for piece in [bytes([b]) for b in answer] if split else [answer]:
                await peer.send(piece)
                await asyncio.sleep(0)

    async with Server(script) as server:
        for _ in range(2):
            response = await pool.send(Request("GET", server.url()))
            assert 200 <= response.status < 305
            assert await read(response) == body
            assert await response.read() == b""
        assert server.connections == 1


@pytest.mark.parametrize("headers", [b"Content-Length: 1000\r\n", b"Transfer-Encoding: chunked\r\n", b""])
async def test_the_answer_to_head_has_no_body(pool: Tried, headers: bytes) -> None:
    async with Server(answers(b"HTTP/1.1 200 OK\r\n%b\r\n" % headers, OK)) as server:
        response = await pool.send(Request("HEAD", server.url()))
        assert await response.read() == b""
        assert await read(await pool.send(Request("GET", server.url()))) == b"ok"
        assert server.connections == 1


async def test_a_body_sent_in_answer_to_head_is_not_taken_for_the_next_answer(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        assert await read(await pool.send(Request("HEAD", server.url()))) == b""
        assert await read(await pool.send(Request("GET", server.url()))) == b"ok"
        assert server.connections == 2


async def test_a_body_without_a_length_ends_with_the_connection(pool: Tried) -> None:
    async with Server(once(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as server:
        assert await read(await pool.send(Request("GET", server.url()))) == b"all of it"
    assert pool.open_now == 0


async def test_a_reset_is_no_end_of_a_body_without_a_length(pool: Tried) -> None:
    async with Server(once(b"HTTP/1.1 200 OK\r\n\r\nhalf", reset=True)) as server:
        response = await pool.send(Request("GET", server.url()))
        assert await response.read() == b"half"
        with pytest.raises(UpstreamError, match="in the middle"):
            await response.read()


@pytest.mark.parametrize("reset", [False, True], ids=["end of file", "reset"])
@pytest.mark.parametrize(
    "answer",
    [LENGTH % 10 + b"hello", CHUNKED + b"5\r\nhello\r\n", CHUNKED + b"9\r\nhello", CHUNKED + b"5\r\nhello\r\n0\r\n"],
)
async def test_a_cut_body_is_delivered_and_then_an_error(pool: Tried, answer: bytes, reset: bool) -> None:
    async with Server(once(answer, reset=reset)) as server:
        response = await pool.send(Request("GET", server.url()))
        assert await response.read() == b"hello"
        with pytest.raises(UpstreamError, match="in the middle of its answer") as caught:
            await response.read()
        assert caught.value.status == 502
        assert str(server.port) in str(caught.value)
    assert pool.open_now == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nA : b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nxx",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x50",
    ],
)
async def test_an_answer_that_can_be_read_two_ways_is_an_error(pool: Tried, answer: bytes) -> None:
    async with Server(answers(answer)) as server:
        with pytest.raises(UpstreamError, match=f"127.0.0.1:{server.port} ") as caught:
            await pool.send(Request("GET", server.url()))
        assert caught.value.status == 502
        await settled(lambda: server.open == 0)
    assert pool.open_now == 0


async def test_a_broken_chunk_is_an_error_after_what_came_before(pool: Tried) -> None:
    async with Server(answers(CHUNKED + b"2\r\nok\r\nzz\r\n")) as server:
        response = await pool.send(Request("GET", server.url()))
        assert await response.read() == b"ok"
        with pytest.raises(UpstreamError, match="valid HTTP"):
            await response.read()


BIG = b"x" * HEAD_LIMIT


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nBig: " + BIG + b"\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: bbbbbbbbbbbbbb\r\n" * 4000 + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBig: " + BIG + BIG,
        b"HTTP/1.1 200 " + BIG + BIG,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 6000,
    ],
    ids=["one", "many", "endless", "reason", "interim"],
)
async def test_headers_are_limited(pool: Tried, answer: bytes) -> None:
    async with Server(answers(answer)) as server:
        with pytest.raises(UpstreamError, match="bytes of headers"):
            await pool.send(Request("GET", server.url()))


@pytest.mark.parametrize("end", [b"0\r\nBig: ", b"2;", b"0\r\n" + b"A: b\r\n" * 20_000], ids=["trailer", "ext", "many"])
async def test_trailers_and_chunk_extensions_are_limited(pool: Tried, end: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"2\r\nok\r\n", end, *[b"x" * 10_000] * 20, pause=0.005)
        await peer.gone()

    async with Server(script) as server:
        response = await pool.send(Request("GET", server.url()))
        with pytest.raises(UpstreamError, match="bytes of headers"):
            await read(response)


async def test_headers_under_the_limit_pass(pool: Tried) -> None:
    answer = b"HTTP/1.1 200 OK\r\nBig: " + b"x" * 60_000 + b"\r\nContent-Length: 2\r\n\r\nok"
    async with Server(answers(answer)) as server:
        assert len(dict((await pool.send(Request("GET", server.url()))).headers)[b"Big"]) == 60_000


# --- how much


@pytest.mark.parametrize("answer", [LENGTH % 11 + b"hello world", CHUNKED + b"b\r\nhello world\r\n0\r\n\r\n"])
async def test_read_all_has_a_limit(pool: Tried, answer: bytes) -> None:
    async with Server(answers(answer)) as server:
        assert await (await pool.send(Request("GET", server.url()))).read_all(11) == b"hello world"
        with pytest.raises(UpstreamError, match="longer than 10 bytes"):
            await (await pool.send(Request("GET", server.url()))).read_all(10)


async def test_read_all_does_not_read_what_is_announced_too_long(pool: Tried) -> None:
    async with Server(answers(LENGTH % 10**12)) as server:
        with pytest.raises(UpstreamError, match="longer than"):
            await (await pool.send(Request("GET", server.url()))).read_all(10**6)
        await settled(lambda: server.open == 0)


async def test_a_megabyte_of_events_in_odd_splits(pool: Tried) -> None:
    dice = random.Random(7)
    events = b"".join(b'data: {"n":%d,"t":"%b"}\n\n' % (n, b"x" * dice.randrange(200)) for n in range(10_000))
    framed = bytearray()
    at = 0
    while at < len(events):
        size = dice.choice([1, 2, 3, 17, 255, 256, 4096, 70_000])
        piece = events[at : at + size]
        framed += b"%x\r\n%b\r\n" % (len(piece), piece)
        at += size
    wire = CHUNKED + bytes(framed) + b"0\r\n\r\n"

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            at = 0
            while at < len(wire):
                size = dice.choice([1, 5, 100, 1460, 16_384, 65_537])
                await peer.send(wire[at : at + size])
                at += size
                if size < 6:
                    await asyncio.sleep(0)

    async with Server(script) as server:
        for _ in range(2):
            assert await read(await pool.send(Request("POST", server.url(), [], b"x"))) == events
        assert server.connections == 1


async def test_pieces_arrive_when_they_are_sent(pool: Tried) -> None:
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(5):
            await asked.wait()
            asked.clear()
            await peer.send(b"3\r\nabc\r\n")
        await peer.gone()

    async with Server(script) as server:
        response = await pool.send(Request("GET", server.url()))
        for _ in range(5):
            asked.set()  # the next piece comes only when this one was asked for
            assert await response.read() == b"abc"


async def test_a_slow_reader_holds_the_upstream_back(pool: Tried) -> None:
    total = 64 * 1024 * 1024
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(LENGTH % total)
        piece = b"x" * 65_536
        while sent < total:
            await peer.send(piece)
            sent += len(piece)
        await peer.request()

    async with Server(script) as server:
        response = await pool.send(Request("GET", server.url()))
        previous = -1
        while sent != previous:  # until the upstream can send no more
            previous = sent
            await asyncio.sleep(0.1)
        assert sent < total / 2, "only what the kernel's buffers hold"
        if isinstance(response, Response):
            assert response._size <= 512 * 1024
        got = biggest = 0
        while piece := await response.read():
            got += len(piece)
            biggest = max(biggest, len(piece))
        assert got == total
        assert biggest <= 512 * 1024
        assert pool.open_now == 1


async def test_a_cut_behind_a_full_buffer_is_still_seen(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(LENGTH % 2_000_000, b"x" * 1_000_000)

    async with Server(script) as server:
        response = await pool.send(Request("GET", server.url()))
        await asyncio.sleep(0.1)
        got = 0
        while got < 1_000_000:
            got += len(await response.read())
            await asyncio.sleep(0.01)
        assert got == 1_000_000
        with pytest.raises(UpstreamError, match="in the middle"):
            await response.read()


# --- the request's body


async def stream(*pieces: bytes, log: list[int] | None = None) -> AsyncIterator[bytes]:
    for piece in pieces:
        if log is not None:
            log.append(len(piece))
        yield piece


async def test_a_streamed_body_is_chunked_or_has_its_length(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        await pool.send(Request("POST", server.url(), [], stream(b"ab", b"", b"cde")))
        await pool.send(Request("POST", server.url(), [], stream(b"ab", b"", b"cde"), 5))
        await pool.send(Request("POST", server.url(), [], stream()))
        assert [r.body for r in server.requests] == [b"abcde", b"abcde", b""]
        assert server.requests[0]["transfer-encoding"] == "chunked"
        assert server.requests[1]["content-length"] == "5"
        assert server.connections == 1


@pytest.mark.parametrize(("length", "fault"), [(4, "longer than"), (6, "ended before")])
async def test_a_streamed_body_must_keep_its_word(pool: Tried, length: int, fault: str) -> None:
    async with Server(answers(OK)) as server:
        with pytest.raises(UpstreamError, match=fault):
            await pool.send(Request("POST", server.url(), [], stream(b"abcde"), length))
        await settled(lambda: server.open == 0 and server.connections == 1)
        assert server.requests == []


async def test_a_client_that_breaks_off_its_body_breaks_off_the_request(pool: Tried) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("client gone")

    async with Server(answers(OK)) as server:
        with pytest.raises(RuntimeError, match="client gone"):
            await pool.send(Request("POST", server.url(), [], body()))
        await settled(lambda: server.open == 0)
        assert server.requests == []
    assert pool.open_now == 0


async def test_an_upstream_slow_to_take_holds_the_body_back(pool: Tried) -> None:
    log: list[int] = []
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go.wait()
        await peer.request()
        await peer.send(OK)

    async with Server(script) as server:
        pieces = [b"x" * 65_536] * 512
        sending = asyncio.create_task(pool.send(Request("POST", server.url(), [], stream(*pieces, log=log))))
        await asyncio.sleep(0.3)
        assert sum(log) < 20_000_000
        go.set()
        response = await sending
        assert response.status == 200
        assert len(server.requests[0].body) == 512 * 65_536


async def test_an_upstream_that_takes_nothing_is_a_504(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await asyncio.sleep(5)

    async with Server(script) as server:
        body = stream(*[b"x" * 1_000_000] * 40)
        with pytest.raises(UpstreamError, match="took nothing more") as caught:
            await pool.send(Request("POST", server.url(), [], body), Timeouts(read=0.2))
        assert caught.value.status == 504
    assert pool.open_now == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_before_the_whole_body_was_sent_is_delivered(pool: Tried, streamed: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await asyncio.sleep(1)

    async with Server(script) as server:
        body = stream(*[b"x" * 1_000_000] * 40) if streamed else b"x" * 40_000_000
        response = await pool.send(Request("POST", server.url(), [], body))
        assert response.status == 413
        assert await response.read_all(10) == b"big"
        await settled(lambda: pool.open_now == 0)


async def test_a_refusal_ends_the_reading_of_the_clients_body(pool: Tried) -> None:
    log: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 401 No\r\nContent-Length: 3\r\n\r\nno")
        await asyncio.sleep(0.5)
        await peer.send(b"!")
        await peer.gone()

    async def slow() -> AsyncIterator[bytes]:
        for n in range(100):
            log.append(n)
            yield b"x"
            await asyncio.sleep(0.01)

    async with Server(script) as server:
        response = await pool.send(Request("POST", server.url(), [], slow()))
        assert (response.status, await response.read_all(10)) == (401, b"no!")
        assert len(log) < 25
        await settled(lambda: server.open == 0)
    assert pool.open_now == 0


async def test_an_answer_to_half_a_request_ends_the_connection(pool: Tried) -> None:
    """Were it kept, the rest of the body would be read as the next request."""
    answered = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(OK)
        await asyncio.sleep(0.05)
        answered.set()
        await peer.gone()

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        await answered.wait()
        yield b"y"

    async with Server(script) as server:
        response = await pool.send(Request("POST", server.url(), [], body()))
        assert await response.read_all(10) == b"ok"
        assert pool.open_now == 0
        await settled(lambda: server.open == 0)


# --- cancellation


async def cancel_when(task: asyncio.Task[object], ready: object) -> None:
    await settled(ready)  # type: ignore[arg-type]
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200", CHUNKED, CHUNKED + b"3\r\nabc\r\n"])
async def test_cancellation_closes_the_connection(pool: Tried, first: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(first)
        await peer.gone()

    async def use() -> None:
        await read(await pool.send(Request("POST", server.url(), [], b"x")))

    async with Server(script) as server:
        await cancel_when(asyncio.create_task(use()), lambda: bool(server.requests))
        assert pool.open_now == 0
        await settled(lambda: server.open == 0)


async def test_cancellation_while_the_body_is_sent_closes_the_connection(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await asyncio.sleep(0.3)
        await peer.gone()

    async with Server(script) as server:
        body = stream(*[b"x" * 1_000_000] * 40)
        task = asyncio.create_task(pool.send(Request("POST", server.url(), [], body)))
        await cancel_when(task, lambda: server.open == 1)  # type: ignore[arg-type]
        assert pool.open_now == 0
        await settled(lambda: server.open == 0)


async def test_cancellation_at_any_moment_leaves_a_pool_that_works(make: Make) -> None:
    """Cancel after every possible number of steps: what stays in the pool must never carry a foreign answer."""

    async def script(peer: Peer) -> None:
        while (got := await peer.request()) is not None:
            await peer.send(CHUNKED, b"%x\r\n%b\r\n" % (len(got.body), got.body), b"0\r\n\r\n")

    pool = make(timeouts=Timeouts(connect=2, head=2, read=2), max_per_host=2)

    async def ask(text: bytes) -> bytes:
        return await (await pool.send(Request("POST", server.url(), [], text))).read_all(100)

    async with Server(script) as server:
        for steps in range(40):
            doomed = asyncio.create_task(ask(b"doomed %d" % steps))
            others = [asyncio.create_task(ask(b"%d/%d" % (steps, n))) for n in range(4)]
            for _ in range(steps):
                await asyncio.sleep(0)
            doomed.cancel()
            assert await asyncio.gather(*others) == [b"%d/%d" % (steps, n) for n in range(4)]
            await asyncio.gather(doomed, return_exceptions=True)
            assert pool.open_now <= 2
        await pool.close()
        assert pool.open_now == 0
        await settled(lambda: server.open == 0)


async def test_closing_an_unfinished_answer_cancels_the_upstream(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, b"3\r\nabc\r\n")
        await peer.gone()

    async with Server(script) as server:
        response = await pool.send(Request("GET", server.url()))
        await response.close()
        await response.close()
        with pytest.raises(UpstreamError):
            await response.read()
        await settled(lambda: server.open == 0)
    assert pool.open_now == 0


async def test_closing_a_finished_answer_keeps_the_connection(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        response = await pool.send(Request("GET", server.url()))
        await asyncio.sleep(0.05)  # its end comes
        await response.close()
        assert await response.read() == b""
        assert pool.counters.open_now == 1
