"""Responses' answers: what an event means, what an answer says, and errors and heartbeats that real clients take."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import openai
import pytest
from openai.types.responses import ResponseErrorEvent, ResponseFailedEvent

from tidegate.wire.conversation import Answer, Usage
from tidegate.wire.responses_answers import error_body, error_event, heartbeat, read_answer, signal
from tidegate.wire.sse import Event, Reader, write


def data(kind: str, **fields: object) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


def event(kind: str, **fields: object) -> bytes:
    return write(data(kind, **fields), kind)


def ended(status: str, output: list[object] | None = None, **more: object) -> dict[str, object]:
    return {"id": "resp_1", "object": "response", "status": status, "output": output or [], **more}


OVERFLOW = {"code": "context_length_exceeded", "message": "too long"}
MESSAGE = {
    "type": "message",
    "content": [{"type": "output_text", "text": "Good "}, {"type": "output_text", "text": "day"}],
}
REASONING = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Hm"}],
    "content": [{"type": "reasoning_text", "text": "m"}],
    "encrypted_content": "abc",
}
CALL = {"type": "function_call", "call_id": "call_1", "name": "ls", "arguments": "{}"}

KINDS: dict[str, tuple[str, bytes, str]] = {
    "created": ("response.created", data("response.created", response=ended("in_progress")), "lifecycle"),
    "in progress": ("response.in_progress", data("response.in_progress"), "lifecycle"),
    "queued": ("response.queued", data("response.queued"), "lifecycle"),
    "keepalive": ("keepalive", data("keepalive"), "lifecycle"),
    "another's own": ("codex.rate_limits", data("codex.rate_limits", rate_limits={}), "lifecycle"),
    "item": ("response.output_item.added", data("response.output_item.added", item=CALL), "content"),
    "a tool in progress": ("", data("response.web_search_call.in_progress"), "content"),
    "delta": ("response.output_text.delta", data("response.output_text.delta", delta="x"), "content"),
    "an event of tomorrow": ("response.news", data("response.news"), "content"),
    "no JSON": ("", b"hello", "content"),
    "no type": ("", b"{}", "content"),
    "empty": ("", b"", "ignored"),
    "completed": ("response.completed", data("response.completed", response=ended("completed")), "end"),
    "incomplete": ("response.incomplete", data("response.incomplete", response=ended("incomplete")), "end"),
    "done": ("response.done", data("response.done", response=ended("completed")), "end"),
    "[DONE]": ("", b"[DONE]", "end"),
    "nested error": ("error", data("error", sequence_number=2, error=OVERFLOW), "error"),
    "flat error": ("error", data("error", sequence_number=2, **OVERFLOW), "error"),
    "error with a code alone": ("", data("error", error={"code": "context_length_exceeded"}), "error"),
    "error without a type": ("", b'{"error":{"message":"x"}}', "error"),
    "error without JSON": ("error", b"x", "error"),
    "failed": ("response.failed", data("response.failed", response=ended("failed", error=OVERFLOW)), "error"),
    "failed by its status": ("", data("response.done", response=ended("failed", error=OVERFLOW)), "error"),
}


@pytest.mark.parametrize(("name", "body", "kind"), KINDS.values(), ids=KINDS.keys())
def test_what_an_event_means(name: str, body: bytes, kind: str) -> None:
    seen = signal(Event(name, body))
    assert seen.kind == kind
    assert seen.error == (body if kind == "error" else b"")


FINISHES: dict[str, tuple[dict[str, object], str | None]] = {
    "completed": (ended("completed", [MESSAGE]), "stop"),
    "a call": (ended("completed", [REASONING, CALL]), "tool_call"),
    "a custom call": (ended("completed", [{"type": "custom_tool_call", "name": "patch"}]), "tool_call"),
    "a search the server ran": (ended("completed", [{"type": "web_search_call"}, MESSAGE]), "stop"),
    "output limit": (ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), "length"),
    "filter": (ended("incomplete", incomplete_details={"reason": "content_filter"}), "filter"),
    "another reason": (ended("incomplete", incomplete_details={"reason": "steered"}), "other"),
    "no reason": (ended("incomplete", incomplete_details=None), "other"),
    "failed": (ended("failed", error=OVERFLOW), "error"),
    "cancelled": (ended("cancelled"), "other"),
    "in progress": (ended("in_progress"), None),
}


@pytest.mark.parametrize(("response", "finish"), FINISHES.values(), ids=FINISHES.keys())
def test_how_a_response_ended(response: dict[str, object], finish: str | None) -> None:
    assert read_answer(json.dumps(response).encode()).finish == finish
    if finish is not None:
        kind = f"response.{response['status']}"
        assert signal(Event(kind, data(kind, response=response))).finish == finish


USAGES: dict[str, tuple[object, Usage | None]] = {
    "cached tokens are input": (
        {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2},
        Usage(9, 2, 4),
    ),
    "no details": ({"input_tokens": 9}, Usage(9)),
    "zero": ({"input_tokens": 0, "output_tokens": 2}, None),
    "null": (None, None),
}


@pytest.mark.parametrize(("usage", "expected"), USAGES.values(), ids=USAGES.keys())
def test_usage(usage: object, expected: Usage | None) -> None:
    response = ended("completed", usage=usage)
    assert read_answer(json.dumps(response).encode()).usage == expected
    assert signal(Event("", data("response.completed", response=response))).usage == expected


def done(place: int, item: object) -> bytes:
    return event("response.output_item.done", output_index=place, item=item)


def said(place: int, words: str, kind: str = "output_text") -> bytes:
    return event(f"response.{kind}.delta", output_index=place, delta=words)


COUNT = {"input_tokens": 9, "output_tokens": 4}
WHOLE = Answer("Good day", "tool_call", Usage(9, 4), ("ls",), thinking="mHm")

ANSWERS: dict[str, tuple[bytes, Answer]] = {
    "a body": (json.dumps(ended("completed", [REASONING, MESSAGE, CALL], usage=COUNT)).encode(), WHOLE),
    "a stream whose end holds the output": (
        event("response.created", response=ended("in_progress"))
        + said(1, "ignored once the end tells")
        + event("response.completed", response=ended("completed", [REASONING, MESSAGE, CALL], usage=COUNT)),
        WHOLE,
    ),
    "a stream whose end holds none": (
        event("response.created", response=ended("in_progress"))
        + said(1, "Good ")
        + said(1, "da")
        + done(0, REASONING)
        + done(1, MESSAGE)
        + done(2, CALL)
        + event("response.completed", response=ended("completed", usage=COUNT)),
        WHOLE,
    ),
    "a cut stream, from its deltas": (
        said(0, "Hm", "reasoning_summary_text")
        + said(1, "Good ")
        + said(1, "da")
        + b'event: response.output_text.delta\ndata: {"ty',
        Answer("Good da", None, thinking="Hm"),
    ),
    "a cut stream, items done and not": (done(0, MESSAGE) + said(1, "!"), Answer("Good day!", None)),
    "a refusal": (
        json.dumps(
            ended("completed", [{"type": "message", "content": [{"type": "refusal", "refusal": "No"}]}])
        ).encode(),
        Answer("", "stop", refusal="No"),
    ),
    "a streamed refusal": (said(0, "N", "refusal") + said(0, "o", "refusal"), Answer("", None, refusal="No")),
    "a nested error": (
        said(0, "Go") + event("error", error=OVERFLOW),
        Answer("Go", "error", error=data("error", error=OVERFLOW)),
    ),
    "failed": (
        said(0, "Go") + event("response.failed", response=ended("failed", error=OVERFLOW)),
        Answer("Go", "error", error=data("response.failed", response=ended("failed", error=OVERFLOW))),
    ),
    "an error body": (b'{"error":{"message":"x"}}', Answer("", "error", error=b'{"error":{"message":"x"}}')),
    "html": (b"<html>", Answer("", None)),
    "nothing": (b"", Answer("", None)),
}


@pytest.mark.parametrize(("body", "answer"), ANSWERS.values(), ids=ANSWERS.keys())
def test_what_an_answer_says(body: bytes, answer: Answer) -> None:
    assert read_answer(body) == answer


def client(body: bytes, status: int = 200) -> openai.OpenAI:
    kind = "text/event-stream" if status == 200 else "application/json"
    transport = httpx2.MockTransport(
        lambda _request: httpx2.Response(status, content=body, headers={"content-type": kind})
    )
    http = httpx2.Client(transport=transport)
    return openai.OpenAI(api_key="k", base_url="http://tide/v1", max_retries=0, http_client=http)


def raw_stream(body: bytes) -> list[str]:
    return [e.type for e in client(body).responses.create(model="m", input="x", stream=True)]


def stream_helper(body: bytes) -> list[str]:
    with client(body).responses.stream(model="m", input="x") as events:
        return [e.type for e in events]


both = pytest.mark.parametrize("read", [raw_stream, stream_helper])

FIELDS = {"created_at": 0, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
CREATED = event("response.created", sequence_number=0, response=ended("in_progress", **FIELDS))
COMPLETED = event("response.completed", sequence_number=1, response=ended("completed", **FIELDS))
CODEX = heartbeat([(b"originator", b"codex_exec")])


@both
@pytest.mark.parametrize("before", [b"", heartbeat([]), CREATED], ids=["first", "after a heartbeat", "after created"])
def test_the_sdk_raises_on_an_error_event(read: Callable[[bytes], list[str]], before: bytes) -> None:
    with pytest.raises(openai.APIError, match="no room") as raised:
        read(before + error_event("no room", status=400, code="context_length_exceeded"))
    assert raised.value.code == "context_length_exceeded"


@both
def test_the_sdk_reads_past_a_heartbeat(read: Callable[[bytes], list[str]]) -> None:
    body = heartbeat([]) * 2 + CREATED + heartbeat([]) + COMPLETED
    assert read(body) == ["response.created", "response.completed"]


def test_why_a_heartbeat_is_an_event_for_codex_alone() -> None:
    assert raw_stream(CODEX + CREATED + COMPLETED)[0] == "keepalive"
    with pytest.raises(RuntimeError, match="keepalive"):
        stream_helper(CODEX + CREATED + COMPLETED)


def test_why_response_failed_does_not_come_alone() -> None:
    alone = error_event("no room")[error_event("no room").index(b"event: response.failed") :]
    assert raw_stream(CREATED + alone) == ["response.created", "response.failed"]
    with pytest.raises(RuntimeError):
        stream_helper(alone)


CLIENTS: dict[str, tuple[list[tuple[bytes, bytes]], bool]] = {
    "codex by originator": ([(b"originator", b"codex_exec")], True),
    "codex by originator, any case": ([(b"Originator", b"Codex Desktop")], True),
    "codex by agent": ([(b"user-agent", b"codex_cli_rs/0.171.0 (Debian)")], True),
    "codex inside another agent": ([(b"user-agent", b"my-wrapper codex_cli_rs/0.1")], True),
    "OpenAI's SDK": ([(b"user-agent", b"OpenAI/Python 3.57.0")], False),
    "another's header": ([(b"x-title", b"codex_cli")], False),
    "none": ([], False),
}


@pytest.mark.parametrize(("headers", "codex"), CLIENTS.values(), ids=CLIENTS.keys())
def test_who_gets_an_event_as_a_heartbeat(headers: list[tuple[bytes, bytes]], codex: bool) -> None:
    events = Reader().feed(heartbeat(headers))
    assert events == [Event("keepalive", b'{"type":"keepalive"}') if codex else Event("", b"", comment=True)]


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (500, None, "server_error"),
        (503, None, "server_error"),
        (429, None, "rate_limit_exceeded"),
        (400, None, "invalid_prompt"),
        (400, "context_length_exceeded", "context_length_exceeded"),
    ],
)
def test_an_error_event_tells_codex_by_code_whether_to_try_again(status: int, code: str | None, told: str) -> None:
    error, failed = Reader().feed(error_event("no\nroom", status=status, code=code))
    assert (error.name, failed.name) == ("error", "response.failed")
    assert json.loads(failed.data)["response"]["error"] == {"code": told, "message": "no\nroom"}
    assert json.loads(error.data)["error"]["code"] == told


def test_an_error_event_is_valid_by_the_apis_types() -> None:
    error, failed = Reader().feed(error_event("no room"))
    ResponseErrorEvent.model_validate_json(error.data)
    ResponseFailedEvent.model_validate_json(failed.data)


def test_the_sdk_reads_an_error_body() -> None:
    with pytest.raises(openai.BadRequestError, match="no room") as raised:
        client(error_body(400, "no room", code="context_length_exceeded"), 400).responses.create(model="m", input="x")
    assert (raised.value.code, raised.value.type) == ("context_length_exceeded", "invalid_request_error")


def test_its_own_error_is_read_as_one() -> None:
    answer = read_answer(CODEX + error_event("no room", status=400))
    assert (answer.finish, json.loads(answer.error)["error"]["message"]) == ("error", "no room")
