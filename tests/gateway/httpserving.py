"""An application that tells what it was asked, served by each server, and a client that sends bytes as they are."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tidegate.gateway.arrival import Arrival, Receive, Scope, Send
from tidegate.gateway.http1 import Limits
from tidegate.gateway.http1_line import Line
from tidegate.gateway.listening import OwnServer, Server, UvicornServer

LARGEST = 1000
"""Bytes of a body that the application takes."""


def told(method: str, target: str, headers: Any, body: bytes) -> bytes:
    pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
    return json.dumps({"method": method, "target": target, "headers": pairs, "body": body.decode("latin-1")}).encode()


def answer_of(body: bytes, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]


class Echo:
    """Answers with what it was asked. Over ASGI alone."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        self.calls += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > LARGEST:
                await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
                await send({"type": "http.response.body"})
                return
        query = scope["query_string"]
        target = scope["raw_path"].decode("latin-1") + ("?" + query.decode("latin-1") if query else "")
        said = told(scope["method"], target, scope["headers"], body)
        await send({"type": "http.response.start", "status": 200, "headers": answer_of(said)})
        await send({"type": "http.response.body", "body": said})


class PlainEcho(Echo):
    """The same with plain calls, where a body is small enough."""

    def gathers(self, arrival: Arrival) -> bool:
        return True

    def at_once(self, line: Line) -> bool:
        arrival = line.arrival
        self.calls += 1
        query = arrival.query.decode("latin-1")
        body = told(arrival.method, arrival.path + ("?" + query if query else ""), arrival.headers, line.body)
        line.start(200, answer_of(body))
        line.write(body)
        line.end()
        return True


def echo_server(kind: str, limits: Limits | None = None) -> tuple[Echo, Server]:
    app = PlainEcho() if kind == "plain" else Echo()
    if kind == "uvicorn":
        return app, UvicornServer(app, drain_seconds=1)
    return app, OwnServer(app, limits or Limits(body_bytes=LARGEST), drain_seconds=1)


@dataclass
class Served:
    port: int
    app: Any
    server: Server
    kind: str = ""
    sockets: list[socket.socket] = field(default_factory=list)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets.append(sock)
        return sock


@contextmanager
def served(app: Any, server: Server, kind: str = "") -> Iterator[Served]:
    bound = socket.create_server(("127.0.0.1", 0), backlog=100)
    bound.setblocking(False)
    thread = threading.Thread(target=server.run, args=(bound,), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.002)
    running = Served(bound.getsockname()[1], app, server, kind)
    try:
        yield running
    finally:
        for sock in running.sockets:
            sock.close()
        server.stop()
        thread.join(10)
        assert not thread.is_alive()


@dataclass
class Outcome:
    statuses: list[int]
    bodies: list[bytes]
    headers: list[dict[str, str]]
    closed: bool
    """The server closed after the last answer."""

    @property
    def asked(self) -> list[Any]:
        """What the application was asked, for each answer of its own."""
        return [json.loads(body) for status, body in zip(self.statuses, self.bodies, strict=True) if status == 200]


class _Lasting:
    """A socket whose answers can be read one after another: `http.client` would take what belongs to the next."""

    def __init__(self, sock: socket.socket) -> None:
        self.file = sock.makefile("rb")

    def makefile(self, mode: str) -> Any:
        return _Open(self.file)


class _Open:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def close(self) -> None:
        """Not yet."""


def read_answers(sock: socket.socket, count: int, method: str = "GET", wait: float = 0.05) -> Outcome:
    """Up to `count` answers, and whether the server closes within `wait` seconds after them."""
    lasting = _Lasting(sock)
    found = Outcome([], [], [], closed=False)
    for _ in range(count):
        response = http.client.HTTPResponse(lasting, method=method)  # type: ignore[arg-type]
        try:
            response.begin()
            found.bodies.append(response.read())
        except (http.client.BadStatusLine, ConnectionError):
            found.closed = True
            return found
        found.statuses.append(response.status)
        found.headers.append({name.lower(): value for name, value in response.getheaders()})
    sock.settimeout(wait)
    try:
        found.closed = lasting.file.read(1) == b""
    except TimeoutError:
        pass
    except ConnectionError:
        found.closed = True
    return found


def ask(running: Served, raw: bytes, count: int, *, wait: float = 0.05) -> Outcome:
    sock = running.connect()
    sock.sendall(raw)
    return read_answers(sock, count, raw.split(b" ")[0].decode("latin-1"), wait)
