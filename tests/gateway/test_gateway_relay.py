"""What nothing has to change passes byte for byte, in both directions: a call through the gateway is a direct call."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Iterator

import pytest
import zstandard
from rawclient import JSON, PATHS, Answer, Call, Front, call, fronted
from rawserver import CLOSE, CUT, HOLD, Step, answer, chunks, stream_head

CHAT_SSE = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    b": a comment\n\n"
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"caf\xc3\xa9"}}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)
MESSAGES_SSE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n'
    b'event: ping\ndata: {"type": "ping"}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
    b'{"type":"text_delta","text":"hi"}}\n\n'
    b'event: unheard_of\nid: 7\nretry: 10\ndata: {"type":"unheard_of"}\ndata: {"second":"line"}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
RESPONSES_SSE = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":'
    b'{"id":"r","usage":{"input_tokens":3}}}\n\n'
)
PAGE = b"<html><head><title>502</title></head></html>"
ERROR = b'{"error": {"message": "no",  "type": "invalid_request_error", "param": null, "code": null}}\n'
ODD = bytes(range(256)) * 40


def sliced(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def streamed(
    data: bytes, size: int = 1000, extra: str = "", kind: str = "text/event-stream; charset=utf-8"
) -> tuple[Step, ...]:
    return (stream_head(extra, kind), *chunks(*sliced(data, size)))


ANSWERS: dict[str, tuple[Step, ...]] = {
    "json": (answer(b'{ "id":"x",\n\t"choices" : [], "usage":{"prompt_tokens":3} }\n'),),
    "json in pieces": (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n",
        b'{"a"',
        0.01,
        b': "b"',
    ),
    "json chunked": streamed(b'{"id": "x", "choices": []}', 3, kind="application/json"),
    "json of 3 MB": (answer(b'{"id":"' + b"x" * 3_000_000 + b'"}'),),
    "an error in a 200": (answer(ERROR),),
    "stream": streamed(CHAT_SSE),
    "stream of messages": streamed(MESSAGES_SSE),
    "stream of responses": streamed(RESPONSES_SSE),
    "stream with CRLF": streamed(MESSAGES_SSE.replace(b"\n", b"\r\n")),
    "stream in odd pieces": streamed(CHAT_SSE, 7),
    "stream byte by byte": streamed(RESPONSES_SSE, 1),
    "stream without an end": streamed(CHAT_SSE.removesuffix(b"data: [DONE]\n\n")),
    "stream ending within an event": streamed(CHAT_SSE[:-1]),
    "stream of 1 MB frames": streamed(
        b'data: {"choices":[{"delta":{"content":"' + b"y" * 1_000_000 + b'"}}]}\n\n' + CHAT_SSE, 65536
    ),
    "stream of nothing": streamed(b""),
    "stream of garbage": streamed(b"\xff\x00 no event\n\ndata: {broken\n\n"),
    "stream with a byte order mark": streamed(b"\xef\xbb\xbf" + CHAT_SSE),
    "stream until closed": (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", CHAT_SSE, CLOSE),
    "binary": (answer(ODD, kind="application/octet-stream"),),
    "text": (answer(b"plain \xff", kind="text/plain"),),
    "no content type": (answer(b"bare", kind=None),),
    "empty": (answer(b"", kind=None),),
    "http/1.0": (b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n", b'{"a": 1}', CLOSE),
    "201": (answer(b'{"a": 1}', status="201 Created"),),
    "204": (b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n",),
    "301": (answer(b"moved", status="301 Moved Permanently", extra="Location: https://elsewhere.example/v1\r\n"),),
    "400": (answer(ERROR, status="400 Bad Request"),),
    "401": (answer(ERROR, status="401 Unauthorized", extra='WWW-Authenticate: Bearer realm="x"\r\n'),),
    "403": (answer(b"", status="403 Forbidden", kind=None),),
    "404 page": (answer(PAGE, status="404 Not Found", kind="text/html"),),
    "413": (answer(b'{"error":"Payload too large"}', status="413 Content Too Large"),),
    "422 chunked": (
        b"HTTP/1.1 422 Unprocessable\r\nTransfer-Encoding: chunked\r\n\r\n",
        *chunks(b'{"detail', b'":[]}'),
    ),
    "429": (
        answer(ERROR, status="429 Too Many Requests", extra="Retry-After: 17\r\nX-RateLimit-Remaining-Tokens: 0\r\n"),
    ),
    "500 text": (answer(b"oops", status="500 Internal Server Error", kind="text/plain"),),
    "502 page": (answer(PAGE, status="502 Bad Gateway", kind="text/html"),),
    "503": (answer(ERROR, status="503 Service Unavailable", extra="Retry-After: 3\r\n"),),
    "529": (answer(b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', status="529 x"),),
    "compressed, though not asked for": (
        answer(gzip.compress(CHAT_SSE, mtime=0), kind="text/event-stream", extra="Content-Encoding: gzip\r\n"),
    ),
    "compressed refusal": (
        answer(gzip.compress(ERROR, mtime=0), status="400 Bad", extra="Content-Encoding: gzip\r\n"),
    ),
    "falsely compressed refusal": (answer(ERROR, status="400 Bad", extra="Content-Encoding: gzip\r\n"),),
    "headers twice": (
        answer(
            b"{}",
            extra="Set-Cookie: a=1\r\nX-A: 1\r\nset-cookie: b=2\r\nX-A: 2\r\nServer: up\r\nVary: Origin\r\n",
        ),
    ),
    "trailers": (stream_head(), *chunks(CHAT_SSE, end=False), b"0\r\nX-Sum: 1\r\n\r\n"),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n", answer(b'{"a": 1}')),
}

ENDS: dict[str, tuple[Step, ...]] = {
    "json cut": (b"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nContent-Length: 400000\r\n\r\n", b"z" * 300_000, CUT),
    "stream cut after content": (stream_head(), *chunks(CHAT_SSE[:230], end=False), 0.05, CUT),
    "stream closed after content": (stream_head(), *chunks(CHAT_SSE[:230], end=False), 0.05, CLOSE),
}
"""Answers that break off once the client has seen content."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted() as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    return shared


