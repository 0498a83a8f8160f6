"""Histories, and a hand that makes a strategy's calls to a simulated provider, for the tests of native compaction."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tidegate.compactors.strategy import Call, Minted, Passage, Reply
from tidegate.simulator import Simulator
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName

_CLIENT = httpx.Client(trust_env=False)
"""One for all: making one costs more than a call."""

KEY = {"authorization": "Bearer sk-a", "anthropic-version": "2023-06-01"}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str, role: str = "developer") -> dict[str, Any]:
    return {"role": role, "content": text}


def asked(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "read_file", "arguments": "{}"}


def result(name: str, output: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": output}


def raw(item: Any) -> bytes:
    return json.dumps(item, ensure_ascii=False).encode()


def body_of(dialect: DialectName, items: Sequence[Any], **fields: Any) -> bytes:
    key = REQUESTS[dialect].ITEMS_KEY
    return json.dumps({"model": "m-1", key: list(items), **fields}).encode()


def passage_of(
    dialect: DialectName,
    items: Sequence[Any],
    *,
    tail: Sequence[Any] = (),
    retained: tuple[int, ...] = (),
    lead: Sequence[Any] = (),
    earlier: Sequence[bytes] = (),
    size: int = 0,
    window: int | None = None,
    **fields: Any,
) -> Passage:
    """The passage that a request of `lead`, `items` and `tail` is cut into before its tail; `earlier` stands for what a
    compaction put in the place of the items before these."""
    conversation = REQUESTS[dialect].read(body_of(dialect, [*lead, *items, *(tail or [user("On.")])], **fields))
    start = conversation.lead
    own = tuple(conversation.items[start + n].raw for n in range(len(items)))
    return Passage(conversation, (*earlier, *own), retained, conversation.model, window, size)


@dataclass
class Provider:
    """A simulated provider, asked over HTTP as a driver would."""

    simulator: Simulator
    prefix: str = "/v1"
    headers: dict[str, str] = field(default_factory=lambda: dict(KEY))
    calls: list[Call] = field(default_factory=list)
    timeout: float = 10.0

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        url = f"{self.simulator.url}{self.prefix}{path}"
        sent = {"content-type": "application/json", **self.headers, **(headers or {})}
        return _CLIENT.post(url, content=body, headers=sent, timeout=self.timeout)

    def answer(self, call: Call) -> Reply:
        self.calls.append(call)
        try:
            response = self.post(call.path, call.body, dict(call.add_headers))
        except httpx.HTTPError as error:
            return Reply(0, error=type(error).__name__)
        return Reply(response.status_code, response.content, dict(response.headers))

    def run(self, work: Generator[Call, Reply, Minted]) -> Minted:
        """The result of a strategy's work. Raises `CompactionFailed`."""
        return drive(work, self.answer)

    def violations(self) -> list[str]:
        return [violation.rule for violation in self.simulator.state.violations]


def drive(work: Generator[Call, Reply, Minted], answer: Any) -> Minted:
    try:
        call = next(work)
        while True:
            call = work.send(answer(call))
    except StopIteration as done:
        minted: Minted = done.value
        return minted


def first_call(work: Generator[Call, Reply, Minted]) -> Call:
    return next(work)


def parsed(items: Sequence[bytes]) -> list[Any]:
    return [json.loads(item) for item in items]
