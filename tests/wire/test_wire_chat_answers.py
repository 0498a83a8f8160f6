"""Chat completions' answers: what a chunk means, what an answer says, and errors that real clients understand."""

from __future__ import annotations

import json

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.wire.chat_answers import FINISH, error_body, error_event, heartbeat, read_answer, signal
from tidegate.wire.conversation import Answer, Usage
from tidegate.wire.sse import Event, write


def chunk(delta: object, finish: object = None, **more: object) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}).encode()


KINDS: dict[str, tuple[bytes, str]] = {
    "role only": (chunk({"role": "assistant"}), "lifecycle"),
    "role and empty words": (chunk({"role": "assistant", "content": "", "refusal": None}), "lifecycle"),
    "null words": (chunk({"role": "assistant", "content": None, "tool_calls": []}), "lifecycle"),
    "no delta": (chunk(None), "lifecycle"),
    "Azure's filter results": (b'{"choices":[],"prompt_filter_results":[{}]}', "lifecycle"),
    "usage only": (b'{"choices":[],"usage":{"prompt_tokens":3}}', "lifecycle"),
    "a window that was full with nothing said": (chunk({"content": ""}, "model_context_window_exceeded"), "lifecycle"),
    "words": (chunk({"content": "Hi"}), "content"),
    "a space": (chunk({"content": " "}), "content"),
    "parts": (chunk({"content": [{"type": "text", "text": "Hi"}]}), "content"),
    "reasoning_content": (chunk({"reasoning_content": "Hm"}), "content"),
    "reasoning": (chunk({"content": "", "reasoning": "Hm"}), "content"),
    "tool calls": (chunk({"tool_calls": [{"index": 0, "function": {"name": "ls"}}]}), "content"),
    "function call": (chunk({"function_call": {"name": "ls"}}), "content"),
    "refusal": (chunk({"refusal": "I"}), "content"),
    "audio": (chunk({"audio": {"id": "a"}}), "content"),
    "a whole message": (b'{"choices":[{"message":{"role":"assistant","content":"Hi"}}]}', "content"),
    "second choice speaks": (b'{"choices":[{"delta":{}},{"index":1,"delta":{"content":"x"}}]}', "content"),
    "finish reason": (chunk({}, "stop"), "content"),
    "words cut by the window": (chunk({"content": "Hi"}, "model_context_window_exceeded"), "content"),
    "no JSON": (b"hello", "content"),
    "an unknown object": (b'{"something":1}', "content"),
    "done": (b"[DONE]", "end"),
    "empty": (b"", "ignored"),
    "error object": (b'{"error":{"message":"x"}}', "error"),
    "error text": (b'{"error":"x"}', "error"),
    "null error": (chunk({"content": "Hi"}, error=None), "content"),
    "OpenRouter in the middle": (chunk({"content": ""}, "error", error={"code": 502}), "error"),
    "finish reason error alone": (chunk({"content": ""}, "error"), "error"),
    "network error": (chunk({"content": "partial"}, "network_error"), "error"),
    "bare code and message": (b'{"code":429,"message":"x","metadata":{}}', "error"),
    "old vLLM": (b'{"object":"error","message":"x","type":"BadRequestError"}', "error"),
    "MiniMax": (b'{"choices":null,"base_resp":{"status_code":2013,"status_msg":"x"}}', "error"),
    "FastAPI": (b'{"detail":"x"}', "error"),
}


@pytest.mark.parametrize(("data", "kind"), KINDS.values(), ids=KINDS.keys())
def test_what_a_chunk_means(data: bytes, kind: str) -> None:
    seen = signal(Event("", data))
    assert seen.kind == kind
    assert seen.error == (data if kind == "error" else b"")


def test_a_comment_shows_nothing() -> None:
    assert signal(Event("", b"", comment=True)).kind == "lifecycle"


@pytest.mark.parametrize("data", [b'{"message":"The model has crashed"}', b"crashed"])
def test_an_event_named_error_is_one_whatever_it_holds(data: bytes) -> None:
    seen = signal(Event("error", data))
    assert (seen.kind, seen.error) == ("error", data)


