"""How an agent writes each of the three APIs: its requests, and what it takes from the answers.

Knows shapes only, and owes nothing to `tidegate.wire`, which it is there to exercise. Used by sessions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tidegate.cli.demo.material import SYSTEM, TOOL_NAME, TOOL_SCHEMA, TOOL_SUMMARY

JsonObject: TypeAlias = dict[str, Any]


class NoAnswer(Exception):
    """What came is an error, or the beginning of an answer that never ended."""


class CutShort(NoAnswer):
    """The answer ended at its output limit, or where the context window was full."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made: its id and its arguments."""

    id: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer: the items an agent adds to its history, the words, the calls."""

    items: tuple[JsonObject, ...]
    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What goes into a request body beside the conversation. `max_output` in tokens."""

    model: str
    stream: bool
    max_output: int
    extra: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Speech:
    """One API as an agent speaks it."""

    path: str
    headers: Callable[[str], dict[str, str]]
    """What authenticates a request, from a key."""
    body: Callable[[Sequence[JsonObject], Request], JsonObject]
    """A request with the whole history."""
    human: Callable[[str], JsonObject]
    """A human's message."""
    results: Callable[[Sequence[tuple[ToolCall, str]]], list[JsonObject]]
    """The items that answer the model's calls."""
    whole: Callable[[JsonObject], Answer]
    """Reads an answer that came at once. Raises `NoAnswer`."""
    streamed: Callable[[Iterable[JsonObject]], Answer]
    """Reads an answer from its stream's events. Raises `NoAnswer`."""


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# OpenAI's Chat Completions.


def _chat_body(items: Sequence[JsonObject], request: Request) -> JsonObject:
    function = {"name": TOOL_NAME, "description": TOOL_SUMMARY, "parameters": TOOL_SCHEMA}
    options = {"stream_options": {"include_usage": True}} if request.stream else {}
    return {
        "model": request.model,
        "messages": [{"role": "system", "content": SYSTEM}, *items],
        "tools": [{"type": "function", "function": function}],
        "max_tokens": request.max_output,
        "stream": request.stream,
        **options,
        **request.extra,
    }


def _chat_human(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def _chat_results(outputs: Sequence[tuple[ToolCall, str]]) -> list[JsonObject]:
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in outputs]


def _chat_whole(body: JsonObject) -> Answer:
    choice = _at(body, "choices", 0)
    message = choice["message"]
    return _chat_answer(message.get("content") or "", message.get("tool_calls") or [], choice.get("finish_reason"))


def _chat_streamed(events: Iterable[JsonObject]) -> Answer:
    text, calls, finish = "", dict[int, JsonObject](), None
    for event in events:
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            text += delta.get("content") or ""
            for piece in delta.get("tool_calls") or []:
                _merge_call(calls.setdefault(piece["index"], {}), piece)
            finish = choice.get("finish_reason") or finish
    return _chat_answer(text, list(calls.values()), finish)


def _chat_answer(text: str, calls: list[JsonObject], finish: str | None) -> Answer:
    _check_end(finish, ("stop", "tool_calls"), ("length",))
    message: JsonObject = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    return Answer((message,), text, tuple(_call(call["id"], call["function"]["arguments"]) for call in calls))


# OpenAI's Responses, the history kept by the agent (`store: false`).


def _responses_body(items: Sequence[JsonObject], request: Request) -> JsonObject:
    tool = {"type": "function", "name": TOOL_NAME, "description": TOOL_SUMMARY, "parameters": TOOL_SCHEMA}
    return {
        "model": request.model,
        "instructions": SYSTEM,
        "input": list(items),
        "tools": [tool],
        "max_output_tokens": request.max_output,
        "store": False,
        "stream": request.stream,
        **request.extra,
    }


def _responses_human(text: str) -> JsonObject:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _responses_results(outputs: Sequence[tuple[ToolCall, str]]) -> list[JsonObject]:
    return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text in outputs]


def _responses_whole(body: JsonObject) -> Answer:
    _check_end(body.get("status"), ("completed",), ("incomplete",))
    return _responses_answer(body["output"])


def _responses_streamed(events: Iterable[JsonObject]) -> Answer:
    items: list[JsonObject] = []
    for event in events:
        match event.get("type"):
            case "response.output_item.done":
                items.append(event["item"])
            case "response.completed" | "response.incomplete" | "response.failed" | "error" as end:
                _check_end(end, ("response.completed",), ("response.incomplete",))
                return _responses_answer(items)
    raise NoAnswer("the stream broke off")


