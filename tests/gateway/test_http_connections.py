"""Clients over real sockets that half close, leave, are slow or send nonsense; and how the server starts and stops."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from httpserving import Echo, Served, answer_of, ask, echo_server, read_answers, served
from rawclient import JSON, PATHS, Call, fronted, post
from rawserver import HOLD, chunks, stream_head
from running import settings

from tidegate.gateway.arrival import Arrival
from tidegate.gateway.http1 import Limits
from tidegate.gateway.http1_line import Line
from tidegate.gateway.listening import OwnServer
from tidegate.gateway.server import serving

GET = b"GET /g HTTP/1.1\r\nHost: gate\r\n\r\n"
KINDS = ("plain", "asgi")


@pytest.fixture(scope="module", params=KINDS)
def own(request: pytest.FixtureRequest) -> Iterator[Served]:
    app, server = echo_server(request.param)
    with served(app, server, request.param) as found:
        yield found


class Holding(Echo):
    """Keeps the lines it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self.gone: list[Line] = []
        self.resumed = 0

    def gathers(self, arrival: Arrival) -> bool:
        return True

    def at_once(self, line: Line) -> bool:
        line.on_gone = lambda: self.gone.append(line)
        line.on_resume = self.resume
        self.lines.append(line)
        return True

    def resume(self) -> None:
        self.resumed += 1


@pytest.fixture
def holding() -> Iterator[Served]:
    app = Holding()
    with served(app, OwnServer(app, Limits(), drain_seconds=0.1)) as found:
        yield found


def until(true: Callable[[], object], seconds: float = 3) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


def in_loop(line: Line, work: Callable[[], object]) -> None:
    """Does something where the line lives."""
    loop = line._owner._hub.loop  # type: ignore[attr-defined]
    loop.call_soon_threadsafe(work)


def answer(line: Line) -> None:
    line.start(200, answer_of(b"hello"))
    line.write(b"hello")
    line.end()


def read_until(sock: socket.socket, wanted: bytes) -> bytes:
    """All that comes up to some bytes, or to the end."""
    got = b""
    while wanted not in got and (piece := sock.recv(65_536)):
        got += piece
    return got


# -- who closes what ---------------------------------------------------------------------------------------------------


def test_a_half_closed_client_gets_its_answer(own):
    sock = own.connect()
    sock.sendall(GET)
    sock.shutdown(socket.SHUT_WR)
    got = read_answers(sock, 1, wait=1)
    assert (got.statuses, got.closed) == ([200], True)


def test_a_half_closed_client_gets_the_answers_to_all_it_sent(own):
    sock = own.connect()
    sock.sendall(GET * 5)
    sock.shutdown(socket.SHUT_WR)
    got = read_answers(sock, 5, wait=1)
    assert (got.statuses, got.closed) == ([200] * 5, True)


def test_a_half_closed_client_gets_a_late_answer_too(holding):
    sock = holding.connect()
    sock.sendall(GET)
    sock.shutdown(socket.SHUT_WR)
    until(lambda: holding.app.lines)
    time.sleep(0.3)
    assert holding.app.gone == []
    in_loop(holding.app.lines[0], lambda: answer(holding.app.lines[0]))
    got = read_answers(sock, 1, wait=1)
    assert (got.statuses, got.closed) == ([200], True)
    assert holding.app.gone == []


def test_a_client_that_closed_is_missed_soon_though_nothing_is_written(holding):
    sock = holding.connect()
    sock.sendall(GET)
    until(lambda: holding.app.lines)
    sock.close()
    until(lambda: holding.app.gone, 1)
    assert holding.app.gone == holding.app.lines


def test_a_client_that_resets_is_missed_at_once(holding):
    sock = holding.connect()
    sock.sendall(GET)
    until(lambda: holding.app.lines)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    until(lambda: holding.app.gone, 1)