def test_a_piece_cut_by_the_end_is_no_content() -> None:
    assert signal(Event("", b'{"choices":[{"del', unterminated=True)).kind == "ignored"
    assert signal(Event("", b'{"error":{"message":"x"}}', unterminated=True)).kind == "error"


@pytest.mark.parametrize(("word", "finish"), [*FINISH.items(), ("something_new", "other")])
def test_finish_reasons(word: str, finish: str) -> None:
    assert signal(Event("", chunk({"content": "x"}, word))).finish == finish


USAGES: dict[str, tuple[object, Usage | None]] = {
    "OpenAI": (
        {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
        Usage(9, 2, 4),
    ),
    "DeepSeek": (
        {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
        Usage(9, 0, 4),
    ),
    "no details": ({"prompt_tokens": 9, "prompt_tokens_details": None}, Usage(9)),
    "zero": ({"prompt_tokens": 0, "completion_tokens": 2}, None),
    "wrong types": ({"prompt_tokens": "9"}, None),
    "not an object": ([9], None),
}


@pytest.mark.parametrize(("usage", "expected"), USAGES.values(), ids=USAGES.keys())
def test_usage(usage: object, expected: Usage | None) -> None:
    assert signal(Event("", chunk({}, "stop", usage=usage))).usage == expected
    assert read_answer(json.dumps({"choices": [], "usage": usage}).encode()).usage == expected


def test_usage_where_groq_and_moonshot_stream_it() -> None:
    assert signal(Event("", chunk({}, "stop", x_groq={"usage": {"prompt_tokens": 5}}))).usage == Usage(5)
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 6}}
    assert signal(Event("", json.dumps({"choices": [choice]}).encode())).usage == Usage(6)


def stream(*chunks: bytes) -> bytes:
    return b"".join(map(write, chunks))


ANSWERS: dict[str, tuple[bytes, Answer]] = {
    "a stream": (
        stream(
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "Let me "}),
            chunk({"reasoning_content": "see."}),
            chunk({"content": "Good "}),
            chunk({"content": "day"}),
            chunk({}, "stop"),
            b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}',
            b"[DONE]",
        ),
        Answer("Good day", "stop", Usage(9, 4), thinking="Let me see."),
    ),
    "a body": (
        json.dumps(
            {
                "choices": [
                    {"index": 0, "message": {"content": "Good day", "reasoning": "Hm"}, "finish_reason": "stop"},
                    {"index": 1, "message": {"content": "Bad day"}, "finish_reason": "length"},
                ],
                "usage": {"prompt_tokens": 9},
            }
        ).encode(),
        Answer("Good day", "stop", Usage(9), thinking="Hm"),
    ),
    "a body after white space": (b'\n\n {"choices":[{"message":{"content":"x"}}]}', Answer("x", None)),
    "a cut stream": (stream(chunk({"content": "Good "})) + b'data: {"choi', Answer("Good ", None)),
    "done without a reason": (stream(chunk({"content": "Good"}), b"[DONE]"), Answer("Good", None)),
    "no blank line at the end": (stream(chunk({"content": "x"})) + b"data: " + chunk({}, "stop"), Answer("x", "stop")),
    "tool calls": (
        stream(
            chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "ls", "arguments": ""}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
            chunk({"tool_calls": [{"index": 1, "type": "custom", "custom": {"name": "patch"}}]}),
            chunk({}, "tool_calls"),
        ),
        Answer("", "tool_call", tool_calls=("ls", "patch")),
    ),
    "a function call": (
        b'{"choices":[{"message":{"content":null,"function_call":{"name":"ls"}},"finish_reason":"function_call"}]}',
        Answer("", "tool_call", tool_calls=("ls",)),
    ),
    "a refusal": (
        stream(chunk({"refusal": "I "}), chunk({"refusal": "can't"}), chunk({}, "stop")),
        Answer("", "stop", refusal="I can't"),
    ),
    "Mistral's parts": (
        stream(
            chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]}),
            chunk({"content": [{"type": "text", "text": "Hi"}]}, "stop"),
        ),
        Answer("Hi", "stop", thinking="Hm"),
    ),
    "thinking left in the words": (
        stream(chunk({"content": "<think>\nHm"}), chunk({"content": "\n</think>\n\nHi"}, "stop")),
        Answer("Hi", "stop", thinking="Hm"),
    ),
    "thinking that never ended": (
        stream(chunk({"content": "<think>Hm"}, "length")),
        Answer("", "length", thinking="Hm"),
    ),
    "the tag inside the words stays": (stream(chunk({"content": "a <think>"}, "stop")), Answer("a <think>", "stop")),
    "an error in the stream": (
        stream(chunk({"content": "Go"}), b'{"error":{"message":"x"}}', chunk({"content": "od"})),
        Answer("Go", "error", error=b'{"error":{"message":"x"}}'),
    ),
    "an error body": (b'{"error":{"message":"x"}}', Answer("", "error", error=b'{"error":{"message":"x"}}')),
    "a character cut in two by the server": (
        stream(b'{"choices":[{"delta":{"content":"\\ud83d"}}]}', b'{"choices":[{"delta":{"content":"\\ude00"}}]}'),
        Answer("\U0001f600", None),
    ),
    "html": (b"<html>", Answer("", None)),
    "nothing": (b"", Answer("", None)),
}


