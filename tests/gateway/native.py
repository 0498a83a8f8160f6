"""Agents without an SDK (whose own reading of a long input takes longer than all else), and gateways in front of
providers that compact by themselves."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from agents import Agent, Messages, Responses, Turn
from running import Running, settings

from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings, serve
from tidegate.simulator.context_settings import ContextManagement

Json = dict[str, Any]
WINDOW = 8000
LEAST_TRIGGER = 1000
"""Of Claude's compaction at a threshold: windows as small as these are none of Anthropic's."""


@dataclass(frozen=True)
class Way:
    """A provider that compacts by itself, and who speaks to it."""

    strategy: str
    profile: str
    provider: str
    api: str
    model: str
    root: str = ""
    """Where the simulated provider has its API."""
    path: str = ""
    """Where the client asks, if not under the provider's name."""


WAYS = {
    "openai": Way("openai", "openai", "openai", "responses", "gpt-5.1"),
    "azure": Way("openai", "azure", "azure", "responses", "our-deployment", "/openai"),
    "codex": Way(
        "openai-trigger",
        "codex",
        "chatgpt",
        "responses",
        "gpt-6.1-sol",
        "/backend-api/codex",
        "/backend-api/codex/responses",
    ),
    "xai": Way("xai", "xai", "xai", "responses", "grok-4.7"),
    "anthropic": Way("anthropic", "anthropic", "anthropic", "messages", "claude-sonnet-4-6"),
    "foundry": Way("anthropic", "foundry", "foundry", "messages", "claude-sonnet-4-6", "/anthropic"),
    "bedrock": Way("anthropic", "bedrock", "bedrock", "messages", "anthropic.claude-sonnet-4-6"),
}


class Posting:
    """Asks by a plain POST on one connection."""

    path: str
    base: str
    key: str
    stream: bool
    connection: http.client.HTTPConnection | None = None

    def post(self, body: Json) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of the answer."""
        if self.connection is None:
            host = self.base.removeprefix("http://")
            self.connection = http.client.HTTPConnection(host, timeout=30)
        raw = json.dumps(body)
        self.connection.request("POST", self.path, raw, self.headers())
        response = self.connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()

    def headers(self) -> dict[str, str]:
        return {"content-type": "application/json", "authorization": f"Bearer {self.key}"}

    def moved(self, base: str) -> None:
        """Goes on at another gateway, or with another key."""
        self.base, self.connection = base, None


class Refused(Exception):
    """The client got an error."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(f"{status} {body[:400]!r}")
        self.status, self.headers, self.body = status, headers, body


class PlainResponses(Posting, Responses):
    path = "/v1/responses"

    def ask(self) -> Turn:
        status, headers, raw = self.post({**self.request(), "stream": self.stream})
        if status != 200:
            raise Refused(status, headers, raw)
        items = done(raw) if self.stream else json.loads(raw)["output"]
        made = [{key: value for key, value in item.items() if value is not None} for item in items]
        calls = [item["call_id"] for item in made if item["type"] == "function_call"]
        return self.take(Turn(made, calls, headers))


class PlainMessages(Posting, Messages):
    path = "/v1/messages"
    transformed: tuple[Json, ...] | list[Json] = ()
    """What the API dropped of the requests."""

    def headers(self) -> dict[str, str]:
        return {"content-type": "application/json", "x-api-key": self.key, "anthropic-version": "2023-06-01"}

    def ask(self) -> Turn:
        status, headers, raw = self.post(self.request())
        if status != 200:
            raise Refused(status, headers, raw)
        answer = json.loads(raw)
        self.transformed = [*self.transformed, *answer.get("input_transformations", ())]
        blocks = answer["content"]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        return self.take(Turn([{"role": "assistant", "content": blocks}], calls, headers))


def done(stream: bytes) -> list[Json]:
    """The items of a streamed response, as each was when it was done."""
    events = [json.loads(line[5:]) for line in stream.decode().splitlines() if line.startswith("data: {")]
    if any(event.get("type") in ("error", "response.failed") for event in events):
        raise Refused(200, {}, stream)
    return [event["item"] for event in events if event.get("type") == "response.output_item.done"]


def agent_at(gate: Running, way: Way, *, key: str = "sk-agent-1") -> Agent:
    kind = PlainResponses if way.api == "responses" else PlainMessages
    agent = kind(gate.base, model=way.model, stream=way.profile == "codex", key=key)
    agent.path = way.path or f"/{way.provider}{agent.path}"
    return agent


def toml_of(way: Way, url: str, least: int = LEAST_TRIGGER) -> str:
    root = f"{url}{way.root}"
    key = f"base_urls.{way.api}" if way.provider in ("foundry", "bedrock") else "base_url"
    trigger = f"minimum_trigger = {{ anthropic = {least} }}\n" if way.api == "messages" else ""
    return f'[providers.{way.provider}]\n{key} = "{root}"\n{trigger}'


@contextmanager
def natively(
    way: Way,
    *,
    window: int = WINDOW,
    known: bool = True,
    toml: str = "",
    flags: Json | None = None,
    least: int = LEAST_TRIGGER,
    **simulated: Any,
) -> Iterator[Running]:
    """A gateway in front of a simulated provider under its own name."""
    given = {"window": window, "tool_rounds": 10**6, "profile": way.profile, **simulated}
    if way.api == "messages":
        given["context"] = replace(given.get("context", ContextManagement()), least_trigger=LEAST_TRIGGER)
    with serve(SimulatorSettings(**given)) as simulator:
        sized = f'[models."*"]\nwindow = {window}\n' if known else ""
        whole = toml_of(way, simulator.url, least) + sized + toml
        with serving(settings(whole, **(flags or {}))) as (base, app):
            yield Running(base, app, simulator)


def leave(base: str, path: str, body: Json, when: Callable[[], bool]) -> None:
    """Posts a request and goes away, once something is so, without having had an answer."""
    host, port = base.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    with socket.create_connection((host, int(port))) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer sk-agent-1\r\n"
        client.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        soon(when)


def soon(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
