"""One connection against a transport that notes what is done to it: framing, slowness, ends, timeouts."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from httpserving import answer_of

from tidegate.gateway.arrival import Arrival, Receive, Scope, Send
from tidegate.gateway.http1 import Http1, Limits
from tidegate.gateway.http1_connection import HIGH_WATER, SKIPPED, Connection
from tidegate.gateway.http1_line import JOINED, Line

GET = b"GET / HTTP/1.1\r\nHost: gate\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSING = b"connection: close\r\n"


def post(body: bytes, length: int | None = None, *lines: bytes) -> bytes:
    head = [
        b"POST / HTTP/1.1",
        b"Host: gate",
        *lines,
        b"Content-Length: %d" % (len(body) if length is None else length),
    ]
    return b"\r\n".join([*head, b"", body])


class Transport(asyncio.Transport):
    """Writes nothing anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.reading, self.closed, self.aborted, self.ended = True, False, False, False
        self.unsent = 0
        self.protocol: Connection | None = None

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def writelines(self, pieces: Any) -> None:
        self.writes.extend(bytes(piece) for piece in pieces)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == HIGH_WATER

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True
        asyncio.get_running_loop().call_soon(self._lost)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def _lost(self) -> None:
        if self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            protocol.connection_lost(None)


class Keeping:
    """Keeps the lines it is given, and does with each what it is told."""

    def __init__(self, then: Callable[[Line], None] | None = None, *, gathers: bool = True, takes: bool = True) -> None:
        self.lines: list[Line] = []
        self.asgi: list[Scope] = []
        self.then, self._gathers, self.takes = then, gathers, takes
        self.gone: list[Line] = []
        self.resumed: list[Line] = []
        self.work: Callable[[Scope, Receive, Send], Any] | None = None

    def gathers(self, arrival: Arrival) -> bool:
        return self._gathers

    def at_once(self, line: Line) -> bool:
        if not self.takes:
            return False
        self.lines.append(line)
        line.on_gone = lambda: self.gone.append(line)
        line.on_resume = lambda: self.resumed.append(line)
        if self.then is not None:
            self.then(line)
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asgi.append(scope)
        if self.work is not None:
            await self.work(scope, receive, send)


def connect(app: Keeping, **limits: Any) -> tuple[Connection, Transport]:
    hub = Http1(app, Limits(**limits))
    connection, transport = hub(), Transport()
    transport.protocol = connection
    connection.connection_made(transport)
    return connection, transport


def answers(line: Line) -> None:
    line.start(200, answer_of(b"hello"))
    line.write(b"hello")
    line.end()


# -- framing -----------------------------------------------------------------------------------------------------------


async def test_head_and_a_small_first_piece_are_one_write():
    connection, transport = connect(Keeping(answers))
    connection.data_received(GET)
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\nhello"]


async def test_a_head_goes_out_by_itself_at_the_end_of_the_turn():
    app = Keeping(lambda line: line.start(200, [(b"content-type", b"text/event-stream")]))
    connection, transport = connect(app)
    connection.data_received(GET)
    assert transport.written == b""
    await asyncio.sleep(0)
    assert (
        transport.written == b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )


async def test_an_answer_without_a_length_is_chunked():
    app = Keeping(lambda line: line.start(200, []))
    connection, transport = connect(app)
    connection.data_received(GET)
    line = app.lines[0]
    for piece in (b"one", b"", b"x" * 17, b"y" * (JOINED + 1)):
        line.write(piece)
    line.end()
    large = b"%x\r\n%b\r\n" % (JOINED + 1, b"y" * (JOINED + 1))
    assert (
        transport.written.partition(b"\r\n\r\n")[2]
        == b"3\r\none\r\n11\r\n" + b"x" * 17 + b"\r\n" + large + b"0\r\n\r\n"
    )
    assert not transport.closed


