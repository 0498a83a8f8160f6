"""A client that waits for a compaction is kept awake, in its own dialect, and told of a failure in it too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from rawclient import JSON, PATHS, Call, body, error_of, history, post
from running import Running, running

from tidegate.simulator import SimulatorSettings, Step

WINDOW = 4000
DIALECTS = pytest.mark.parametrize(("dialect", "path"), PATHS.items(), ids=list(PATHS))
VERSION = ("anthropic-version", "2023-06-01")
CODEX = [("originator", "codex_cli_rs"), ("user-agent", "codex_cli_rs/0.171.0")]
SLOW = Step(do="answer", on="summary", delay=0.12)
"""Long enough for the first heartbeat and some more."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    pace = "[stream]\nheartbeat_after_seconds = 0.03\nheartbeat_every_seconds = 0.03\n"
    with running(SimulatorSettings(window=WINDOW), window=WINDOW, toml=pace, upstream__read_timeout=5) as gate:
        yield gate


@pytest.fixture(scope="module")
def unhurried() -> Iterator[Running]:
    """A gateway that has no cause for a heartbeat while a quick compaction runs, however busy the machine."""
    with running(SimulatorSettings(window=WINDOW), window=WINDOW) as gate:
        yield gate


@pytest.fixture
def gate(shared: Running) -> Running:
    shared.simulator.reset()
    return shared


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """One for each test, so that no test finds another's checkpoints."""
    return f"sk-{request.node.nodeid}"


def stream(gate: Running, path: str, sent: Any, key: str, *headers: tuple[str, str]) -> bytes:
    got = post(gate.base, path, sent, VERSION, ("Authorization", f"Bearer {key}"), *headers)
    assert (got.status, got.whole) == (200, True)
    assert got.one("content-type") == "text/event-stream; charset=utf-8"
    return got.body


BEATS = {
    "chat": b": keep-alive\n\n",
    "responses": b": keep-alive\n\n",
    "messages": b'event: ping\ndata: {"type": "ping"}\n\n',
    "codex": b'event: keepalive\ndata: {"type":"keepalive"}\n\n',
}
ENDS = {"chat": b"data: [DONE]\n\n", "responses": b"event: response.completed", "messages": b"event: message_stop"}


@pytest.mark.parametrize("client", BEATS)
def test_a_stream_is_kept_awake_and_then_answered(gate, key, client):
    dialect = "responses" if client == "codex" else client
    gate.simulator.script(SLOW)
    sent = history(dialect, 14, stream=True)
    got = stream(gate, PATHS[dialect], sent, key, *(CODEX if client == "codex" else []))
    assert got.startswith(BEATS[client] * 2)
    rest = got.removeprefix(BEATS[client] * (got.count(BEATS[client])))
    assert ENDS[dialect] in rest
    assert rest.startswith((b"data:", b"event: response.created", b"event: message_start"))


def test_heartbeats_go_on_until_the_answer_comes(gate, key):
    gate.simulator.script(SLOW, Step(do="answer", on="main", delay=0.24))
    got = stream(gate, PATHS["chat"], history("chat", 14, stream=True), key)
    assert got.count(BEATS["chat"]) >= 7  # the compaction alone takes four


@DIALECTS
def test_a_quick_compaction_begins_no_stream_of_its_own(unhurried, key, dialect, path):
    got = post(unhurried.base, path, history(dialect, 14, stream=True), VERSION, ("Authorization", f"Bearer {key}"))
    assert (got.status, got.action) == (200, "compacted")  # a header, so the answer's own head came first
    assert BEATS["chat"] not in got.body


@DIALECTS
def test_a_client_without_a_stream_gets_a_status_and_no_heartbeat(gate, key, dialect, path):
    gate.simulator.script(SLOW)
    got = post(gate.base, path, history(dialect, 14), VERSION, ("Authorization", f"Bearer {key}"))
    assert (got.status, got.action) == (200, "compacted")
    assert json.loads(got.body)
    gate.simulator.script(SLOW, Step(do="error", status=429, on="main", headers={"retry-after": "7"}))
    got = post(gate.base, path, history(dialect, 15), VERSION, ("Authorization", f"Bearer {key}-2"))
    assert (got.status, got.one("retry-after")) == (429, "7")


@DIALECTS
def test_an_overflow_that_can_still_be_a_400_is_a_400(unhurried, key, dialect, path):
    """The compaction fails before the first heartbeat."""
    unhurried.simulator.reset()
    unhurried.simulator.script(Step(do="error", status=400, on="summary", times=2))
    got = post(unhurried.base, path, history(dialect, 14, stream=True), VERSION, ("Authorization", f"Bearer {key}"))
    assert (got.status, got.action) == (400, "unrecovered")
    assert error_of(dialect, got)


LATE: dict[str, tuple[Step, ...]] = {
    "an overflow": (Step(do="error", status=400, on="summary", delay=0.12), Step(do="error", status=400, on="summary")),
    "a rate limit": (SLOW, Step(do="error", status=429, on="main")),
    "a server in trouble": (SLOW, Step(do="error", status=529, on="main")),
    "no answer": (SLOW, Step(do="drop", on="main", times=2)),
    "an answer that is no stream": (SLOW, Step(do="html", status=200, on="main")),
    "a page": (SLOW, Step(do="html", on="main")),
}


