"""The head of a stream is held until it tells an answer from a refusal; what comes after content only passes."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rawclient import JSON, PATHS, Call, Front, body, call, fronted, history, post
from rawserver import CUT, HOLD, Step, answer, chunks, stream_head
from running import Running, running
from stores import recorded

from tidegate.simulator import SimulatorSettings
from tidegate.simulator import Step as Scripted

VERSION = ("anthropic-version", "2023-06-01")
DIALECTS = pytest.mark.parametrize(("dialect", "path"), PATHS.items(), ids=list(PATHS))

OPENINGS = {
    "chat": b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    "responses": b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n',
    "messages": b'event: message_start\ndata: {"type":"message_start","message":{"id":"m"}}\n\n',
}
CONTENTS = {
    "chat": b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n',
    "responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n',
    "messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"hi"}}\n\n',
}
TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."
OVERFLOWS = {
    "chat": b'data: {"error":{"message":"%b","type":"invalid_request_error","code":"context_length_exceeded"}}\n\n'
    % TOO_LONG.encode(),
    "responses": b'event: response.failed\ndata: {"type":"response.failed","response":{"id":"r","error":{'
    b'"code":"context_length_exceeded","message":"%b"}}}\n\n' % TOO_LONG.encode(),
    "messages": b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error",'
    b'"message":"prompt is too long: 300000 tokens > 200000 maximum"}}\n\n',
}  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted(toml="[stream]\nhold_seconds = 0.2\n") as front:
        yield front


@pytest.fixture(scope="module")
def patient() -> Iterator[Front]:
    with fronted(toml="[stream]\nhold_seconds = 30\nhold_bytes = 20000\n") as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    return shared


def stream(*pieces: bytes) -> tuple[Step, ...]:
    return (stream_head(), *chunks(*pieces))


# -- before content --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gate() -> Iterator[Running]:
    with running(SimulatorSettings(window=2000, overflow_in_stream=True)) as found:
        yield found


@DIALECTS
def test_an_overflow_in_the_stream_is_recovered_before_anything_is_shown(gate, dialect, path):
    key = ("Authorization", f"Bearer sk-in-stream-{dialect}")
    got = post(gate.base, path, history(dialect, 10, stream=True, model=dialect), VERSION, key)
    assert (got.status, got.action) == (200, "recovered")
    first, *_, last = gate.records[-(2 + len(gate.of("summary"))) :]
    assert (first.outcome, last.outcome) == ("overflow", "answered")
    assert got.body.count(OPENING_MARK[dialect]) == 1
    assert b"error" not in got.body.replace(b'"error":null', b"")
    gate.simulator.reset()


def test_codex_is_told_by_response_failed_and_never_sees_it(gate):
    key = ("Authorization", "Bearer sk-failed")
    gate.simulator.script(Scripted(do="overflow", on="main", in_stream=True, event="response.failed"))
    got = post(gate.base, PATHS["responses"], history("responses", 5, stream=True, model="failed"), key)
    assert (got.status, got.action) == (200, "recovered")
    assert b"response.failed" not in got.body
    assert got.body.count(b"event: response.created") == 1
    gate.simulator.reset()


OPENING_MARK = {
    "chat": b'"role":"assistant"',
    "responses": b"event: response.created",
    "messages": b"event: message_start",
}


@DIALECTS
def test_an_overflow_in_the_stream_that_stands_passes_as_it_came(gate, dialect, path):
    key = ("Authorization", f"Bearer sk-stands-{dialect}")
    long = body(dialect, "word " * 4000, stream=True, model=f"stands-{dialect}")
    direct = post(gate.simulator.url, path, long, VERSION, key)
    with recorded(gate.app) as store:
        got = post(gate.base, path, long, VERSION, key)
    assert (got.status, got.action, got.reason) == (200, "unrecovered", "nothing_to_compact")
    assert shape(got.body) == shape(direct.body)
    assert store.empty
    assert len(gate.of("main")) == 2
    gate.simulator.reset()


def shape(sse: bytes) -> list[Any]:
    """Events without the ids and times that differ from one answer to the next."""
    told = []
    for line in sse.splitlines():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            for part in (event, event.get("response", {}), event.get("message", {})):
                for key in ("id", "created", "created_at", "request_id"):
                    part.pop(key, None)
            told.append(event)
        else:
            told.append(line)
    return told


@DIALECTS
def test_another_error_before_content_passes_as_it_came(front, dialect, path):
    failing = (
        OVERFLOWS[dialect]
        .replace(TOO_LONG.encode(), b"Overloaded")
        .replace(b"context_length_exceeded", b"server_error")
    )
    failing = failing.replace(b"prompt is too long: 300000 tokens > 200000 maximum", b"Overloaded")
    failing = failing.replace(b"invalid_request_error", b"overloaded_error")
    front.upstream.then(*stream(OPENINGS[dialect], failing))
    got = post(front.base, path, body(dialect, stream=True))
    assert (got.status, got.body) == (200, OPENINGS[dialect] + failing)
    assert len(front.upstream.seen) == 1


# -- after content ---------------------------------------------------------------------------------------------------


@DIALECTS
def test_an_overflow_after_content_passes_and_nothing_is_sent_again(front, dialect, path):
    front.upstream.then(*stream(OPENINGS[dialect], CONTENTS[dialect], OVERFLOWS[dialect]))
    with recorded(front.app) as store:
        got = post(front.base, path, history(dialect, 10, stream=True))
    assert got.body == OPENINGS[dialect] + CONTENTS[dialect] + OVERFLOWS[dialect]
    assert len(front.upstream.seen) == 1
    assert store.empty


@DIALECTS
def test_a_stream_that_is_cut_after_content_is_cut_for_the_client(front, dialect, path):
    front.upstream.then(stream_head(), *chunks(OPENINGS[dialect], CONTENTS[dialect], end=False), 0.05, CUT)
    with recorded(front.app) as store:
        got = post(front.base, path, body(dialect, stream=True))
    assert (got.whole, got.body) == (False, OPENINGS[dialect] + CONTENTS[dialect])
    assert len(front.upstream.seen) == 1
    assert store.empty


@DIALECTS
def test_a_stream_that_is_cut_before_content_is_no_answer(front, dialect, path):
    """Nothing was shown, so a status can still say what happened, and the client's own retry is safe."""
    front.upstream.then(stream_head(), *chunks(OPENINGS[dialect], end=False), 0.05, CUT)
    got = post(front.base, path, body(dialect, stream=True))
    assert (got.status, got.whole) == (502, True)
    assert len(front.upstream.seen) == 1