@pytest.mark.parametrize("size", [1, JOINED, JOINED + 1, 1 << 20])
async def test_an_answer_of_any_size_comes_as_it_is(size):
    body = b"z" * size
    app = Keeping(lambda line: line.start(200, [(b"content-length", b"%d" % size)]))
    connection, transport = connect(app)
    connection.data_received(GET)
    app.lines[0].write(body)
    app.lines[0].end()
    assert transport.written.partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize(
    ("method", "status", "length", "framing"),
    [
        (b"HEAD", 200, True, b"content-length: 5\r\n"),
        (b"HEAD", 200, False, b""),
        (b"GET", 204, True, b""),
        (b"GET", 204, False, b""),
        (b"GET", 304, True, b"content-length: 5\r\n"),
        (b"GET", 304, False, b""),
    ],
)
async def test_some_answers_have_no_body_whatever_they_say(method, status, length, framing):
    def bare(line: Line) -> None:
        line.start(status, [(b"content-length", b"5")] if length else [])
        line.write(b"hello")
        line.end()

    connection, transport = connect(Keeping(bare))
    connection.data_received(GET.replace(b"GET", method))
    assert transport.written.partition(b"\r\n")[2] == framing + b"\r\n"
    assert not transport.closed


async def test_http_1_0_gets_no_chunks_and_the_connections_end_for_the_bodys():
    app = Keeping(lambda line: line.start(200, []))
    connection, transport = connect(app)
    connection.data_received(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    app.lines[0].write(b"hello")
    app.lines[0].end()
    assert transport.written == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello"
    assert transport.closed


async def test_framing_of_anothers_is_left_out():
    headers = [
        (b"connection", b"close"),
        (b"transfer-encoding", b"chunked"),
        (b"keep-alive", b"timeout=1"),
        (b"x", b"y"),
    ]

    def answer(line: Line) -> None:
        line.start(200, [*headers, (b"content-length", b"0")])
        line.end()

    connection, transport = connect(Keeping(answer))
    connection.data_received(GET)
    assert transport.written == b"HTTP/1.1 200 OK\r\nx: y\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, [(b"x", b"a\r\nset-cookie: b")]),
        (200, [(b"x", b"a\nb")]),
        (200, [(b"x\r\n", b"a")]),
        (200, [(b"x", b"a\0")]),
        (200, [(b"content-length", b"5"), (b"content-length", b"6")]),
        (200, [(b"content-length", b"-1")]),
        (101, []),
        (100, []),
    ],
)
async def test_a_head_that_may_not_be_sent_is_an_error(status, headers, caplog):
    connection, transport = connect(Keeping(lambda line: line.start(status, headers)))
    connection.data_received(GET)
    assert transport.written.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in transport.written
    assert "ValueError" in caplog.text


@pytest.mark.parametrize(("announced", "pieces"), [(5, [b"hel"]), (5, [b"hello", b"!"]), (0, [b"x"]), (5, [b"hello!"])])
async def test_an_answer_that_is_not_as_long_as_it_said_is_cut(announced, pieces, caplog):
    def answer(line: Line) -> None:
        line.start(200, [(b"content-length", b"%d" % announced)])
        for piece in pieces:
            line.write(piece)
        line.end()

    app = Keeping(answer)
    connection, transport = connect(app)
    connection.data_received(GET)
    assert transport.closed
    sent = transport.written.partition(b"\r\n\r\n")[2]
    assert len(sent) < announced or sent == b"hello" or announced == 0
    assert b"!" not in sent
    assert "not as long as its Content-Length" in caplog.text
    await asyncio.sleep(0)
    assert app.gone == []


# -- how an answer is cut ----------------------------------------------------------------------------------------------


async def test_an_aborted_chunked_answer_has_no_last_chunk():
    app = Keeping(lambda line: line.start(200, []))
    connection, transport = connect(app)
    connection.data_received(GET)
    app.lines[0].write(b"one")
    app.lines[0].abort()
    assert transport.closed
    assert not transport.aborted  # what was written still goes out
    assert transport.written.endswith(b"3\r\none\r\n")
    await asyncio.sleep(0)
    assert app.gone == []


async def test_an_aborted_answer_that_only_the_close_would_end_is_reset():
    app = Keeping(lambda line: line.start(200, []))
    connection, transport = connect(app)
    connection.data_received(b"GET / HTTP/1.0\r\n\r\n")
    app.lines[0].write(b"one")
    app.lines[0].abort()
    assert transport.aborted


async def test_aborting_before_the_answer_closes():
    connection, transport = connect(Keeping(lambda line: line.abort()))
    connection.data_received(GET)
    assert (transport.written, transport.closed) == (b"", True)


async def test_nothing_is_sent_once_a_line_is_over():
    app = Keeping(answers)
    connection, transport = connect(app)
    connection.data_received(GET)
    sent = transport.written
    line = app.lines[0]
    line.start(200, [])
    line.write(b"more")
    line.end()
    line.abort()
    await asyncio.sleep(0)
    assert (transport.written, transport.closed) == (sent, False)


