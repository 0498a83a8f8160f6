"""An answer of the gateway's own says that it is one: why, when, and no action; the log names provider and model."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

import pytest
from rawclient import JSON, PATHS, Front, body, call, fronted, post
from rawserver import HOLD
from running import settings

from tidegate.gateway.server import serving


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with fronted(toml="[server]\nbody_limit_bytes = 2000\n", upstream__read_timeout=0.3) as found:
        yield found


@pytest.fixture(scope="module")
def many() -> Iterator[str]:
    """A gateway for many providers."""
    with serving(settings()) as (base, _):
        yield base


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "tidegate.access")
    return caplog


def line(log: pytest.LogCaptureFixture) -> str:
    """The one line of the access log, which comes after the answer."""
    deadline = time.monotonic() + 5
    while not log.messages:
        assert time.monotonic() < deadline, "nothing was logged"
        time.sleep(0.005)
    (only,) = log.messages
    return only


UPGRADE = [("Upgrade", "websocket"), ("Connection", "Upgrade")]
LONG = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 3000 + b'"}]}'
OWN = [
    ("GET", "/livez", [], None, 200, "health_check"),
    ("GET", "/readyz", [], None, 200, "health_check"),
    ("GET", "/v1/models", [("Origin", "https://evil.example")], None, 403, "foreign_origin"),
    ("GET", "/v1/responses", UPGRADE, None, 426, "upgrade_not_served"),
    ("POST", "/v1/chat/completions", JSON, LONG, 413, "request_too_large"),
]


@pytest.mark.parametrize(("method", "path", "headers", "sent", "status", "reason"), OWN, ids=[c[5] for c in OWN])
def test_an_answer_of_the_gateways_own_has_a_reason_and_no_action(
    front, log, method, path, headers, sent, status, reason
):
    got = call(front.base, method, path, headers, sent)
    assert (got.status, got.action, got.reason) == (status, None, reason)
    assert abs(parsedate_to_datetime(got.one("date") or "").timestamp() - time.time()) < 60
    assert f"{path} {status} answered ({reason})" in line(log)


def test_a_provider_that_is_not_there(many, log):
    got = post(many, "/openia/v1/chat/completions", body("chat"))
    assert (got.status, got.action, got.reason) == (404, None, "unknown_provider")
    assert "404 answered (unknown_provider)" in line(log)


def test_an_upstream_that_cannot_be_reached_is_named_in_the_log(log):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(settings(f'[providers.gone]\nbase_url = "http://127.0.0.1:{port}"\n')) as (base, _):
        got = post(base, "/gone/v1/messages", body("messages", model="some-model"))
    assert (got.status, got.action, got.reason) == (502, None, "upstream_unreachable")
    assert "502 answered (upstream_unreachable) gone some-model" in line(log)


@pytest.mark.parametrize("dialect", PATHS)
def test_a_relayed_answer_has_an_action_and_the_log_says_whose_it_is(front, log, dialect):
    got = post(front.base, PATHS[dialect], body(dialect, model="small"))
    assert (got.status, got.action) == (200, "relayed")
    assert f"200 relayed ({got.reason}) generic small" in line(log)


def test_what_is_no_conversation_has_a_provider_and_no_model(front, log):
    assert call(front.base, "GET", "/v1/models").status == 200
    assert "200 relayed (not_a_conversation) generic " in line(log)


def test_a_models_name_can_write_no_line_of_its_own(front, log):
    post(front.base, PATHS["chat"], body("chat", model="a b\nc" + "d" * 500))
    said = line(log)
    assert "generic a?b?cddd" in said
    assert len(said) < 250


def test_a_client_that_has_left_was_not_answered(front, log):
    front.upstream.reset()
    front.upstream.then(HOLD)
    with socket.create_connection(("127.0.0.1", int(front.base.rpartition(":")[2]))) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        front.upstream.wait(1)
    assert "/v1/models - unanswered" in line(log)
