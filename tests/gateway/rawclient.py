"""A client that sends exactly the bytes a test gives it, and a gateway with a raw upstream to send them through."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rawserver import RawServer, raw_server
from running import settings

from tidegate.gateway.app import App
from tidegate.gateway.server import serving

Pairs = Iterable[tuple[str, str]]
JSON = [("Content-Type", "application/json")]

OURS = "x-tidegate-"


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool = True
    """The answer came to its end."""

    def one(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name]
        assert len(found) <= 1, f"{name} came {len(found)} times"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def action(self) -> str | None:
        return self.one("x-tidegate-action")

    @property
    def reason(self) -> str | None:
        return self.one("x-tidegate-reason")

    @property
    def passed(self) -> list[tuple[str, str]]:
        """Headers without what each hop sets for itself, and without Tidegate's own."""
        hop = ("transfer-encoding", "connection", "keep-alive")
        return [(k.lower(), v) for k, v in self.headers if k.lower() not in hop and not k.lower().startswith(OURS)]


class Call:
    """One request on its own connection."""

    def __init__(self, base: str, method: str, target: str, headers: Pairs = (), body: bytes | None = None) -> None:
        parts = urlsplit(base)
        self.method = method
        self.sock = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=20)
        given = list(headers)
        names = {name.lower() for name, _ in given}
        lines = [f"{method} {target} HTTP/1.1"]
        if "host" not in names:
            lines.append(f"Host: {parts.netloc}")
        lines += [f"{name}: {value}" for name, value in given]
        if body is not None and not names & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(body)}")
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self) -> http.client.HTTPResponse:
        self.response = http.client.HTTPResponse(self.sock, method=self.method)
        self.response.begin()
        return self.response

    def read_until(self, wanted: bytes) -> bytes:
        """Body bytes up to and with some words."""
        got = b""
        while wanted not in got:
            piece = self.response.read1()
            assert piece, f"ended without {wanted!r}: {got!r}"
            got += piece
        return got

    def rest(self) -> Answer:
        response = self.response if hasattr(self, "response") else self.head()
        whole = True
        try:
            body = response.read()
        except http.client.IncompleteRead as cut:
            body, whole = cut.partial, False
        except ConnectionError:
            body, whole = b"", False
        self.close()
        return Answer(response.status, response.getheaders(), body, whole)

    def close(self) -> None:
        if hasattr(self, "response"):
            self.response.close()
        self.sock.close()


def call(base: str, method: str, target: str, headers: Pairs = (), body: bytes | None = None) -> Answer:
    return Call(base, method, target, headers, body).rest()


def post(base: str, target: str, body: Any, *headers: tuple[str, str]) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return call(base, "POST", target, [*JSON, *headers], raw)


@dataclass
class Front:
    """A gateway before a raw upstream."""

    base: str
    app: App
    upstream: RawServer


@contextmanager
def fronted(*, toml: str = "", single: bool = True, **flags: Any) -> Iterator[Front]:
    """`single`: with `--upstream`; else `toml` says where providers are, `{url}` being the raw upstream."""
    with raw_server() as upstream:
        if single:
            flags["upstream"] = upstream.url
        with serving(settings(toml.replace("{url}", upstream.url), **flags)) as (base, app):
            yield Front(base, app, upstream)


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def body(dialect: str, text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A small request."""
    if dialect == "responses":
        return {"model": "shop-model", "input": [{"role": "user", "content": text}], **fields}
    limit = {"max_tokens": 100} if dialect == "messages" else {}
    return {"model": "shop-model", "messages": [{"role": "user", "content": text}], **limit, **fields}


def history(dialect: str, turns: int, *, size: int = 300, last: str = "what next?", **fields: Any) -> dict[str, Any]:
    """A conversation of about `turns * size` tokens."""
    items = []
    for number in range(turns):
        items.append({"role": "user", "content": f"step {number}: " + "please go on, " * (size * 4 // 14)})
        items.append({"role": "assistant", "content": f"done with step {number}"})
    items.append({"role": "user", "content": last})
    key = "input" if dialect == "responses" else "messages"
    return {**body(dialect), key: items, **fields}


def error_of(dialect: str, answer: Answer) -> tuple[str, str]:
    """(message, type) of an error in the dialect's own shape; fails for any other shape."""
    told = answer.json
    if dialect == "messages":
        assert told["type"] == "error", told
    else:
        assert "code" in told["error"], told
    return told["error"]["message"], told["error"]["type"]