async def test_an_application_that_fails_is_answered_for(caplog):
    def bug(line: Line) -> None:
        raise RuntimeError("of sk-secret")

    connection, transport = connect(Keeping(bug))
    connection.data_received(post(b"{}", None, b"anthropic-version: 2023-06-01"))
    assert transport.written.startswith(b"HTTP/1.1 500 ")
    assert b'"type":"error"' in transport.written  # the dialect that the headers speak of
    assert b"secret" not in transport.written
    assert "secret" not in caplog.text
    connection.data_received(GET)
    assert transport.written.count(b"HTTP/1.1 500") == 2  # the connection goes on


async def test_an_application_that_fails_within_its_answer_is_cut():
    def bug(line: Line) -> None:
        line.start(200, [])
        line.write(b"one")
        raise RuntimeError

    connection, transport = connect(Keeping(bug))
    connection.data_received(GET)
    assert transport.closed
    assert b"0\r\n\r\n" not in transport.written


async def test_an_asgi_application_that_answers_nothing_is_answered_for():
    app = Keeping(gathers=False)
    connection, transport = connect(app)
    connection.data_received(GET)
    await asyncio.sleep(0.01)
    assert transport.written.startswith(b"HTTP/1.1 500 ")


# -- who leaves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_before_the_end_is_told_of_once(begun):
    app = Keeping((lambda line: line.start(200, [])) if begun else None)
    connection, transport = connect(app)
    connection.data_received(GET)
    transport.abort()
    await asyncio.sleep(0)
    assert app.gone == app.lines
    app.lines[0].write(b"more")
    app.lines[0].end()
    app.lines[0].abort()
    assert app.gone == app.lines


async def test_a_client_that_leaves_after_the_end_is_not_told_of():
    app = Keeping(answers)
    connection, transport = connect(app)
    connection.data_received(GET)
    transport.abort()
    await asyncio.sleep(0)
    assert app.gone == []


async def test_a_client_that_leaves_within_its_request_never_had_one():
    app = Keeping()
    connection, transport = connect(app)
    connection.data_received(post(b"abc", 10))
    assert connection.eof_received() is False
    transport.abort()
    await asyncio.sleep(0)
    assert (app.lines, app.gone) == ([], [])


async def test_a_half_closed_client_is_told_something_and_still_gets_its_answer():
    app = Keeping()
    connection, transport = connect(app)
    connection.data_received(GET)
    assert connection.eof_received() is True
    assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    answers(app.lines[0])
    assert transport.written.endswith(b"hello")
    assert transport.closed
    await asyncio.sleep(0)
    assert app.gone == []


async def test_a_half_closed_client_of_http_1_0_is_told_nothing_it_would_not_understand():
    app = Keeping()
    connection, transport = connect(app)
    connection.data_received(b"GET / HTTP/1.0\r\n\r\n")
    assert connection.eof_received() is True
    assert transport.written == b""


async def test_one_that_closes_within_the_answer_has_left():
    app = Keeping(lambda line: line.start(200, []))
    connection, transport = connect(app)
    connection.data_received(GET)
    assert connection.eof_received() is False
    await asyncio.sleep(0)
    assert (app.gone, transport.aborted) == (app.lines, True)


# -- slow clients ------------------------------------------------------------------------------------------------------


async def test_a_slow_client_pauses_and_resumes_its_line():
    app = Keeping(lambda line: line.start(200, []))
    connection, _ = connect(app)
    connection.data_received(GET)
    line = app.lines[0]
    assert not line.paused
    connection.pause_writing()
    assert line.paused
    assert app.resumed == []
    connection.resume_writing()
    assert not line.paused
    assert app.resumed == [line]
    line.end()
    connection.pause_writing()
    connection.resume_writing()
    assert app.resumed == [line]


async def test_asgi_send_waits_while_the_client_is_slow():
    app, sent = Keeping(gathers=False), []

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent.append(number)
        await send({"type": "http.response.body", "body": b""})

    app.work = work
    connection, transport = connect(app)
    connection.pause_writing()
    connection.data_received(GET)
    await asyncio.sleep(0.01)
    assert sent == []
    connection.resume_writing()
    await asyncio.sleep(0.01)
    assert sent == [0, 1, 2]
    assert transport.written.endswith(b"0\r\n\r\n")


