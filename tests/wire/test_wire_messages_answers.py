"""Anthropic Messages' answers: what an event means, what an answer says, and errors that real clients understand."""

from __future__ import annotations

import json

import anthropic
import httpx2
import pytest

from tidegate.wire.conversation import Answer, Cleared, Usage
from tidegate.wire.messages_answers import (
    ERROR_TYPES,
    FINISH,
    error_body,
    error_event,
    heartbeat,
    read_answer,
    read_end,
    signal,
)
from tidegate.wire.sse import Event, write
from tidegate.wire.watch import Watch


def data(kind: str, **fields: object) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


def event(kind: str, **fields: object) -> bytes:
    return write(data(kind, **fields), kind)


def delta(**fields: object) -> bytes:
    return event("content_block_delta", index=0, delta=fields)


def stop(reason: str | None, **usage: object) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


START = event("message_start", message={"content": [], "stop_reason": None, "usage": {"input_tokens": 9}})
OVER = event("message_stop")

KINDS: dict[str, tuple[str, bytes, str]] = {
    "start": ("message_start", data("message_start", message={"usage": {"input_tokens": 9}}), "lifecycle"),
    "ping": ("ping", data("ping"), "lifecycle"),
    "ping by its name": ("ping", b"{}", "lifecycle"),
    "block": ("content_block_start", data("content_block_start", content_block={"type": "text"}), "content"),
    "delta": ("content_block_delta", data("content_block_delta", delta={"text": "x"}), "content"),
    "block end": ("content_block_stop", data("content_block_stop", index=0), "content"),
    "stop reason": ("message_delta", data("message_delta", delta={"stop_reason": "end_turn"}), "content"),
    "the window alone": (
        "message_delta",
        data("message_delta", delta={"stop_reason": "model_context_window_exceeded"}),
        "lifecycle",
    ),
    "stop": ("message_stop", data("message_stop"), "end"),
    "an event of tomorrow": ("message_news", data("message_news"), "content"),
    "no JSON": ("", b"hello", "content"),
    "empty": ("", b"", "ignored"),
    "error": ("error", data("error", error={"type": "overloaded_error", "message": "x"}), "error"),
    "error without a name": ("", data("error", error={"message": "x"}), "error"),
    "an OpenAI error": ("", b'{"error":{"message":"x"}}', "error"),
    "llama.cpp": ("", b'{"code":500,"message":"context shift is disabled","type":"server_error"}', "error"),
    "an event named error": ("error", b"x", "error"),
}


@pytest.mark.parametrize(("name", "body", "kind"), KINDS.values(), ids=KINDS.keys())
def test_what_an_event_means(name: str, body: bytes, kind: str) -> None:
    seen = signal(Event(name, body))
    assert seen.kind == kind
    assert seen.error == (body if kind == "error" else b"")


@pytest.mark.parametrize(("word", "finish"), [*FINISH.items(), ("something_new", "other")])
def test_stop_reasons(word: str, finish: str) -> None:
    assert signal(Event("message_delta", data("message_delta", delta={"stop_reason": word}))).finish == finish


USAGES: dict[str, tuple[object, Usage | None]] = {
    "no cache": ({"input_tokens": 9, "output_tokens": 2}, Usage(9, 2)),
    "cache reads and writes are input": (
        {"input_tokens": 9, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 2},
        Usage(129, 2, 100),
    ),
    "all of it cached": ({"input_tokens": 0, "cache_read_input_tokens": 100}, Usage(100, 0, 100)),
    "null caches": ({"input_tokens": 9, "cache_read_input_tokens": None}, Usage(9)),
    "zero": ({"input_tokens": 0, "output_tokens": 0}, None),
    "iterations: the last message": (
        {
            "input_tokens": 500,
            "iterations": [
                {"type": "message", "input_tokens": 300},
                {"type": "message", "input_tokens": 200, "cache_creation_input_tokens": 50, "output_tokens": 3},
                {"type": "compaction", "input_tokens": 55196, "output_tokens": 125},
                {"type": "advisor_message", "input_tokens": 7},
            ],
        },
        Usage(250, 3),
    ),
    "iterations: a fallback model's message": (
        {"input_tokens": 5, "iterations": [{"type": "fallback_message", "input_tokens": 40}]},
        Usage(40),
    ),
    "iterations: a compaction alone is no context": (
        {"input_tokens": 0, "output_tokens": 0, "iterations": [{"type": "compaction", "input_tokens": 144}]},
        None,
    ),
}


