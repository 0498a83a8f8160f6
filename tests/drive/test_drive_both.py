"""All drivers tell the same stories, and a fault in any effect costs the client nothing."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from fakes import (
    SSE,
    Script,
    Scripted,
    drive_async,
    drive_directly,
    drive_sync,
    drive_without_a_connection,
    pieces,
)
from playbook import chat_reply, overflow
from stage import TENANT, body, history, kit, request, target

from tidegate.compactors.strategy import Reply
from tidegate.drive import aio, sync
from tidegate.engine.effects import Compact, Deliver, Effect, Find, Notify, Prepare, Save, Send, UpstreamError
from tidegate.engine.exchange import exchange
from tidegate.store.memory import MemoryStore
from tidegate.store.null import NullStore

ANSWER = json.dumps(
    {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3210, "completion_tokens": 2, "total_tokens": 3212},
    }
).encode()  # fmt: skip
REFUSAL = overflow().refusal or b""
HUGE = body(history(22))
DIRECT = 400, REFUSAL
"""What a direct call of `HUGE` would have given."""

ALL = pytest.mark.parametrize(
    "drive",
    [drive_async, drive_sync, drive_directly, drive_without_a_connection],
    ids=["asyncio", "blocking", "direct", "direct-without-connection"],
)
BOTH = pytest.mark.parametrize("drive", [drive_async, drive_sync], ids=["asyncio", "blocking"])


def upstream(window_bytes: int = 34_000) -> Script:
    """Refuses what is over its window, answers the rest; the request as it came is `HUGE`."""

    def answer(raw: bytes | None) -> Scripted:
        if len(raw if raw is not None else HUGE) > window_bytes:
            return Scripted(400, list(pieces(REFUSAL, 50)))
        return Scripted(200, list(pieces(ANSWER, 40)))

    return Script(answer, lambda call: chat_reply("## Goal\nMend the failing tests of the shop, file by file."))


def life(tools=None):
    return exchange(request(HUGE, to=target(None)), tools or kit())


@ALL
def test_an_overflow_is_recovered_stored_and_replayed(drive):
    script, store, tools = upstream(), MemoryStore(), kit()
    seen = drive(life(tools), script, store)
    assert (seen.status, seen.body, seen.outcome.action) == (200, ANSWER, "recovered")
    assert [raw is None for raw in script.sent] == [True, False]
    paid = len(script.calls)
    again = drive(life(tools), script, store)
    assert (again.status, again.outcome.action) == (200, "replayed")
    assert script.sent[2] == script.sent[1]
    assert len(script.calls) == paid


@ALL
def test_every_answer_is_closed(drive):
    script = upstream()
    drive(life(), script, NullStore())
    assert [answer.closed for answer in script.given] == [True, True]


@ALL
def test_a_refusal_that_stands_is_delivered_byte_for_byte(drive):
    script = upstream(window_bytes=10)
    seen = drive(life(), script, NullStore())
    assert (seen.status, seen.body) == DIRECT
    assert seen.outcome.action == "unrecovered"


@ALL
def test_an_overflow_inside_a_stream_is_recovered_before_anything_is_shown(drive):
    event = b'data: {"error": ' + json.dumps(json.loads(REFUSAL)["error"]).encode() + b"}\n\n"
    good = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'
    script = Script(
        lambda raw: Scripted(200, list(pieces(event if raw is None else good, 7)), list(SSE)),
        lambda call: chat_reply("## Goal\nMend the failing tests of the shop, file by file."),
    )
    seen = drive(life(), script, NullStore())
    assert (seen.status, seen.body, seen.outcome.action) == (200, good, "recovered")


@ALL
def test_an_upstream_that_gives_no_answer_is_told_as_such(drive):
    def lost(raw):
        raise UpstreamError("connection refused")

    with pytest.raises(UpstreamError):
        drive(life(), Script(lost, lambda call: chat_reply("x")), NullStore())


@ALL
def test_a_cut_answer_teaches_nothing(drive):
    script = Script(lambda raw: Scripted(200, [ANSWER[:30]], cut=True), lambda call: chat_reply("x"))
    store = MemoryStore()
    small = exchange(request(body(history(1))), kit())
    with pytest.raises(UpstreamError):
        drive(small, script, store)


# -- faults: one case for each kind of effect ----------------------------------------------------------------------

RECOVERED = (200, ANSWER)
FAULTS: dict[type[Effect], tuple[int, bytes]] = {
    Find: DIRECT,
    Notify: DIRECT,
    Compact: DIRECT,
    Prepare: RECOVERED,  # the client has its answer
    Send: RECOVERED,  # a fault before anything was sent: the plain relay sends again, and it is refused or not
    Save: RECOVERED,  # the answer is there already
    Deliver: RECOVERED,
}


def test_every_kind_of_effect_has_its_fault_case():
    assert set(FAULTS) == set(get_args(Effect))


@BOTH
@pytest.mark.parametrize("kind", list(FAULTS), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_fault_in_any_effect_leaves_the_client_with_an_answer_of_the_provider(drive, kind, nth, monkeypatch):
    driver = aio.Driver if drive is drive_async else sync.Driver
    original, count = driver._perform, 0

    def hit(effect):
        nonlocal count
        if isinstance(effect, kind):
            count += 1
            return count - 1 == nth
        return False

    if drive is drive_async:

        async def perform(self, effect):
            if hit(effect):
                raise RuntimeError("a bug")
            return await original(self, effect)

    else:

        def perform(self, effect):
            if hit(effect):
                raise RuntimeError("a bug")
            return original(self, effect)

    monkeypatch.setattr(driver, "_perform", perform)
    script, store = upstream(), MemoryStore()
    seen = drive(life(), script, store)
    assert (seen.status, seen.body) in (DIRECT, RECOVERED)
    if count <= nth:
        assert (seen.status, seen.body) == RECOVERED  # the fault never came
    elif nth == 0 and FAULTS[kind] == DIRECT:
        assert (seen.status, seen.body) == DIRECT
    assert seen.complete


@pytest.mark.pure
@ALL
@pytest.mark.parametrize(
    "place",
    ["exchange.read_history", "story.plain", "story.applied", "story.compact"],
)
def test_a_bug_inside_the_engine_gives_what_a_direct_call_would_have_given(drive, place, monkeypatch):
    script, store, tools = upstream(), MemoryStore(), kit()
    if place == "story.applied":
        drive(life(tools), script, store)  # so that there is something to replay
        script.sent.clear()

    def bug(*_args, **_kwargs):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(f"tidegate.engine.{place}", bug)
    seen = drive(life(tools), script, store)
    assert (seen.status, seen.body) == DIRECT
    assert seen.outcome.reason == "fault"
    assert script.sent == [None]
    assert [notice.detail["error"] for notice in seen.notices if notice.event == "fault"] == ["ZeroDivisionError"]


@ALL
def test_a_store_that_breaks_in_any_way_costs_nothing_but_memory(drive):
    class Broken(NullStore):
        def find(self, tenant, bucket, chains):
            raise OSError("disk on fire")

        def save(self, checkpoint):
            raise OSError("disk on fire")

    seen = drive(life(), upstream(), Broken())
    assert (seen.status, seen.body) in (DIRECT, RECOVERED)


@ALL
@pytest.mark.parametrize(
    "reply",
    [
        Reply(500, b"oops"),
        Reply(0, error="timed out"),
        Reply(200, b"\xff\x00garbage"),
    ],
    ids=["500", "timeout", "garbage"],
)
def test_a_summary_call_that_fails_leaves_the_providers_answer(drive, reply):
    script = upstream()
    script.summary = lambda call: reply
    store = MemoryStore()
    seen = drive(life(), script, store)
    assert (seen.status, seen.body) == DIRECT
    assert store.find(TENANT, b"", {}).checkpoints == ()


@ALL
def test_a_refusal_whose_body_is_cut_keeps_its_status_and_headers(drive):
    script = Script(
        lambda raw: Scripted(429, [b'{"error": {"mess'], [(b"retry-after", b"7")], cut=True),
        lambda call: chat_reply("x"),
    )
    seen = []
    with pytest.raises(UpstreamError):
        seen.append(drive(exchange(request(body(history(1))), kit()), script, NullStore()))
    assert [answer.closed for answer in script.given] == [True]
    assert script.sent == [None]
