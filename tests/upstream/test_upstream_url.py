"""How an API root and a path make a URL, and how a URL is taken apart."""

from __future__ import annotations

import pytest

from tidegate.engine.effects import UpstreamError
from tidegate.upstream.http import stopped
from tidegate.upstream.url import join, parse


@pytest.mark.parametrize(
    ("root", "path", "query", "url"),
    [
        ("https://api.example/v1", "/chat/completions", b"", "https://api.example/v1/chat/completions"),
        ("https://api.example/v1", "/v1/chat/completions", b"", "https://api.example/v1/chat/completions"),
        ("https://api.example", "/v1/chat/completions", b"", "https://api.example/v1/chat/completions"),
        ("https://api.example/", "/v1/models", b"", "https://api.example/v1/models"),
        ("https://api.example/v1/", "v1/models", b"", "https://api.example/v1/models"),
        ("https://api.example/api/paas/v4", "/v1/models", b"", "https://api.example/api/paas/v4/models"),
        ("https://api.example/v1beta", "/v1/models", b"", "https://api.example/v1beta/models"),
        ("https://api.example/v1beta/openai", "/models", b"", "https://api.example/v1beta/openai/models"),
        ("https://api.example/vault", "/v1/models", b"", "https://api.example/vault/v1/models"),
        ("http://v1:8000", "/v1/models", b"", "http://v1:8000/v1/models"),
        ("https://api.example/v1", "", b"", "https://api.example/v1"),
        ("https://api.example/v1", "/v1", b"", "https://api.example/v1"),
        ("https://api.example/v1", "/a", b"beta=true&x=%2F", "https://api.example/v1/a?beta=true&x=%2F"),
        ("https://api.example/v1?api-version=2", "/a", b"x=1", "https://api.example/v1/a?api-version=2&x=1"),
        ("https://api.example", "/files/a%2Fb", b"", "https://api.example/files/a%2Fb"),
        ("https://api.example", "/a b?c#d", b"", "https://api.example/a%20b%3Fc%23d"),
    ],
)
def test_join(root: str, path: str, query: bytes, url: str) -> None:
    assert join(root, path, query) == url


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "authority", "path"),
    [
        ("http://h", "http", "h", 80, b"h", b"/"),
        ("http://h:80/a", "http", "h", 80, b"h", b"/a"),
        ("https://H.Example:8443/a?b=c%20d#e", "https", "h.example", 8443, b"h.example:8443", b"/a?b=c%20d"),
        ("https://h:80/", "https", "h", 80, b"h:80", b"/"),
        ("http://[::1]:9/x", "http", "::1", 9, b"[::1]:9", b"/x"),
        ("http://bücher.example/ü?ü", "http", "xn--bcher-kva.example", 80, b"xn--bcher-kva.example", b"/%C3%BC?%C3%BC"),
        ("http://h?x=1", "http", "h", 80, b"h", b"/?x=1"),
    ],
)
def test_parse(url: str, scheme: str, host: str, port: int, authority: bytes, path: bytes) -> None:
    got = parse(url)
    assert (got.scheme, got.host, got.port, got.authority, got.path) == (scheme, host, port, authority, path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.example/v1?key=secret",
        "ftp://h/secret",
        "http:///secret",
        "http://h:99999/secret",
        "http://h:x/secret",
        "http://me:secret@h/",
        "http://h/a b secret",
        "http://h/secret\r\nX: 1",
        "http://h/\nsecret",
        "http://[::1/secret",
        "//h/secret",
    ],
)
def test_what_is_no_url_is_told_without_showing_it(url: str) -> None:
    with pytest.raises(UpstreamError, match=r"upstream's URL|host name") as caught:
        parse(url)
    assert "secret" not in str(caught.value)


def test_hop_by_hop_headers_stop_here() -> None:
    headers = [
        (b"Content-Type", b"a"),
        (b"connection", b"X-Mine, close"),
        (b"x-mine", b"1"),
        (b"Connection", b"x-other"),
        (b"X-Other", b"2"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Proxy-Authenticate", b"x"),
        (b"Proxy-Authorization", b"x"),
        (b"TE", b"trailers"),
        (b"Trailer", b"x"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"h2c"),
        (b"X-Ours", b"b"),
        (b"x-ours", b"c"),
    ]
    lowered = [(name.lower(), value) for name, value in headers]
    names = stopped(lowered)
    assert [name for name, _ in lowered if name not in names] == [b"content-type", b"x-ours", b"x-ours"]