@pytest.mark.parametrize(("usage", "expected"), USAGES.values(), ids=USAGES.keys())
def test_usage(usage: object, expected: Usage | None) -> None:
    assert read_answer(data("message", content=[], usage=usage)).usage == expected
    assert signal(Event("", data("message_start", message={"usage": usage}))).usage == expected


CLEARED = {
    "applied_edits": [
        {"type": "clear_thinking_20251015", "cleared_thinking_turns": 2, "cleared_input_tokens": 40},
        {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 7, "cleared_input_tokens": 900},
    ]
}


@pytest.mark.parametrize(
    ("managed", "cleared"),
    [
        (CLEARED, Cleared(940, 7, 2)),
        ({"applied_edits": []}, None),
        ({}, None),
        (None, None),
        ({"applied_edits": "x"}, None),
        ({"applied_edits": [{"type": "x", "cleared_input_tokens": "many"}]}, Cleared()),
    ],
)
def test_what_was_cleared_is_told_with_the_usage(managed: object, cleared: Cleared | None) -> None:
    usage = {"input_tokens": 9, "output_tokens": 4}
    whole = data("message", content=[], stop_reason="end_turn", usage=usage, context_management=managed)
    end = event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage, context_management=managed)
    watch = Watch("messages", "text/event-stream")
    watch.feed(START + event("content_block_start", index=0) + end + event("message_stop"))
    watch.close()
    for told in (read_answer(whole).usage, read_end(whole).usage, read_answer(START + end).usage, watch.usage):
        assert told == Usage(9, 4, cleared=cleared)


BLOCKS = [
    {"type": "thinking", "thinking": "Hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "abc"},
    {"type": "text", "text": "Good "},
    {"type": "text", "text": "day"},
    {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}},
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
]

ANSWERS: dict[str, tuple[bytes, Answer]] = {
    "a body": (
        data("message", content=BLOCKS, stop_reason="tool_use", usage={"input_tokens": 9, "output_tokens": 4}),
        Answer("Good day", "tool_call", Usage(9, 4), ("ls", "web_search"), thinking="Hm"),
    ),
    "a stream": (
        START
        + event("ping")
        + event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""})
        + delta(type="thinking_delta", thinking="H")
        + delta(type="thinking_delta", thinking="m")
        + delta(type="signature_delta", signature="s")
        + event("content_block_start", index=1, content_block={"type": "text", "text": ""})
        + delta(type="text_delta", text="Good ")
        + delta(type="text_delta", text="day")
        + event("content_block_start", index=2, content_block={"type": "tool_use", "name": "ls", "input": {}})
        + delta(type="input_json_delta", partial_json='{"text":"x"}')
        + stop("tool_use", output_tokens=4)
        + OVER,
        Answer("Good day", "tool_call", Usage(9, 4), ("ls",), thinking="Hm"),
    ),
    "a cut stream": (START + delta(type="text_delta", text="Good"), Answer("Good", None, Usage(9))),
    "a refusal": (
        START + event("message_delta", delta={"stop_reason": "refusal", "stop_details": {"category": "bio"}}),
        Answer("", "refusal", Usage(9), refusal="bio"),
    ),
    "no summary, for want of room": (
        data("message", content=[], stop_reason="model_context_window_exceeded"),
        Answer("", "window"),
    ),
    "a compaction's words are no answer": (
        data("message", content=[{"type": "compaction", "content": "Summary"}], stop_reason="compaction"),
        Answer("", "compaction"),
    ),
    "an error in the stream": (
        START + delta(type="text_delta", text="Go") + event("error", error={"message": "x"}),
        Answer("Go", "error", Usage(9), error=data("error", error={"message": "x"})),
    ),
    "an error body": (
        data("error", error={"message": "x"}),
        Answer("", "error", error=data("error", error={"message": "x"})),
    ),
    "html": (b"<html>", Answer("", None)),
    "nothing": (b"", Answer("", None)),
}


