"""How the Anthropic Messages API writes an answer and an error.

Knows the fields of its events and messages, not what an error means. Called through `wire.ANSWERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.wire import sse
from tidegate.wire.answers import count, events_of, failed, is_json, joined, read_object, unreadable
from tidegate.wire.conversation import Answer, Cleared, FinishReason, JsonObject, Usage
from tidegate.wire.jsontext import dumps
from tidegate.wire.signals import Signal
from tidegate.wire.sse import Event
from tidegate.wire.untyped import object_at, objects_at, text_at

FINISH: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_call",
    "refusal": "refusal",
    "pause_turn": "other",
    "model_context_window_exceeded": "window",
    "compaction": "compaction",
}
"""`stop_reason` (platform.claude.com/docs/en/build-with-claude/handling-stop-reasons). Any other word is
`other`."""

APPLIED: Final = "applied_edits"
"""In `context_management` of an answer: what the API cleared of the request."""

HOT: Final = (b"message_delta", b"message_stop", b'"code"', b"event: error", b"event:error")
"""What bytes of a stream hold where an event after the first content must be looked at."""
HOT_UNLESS_NULL: Final = (b'"error"',)
OPENING: Final = b'"delta":{"type":"text_delta","text":"'
"""How an event begins to say words, in the form that the API itself writes: followed by anything but a quote, it is
content. Empty where nothing short is sure."""

ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    426: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""`error.type` by status (platform.claude.com/docs/en/api/errors)."""

_CALLS: Final = ("tool_use", "server_tool_use", "mcp_tool_use")
_ITERATIONS: Final = ("message", "fallback_message")
"""Entries of `usage.iterations` that say how big the context was; a `compaction` entry never does."""


def signal(event: Event) -> Signal:
    """What one event of a Messages stream means. An event that can't be read is content.

    A `message_delta` that only says the window ran out shows nothing by itself: it is lifecycle.
    """
    if event.comment:
        return Signal("lifecycle")
    body = read_object(event.data)
    return unreadable(event) if body is None else _signal(body, event)


def _signal(body: JsonObject, event: Event) -> Signal:
    kind = text_at(body, "type") or event.name
    if kind == "error" or event.name == "error" or failed(body, "content"):
        return Signal("error", error=event.data)
    if kind == "message_start":
        return _lifecycle(object_at(object_at(body, "message"), "usage"), None)
    if kind == "message_delta":
        finish = _finish(object_at(body, "delta"))
        counts = _counts(body)
        if finish == "window":
            return _lifecycle(counts, finish)
        return Signal("content", usage_of(counts), finish, counts=counts)
    if kind == "message_stop":
        return Signal("end")
    return Signal("lifecycle" if kind == "ping" else "content")


def _lifecycle(counts: JsonObject, finish: FinishReason | None) -> Signal:
    return Signal("lifecycle", usage_of(counts), finish, counts=counts)


def _finish(message: JsonObject) -> FinishReason | None:
    reason = message.get("stop_reason")
    return FINISH.get(reason, "other") if isinstance(reason, str) and reason else None


def usage_of(counts: JsonObject) -> Usage | None:
    """Usage from a `usage` object. None where it says zero.

    `input_tokens` leaves out what a cache held, so cache reads and writes are added. Where `iterations` are
    reported the last sampling of the model tells the size of the context (`BetaIterationsUsage` in
    Anthropic's API types).
    """
    applied = objects_at(counts, APPLIED)
    samples = [entry for entry in objects_at(counts, "iterations") if entry.get("type") in _ITERATIONS]
    if samples:
        counts = samples[-1]
    cached = count(counts, "cache_read_input_tokens")
    total = count(counts, "input_tokens") + count(counts, "cache_creation_input_tokens") + cached
    return Usage(total, count(counts, "output_tokens"), cached, _cleared(applied)) if total else None


def _counts(body: JsonObject) -> JsonObject:
    """The `usage` of a message or of its last event, with the edits that were applied, which stand beside it."""
    counts, applied = object_at(body, "usage"), object_at(body, "context_management").get(APPLIED)
    return {**counts, APPLIED: applied} if applied else counts


