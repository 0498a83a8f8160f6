"""A provider with a window: answers the three APIs, refuses what is too long in their own words, and notes what it got.

Run by the benches: `python window_upstream.py PORT WINDOW SUMMARY_SECONDS`. A token is four bytes of the body.
A request without the benches' output limit is taken for a gateway's own call for a summary, and answered after
SUMMARY_SECONDS. `GET /__notes` tells the requests since it was asked last.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import deque
from dataclasses import dataclass, field

OUTPUT_LIMIT = 77
"""The output limit of the benches' own requests, by which they are known."""
OWN = re.compile(rb'"max_(?:output_|completion_)?tokens": ?%d\b' % OUTPUT_LIMIT)
LEAST_CACHED = 1024
"""Tokens below which nothing is cached."""
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
SUMMARY = (
    "<summary>## Goal\nWork through the steps of PROJECT=MAPLE-47, file after file, and report each as done.\n\n"
    "## State\nThe files read so far hold lines of sample values; none needed a change. No command has failed.\n\n"
    "## Facts\nPROJECT=MAPLE-47. Sources lie in src/, one file a step, named after the step's number. read_file reads "
    "them whole.\n\n## Next\nGo on with the step that the user has asked for last.</summary>"
)


def refusal(path: str, tokens: int, window: int) -> object:
    """What the API says to a request of so many tokens."""
    if path.endswith("/messages"):
        message = f"prompt is too long: {tokens} tokens > {window} maximum"
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    if path.endswith("/responses"):
        message = "Your input exceeds the context window of this model. Please adjust your input and try again."
    else:
        message = (
            f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages."
        )
    kind, parameter = "invalid_request_error", "input" if path.endswith("/responses") else "messages"
    return {"error": {"message": message, "type": kind, "param": parameter, "code": "context_length_exceeded"}}


def answer(path: str, tokens: int, text: str, cached: int = 0) -> object:
    """The API's answer, with the tokens it counted, and how many of them it had cached."""
    if path.endswith("/messages"):
        read = {"input_tokens": tokens - cached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
        usage: dict[str, object] = {**read, "output_tokens": len(text) // 4}
        content: object = [{"type": "text", "text": text}]
        about: dict[str, object] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "bench"}
        return {**about, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    total = tokens + len(text) // 4
    if path.endswith("/responses"):
        usage = {"input_tokens": tokens, "output_tokens": len(text) // 4, "total_tokens": total}
        usage |= {"input_tokens_details": {"cached_tokens": cached}}
        part: object = {"type": "output_text", "text": text, "annotations": []}
        message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
        about = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "bench"}
        return {**about, "output": [message], "parallel_tool_calls": True, "tools": [], "usage": usage}
    usage = {"prompt_tokens": tokens, "completion_tokens": len(text) // 4, "total_tokens": total}
    usage |= {"prompt_tokens_details": {"cached_tokens": cached}}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    about = {"id": "c1", "object": "chat.completion", "created": 1, "model": "bench"}
    return {**about, "choices": [choice], "usage": usage}


def shared(one: bytes, other: bytes) -> int:
    """How many first bytes two bodies share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


@dataclass(slots=True)
class Provider:
    """The window in tokens, how long a summary takes, and what was asked: path, whether our own, status, body."""

    window: int
    summary_seconds: float
    asked: list[tuple[str, bool, int, bytes]] = field(default_factory=list)
    recent: deque[bytes] = field(default_factory=lambda: deque(maxlen=4))
    """What its cache holds: the newest bodies."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until its client closes it."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
                length = LENGTH.search(head)
                body = await reader.readexactly(int(length[1])) if length else b""
                status, value = await self.answer(method, target.split("?")[0], body)
                content = json.dumps(value).encode()
                start = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\ncontent-type: application/json\r\n"
                writer.write(start.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        """Status and body of the answer to a request."""
        if path == "/__notes":
            return 200, self.notes()
        if method == "GET" and path.endswith("/models"):
            return 200, {"object": "list", "data": [{"id": "bench", "object": "model"}]}
        if not path.endswith(("/chat/completions", "/messages", "/responses")):
            return 404, {"error": {"message": f"not found: {path}"}}
        tokens, own = len(body) // 4, OWN.search(body) is not None
        fits = tokens <= self.window
        self.asked.append((path, own, 200 if fits else 400, body))
        if not fits:
            return 400, refusal(path, tokens, self.window)
        cached = min(tokens, self.cached(body) // 4)
        self.recent.append(body)
        if not own:
            await asyncio.sleep(self.summary_seconds)
        return 200, answer(path, tokens, "Done." if own else SUMMARY, cached if cached >= LEAST_CACHED else 0)

    def cached(self, body: bytes) -> int:
        """How many first bytes of a body its cache holds. Turns mostly go on from the newest."""
        most = 0
        for before in reversed(self.recent):
            most = max(most, shared(body, before))
            if most * 10 > len(before) * 9:
                break
        return most

    def notes(self) -> list[dict[str, object]]:
        """What was asked, which is forgotten."""
        asked, self.asked = self.asked, []
        return [
            {"path": path, "own": own, "status": status, "body": body.decode()} for path, own, status, body in asked
        ]


async def main(port: int, window: int, summary_seconds: float) -> None:
    provider = Provider(window, summary_seconds)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", port, limit=1 << 20, backlog=256)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
