"""TLS, and the way through a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from authority import Authority
from clients import Make, Tried
from faulty_server import CHUNKED, OK, Peer, Script, Server, answers, once, settled

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import Request, Response, Timeouts
from tidegate.upstream.proxy import Proxies, from_environ

SHORT = Timeouts(connect=2, head=2, read=2)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def pool(make: Make, authority: Authority) -> AsyncIterator[Tried]:
    pool = make(timeouts=SHORT, ca_file=authority.file)
    yield pool
    await pool.close()


async def get(pool: Tried, url: str) -> bytes:
    return await (await pool.send(Request("GET", url))).read_all(10_000_000)


# --- TLS


async def test_https_with_an_own_authority_server_name_and_http_1_1_only(pool: Tried, authority: Authority) -> None:
    seen: list[object] = []

    async def script(peer: Peer) -> None:
        tls = peer.writer.get_extra_info("ssl_object")
        seen.append(tls.selected_alpn_protocol())
        await answers(OK)(peer)

    context = authority.server("localhost")
    context.sni_callback = lambda _sock, name, _context: seen.append(name)  # type: ignore[assignment]
    async with Server(script, context) as server:
        assert await get(pool, server.url(host="localhost")) == b"ok"
        assert await get(pool, server.url(host="localhost")) == b"ok"
        assert server.connections == 1
        assert seen == ["localhost", "http/1.1"]
        assert server.requests[0]["host"] == f"localhost:{server.port}"


async def test_an_unknown_authority_is_refused(make: Make, authority: Authority) -> None:
    pool = make(timeouts=SHORT)
    async with Server(answers(OK), authority.server("127.0.0.1")) as server:
        with pytest.raises(UpstreamError, match=r"certificate of 127\.0\.0\.1:\d+ was not accepted.*ca_file") as caught:
            await get(pool, server.url())
        assert caught.value.status == 502
        assert server.requests == []
        assert pool.open_now == 0


async def test_a_certificate_for_another_host_is_refused(pool: Tried, authority: Authority) -> None:
    async with Server(answers(OK), authority.server("other.example")) as server:
        with pytest.raises(UpstreamError, match="was not accepted"):
            await get(pool, server.url())
        assert server.requests == []


async def test_ssl_cert_file_is_honoured(make: Make, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    pool = make(timeouts=SHORT)
    async with Server(answers(OK), authority.server("127.0.0.1")) as server:
        assert await get(pool, server.url()) == b"ok"
        await pool.close()


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_bad_ca_file_is_told_at_start(make: Make, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=r"ca\.pem can't be used"):
        make(ca_file=str(file))


async def test_https_to_a_plain_port(pool: Tried) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read(100)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with Server(script) as server:
        with pytest.raises(UpstreamError, match="speaks https"):
            await get(pool, server.url().replace("http:", "https:"))
    assert pool.open_now == 0


async def test_http_to_a_tls_port(pool: Tried, authority: Authority) -> None:
    async with Server(answers(OK), authority.server("127.0.0.1")) as server:
        with pytest.raises(UpstreamError):
            await get(pool, server.url().replace("https:", "http:"))
    assert pool.open_now == 0


async def test_a_handshake_that_hangs_is_a_504(make: Make, authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.gone()

    pool = make(timeouts=Timeouts(connect=0.2), ca_file=authority.file)
    async with Server(script) as server:
        with pytest.raises(UpstreamError, match=r"within 0\.2 seconds") as caught:
            await get(pool, server.url().replace("http:", "https:"))
        assert caught.value.status == 504
        await settled(lambda: server.open == 0)
    assert pool.open_now == 0


async def test_cancelling_a_handshake_leaks_nothing(make: Make, authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.gone()

    pool = make(timeouts=SHORT, ca_file=authority.file, max_per_host=1)
    async with Server(script) as server:
        for _ in range(3):
            task = asyncio.create_task(get(pool, server.url().replace("http:", "https:")))
            await settled(lambda: server.open == 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert pool.open_now == 0
            await settled(lambda: server.open == 0)


async def test_a_stale_tls_connection_is_retried(pool: Tried, authority: Authority) -> None:
    async with Server(once(OK), authority.server("127.0.0.1")) as server:
        await get(pool, server.url())
        response = await pool.send(Request("POST", server.url(), [], b"pay"))
        assert await response.read_all(10) == b"ok"
        assert [r.body for r in server.requests] == [b"", b"pay"]


@pytest.mark.parametrize("length", [b"Content-Length: 8000000\r\n", b""], ids=["length", "until close"])
async def test_a_slow_reader_over_tls_gets_everything(pool: Tried, authority: Authority, length: bytes) -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n%b\r\n" % length)
        for _ in range(125):
            await peer.send(b"x" * 64_000)
            sent += 1

    async with Server(script, authority.server("127.0.0.1")) as server:
        response = await pool.send(Request("GET", server.url()))
        await asyncio.sleep(0.3)
        if isinstance(response, Response):
            assert response._size <= 1024 * 1024
        got = 0
        while piece := await response.read():
            got += len(piece)
            await asyncio.sleep(0.001)
        assert got == 8_000_000


async def test_a_cut_over_tls_is_seen(pool: Tried, authority: Authority) -> None:
    async with Server(once(CHUNKED + b"5\r\nhello\r\n"), authority.server("127.0.0.1")) as server:
        response = await pool.send(Request("GET", server.url()))
        assert await response.read() == b"hello"
        with pytest.raises(UpstreamError, match="in the middle"):
            await response.read()


# --- proxies


def tunnel_to(upstream: Server, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> Script:
    """A proxy: CONNECT opens a tunnel to `upstream`, whatever host was asked for."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        if answer.split()[1] != b"200":
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
        await asyncio.gather(pump(peer.reader, writer), pump(reader, peer.writer))

    return script


