"""An agent that works in steps and sends its whole history each time, on each API; and what came of it upstream.

Knows two shapes: `steps`, where a user asks for each step, and `task`, where a user asks once and the agent goes on by
itself, so that no boundary but calls and results is left to cut at.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal
from urllib.parse import urlsplit

from rig.bodies import MODEL, PATHS, Api, Item, code
from rig.native import KEY
from rig.window_upstream import OUTPUT_LIMIT

Shape = Literal["steps", "task"]
SYSTEM = "You are a coding agent. Work step by step, and read before you write."


@dataclass(slots=True)
class Agent:
    """A session that grows by a turn a request, through the gateway at `url`."""

    api: Api
    shape: Shape
    url: str
    result_bytes: int
    name: str = ""
    turn: int = 0
    history: list[Item] = field(default_factory=list)
    connection: http.client.HTTPConnection | None = None

    def act(self) -> Turn:
        """One turn more: sends the history with it."""
        self.history += _step(self.api, self.shape, self.turn, self.name, self.result_bytes)
        body = json.dumps(_request(self.api, self.history)).encode()
        began = time.perf_counter()
        status, action, reason, answer = self._post(body)
        seconds = time.perf_counter() - began
        if self.shape == "steps":
            self.history += _said(self.api, f"Done step {self.turn}.")
        self.turn += 1
        return Turn(status if b'"error"' not in answer[:80] else 0, seconds, action, reason)

    def _post(self, body: bytes) -> tuple[int, str, str, bytes]:
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        if self.api == "messages":
            headers |= {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
        for _ in range(2):  # a gateway may have closed the connection since the last turn
            try:
                if self.connection is None:
                    where = urlsplit(self.url)
                    self.connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)
                self.connection.request("POST", PATHS[self.api], body, headers)
                answer = self.connection.getresponse()
                action, reason = (answer.headers.get(f"x-tidegate-{name}", "") for name in ("action", "reason"))
                return answer.status, action, reason, answer.read()
            except (OSError, http.client.HTTPException):
                self.connection = None
        return 0, "", "", b""


@dataclass(frozen=True, slots=True)
class Turn:
    """How a turn ended: HTTP status (0: none, or an error in a good one), seconds, what Tidegate says of it."""

    status: int
    seconds: float
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a session upstream; sizes are tokens of four characters.

    `kept` of `kept_of` requests that did not shrink began with the whole one before them, as a prompt cache needs. New
    and reused tokens count every call, summaries too: what an earlier call began with is reused. `whole` requests had
    the newest result as the tool gave it.
    """

    requests: int
    whole: int
    orphans: int
    kept: int
    kept_of: int
    new: int
    reused: int
    summaries: int
    refused: int

    @property
    def cost(self) -> int:
        return self.new + self.reused // 10