async def test_asgi_send_does_not_wait_for_a_client_that_left():
    app, done = Keeping(gathers=False), asyncio.Event()

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        done.set()

    app.work = work
    connection, transport = connect(app)
    connection.pause_writing()
    connection.data_received(GET)
    await asyncio.sleep(0.01)
    transport.abort()
    await asyncio.wait_for(done.wait(), 1)


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_body_is_gathered_whole_before_the_application_is_called(step):
    app = Keeping(answers)
    connection, transport = connect(app)
    raw = post(b"0123456789" * 20)
    for at in range(0, len(raw), step):
        assert app.lines == []
        connection.data_received(raw[at : at + step])
    assert app.lines[0].body == b"0123456789" * 20
    assert transport.written.endswith(b"hello")


async def test_a_body_that_is_not_taken_at_once_is_given_over_asgi():
    app, got = Keeping(takes=False), []

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        got.append(await receive())

    app.work = work
    connection, _ = connect(app)
    connection.data_received(post(b"abc"))
    await asyncio.sleep(0.01)
    assert got == [{"type": "http.request", "body": b"abc", "more_body": False}]


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_not_gathered(announced):
    app, sizes = Keeping(), []

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            sizes.append(len(message.get("body", b"")))
            if sum(sizes) > 10:
                break
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    app.work = work
    connection, transport = connect(app, body_bytes=10)
    raw = post(b"x" * 11) if announced else CHUNKED + b"b\r\n" + b"x" * 11
    connection.data_received(raw)
    await asyncio.sleep(0.01)
    assert (app.lines, sizes) == ([], [11])
    assert transport.written.startswith(b"HTTP/1.1 413 ")


async def test_a_body_nobody_reads_stops_coming_and_goes_on_when_it_is_read():
    app, go, got = Keeping(gathers=False), asyncio.Event(), bytearray()

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        more = True
        while more:
            message = await receive()
            got.extend(message["body"])
            more = message["more_body"]

    app.work = work
    connection, transport = connect(app)
    connection.data_received(post(b"x" * 1000, 200_000))
    await asyncio.sleep(0.01)
    assert transport.reading
    connection.data_received(b"x" * HIGH_WATER)
    assert not transport.reading
    go.set()
    await asyncio.sleep(0.01)
    assert transport.reading
    connection.data_received(b"x" * (200_000 - 1000 - HIGH_WATER))
    await asyncio.sleep(0.01)
    assert len(got) == 200_000


@pytest.mark.parametrize("gathers", [True, False])
async def test_a_client_that_asks_is_told_to_send_its_body_when_it_is_wanted(gathers):
    app, go = Keeping(answers, gathers=gathers), asyncio.Event()

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        assert (await receive())["body"] == b"abc"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    app.work = work
    connection, transport = connect(app)
    connection.data_received(post(b"", 3, b"Expect: 100-Continue"))
    await asyncio.sleep(0.01)
    assert transport.written == (b"HTTP/1.1 100 Continue\r\n\r\n" if gathers else b"")
    go.set()
    await asyncio.sleep(0.01)
    assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(b"abc")
    await asyncio.sleep(0.01)
    assert b"HTTP/1.1 200 OK" in transport.written
    assert not transport.closed


async def test_a_client_that_sends_its_body_unasked_is_not_told_to():
    connection, transport = connect(Keeping(answers))
    connection.data_received(post(b"abc", None, b"Expect: 100-continue"))
    assert transport.written.startswith(b"HTTP/1.1 200 OK")


def refuses() -> Callable[[Scope, Receive, Send], Any]:
    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    return work


async def test_an_answer_before_the_body_keeps_the_connection_where_little_is_to_come():
    app = Keeping(gathers=False)
    app.work = refuses()
    connection, transport = connect(app)
    connection.data_received(post(b"abc", 100))
    await asyncio.sleep(0.01)
    phrase = HTTPStatus(413).phrase.encode()  # another in Python 3.13
    assert transport.written == b"HTTP/1.1 413 %b\r\ncontent-length: 0\r\n\r\n" % phrase
    connection.data_received(b"x" * 97 + GET)
    await asyncio.sleep(0.01)
    assert transport.written.count(b"HTTP/1.1 413") == 2


