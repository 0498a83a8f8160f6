"""A gateway on loopback answers this machine only: no page of another site reaches it through a browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from rawclient import Front, body, call, error_of, fronted, post

from tidegate.gateway.guard import Guard, is_loopback

LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "app.localhost"]
FOREIGN = [
    "0.0.0.0",
    "10.0.0.1",
    "::",
    "2001:db8::1",
    "example.com",
    "localhost.example.com",
    "127.0.0.1.example.com",
    "",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_names_of_this_machine(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_names_of_others(host):
    assert not is_loopback(host)


HOSTS = [
    ("127.0.0.1:8484", True),
    ("localhost", True),
    ("LOCALHOST:8484", True),
    ("[::1]:8484", True),
    ("[::1]", True),
    ("::1", True),
    ("gate.test:8484", True),
    ("Gate.Test", True),
    ("other.test:99", True),
    ("", True),
    ("evil.example:8484", False),
    ("[2001:db8::1]:8484", False),
    ("localhost.evil.example", False),
    ("127.0.0.1@evil.example", False),
    ("127.0.0.1.evil.example:80", False),
]


@pytest.mark.parametrize(("host", "passes"), HOSTS)
def test_the_host_header_names_this_machine_or_an_allowed_one(host, passes):
    guard = Guard("127.0.0.1", ["gate.test", "Other.test:8484"])
    assert (guard.refusal(host, "") == "") is passes


ORIGINS = [
    ("", True),
    ("http://localhost:3000", True),
    ("http://127.0.0.1", True),
    ("https://[::1]:8443", True),
    ("https://app.test", True),
    ("HTTPS://App.test/", True),
    ("https://app.test:444", False),
    ("https://evil.example", False),
    ("https://localhost.evil.example", False),
    ("null", False),
    ("http://", False),
    ("http://[broken", False),
    ("chrome-extension://abcdef", False),
    ("file://", False),
]


@pytest.mark.parametrize(("origin", "passes"), ORIGINS)
def test_the_origin_is_this_machine_or_an_allowed_one(origin, passes):
    guard = Guard("::1", origins=["https://app.test/"])
    assert (guard.refusal("localhost", origin) == "") is passes


def test_null_passes_where_it_is_allowed():
    assert Guard("127.0.0.1", origins=["null"]).refusal("localhost", "null") == ""


def test_a_gateway_for_other_machines_asks_nobody():
    assert Guard("0.0.0.0").refusal("gate.example", "https://anywhere.example") == ""


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with fronted(toml='[server]\nallowed_hosts = ["gate.test"]\nallowed_origins = ["https://app.test"]\n') as running:
        yield running


FOREIGNERS = [("Host", "evil.example"), ("Origin", "https://evil.example"), ("Origin", "null")]


@pytest.mark.parametrize("header", FOREIGNERS, ids=str)
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/messages"), ("GET", "/v1/models"), ("GET", "/livez"), ("OPTIONS", "/v1/responses")],
)
def test_a_foreign_request_is_refused_before_anything_is_done(front, header, method, path):
    front.upstream.reset()
    got = call(front.base, method, path, [header])
    message, kind = error_of("messages" if path == "/v1/messages" else "chat", got)
    assert (got.status, kind) == (403, "permission_error")
    assert "server.allowed_" in message
    assert front.upstream.seen == []


@pytest.mark.parametrize(
    "header", [("Host", "gate.test:80"), ("Origin", "https://app.test"), ("Host", "[::1]:1")], ids=str
)
def test_an_allowed_one_passes(front, header):
    assert post(front.base, "/v1/messages", body("messages"), header).status == 200


def test_a_gateway_on_ipv6_loopback_is_guarded_too():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with fronted(host="::1") as front:
        assert front.base.startswith("http://[::1]:")
        assert call(front.base, "GET", "/livez").status == 200
        assert call(front.base, "GET", "/livez", [("Host", "[2001:db8::1]")]).status == 403
        assert post(front.base, "/v1/messages", body("messages"), ("Origin", front.base)).status == 200
