"""A bug anywhere in Tidegate leaves the client with what a direct call would have given it, byte for byte."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from types import FunctionType
from typing import Any, get_args

import pytest
from rawclient import JSON, PATHS, Answer, Front, body, call, error_of, fronted, history, post
from rawserver import Seen, Step, answer, chunks, stream_head

import tidegate.compactors.accept
import tidegate.compactors.summary
import tidegate.drive.answer
import tidegate.drive.held
import tidegate.engine.ahead
import tidegate.engine.compaction
import tidegate.engine.exchange
import tidegate.engine.material
import tidegate.engine.planning
import tidegate.engine.sending
import tidegate.engine.sizing
import tidegate.engine.story
import tidegate.engine.view
from tidegate.drive import aio
from tidegate.engine.effects import Effect
from tidegate.gateway.asgi import AsgiClient
from tidegate.gateway.edge import Edge
from tidegate.wire.watch import Watch

REFUSAL = answer(
    b'{"error": {"message": "This model\'s maximum context length is 4000 tokens. However, your messages resulted in '
    b'9000 tokens.", "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}}',
    status="400 Bad Request", extra="X-Request-Id: req_direct\r\n",
)  # fmt: skip
SUMMARY = "## Goal\nMend the shop's tests, file by file, and tell of each."


def completion(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 900, "completion_tokens": 9, "total_tokens": 909}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def events(text: str) -> list[bytes]:
    parts = [{"role": "assistant", "content": ""}, {"content": text}]
    told = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in parts]
    told.append({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return [b"data: %b\n\n" % json.dumps(event).encode() for event in told] + [b"data: [DONE]\n\n"]


def provider(seen: Seen) -> tuple[Step, ...]:
    """A chat provider of a window of 16,000 bytes."""
    sent = json.loads(bytes(seen.body))
    if len(seen.body) > 16_000:
        return (REFUSAL,)
    text = SUMMARY if b"CONVERSATION" in seen.body.upper() and b"working memory" in seen.body else "hello"
    if sent.get("stream"):
        return (stream_head("X-Request-Id: req_direct\r\n"), *chunks(*events(text)))
    return (answer(completion(text), extra="X-Request-Id: req_direct\r\n"),)


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted() as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    shared.upstream.default = provider
    return shared


SMALL, LONG = history("chat", 2), history("chat", 20)


def exchanged(front: Front, sent: dict[str, Any], key: str, *, stream: bool) -> tuple[Answer, Answer]:
    """(a direct call's answer, the same through the gateway). Each key has its own model: one of unknown window."""
    raw = json.dumps({**sent, "stream": stream, "model": f"model of {key}"}).encode()
    headers = [*JSON, ("Authorization", f"Bearer {key}")]
    direct = call(front.upstream.url, "POST", PATHS["chat"], headers, raw)
    return direct, call(front.base, "POST", PATHS["chat"], headers, raw)


def no_worse(direct: Answer, got: Answer) -> None:
    """The direct call's answer, byte for byte; or an answer where there would have been a refusal."""
    if direct.status == 400 and got.status == 200:
        assert got.whole
        assert b"hello" in got.body
        return
    assert (got.status, got.body, got.whole) == (direct.status, direct.body, direct.whole)
    assert got.passed == direct.passed


def test_the_stage_for_the_faults_is_set(front):
    """Without a fault the long history is recovered and then replayed, and the small one relayed."""
    for stream in (False, True):
        key = f"sk-stage-{stream}"
        got = [exchanged(front, sent, key, stream=stream)[1] for sent in (SMALL, LONG, LONG)]
        assert [each.action for each in got] == ["relayed", "recovered", "replayed"]


MODULES = (
    tidegate.engine.exchange, tidegate.engine.story, tidegate.engine.sending,
    tidegate.engine.compaction, tidegate.engine.material, tidegate.engine.planning,
    tidegate.engine.sizing, tidegate.engine.view,
    tidegate.engine.ahead, tidegate.compactors.summary, tidegate.compactors.accept, tidegate.drive.answer,
    tidegate.drive.aio, tidegate.drive.held,
)  # fmt: skip


def functions() -> Iterator[tuple[str, Any, str]]:
    """(name, owner, attribute) of every function and method that the engine and its driver are made of."""
    for module in MODULES:
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") != module.__name__:
                continue
            if isinstance(value, FunctionType):
                yield f"{module.__name__.removeprefix('tidegate.')}.{name}", module, name
            elif inspect.isclass(value) and not getattr(value, "_is_protocol", False):
                for method, inner in vars(value).items():
                    if isinstance(inner, FunctionType) and not method.startswith("__"):
                        yield f"{module.__name__.removeprefix('tidegate.')}.{name}.{method}", value, method


PLACES = {name: (owner, attribute) for name, owner, attribute in functions()}


@pytest.mark.pure
def test_the_places_are_found():
    assert {"engine.sending.Sending.run", "engine.view.replaced", "drive.aio.Driver._send"} <= set(PLACES)
    assert len(PLACES) > 80


def bug(*_args: object, **_kwargs: object) -> Any:
    raise ZeroDivisionError("a bug")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("place", PLACES)
def test_a_bug_anywhere_in_the_engine_or_its_driver_costs_at_most_what_tidegate_would_have_done(
    front, place, stream, monkeypatch
):
    key = f"sk-{place}-{stream}"
    if "replay" in place or "applicable" in place:
        exchanged(front, LONG, key, stream=stream)  # so that there is something to replay
    monkeypatch.setattr(*PLACES[place], bug)
    for sent in (SMALL, LONG, LONG):
        no_worse(*exchanged(front, sent, key, stream=stream))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize("kind", get_args(Effect), ids=lambda kind: kind.__name__)
def test_a_fault_in_any_effect_costs_no_more_either(front, kind, nth, stream, monkeypatch):
    original, count = aio.Driver._perform, 0

    async def perform(self: aio.Driver, effect: Effect) -> object:
        nonlocal count
        if isinstance(effect, kind):
            count += 1
            if count - 1 == nth:
                raise RuntimeError("a bug")
        return await original(self, effect)

    monkeypatch.setattr(aio.Driver, "_perform", perform)
    key = f"sk-{kind.__name__}-{nth}-{stream}"
    no_worse(*exchanged(front, SMALL, key, stream=stream))
    count = 0
    no_worse(*exchanged(front, LONG, key, stream=stream))


GATEWAY = [
    "tidegate.context.recall.Recall.read",
    "tidegate.gateway.messages.own_compaction",
    "tidegate.gateway.messages.bypasses",
    "tidegate.gateway.conversations.exchange",
    "tidegate.gateway.conversations.Request",
    "tidegate.gateway.targets.Targets.target",
    "tidegate.gateway.credentials.Tenants.accepted",
    "tidegate.gateway.asgi.AsgiClient.deliver",
    "tidegate.gateway.edge.Edge.begin",
    "tidegate.gateway.edge.Edge.send_now",
    "tidegate.gateway.edge.Edge.heard",
    "tidegate.upstream.pool.Pool.send_now",
    "tidegate.drive.direct.Direct._read",
    "tidegate.wire.watch.Watch.feed",
    "tidegate.wire.watch.Watch.close",
    "tidegate.context.ledger.Ledger.entry",
    "tidegate.overflow.window.Windows.limit",
    "tidegate.drive.flights.Flights.join",
    "tidegate.drive.flights.Flights.landed",
    "tidegate.drive.flights.Flights.leave",
    "tidegate.drive.flights.Flights.prepare",
]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("place", GATEWAY)
def test_a_bug_around_the_engine_costs_no_more_either(front, place, stream, monkeypatch):
    monkeypatch.setattr(place, bug)
    for sent in (SMALL, LONG):
        no_worse(*exchanged(front, sent, f"sk-{place}-{stream}", stream=stream))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_watch_that_fails_is_done_without_and_nothing_is_sent_twice(front, stream, monkeypatch):
    monkeypatch.setattr("tidegate.wire.watch.Watch.feed", bug)
    no_worse(*exchanged(front, SMALL, f"sk-watch-{stream}", stream=stream))
    assert len(front.upstream.seen) == 2  # the direct call, and one


def test_a_watch_that_fails_within_the_answer_lets_it_pass(front, monkeypatch):
    original = Watch.feed

    def late(self: Watch, chunk: bytes) -> None:
        if self.begun:
            bug()
        original(self, chunk)

    monkeypatch.setattr(Watch, "feed", late)
    front.upstream.default = lambda seen: (
        stream_head(),
        *(step for part in events("hi") for step in (*chunks(part, end=False), 0.02)),
        b"0\r\n\r\n",
    )
    no_worse(*exchanged(front, SMALL, "sk-watch-late", stream=True))


def test_an_answer_that_could_not_be_given_at_first_is_not_asked_for_again(front, monkeypatch):
    tries: list[str] = []
    delivered = AsgiClient.deliver

    def never(self: Edge, *args: Any) -> None:
        tries.append("directly")
        bug()

    async def at_last(self: AsgiClient, *args: Any) -> bool:
        tries.append("awaited")
        return await delivered(self, *args)

    monkeypatch.setattr(Edge, "begin", never)
    monkeypatch.setattr(AsgiClient, "deliver", at_last)
    no_worse(*exchanged(front, SMALL, "sk-before", stream=False))  # leaves an idle connection
    tries.clear()
    front.upstream.seen.clear()
    no_worse(*exchanged(front, SMALL, "sk-once", stream=False))
    assert tries == ["directly", "awaited"]
    assert len(front.upstream.seen) == 2  # the direct call that it is compared with, and one through the gateway


def test_a_bug_that_leaves_no_way_to_relay_is_an_error_of_the_dialect(front, monkeypatch):
    monkeypatch.setattr("tidegate.gateway.targets.Targets.choose", bug)
    for dialect, path in PATHS.items():
        got = post(front.base, path, body(dialect))
        assert got.status == 500
        assert "a bug" not in error_of(dialect, got)[0]
