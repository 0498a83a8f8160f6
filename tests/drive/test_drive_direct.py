"""What only the direct driver does: no task for the ordinary exchange, and a fault of its own costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import SSE, Edge, Line, Script, Scripted, Seen, Times, drive_directly, pieces
from playbook import chat_reply
from stage import body, history, kit, request
from test_drive_both import ANSWER, DIRECT, RECOVERED, life, upstream

from tidegate.drive.direct import Direct
from tidegate.engine.effects import UpstreamError
from tidegate.engine.exchange import exchange
from tidegate.store.memory import MemoryStore
from tidegate.upstream.faults import ClosedEarly

SMALL = body(history(1))
EVENTS = [b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n', b"data: [DONE]\n\n"]


def script(answer: list[bytes] | None = None, **more: Any) -> Script:
    return Script(lambda raw: Scripted(200, list(answer or pieces(ANSWER, 40)), **more), lambda call: chat_reply("x"))


def staged(given: Script, line: type[Line] = Line) -> tuple[Line, Edge, Direct, MemoryStore]:
    seen, store = Seen(), MemoryStore()
    story = exchange(request(SMALL), kit())
    side, edge = line(seen), Edge(story, given, store, seen, idle=True)
    return side, edge, Direct(story, "chat", side, edge, store, Times(), 1 << 20, seen.notices.append), store


def test_an_ordinary_exchange_makes_no_task():
    async def go() -> None:
        line, edge, direct, _ = staged(script())
        direct.start()
        await edge.over
        assert (line.seen.status, line.seen.body, edge.handed) == (200, ANSWER, [])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert edge.statuses == [200]

    asyncio.run(go())


def test_a_stream_is_passed_on_piece_by_piece_as_it_comes():
    got: list[bytes] = []

    class Recording(Line):
        def write(self, piece: bytes) -> None:
            got.append(piece)

    async def go() -> None:
        line, edge, direct, _ = staged(script(EVENTS, headers=list(SSE)), Recording)
        direct.start()
        await edge.over
        assert got == EVENTS
        assert line.seen.complete

    asyncio.run(go())


def test_a_slow_client_pauses_the_upstream_until_it_has_caught_up():
    async def go() -> None:
        line, edge, direct, _ = staged(script(EVENTS, headers=list(SSE)))
        told: list[str] = []
        send = edge.send_now

        def send_now(*args: Any) -> Any:
            answer = send(*args)
            answer.pause, answer.resume = lambda: told.append("pause"), lambda: told.append("resume")
            return answer

        edge.send_now, line.paused = send_now, True  # type: ignore[method-assign]
        direct.start()
        while line.on_resume is None:
            await asyncio.sleep(0)
        assert told == ["pause"]
        line.paused = False
        line.on_resume()
        assert told == ["pause", "resume"]
        await edge.over
        assert line.seen.complete

    asyncio.run(go())


def test_a_client_that_leaves_ends_the_upstreams_work():
    async def go() -> None:
        given = script(EVENTS * 50, headers=list(SSE))
        line, edge, direct, store = staged(given)
        direct.start()
        while not line.seen.body:
            await asyncio.sleep(0)
        assert line.on_gone is not None
        line.on_gone()
        await edge.over
        assert given.given[0].closed
        assert not line.seen.complete
        assert not store._reports

    asyncio.run(go())


def test_a_stale_connection_sends_once_more_and_any_other_loss_is_told():
    for error, sends in ((ClosedEarly("closed"), 2), (UpstreamError("reset"), 1)):

        async def go(error: UpstreamError, sends: int) -> None:
            given = script()
            line, edge, direct, _ = staged(given)
            send = edge.send_now

            def send_now(*args: Any) -> Any:
                answer = send(*args)
                answer._head = lambda: None

                def lose() -> None:
                    answer.over = error
                    answer.listener(True)

                asyncio.get_running_loop().call_soon(lose)
                return answer

            edge.send_now = send_now  # type: ignore[method-assign]
            direct.start()
            if sends == 2:
                await edge.over
                assert line.seen.body == ANSWER
            else:
                with pytest.raises(UpstreamError):
                    await edge.over
            assert len(given.sent) == sends
            assert given.again == [True] * (sends - 1)

        asyncio.run(go(error, sends))


class Hurt(Exception):
    """A bug."""


def bug(*_args: Any, **_more: Any) -> Any:
    raise Hurt


@pytest.mark.parametrize("place", ["send_now", "heard", "begin"])
def test_a_fault_of_the_edge_leaves_the_client_with_the_providers_answer(place, monkeypatch):
    monkeypatch.setattr(Edge, place, bug)
    seen = drive_directly(exchange(request(SMALL), kit()), script(), MemoryStore())
    assert (seen.status, seen.body) == RECOVERED
    assert "Hurt" in [notice.detail.get("error") for notice in seen.notices]


@pytest.mark.parametrize("method", ["enough", "judged", "hold"])
def test_a_fault_in_judging_the_answer_leaves_the_client_with_it(method, monkeypatch):
    from tidegate.drive.held import Held

    once = [True]
    real = getattr(Held, method)

    def hurt(self: Held, *args: Any) -> Any:
        if once:
            once.clear()
            raise Hurt
        return real(self, *args)

    monkeypatch.setattr(Held, method, hurt)
    seen = drive_directly(life(), upstream(), MemoryStore())
    assert (seen.status, seen.body) in (DIRECT, RECOVERED)


def test_a_fault_in_learning_leaves_a_whole_answer_whole(monkeypatch):
    monkeypatch.setattr("tidegate.drive.held.Held.finish", bug)

    async def go() -> None:
        line, edge, direct, _ = staged(script())
        direct.start()
        await edge.over
        assert (line.seen.body, line.seen.complete, line.cut) == (ANSWER, True, False)

    asyncio.run(go())
