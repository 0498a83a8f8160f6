"""Conversations, scripted replies and a hand that drives `work`, for the compactor tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tidegate.compactors.strategy import Call, CompactionFailed, Reply, Span, Summary
from tidegate.compactors.summary import Options, default_options, work
from tidegate.context.estimate import text_tokens
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName, JsonObject

DIALECTS: tuple[DialectName, ...] = ("chat", "responses", "messages")
GOOD = "## Goal\nMake the shop's tests pass.\n## Progress\n### Done\n- validator replaced in shop/cart.py"


def user(dialect: DialectName, text: str) -> JsonObject:
    if dialect == "responses":
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"role": "user", "content": text}


def assistant(dialect: DialectName, text: str) -> JsonObject:
    if dialect == "responses":
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {"role": "assistant", "content": text}


def tool_round(dialect: DialectName, number: int, arguments: JsonObject, result: str) -> list[JsonObject]:
    """A call of `read_file` and its result."""
    call = f"call_{number}"
    if dialect == "chat":
        function: JsonObject = {"name": "read_file", "arguments": json.dumps(arguments)}
        return [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call, "content": result},
        ]
    if dialect == "responses":
        return [
            {
                "type": "function_call",
                "call_id": call,
                "name": "read_file",
                "arguments": json.dumps(arguments),
            },
            {"type": "function_call_output", "call_id": call, "output": result},
        ]
    return [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": call, "name": "read_file", "input": arguments}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": result}]},
    ]


def body_of(dialect: DialectName, items: Iterable[JsonObject], **fields: object) -> bytes:
    key = "input" if dialect == "responses" else "messages"
    return json.dumps({"model": "m-1", key: list(items), **fields}).encode()


def span_of(dialect: DialectName, items: Iterable[JsonObject], **changes: object) -> Span:
    """A span of these items; `size` is estimated from their JSON unless given."""
    values = tuple(items)
    conversation = REQUESTS[dialect].read(body_of(dialect, [*values, user(dialect, "go on")], max_tokens=900))
    size = text_tokens(json.dumps(values))
    plain = Span(conversation, values, retained=(), model="m-1", window=200_000, room=4_000, size=size)
    return replace(plain, **changes)  # type: ignore[arg-type]


# --- answers, as each API streams them ------------------------------------------------------------------------

_STOPS = {
    "chat": {"stop": "stop", "length": "length", "tool_call": "tool_calls", "filter": "content_filter"},
    "messages": {"stop": "end_turn", "length": "max_tokens", "tool_call": "tool_use", "refusal": "refusal"},
}


def _sse(*events: JsonObject, named: bool) -> bytes:
    head = (lambda event: f"event: {event['type']}\n") if named else (lambda event: "")
    return "".join(f"{head(event)}data: {json.dumps(event)}\n\n" for event in events).encode()


def streamed(
    dialect: DialectName, text: str, *, stop: str | None = "stop", tool: str = "", thinking: str = ""
) -> Reply:
    """A 200 stream with these words. `stop` None: it breaks off."""
    make = {"chat": _chat_stream, "responses": _responses_stream, "messages": _messages_stream}[dialect]
    return Reply(200, make(text, stop, tool, thinking), {"content-type": "text/event-stream"})


def _chat_stream(text: str, stop: str | None, tool: str, thinking: str) -> bytes:
    def chunk(delta: JsonObject, finish: str | None = None) -> JsonObject:
        return {
            "id": "c",
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    events = [chunk({"role": "assistant"})]
    if thinking:
        events.append(chunk({"reasoning_content": thinking}))
    if text:
        events.append(chunk({"content": text}))
    if tool:
        events.append(
            chunk(
                {
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "x",
                            "type": "function",
                            "function": {"name": tool, "arguments": "{}"},
                        }
                    ]
                }
            )
        )
    if stop is None:
        return _sse(*events, named=False)
    events.append(chunk({}, _STOPS["chat"].get(stop, stop)))
    events.append({"id": "c", "choices": [], "usage": {"prompt_tokens": 700, "completion_tokens": 90}})
    return _sse(*events, named=False) + b"data: [DONE]\n\n"


def _responses_stream(text: str, stop: str | None, tool: str, thinking: str) -> bytes:
    output: list[JsonObject] = []
    if thinking:
        output.append({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": thinking}]})
    if stop == "refusal":
        output.append(
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": text}],
            }
        )
    elif text:
        output.append(
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        )
    if tool:
        output.append({"type": "function_call", "id": "fc_1", "call_id": "x", "name": tool, "arguments": "{}"})
    events: list[JsonObject] = [
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate(output):
        events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
        if item["type"] == "message" and stop != "refusal":
            events.append(
                {
                    "type": "response.output_text.delta",
                    "output_index": index,
                    "content_index": 0,
                    "item_id": "msg_1",
                    "delta": text,
                }
            )
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    if stop is None:
        return _sse(*events, named=True)
    short = {"length": "max_output_tokens", "filter": "content_filter"}.get(stop)
    kind = "incomplete" if short else "completed"
    response: JsonObject = {
        "id": "resp_1", "status": kind, "output": output, "incomplete_details": {"reason": short} if short else None,
        "usage": {"input_tokens": 700, "output_tokens": 90, "total_tokens": 790},
    }  # fmt: skip
    return _sse(*events, {"type": f"response.{kind}", "response": response}, named=True)


def _messages_stream(text: str, stop: str | None, tool: str, thinking: str) -> bytes:
    blocks: list[tuple[JsonObject, JsonObject]] = []
    if thinking:
        blocks.append(({"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": thinking}))
    if text:
        blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": text}))
    if tool:
        blocks.append(
            (
                {"type": "tool_use", "id": "x", "name": tool, "input": {}},
                {"type": "input_json_delta", "partial_json": "{}"},
            )
        )
    message: JsonObject = {
        "id": "msg_1",
        "role": "assistant",
        "content": [],
        "usage": {"input_tokens": 700, "output_tokens": 1},
    }
    events: list[JsonObject] = [{"type": "message_start", "message": message}]
    for index, (block, delta) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    if stop is None:
        return _sse(*events, named=True)
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": _STOPS["messages"].get(stop, stop)},
            "usage": {"output_tokens": 90},
        }
    )
    return _sse(*events, {"type": "message_stop"}, named=True)


OVERFLOW = Reply(400, b'{"error":{"code":"context_length_exceeded","message":"too long"}}')


def overflows(reply: Reply) -> bool:
    return b"context_length_exceeded" in reply.body


# --- driving ---


@dataclass
class Run:
    """How a run ended, and every call it made."""

    calls: list[Call] = field(default_factory=list)
    summary: Summary | None = None
    failure: str = ""
    overflow: bool = False

    @property
    def text(self) -> str:
        assert self.summary is not None, self.failure
        return self.summary.text


def drive(span: Span, script: Iterable[Reply] | Callable[[Call], Reply], options: Options | None = None) -> Run:
    """Plays the script to `work`; a list's last reply is repeated."""
    run = Run()
    replies = iter([]) if callable(script) else iter(script)
    last: Reply | None = None
    steps = work(span, options or default_options(), overflows)
    try:
        call = next(steps)
        while True:
            run.calls.append(call)
            last = script(call) if callable(script) else next(replies, last)
            assert last is not None
            call = steps.send(last)
    except StopIteration as end:
        run.summary = end.value
    except CompactionFailed as failed:
        run.failure, run.overflow = failed.reason, failed.overflow
    return run


def sent(call: Call) -> dict[str, object]:
    return json.loads(call.body)


def texts(dialect: DialectName, call: Call) -> tuple[str, str]:
    """The system and the user words of a summary call."""
    body = sent(call)
    if dialect == "chat":
        system, prompt = body["messages"]  # type: ignore[misc]
        return system["content"], _words(prompt["content"])
    if dialect == "responses":
        items = body["input"]
        prompt = items if isinstance(items, str) else _words(items[-1]["content"])  # type: ignore[index]
        return str(body["instructions"]), prompt
    return _words(body["system"]), _words(body["messages"][0]["content"])  # type: ignore[index]


def _words(content: object) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)  # type: ignore[attr-defined]


def limit_of(call: Call) -> int:
    body = sent(call)
    return next(body[name] for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body)  # type: ignore[return-value]


def inside(tag: str, text: str) -> str:
    """What a reader finds that takes the first opening and then the first closing tag."""
    _, _, rest = text.partition(f"<{tag}>\n")
    found, closing, _ = rest.partition(f"\n</{tag}>")
    assert closing
    return found
