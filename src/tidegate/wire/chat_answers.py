"""How the Chat Completions API, and the many servers that speak it, write an answer and an error.

Knows the fields of chunks and completions, not what an error means. Called through `wire.ANSWERS`.
"""

from __future__ import annotations

import re
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
from tidegate.wire.chat_completion import decode
from tidegate.wire.conversation import Answer, FinishReason, JsonObject, JsonValue, Usage
from tidegate.wire.jsontext import dumps
from tidegate.wire.signals import Signal
from tidegate.wire.sse import Event
from tidegate.wire.untyped import object_at, objects_at, text_at

FINISH: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "eos": "stop",  # Together
    "eos_token": "stop",  # Hugging Face TGI
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "tool_use": "tool_call",
    "refusal": "refusal",
    "content_filter": "filter",
    "sensitive": "filter",  # Z.ai
    "model_context_window_exceeded": "window",  # Z.ai
    "model_length": "window",  # Mistral
    "error": "error",  # OpenRouter, Mistral
    "network_error": "error",  # Z.ai
    "insufficient_system_resource": "error",  # DeepSeek
}
"""`finish_reason` of OpenAI and of servers that have their own words. Any other word is `other`."""

HOT: Final = (DONE, b'"code"', b'"error_', b'"base_resp"', b"event: error", b"event:error")
"""What bytes of a stream hold where an event after the first content must be looked at."""
HOT_UNLESS_NULL: Final = (b'"finish_reason"', b'"usage"', b'"error"')
"""Keys that servers write as null in every chunk."""
OPENING: Final = b'"delta":{"content":"'
"""How an event begins to say words, in the form that the API itself writes: followed by anything but a quote, it is
content. Empty where nothing short is sure."""