@pytest.mark.parametrize("waits", [True, False])
async def test_an_answer_before_the_body_ends_the_connection_where_much_is_to_come_or_none_may(waits):
    app = Keeping(gathers=False)
    app.work = refuses()
    connection, transport = connect(app)
    connection.data_received(post(b"", 3, b"Expect: 100-continue") if waits else post(b"abc", SKIPPED + 10))
    await asyncio.sleep(0.01)
    assert CLOSING in transport.written
    assert (transport.ended, transport.closed) == (True, False)  # what the client still sends is taken in
    connection.data_received(b"x" * 100 + GET)
    await asyncio.sleep(0.01)
    assert transport.written.count(b"HTTP/1.1") == 1
    assert connection.eof_received() is False


async def test_a_chunked_body_that_nobody_wants_is_passed_over_only_so_far():
    app = Keeping(gathers=False)
    app.work = refuses()
    connection, transport = connect(app)
    connection.data_received(CHUNKED + b"5\r\nhello\r\n")
    await asyncio.sleep(0.01)
    assert not transport.ended
    for _ in range(SKIPPED // 65_536 + 1):
        connection.data_received(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
    assert transport.ended


# -- one after another -------------------------------------------------------------------------------------------------


async def test_requests_sent_together_are_answered_in_order_one_at_a_time():
    app = Keeping()
    connection, transport = connect(app)
    connection.data_received(b"".join(GET.replace(b"/ ", b"/%d " % number) for number in range(3)))
    assert [line.arrival.path for line in app.lines] == ["/0"]
    assert not transport.reading
    for number in range(3):
        body = b"%d" % number
        line = app.lines[number]
        line.start(200, answer_of(body))
        line.write(body)
        line.end()
    assert [line.arrival.path for line in app.lines] == ["/0", "/1", "/2"]
    assert [part[-1:] for part in transport.written.split(b"HTTP/1.1")[1:]] == [b"0", b"1", b"2"]
    assert transport.reading


async def test_a_thousand_requests_together_are_no_recursion():
    app = Keeping(answers)
    connection, transport = connect(app)
    connection.data_received(GET * 3000)
    assert transport.written.count(b"HTTP/1.1 200") == 3000


async def test_what_is_broken_behind_a_request_is_refused_after_its_answer():
    app = Keeping()
    connection, transport = connect(app)
    connection.data_received(GET + b"nonsense\r\n\r\n" + GET)
    assert transport.written == b""
    answers(app.lines[0])
    first, _, second = transport.written.partition(b"hello")
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 400")
    assert (len(app.lines), transport.ended) == (1, True)


async def test_a_body_that_breaks_while_an_asgi_application_reads_it_is_refused_and_the_application_told():
    app, got = Keeping(gathers=False), []

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        got.append((await receive())["type"])
        got.append((await receive())["type"])

    app.work = work
    connection, transport = connect(app)
    connection.data_received(CHUNKED + b"1\r\na\r\n")
    await asyncio.sleep(0.01)
    connection.data_received(b"zz\r\n")
    await asyncio.sleep(0.01)
    assert got == ["http.request", "http.disconnect"]
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.written.count(b"\r\n\r\n") == 1


async def test_a_refusal_is_in_the_shape_of_the_clients_dialect(caplog):
    with caplog.at_level(logging.INFO, "tidegate.access"):
        for header, told in ((b"x-api-key: sk-secret", b'"type":"error"'), (b"x: y", b'"code":"bad_request"')):
            connection, transport = connect(Keeping())
            connection.data_received(b"GET / HTTP/1.1\r\n" + header + b"\r\n\r\n")
            assert transport.written.startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n")
            assert told in transport.written
            assert CLOSING in transport.written
    assert "400 refused (bad_request)" in caplog.text
    assert "secret" not in caplog.text


# -- time --------------------------------------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed_without_a_word():
    _, transport = connect(Keeping(), idle_seconds=0.05)
    await asyncio.sleep(0.15)
    assert (transport.written, transport.closed) == (b"", True)


async def test_a_kept_connection_as_well_but_not_while_its_answer_is_awaited():
    app = Keeping()
    connection, transport = connect(app, idle_seconds=0.05, head_seconds=0.05, body_seconds=0.05)
    connection.data_received(GET)
    await asyncio.sleep(0.15)
    assert not transport.closed
    answers(app.lines[0])
    await asyncio.sleep(0.15)
    assert transport.closed


async def test_a_head_that_trickles_in_is_refused():
    connection, transport = connect(Keeping(), head_seconds=0.1)
    for at in range(len(GET)):
        if transport.ended:
            break
        connection.data_received(GET[at : at + 1])
        await asyncio.sleep(0.02)
    assert transport.written.startswith(b"HTTP/1.1 408 ")


async def test_a_body_may_be_slow_but_not_stand_still():
    app = Keeping(answers)
    connection, transport = connect(app, body_seconds=0.1, head_seconds=0.1)
    connection.data_received(post(b"", 10))
    for _ in range(8):
        connection.data_received(b"x")
        await asyncio.sleep(0.03)
    assert transport.written == b""
    await asyncio.sleep(0.2)
    assert transport.written.startswith(b"HTTP/1.1 408 ")
    assert app.lines == []


async def test_a_client_that_does_not_close_is_closed_after_a_while():
    connection, transport = connect(Keeping(), linger_seconds=0.05)
    connection.data_received(b"nonsense\r\n\r\n")
    assert (transport.ended, transport.closed) == (True, False)
    await asyncio.sleep(0.15)
    assert transport.aborted


async def test_a_client_that_does_not_take_its_last_answer_is_closed_after_a_while():
    connection, transport = connect(Keeping(answers), closing_seconds=0.05)
    transport.protocol = None  # a close that waits for what is unsent
    transport.unsent = 100
    connection.data_received(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    for left in (90, 80, 70):
        await asyncio.sleep(0.04)
        transport.unsent = left
    assert not transport.aborted
    await asyncio.sleep(0.2)
    assert transport.aborted


async def test_a_client_that_reads_nothing_of_a_running_answer_is_closed_after_a_while():
    app = Keeping(lambda line: line.start(200, []))
    connection, transport = connect(app, closing_seconds=0.05)
    connection.data_received(GET)
    transport.unsent = 100
    connection.pause_writing()
    for left in (90, 80, 70):
        await asyncio.sleep(0.04)
        transport.unsent = left
    assert not transport.aborted
    await asyncio.sleep(0.2)
    assert transport.aborted
    assert app.gone == app.lines


async def test_a_running_answer_has_all_the_time_there_is_while_its_client_reads():
    app = Keeping(lambda line: line.start(200, []))
    connection, transport = connect(app, closing_seconds=0.05)
    connection.data_received(GET)
    connection.pause_writing()
    connection.resume_writing()
    await asyncio.sleep(0.2)
    assert not transport.aborted


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_draining_closes_the_idle_and_lets_the_rest_end():
    app = Keeping()
    hub = Http1(app)
    pairs = []
    for _ in range(3):
        connection, transport = hub(), Transport()
        transport.protocol = connection
        connection.connection_made(transport)
        pairs.append((connection, transport))
    pairs[1][0].data_received(GET)
    pairs[2][0].data_received(GET + GET)
    draining = asyncio.create_task(hub.drain(5))
    await asyncio.sleep(0.01)
    assert [transport.closed for _, transport in pairs] == [True, False, False]
    for line in list(app.lines):
        answers(line)
    await asyncio.wait_for(draining, 1)
    assert [CLOSING in transport.written for _, transport in pairs[1:]] == [True, True]
    assert len(app.lines) == 2
    assert app.gone == []


async def test_draining_cuts_what_does_not_end():
    app = Keeping(lambda line: line.start(200, []))
    connection, transport = connect(app)
    connection.data_received(GET)
    await asyncio.wait_for(connection._hub.drain(0.05), 1)
    assert transport.aborted
    assert app.gone == app.lines


async def test_draining_waits_for_what_is_learned_after_an_answer_and_cancels_what_never_ends():
    learned = []

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        await asyncio.sleep(0.05)
        learned.append(scope["path"])
        if scope["path"] == "/ever":
            await asyncio.sleep(60)

    app = Keeping(gathers=False)
    app.work = work
    connection, _ = connect(app)
    connection.data_received(GET.replace(b"/ ", b"/ever ") + GET)
    await asyncio.sleep(0.01)
    began = asyncio.get_running_loop().time()
    await connection._hub.drain(0.2)
    assert learned == ["/ever", "/"]
    assert asyncio.get_running_loop().time() - began < 1
    assert connection._hub.tasks == set()


async def test_a_connection_that_is_gone_leaves_nothing_for_the_collector():
    app = Keeping(answers)
    connection, transport = connect(app)
    connection.data_received(GET + post(b"abc"))
    transport.abort()
    await asyncio.sleep(0)
    app.lines.clear()
    seen = weakref.ref(transport)  # which the connection holds
    gc.disable()
    try:
        del connection, transport
        assert seen() is None
    finally:
        gc.enable()