def seen(notes: Sequence[dict[str, object]], results: Collection[str]) -> Seen:
    """Reads the upstream's notes of one session, in which tools gave these results."""
    calls = [(note["own"], json.loads(str(note["body"]))) for note in notes if note["status"] == 200]
    own = [body for mine, body in calls if mine]
    texts: list[str] = []
    new = reused = 0
    for _, body in calls:
        text = _text(body)
        shared = max((_shared(text, earlier) for earlier in texts), default=0)
        new, reused = new + len(text) - shared, reused + shared
        texts.append(text)
    grown = [(before, after) for before, after in pairwise(own) if len(_text(after)) >= len(_text(before))]
    kept = sum(_begins_with(after, before) for before, after in grown)
    refused = sum(note["status"] != 200 for note in notes)
    orphans = sum(_orphans(_list(body)) for body in own)
    whole = sum(_newest(_list(body)) in results for body in own)
    return Seen(len(own), whole, orphans, kept, len(grown), new // 4, reused // 4, len(calls) - len(own), refused)


# --- what is sent ---------------------------------------------------------------------------------------------------


def tool_result(number: int, size: int) -> str:
    """What the tool gives in a turn: `size` characters of code."""
    return code(random.Random(number), size // 50)[:size]


def _step(api: Api, shape: Shape, number: int, name: str, result_bytes: int) -> list[Item]:
    call, arguments = f"call_{number}", {"path": f"src/f{number}.py"}
    result = tool_result(number, result_bytes)
    words = f"{name} PROJECT=MAPLE-47: do step {number}." if shape == "steps" else f"{name} PROJECT=MAPLE-47: do all."
    user: list[Item] = [{"role": "user", "content": words}] if shape == "steps" or number == 0 else []
    if api == "chat":
        function = {"name": "read_file", "arguments": json.dumps(arguments)}
        calls = [{"id": call, "type": "function", "function": function}]
        return [
            *user,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": result},
        ]
    if api == "messages":
        use = {"type": "tool_use", "id": call, "name": "read_file", "input": arguments}
        back = {"type": "tool_result", "tool_use_id": call, "content": result}
        return [*user, {"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]
    return [
        *user,
        {"type": "function_call", "call_id": call, "name": "read_file", "arguments": json.dumps(arguments)},
        {"type": "function_call_output", "call_id": call, "output": result},
    ]


def _said(api: Api, words: str) -> list[Item]:
    if api == "responses":
        part = {"type": "output_text", "text": words}
        return [{"type": "message", "role": "assistant", "content": [part]}]
    return [{"role": "assistant", "content": words}]


def _request(api: Api, history: Sequence[Item]) -> Item:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    about = {"name": "read_file", "description": "Reads a file."}
    if api == "chat":
        tool = {"type": "function", "function": {**about, "parameters": schema}}
        messages = [{"role": "system", "content": SYSTEM}, *history]
        return {"model": MODEL, "messages": messages, "max_tokens": OUTPUT_LIMIT, "tools": [tool]}
    if api == "messages":
        tool = {**about, "input_schema": schema}
        return {"model": MODEL, "system": SYSTEM, "messages": history, "max_tokens": OUTPUT_LIMIT, "tools": [tool]}
    tool = {"type": "function", **about, "parameters": schema}
    limit = {"max_output_tokens": OUTPUT_LIMIT}
    return {"model": MODEL, "instructions": SYSTEM, "input": history, **limit, "tools": [tool]}


# --- what arrived ---------------------------------------------------------------------------------------------------


def _list(body: Item) -> list[Item]:
    items = body.get("messages") or body.get("input") or []
    return items if isinstance(items, list) else [{"role": "user", "content": items}]


def _front(body: Item) -> list[object]:
    return [body.get("tools"), body.get("system"), body.get("instructions")]


def _text(body: Item) -> str:
    """The prompt in the order that providers' caches see it."""
    return json.dumps([_front(body), _list(body)], ensure_ascii=False)


def _shared(one: str, other: str) -> int:
    """How many first characters two texts share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one.startswith(other[:middle]) else (low, middle - 1)
    return low


def _begins_with(body: Item, before: Item) -> bool:
    return _front(body) == _front(before) and _list(body)[: len(_list(before))] == _list(before)


def _orphans(items: Sequence[Item]) -> int:
    """Results without their call, and calls without their result."""
    called: set[object] = set()
    returned: set[object] = set()
    early = 0
    for item in items:
        calls, results = _ids(item)
        early += sum(result not in called for result in results)
        called.update(calls)
        returned.update(results)
    return early + len(called - returned)


def _newest(items: Sequence[Item]) -> object:
    """The text of the last result, whichever way it is written."""
    for item in reversed(items):
        content = item.get("output") if item.get("type") == "function_call_output" else item.get("content")
        if item.get("role") == "tool" or item.get("type") == "function_call_output":
            return _plain(content)
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        results = [part for part in parts if part.get("type") == "tool_result"]
        if results:
            return _plain(results[-1].get("content"))
    return None


def _plain(content: object) -> object:
    """A text, or that of a list's one part."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        return content[0].get("text")
    return content if isinstance(content, str) else None


def _ids(item: Item) -> tuple[list[object], list[object]]:
    """Ids of the calls and of the results in an item."""
    if item.get("type") == "function_call":
        return [item.get("call_id")], []
    if item.get("type") == "function_call_output":
        return [], [item.get("call_id")]
    if item.get("role") == "tool":
        return [], [item.get("tool_call_id")]
    calls, content = item.get("tool_calls"), item.get("content")
    ids = [call["id"] for call in calls] if isinstance(calls, list) else []
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    ids += [part.get("id") for part in parts if part.get("type") == "tool_use"]
    return ids, [part.get("tool_use_id") for part in parts if part.get("type") == "tool_result"]