def both(
    front: Front, method: str, target: str, headers: list[tuple[str, str]], body: bytes | None, *steps: Step
) -> tuple[Answer, Answer]:
    """(a direct call's answer, the same through the gateway)."""
    for _ in range(2):
        front.upstream.then(*steps)
    direct = call(front.upstream.url, method, target, headers, body)
    return direct, call(front.base, method, target, headers, body)


PLAIN = (
    b'{"model": "m",  "messages": [{"role": "user", "content": "caf\\u00e9 \xe2\x82\xac"}], '
    b'"n": 1.50, "stream": true}\n'
)
INPUT = PLAIN.replace(b"messages", b"input")


@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/embeddings"])
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_is_that_of_a_direct_call(front, path, kind):
    raw = INPUT if "responses" in path else PLAIN
    direct, got = both(front, "POST", path, JSON, raw, *ANSWERS[kind])
    assert (got.status, got.body, got.whole) == (direct.status, direct.body, direct.whole)
    assert got.passed == direct.passed
    first, second = front.upstream.seen
    assert first.body == second.body == raw
    assert got.action == "relayed"


@pytest.mark.parametrize("path", [PATHS["chat"], "/v1/files/1/content"])
@pytest.mark.parametrize("kind", ENDS)
def test_an_answer_that_breaks_off_breaks_off(front, path, kind):
    direct, got = both(front, "POST", path, JSON, PLAIN, *ENDS[kind])
    assert (direct.whole, got.whole) == (False, False)
    assert (got.status, got.passed) == (direct.status, direct.passed)
    assert got.body == direct.body
    assert len(front.upstream.seen) == 2


@pytest.mark.parametrize("path", [PATHS["chat"], "/v1/models"])
def test_a_304_has_no_body_and_loses_only_the_length_of_what_it_leaves_out(front, path):
    step = b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 1234\r\n\r\n'
    direct, got = both(front, "POST", path, JSON, PLAIN, step)
    assert (got.status, got.body, got.whole) == (304, b"", True)
    assert got.passed == [pair for pair in direct.passed if pair[0] != "content-length"]


def test_a_head_request_keeps_the_length(front):
    step = b"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nContent-Length: 1234\r\n\r\n"
    direct, got = both(front, "HEAD", "/v1/files/1", [], None, step)
    assert (got.status, got.body, got.passed) == (200, b"", direct.passed)


# -- request bodies --------------------------------------------------------------------------------------------------