def test_a_client_that_leaves_within_a_stream_is_missed_once(holding):
    sock = holding.connect()
    sock.sendall(GET)
    until(lambda: holding.app.lines)
    line = holding.app.lines[0]
    in_loop(line, lambda: (line.start(200, []), line.write(b"one")))
    read_until(sock, b"one")
    sock.close()
    until(lambda: holding.app.gone, 1)
    time.sleep(0.05)
    assert holding.app.gone == [line]


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"10")]], ids=["chunked", "a length"])
def test_a_cut_answer_is_seen_as_cut(holding, headers):
    sock = holding.connect()
    sock.sendall(GET)
    until(lambda: holding.app.lines)
    line = holding.app.lines[0]
    in_loop(line, lambda: (line.start(200, headers), line.write(b"one"), line.abort()))
    got = read_until(sock, b"never")
    assert b"one" in got
    assert not got.endswith(b"0\r\n\r\n")


def test_a_cut_answer_that_the_close_would_end_is_reset(holding):
    sock = holding.connect()
    sock.sendall(GET.replace(b"1.1", b"1.0"))
    until(lambda: holding.app.lines)
    line = holding.app.lines[0]
    in_loop(line, lambda: (line.start(200, []), line.write(b"one")))
    read_until(sock, b"one")
    in_loop(line, line.abort)
    with pytest.raises(ConnectionResetError):
        sock.recv(1000)


def test_the_last_answer_reaches_a_client_that_is_still_sending(own):
    """Closing on unread bytes would reset the connection, and the answer with it."""
    sock = own.connect()
    sock.sendall(b"POST / HTTP/1.1\r\nHost: gate\r\nContent-Length: 3, 4\r\n\r\n" + b"x" * 2_000_000)
    got = read_answers(sock, 1, wait=1)
    assert (got.statuses, got.closed) == ([400], True)


# -- slow clients ------------------------------------------------------------------------------------------------------


def test_a_client_that_does_not_read_pauses_its_line_and_resumes_it_when_it_does(holding):
    sock = holding.connect()
    sock.sendall(GET)
    until(lambda: holding.app.lines)
    line = holding.app.lines[0]
    in_loop(line, lambda: line.start(200, []))
    written = 0

    def pour() -> None:
        nonlocal written
        while not line.paused:
            line.write(b"x" * 65_536)
            written += 65_536

    in_loop(line, pour)
    until(lambda: line.paused)
    assert holding.app.resumed == 0
    assert written < 16 << 20
    in_loop(line, line.end)
    got = read_answers(sock, 1)
    assert len(got.bodies[0]) == written


def test_a_slow_client_slows_the_upstream_down():
    """What a client does not take stays with the provider, not in the gateway's memory."""
    piece = b"12000\r\n" + b'data: {"x":"' + b"x" * (0x12000 - 16) + b'"}\n\n' + b"\r\n"
    count, sent = 1000, 0
    listening = socket.create_server(("127.0.0.1", 0))

    def pour() -> None:
        nonlocal sent
        upstream, _ = listening.accept()
        with upstream:
            read_until(upstream, b"]")
            upstream.sendall(stream_head())
            for _ in range(count):
                upstream.sendall(piece)
                sent += 1
            upstream.sendall(b"0\r\n\r\n")

    pouring = threading.Thread(target=pour, daemon=True)
    pouring.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with serving(settings(upstream=url)) as (base, _):
        slow = Call(base, "POST", PATHS["chat"], JSON, b'{"model":"m","stream":true,"messages":[]}')
        slow.head()
        time.sleep(0.7)
        assert sent < count * 0.4  # what the system's own buffers hold
        got = slow.rest()
        pouring.join(10)
        assert (got.whole, len(got.body), sent) == (True, count * 0x12000, count)
    listening.close()


# -- many, and nonsense ------------------------------------------------------------------------------------------------


def test_requests_sent_together_are_answered_in_order(own):
    raw = b"".join(b"GET /%d HTTP/1.1\r\nHost: gate\r\n\r\n" % number for number in range(50))
    got = ask(own, raw, 50)
    assert [asked["target"] for asked in got.asked] == [f"/{number}" for number in range(50)]