# -- how long a head is held -----------------------------------------------------------------------------------------


def seconds_to(call: Call, wanted: bytes, since: float) -> float:
    call.head()
    call.read_until(wanted)
    return time.monotonic() - since


@DIALECTS
def test_content_is_passed_on_at_once(patient, dialect, path):
    patient.upstream.then(stream_head(), *chunks(OPENINGS[dialect], CONTENTS[dialect], end=False), HOLD)
    began = time.monotonic()
    waiting = Call(patient.base, "POST", path, JSON, json.dumps(body(dialect, stream=True)).encode())
    assert seconds_to(waiting, CONTENTS[dialect], began) < 5
    waiting.close()


@DIALECTS
def test_a_head_is_held_no_longer_than_that(front, dialect, path):
    late = OVERFLOWS[dialect]
    front.upstream.then(stream_head(), *chunks(OPENINGS[dialect], end=False), 2.0, *chunks(late))
    began = time.monotonic()
    waiting = Call(front.base, "POST", path, JSON, json.dumps(history(dialect, 10, stream=True)).encode())
    assert 0.15 < seconds_to(waiting, OPENINGS[dialect], began) < 1.9
    assert waiting.rest().body == late  # too late to be anything but passed on
    assert len(front.upstream.seen) == 1


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_refusal_that_trickles_is_held_no_longer_either(front, kind):
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    front.upstream.then(head, *chunks(b'{"error"', end=False), HOLD)
    began = time.monotonic()
    waiting = Call(front.base, "POST", PATHS["chat"], JSON, json.dumps(body("chat")).encode())
    assert 0.15 < seconds_to(waiting, b'{"error"', began) < 5
    waiting.close()


def test_a_plain_answer_that_trickles_is_held_no_longer_either(front):
    front.upstream.then(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n", b'{"a"', HOLD
    )
    began = time.monotonic()
    waiting = Call(front.base, "POST", PATHS["chat"], JSON, json.dumps(body("chat")).encode())
    assert 0.15 < seconds_to(waiting, b'{"a"', began) < 5
    waiting.close()


def test_no_more_is_held_than_so_many_bytes(patient):
    pings = b": comment\n\n" * 3000
    patient.upstream.then(stream_head(), *chunks(pings, end=False), HOLD)
    began = time.monotonic()
    waiting = Call(patient.base, "POST", PATHS["chat"], JSON, json.dumps(body("chat", stream=True)).encode())
    assert seconds_to(waiting, b": comment\n\n" * 2000, began) < 5
    waiting.close()


@DIALECTS
def test_an_overflow_in_a_compressed_refusal_is_seen_all_the_same(front, dialect, path):
    refusal = {"error": {"message": TOO_LONG, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    if dialect == "messages":
        refusal = {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"},
        }
    packed = gzip.compress(json.dumps(refusal).encode())
    front.upstream.default = lambda seen: (
        answer(packed, status="400 Bad Request", extra="Content-Encoding: gzip\r\n"),
    )
    got = call(front.base, "POST", path, JSON, json.dumps(history(dialect, 10)).encode())
    assert (got.status, got.body, got.one("content-encoding")) == (400, packed, "gzip")
    assert got.action == "unrecovered"