def _cleared(applied: list[JsonObject]) -> Cleared | None:
    if not applied:
        return None
    keys = ("cleared_input_tokens", "cleared_tool_uses", "cleared_thinking_turns")
    return Cleared(*(sum(count(edit, key) for edit in applied) for key in keys))


def read_answer(body: bytes) -> Answer:
    """A whole message, JSON or SSE, read for its words. Never raises.

    The content of a `compaction` block is no text of the answer. `finish` is None where no stop reason came.
    """
    words = _Words()
    if is_json(body):
        message = read_object(body)
        if message is None:
            return words.answer()
        if message.get("type") == "error" or failed(message, "content"):
            words.error = body
        words.take_message(message)
        return words.answer()
    for event in events_of(body):
        if (data := read_object(event.data)) is not None:
            words.take_event(data, event)
        elif event.name == "error":
            words.error = event.data
        if words.error:
            break
    return words.answer()


def read_end(body: bytes) -> Answer:
    """`read_answer` of a JSON body without its words: how it ended, what it cost, whether it is an error."""
    message = read_object(body)
    if message is None:
        return Answer("", None)
    bad = message.get("type") == "error" or failed(message, "content")
    finish = _finish(message) or ("error" if bad else None)
    return Answer("", finish, usage_of(_said(_counts(message))), error=body if bad else b"")


class _Words:
    """What the events of one answer, or its one message, add up to."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thinking: list[str] = []
        self.calls: list[str] = []
        self.refusal = ""
        self.counts: JsonObject = {}
        self.finish: FinishReason | None = None
        self.error = b""

    def take_message(self, message: JsonObject) -> None:
        self._stop(message)
        self.counts |= _said(_counts(message))
        for block in objects_at(message, "content"):
            self._block(block)

    def take_event(self, body: JsonObject, event: Event) -> None:
        self.error = _signal(body, event).error
        kind = text_at(body, "type") or event.name
        if kind == "message_start":
            self.take_message(object_at(body, "message"))
        elif kind == "content_block_start":
            self._block(object_at(body, "content_block"))
        elif kind == "content_block_delta":
            delta = object_at(body, "delta")
            self.text.append(text_at(delta, "text"))
            self.thinking.append(text_at(delta, "thinking"))
        elif kind == "message_delta":
            self._stop(object_at(body, "delta"))
            self.counts |= _said(_counts(body))

    def _block(self, block: JsonObject) -> None:
        kind = text_at(block, "type")
        if kind == "text":
            self.text.append(text_at(block, "text"))
        elif kind == "thinking":
            self.thinking.append(text_at(block, "thinking"))
        elif kind in _CALLS:
            self.calls.append(text_at(block, "name"))

    def _stop(self, stopped: JsonObject) -> None:
        self.finish = _finish(stopped) or self.finish
        if self.finish == "refusal":
            details = object_at(stopped, "stop_details")
            self.refusal = text_at(details, "explanation") or text_at(details, "category") or self.refusal

    def answer(self) -> Answer:
        return Answer(
            text=joined(self.text),
            finish=self.finish or ("error" if self.error else None),
            usage=usage_of(self.counts),
            tool_calls=tuple(self.calls),
            refusal=self.refusal,
            error=self.error,
            thinking=joined(self.thinking),
        )


def _said(counts: JsonObject) -> JsonObject:
    return {key: value for key, value in counts.items() if value}


def error_body(status: int, message: str, *, code: str | None = None, request_id: str = "") -> bytes:
    """An error answer in Anthropic's shape; `code` is what Anthropic calls `details.error_code`."""
    return dumps({**_error(status, message, code), "request_id": request_id or None})


def error_event(message: str, *, status: int = 500, code: str | None = None) -> bytes:
    """The same inside a stream: `event: error` is its last event, no `message_stop` follows."""
    return sse.write(dumps(_error(status, message, code)), "error")


def _error(status: int, message: str, code: str | None) -> JsonObject:
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error: JsonObject = {"type": kind, "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    return {"type": "error", "error": error}


def heartbeat(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Anthropic's own ping, which may come anywhere in a stream, before `message_start` too."""
    return sse.write(b'{"type": "ping"}', "ping")