def _responses_answer(items: list[JsonObject]) -> Answer:
    parts = [part for item in items if item.get("type") == "message" for part in item["content"]]
    calls = [item for item in items if item.get("type") == "function_call"]
    text = "".join(part.get("text", "") for part in parts)
    return Answer(tuple(items), text, tuple(_call(call["call_id"], call["arguments"]) for call in calls))


# Anthropic's Messages.


def _messages_headers(key: str) -> dict[str, str]:
    return {"x-api-key": key, "anthropic-version": "2023-06-01"}


def _messages_body(items: Sequence[JsonObject], request: Request) -> JsonObject:
    return {
        "model": request.model,
        "max_tokens": request.max_output,
        "system": SYSTEM,
        "tools": [{"name": TOOL_NAME, "description": TOOL_SUMMARY, "input_schema": TOOL_SCHEMA}],
        "messages": list(items),
        "stream": request.stream,
        **request.extra,
    }


def _messages_human(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def _messages_results(outputs: Sequence[tuple[ToolCall, str]]) -> list[JsonObject]:
    blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in outputs]
    return [{"role": "user", "content": blocks}]


def _messages_whole(body: JsonObject) -> Answer:
    return _messages_answer(body["content"], body.get("stop_reason"))


def _messages_streamed(events: Iterable[JsonObject]) -> Answer:
    blocks: list[JsonObject] = []
    arguments, stop = "", None
    for event in events:
        match event.get("type"):
            case "content_block_start":
                blocks.append(dict(event["content_block"]))
                arguments = ""
            case "content_block_delta":
                arguments += _grow(blocks[-1], event["delta"])
            case "content_block_stop" if arguments:
                blocks[-1]["input"] = json.loads(arguments)
            case "message_delta":
                stop = event["delta"].get("stop_reason")
            case "message_stop":
                return _messages_answer(blocks, stop)
            case "error":
                raise NoAnswer("the stream ended with an error")
    raise NoAnswer("the stream broke off")


def _messages_answer(blocks: list[JsonObject], stop: str | None) -> Answer:
    _check_end(stop, ("end_turn", "tool_use"), ("max_tokens", "model_context_window_exceeded"))
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple(ToolCall(block["id"], block["input"]) for block in blocks if block["type"] == "tool_use")
    return Answer(({"role": "assistant", "content": blocks},), text, calls)


def events(data: bytes) -> Iterator[JsonObject]:
    """The JSON events of a stream that has been read. Raises `NoAnswer` at an error event without a type of its own."""
    for line in data.decode("utf-8").splitlines():
        name, _, value = line.partition(":")
        if name != "data" or value.strip() in ("", "[DONE]"):
            continue
        event = json.loads(value)
        if "error" in event and "type" not in event:
            raise NoAnswer("the stream ended with an error")
        yield event


def _check_end(end: str | None, whole: Sequence[str], cut: Sequence[str]) -> None:
    if end in cut:
        raise CutShort(f"the answer was cut short: {end}")
    if end not in whole:
        raise NoAnswer(f"the answer ended with {end}" if end else "the stream broke off")


def _call(call_id: str, arguments: str) -> ToolCall:
    return ToolCall(call_id, json.loads(arguments or "{}"))


def _merge_call(call: JsonObject, piece: JsonObject) -> None:
    function = call.setdefault("function", {"name": "", "arguments": ""})
    for key in ("id", "type"):
        if piece.get(key):
            call[key] = piece[key]
    for key in ("name", "arguments"):
        function[key] += piece.get("function", {}).get(key) or ""


def _grow(block: JsonObject, delta: JsonObject) -> str:
    """Adds a delta to its block; returns a piece of a tool's arguments."""
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "input_json_delta":
            piece: str = delta["partial_json"]
            return piece
    return ""


def _at(value: Any, *path: str | int) -> Any:
    try:
        for step in path:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        raise NoAnswer(f"the answer has no {'.'.join(map(str, path))}") from None
    return value


SPEECHES = {
    "chat": Speech(
        "/v1/chat/completions", _bearer, _chat_body, _chat_human, _chat_results, _chat_whole, _chat_streamed
    ),
    "responses": Speech(
        "/v1/responses",
        _bearer,
        _responses_body,
        _responses_human,
        _responses_results,
        _responses_whole,
        _responses_streamed,
    ),
    "messages": Speech(
        "/v1/messages",
        _messages_headers,
        _messages_body,
        _messages_human,
        _messages_results,
        _messages_whole,
        _messages_streamed,
    ),
}
