"""Starting, being asked how it is, and stopping without cutting anybody off."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from rawclient import JSON, PATHS, Call, body, call, fronted, history, post
from rawserver import HOLD, RawServer, chunks, raw_server, stream_head
from running import running

from tidegate import __version__
from tidegate.build import compiled
from tidegate.gateway.conversations import Seldom
from tidegate.simulator import SimulatorSettings

CONTENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
VERSION = ("anthropic-version", "2023-06-01")


def test_it_says_that_it_lives_and_is_ready():
    with fronted() as front:
        for path in ("/livez", "/readyz"):
            got = call(front.base, "GET", path)
            assert (got.status, got.json) == (200, {"status": "ok", "version": __version__, "compiled": compiled()})
            assert call(front.base, "HEAD", path).body == b""
        assert front.upstream.seen == []


def test_checkpoints_outlive_the_process(tmp_path):
    flags = {"store__kind": "sqlite", "store__path": str(tmp_path / "c.db"), "store__key_file": str(tmp_path / "key")}
    actions = {}
    for run in range(2):
        with running(SimulatorSettings(window=4000), window=4000, **flags) as gate:
            # Windows and figures belong to an address; a checkpoint does not.
            for dialect, path in PATHS.items():
                actions[run, dialect] = post(gate.base, path, history(dialect, 14), VERSION, ("x-api-key", "k")).action
    assert [actions[0, dialect] for dialect in PATHS] == ["compacted"] * 3
    assert [actions[1, dialect] for dialect in PATHS] == ["replayed"] * 3
    assert all(b"step" not in file.read_bytes() for file in tmp_path.iterdir())  # sealed


# -- as a process ------------------------------------------------------------------------------------------------------


@dataclass
class Process:
    base: str
    process: subprocess.Popen[str]
    upstream: RawServer

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ended(self, seconds: float = 10) -> tuple[int, str]:
        """(exit status, stderr)."""
        _, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, err


@contextmanager
def process(folder: Path, ready: str = "/readyz", **environ: str) -> Iterator[Process]:
    with raw_server() as upstream:
        command = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--upstream", upstream.url]
        env = {**os.environ, "TIDEGATE_STORE__KIND": "memory", "PYTHONUNBUFFERED": "1", **environ}
        started = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder
        )
        try:
            assert started.stdout is not None
            while not (found := re.search(r"http://127\.0\.0\.1:\d+", started.stdout.readline())):
                assert started.poll() is None, started.stderr.read() if started.stderr else ""
            base = found[0]
            while True:
                try:
                    assert call(base, "GET", ready).status == 200
                    break
                except ConnectionError:
                    time.sleep(0.02)
            yield Process(base, started, upstream)
        finally:
            if started.poll() is None:
                started.kill()
            started.communicate()


def open_stream(running: Process, *later: object) -> Call:
    running.upstream.then(stream_head(), *chunks(CONTENT, end=False), *later)  # type: ignore[arg-type]
    stream = Call(running.base, "POST", PATHS["chat"], JSON, json.dumps(body("chat", stream=True)).encode())
    stream.head()
    stream.read_until(CONTENT)
    return stream


def refuses(base: str) -> bool:
    try:
        call(base, "GET", "/livez")
    except OSError:
        return True
    return False


@pytest.mark.parametrize("http", ["own", "uvicorn"])
def test_a_stop_lets_an_open_stream_end_and_takes_no_new_request(tmp_path, http):
    with process(tmp_path, TIDEGATE_SERVER__HTTP=http) as running:
        stream = open_stream(running, 1.0, *chunks(CONTENT, b"data: [DONE]\n\n"))
        running.stop()
        deadline = time.monotonic() + 0.9
        while not refuses(running.base):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        rest = stream.rest()
        assert (rest.whole, rest.body) == (True, CONTENT + b"data: [DONE]\n\n")
        status, err = running.ended()
        assert status in (0, -signal.SIGTERM)
        assert "Traceback" not in err


@pytest.mark.parametrize("http", ["own", "uvicorn"])
def test_a_stop_waits_no_longer_than_it_may(tmp_path, http):
    with process(tmp_path, TIDEGATE_SERVER__DRAIN_SECONDS="1", TIDEGATE_SERVER__HTTP=http) as running:
        stream = open_stream(running, HOLD)
        began = time.monotonic()
        running.stop()
        ends: list[bool] = []
        reader = threading.Thread(target=lambda: ends.append(stream.rest().whole))
        reader.start()
        status, err = running.ended()
        assert 0.8 < time.monotonic() - began < 5
        reader.join(5)
        assert ends == [False]
        assert running.upstream.seen[-1].left.wait(2)
        assert "Traceback" not in err
        assert status in (0, -signal.SIGTERM)


@pytest.mark.parametrize("http", ["own", "uvicorn"])
def test_an_idle_gateway_stops_at_once(tmp_path, http):
    with process(tmp_path, TIDEGATE_SERVER__HTTP=http) as running:
        kept = Call(running.base, "GET", "/livez")
        kept.head().read()
        began = time.monotonic()
        running.stop()
        status, err = running.ended()
        assert time.monotonic() - began < 3
        assert (status in (0, -signal.SIGTERM), "Traceback" in err) == (True, False)
        kept.close()


def test_a_process_logs_one_line_a_request_and_no_key(tmp_path):
    with process(tmp_path) as running:
        post(running.base, PATHS["chat"], body("chat"), ("Authorization", "Bearer sk-secret"))
        call(running.base, "GET", "/v1/models?key=sk-secret")
        running.stop()
        _, err = running.ended()
    lines = [line for line in err.splitlines() if "/v1/" in line]
    assert len(lines) == 2
    assert re.search(r" [0-9a-f]{16} POST /v1/chat/completions 200 relayed \(\w+\) generic shop-model ", lines[0])
    assert "sk-secret" not in err


def test_a_store_that_cannot_be_used_is_told_once_at_the_start_and_once_a_minute(tmp_path):
    blocked = tmp_path / "store.db"
    blocked.write_text("no database" * 1000)
    where = {"TIDEGATE_STORE__PATH": str(blocked), "TIDEGATE_STORE__KEY_FILE": str(tmp_path / "key")}
    with process(tmp_path, TIDEGATE_STORE__KIND="sqlite", ready="/livez", **where) as running:
        for number in range(3):
            assert post(running.base, PATHS["chat"], body("chat", f"hello {number}")).status == 200
        running.stop()
        _, err = running.ended()
    assert err.count("summaries can't be stored; compacting goes on without memory") == 1
    assert err.count("fault where=store") == 1


def test_a_store_that_works_is_not_spoken_of(tmp_path):
    where = {"TIDEGATE_STORE__PATH": str(tmp_path / "store.db"), "TIDEGATE_STORE__KEY_FILE": str(tmp_path / "key")}
    with process(tmp_path, TIDEGATE_STORE__KIND="sqlite", **where) as running:
        running.stop()
        _, err = running.ended()
    assert "store" not in err


def test_what_is_worth_saying_once_a_minute_is_said_again_after_it():
    now = 100.0
    faults = Seldom(60, lambda: now)
    assert [faults.due(), faults.due()] == [True, False]
    now += 60
    assert [faults.due(), faults.due()] == [True, False]
