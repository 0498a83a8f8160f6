"""Answers of the Responses API as chat completions: the same words, calls, ends and counts, in whatever pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tidegate.wire.bridge_answers import NoAnswer, Stream, completion

USAGE = {
    "input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 8}, "total_tokens": 120,
}  # fmt: skip
COUNTED = (100, 20, 120, 64, 8)
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
NOTE = {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "t", "url": "https://a"}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [*parts]}


def words(text: str, *notes: dict[str, Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [*notes]}


def called(number: int, kind: str = "function_call") -> dict[str, Any]:
    key = "arguments" if kind == "function_call" else "input"
    return {"type": kind, "id": f"fc_{number}", "call_id": f"call_{number}", "name": "read", key: '{"path":"a.py"}'}


def response(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1700000000, "model": "gpt-5.1", "status": "completed",
        "service_tier": "default", "output": [*output], "usage": USAGE, **fields,
    }  # fmt: skip


CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}

ANSWERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "words": (response(said(words("Hello"))), {"content": "Hello"}, "stop"),
    "after thinking": (response(THOUGHT, said(words("Hello"))), {"content": "Hello"}, "stop"),
    "two parts": (response(said(words("One "), words("two"))), {"content": "One two"}, "stop"),
    "two messages": (response(said(words("One ")), said(words("two"))), {"content": "One two"}, "stop"),
    "a call": (response(called(1)), {"content": None, "calls": [("call_1", "read", '{"path":"a.py"}')]}, "tool_calls"),
    "words and calls": (
        response(said(words("Let me see.")), called(1), called(2)),
        {"content": "Let me see.", "calls": [(f"call_{n}", "read", '{"path":"a.py"}') for n in (1, 2)]},
        "tool_calls",
    ),
    "a refusal": (
        response(said({"type": "refusal", "refusal": "No."})), {"content": None, "refusal": "No."}, "stop",
    ),
    "cut by length": (response(said(words("Hel")), **CUT), {"content": "Hel"}, "length"),
    "cut in a call": (
        response(called(1), **CUT), {"content": None, "calls": [("call_1", "read", '{"path":"a.py"}')]}, "length",
    ),
    "filtered": (response(said(words("Hel")), **FILTERED), {"content": "Hel"}, "content_filter"),
    "nothing": (response(THOUGHT, **CUT), {"content": ""}, "length"),
}  # fmt: skip


def told(message: Any, content: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"content": content}
    if message.refusal:
        found["refusal"] = message.refusal
    if message.tool_calls:
        found["calls"] = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
    return found


def counted(usage: Any) -> tuple[int, ...]:
    return (
        usage.prompt_tokens, usage.completion_tokens, usage.total_tokens,
        usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details.reasoning_tokens,
    )  # fmt: skip


@pytest.mark.parametrize("name", list(ANSWERS))
def test_whole(name: str) -> None:
    given, message, finish = ANSWERS[name]
    made = ChatCompletion.model_validate_json(completion(json.dumps(given).encode()), strict=True)
    (choice,) = made.choices
    assert told(choice.message, choice.message.content) == message
    assert (choice.finish_reason, made.id, made.created, made.model) == (finish, "chatcmpl-1", 1700000000, "gpt-5.1")
    assert made.usage is not None
    assert counted(made.usage) == COUNTED


def test_custom_tools_and_citations() -> None:
    made = json.loads(completion(json.dumps(response(said(words("x", NOTE)), called(1, "custom_tool_call"))).encode()))
    message = made["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call == {"id": "call_1", "type": "custom", "custom": {"name": "read", "input": '{"path":"a.py"}'}}
    assert message["annotations"] == [
        {"type": "url_citation", "url_citation": {key: value for key, value in NOTE.items() if key != "type"}}
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"no json", b"[]", b'{"error":{"message":"x"}}', b'{"object":"chat.completion","choices":[]}',
        json.dumps(response(status="failed", error={"code": "server_error", "message": "x"})).encode(),
        json.dumps(response(status="in_progress")).encode(),
    ],
)  # fmt: skip
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(NoAnswer):
        completion(body)


# -- streamed --------------------------------------------------------------------------------------------------------


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def events(whole: dict[str, Any], *, deltas: bool = True, output: bool = True) -> bytes:
    """How a response streams; without deltas items come at once, without output its end has none."""
    made = [event("response.created", response={**whole, "status": "in_progress", "output": []}), b": ping\n\n"]
    for place, item in enumerate(whole["output"]):
        at = {"output_index": place, "item_id": item["id"]}
        key = "arguments" if item["type"] == "function_call" else "input"
        begun = {**item, **({key: ""} if key in item else {}), **({"content": []} if "content" in item else {})}
        if deltas:
            made.append(event("response.output_item.added", output_index=place, item=begun))
            for part in item.get("content", ()):
                kind = "refusal" if "refusal" in part else "output_text"
                text = part.get("refusal") or part.get("text")
                made += [event(f"response.{kind}.delta", delta=text[n : n + 3], **at) for n in range(0, len(text), 3)]
            if key in item:
                name = "function_call_arguments" if key == "arguments" else "custom_tool_call_input"
                made += [
                    event(f"response.{name}.delta", delta=item[key][n : n + 4], **at)
                    for n in range(0, len(item[key]), 4)
                ]
        made.append(event("response.output_item.done", output_index=place, item=item))
    end = whole if output else {**whole, "output": []}
    made.append(event(f"response.{whole['status']}", response=end))
    return b"".join(made)


def written(raw: bytes, size: int = 1 << 20, *, with_usage: bool = False) -> tuple[bytes, Stream]:
    stream = Stream(with_usage=with_usage)
    made = b"".join(stream.feed(raw[n : n + size]) for n in range(0, len(raw), size)) + stream.close()
    return made, stream


def chunks(made: bytes) -> list[ChatCompletionChunk]:
    lines = [line[6:] for line in made.decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [ChatCompletionChunk.model_validate_json(line) for line in lines[:-1]]


def added(found: list[ChatCompletionChunk]) -> tuple[dict[str, Any], str | None]:
    content: str | None = None
    refusal, calls, finish = "", {}, None
    for chunk in found:
        for choice in chunk.choices:
            delta = choice.delta
            content = (content or "") + delta.content if delta.content is not None else content
            refusal += delta.refusal or ""
            for call in delta.tool_calls or ():
                known = calls.setdefault(call.index, ["", "", ""])
                known[0] += call.id or ""
                if call.function:
                    known[1] += call.function.name or ""
                    known[2] += call.function.arguments or ""
            finish = choice.finish_reason or finish
    made: dict[str, Any] = {"content": content}
    if refusal:
        made["refusal"] = refusal
    if calls:
        made["calls"] = [tuple(known) for known in calls.values()]
    return made, finish


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("how", ["deltas", "items at once", "the end alone"])
@pytest.mark.parametrize("name", list(ANSWERS))
def test_streamed(name: str, how: str, size: int) -> None:
    given, message, finish = ANSWERS[name]
    raw = events(given, deltas=how == "deltas", output=how != "deltas")
    if how == "the end alone":
        raw = event("response.created", response=given) + event(f"response.{given['status']}", response=given)
    made, stream = written(raw, size)
    found = chunks(made)
    if message["content"] is None and "refusal" in message:
        message = {**message, "content": ""}
    assert added(found) == (message, finish)
    assert stream.ended
    assert found[0].choices[0].delta.role == "assistant"
    assert {(chunk.id, chunk.created, chunk.model) for chunk in found} == {("chatcmpl-1", 1700000000, "gpt-5.1")}
    assert all(chunk.usage is None for chunk in found)


def test_usage_comes_last_where_it_was_asked_for() -> None:
    made, _stream = written(events(ANSWERS["words"][0]), with_usage=True)
    *before, last = chunks(made)
    assert last.choices == []
    assert last.usage is not None
    assert counted(last.usage) == COUNTED
    assert made.count(b'"usage":null') == len(before)


@pytest.mark.parametrize(
    "failure",
    [
        event("error", sequence_number=3, error={"type": "server_error", "code": "server_error", "message": "Sorry."}),
        event("error", sequence_number=3, code="server_error", message="Sorry.", param=None),
        event("response.failed", response={"status": "failed", "error": {"code": "server_error", "message": "Sorry."}}),
    ],
    ids=["nested", "flat", "failed"],
)
def test_a_failure_is_told_in_chats_own_shape(failure: bytes) -> None:
    begun = events(ANSWERS["words"][0]).split(b"event: response.output_item.done")[0]
    made, stream = written(begun + failure + event("response.completed", response=ANSWERS["words"][0]))
    *_words, error, done = [line[6:] for line in made.decode().splitlines() if line.startswith("data: ")]
    assert (json.loads(error)["error"]["message"], json.loads(error)["error"]["code"]) == ("Sorry.", "server_error")
    assert done == "[DONE]"
    assert stream.ended


def test_a_stream_that_breaks_off_has_no_end() -> None:
    made, stream = written(events(ANSWERS["words"][0])[:-200])
    assert not stream.ended
    assert b"[DONE]" not in made