@pytest.mark.parametrize(("body", "answer"), ANSWERS.values(), ids=ANSWERS.keys())
def test_what_an_answer_says(body: bytes, answer: Answer) -> None:
    assert read_answer(body) == answer
    assert read_answer(body.replace(b"\n", b"\r\n")) == answer


def client(body: bytes, status: int = 200) -> anthropic.Anthropic:
    kind = "text/event-stream" if status == 200 else "application/json"
    transport = httpx2.MockTransport(
        lambda _request: httpx2.Response(status, content=body, headers={"content-type": kind})
    )
    http = httpx2.Client(transport=transport)
    return anthropic.Anthropic(api_key="k", base_url="http://tide", max_retries=0, http_client=http)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (401, anthropic.AuthenticationError, "authentication_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (413, anthropic.APIStatusError, "request_too_large"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (529, anthropic.InternalServerError, "overloaded_error"),
    ],
)
def test_the_sdk_reads_an_error_body(status: int, error: type[anthropic.APIStatusError], kind: str) -> None:
    with pytest.raises(error, match="no room") as raised:
        client(error_body(status, "no room", request_id="req_1"), status).messages.create(
            model="m", max_tokens=1, messages=[]
        )
    assert raised.value.status_code == status
    assert raised.value.body == {
        "type": "error",
        "error": {"type": kind, "message": "no room"},
        "request_id": "req_1",
    }


def test_a_code_is_where_the_sdk_looks_for_it() -> None:
    body = error_body(529, "later", code="compaction_unavailable")
    with pytest.raises(anthropic.APIStatusError) as raised:
        client(body, 529).beta.messages.create(model="m", max_tokens=1, messages=[])
    assert type(raised.value).__name__ == "CompactionUnavailableError"


def test_every_status_has_one_of_anthropics_types() -> None:
    known = set(ERROR_TYPES.values()) | {"api_error"}
    for status in range(400, 600):
        assert json.loads(error_body(status, "x"))["error"]["type"] in known


@pytest.mark.parametrize("before", [b"", heartbeat([]), START], ids=["first", "after a heartbeat", "after the start"])
def test_the_sdk_raises_on_an_error_event(before: bytes) -> None:
    body = before + error_event("prompt is too long", status=400)
    with pytest.raises(anthropic.APIStatusError, match="prompt is too long"):
        list(client(body).messages.create(model="m", max_tokens=1, messages=[], stream=True))
    with pytest.raises(anthropic.APIStatusError, match="invalid_request_error"):
        list(client(body).beta.messages.create(model="m", max_tokens=1, messages=[], stream=True))


def full_start() -> bytes:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 1},
    }
    return event("message_start", message=message)


def test_the_sdks_stream_helper_raises_on_an_error_event() -> None:
    body = heartbeat([]) + full_start() + error_event("no room")
    with (
        pytest.raises(anthropic.APIStatusError, match="no room"),
        client(body).messages.stream(model="m", max_tokens=1, messages=[]) as events,
    ):
        list(events)


def test_the_sdk_reads_past_a_heartbeat() -> None:
    words = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    words += heartbeat([]) + delta(type="text_delta", text="Hi") + event("content_block_stop", index=0)
    body = heartbeat([]) * 3 + full_start() + words + stop("end_turn", output_tokens=2) + heartbeat([]) + OVER
    with client(body).messages.stream(model="m", max_tokens=1, messages=[]) as events:
        assert events.get_final_text() == "Hi"
    assert read_answer(body) == Answer("Hi", "stop", Usage(9, 2))


def test_its_own_error_is_read_as_one() -> None:
    answer = read_answer(heartbeat([]) + error_event("no room", status=400))
    assert (answer.finish, json.loads(answer.error)["error"]["message"]) == ("error", "no room")