_THOUGHTS: Final = ("reasoning_content", "reasoning")
"""DeepSeek, Z.ai, Moonshot, vLLM, xAI; then OpenRouter, Groq, Ollama."""
_THINK_TAG: Final = re.compile(r"\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)
"""Thinking that a server without a reasoning parser leaves at the head of the content."""


def signal(event: Event) -> Signal:
    """What one event of a chat stream means.

    A chunk is `lifecycle` while its deltas hold nothing but a role and empty strings and it gives no finish
    reason, or the only news is that the window ran out with nothing said. A chunk that can't be read is
    content.
    """
    if event.comment:
        return Signal("lifecycle")
    data = event.data.strip()
    if data == DONE:
        return Signal("end")
    chunk = read_object(data)
    return unreadable(event) if chunk is None else _signal(chunk, event)


def _signal(chunk: JsonObject, event: Event) -> Signal:
    choices = objects_at(chunk, "choices")
    finish: FinishReason | None = None
    silent = isinstance(chunk.get("choices"), list)
    for choice in choices:
        finish = finish or _finish(choice)
        silent = silent and not _shows(choice)
    counts = _counts(chunk, choices)
    usage = usage_of(counts) if counts else None
    if event.name == "error" or finish == "error" or failed(chunk, "choices"):
        return Signal("error", usage, finish, event.data, counts)
    if silent and finish in (None, "window"):
        return Signal("lifecycle", usage, finish, counts=counts)
    return Signal("content", usage, finish, counts=counts)


def _finish(choice: JsonObject) -> FinishReason | None:
    reason = choice.get("finish_reason")
    return FINISH.get(reason, "other") if isinstance(reason, str) and reason else None


def _shows(choice: JsonObject) -> bool:
    if choice.get("text"):
        return True
    said = object_at(choice, "delta") or object_at(choice, "message")
    for key, value in said.items():  # noqa: SIM110
        if value and key != "role":
            return True
    return False


def _counts(chunk: JsonObject, choices: list[JsonObject]) -> JsonObject | None:
    """The usage object; Groq streams it in `x_groq`, Moonshot in the choice."""
    found = object_at(chunk, "usage") or object_at(object_at(chunk, "x_groq"), "usage")
    for choice in choices:
        found = found or object_at(choice, "usage")
    return found or None


def usage_of(counts: JsonObject) -> Usage | None:
    """Usage from a `usage` object: `prompt_tokens` includes what was read from a cache. None where it says
    zero.

    Cached tokens: OpenAI's `prompt_tokens_details.cached_tokens`, DeepSeek's `prompt_cache_hit_tokens`,
    Moonshot's `cached_tokens`.
    """
    if not (input_tokens := count(counts, "prompt_tokens")):
        return None
    cached = (
        count(object_at(counts, "prompt_tokens_details"), "cached_tokens")
        or count(counts, "prompt_cache_hit_tokens")
        or count(counts, "cached_tokens")
    )
    return Usage(input_tokens, count(counts, "completion_tokens"), cached)


def read_answer(body: bytes) -> Answer:
    """A whole chat completion, JSON or SSE, read for the words of its first choice. Never raises.

    `finish` is None where no choice gave a finish reason, `[DONE]` or not.
    """
    words = _Words()
    if is_json(body):
        completion = read_object(body)
        return words.answer() if completion is None else words.read(completion, Event("", body)).answer()
    for event in events_of(body):
        data = event.data.strip()
        if data == DONE or words.error:
            break
        if (chunk := read_object(data)) is not None:
            words.read(chunk, event)
        elif event.name == "error":
            words.error = data
    return words.answer()


def read_end(body: bytes) -> Answer:
    """`read_answer` of a JSON body without its words: how it ended, what it cost, whether it is an error."""
    try:
        plain = decode(body)
    except (ValueError, RecursionError):
        return _read_end_at_length(body)
    finish: FinishReason | None = None
    for choice in plain.choices:
        if choice.finish_reason == "error":
            return _read_end_at_length(body)
        if choice.finish_reason and choice.index in (0, None):
            finish = FINISH.get(choice.finish_reason, "other")
    said = plain.usage
    if said.prompt_tokens <= 0 or said.completion_tokens < 0:
        return _read_end_at_length(body)
    details = said.prompt_tokens_details
    cached = (details.cached_tokens if details else 0) or said.prompt_cache_hit_tokens or said.cached_tokens or 0
    return Answer("", finish, Usage(said.prompt_tokens, said.completion_tokens, max(0, cached)))


def _read_end_at_length(body: bytes) -> Answer:
    completion = read_object(body)
    if completion is None:
        return Answer("", None)
    finish: FinishReason | None = None
    bad = False
    choices = objects_at(completion, "choices")
    for choice in choices:
        reason = _finish(choice)
        bad = bad or reason == "error"
        if reason and choice.get("index", 0) in (0, None):
            finish = reason
    bad = bad or failed(completion, "choices")
    counts = _counts(completion, choices)
    usage = usage_of(counts) if counts else None
    return Answer("", finish or ("error" if bad else None), usage, error=body if bad else b"")


class _Words:
    """What the chunks of one answer add up to."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thinking: list[str] = []
        self.refusal: list[str] = []
        self.calls: dict[int, str] = {}
        self.counts: JsonObject = {}
        self.finish: FinishReason | None = None
        self.error = b""

    def read(self, chunk: JsonObject, event: Event) -> _Words:
        seen = _signal(chunk, event)
        self.error = seen.error
        self.counts |= seen.counts or {}
        for choice in objects_at(chunk, "choices"):
            if choice.get("index", 0) in (0, None):
                self.finish = _finish(choice) or self.finish
                self._say(object_at(choice, "delta") or object_at(choice, "message"))
        return self

    def _say(self, said: JsonObject) -> None:
        for kind, piece in _pieces(said.get("content")):
            (self.thinking if kind == "thinking" else self.text).append(piece)
        self.thinking.append(next((text for key in _THOUGHTS if (text := text_at(said, key))), ""))
        self.refusal.append(text_at(said, "refusal"))
        for place, call in enumerate(objects_at(said, "tool_calls")):
            index = call.get("index", place)
            name = text_at(object_at(call, "function"), "name") or text_at(object_at(call, "custom"), "name")
            if isinstance(index, int) and not self.calls.get(index):
                self.calls[index] = name
        if name := text_at(object_at(said, "function_call"), "name"):
            self.calls[0] = name

    def answer(self) -> Answer:
        text, thinking = joined(self.text), joined(self.thinking)
        if not thinking and (tagged := _THINK_TAG.match(text)):
            text, thinking = text[tagged.end() :], tagged[1].strip()
        return Answer(
            text=text,
            finish=self.finish or ("error" if self.error else None),
            usage=usage_of(self.counts),
            tool_calls=tuple(self.calls[index] for index in sorted(self.calls)),
            refusal=joined(self.refusal),
            error=self.error,
            thinking=thinking,
        )


def _pieces(content: JsonValue) -> list[tuple[str, str]]:
    """(kind, words) of a content: a string, or Mistral's list of text and thinking parts."""
    if isinstance(content, str):
        return [("text", content)]
    if not isinstance(content, list):
        return []
    pieces: list[tuple[str, str]] = []
    for part in content:
        if isinstance(part, dict):
            inner = part.get("thinking")
            if inner is not None:
                pieces += [("thinking", words) for _kind, words in _pieces(inner)]
            else:
                pieces.append(("text", text_at(part, "text")))
    return pieces


def error_body(status: int, message: str, *, code: str | None = None, request_id: str = "") -> bytes:
    """An error answer in OpenAI's shape. The request id has no place in it; it goes in the `x-request-id`
    header."""
    return dumps({"error": openai_error(status, message, code)})


def error_event(message: str, *, status: int = 500, code: str | None = None) -> bytes:
    """The same as the last chunk of a stream, then `[DONE]`: SDKs raise on a chunk with `error`."""
    return sse.write(error_body(status, message, code=code)) + sse.write(DONE)


def heartbeat(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A comment: no chat client that was tried minds one, and the SDKs' read timers are reset by it."""
    return sse.comment("keep-alive")