@DIALECTS
@pytest.mark.parametrize("kind", LATE)
def test_a_failure_after_the_first_heartbeat_is_an_event_of_the_dialect(gate, key, dialect, path, kind):
    gate.simulator.script(*LATE[kind])
    got = stream(gate, path, history(dialect, 14, stream=True), key)
    beat = BEATS[dialect]
    event = got.removeprefix(beat * got.count(beat))
    if dialect == "chat":
        first, end = event.split(b"\n\n", 1)
        assert json.loads(first.removeprefix(b"data: "))["error"]["message"]
        assert end in (b"data: [DONE]\n\n", b"")
    else:
        name, data = event.strip().split(b"\n")[-2:]
        told = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + told["type"].encode()
        assert told["type"] in ("error", "response.failed")


# -- the real SDKs ---------------------------------------------------------------------------------------------------


def chat(gate: Running, key: str, sent: Any) -> str:
    with openai.OpenAI(base_url=f"{gate.base}/v1", api_key=key, max_retries=0) as client:
        pieces = client.chat.completions.create(**sent)
        return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)


def chat_helper(gate: Running, key: str, sent: Any) -> str:
    sent.pop("stream")
    with (
        openai.OpenAI(base_url=f"{gate.base}/v1", api_key=key, max_retries=0) as client,
        client.chat.completions.stream(**sent) as events,
    ):
        return events.get_final_completion().choices[0].message.content or ""


def responses(gate: Running, key: str, sent: Any) -> str:
    with openai.OpenAI(base_url=f"{gate.base}/v1", api_key=key, max_retries=0) as client:
        events = list(client.responses.create(**sent))
        assert events[-1].type == "response.completed"
        return str(events[-1].response.output_text)


def responses_helper(gate: Running, key: str, sent: Any) -> str:
    sent.pop("stream")
    with (
        openai.OpenAI(base_url=f"{gate.base}/v1", api_key=key, max_retries=0) as client,
        client.responses.stream(**sent) as events,
    ):
        return str(events.get_final_response().output_text)


def codex(gate: Running, key: str, sent: Any) -> str:
    with openai.OpenAI(
        base_url=f"{gate.base}/v1", api_key=key, max_retries=0, default_headers={"originator": "codex_cli_rs"}
    ) as client:
        events = list(client.responses.create(**sent))
        assert events[0].type == "keepalive"
        return str(events[-1].response.output_text)


def messages(gate: Running, key: str, sent: Any) -> str:
    with anthropic.Anthropic(base_url=gate.base, api_key=key, max_retries=0) as client:
        events = client.messages.create(**sent)
        return "".join(event.delta.text for event in events if event.type == "content_block_delta")


def messages_helper(gate: Running, key: str, sent: Any) -> str:
    sent.pop("stream")
    with (
        anthropic.Anthropic(base_url=gate.base, api_key=key, max_retries=0) as client,
        client.messages.stream(**sent) as events,
    ):
        return events.get_final_text()


SDKS: dict[str, tuple[str, Callable[[Running, str, Any], str], type[Exception]]] = {
    "chat": ("chat", chat, openai.APIError),
    "chat helper": ("chat", chat_helper, openai.APIError),
    "responses": ("responses", responses, openai.APIError),
    "responses helper": ("responses", responses_helper, openai.APIError),
    "codex": ("responses", codex, openai.APIError),
    "messages": ("messages", messages, anthropic.APIError),
    "messages helper": ("messages", messages_helper, anthropic.APIError),
}


@pytest.mark.parametrize("sdk", SDKS)
def test_an_sdk_gets_through_the_heartbeats(gate, key, sdk):
    dialect, ask, _ = SDKS[sdk]
    gate.simulator.script(SLOW, Step(do="text", text="well rested", on="main"))
    assert ask(gate, key, history(dialect, 14, stream=True)) == "well rested"


FAILING = [
    *((sdk, "an overflow") for sdk in SDKS),
    ("chat", "no answer"),
    ("codex", "a rate limit"),
    ("messages", "a page"),
]


@pytest.mark.parametrize(("sdk", "kind"), FAILING)
def test_an_sdk_raises_an_api_error_for_a_failure_after_them(gate, key, sdk, kind):
    dialect, ask, error = SDKS[sdk]
    gate.simulator.script(*LATE[kind])
    with pytest.raises(error):
        ask(gate, key, history(dialect, 14, stream=True))


def test_a_chat_error_event_keeps_the_providers_words_and_code(gate, key):
    gate.simulator.script(*LATE["an overflow"])
    with pytest.raises(openai.APIError, match="maximum context length is 4000 tokens") as raised:
        chat(gate, key, history("chat", 14, stream=True))
    assert raised.value.code == "context_length_exceeded"


def test_two_that_wait_for_one_compaction_are_both_kept_awake(gate, key):
    gate.simulator.script(SLOW)
    headers = [*JSON, ("Authorization", f"Bearer {key}")]
    raw = json.dumps(history("chat", 14, stream=True)).encode()
    calls = [Call(gate.base, "POST", PATHS["chat"], headers, raw) for _ in range(2)]
    answers = [waiting.rest() for waiting in calls]
    assert all(answer.body.startswith(BEATS["chat"]) and ENDS["chat"] in answer.body for answer in answers)
    assert len(gate.of("summary")) == 1


def test_a_request_that_needs_no_compaction_is_not_touched_by_any_of_this(gate, key):
    gate.simulator.script(Step(do="answer", on="main", delay=0.1))
    got = stream(gate, PATHS["chat"], body("chat", stream=True), key)
    assert BEATS["chat"] not in got
