"""Watching an answer pass: when content begins, what errors, usage and endings mean, whatever the bytes."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.wire import ANSWERS
from tidegate.wire import watch as watch_module
from tidegate.wire.conversation import DialectName, Usage
from tidegate.wire.signals import Event
from tidegate.wire.sse import comment, write
from tidegate.wire.watch import Watch

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
OVERFLOW = b'{"error":{"message":"too long","code":"context_length_exceeded"}}'


def watched(dialect: DialectName, *chunks: bytes, content_type: str = SSE) -> Watch:
    watch = Watch(dialect, content_type)
    for chunk in chunks:
        watch.feed(chunk)
    watch.close()
    return watch


def chat(delta: str, finish: str = "null", more: str = "") -> bytes:
    choice = f'{{"index":0,"delta":{delta},"finish_reason":{finish}}}'
    return write(f'{{"object":"chat.completion.chunk","choices":[{choice}]{more}}}'.encode())


def typed(kind: str, fields: str = "") -> bytes:
    return write(f'{{"type":"{kind}"{fields}}}'.encode(), kind)


ROLE = chat('{"role":"assistant","content":""}')
WORD = chat('{"content":"Hi"}')
STOP = chat("{}", '"stop"')
COUNT = write(b'{"choices":[],"usage":{"prompt_tokens":120,"completion_tokens":7}}')
DONE = write(b"[DONE]")

CREATED = typed("response.created", ',"response":{"id":"resp_1","status":"in_progress","error":null}')
DELTA = typed("response.output_text.delta", ',"output_index":0,"delta":"Hi"')
COMPLETED = typed("response.completed", ',"response":{"status":"completed","output":[],"usage":{"input_tokens":120}}')
FAILED = typed("response.failed", ',"response":{"status":"failed","error":{"code":"context_length_exceeded"}}')

START = typed("message_start", ',"message":{"usage":{"input_tokens":100,"cache_read_input_tokens":20}}')
BLOCK = typed("content_block_start", ',"index":0,"content_block":{"type":"text","text":""}')
ENDING = typed("message_delta", ',"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}')
OVER = typed("message_stop")
OVERLOADED = typed("error", ',"error":{"type":"overloaded_error","message":"Overloaded"}')

STREAMS: dict[DialectName, tuple[list[bytes], bytes, list[bytes], bytes]] = {
    "chat": ([comment("OPENROUTER PROCESSING"), ROLE], WORD, [STOP, COUNT, DONE], write(OVERFLOW)),
    "responses": ([CREATED, typed("response.in_progress")], DELTA, [COMPLETED], FAILED),
    "messages": ([START, typed("ping")], BLOCK, [ENDING, OVER], OVERLOADED),
}


@pytest.mark.parametrize("dialect", STREAMS)
def test_content_begins_with_the_first_event_that_shows_something(dialect: DialectName) -> None:
    head, first, _tail, _error = STREAMS[dialect]
    watch = Watch(dialect, SSE)
    for event in head:
        watch.feed(event)
        assert not watch.begun
    watch.feed(first[:-1])
    assert not watch.begun
    watch.feed(first[-1:])
    assert watch.begun


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_whole_stream_tells_its_ending_and_usage(dialect: DialectName) -> None:
    head, first, tail, _error = STREAMS[dialect]
    watch = watched(dialect, *head, first, *tail)
    assert (watch.ended, watch.finish, watch.error) == (True, "stop", b"")
    assert watch.usage is not None
    assert watch.usage.input_tokens == 120


@pytest.mark.parametrize("dialect", STREAMS)
def test_an_error_before_content_is_known_as_such(dialect: DialectName) -> None:
    head, _first, _tail, error = STREAMS[dialect]
    watch = watched(dialect, *head, error)
    assert (watch.begun, watch.error_before_content, watch.finish) == (False, True, "error")
    assert watch.error in error
    assert watch.error.startswith(b"{")


@pytest.mark.parametrize("dialect", STREAMS)
def test_an_error_after_content_is_known_as_such(dialect: DialectName) -> None:
    head, first, _tail, error = STREAMS[dialect]
    watch = watched(dialect, *head, first, error)
    assert (watch.begun, watch.error_before_content, bool(watch.error)) == (True, False, True)


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_cut_stream_has_no_ending(dialect: DialectName) -> None:
    head, first, _tail, _error = STREAMS[dialect]
    watch = watched(dialect, *head, first)
    assert (watch.ended, watch.finish, watch.error) == (False, None, b"")


@pytest.mark.parametrize("dialect", STREAMS)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_chunking_changes_nothing(dialect: DialectName, data: st.DataObject) -> None:
    head, first, tail, error = STREAMS[dialect]
    events = [*head, first, *data.draw(st.permutations([*tail, error, first]))]
    raw = b"".join(events)
    if data.draw(st.booleans()):
        raw = raw.replace(b"\n", b"\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    one, many = watched(dialect, raw), watched(dialect, *pieces)
    for name in ("begun", "error", "error_before_content", "usage", "finish", "ended"):
        assert getattr(many, name) == getattr(one, name), name


KEYS = [
    "type",
    "choices",
    "delta",
    "message",
    "usage",
    "error",
    "response",
    "output",
    "item",
    "content",
    "finish_reason",
    "iterations",
    "index",
    "code",
    "tool_calls",
    "status",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=4) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
CHUNKS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([ROLE, WORD, STOP, DONE, CREATED, COMPLETED, FAILED, START, ENDING, OVERLOADED]),
    st.sampled_from([b"{", b"[" * 3000, b'{"usage":', b'{"choices":[1,{"delta":3}]}', b"data: 3\n\n"]),
    VALUES.map(lambda value: write(json.dumps(value).encode())),
)


@given(
    st.sampled_from(["chat", "responses", "messages"]),
    st.sampled_from([SSE, JSON, "", "text/html"]),
    st.lists(CHUNKS, max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_it_raise(dialect: DialectName, content_type: str, chunks: list[bytes]) -> None:
    watched(dialect, *chunks, content_type=content_type)
    watched(dialect, *(chunk.removeprefix(b"data: ") for chunk in chunks), content_type=JSON)


def test_what_is_said_after_the_end_counts_for_nothing() -> None:
    watch = watched("responses", CREATED, DELTA, COMPLETED, FAILED)
    assert (watch.finish, watch.error) == ("stop", b"")


def test_a_tool_call_is_known_though_the_terminal_event_lists_no_output() -> None:
    call = typed("response.output_item.done", ',"output_index":0,"item":{"type":"function_call","name":"ls"}')
    assert watched("responses", CREATED, call, COMPLETED).finish == "tool_call"


def test_an_answer_that_is_empty_because_the_window_is_full_has_not_begun() -> None:
    full = typed("message_delta", ',"delta":{"stop_reason":"model_context_window_exceeded"},"usage":{}')
    watch = watched("messages", START, full, OVER)
    assert (watch.begun, watch.ended, watch.finish, watch.error) == (False, True, "window", b"")
    watch = watched("chat", chat('{"role":"assistant","content":""}', '"model_context_window_exceeded"'))
    assert (watch.begun, watch.finish) == (False, "window")


def test_a_stream_of_no_bytes_at_all_is_seen_as_that() -> None:
    watch = watched("chat", content_type=SSE)
    assert (watch.begun, watch.ended, watch.error) == (False, False, b"")


USAGES: dict[str, tuple[DialectName, list[bytes], Usage | None]] = {
    "chat": ("chat", [WORD, COUNT], Usage(120, 7)),
    "chat zero": ("chat", [WORD, write(b'{"choices":[],"usage":{"prompt_tokens":0}}')], None),
    "chat null": ("chat", [WORD, chat("{}", '"stop"', ',"usage":null')], None),
    "chat in every chunk": (
        "chat",
        [chat('{"content":"a"}', more=f',"usage":{{"prompt_tokens":9,"completion_tokens":{n}}}') for n in (1, 2)],
        Usage(9, 2),
    ),
    "spaces in the JSON": (
        "chat",
        [WORD, write(b'{"choices": [], "usage" : {"prompt_tokens": 5}}')],
        Usage(5),
    ),
    "messages: the start alone": ("messages", [START, BLOCK], Usage(120, 0, 20)),
    "messages: the delta repeats only output": ("messages", [START, BLOCK, ENDING], Usage(120, 7, 20)),
    "messages: the delta's totals win where not zero": (
        "messages",
        [START, BLOCK, typed("message_delta", ',"usage":{"input_tokens":150,"cache_read_input_tokens":0}')],
        Usage(170, 0, 20),
    ),
    "messages: zero first, the delta tells": (
        "messages",
        [
            typed("message_start", ',"message":{"usage":{"input_tokens":0,"output_tokens":0}}'),
            BLOCK,
            typed("message_delta", ',"usage":{"input_tokens":30,"output_tokens":4}'),
        ],
        Usage(30, 4),
    ),
    "messages: after a compaction, the last message's context": (
        "messages",
        [
            START,
            BLOCK,
            typed(
                "message_delta",
                ',"usage":{"input_tokens":220,"output_tokens":8,"iterations":[{"type":"message","input_tokens":9},'
                '{"type":"compaction","input_tokens":55196,"output_tokens":125},'
                '{"type":"message","input_tokens":200,"cache_read_input_tokens":20,"output_tokens":8},'
                '{"type":"compaction","input_tokens":77777,"output_tokens":1}]}',
            ),
        ],
        Usage(220, 8, 20),
    ),
}


@pytest.mark.parametrize(("dialect", "chunks", "usage"), USAGES.values(), ids=USAGES.keys())
def test_usage(dialect: DialectName, chunks: list[bytes], usage: Usage | None) -> None:
    assert watched(dialect, *chunks).usage == usage


BODIES: dict[str, tuple[DialectName, bytes, str | None, Usage | None, bool]] = {
    "chat": (
        "chat",
        b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"length"}],"usage":{"prompt_tokens":3}}',
        "length",
        Usage(3),
        False,
    ),
    "responses": (
        "responses",
        b'{"status":"completed","error":null,"output":[],"usage":{"input_tokens":3}}',
        "stop",
        Usage(3),
        False,
    ),
    "messages": (
        "messages",
        b'{"type":"message","content":[],"stop_reason":"max_tokens","usage":{"input_tokens":3}}',
        "length",
        Usage(3),
        False,
    ),
    "only a compaction": (
        "messages",
        b'{"type":"message","content":[{"type":"compaction","content":"s"}],"stop_reason":"compaction","usage":'
        b'{"input_tokens":0,"output_tokens":0,"iterations":[{"type":"compaction","input_tokens":144}]}}',
        "compaction",
        None,
        False,
    ),
    "OpenAI's error": ("chat", OVERFLOW, "error", None, True),
    "xAI's": ("responses", b'{"code":"invalid-argument","error":"too long"}', "error", None, True),
    "Anthropic's": ("messages", b'{"type":"error","error":{"message":"too long"}}', "error", None, True),
    "MiniMax's": ("chat", b'{"base_resp":{"status_code":2013,"status_msg":"x"}}', "error", None, True),
    "Baidu's": ("chat", b'{"error_code":336103,"error_msg":"Prompt tokens too long"}', "error", None, True),
    "Vercel's": ("chat", b'{"error_type":"validation_error","error_message":"{}"}', "error", None, True),
    "bare": ("messages", b'{"code":500,"message":"context shift is disabled"}', "error", None, True),
    "failed": ("responses", b'{"status":"failed","error":{"code":"x"},"output":[]}', "error", None, True),
    "MiniMax's success": (
        "chat",
        b'{"choices":[{"message":{},"finish_reason":"stop"}],"base_resp":{"status_code":0}}',
        "stop",
        None,
        False,
    ),
}


@pytest.mark.parametrize(("dialect", "body", "finish", "usage", "error"), BODIES.values(), ids=BODIES.keys())
def test_a_json_body_is_read_at_its_close(
    dialect: DialectName, body: bytes, finish: str | None, usage: Usage | None, error: bool
) -> None:
    watch = Watch(dialect, JSON)
    watch.feed(b" \n" + body[:5])
    watch.feed(body[5:])
    assert not watch.begun
    watch.close()
    assert (watch.finish, watch.usage, watch.ended) == (finish, usage, True)
    assert (watch.error.strip(), watch.error_before_content) == (body if error else b"", error)
    assert watch.begun is not error


def test_the_first_bytes_overrule_a_wrong_content_type() -> None:
    assert watched("chat", OVERFLOW, content_type=SSE).error == OVERFLOW
    assert watched("chat", b"da", b"ta: " + OVERFLOW + b"\n\n", content_type=JSON).error == OVERFLOW
    assert watched("chat", b"\n\n", write(OVERFLOW), content_type="").error == OVERFLOW


def test_what_is_neither_json_nor_events_is_content_at_once() -> None:
    watch = Watch("chat", "text/html")
    watch.feed(b"<html>")
    assert watch.begun


def test_a_body_too_big_for_an_error_has_begun() -> None:
    watch = Watch("chat", JSON)
    watch.feed(b'{"choices":[{"message":{"content":"' + b"x" * watch_module.MOST_ERROR_BYTES)
    assert watch.begun
    watch.feed(b'"},"finish_reason":"stop"}]}')
    watch.close()
    assert watch.finish == "stop"


@pytest.mark.pure
@pytest.mark.parametrize("start", [b'{"a":"', b"data: {"], ids=["json", "events"])
def test_beyond_its_bound_it_gives_up_and_keeps_nothing(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "MOST_BYTES", 1000)
    watch = Watch("chat", SSE)
    watch.feed(start)
    watch.feed(b"x" * 1001)
    watch.feed(b"\n\n" + DONE)
    watch.close()
    assert (watch.begun, watch.ended, watch.error) == (True, False, b"")


def test_words_that_look_like_marks_do_not_confuse_it() -> None:
    word = chat(r'{"content":"\"error\": {\"code\": 1} [DONE] \"finish_reason\":\"stop\" response.failed"}')
    watch = watched("chat", WORD, word)
    assert (watch.error, watch.finish, watch.ended) == (b"", None, False)


def test_ten_thousand_chunks_of_words_cost_little() -> None:
    chunk = chat('{"content":"a few words "}', more=',"usage":null,"system_fingerprint":"fp"')
    best = 9.0
    for _ in range(3):
        watch = Watch("chat", SSE)
        watch.feed(ROLE + WORD)
        begin = time.process_time()
        for _ in range(10_000):
            watch.feed(chunk)
        best = min(best, time.process_time() - begin)
    assert best < 0.2  # 20 µs a chunk, several times what it takes


def test_a_stream_without_done_that_told_its_finish_has_ended_at_its_close() -> None:
    watch = Watch("chat", SSE)
    watch.feed(ROLE + WORD + STOP)
    assert not watch.ended
    watch.close()
    assert (watch.ended, watch.finish) == (True, "stop")


OPENINGS = [
    ("chat", b'{"choices":[{"index":0,"delta":{"content":"He"},"finish_reason":null}],"usage":null}', True),
    ("chat", b'{"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}', False),
    ("chat", b'{"choices":[{"delta":{"content":"x"},"finish_reason":"error"}]}', False),
    ("chat", b'{"error":{"message":"too long"},"choices":[{"delta":{"content":"x"}}]}', False),
    ("chat", b'{"choices":[{"delta":{"role":"assistant","content":"\\"delta\\":{\\"content\\":\\"x"}}]}', True),
    ("chat", b'{"choices":[{"delta":{"content":"', True),
    ("messages", b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"He"}}', True),
    ("messages", b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}', True),
]
"""Dialect, event, whether it is content."""


@pytest.mark.parametrize(("dialect", "data", "content"), OPENINGS)
def test_an_event_that_need_not_be_read_means_what_reading_it_says(
    dialect: DialectName, data: bytes, content: bool
) -> None:
    watch = Watch(dialect, "text/event-stream")
    watch.feed(b"data: " + data + b"\n\n")
    assert (watch.begun, bool(watch.error)) == (content, b"error" in data)
    read = ANSWERS[dialect].signal(Event("", data))
    assert read.kind == ("content" if content else "error" if b"error" in data else "lifecycle")
