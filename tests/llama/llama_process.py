"""Starts a llama.cpp server or a gateway as a process of its own, and speaks plain HTTP to it."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tidegate.wire import ANSWERS
from tidegate.wire.conversation import Answer, DialectName

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
START_SECONDS = 60.0


@dataclass(frozen=True)
class Answered:
    """An HTTP answer, whole."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


@contextmanager
def started(command: Sequence[str], environ: Mapping[str, str], log: Path) -> Iterator[str]:
    """Runs a program until the block is left; gives the URL from its `listening on URL` line. Its words go to `log`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    with log.open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, env={**inherited, **environ})
    try:
        yield _url(process, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    out = process.stdout
    assert out is not None
    said = b""
    deadline = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as ready:
        ready.register(out, selectors.EVENT_READ)
        while time.monotonic() < deadline and ready.select(deadline - time.monotonic()):
            chunk = os.read(out.fileno(), 65_536)
            said += chunk
            for line in said.splitlines():
                if b"listening on http" in line and said.endswith(b"\n"):
                    return line.split(b"listening on ")[1].split()[0].decode().rstrip("/")
            if not chunk:
                break
    raise AssertionError(f"the server did not start: {said!r} {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def llama(model: Path, log: Path, *, context: int = 2048, slots: int = 1, unified: bool = False) -> Iterator[str]:
    """A llama.cpp server with this model; its URL."""
    script = Path(__file__).with_name("serve_gguf.py")
    command = [sys.executable, str(script), str(model), "--context", str(context), "--slots", str(slots)]
    # Passive: threads that wait for work must not take the processor from those that have some.
    with started(command + ["--unified"] * unified, {"OMP_WAIT_POLICY": "PASSIVE"}, log) as url:
        deadline = time.monotonic() + START_SECONDS
        while get(f"{url}/health").status != 200:
            assert time.monotonic() < deadline, "the model did not load"
            time.sleep(0.02)
        yield url


@contextmanager
def gateway(upstream: str, folder: Path, *extra: str, asks: bool = False) -> Iterator[str]:
    """`tidegate serve` before this upstream, with a data folder of its own; its URL. `asks`: it asks the server for its
    window, as it does unless it is told not to."""
    command = [sys.executable, "-m", "tidegate", "serve", "--upstream", upstream, "--port", "0", *extra]
    environ = {
        "TIDEGATE_STORE__PATH": str(folder / "tidegate.db"),
        "XDG_DATA_HOME": str(folder),
        "TIDEGATE_UPSTREAM__ASK_WINDOWS": "true" if asks else "false",
    }
    with started(command, environ, folder / "gateway.log") as url:
        yield url


@contextmanager
def recording(upstream: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A relay before a server: its URL, and the bodies of all that was asked through it, in order."""
    asked: list[dict[str, Any]] = []

    class Relay(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append(json.loads(body))
            answered = post(upstream + self.path, body)
            self.send_response(answered.status)
            self.send_header("content-type", answered.headers["content-type"])
            self.send_header("content-length", str(len(answered.body)))
            self.end_headers()
            self.wfile.write(answered.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Relay) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def get(url: str) -> Answered:
    return _answered(urllib.request.Request(url))


def post(url: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> Answered:
    sent = {"content-type": "application/json", "authorization": "Bearer local", **(headers or {})}
    return _answered(urllib.request.Request(url, body if isinstance(body, bytes) else json.dumps(body).encode(), sent))


def _answered(request: urllib.request.Request) -> Answered:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=300) as reply:
            return Answered(reply.status, reply.read(), {k.lower(): v for k, v in reply.headers.items()})
    except urllib.error.HTTPError as refused:
        with refused:
            return Answered(refused.code, refused.read(), {k.lower(): v for k, v in refused.headers.items()})


def turn(
    dialect: str, history: Sequence[Mapping[str, Any]], *, stream: bool = False, limit: int = 128, model: str = "local"
) -> dict[str, Any]:
    """Body of a request with these items."""
    limits = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
    items = "input" if dialect == "responses" else "messages"
    # Agents ask for the usage of a stream; the other two APIs tell it unasked.
    usage = {"stream_options": {"include_usage": True}} if stream and dialect == "chat" else {}
    return {"model": model, items: list(history), limits[dialect]: limit, "stream": stream, **usage}


def words(item: Mapping[str, Any]) -> str:
    """The text of a message, whichever way it is written."""
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def said(dialect: str, role: str, text: str) -> dict[str, Any]:
    """A message as a client sends it again."""
    if dialect == "responses" and role == "assistant":
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {"type": "message", "role": role, "content": content, "status": "completed"}
    return {"role": role, "content": text}


@dataclass
class Chat:
    """A client that keeps the whole conversation and sends it again each turn, as agents do."""

    base: str
    dialect: DialectName
    stream: bool = False
    limit: int = 128
    model: str = "local"
    """Any name will do for a server with one model; the gateway learns windows by it."""
    history: list[dict[str, Any]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    """What the gateway's header said of every turn."""

    def ask(self, text: str) -> Answered:
        """One turn; its answer joins the history if it is one."""
        self.history.append(said(self.dialect, "user", text))
        body = turn(self.dialect, self.history, stream=self.stream, limit=self.limit, model=self.model)
        answered = post(self.base + PATHS[self.dialect], body)
        self.actions.append(answered.headers.get("x-tidegate-action", ""))
        if answered.status == 200:
            self.history.append(said(self.dialect, "assistant", self.read(answered).text))
        return answered

    def read(self, answered: Answered) -> Answer:
        """An answer as text, finish and usage."""
        return ANSWERS[self.dialect].read_answer(answered.body)
