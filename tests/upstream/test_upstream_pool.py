"""Which connection carries a request, and when a request is sent once more."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator

import pytest
from clients import Make, Tried
from faulty_server import CHUNKED, OK, Peer, Server, answers, once, settled

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import Pool, Request, Response, Timeouts
from tidegate.upstream import http as http_module
from tidegate.upstream.connection import Connection


@pytest.fixture
async def pool(make: Make) -> AsyncIterator[Tried]:
    pool = make(timeouts=Timeouts(connect=2, head=2, read=2))
    yield pool
    await pool.close()


async def get(pool: Tried, url: str) -> bytes:
    return await (await pool.send(Request("GET", url))).read_all(1_000_000)


async def test_a_request_reaches_the_upstream_as_it_was_given(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        headers = [(b"X-B", b"2"), (b"x-a", b"1"), (b"Authorization", b"Bearer k")]
        response = await pool.send(Request("POST", server.url("/v1/x?a=%20b&c"), headers, b'{"a":1}'))
        assert response.status == 200
        if isinstance(response, Response):
            assert (response.reason, response.http_version) == (b"OK", "1.1")
        assert await response.read_all(10) == b"ok"
    got = server.requests[0]
    assert got.line == "POST /v1/x?a=%20b&c HTTP/1.1"
    assert got.headers == [
        ("Host", f"127.0.0.1:{server.port}"),
        ("X-B", "2"),
        ("x-a", "1"),
        ("Authorization", "Bearer k"),
        ("Content-Length", "7"),
    ]
    assert got.body == b'{"a":1}'


async def test_a_header_goes_out_as_its_bytes(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        await pool.send(Request("GET", server.url(), [(b"X-Utf-8", "é".encode()), (b"X-Latin-1", b"\xe9")]))
        assert server.requests[0].headers[1:] == [("X-Utf-8", "Ã©"), ("X-Latin-1", "é")]


async def test_a_header_in_utf_8_goes_out_as_its_bytes(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        await pool.send(Request("GET", server.url(), [(b"X", "é €".encode())]))
        assert server.requests[0]["x"].encode("latin-1") == "é €".encode()


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [("GET", None, None), ("GET", b"", None), ("POST", None, "0"), ("POST", b"", "0"), ("DELETE", b"x", "1")],
)
async def test_content_length_is_set_by_the_pool(
    pool: Tried, method: str, body: bytes | None, length: str | None
) -> None:
    async with Server(answers(OK)) as server:
        await (await pool.send(Request(method, server.url(), [], body))).read_all(10)
    assert server.requests[0].get("content-length") == length


async def test_response_headers_keep_order_case_and_repeats(pool: Tried) -> None:
    head = (
        b"HTTP/1.1 200 Fine, thanks\r\nX-b: 1\r\nSet-Cookie: a\r\nset-cookie: b\r\nEmpty:\r\nContent-Length: 0\r\n\r\n"
    )
    async with Server(answers(head)) as server:
        response = await pool.send(Request("GET", server.url()))
        if isinstance(response, Response):
            assert response.reason == b"Fine, thanks"
        assert response.headers == [
            (b"X-b", b"1"),
            (b"Set-Cookie", b"a"),
            (b"set-cookie", b"b"),
            (b"Empty", b""),
            (b"Content-Length", b"0"),
        ]


async def test_connections_are_used_again(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        for _ in range(5):
            assert await get(pool, server.url()) == b"ok"
        assert server.connections == 1
        assert (pool.counters.opened, pool.counters.reused, pool.counters.open_now) == (1, 4, 1)


async def test_the_newest_idle_connection_is_used_first(pool: Tried) -> None:
    ports: list[int] = []

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            ports.append(peer.writer.get_extra_info("peername")[1])
            await peer.send(OK)

    async with Server(script) as server:
        first, second = await asyncio.gather(*[pool.send(Request("GET", server.url())) for _ in range(2)])
        await first.read_all(10)
        await second.read_all(10)
        for _ in range(3):
            await get(pool, server.url())
        assert server.connections == 2
        assert len(set(ports[2:])) == 1


async def test_a_body_read_late_does_not_hold_the_connection(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        kept = await pool.send(Request("GET", server.url()))
        await asyncio.sleep(0.05)  # its end comes
        assert await get(pool, server.url()) == b"ok"
        assert await kept.read_all(10) == b"ok"
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"noise",
        OK + OK,
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=0\r\nContent-Length: 2\r\n\r\nok",
    ],
    ids=["close", "close in a list", "HTTP/1.0", "bytes after the end", "an answer too many", "keep-alive over"],
)
async def test_connections_that_are_not_used_again(pool: Tried, answer: bytes) -> None:
    async with Server(answers(answer)) as server:
        for _ in range(3):
            assert await get(pool, server.url()) == b"ok"
        assert server.connections == 3
        assert pool.counters.reused == 0


async def test_bytes_on_an_idle_connection_close_it(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.02)
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await peer.gone()

    async with Server(script) as server:
        await get(pool, server.url())
        await settled(lambda: pool.open_now == 0)
        assert await get(pool, server.url()) == b"ok"
        assert len(server.requests) == 2


async def test_bytes_on_an_idle_connection_are_not_taken_for_the_next_answer(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.02)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nfor you")
        await peer.gone()

    async with Server(script) as server:
        await get(pool, server.url())
        await asyncio.sleep(0.05)
        response = await pool.send(Request("POST", server.url(), [], b"x"))
        assert await response.read_all(10) == b"ok"
        assert (len(server.requests), server.connections) == (2, 2)


async def test_an_upstream_may_tell_how_long_it_keeps_a_connection(pool: Tried) -> None:
    async with Server(answers(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nok")) as server:
        for _ in range(2):
            assert await get(pool, server.url()) == b"ok"
        assert server.connections == 1


async def test_idle_connections_age_and_are_closed(make: Make) -> None:
    pool = make(timeouts=Timeouts(), idle_seconds=0.1)
    async with Server(answers(OK)) as server:
        await get(pool, server.url())
        assert pool.open_now == 1
        await settled(lambda: pool.open_now == 0 and server.open == 0)
    await pool.close()


# --- stale connections


async def stale_server(peer: Peer) -> None:
    """Answers one request a connection; then takes one more and closes without a word."""
    await peer.request()
    await peer.send(OK)
    if peer.server.connections == 1:
        await peer.request()


async def reset_server(peer: Peer) -> None:
    await peer.request()
    await peer.send(OK)
    if peer.server.connections == 1:
        await peer.head()
        peer.reset()


@pytest.mark.parametrize("script", [stale_server, reset_server], ids=["end of file", "reset"])
@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", b"x" * 10), ("POST", b"x" * 300_000)])
async def test_a_stale_connection_is_retried_once_on_a_new_one(
    pool: Tried, script: object, method: str, body: bytes | None
) -> None:
    async with Server(script) as server:  # type: ignore[arg-type]
        await get(pool, server.url())
        response = await pool.send(Request(method, server.url(), [], body))
        assert await response.read_all(10) == b"ok"
        assert server.connections == 2
        assert pool.counters.opened == 2
        answered = [r for r in server.requests if r.line.startswith(method)]
        assert answered[-1].body == (body or b"")


async def test_a_connection_closed_while_idle_costs_the_upstream_one_request_only(pool: Tried) -> None:
    async with Server(once(OK)) as server:
        await get(pool, server.url())
        # The close is on its way while the request is written: no other task runs in between.
        response = await pool.send(Request("POST", server.url(), [], b"pay"))
        assert await response.read_all(10) == b"ok"
        assert [r.body for r in server.requests] == [b"", b"pay"]


async def test_there_is_no_second_retry(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.server.connections == 1:
            await peer.send(OK)
            await peer.request()

    async with Server(script) as server:
        await get(pool, server.url())
        with pytest.raises(UpstreamError, match="without an answer"):
            await pool.send(Request("GET", server.url()))
        assert server.connections == 2
        assert len(server.requests) == 3
    assert pool.open_now == 0


async def test_the_retry_does_not_meet_another_stale_connection(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        first = await peer.request()
        await asyncio.sleep(0.02)
        await peer.send(OK)
        if first is not None and first.line.startswith("GET"):
            await peer.request()

    async with Server(script) as server:
        await asyncio.gather(*[get(pool, server.url()) for _ in range(3)])
        response = await pool.send(Request("POST", server.url(), [], b"x"))
        assert await response.read_all(10) == b"ok"
        assert server.connections == 4


async def test_a_new_connection_that_closes_is_not_retried(pool: Tried) -> None:
    async with Server(once(b"")) as server:
        with pytest.raises(UpstreamError, match="without an answer") as caught:
            await pool.send(Request("GET", server.url()))
        assert caught.value.status == 502
        assert server.connections == 1


async def test_a_post_is_not_repeated_once_the_answer_has_begun(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 200")

    async with Server(script) as server:
        await get(pool, server.url())
        with pytest.raises(UpstreamError, match="within the headers"):
            await pool.send(Request("POST", server.url(), [], b"x"))
        assert server.connections == 1


@pytest.mark.parametrize(("method", "connections"), [("POST", 1), ("PUT", 2)])
async def test_a_late_close_may_mean_the_post_was_at_work_so_only_idempotent_methods_are_repeated(
    pool: Tried, monkeypatch: pytest.MonkeyPatch, method: str, connections: int
) -> None:
    monkeypatch.setattr(http_module, "STALE_SECONDS", 0.05)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if peer.server.connections == 1:
            await peer.request()
            await asyncio.sleep(0.15)

    async with Server(script) as server:
        await get(pool, server.url())
        outcome = await asyncio.gather(pool.send(Request(method, server.url(), [], b"x")), return_exceptions=True)
        assert isinstance(outcome[0], UpstreamError) == (connections == 1)
        assert server.connections == connections


async def test_a_streamed_body_is_never_repeated(pool: Tried) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x"

    async with Server(stale_server) as server:
        await get(pool, server.url())
        with pytest.raises(UpstreamError):
            await pool.send(Request("POST", server.url(), [], body()))
        assert server.connections == 1


# --- limits and timeouts


async def test_a_full_host_makes_requests_wait_their_turn(make: Make) -> None:
    pool = make(timeouts=Timeouts(connect=2), max_per_host=3)
    async with Server(answers(OK)) as server:
        bodies = await asyncio.gather(*[get(pool, server.url()) for _ in range(50)])
        assert bodies == [b"ok"] * 50
        assert server.connections <= 3
    await pool.close()


async def test_a_turn_that_does_not_come_is_a_timeout_and_loses_no_place(make: Make) -> None:
    pool = make(timeouts=Timeouts(connect=0.1), max_per_host=1)
    async with Server(answers(CHUNKED, OK)) as server:
        held = await pool.send(Request("GET", server.url()))
        with pytest.raises(UpstreamError, match="All 1 connections") as caught:
            await get(pool, server.url())
        assert caught.value.status == 504
        waiting = asyncio.create_task(get(pool, server.url()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        waiting = asyncio.create_task(get(pool, server.url()))
        await asyncio.sleep(0.01)
        await held.close()
        assert await waiting == b"ok"
        assert await get(pool, server.url()) == b"ok"
        assert pool.open_now == 1
    await pool.close()


@pytest.mark.pure
async def test_a_connection_handed_to_a_request_that_is_cancelled_goes_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(timeouts=Timeouts(connect=1), max_per_host=1)
    doomed: list[asyncio.Task[bytes]] = []
    freed = pool._freed

    def freed_and_cancelled(connection: Connection) -> None:
        freed(connection)
        if doomed:
            doomed.pop().cancel()

    monkeypatch.setattr(pool, "_freed", freed_and_cancelled)

    async def script(peer: Peer) -> None:
        while await peer.request() is not None:
            await asyncio.sleep(0.02)
            await peer.send(OK)

    async with Server(script) as server:
        first = asyncio.create_task(get(pool, server.url()))
        await settled(lambda: len(server.requests) == 1)
        second = asyncio.create_task(get(pool, server.url()))
        await asyncio.sleep(0)
        doomed.append(second)
        third = asyncio.create_task(get(pool, server.url()))
        outcome = await asyncio.gather(first, second, third, return_exceptions=True)
        assert (outcome[0], outcome[2]) == (b"ok", b"ok")
        assert isinstance(outcome[1], asyncio.CancelledError)
        assert (server.connections, pool.open_now) == (1, 1)
    await pool.close()


async def test_silence_before_the_head_is_a_504(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with Server(script) as server:
        with pytest.raises(UpstreamError, match=r"did not begin its answer within 0\.1 seconds") as caught:
            await pool.send(Request("POST", server.url(), [], b"x"), Timeouts(head=0.1))
        assert caught.value.status == 504
        assert len(server.requests) == 1
        await settled(lambda: server.open == 0)


async def test_a_short_timeout_after_a_long_one_on_the_same_connection(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.gone()

    async with Server(script) as server:
        await (await pool.send(Request("GET", server.url()), Timeouts(head=600))).read_all(10)
        began = time.monotonic()
        with pytest.raises(UpstreamError):
            await pool.send(Request("GET", server.url()), Timeouts(head=0.1))
        assert time.monotonic() - began < 10


async def test_each_piece_of_a_body_has_its_own_time(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, *[b"1\r\nx\r\n"] * 6, pause=0.1)
        await peer.gone()

    async with Server(script) as server:
        response = await pool.send(Request("GET", server.url()), Timeouts(read=0.25))
        got = b""
        while len(got) < 6:
            got += await response.read()
        with pytest.raises(UpstreamError, match="sent nothing more") as caught:
            await response.read()
        assert caught.value.status == 504
        await settled(lambda: server.open == 0)


async def test_nobody_listens(pool: Tried) -> None:
    async with Server(answers(OK)) as server:
        url = server.url()
    with pytest.raises(UpstreamError, match="refused the connection") as caught:
        await get(pool, url)
    assert f"127.0.0.1:{server.port}" in str(caught.value)
    assert caught.value.status == 502
    assert pool.open_now == 0


async def test_no_such_host(pool: Tried) -> None:
    with pytest.raises(UpstreamError, match=r"no-such-host\.invalid:80 could not be found"):
        await get(pool, "http://no-such-host.invalid/v1")


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", [(b"X", b"1\r\nY: 2")]),
        ("GET", [(b"X\n", b"1")]),
        ("GET", [(b"X", b"\r1")]),
        ("GET", [(b"X", b"\0")]),
        ("GET / HTTP/1.1\r\nX:", []),
        ("CONNECT", []),
        ("", []),
    ],
)
async def test_no_second_request_can_be_smuggled_in(
    pool: Tried, method: str, headers: list[tuple[bytes, bytes]]
) -> None:
    async with Server(answers(OK)) as server:
        with pytest.raises(UpstreamError):
            await pool.send(Request(method, server.url(), headers))
        assert server.requests == []
        assert await get(pool, server.url()) == b"ok"


async def test_errors_never_tell_headers_or_bodies(pool: Tried) -> None:
    async with Server(once(b"HTTP/1.1 200 OK\r\nBad Header\x00secret: 1\r\n\r\n")) as server:
        request = Request("POST", server.url("/v1?key=secret"), [(b"Authorization", b"secret")], b"secret")
        with pytest.raises(UpstreamError) as caught:
            await pool.send(request)
        assert "secret" not in str(caught.value)
        assert "secret" not in repr(request)


# --- the end


async def test_closing_the_pool_closes_everything(pool: Tried) -> None:
    async with Server(answers(CHUNKED + b"1\r\nx\r\n", OK)) as server:
        streaming = await pool.send(Request("GET", server.url()))
        await get(pool, server.url())
        assert await streaming.read() == b"x"
        reading = asyncio.create_task(streaming.read())
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(UpstreamError, match="shutting down"):
            await reading
        with pytest.raises(UpstreamError, match="shutting down"):
            await get(pool, server.url())
        await settled(lambda: server.open == 0)
    assert pool.open_now == 0


async def test_500_concurrent_streams_and_none_is_lost(make: Make) -> None:
    async def script(peer: Peer) -> None:
        while (got := await peer.request()) is not None:
            await peer.send(CHUNKED)
            for n in range(10):
                event = b"data: %b %d\n\n" % (got.body, n)
                await peer.send(b"%x\r\n%b\r\n" % (len(event), event))
                await asyncio.sleep(0.01)
            await peer.send(b"0\r\n\r\n")

    pool = make(timeouts=Timeouts(connect=10, head=20, read=20))

    async def stream(n: int) -> bool:
        name = b"%d" % n
        response = await pool.send(Request("POST", server.url(), [], name))
        return await response.read_all(10_000) == b"".join(b"data: %b %d\n\n" % (name, k) for k in range(10))

    async with Server(script) as server:
        assert all(await asyncio.gather(*[stream(n) for n in range(500)]))
        assert pool.open_now <= 500
    await pool.close()


async def test_a_connection_keeps_nothing_of_what_was_sent_on_it(pool: Tried) -> None:
    body = b"".join([b"x"] * 100)

    async def sent() -> None:
        await (await pool.send(Request("POST", server.url(), [], body))).read_all(10)

    async with Server(answers(OK)) as server:
        before = sys.getrefcount(body)
        await asyncio.create_task(sent())
        gc.collect()
        assert sys.getrefcount(body) == before
        assert pool.open_now == 1