BODIES = {
    "plain": ([], PLAIN),
    "no json": ([], b"{nonsense"),
    "not utf-8": ([], b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}'),
    "half a surrogate pair": ([], b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}]}'),
    "a list": ([], b"[1, 2]"),
    "a byte order mark": ([], b"\xef\xbb\xbf" + PLAIN),
    "deeply nested": ([], b'{"model":"m","messages":[{"role":"user","content":' + b"[" * 3000 + b"]" * 3000 + b"}]}"),
    "keys twice": ([], b'{"model":"a","model":"m","messages":[],"messages":[{"role":"user","content":"x"}]}'),
    "empty": ([], b""),
    "gzip": ([("Content-Encoding", "gzip")], gzip.compress(PLAIN, mtime=0)),
    "deflate": ([("Content-Encoding", "deflate")], zlib.compress(PLAIN)),
    "zstd": ([("Content-Encoding", "zstd")], zstandard.compress(PLAIN)),
    "gzip in zstd": ([("Content-Encoding", "gzip, zstd")], zstandard.compress(gzip.compress(PLAIN, mtime=0))),
    "brotli": ([("Content-Encoding", "br")], b"\x8b\x02\x80not really\x03"),
    "not gzip at all": ([("Content-Encoding", "gzip")], PLAIN),
    "cut gzip": ([("Content-Encoding", "gzip")], gzip.compress(PLAIN, mtime=0)[:-9]),
    "an unknown coding": ([("Content-Encoding", "snappy")], b"\xff\x06\x00"),
    "identity": ([("Content-Encoding", "identity")], PLAIN),
}


@pytest.mark.parametrize("path", PATHS.values())
@pytest.mark.parametrize("kind", BODIES)
def test_a_body_that_nothing_changes_arrives_as_it_was_sent(front, path, kind):
    headers, raw = BODIES[kind]
    both(front, "POST", path, [*JSON, *headers], raw, answer(ERROR, status="400 Bad Request"))
    direct, through = front.upstream.seen
    assert through.body == direct.body == raw
    assert through.all("content-encoding") == direct.all("content-encoding")
    assert through.one("content-length") == str(len(raw))


def test_a_body_in_chunks_arrives_whole(front):
    pieces = chunks(PLAIN[:10], PLAIN[10:11], PLAIN[11:])
    got = call(front.base, "POST", PATHS["chat"], [*JSON, ("Transfer-Encoding", "chunked")], b"".join(pieces))
    assert got.status == 200
    (seen,) = front.upstream.seen
    assert (seen.body, seen.one("transfer-encoding")) == (PLAIN, None)


def test_a_client_that_waits_for_100_continue_gets_it(front):
    waiting = Call(
        front.base, "POST", PATHS["chat"], [*JSON, ("Expect", "100-continue"), ("Content-Length", str(len(PLAIN)))]
    )
    assert waiting.sock.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    waiting.send(PLAIN)
    assert waiting.rest().status == 200
    assert front.upstream.seen[0].one("expect") is None


@pytest.mark.parametrize(
    ("path", "more"),
    [("/v1/files", []), (PATHS["chat"], [("X-Tidegate-Bypass", "1")])],
    ids=["no conversation", "bypassed"],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_upload_streams_through(front, chunked, path, more):
    """The upstream has its beginning before the client has sent its end, and nothing of it is kept."""
    size, part = 20 * 1024 * 1024, b"\x00\x01\x02\x03" * 16384
    framing = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(size))
    upload = Call(front.base, "POST", path, [("Content-Type", "multipart/form-data; boundary=x"), framing, *more])
    for _ in range(10):
        upload.send(b"".join(chunks(part, end=False)) if chunked else part)
    seen = front.upstream.wait()
    while len(seen.body) < 2 * len(part):
        pass
    assert not seen.whole
    for _ in range(size // len(part) - 10):
        upload.send(b"".join(chunks(part, end=False)) if chunked else part)
    if chunked:
        upload.send(b"0\r\n\r\n")
    assert upload.rest().status == 200
    assert (len(seen.body), seen.one("content-length")) == (size, None if chunked else str(size))
    assert bytes(seen.body[:65536]) == part
    assert seen.one("content-type") == "multipart/form-data; boundary=x"


def test_an_upload_that_is_refused_early_is_told_so(front, monkeypatch):
    async def unread(reader, seen):
        await reader.readexactly(1000)

    monkeypatch.setattr(front.upstream, "_body", unread)
    front.upstream.then(answer(ERROR, status="413 Content Too Large"), HOLD)
    upload = Call(front.base, "POST", "/v1/files", [("Content-Length", str(40 << 20))])
    for _ in range(40):
        upload.send(b"x" * (1 << 20))
    assert (upload.rest().status, len(front.upstream.seen)) == (413, 1)


def test_a_slow_reader_slows_the_upstream_down(front):
    """An answer is not read faster than its client takes it."""
    size = 64 << 20
    sent = 0

    def counted(seen):
        nonlocal sent
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n".encode()
        yield head
        for _ in range(size >> 20):
            yield b"x" * (1 << 20)
            sent += 1

    front.upstream.default = counted
    slow = Call(front.base, "GET", "/v1/files/1/content")
    slow.head()
    slow.response.read1(1000)
    time.sleep(0.4)
    assert sent < 30, f"{sent} MB were read from the upstream for a client that took 1 KB"
    slow.close()
