"""Which headers pass, in which order, and which are Tidegate's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rawclient import JSON, PATHS, Front, body, call, fronted, history, post
from rawserver import answer
from running import Running, running

from tidegate.simulator import SimulatorSettings

CONVERSATION, OTHER = PATHS["chat"], "/v1/embeddings"
ANYWHERE = pytest.mark.parametrize("path", [CONVERSATION, OTHER])
RAW = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted() as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    return shared


def arrived(front: Front, path: str, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    call(front.base, "POST", path, headers, RAW)
    return [(name.lower(), value) for name, value in front.upstream.seen[-1].headers]


MANY = [
    ("Accept", "*/*"),
    ("X-One", "1"),
    ("Anthropic-Beta", "a-2025-01-01,b-2025-01-01"),
    ("anthropic-version", "2026-10-21"),
    ("X-Two", "first"),
    ("User-Agent", "codex_cli_rs/0.171.0 (Linux)"),
    ("X-Two", "second"),
    ("originator", "codex_cli_rs"),
    ("Cookie", "a=1; b=2"),
    ("x-codex-turn-metadata", '{"request_kind":"turn"}'),
    ("OpenAI-Organization", "org-1"),
    ("X-Empty", ""),
    ("X-Latin", "caf\xe9"),
    ("traceparent", "00-1-2-01"),
    ("Content-Type", "application/json; charset=utf-8"),
    ("Authorization", "Bearer sk-1"),
]


@ANYWHERE
def test_a_clients_headers_arrive_in_order_and_as_often_as_they_were_sent(front, path):
    theirs = [
        pair for pair in arrived(front, path, MANY) if pair[0] not in ("host", "content-length", "accept-encoding")
    ]
    assert theirs == [(name.lower(), value) for name, value in MANY]


HOP = [
    ("Connection", "keep-alive, X-Private"),
    ("X-Private", "for this hop"),
    ("Keep-Alive", "timeout=5"),
    ("Proxy-Connection", "keep-alive"),
    ("Proxy-Authorization", "Basic cHJveHk6cHc="),
    ("TE", "trailers"),
    ("Trailer", "X-Sum"),
]


@ANYWHERE
def test_what_belongs_to_one_hop_stays_there(front, path):
    names = {name for name, _ in arrived(front, path, [*HOP, ("X-Stays", "1")])}
    assert not names & {name.lower() for name, _ in HOP}
    assert "x-stays" in names


@ANYWHERE
def test_the_host_is_the_upstreams(front, path):
    arrived(front, path, [("Host", "localhost:1")])
    assert front.upstream.seen[-1].one("host") == front.upstream.url.removeprefix("http://")


@ANYWHERE
def test_tidegates_own_headers_never_go_upstream(front, path):
    ours = [("X-Tidegate-Bypass", "1"), ("x-tidegate-anything", "2"), ("X-TIDEGATE-TOKENS-BEFORE", "3")]
    assert [name for name, _ in arrived(front, path, ours) if name.startswith("x-tidegate")] == []


def test_a_conversation_is_asked_for_uncompressed_in_the_place_of_the_clients_wish(front):
    headers = [("X-One", "1"), ("Accept-Encoding", "gzip, br"), ("X-Two", "2"), ("Accept-Encoding", "zstd")]
    theirs = [pair for pair in arrived(front, CONVERSATION, headers) if pair[0] not in ("host", "content-length")]
    assert theirs == [("x-one", "1"), ("accept-encoding", "identity"), ("x-two", "2")]


LEFT_ALONE = [(OTHER, []), (CONVERSATION, [("x-tidegate-bypass", "1")])]


@pytest.mark.parametrize(("path", "more"), LEFT_ALONE, ids=["no conversation", "bypassed"])
def test_elsewhere_the_client_may_have_its_answer_compressed(front, path, more):
    headers = arrived(front, path, [("Accept-Encoding", "gzip, br"), *more])
    assert [value for name, value in headers if name == "accept-encoding"] == ["gzip, br"]


@ANYWHERE
def test_an_upstreams_headers_come_back_but_for_those_of_its_hop(front, path):
    extra = (
        "Server: up/1\r\nDate: Mon, 30 Nov 2026 10:00:00 GMT\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
        "Keep-Alive: timeout=9\r\nProxy-Authenticate: Basic\r\nX-Tidegate-Action: forged\r\nx-tidegate-other: 1\r\n"
        "openai-processing-ms: 12\r\nx-request-id: req_1\r\nVia: 1.1 edge\r\n"
    )
    front.upstream.then(answer(b"{}", extra=extra))
    got = call(front.base, "POST", path, JSON, RAW)
    theirs = [pair for pair in got.headers if not pair[0].lower().startswith("x-tidegate-")]
    assert theirs == [
        ("content-type", "application/json"), ("server", "up/1"), ("date", "Mon, 30 Nov 2026 10:00:00 GMT"),
        ("openai-processing-ms", "12"), ("x-request-id", "req_1"), ("via", "1.1 edge"), ("content-length", "2"),
    ]  # fmt: skip
    assert got.action == "relayed"
    assert got.one("x-tidegate-other") is None


@ANYWHERE
def test_nothing_is_added_to_an_answer_but_tidegates_own(front, path):
    front.upstream.then(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    got = call(front.base, "POST", path, JSON, RAW)
    assert {name for name, _ in got.headers if not name.startswith("x-tidegate-")} == {"content-length"}


def test_every_request_has_an_id_of_its_own(front):
    ids = [call(front.base, "POST", path, JSON, RAW).one("x-tidegate-request-id") for path in (CONVERSATION, OTHER) * 2]
    assert None not in ids
    assert len(set(ids)) == 4


@pytest.mark.parametrize("value", ["1", "true", "yes", "anything"])
def test_a_bypass_header_leaves_a_request_alone(front, value):
    got = call(front.base, "POST", CONVERSATION, [*JSON, ("X-Tidegate-Bypass", value)], RAW)
    assert (got.action, got.reason) == ("relayed", "bypassed")


@pytest.mark.parametrize("value", ["", "0", "false", "No", "off"])
def test_a_bypass_header_may_say_no(front, value):
    got = call(front.base, "POST", CONVERSATION, [*JSON, ("X-Tidegate-Bypass", value)], RAW)
    assert got.reason != "bypassed"


# -- what happened ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gate() -> Iterator[Running]:
    with running(SimulatorSettings(window=4000), window=4000) as found:
        yield found


VERSION = ("anthropic-version", "2023-06-01")


@pytest.mark.parametrize(("dialect", "path"), PATHS.items())
def test_an_answer_says_what_happened_to_its_request(gate, dialect, path):
    key = ("Authorization", f"Bearer sk-headers-{dialect}")
    small = post(gate.base, path, body(dialect), VERSION, key)
    assert (small.action, small.reason, small.one("x-tidegate-strategy")) == ("relayed", "below_threshold", None)
    assert small.one("x-tidegate-tokens-before") == small.one("x-tidegate-tokens-after") != None  # noqa: E711

    due = post(gate.base, path, history(dialect, 14), VERSION, key)
    before, after = (int(due.one(f"x-tidegate-tokens-{side}") or 0) for side in ("before", "after"))
    assert (due.action, due.reason, due.one("x-tidegate-strategy")) == ("compacted", None, "summary")
    assert before > 4000 > 0.85 * 4000 > after > 0

    again = post(gate.base, path, history(dialect, 14), VERSION, key)
    assert (again.action, again.one("x-tidegate-strategy")) == ("replayed", "summary")
    assert again.one("x-tidegate-checkpoint") == due.one("x-tidegate-checkpoint")

    streamed = post(gate.base, path, history(dialect, 14, stream=True), VERSION, key)
    assert (streamed.action, streamed.one("content-type")) == ("replayed", "text/event-stream; charset=utf-8")

    bypassed = post(gate.base, path, history(dialect, 14), VERSION, key, ("x-tidegate-bypass", "1"))
    assert (bypassed.status, bypassed.action, bypassed.reason) == (400, "relayed", "bypassed")


@pytest.mark.parametrize(("dialect", "path"), PATHS.items())
def test_an_overflow_is_recovered_or_said_to_be_unrecovered(gate, dialect, path):
    key = ("Authorization", f"Bearer sk-overflow-{dialect}")
    gate.simulator.configure(window=2000)
    got = post(gate.base, path, history(dialect, 8, model=f"narrow-{dialect}"), VERSION, key)
    assert (got.status, got.action, got.one("x-tidegate-strategy")) == (200, "recovered", "summary")
    stuck = post(gate.base, path, body(dialect, "word " * 3000, model=f"narrow-{dialect}"), VERSION, key)
    assert (stuck.status, stuck.action, stuck.reason) == (400, "unrecovered", "nothing_to_compact")
    gate.simulator.configure(window=4000)
