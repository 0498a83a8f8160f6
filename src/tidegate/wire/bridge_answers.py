"""What the Responses API answers, written as chat completions would: whole, and as it streams.

Knows both APIs' answers; changes no word of them. Called by the gateway with what the bridge's request was answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.wire import chat_answers, responses_answers
from tidegate.wire.answers import DONE, count, read_object
from tidegate.wire.conversation import JsonObject, JsonValue
from tidegate.wire.jsontext import dumps
from tidegate.wire.sse import Event, Reader, write
from tidegate.wire.untyped import object_at, objects_at, text_at

_FINISH: Final = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}
"""`incomplete_details.reason` of Responses; any other end of an answer that is not whole is a `length` too."""
_CALLS: Final = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
_COMPLETED: Final = frozenset({"response.completed", "response.done"})


class NoAnswer(Exception):
    """The body is no whole answer of the Responses API."""


def completion(body: bytes) -> bytes:
    """A whole response as a chat completion. Raises `NoAnswer` for anything else, an error among it."""
    response = read_object(body)
    if response is None or not isinstance(response.get("output"), list):
        raise NoAnswer
    status = text_at(response, "status")
    if status not in ("completed", "incomplete"):
        raise NoAnswer
    items = objects_at(response, "output")
    said = [part for item in items if text_at(item, "type") == "message" for part in objects_at(item, "content")]
    text = "".join(text_at(part, "text") for part in said)
    refusal = "".join(text_at(part, "refusal") for part in said)
    calls: list[JsonValue] = [_call(item) for item in items if text_at(item, "type") in _CALLS]
    message: JsonObject = {
        "role": "assistant",
        "content": text if text or not (calls or refusal) else None,
        "refusal": refusal or None,
        "annotations": [_annotation(found) for part in said for found in objects_at(part, "annotations")],
    }
    if calls:
        message["tool_calls"] = calls
    finish = _finish(response, calls=bool(calls))
    return dumps(
        {
            "id": _id(response),
            "object": "chat.completion",
            "created": count(response, "created_at"),
            "model": text_at(response, "model"),
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": _usage(object_at(response, "usage")),
            "service_tier": response.get("service_tier"),
            "system_fingerprint": None,
        }
    )


def _id(response: JsonObject) -> str:
    return "chatcmpl-" + text_at(response, "id").removeprefix("resp_")


def _call(item: JsonObject) -> JsonObject:
    kind, words = _CALLS[text_at(item, "type")]
    said: JsonObject = {"name": text_at(item, "name"), words: text_at(item, words)}
    return {"id": text_at(item, "call_id"), "type": kind, kind: said}


def _annotation(found: JsonObject) -> JsonValue:
    kind = text_at(found, "type")
    return {"type": kind, kind: {key: value for key, value in found.items() if key != "type"}} if kind else found


def _finish(response: JsonObject, *, calls: bool) -> str:
    if text_at(response, "status") == "incomplete":
        return _FINISH.get(text_at(object_at(response, "incomplete_details"), "reason"), "length")
    return "tool_calls" if calls else "stop"


def _usage(counts: JsonObject) -> JsonValue:
    """What chat calls prompt and completion; None where nothing was counted."""
    if not counts:
        return None
    read, written = object_at(counts, "input_tokens_details"), object_at(counts, "output_tokens_details")
    prompt, answer = count(counts, "input_tokens"), count(counts, "output_tokens")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": count(counts, "total_tokens") or prompt + answer,
        "prompt_tokens_details": {"cached_tokens": count(read, "cached_tokens"), "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": count(written, "reasoning_tokens"),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


@dataclass(slots=True)
class _Item:
    """One output item as it comes: what of it was passed on."""

    kind: str = ""
    index: int = -1
    """Of a call: its place among the calls."""
    sent: str = ""
    refused: str = ""


class Stream:
    """A Responses stream as chunks of chat completions, in whatever pieces it comes.

    `ended` once its last event was passed on; a stream that breaks off before has no `[DONE]`.
    """

    def __init__(self, *, with_usage: bool) -> None:
        """`with_usage`: the client asked for a last chunk with usage, so all others say that they have none."""
        self._with_usage = with_usage
        self._reader = Reader()
        self._base: JsonObject = {"id": "chatcmpl-", "created": 0, "model": "", "service_tier": None}
        self._items: dict[int, _Item] = {}
        self._calls = 0
        self._spoken = False
        self.ended = False

    def feed(self, piece: bytes) -> bytes:
        """What to pass on of a piece."""
        return b"".join(self._all(self._reader.feed(piece)))

    def close(self) -> bytes:
        """What to pass on at the end."""
        return b"".join(self._all(self._reader.close()))

    def _all(self, events: list[Event]) -> Iterator[bytes]:
        for event in events:
            if self.ended:
                return
            if event.comment:
                yield b": keep-alive\n\n"
                continue
            body = read_object(event.data)
            if body is not None:
                yield from self._take(body, event)

    def _take(self, body: JsonObject, event: Event) -> Iterator[bytes]:
        kind = text_at(body, "type") or event.name
        if responses_answers.signal(event).error:
            self.ended = True
            yield self._failed(body)
            return
        if kind in ("response.created", "response.in_progress"):
            self._begin(object_at(body, "response"))
        elif kind in responses_answers.TERMINAL:
            yield from self._end(object_at(body, "response"), kind)
        elif kind in _PARTS:
            yield from _PARTS[kind](self, self._items.setdefault(count(body, "output_index"), _Item()), body)

    def _begin(self, response: JsonObject) -> None:
        self._base = {
            "id": _id(response),
            "created": count(response, "created_at"),
            "model": text_at(response, "model"),
            "service_tier": response.get("service_tier"),
        }

    def _added(self, item: _Item, body: JsonObject) -> Iterator[bytes]:
        yield from self._opened(item, object_at(body, "item"))

    def _opened(self, item: _Item, given: JsonObject) -> Iterator[bytes]:
        item.kind = text_at(given, "type")
        if item.kind in _CALLS and item.index < 0:
            item.index, self._calls = self._calls, self._calls + 1
            call = _call(given)
            item.sent = text_at(given, _CALLS[item.kind][1])
            yield self._delta({"tool_calls": [{"index": item.index, **call}]})

    def _said(self, item: _Item, body: JsonObject) -> Iterator[bytes]:
        item.sent += text_at(body, "delta")
        yield self._delta({"content": text_at(body, "delta")})

    def _refused(self, item: _Item, body: JsonObject) -> Iterator[bytes]:
        item.refused += text_at(body, "delta")
        yield self._delta({"refusal": text_at(body, "delta")})

    def _argued(self, item: _Item, body: JsonObject) -> Iterator[bytes]:
        if item.kind in _CALLS:
            item.sent += text_at(body, "delta")
            yield self._more(item, text_at(body, "delta"))

    def _more(self, item: _Item, words: str) -> bytes:
        kind, key = _CALLS[item.kind]
        return self._delta({"tool_calls": [{"index": item.index, kind: {key: words}}]})

    def _done(self, item: _Item, body: JsonObject) -> Iterator[bytes]:
        """What the deltas have left out: servers may send an item at once."""
        given = object_at(body, "item")
        yield from self._opened(item, given)
        if item.kind in _CALLS:
            whole = text_at(given, _CALLS[item.kind][1])
            if whole != item.sent and whole.startswith(item.sent):
                yield self._more(item, whole[len(item.sent) :])
        elif item.kind == "message":
            parts = objects_at(given, "content")
            text, refusal = ("".join(text_at(part, key) for part in parts) for key in ("text", "refusal"))
            if text != item.sent and text.startswith(item.sent):
                yield self._delta({"content": text[len(item.sent) :]})
            if refusal != item.refused and refusal.startswith(item.refused):
                yield self._delta({"refusal": refusal[len(item.refused) :]})
            notes: list[JsonValue] = [_annotation(found) for part in parts for found in objects_at(part, "annotations")]
            if notes:
                yield self._delta({"annotations": notes})

    def _end(self, response: JsonObject, kind: str) -> Iterator[bytes]:
        self.ended = True
        if not self._items:
            # Nothing came but the end: it holds all there is.
            for place, given in enumerate(objects_at(response, "output")):
                item = self._items[place] = _Item()
                yield from self._done(item, {"item": given})
        status = text_at(response, "status") or ("completed" if kind in _COMPLETED else "incomplete")
        finish = _finish({**response, "status": status}, calls=self._calls > 0)
        if not self._spoken:
            yield self._delta({})
        yield self._chunk([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}])
        if self._with_usage:
            yield self._chunk([], usage=_usage(object_at(response, "usage")))
        yield write(DONE)

    def _failed(self, body: JsonObject) -> bytes:
        inner = object_at(object_at(body, "response"), "error") or object_at(body, "error") or body
        message = text_at(inner, "message") or "The provider failed in the middle of its answer."
        return chat_answers.error_event(message, code=text_at(inner, "code") or None)

    def _delta(self, delta: JsonObject) -> bytes:
        if not self._spoken:
            self._spoken = True
            opening: JsonObject = {
                "role": "assistant",
                "content": None if "tool_calls" in delta else "",
                "refusal": None,
            }
            delta = {**opening, **delta}
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _chunk(self, choices: list[JsonValue], usage: JsonValue = None) -> bytes:
        chunk: JsonObject = {
            "id": self._base["id"],
            "object": "chat.completion.chunk",
            "created": self._base["created"],
            "model": self._base["model"],
            "service_tier": self._base["service_tier"],
            "system_fingerprint": None,
            "choices": choices,
        }
        if self._with_usage:
            chunk["usage"] = usage
        return write(dumps(chunk))


_PARTS: Final = {
    "response.output_item.added": Stream._added,
    "response.output_text.delta": Stream._said,
    "response.refusal.delta": Stream._refused,
    "response.function_call_arguments.delta": Stream._argued,
    "response.custom_tool_call_input.delta": Stream._argued,
    "response.output_item.done": Stream._done,
}
