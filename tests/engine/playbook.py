"""Tells an exchange as a script: expect an effect, answer it, expect the next. Notices are collected, not answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.engine.effects import Compact, Effect, Head, Made, Notify
from tidegate.engine.exchange import Life

E = TypeVar("E", bound=Effect)


class Playbook:
    """`<<` is not needed: `expect` returns the effect, `reply` and `fail` go on."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.notices: list[Notify] = []
        self.effect: Effect | None = None
        self._advance(lambda: next(life))

    def _advance(self, step: Callable[[], Effect]) -> None:
        try:
            effect = step()
            while isinstance(effect, Notify):
                self.notices.append(effect)
                effect = self.life.send(None)
            self.effect = effect
        except StopIteration:
            self.effect = None

    def expect(self, kind: type[E]) -> E:
        assert isinstance(self.effect, kind), f"expected {kind.__name__}, got {self.effect!r}"
        return self.effect

    def reply(self, result: object = None) -> Playbook:
        self._advance(lambda: self.life.send(result))
        return self

    def fail(self, error: Exception) -> Playbook:
        self._advance(lambda: self.life.throw(error))
        return self

    def summarise(
        self, text: str = "## Goal\nMend the failing tests of the shop, file by file.", calls: list[Call] | None = None
    ) -> Playbook:
        """Answers a `Compact` by running its work against a model that says `text`."""
        work = self.expect(Compact).work()
        try:
            call = next(work)
            while True:
                if calls is not None:
                    calls.append(call)
                call = work.send(chat_reply(text))
        except StopIteration as end:
            made: Made = end.value
            return self.reply(made)
        except CompactionFailed as error:
            return self.fail(error)

    def done(self) -> None:
        assert self.effect is None, f"expected the end, got {self.effect!r}"

    def events(self) -> list[str]:
        return [notice.event for notice in self.notices]

    def detail(self, event: str) -> dict[str, Any]:
        return next(dict(notice.detail) for notice in self.notices if notice.event == event)


def chat_reply(text: str, finish: str = "stop") -> Reply:
    body = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }  # fmt: skip
    return Reply(200, json.dumps(body).encode(), {"content-type": "application/json"})


def ok(number: int = 0) -> Head:
    return Head(number, 200, {"content-type": "application/json"})


def overflow(number: int = 0, *, window: int = 8000, tokens: int = 9000, in_stream: bool = False) -> Head:
    error = {
        "message": f"This model's maximum context length is {window} tokens. However, your messages resulted in "
        f"{tokens} tokens. Please reduce the length of the messages.",
        "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded",
    }  # fmt: skip
    return Head(number, 200 if in_stream else 400, {}, json.dumps({"error": error}).encode(), in_stream)


def refused(
    number: int, status: int, message: str, *, code: str | None = None, kind: str = "invalid_request_error"
) -> Head:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Head(number, status, {}, json.dumps({"error": error}).encode())
