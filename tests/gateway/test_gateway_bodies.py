"""Request bodies: compressed ones are read, too large ones are refused, bad ones are the provider's to refuse."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard
from rawclient import JSON, PATHS, Answer, Call, Front, body, call, error_of, fronted, history, post
from rawserver import chunks
from running import Running, running
from stores import recorded

from tidegate.simulator import SimulatorSettings

VERSION = ("anthropic-version", "2023-06-01")
DIALECTS = pytest.mark.parametrize(("dialect", "path"), PATHS.items(), ids=list(PATHS))


@pytest.fixture(scope="module")
def gate() -> Iterator[Running]:
    with running(SimulatorSettings(window=4000), window=4000) as found:
        yield found


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted(toml="[server]\nbody_limit_bytes = 100000\n") as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    return shared


def raw_deflate(data: bytes) -> bytes:
    pack = zlib.compressobj(wbits=-15)
    return pack.compress(data) + pack.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-Gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.compress),
    "both": ("gzip, zstd", lambda data: zstandard.compress(gzip.compress(data))),
    "identity": ("identity", lambda data: data),
}


@DIALECTS
@pytest.mark.parametrize("coding", CODINGS)
def test_a_compressed_body_is_read_and_compacted_when_due(gate, dialect, path, coding):
    name, pack = CODINGS[coding]
    headers = [*JSON, VERSION, ("Content-Encoding", name), ("Authorization", f"Bearer sk-{coding}-{dialect}")]
    raw = json.dumps(history(dialect, 14)).encode()
    got = call(gate.base, "POST", path, headers, pack(raw))
    assert (got.status, got.action) == (200, "compacted")
    sent = gate.of("main")[-1]
    assert "content-encoding" not in sent.headers
    assert b"step 13" in sent.body
    assert b"step 0:" not in sent.body
    assert gate.violations == []


@DIALECTS
@pytest.mark.parametrize("coding", ["gzip", "zstd", "deflate"])
def test_a_small_body_that_unpacks_to_one_over_the_limit_is_refused(front, dialect, path, coding):
    name, pack = CODINGS[coding]
    bomb = pack(b'{"model":"' + b"m" * 5_000_000 + b'"}')
    assert len(bomb) < 100_000
    got = call(front.base, "POST", path, [*JSON, ("Content-Encoding", name)], bomb)
    assert got.status == 413
    assert "100000 bytes" in error_of(dialect, got)[0]
    assert front.upstream.seen == []


@DIALECTS
def test_a_body_that_is_said_to_be_over_the_limit_is_refused_before_it_is_sent(front, dialect, path):
    waiting = Call(front.base, "POST", path, [*JSON, ("Content-Length", "100001")])
    got = waiting.rest()
    message, kind = error_of(dialect, got)
    assert (got.status, kind) == (413, "request_too_large")
    assert "server.body_limit_bytes" in message
    assert front.upstream.seen == []


@DIALECTS
def test_a_body_that_grows_over_the_limit_is_refused(front, dialect, path):
    growing = Call(front.base, "POST", path, [*JSON, ("Transfer-Encoding", "chunked")])
    for _ in range(3):
        growing.send(b"".join(chunks(b"x" * 40_000, end=False)))
    assert growing.rest().status == 413
    assert front.upstream.seen == []


def test_a_body_of_just_the_limit_passes(front):
    padded = json.dumps(body("chat")).encode().ljust(100_000)
    assert call(front.base, "POST", PATHS["chat"], JSON, padded).status == 200
    assert len(front.upstream.seen[0].body) == 100_000


def test_a_connection_survives_a_refused_body(front):
    first = Call(front.base, "POST", PATHS["chat"], [*JSON, ("Content-Length", "100001")])
    assert first.head().status == 413
    first.response.read()
    first.send(b"x" * 100_001 + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert first.head().status == 200
    first.close()


# -- bad input -------------------------------------------------------------------------------------------------------

BAD: dict[str, Callable[[str], bytes]] = {
    "nothing": lambda dialect: b"",
    "no json": lambda dialect: b"{nonsense",
    "cut json": lambda dialect: json.dumps(body(dialect)).encode()[:-2],
    "a list": lambda dialect: b"[]",
    "a number": lambda dialect: b"7",
    "null": lambda dialect: b"null",
    "no messages": lambda dialect: b'{"model":"m"}',
    "messages are a number": lambda dialect: wrong(dialect, 7),
    "messages are an object": lambda dialect: wrong(dialect, {"role": "user"}),
    "a message is a number": lambda dialect: wrong(dialect, [1]),
    "a message is a list": lambda dialect: wrong(dialect, [[]]),
    "no messages at all": lambda dialect: wrong(dialect, []),
    "an unknown role": lambda dialect: wrong(dialect, [{"role": "wizard", "content": "x"}]),
    "content is a number": lambda dialect: wrong(dialect, [{"role": "user", "content": 7}]),
    "a part is a number": lambda dialect: wrong(dialect, [{"role": "user", "content": [7]}]),
    "a result without its call": lambda dialect: wrong(dialect, [LONE_RESULTS[dialect]]),
    "the model is a number": lambda dialect: json.dumps(body(dialect, model=7)).encode(),
    "the model is a list": lambda dialect: json.dumps(body(dialect, model=["m"])).encode(),
    "stream is a list": lambda dialect: json.dumps(body(dialect, stream=[])).encode(),
    "tools are a text": lambda dialect: json.dumps(body(dialect, tools="all")).encode(),
    "the limit is a text": lambda dialect: json.dumps({**body(dialect), LIMITS[dialect]: "many"}).encode(),
    "the limit is negative": lambda dialect: json.dumps({**body(dialect), LIMITS[dialect]: -1}).encode(),
    "the limit is endless": lambda dialect: (
        json.dumps({**body(dialect), LIMITS[dialect]: 0}).replace(": 0", ": 1e999").encode()
    ),
    "not utf-8": lambda dialect: json.dumps(body(dialect, "@")).encode().replace(b"@", b"\xff\xfe"),
    "half a character": lambda dialect: json.dumps(body(dialect, "\ud83d")).encode(),
}
LIMITS = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
LONE_RESULTS = {
    "chat": {"role": "tool", "tool_call_id": "gone", "content": "x"},
    "responses": {"type": "function_call_output", "call_id": "gone", "output": "x"},
    "messages": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "gone", "content": "x"}]},
}


def wrong(dialect: str, value: Any) -> bytes:
    key = "input" if dialect == "responses" else "messages"
    return json.dumps({**body(dialect), key: value}).encode()


def alike(answer: Answer) -> Any:
    """An answer without the ids that a provider makes anew each time."""
    told = answer.json
    for key in ("request_id", "id", "created", "created_at"):
        told.pop(key, None)
    for part in told.get("output", []):
        part.pop("id", None)
    return answer.status, told


@DIALECTS
@pytest.mark.parametrize("kind", BAD)
def test_what_is_bad_gets_the_providers_own_answer_and_leaves_nothing_behind(gate, dialect, path, kind):
    raw = BAD[kind](dialect)
    direct = post(gate.simulator.url, path, raw, VERSION, ("x-api-key", "k"))
    with recorded(gate.app) as store:
        got = post(gate.base, path, raw, VERSION, ("x-api-key", "k"))
    assert alike(got) == alike(direct)
    assert direct.status == 200 or store.empty
    assert gate.records[-1].body == raw
    gate.simulator.reset()