def test_nonsense_neither_crashes_nor_hangs_it(own):
    chance = random.Random(7)
    words = [
        GET,
        b"POST / HTTP/1.1\r\n",
        b"Host: a\r\n",
        b"\r\n",
        b"Content-Length: 5\r\n",
        b"\0",
        b"Transfer-Encoding: chunked\r\n",
    ]
    for _ in range(150):
        pieces = [
            chance.choice([*words, chance.randbytes(chance.randrange(40))]) for _ in range(chance.randrange(1, 8))
        ]
        sock = own.connect()
        try:
            for piece in pieces:
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
        except ConnectionError:
            pass
        sock.close()
    assert ask(own, GET, 1).statuses == [200]


def test_a_websocket_is_declined_and_the_connection_goes_on():
    with fronted() as front:
        sock = socket.create_connection(("127.0.0.1", int(front.base.rpartition(":")[2])), timeout=5)
        offer = b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        sock.sendall(offer + b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert read_answers(sock, 2).statuses == [426, 200]
        sock.close()


@pytest.mark.parametrize("http", ["own", "uvicorn"])
def test_the_gateway_relays_over_each_server(http):
    with fronted(server__http=http) as front:
        front.upstream.then(stream_head(), *chunks(b"data: [DONE]\n\n"))
        got = post(front.base, PATHS["chat"], {"model": "m", "messages": [], "stream": True})
        assert (got.status, got.body, got.whole) == (200, b"data: [DONE]\n\n", True)
        front.upstream.then(HOLD)
        leaving = Call(front.base, "POST", PATHS["chat"], JSON, b'{"model":"m","messages":[]}')
        seen = front.upstream.wait(2)
        leaving.close()
        assert seen.left.wait(2)


# -- starting ----------------------------------------------------------------------------------------------------------

START = """
import os, sys, time
os.environ["TIDEGATE_STORE__KIND"] = "memory"
import tidegate.cli
from tidegate.gateway import listening
class Told(listening.OwnServer):
    def run(self, bound):
        import threading
        def watch():
            while not self.started: time.sleep(0.001)
            heavy = {"litellm", "openai", "anthropic", "uvicorn", "httpx", "aiohttp"}
            print("cpu", time.process_time(), *sorted(heavy & set(sys.modules)))
            sys.stdout.flush()
            os._exit(0)
        threading.Thread(target=watch).start()
        super().run(bound)
listening.OwnServer = Told
sys.argv = ["tidegate", "serve", "--port", "0", "--upstream", "http://127.0.0.1:9"]
tidegate.cli.main()
"""


def test_it_serves_within_a_second_of_work_and_loads_no_providers_library(tmp_path):
    """Measured in the process's own time: a busy machine makes no start slower."""
    for last in (False, False, True):
        said = subprocess.run(
            [sys.executable, "-c", START], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True
        ).stdout
        found = re.search(r"^cpu (\S+)(.*)$", said, re.MULTILINE)
        assert found is not None, said
        assert found[2].split() == []
        if float(found[1]) < 1.0:
            break
        assert not last, f"{found[1]} s"


def test_a_second_interrupt_ends_it_at_once(tmp_path: Path):
    with fronted() as front:
        upstream = front.upstream
        command = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--upstream", upstream.url]
        env = {**os.environ, "TIDEGATE_STORE__KIND": "memory", "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path
        ) as process:
            assert process.stdout is not None
            while not (found := re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())):
                assert process.poll() is None
            upstream.then(stream_head(), *chunks(b"data: x\n\n", end=False), HOLD)
            stream = Call(found[0], "POST", PATHS["chat"], JSON, b'{"model":"m","messages":[],"stream":true}')
            stream.head()
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=5)
            assert process.returncode == 0
            assert "Traceback" not in err
            assert not stream.rest().whole
