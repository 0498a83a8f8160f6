"""Refusals as events of a stream that began with 200, cut anywhere, read the way the drivers read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.overflow import Refusal, Verdict, classify, judge_success
from tidegate.overflow.verdict import Action, Kind
from tidegate.providers import load
from tidegate.wire.conversation import DialectName
from tidegate.wire.watch import Watch

GENERIC = load().rules("generic")
CORPUS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "corpus" / "refusals.jsonl").read_text("utf-8").splitlines()
]


def event(name: str, data: object, *, end: str = "\n") -> bytes:
    named = f"event: {name}{end}" if name else ""
    return f"{named}data: {json.dumps(data)}{end}{end}".encode()


CREATED = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
START = {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": {}}}

FORMS: dict[str, tuple[DialectName, Callable[[str, str], bytes]]] = {
    "chat error": ("chat", lambda code, text: event("", {"error": {"code": code or None, "message": text}})),
    "chat error with a choice": (
        "chat",
        lambda code, text: event(
            "", {"choices": [{"delta": {}, "finish_reason": "error"}], "error": {"code": code or 400, "message": text}}
        ),
    ),
    "chat error, named": ("chat", lambda code, text: event("error", {"error": {"code": code, "message": text}})),
    "responses error": (
        "responses",
        lambda code, text: (
            event("response.created", CREATED)
            + event("error", {"type": "error", "code": code or None, "message": text, "param": None})
        ),
    ),
    "responses error, nested": (
        "responses",
        lambda code, text: event("error", {"type": "error", "error": {"code": code, "message": text}}),
    ),
    "response.failed": (
        "responses",
        lambda code, text: (
            event("response.created", CREATED)
            + event(
                "response.failed",
                {"type": "response.failed", "response": {"status": "failed", "error": {"code": code, "message": text}}},
            )
        ),
    ),
    "messages error": (
        "messages",
        lambda code, text: (
            event("message_start", START)
            + event("ping", {"type": "ping"})
            + event("error", {"type": "error", "error": {"type": code or "invalid_request_error", "message": text}})
        ),
    ),
}

REFUSALS: list[tuple[str, str, Kind, Action]] = [
    ("context_length_exceeded", "Your input exceeds the context window of this model.", "overflow", "compact"),
    ("", "prompt is too long: 215692 tokens > 200000 maximum", "overflow", "compact"),
    ("", "input length and `max_tokens` exceed context limit: 120000 + 90000 > 200000", "output_limit", "clamp_output"),
    ("", "image exceeds 5 MB maximum: 13129816 bytes > 5242880 bytes", "media_limit", "none"),
    ("rate_limit_exceeded", "Rate limit reached on tokens per min (TPM): Limit 30000, Used 1", "rate_limit", "wait"),
    ("insufficient_quota", "You exceeded your current quota, please check your plan.", "quota", "none"),
    ("overloaded_error", "Overloaded", "server", "none"),
    ("", "Could not decode the compaction blob.", "stale_artifact", "drop_artifact"),
]  # fmt: skip


def watched(dialect: DialectName, chunks: Iterable[bytes]) -> Watch:
    watch = Watch(dialect, "text/event-stream")
    for chunk in chunks:
        watch.feed(chunk)
    watch.close()
    return watch


def judged(dialect: DialectName, chunks: Iterable[bytes]) -> Verdict:
    watch = watched(dialect, chunks)
    assert watch.error
    assert watch.error_before_content
    return classify(Refusal(200, watch.error, in_stream=True), GENERIC)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("code", "text", "kind", "action"), REFUSALS)
def test_a_refusal_in_a_stream_is_judged_as_one_without(
    form: str, code: str, text: str, kind: Kind, action: Action
) -> None:
    dialect, written = FORMS[form]
    stream = written(code, text)
    for chunks in ([stream], [bytes([byte]) for byte in stream], [stream.replace(b"\n", b"\r\n")]):
        verdict = judged(dialect, chunks)
        assert (verdict.kind, verdict.action) == (kind, action), verdict.evidence
    plain = classify(Refusal(400, json.dumps({"error": {"code": code, "message": text}})), GENERIC)
    assert (verdict.input_tokens, verdict.window) == (plain.input_tokens, plain.window)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(list(FORMS)), st.sampled_from(REFUSALS), st.lists(st.integers(1, 40), max_size=60))
def test_the_chunks_do_not_matter(form: str, refusal: tuple[str, str, Kind, Action], sizes: list[int]) -> None:
    dialect, written = FORMS[form]
    stream, chunks = written(*refusal[:2]), []
    for size in sizes:
        chunks.append(stream[:size])
        stream = stream[size:]
    assert judged(dialect, [*chunks, stream]).kind == refusal[2]


OVERFLOWS = [case for case in CORPUS if case["kind"] == "overflow" and case["decidable_from_body"]]
STREAMED = [case for case in OVERFLOWS if case["body"].replace(" ", "").startswith('{"error":{')]


@pytest.mark.parametrize("case", STREAMED, ids=lambda case: case["id"])
def test_the_labelled_overflows_are_overflows_in_a_stream(case: dict[str, object]) -> None:
    data = str(case["body"]).replace("\n", " ").encode()
    verdict = judged("chat", [b": keep-alive\n\ndata: " + data[:50], data[50:] + b"\n\n"])
    assert verdict.kind == "overflow", verdict.evidence


def test_an_incomplete_response_is_an_answer_that_was_cut() -> None:
    incomplete = {
        "type": "response.incomplete",
        "response": {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "usage": {"input_tokens": 900, "output_tokens": 12},
        },
    }
    stream = event("response.created", CREATED) + event("response.incomplete", incomplete)
    watch = watched("responses", [stream])
    assert not watch.error
    verdict = judge_success(watch.finish, watch.usage)
    assert verdict
    assert (verdict.kind, verdict.action) == ("truncated_output", "none")
    assert classify(Refusal(200, json.dumps(incomplete), in_stream=True), GENERIC).kind == "truncated_output"


@pytest.mark.parametrize(
    ("dialect", "stream"),
    [
        (
            "chat",
            event("", {"choices": [{"delta": {"content": "prompt is too long: 215692 tokens > 200000 maximum"}}]})
            + event("", {"choices": [{"delta": {}, "finish_reason": "stop"}]})
            + b"data: [DONE]\n\n",
        ),
        (
            "messages",
            event("message_start", START)
            + event(
                "content_block_delta",
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "context_length_exceeded"}},
            )
            + event("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        ),
    ],
)
def test_a_reply_that_quotes_a_refusal_is_no_refusal(dialect: DialectName, stream: bytes) -> None:
    watch = watched(dialect, [stream])
    assert (watch.error, watch.finish) == (b"", "stop")
    assert judge_success(watch.finish, watch.usage) is None


@pytest.mark.parametrize(
    ("output", "kind"), [(0, "overflow"), (200, "truncated_output")], ids=["without an answer", "with one"]
)
def test_a_window_that_ended_a_stream_is_told(output: int, kind: Kind) -> None:
    delta = {"stop_reason": "model_context_window_exceeded"}
    stream = event("message_start", START) + event(
        "message_delta",
        {"type": "message_delta", "delta": delta, "usage": {"input_tokens": 9, "output_tokens": output}},
    )
    watch = watched("messages", [stream])
    verdict = judge_success(watch.finish, watch.usage, answered=watch.begun)
    assert verdict
    assert verdict.kind == kind
