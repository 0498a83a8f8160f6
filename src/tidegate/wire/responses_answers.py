"""How the Responses API writes an answer and an error.

Knows the fields of its events and responses, not what an error means. Called through `wire.ANSWERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.wire import sse
from tidegate.wire.answers import (
    DONE,
    count,
    events_of,
    failed,
    is_json,
    joined,
    openai_error,
    read_object,
    unreadable,
)
from tidegate.wire.conversation import Answer, FinishReason, JsonObject, Usage
from tidegate.wire.jsontext import dumps
from tidegate.wire.responses import COMPACTIONS
from tidegate.wire.signals import Signal
from tidegate.wire.sse import Event
from tidegate.wire.untyped import object_at, objects_at, text_at

LIFECYCLE: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.done", "response.cancelled"})
"""`response.done` is what some gateways write for `response.completed`."""

FINISH: Final[dict[str, FinishReason]] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "filter",
    "model_context_window_exceeded": "window",
}
"""`incomplete_details.reason`. Any other word is `other`."""

HOT: Final = (
    b"response.completed",
    b"response.incomplete",
    b"response.failed",
    b"response.done",
    b"response.cancelled",
    b"response.output_item.done",
    b'"code"',
    b"event: error",
    b"event:error",
)
"""What bytes of a stream hold where an event after the first content must be looked at."""
HOT_UNLESS_NULL: Final = (b'"error"',)
OPENING: Final = b""
"""How an event begins to say words, in the form that the API itself writes: followed by anything but a quote, it is
content. Empty, since nothing short is sure: its first events repeat what the client sent."""

_FAILED_ID: Final = "resp_tidegate_failed"


def signal(event: Event) -> Signal:
    """What one event of a Responses stream means. An event that can't be read is content.

    Lifecycle are the three states before output begins, and events that are none of the API's own
    (`keepalive`, `ping`, `codex.rate_limits`): nothing in them is shown. Every other `response.…` event is
    content.
    """
    if event.comment:
        return Signal("lifecycle")
    data = event.data.strip()
    if data == DONE:
        return Signal("end")
    body = read_object(data)
    return unreadable(event) if body is None else _signal(body, event)


def _signal(body: JsonObject, event: Event) -> Signal:
    kind = text_at(body, "type") or event.name
    response = object_at(body, "response")
    if kind == "response.failed" or (kind in TERMINAL and response.get("status") == "failed"):
        counts = object_at(response, "usage")
        return Signal("error", usage_of(counts), "error", event.data, counts)
    foreign = not kind.startswith("response.")
    if "error" in (kind, event.name) or kind == "response.error" or (foreign and failed(body, "output")):
        return Signal("error", error=event.data)
    if kind in TERMINAL:
        counts = object_at(response, "usage")
        return Signal("end", usage_of(counts), _finish(response, kind), counts=counts, compacts=_compacts(response))
    if kind in LIFECYCLE or (kind and foreign):
        return Signal("lifecycle")
    if kind == "response.output_item.done":
        item = object_at(body, "item")
        return Signal("content", calls=_is_call(item), compacts=text_at(item, "type") in COMPACTIONS)
    return Signal("content")


def _finish(response: JsonObject, kind: str = "") -> FinishReason | None:
    """How a response ended, by its status, else by the event that brought it; None while it goes on."""
    status = text_at(response, "status") or kind.removeprefix("response.")
    if status == "incomplete":
        return FINISH.get(text_at(object_at(response, "incomplete_details"), "reason"), "other")
    if status in ("completed", "done"):
        return "tool_call" if any(map(_is_call, objects_at(response, "output"))) else "stop"
    return _STATUS.get(status)


_STATUS: Final[dict[str, FinishReason]] = {"failed": "error", "cancelled": "other"}
"""`status` of a response that did not come to its end. Any other is one that goes on."""

_CALLS: Final = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
        "mcp_approval_request",
    }
)


def _is_call(item: JsonObject) -> bool:
    """A call the client has to answer; searches and other tools that the server runs are none."""
    return text_at(item, "type") in _CALLS


def _compacts(response: JsonObject) -> bool:
    return any(text_at(item, "type") in COMPACTIONS for item in objects_at(response, "output"))


def usage_of(counts: JsonObject) -> Usage | None:
    """Usage from a `usage` object: `input_tokens` includes what was read from a cache. None where it says
    zero."""
    if not (input_tokens := count(counts, "input_tokens")):
        return None
    cached = count(object_at(counts, "input_tokens_details"), "cached_tokens")
    return Usage(input_tokens, count(counts, "output_tokens"), cached)


def read_answer(body: bytes) -> Answer:
    """A whole response, JSON or SSE, read for its words. Never raises.

    Items come from the terminal event's `output`, or from `response.output_item.done` where that list is
    empty (the ChatGPT backend), or from deltas where the stream was cut.
    """
    words = _Words()
    if is_json(body):
        response = read_object(body)
        if response is not None:
            if failed(response, "output") or response.get("status") == "failed":
                words.error = body
            words.take_response(response)
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
    response = read_object(body)
    if response is None:
        return Answer("", None)
    bad = failed(response, "output") or response.get("status") == "failed"
    finish = _finish(response, "") or ("error" if bad else None)
    counts, failure = object_at(response, "usage"), body if bad else b""
    return Answer("", finish, usage_of(counts), error=failure, compacts=_compacts(response))


_DELTAS: Final = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "thinking",
    "response.reasoning_summary_text.delta": "thinking",
}


class _Item:
    """The words of one output item: from its deltas first, from the item itself once it is done."""

    def __init__(self, item: JsonObject) -> None:
        self.words: dict[str, list[str]] = {"text": [], "refusal": [], "thinking": []}
        self.call = ""
        kind = text_at(item, "type")
        for part in (*objects_at(item, "content"), *objects_at(item, "summary")):
            if "refusal" in part:
                self.words["refusal"].append(text_at(part, "refusal"))
            else:
                self.words["thinking" if kind == "reasoning" else "text"].append(text_at(part, "text"))
        if _is_call(item):
            self.call = text_at(item, "name") or kind


class _Words:
    """What the events of one answer, or its one response, add up to."""

    def __init__(self) -> None:
        self.items: dict[int, _Item] = {}
        self.counts: JsonObject = {}
        self.finish: FinishReason | None = None
        self.error = b""

    def take_event(self, body: JsonObject, event: Event) -> None:
        seen = _signal(body, event)
        kind = text_at(body, "type") or event.name
        place = count(body, "output_index")
        if kind in TERMINAL or kind == "response.failed":
            self.take_response(object_at(body, "response"), kind)
        elif kind == "response.output_item.done":
            self.items[place] = _Item(object_at(body, "item"))
        elif (words := _DELTAS.get(kind)) is not None:
            self.items.setdefault(place, _Item({})).words[words].append(text_at(body, "delta"))
        self.error = seen.error

    def take_response(self, response: JsonObject, kind: str = "") -> None:
        self.finish = _finish(response, kind)
        self.counts = object_at(response, "usage")
        if output := objects_at(response, "output"):
            self.items = dict(enumerate(map(_Item, output)))

    def answer(self) -> Answer:
        items = [self.items[place] for place in sorted(self.items)]
        calls = tuple(item.call for item in items if item.call)
        finish = "tool_call" if self.finish == "stop" and calls else self.finish
        return Answer(
            text=joined(word for item in items for word in item.words["text"]),
            finish=finish or ("error" if self.error else None),
            usage=usage_of(self.counts),
            tool_calls=calls,
            refusal=joined(word for item in items for word in item.words["refusal"]),
            error=self.error,
            thinking=joined(word for item in items for word in item.words["thinking"]),
        )


def error_body(status: int, message: str, *, code: str | None = None, request_id: str = "") -> bytes:
    """An error answer in OpenAI's shape. The request id has no place in it; it goes in the `x-request-id`
    header."""
    return dumps({"error": openai_error(status, message, code)})


def error_event(message: str, *, status: int = 500, code: str | None = None) -> bytes:
    """The error as `event: error`, then as `response.failed`: no one event serves every client.

    OpenAI's SDKs raise on `event: error` with an `error` object, at once and before `response.created` too;
    alone, `response.failed` breaks their `responses.stream()` (RuntimeError) and raises nothing from a raw
    stream. Codex passes over `error` and reads `response.failed`, by its `code`; without it, it would send
    the request again.
    """
    error = openai_error(status, message, code or _failure_code(status))
    flat: JsonObject = {"code": error["code"], "message": message, "param": None}
    failure: JsonObject = {
        "id": _FAILED_ID,
        "object": "response",
        "created_at": 0,
        "status": "failed",
        "error": {"code": error["code"], "message": message},
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    first: JsonObject = {"type": "error", "sequence_number": 0, **flat, "error": error}
    last: JsonObject = {"type": "response.failed", "sequence_number": 1, "response": failure}
    return sse.write(dumps(first), "error") + sse.write(dumps(last), "response.failed")


def _failure_code(status: int) -> str:
    """A code of the API's own that tells Codex whether to try again: it doesn't after `invalid_prompt`."""
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if 400 <= status < 500 else "server_error"


def heartbeat(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A comment, or for Codex an event.

    Codex's idle timer (300 s) is not reset by comments but is by any event; OpenAI's `responses.stream()`
    breaks on an event before `response.created`.
    """
    if any(_says_codex(name.lower(), value.lower()) for name, value in headers):
        return sse.write(b'{"type":"keepalive"}', "keepalive")
    return sse.comment("keep-alive")


def _says_codex(name: bytes, value: bytes) -> bool:
    if name == b"originator":
        return value.startswith(b"codex")
    return name == b"user-agent" and (value.startswith(b"codex_") or b"codex_cli" in value)
