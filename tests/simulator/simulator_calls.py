"""Calls the simulator in memory, and small bodies that break no rule."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from tidegate.simulator import SimulatorApp, SimulatorSettings, create_app

_RUNNER = asyncio.Runner()
"""One event loop for all calls: starting one for each costs more than the call."""

KEYS = {"authorization": "Bearer any", "anthropic-version": "2023-06-01"}

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PATHS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CHAT_TOOL = {"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}
RESPONSES_TOOL = {"type": "function", "name": "read_file", "parameters": SCHEMA}
MESSAGES_TOOL = {"name": "read_file", "input_schema": SCHEMA}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes
    parts: list[bytes] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> str:
        """The error's words, in any of the shapes."""
        body = self.json
        inner = body.get("error", body.get("detail", body))
        return inner if isinstance(inner, str) else inner["message"]

    @property
    def events(self) -> list[Any]:
        """The data of each event, JSON where it is JSON."""
        return [
            json.loads(data) if data.startswith("{") else data
            for line in self.raw.decode().replace("\r\n", "\n").split("\n")
            if line.startswith("data: ")
            for data in [line.removeprefix("data: ")]
        ]


def app_of(**settings: Any) -> SimulatorApp:
    return create_app(SimulatorSettings(**settings))


def call(
    app: SimulatorApp, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = "POST"
) -> Answer:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return _RUNNER.run(_call(app, path, data, KEYS if headers is None else headers, method))


async def _call(app: SimulatorApp, path: str, data: bytes, headers: dict[str, str], method: str) -> Answer:
    sent: list[Any] = []
    arrived = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Any:
        if arrived:
            return arrived.pop(0)
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)
    parts = [message["body"] for message in sent[1:] if message["body"]]
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], names, b"".join(parts), parts)


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4.1", "messages": list(messages) or [user("Hello.")], **more}


def responses(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-5.1", "input": list(items) or [user("Hello.")], **more}


def messages(*entries: Any, **more: Any) -> dict[str, Any]:
    return {"model": "claude-sonnet-4-5", "max_tokens": 500, "messages": list(entries) or [user("Hello.")], **more}


BODIES = {"chat": chat, "responses": responses, "messages": messages}


def plain(dialect: str, text: str, **more: Any) -> dict[str, Any]:
    """A request of one user message."""
    return BODIES[dialect](user(text), **more)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def text_of(dialect: str, body: Any) -> str:
    """The words of an answer."""
    if dialect == "chat":
        return body["choices"][0]["message"]["content"] or ""
    if dialect == "responses":
        return "".join(part.get("text", "") for item in body["output"] for part in item.get("content", []))
    return "".join(block.get("text", "") for block in body["content"])


def finish_of(dialect: str, body: Any) -> str:
    """Why an answer ended, as its API says it."""
    if dialect == "chat":
        return body["choices"][0]["finish_reason"]
    if dialect == "responses":
        return (body["incomplete_details"] or {}).get("reason", body["status"])
    return body["stop_reason"]


def input_tokens(dialect: str, body: Any) -> int:
    usage = body["usage"]
    if dialect == "chat":
        return usage["prompt_tokens"]
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
