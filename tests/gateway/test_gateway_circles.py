"""A request that is over leaves nothing behind for the collector of circles: its body goes at once."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from running import settings

from tidegate.gateway.arrival import Arrival
from tidegate.gateway.server import build

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 50}]}).encode()
ANSWER = json.dumps(
    {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 80, "completion_tokens": 1, "total_tokens": 81},
    }
).encode()  # fmt: skip
EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'


class Answer:
    """What an upstream gives, at once."""

    def __init__(self, listener: Any) -> None:
        self.listener, self.status, self.headers = listener, 0, []
        self.pieces: list[bytes] = []

    def take(self) -> bytes | None:
        return self.pieces.pop(0) if self.pieces else b""

    def expect(self, seconds: float) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def abandon(self) -> None: ...


class Line:
    on_gone: Any = None
    on_resume: Any = None
    paused = False

    def __init__(self, arrival: Arrival) -> None:
        self.arrival, self.body, self.status, self.ended = arrival, BODY, 0, False

    def start(self, status: int, headers: Any, *, soon: bool = False) -> None:
        self.status = status

    def write(self, piece: bytes) -> None: ...

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "body"), [("application/json", ANSWER), ("text/event-stream", EVENTS)], ids=["whole", "stream"]
)
async def test_an_ordinary_exchange_leaves_no_circle(kind: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    app = build(settings(upstream="http://127.0.0.1:9"), {})
    sent: list[Answer] = []

    def send_now(request: Any, listener: Any, timeouts: Any = None) -> Answer:
        sent.append(Answer(listener))
        return sent[-1]

    monkeypatch.setattr(type(app.pool), "send_now", lambda self, *args: send_now(*args))

    def once() -> None:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"authorization", b"Bearer k")]
        line = Line(Arrival("POST", "/v1/chat/completions", b"", headers))
        assert app.gathers(line.arrival)
        assert app.at_once(line)  # type: ignore[arg-type]
        answer = sent.pop()
        answer.status, answer.headers, answer.pieces = 200, [(b"content-type", kind.encode())], [body]
        answer.listener(True)
        assert (line.status, line.ended) == (200, True)

    for _ in range(5):
        once()
    gc.collect()
    gc.disable()
    try:
        once()
        assert gc.collect() == 0
    finally:
        gc.enable()
