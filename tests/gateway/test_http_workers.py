"""Several processes behind one address: all serve, none is missed for long, and they know the same checkpoints."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from rawclient import JSON, PATHS, Call, call, history, post
from rawserver import chunks, raw_server, stream_head

from tidegate.simulator import SimulatorSettings, serve

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

CONTENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
COMMAND = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--workers", "2"]


@dataclass
class Supervisor:
    base: str
    process: subprocess.Popen[str]

    @property
    def workers(self) -> set[int]:
        pid = self.process.pid
        return {int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    def all_serve(self) -> bool:
        return len(self.workers) == 2 and all(listens(pid) for pid in self.workers)

    def ended(self, seconds: float = 15) -> tuple[int, str]:
        """(exit status, stderr)."""
        _, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, err


def listens(pid: int) -> bool:
    """Whether a worker has its loop: it sleeps in it, over the listening socket."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return any("eventpoll" in link for link in links)


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


@contextmanager
def supervised(folder: Path, upstream: str, *arguments: str, **environ: str) -> Iterator[Supervisor]:
    env = {**os.environ, "TIDEGATE_STORE__KIND": "none", "PYTHONUNBUFFERED": "1", **environ}
    process = subprocess.Popen(
        [*COMMAND, "--upstream", upstream, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
        running = Supervisor(found[0], process)
        until(running.all_serve)
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def worker_of(running: Supervisor, sock: socket.socket) -> int:
    """Which worker has the other end of a connection."""
    port = sock.getsockname()[1]
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {line.split()[9] for line in table if line.split()[2].endswith(f":{port:04X}")}
    for pid in running.workers:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if any(link == f"socket:[{inode}]" for inode in inodes):
                return pid
    raise AssertionError("no worker has it")


def connected_to_each(running: Supervisor) -> dict[int, Call]:
    """A request under way at each of the workers, answered as far as its head."""
    found: dict[int, Call] = {}

    def another() -> bool:
        asked = Call(running.base, "GET", "/livez")
        asked.head()
        pid = worker_of(running, asked.sock)
        if pid in found:
            asked.close()
        else:
            found[pid] = asked
        return len(found) == 2

    until(another)
    return found


def test_both_serve_and_one_that_is_killed_is_replaced(tmp_path):
    with raw_server() as upstream, supervised(tmp_path, upstream.url) as running:
        before = running.workers
        assert set(connected_to_each(running)) == before
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in running.workers and running.all_serve())
        assert len(running.workers & before) == 1
        assert set(connected_to_each(running)) == running.workers
        running.process.send_signal(signal.SIGTERM)
        status, err = running.ended()
    assert status == -signal.SIGTERM
    assert re.search(r"worker [12] ended by signal 9: another takes its place", err)
    assert "Traceback" not in err


def test_whoever_connects_while_a_worker_is_replaced_is_answered(tmp_path):
    with raw_server() as upstream, supervised(tmp_path, upstream.url) as running:
        for pid in running.workers:
            os.kill(pid, signal.SIGKILL)
        assert [call(running.base, "GET", "/livez").status for _ in range(20)] == [200] * 20


def test_a_stop_lets_open_streams_of_all_workers_end_and_takes_no_new_request(tmp_path):
    with raw_server() as upstream, supervised(tmp_path, upstream.url) as running:
        upstream.default = lambda seen: (
            stream_head(), *chunks(CONTENT, end=False), 1.0, *chunks(CONTENT, b"data: [DONE]\n\n"),
        )  # fmt: skip
        streams = [Call(running.base, "POST", PATHS["chat"], JSON, b'{"messages":[],"stream":true}') for _ in range(8)]
        for stream in streams:
            stream.head()
            stream.read_until(CONTENT)
        assert {worker_of(running, stream.sock) for stream in streams} <= running.workers
        running.process.send_signal(signal.SIGTERM)
        parts = running.base.removeprefix("http://").split(":")

        def refused() -> bool:
            try:
                socket.create_connection((parts[0], int(parts[1])), timeout=1).close()
            except ConnectionRefusedError:
                return True
            return False

        until(refused, 0.9)
        assert [stream.rest().whole for stream in streams] == [True] * 8
        status, err = running.ended()
    assert status == -signal.SIGTERM
    assert "Traceback" not in err


def test_workers_end_with_a_supervisor_that_was_killed(tmp_path):
    with raw_server() as upstream, supervised(tmp_path, upstream.url) as running:
        workers = running.workers
        running.process.kill()
        until(lambda: not any(Path(f"/proc/{pid}/fd").exists() and listens(pid) for pid in workers))


def test_a_port_that_is_taken_is_refused_to_workers_too(tmp_path):
    with raw_server() as upstream, supervised(tmp_path, upstream.url) as running:
        port = running.base.rpartition(":")[2]
        again = subprocess.run(
            [*COMMAND, "--port", port], capture_output=True, text=True, cwd=tmp_path, timeout=30,
            env={**os.environ, "TIDEGATE_STORE__KIND": "none"},
        )  # fmt: skip
    assert again.returncode == 1
    assert f"127.0.0.1:{port}" in again.stderr


@pytest.mark.parametrize("http", ["own", "uvicorn"])
def test_a_session_whose_turns_come_to_different_workers_keeps_its_checkpoint(tmp_path, http):
    store = {
        "TIDEGATE_STORE__KIND": "sqlite",
        "TIDEGATE_STORE__PATH": str(tmp_path / "store.db"),
        "TIDEGATE_STORE__KEY_FILE": str(tmp_path / "key"),
        "TIDEGATE_SERVER__HTTP": http,
    }
    (tmp_path / "tidegate.toml").write_text('[models."*"]\nwindow = 4000\n')
    with serve(SimulatorSettings(window=4000)) as simulator, supervised(tmp_path, simulator.url, **store) as running:
        sent, headers = json.dumps(history("chat", 14)).encode(), [*JSON, ("Authorization", "Bearer sk-one")]
        first = Call(running.base, "POST", PATHS["chat"], headers, sent)
        first.head()
        compacted_by = worker_of(running, first.sock)
        assert first.rest().action == "compacted"
        seen = set()

        def replayed_elsewhere() -> bool:
            turn = Call(running.base, "POST", PATHS["chat"], headers, sent)
            turn.head()
            by = worker_of(running, turn.sock)
            assert turn.rest().action == "replayed"
            seen.add(by)
            return seen == running.workers

        until(replayed_elsewhere)
        assert compacted_by in seen
        assert len([record for record in simulator.state.records if record.kind == "summary"]) == 1


def test_workers_without_a_common_store_are_warned_of(tmp_path):
    with raw_server() as upstream, supervised(tmp_path, upstream.url, TIDEGATE_STORE__KIND="memory") as running:
        sent = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
        assert post(running.base, PATHS["chat"], sent).status == 200
        running.process.send_signal(signal.SIGINT)
        status, err = running.ended()
    assert (status, "Stopped." in err) == (0, True)
    assert "store.kind = memory: each worker knows only what it has compacted itself" in err
