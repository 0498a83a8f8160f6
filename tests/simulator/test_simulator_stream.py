"""Streams: the same answer as whole, in pieces of any size, with heartbeats."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest
import zstandard
from simulator_calls import (
    CHAT,
    CHAT_TOOL,
    KEYS,
    MESSAGES_TOOL,
    PATHS,
    RESPONSES_TOOL,
    app_of,
    call,
    chat,
    plain,
    text_of,
)

from tidegate.simulator import SimulatorSettings, Step, serve

TOOLS = {"chat": CHAT_TOOL, "responses": RESPONSES_TOOL, "messages": MESSAGES_TOOL}


def streamed_text(dialect, events):
    if dialect == "chat":
        chunks = [event for event in events if event != "[DONE]"]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    kind = "response.output_text.delta" if dialect == "responses" else "content_block_delta"
    deltas = [event["delta"] for event in events if event["type"] == kind]
    return "".join(delta if isinstance(delta, str) else delta.get("text", "") for delta in deltas)


@pytest.mark.parametrize("dialect", PATHS)
class TestStreams:
    def test_carry_the_same_words(self, dialect):
        text = "Grüße, 漢字 and 🙂, " * 8
        app = app_of(behaviour="echo", delta_chars=7)
        whole = text_of(dialect, call(app, PATHS[dialect], plain(dialect, text)).json)
        events = call(app, PATHS[dialect], plain(dialect, text, stream=True)).events
        assert streamed_text(dialect, events) == whole == " ".join(text.split())[:160]

    def test_are_the_same_bytes_in_any_pieces(self, dialect):
        body = plain(dialect, "Grüße, 漢字", stream=True, tools=[TOOLS[dialect]])
        whole = call(app_of(), PATHS[dialect], body)
        broken = call(app_of(chunk_bytes=7), PATHS[dialect], body)
        assert broken.raw == whole.raw
        assert len(broken.parts) > len(whole.parts)
        assert max(map(len, broken.parts)) <= 7
        again = call(app_of(chunk_bytes=7, seed=0), PATHS[dialect], body)
        assert again.parts == broken.parts

    def test_may_end_lines_as_windows_does(self, dialect):
        body = plain(dialect, "Hello.", stream=True)
        plain_lines, crlf = call(app_of(), PATHS[dialect], body), call(app_of(crlf=True), PATHS[dialect], body)
        assert crlf.raw == plain_lines.raw.replace(b"\n", b"\r\n")

    def test_usage_comes_at_the_end(self, dialect):
        more = {"stream_options": {"include_usage": True}} if dialect == "chat" else {}
        app = app_of()
        events = call(app, PATHS[dialect], plain(dialect, "Hello.", stream=True, **more)).events
        last = {"chat": lambda: events[-2], "responses": lambda: events[-1]["response"], "messages": lambda: events[-2]}
        usage = last[dialect]()["usage"]
        assert usage.get("prompt_tokens", usage.get("input_tokens")) == app.state.records[-1].input_tokens


def test_chat_without_asking_has_no_usage():
    events = call(app_of(), CHAT, chat(stream=True)).events
    assert events[-1] == "[DONE]"
    assert all("usage" not in event for event in events[:-1])


def test_messages_are_framed_as_events_with_a_ping():
    raw = call(app_of(), PATHS["messages"], plain("messages", "Hello.", stream=True)).raw.decode()
    names = [line.removeprefix("event: ") for line in raw.splitlines() if line.startswith("event: ")]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("dialect", "beat"),
    [("chat", b": heartbeat\n\n"), ("responses", b": heartbeat\n\n"), ("messages", b"event: ping\n")],
)
def test_heartbeats_fill_a_long_wait(dialect, beat):
    app = app_of(delay=0.1, heartbeat=0.02)
    answer = call(app, PATHS[dialect], plain(dialect, "Hello.", stream=True))
    assert answer.raw.startswith(beat * 2 if dialect != "messages" else beat)
    assert "Hello." in streamed_text(dialect, answer.events)


def test_a_refusal_after_a_heartbeat_comes_in_the_stream():
    app = app_of(window=50, heartbeat=0.01, script=(Step(do="answer", delay=0.03),))
    answer = call(app, CHAT, plain("chat", "x" * 4000, stream=True))
    assert (answer.status, answer.events[-1]["error"]["code"]) == (200, "context_length_exceeded")


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)],
)
class TestCompressedBodies:
    def test_are_read(self, encoding, pack):
        data = pack(json.dumps(chat()).encode())
        app = app_of()
        assert call(app, CHAT, data, KEYS | {"content-encoding": encoding}).status == 200
        assert app.state.records[-1].json()["model"] == "gpt-4.1"

    def test_count_as_what_they_hold(self, encoding, pack):
        data = pack(json.dumps(chat({"role": "user", "content": "x" * 5000})).encode())
        assert len(data) < 1000
        assert call(app_of(max_body=1000), CHAT, data, KEYS | {"content-encoding": encoding}).status == 413

    def test_broken_ones_are_refused(self, encoding, pack):
        assert call(app_of(), CHAT, b"{}", KEYS | {"content-encoding": encoding}).status == 400


def test_many_streams_at_once():
    with serve(SimulatorSettings(gap=0.01)) as simulator, httpx.Client(headers=KEYS) as client:

        def one(number):
            body = plain("chat", f"number {number}", stream=True)
            return client.post(simulator.url + CHAT, json=body).text

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(one, range(16)))
        assert all(f"number {number}" in answer for number, answer in enumerate(answers))
        assert len(simulator.state.main()) == 16