def proxied(make: Make, proxy: Server, authority: Authority, credential: str = "") -> Tried:
    url = f"http://{credential}127.0.0.1:{proxy.port}"
    proxies = from_environ({"HTTPS_PROXY": url, "HTTP_PROXY": url})
    return make(timeouts=SHORT, ca_file=authority.file, proxies=proxies)


async def test_a_proxy_may_answer_in_http_1_0(make: Make, authority: Authority) -> None:
    established = b"HTTP/1.0 200 Connection established\r\nConnection: close\r\n\r\n"
    async with (
        Server(answers(OK), authority.server("api.example")) as upstream,
        Server(tunnel_to(upstream, established)) as proxy,
    ):
        pool = proxied(make, proxy, authority)
        assert await get(pool, "https://api.example/v1") == b"ok"
        await pool.close()


async def test_https_goes_through_a_tunnel_and_the_tunnel_is_kept(make: Make, authority: Authority) -> None:
    async with (
        Server(answers(OK), authority.server("api.example")) as upstream,
        Server(tunnel_to(upstream)) as proxy,
    ):
        pool = proxied(make, proxy, authority, "me:p%40ss@")
        for _ in range(3):
            response = await pool.send(Request("POST", "https://api.example/v1", [(b"X", b"1")], b"secret"))
            assert await response.read_all(10) == b"ok"
        assert (proxy.connections, upstream.connections) == (1, 1)
        assert proxy.requests[0].line == "CONNECT api.example:443 HTTP/1.1"
        assert proxy.requests[0]["proxy-authorization"] == "Basic bWU6cEBzcw=="
        assert upstream.requests[0].line == "POST /v1 HTTP/1.1"
        assert upstream.requests[0]["host"] == "api.example"
        assert "proxy-authorization" not in upstream.requests[0]
        await pool.close()
        await settled(lambda: upstream.open == 0 and proxy.open == 0)


async def test_a_tunnel_is_asked_for_with_host_and_port_and_nothing_else(make: Make, authority: Authority) -> None:
    async with Server(once(b"")) as proxy:
        pool = proxied(make, proxy, authority)
        with pytest.raises(UpstreamError):
            await get(pool, "https://api.example/v1")
        assert proxy.requests[0].headers == [("Host", "api.example:443")]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 407 Auth\r\nContent-Length: 3\r\n\r\nno!", "user name and password"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "status 403"),
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\n\r\nnoise", "TLS|closed"),
    ],
)
async def test_a_proxy_that_refuses(make: Make, authority: Authority, answer: bytes, told: str) -> None:
    async with Server(once(answer)) as proxy:
        pool = proxied(make, proxy, authority)
        with pytest.raises(UpstreamError, match=told) as caught:
            await get(pool, "https://api.example/v1")
        assert f"proxy 127.0.0.1:{proxy.port}" in str(caught.value)
        assert pool.open_now == 0


