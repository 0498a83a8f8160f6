"""The blocking pool keeps the rules of the other one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterator

import pytest
from authority import Authority
from faulty_server import CHUNKED, OK, Peer, Script, Server, answers, in_a_thread, once, settle

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import Request, Timeouts
from tidegate.upstream import http as http_module
from tidegate.upstream.proxy import from_environ
from tidegate.upstream.sync import SyncPool, SyncResponse

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
SHORT = Timeouts(connect=2, head=2, read=2)


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    pool = SyncPool(timeouts=SHORT)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def read(response: SyncResponse) -> bytes:
    return b"".join(iter(response.read, b""))


def get(pool: SyncPool, url: str) -> bytes:
    return read(pool.send(Request("GET", url)))


def test_a_request_and_its_answer(pool: SyncPool) -> None:
    with in_a_thread(answers(OK)) as server:
        response = pool.send(Request("POST", server.url("/v1?a=b"), [(b"X-a", b"1")], b"body"))
        assert (response.status, response.reason, response.http_version) == (200, b"OK", "1.1")
        assert response.headers == [(b"Content-Length", b"2")]
        assert response.read_all(2) == b"ok"
        got = server.requests[0]
        assert got.line == "POST /v1?a=b HTTP/1.1"
        assert got.headers == [("Host", f"127.0.0.1:{server.port}"), ("X-a", "1"), ("Content-Length", "4")]
        assert got.body == b"body"
        get(pool, server.url())
        assert server.connections == 1
        assert (pool.counters.opened, pool.counters.reused, pool.counters.open_now) == (1, 1, 1)


@pytest.mark.parametrize(
    ("method", "answer", "body", "kept"),
    [
        ("GET", LENGTH % 5 + b"hello", b"hello", True),
        ("GET", CHUNKED + b"5\r\nhello\r\n0\r\nTrailer: x\r\n\r\n", b"hello", True),
        ("GET", b"HTTP/1.1 103 Early\r\n\r\n" + OK, b"ok", True),
        ("GET", b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", b"", True),
        ("GET", b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", b"", True),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"", True),
        ("GET", OK + b"noise", b"ok", False),
        ("GET", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        ("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
    ],
)
def test_where_an_answer_ends(pool: SyncPool, method: str, answer: bytes, body: bytes, kept: bool) -> None:
    with in_a_thread(answers(answer)) as server:
        for _ in range(2):
            assert read(pool.send(Request(method, server.url()))) == body
        assert server.connections == (1 if kept else 2)
        assert pool.counters.open_now == (1 if kept else 0)


def test_a_body_without_a_length_ends_with_the_connection(pool: SyncPool) -> None:
    with in_a_thread(once(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as server:
        assert get(pool, server.url()) == b"all of it"
    assert pool.counters.open_now == 0


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("answer", [LENGTH % 10 + b"hello", CHUNKED + b"5\r\nhello\r\n"])
def test_a_cut_body_is_delivered_and_then_an_error(pool: SyncPool, answer: bytes, reset: bool) -> None:
    with in_a_thread(once(answer, reset=reset)) as server:
        response = pool.send(Request("GET", server.url()))
        assert response.read() == b"hello"
        with pytest.raises(UpstreamError, match="in the middle"):
            response.read()
    assert pool.counters.open_now == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBig: " + b"x" * 100_000,
    ],
)
def test_a_broken_answer_is_an_error(pool: SyncPool, answer: bytes) -> None:
    with in_a_thread(answers(answer)) as server:
        with pytest.raises(UpstreamError) as caught:
            pool.send(Request("GET", server.url()))
        assert caught.value.status == 502
        settle(lambda: server.open == 0)
    assert pool.counters.open_now == 0


def test_read_all_has_a_limit(pool: SyncPool) -> None:
    with in_a_thread(answers(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", LENGTH % 10**12)) as server:
        with pytest.raises(UpstreamError, match="longer than 4 bytes"):
            pool.send(Request("GET", server.url())).read_all(4)
        with pytest.raises(UpstreamError, match="longer than 4 bytes"):
            pool.send(Request("GET", server.url())).read_all(4)
        settle(lambda: server.open == 0 or pool.counters.open_now <= 1)


def test_pieces_arrive_when_they_are_sent(pool: SyncPool) -> None:
    asked = threading.Semaphore(0)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(5):
            await asyncio.get_running_loop().run_in_executor(None, asked.acquire)
            await peer.send(b"3\r\nabc\r\n")
        await peer.send(b"0\r\n\r\n")

    with in_a_thread(script) as server:
        response = pool.send(Request("GET", server.url()))
        for _ in range(5):
            asked.release()
            assert response.read() == b"abc"
        assert response.read() == b""


# --- stale connections


async def stale(peer: Peer) -> None:
    await peer.request()
    await peer.send(OK)
    if peer.server.connections == 1:
        await peer.request()


async def reset(peer: Peer) -> None:
    await peer.request()
    await peer.send(OK)
    if peer.server.connections == 1:
        await peer.head()
        peer.reset()


@pytest.mark.parametrize("script", [stale, reset])
@pytest.mark.parametrize("body", [None, b"x" * 10, b"x" * 3_000_000])
def test_a_stale_connection_is_retried_once(pool: SyncPool, script: Script, body: bytes | None) -> None:
    with in_a_thread(script) as server:
        get(pool, server.url())
        response = pool.send(Request("POST", server.url(), [], body))
        assert read(response) == b"ok"
        assert server.connections == 2
        assert server.requests[-1].body == (body or b"")


def test_a_connection_closed_while_idle_costs_one_request_only(pool: SyncPool) -> None:
    with in_a_thread(once(OK)) as server:
        get(pool, server.url())
        settle(lambda: server.open == 0)
        assert read(pool.send(Request("POST", server.url(), [], b"pay"))) == b"ok"
        assert [r.body for r in server.requests] == [b"", b"pay"]
        assert pool.counters.opened == 2


@pytest.mark.parametrize(("method", "connections"), [("POST", 1), ("PUT", 2)])
def test_a_late_close_is_not_taken_for_a_stale_connection(
    pool: SyncPool, monkeypatch: pytest.MonkeyPatch, method: str, connections: int
) -> None:
    monkeypatch.setattr(http_module, "STALE_SECONDS", 0.05)

    async def script(peer: Peer) -> None:
        await stale(peer)
        await asyncio.sleep(0.15)

    with in_a_thread(script) as server:
        get(pool, server.url())
        if connections == 1:
            with pytest.raises(UpstreamError, match="without an answer"):
                pool.send(Request(method, server.url(), [], b"x"))
        else:
            assert read(pool.send(Request(method, server.url(), [], b"x"))) == b"ok"
        assert server.connections == connections


def test_a_new_connection_and_a_streamed_body_are_not_retried(pool: SyncPool) -> None:
    with in_a_thread(once(b"")) as server:
        with pytest.raises(UpstreamError, match="without an answer"):
            get(pool, server.url())
        assert server.connections == 1
    with in_a_thread(stale) as server:
        get(pool, server.url())
        with pytest.raises(UpstreamError, match="without an answer"):
            pool.send(Request("POST", server.url(), [], iter([b"x"])))
        assert server.connections == 1


def test_noise_on_an_idle_connection_is_never_an_answer(pool: SyncPool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.02)
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await peer.gone()

    with in_a_thread(script) as server:
        get(pool, server.url())
        time.sleep(0.1)
        assert get(pool, server.url()) == b"ok"


def test_old_idle_connections_are_not_used() -> None:
    pool = SyncPool(timeouts=SHORT, idle_seconds=0.05)
    with in_a_thread(answers(OK)) as server:
        get(pool, server.url())
        time.sleep(0.1)
        get(pool, server.url())
        assert server.connections == 2
        assert pool.counters.open_now == 1
        pool.close()
        assert pool.counters.open_now == 0
        with pytest.raises(UpstreamError, match="shutting down"):
            get(pool, server.url())


# --- the request's body


def test_a_streamed_body_is_chunked_or_has_its_length(pool: SyncPool) -> None:
    with in_a_thread(answers(OK)) as server:
        read(pool.send(Request("POST", server.url(), [], iter([b"ab", b"", b"c"]))))
        read(pool.send(Request("POST", server.url(), [], [b"ab", b"", b"c"], 3)))
        assert [r.body for r in server.requests] == [b"abc", b"abc"]
        assert server.requests[0]["transfer-encoding"] == "chunked"
        assert server.requests[1]["content-length"] == "3"
        assert server.connections == 1


@pytest.mark.parametrize(("length", "fault"), [(2, "longer than"), (4, "ended before")])
def test_a_streamed_body_must_keep_its_word(pool: SyncPool, length: int, fault: str) -> None:
    with in_a_thread(answers(OK)) as server:
        with pytest.raises(UpstreamError, match=fault):
            pool.send(Request("POST", server.url(), [], [b"abc"], length))
        assert server.requests == []
    assert pool.counters.open_now == 0


def test_an_asynchronous_body_is_refused(pool: SyncPool) -> None:
    class Body:
        def __aiter__(self) -> Body:
            return self

        async def __anext__(self) -> bytes:
            raise StopAsyncIteration

    with in_a_thread(answers(OK)) as server, pytest.raises(TypeError, match="blocking"):
        pool.send(Request("POST", server.url(), [], Body()))
    assert pool.counters.open_now == 0


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refusal_before_the_whole_body_was_sent_is_delivered(pool: SyncPool, streamed: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await asyncio.sleep(2)

    with in_a_thread(script) as server:
        body = iter([b"x" * 1_000_000] * 40) if streamed else b"x" * 40_000_000
        response = pool.send(Request("POST", server.url(), [], body))
        assert (response.status, read(response)) == (413, b"big")
    assert pool.counters.open_now == 0


# --- time


@pytest.mark.parametrize(
    ("first", "body", "timeouts", "told"),
    [
        (b"", b"x", Timeouts(head=0.1), r"did not begin its answer within 0\.1"),
        (CHUNKED, b"x", Timeouts(read=0.1), r"sent nothing more of its answer within 0\.1"),
        (None, b"x" * 40_000_000, Timeouts(read=0.2), "took nothing more"),
    ],
)
def test_silence_is_a_504(pool: SyncPool, first: bytes | None, body: bytes, timeouts: Timeouts, told: str) -> None:
    async def script(peer: Peer) -> None:
        if first is None:
            await asyncio.sleep(3)
        await peer.request()
        await peer.send(first or b"")
        await peer.gone()

    with in_a_thread(script) as server:
        with pytest.raises(UpstreamError, match=told) as caught:
            read(pool.send(Request("POST", server.url(), [], body), timeouts))
        assert caught.value.status == 504
    assert pool.counters.open_now == 0


def test_nobody_listens(pool: SyncPool) -> None:
    with in_a_thread(answers(OK)) as server:
        url = server.url()
    with pytest.raises(UpstreamError, match="refused the connection"):
        get(pool, url)


def test_closing_an_unfinished_answer_cancels_the_upstream(pool: SyncPool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, b"3\r\nabc\r\n")
        await peer.gone()

    with in_a_thread(script) as server:
        response = pool.send(Request("GET", server.url()))
        response.close()
        response.close()
        with pytest.raises(UpstreamError):
            response.read()
        settle(lambda: server.open == 0)
    assert pool.counters.open_now == 0


# --- TLS, proxies, threads


def test_tls(authority: Authority) -> None:
    pool = SyncPool(timeouts=SHORT, ca_file=authority.file)
    with in_a_thread(answers(LENGTH % 3_000_000 + b"x" * 3_000_000), authority.server("localhost")) as server:
        for _ in range(3):
            response = pool.send(Request("POST", server.url(host="localhost"), [], b"y" * 3_000_000))
            assert len(read(response)) == 3_000_000
        assert server.connections == 1
        assert len(server.requests[-1].body) == 3_000_000
        with pytest.raises(UpstreamError, match="was not accepted"):
            SyncPool(timeouts=SHORT).send(Request("GET", server.url(host="localhost")))
    with in_a_thread(once(CHUNKED + b"5\r\nhello\r\n"), authority.server("localhost")) as server:
        response = pool.send(Request("GET", server.url(host="localhost")))
        assert response.read() == b"hello"
        with pytest.raises(UpstreamError, match="in the middle"):
            response.read()
    pool.close()
    assert pool.counters.open_now == 0


def tunnel(upstream: Server) -> Script:
    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
        await asyncio.gather(pump(peer.reader, writer), pump(reader, peer.writer))

    return script


def test_through_a_proxy(authority: Authority) -> None:
    with (
        in_a_thread(answers(OK), authority.server("api.example")) as upstream,
        in_a_thread(tunnel(upstream)) as proxy,
        in_a_thread(answers(OK)) as plain,
    ):
        proxies = from_environ(
            {"HTTPS_PROXY": f"http://me:pw@127.0.0.1:{proxy.port}", "HTTP_PROXY": f"http://127.0.0.1:{plain.port}"}
        )
        pool = SyncPool(timeouts=SHORT, ca_file=authority.file, proxies=proxies)
        for _ in range(2):
            assert get(pool, "https://api.example/v1") == b"ok"
            assert get(pool, "http://api.example/v1") == b"ok"
        assert (proxy.connections, upstream.connections, plain.connections) == (1, 1, 1)
        assert proxy.requests[0].line == "CONNECT api.example:443 HTTP/1.1"
        assert proxy.requests[0]["proxy-authorization"] == "Basic bWU6cHc="
        assert "proxy-authorization" not in upstream.requests[0]
        assert plain.requests[0].line == "GET http://api.example/v1 HTTP/1.1"
        pool.close()


def test_a_proxy_that_refuses() -> None:
    with in_a_thread(once(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")) as proxy:
        proxies = from_environ({"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"})
        with pytest.raises(UpstreamError, match="user name and password"):
            SyncPool(timeouts=SHORT, proxies=proxies).send(Request("GET", "https://api.example/"))


def test_threads_share_the_pool_and_never_an_answer(pool: SyncPool) -> None:
    async def script(peer: Peer) -> None:
        while (got := await peer.request()) is not None:
            await peer.send(CHUNKED, b"%x\r\n%b\r\n" % (len(got.body), got.body), b"0\r\n\r\n")

    with in_a_thread(script) as server, concurrent.futures.ThreadPoolExecutor(8) as threads:
        texts = [b"%d" % n for n in range(200)]
        got = threads.map(lambda text: read(pool.send(Request("POST", server.url(), [], text))), texts)
        assert list(got) == texts
        assert server.connections <= 8