@pytest.mark.parametrize(("body", "answer"), ANSWERS.values(), ids=ANSWERS.keys())
def test_what_an_answer_says(body: bytes, answer: Answer) -> None:
    assert read_answer(body) == answer


@given(st.lists(st.text(max_size=8), max_size=6))
@settings(max_examples=60, deadline=None)
def test_words_come_through_whole(pieces: list[str]) -> None:
    body = stream(chunk({"content": "."}), *(chunk({"content": piece}) for piece in pieces))
    assert read_answer(body.replace(b"\n", b"\r\n")).text == "." + "".join(pieces)


def client(body: bytes, status: int = 200) -> openai.OpenAI:
    kind = "text/event-stream" if status == 200 else "application/json"
    transport = httpx2.MockTransport(
        lambda _request: httpx2.Response(status, content=body, headers={"content-type": kind})
    )
    http = httpx2.Client(transport=transport)
    return openai.OpenAI(api_key="k", base_url="http://tide/v1", max_retries=0, http_client=http)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
    ],
)
def test_the_sdk_reads_an_error_body(status: int, error: type[openai.APIStatusError]) -> None:
    body = error_body(status, "no room", code="context_length_exceeded", request_id="req_1")
    with pytest.raises(error, match="no room") as raised:
        client(body, status).chat.completions.create(model="m", messages=[])
    assert raised.value.code == "context_length_exceeded"


def test_an_error_body_is_openais() -> None:
    assert json.loads(error_body(413, "too big")) == {
        "error": {"message": "too big", "type": "request_too_large", "param": None, "code": None}
    }


def test_the_sdk_raises_on_an_error_event() -> None:
    body = heartbeat([]) + write(chunk({"content": "Hi"})) + error_event("no room", code="summary_failed")
    with pytest.raises(openai.APIError, match="no room") as raised:
        list(client(body).chat.completions.create(model="m", messages=[], stream=True))
    assert raised.value.code == "summary_failed"
    with (
        pytest.raises(openai.APIError, match="no room"),
        client(body).chat.completions.stream(model="m", messages=[]) as events,
    ):
        list(events)


def test_the_sdk_reads_past_a_heartbeat() -> None:
    body = heartbeat([]) * 3 + stream(chunk({"content": "Hi"}), chunk({}, "stop")) + heartbeat([]) + write(b"[DONE]")
    chunks = list(client(body).chat.completions.create(model="m", messages=[], stream=True))
    assert [c.choices[0].delta.content for c in chunks] == ["Hi", None]


def test_its_own_error_is_read_as_one() -> None:
    answer = read_answer(heartbeat([]) + error_event("no room", status=400))
    assert (answer.finish, answer.error) == ("error", error_body(400, "no room"))