async def test_a_proxy_that_hangs_is_a_504(make: Make, authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.gone()

    async with Server(script) as proxy:
        pool = proxied(make, proxy, authority)
        with pytest.raises(UpstreamError, match="through the proxy") as caught:
            await pool.send(Request("GET", "https://api.example/"), Timeouts(connect=0.1))
        assert caught.value.status == 504
        await settled(lambda: proxy.open == 0)
    assert pool.open_now == 0


async def test_http_goes_to_the_proxy_with_the_whole_url(make: Make, authority: Authority) -> None:
    async with Server(answers(OK)) as proxy:
        pool = proxied(make, proxy, authority, "me:pw@")
        for _ in range(2):
            assert await get(pool, "http://api.example:8000/v1?a=b") == b"ok"
        assert proxy.connections == 1
        assert proxy.requests[0].line == "GET http://api.example:8000/v1?a=b HTTP/1.1"
        assert proxy.requests[0]["host"] == "api.example:8000"
        assert proxy.requests[0]["proxy-authorization"] == "Basic bWU6cHc="
        await pool.close()


async def test_loopback_is_never_proxied(make: Make, authority: Authority) -> None:
    async with Server(answers(OK)) as server, Server(answers(OK)) as proxy:
        pool = proxied(make, proxy, authority)
        assert await get(pool, server.url()) == b"ok"
        assert proxy.connections == 0
        await pool.close()


HTTP = {"HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://p:2"}


@pytest.mark.parametrize(
    ("environ", "scheme", "host", "port"),
    [
        ({}, "https", "api.example", None),
        (HTTP, "https", "api.example", 2),
        (HTTP, "http", "api.example", 1),
        ({"HTTPS_PROXY": "http://p:2"}, "http", "api.example", None),
        ({"HTTPS_PROXY": "p:2"}, "https", "api.example", 2),
        ({"HTTPS_PROXY": "http://p"}, "https", "api.example", 80),
        ({"HTTPS_PROXY": " "}, "https", "api.example", None),
        ({**HTTP, "https_proxy": "http://lower:3"}, "https", "api.example", 3),
        ({**HTTP, "REQUEST_METHOD": "GET"}, "http", "api.example", None),
        ({**HTTP, "REQUEST_METHOD": "GET"}, "https", "api.example", 2),
        *[(HTTP, "http", host, None) for host in ("localhost", "a.localhost", "127.9.9.9", "::1", "::ffff:127.0.0.1")],
        ({**HTTP, "NO_PROXY": "*"}, "https", "api.example", None),
        ({**HTTP, "NO_PROXY": "other, api.example"}, "https", "api.example", None),
        ({**HTTP, "no_proxy": "example"}, "https", "api.example", None),
        ({**HTTP, "NO_PROXY": ".example"}, "https", "api.example", None),
        ({**HTTP, "NO_PROXY": "*.EXAMPLE"}, "https", "api.example", None),
        ({**HTTP, "NO_PROXY": "ample"}, "https", "api.example", 2),
        ({**HTTP, "NO_PROXY": "api.example.org"}, "https", "api.example", 2),
        ({**HTTP, "NO_PROXY": "api.example:443"}, "https", "api.example", None),
        ({**HTTP, "NO_PROXY": "api.example:444"}, "https", "api.example", 2),
        ({**HTTP, "NO_PROXY": "10.0.0.0/8"}, "https", "10.1.2.3", None),
        ({**HTTP, "NO_PROXY": "10.0.0.0/8"}, "https", "11.1.2.3", 2),
        ({**HTTP, "NO_PROXY": "10.1.2.3:443"}, "https", "10.1.2.3", None),
        ({**HTTP, "NO_PROXY": "fd00::/8"}, "https", "fd00::1", None),
        ({**HTTP, "NO_PROXY": "[fd00::1]:443"}, "https", "fd00::1", None),
        ({**HTTP, "NO_PROXY": "10.0.0.0/8"}, "https", "fd00::1", 2),
        ({**HTTP, "NO_PROXY": ","}, "https", "api.example", 2),
    ],
)
def test_which_proxy(environ: dict[str, str], scheme: str, host: str, port: int | None) -> None:
    chosen = from_environ(environ).choose(scheme, host, 443)
    assert (chosen.port if chosen else None) == port


@pytest.mark.parametrize("value", ["socks5://u:secret@p:1", "https://u:secret@p:1", "http://u:secret@p:x", "http://"])
def test_a_proxy_of_another_kind_is_told_by_its_variable_only(value: str) -> None:
    with pytest.raises(UpstreamError, match="HTTPS_PROXY must be an http:// proxy") as caught:
        from_environ({"HTTPS_PROXY": value})
    assert "secret" not in str(caught.value)


def test_a_proxys_password_is_not_shown() -> None:
    proxies = from_environ({"HTTPS_PROXY": "http://me:secret@p:1"})
    assert "secret" not in repr(proxies)
    assert isinstance(proxies, Proxies)
