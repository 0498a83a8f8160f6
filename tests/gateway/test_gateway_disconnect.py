"""A client that leaves stops what was done for it alone: at once, without a trace in the store or the log."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections.abc import Callable, Iterator

import pytest
from rawclient import JSON, PATHS, Call, Front, body, fronted, history
from rawserver import HOLD, chunks, stream_head
from running import Running, running
from stores import recorded

from tidegate.gateway.arrival import ClientGone
from tidegate.gateway.receiving import while_connected
from tidegate.simulator import SimulatorSettings, Step

DIALECTS = pytest.mark.parametrize(("dialect", "path"), PATHS.items(), ids=list(PATHS))
PROMPTLY = 2.0

CONTENTS = {
    "chat": b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n',
    "responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n',
    "messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"hi"}}\n\n',
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted() as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    return shared


@pytest.fixture(scope="module")
def shared_gate() -> Iterator[Running]:
    pace = "[stream]\nheartbeat_after_seconds = 0.03\nheartbeat_every_seconds = 0.03\n"
    with running(SimulatorSettings(window=4000), window=4000, toml=pace) as gate:
        yield gate


@pytest.fixture
def gate(shared_gate: Running) -> Running:
    shared_gate.simulator.reset()
    return shared_gate


class Loud(logging.Handler):
    """Whatever is logged above INFO."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.getMessage()}")


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """No test of this file may leave anything above INFO in any log, nor a task whose failure nobody looked at."""
    loud = Loud()
    logging.getLogger().addHandler(loud)
    yield
    gc.collect()  # a forgotten task complains when it goes
    logging.getLogger().removeHandler(loud)
    assert loud.lines == []


def until(true: Callable[[], bool], seconds: float = PROMPTLY) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def begin(base: str, path: str, sent: object, *headers: tuple[str, str]) -> Call:
    return Call(base, "POST", path, [*JSON, *headers], json.dumps(sent).encode())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/embeddings", "/v1/messages/count_tokens"])
def test_leaving_while_the_upstream_thinks(front, path, stream):
    front.upstream.then(HOLD)
    dialect = next((name for name, known in PATHS.items() if known == path), "messages")
    with recorded(front.app) as store:
        waiting = begin(front.base, path, body(dialect, stream=stream))
        seen = front.upstream.wait()
        waiting.close()
        assert seen.left.wait(PROMPTLY)
        until(lambda: front.app.pool.open_now == 0)
    assert store.empty
    assert len(front.upstream.seen) == 1


@DIALECTS
def test_leaving_while_the_head_is_held(front, dialect, path):
    front.upstream.then(stream_head(), *chunks(b": not yet\n\n", end=False), HOLD)
    waiting = begin(front.base, path, body(dialect, stream=True))
    seen = front.upstream.wait()
    time.sleep(0.05)
    waiting.close()
    assert seen.left.wait(PROMPTLY)


@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/audio/speech"])
def test_leaving_within_a_stream(front, path):
    dialect = next((name for name, known in PATHS.items() if known == path), "chat")
    front.upstream.then(stream_head(), *chunks(CONTENTS[dialect], end=False), HOLD)
    with recorded(front.app) as store:
        reading = begin(front.base, path, history(dialect, 3, stream=True))
        reading.head()
        reading.read_until(CONTENTS[dialect])
        reading.close()
        assert front.upstream.seen[0].left.wait(PROMPTLY)
        until(lambda: front.app.pool.open_now == 0)
    assert store.empty


def test_leaving_within_an_upload(front):
    upload = Call(front.base, "POST", "/v1/files", [("Content-Length", str(5 << 20))], b"x" * (2 << 20))
    seen = front.upstream.wait()
    until(lambda: len(seen.body) > 1 << 20)
    upload.close()
    assert seen.left.wait(PROMPTLY)
    assert not seen.whole


def test_leaving_an_answer_that_came_before_the_upload_was_through(front, monkeypatch):
    async def unread(reader, seen):
        await reader.readexactly(1000)

    monkeypatch.setattr(front.upstream, "_body", unread)
    refusal = b"HTTP/1.1 413 Content Too Large\r\nTransfer-Encoding: chunked\r\n\r\n"
    front.upstream.then(refusal, *chunks(b"too large", end=False), HOLD)
    upload = Call(front.base, "POST", "/v1/files", [("Content-Length", str(40 << 20))], b"x" * (4 << 20))
    assert upload.head().status == 413
    upload.close()
    assert front.upstream.seen[0].left.wait(PROMPTLY)


@DIALECTS
def test_leaving_within_a_request(front, dialect, path):
    cut = Call(front.base, "POST", path, [*JSON, ("Content-Length", "1000")], b'{"model"')
    time.sleep(0.05)
    cut.close()
    time.sleep(0.05)
    assert front.upstream.seen == []


@pytest.mark.parametrize("stream", [False, True])
@DIALECTS
def test_leaving_within_a_compaction_cancels_its_call(gate, dialect, path, stream):
    gate.simulator.script(Step(do="hang", on="summary"))
    with recorded(gate.app) as store:
        key = ("Authorization", f"Bearer sk-{dialect}-{stream}")
        waiting = begin(gate.base, path, history(dialect, 14, stream=stream), ("anthropic-version", "2023-06-01"), key)
        until(lambda: len(gate.of("summary")) == 1)
        time.sleep(0.06)  # heartbeats have begun, where there are any
        waiting.close()
        until(lambda: gate.records[0].outcome != "pending")
    assert store.empty
    assert [record.kind for record in gate.records] == ["summary"]
    assert gate.app.conversations.flights._running == {}


@pytest.mark.parametrize("leaver", [0, 1], ids=["who began it", "who joined it"])
def test_a_compaction_goes_on_while_anybody_waits_for_it(gate, leaver):
    gate.simulator.script(Step(do="answer", on="summary", delay=0.3))
    sent, key = history("chat", 14), ("Authorization", f"Bearer sk-two-{leaver}")
    calls = [begin(gate.base, PATHS["chat"], sent, key)]
    until(lambda: len(gate.of("summary")) == 1)
    calls.append(begin(gate.base, PATHS["chat"], sent, key))
    time.sleep(0.06)
    calls.pop(leaver).close()
    got = calls[0].rest()
    assert (got.status, got.action) == (200, "compacted")
    assert len(gate.of("summary")) == 1
    assert len(gate.of("main")) == 1


def test_leaving_after_a_compaction_and_before_the_answer_stores_nothing(gate):
    """The answer may have been a refusal: only what the upstream took is kept for the next request."""
    gate.simulator.script(Step(do="hang", on="main"))
    sent, key = history("chat", 14), ("Authorization", "Bearer sk-early")
    with recorded(gate.app) as store:
        waiting = begin(gate.base, PATHS["chat"], sent, key)
        until(lambda: len(gate.of("main")) == 1)
        waiting.close()
        until(lambda: gate.of("main")[0].outcome != "pending")
    assert store.empty
    # The summary was paid for, and a client that comes back soon need not pay again.
    assert begin(gate.base, PATHS["chat"], sent, key).rest().action == "compacted"
    assert len(gate.of("summary")) == 1


def test_many_that_leave_leave_nothing_open(front):
    front.upstream.default = lambda seen: (HOLD,)
    calls = [begin(front.base, PATHS["chat"], body("chat", stream=True)) for _ in range(30)]
    front.upstream.wait(30)
    for waiting in calls:
        waiting.close()
    until(lambda: front.app.pool.open_now == 0)
    assert all(seen.left.wait(PROMPTLY) for seen in front.upstream.seen)


async def gone() -> dict[str, object]:
    return {"type": "http.disconnect"}


async def test_what_is_left_to_do_after_the_answer_is_done_in_peace():
    """Clients close the moment they have all; what was to be learned of the answer must not be lost."""
    answered, learned = False, False

    async def work() -> None:
        nonlocal answered, learned
        answered = True
        await asyncio.sleep(0.02)
        learned = True

    await while_connected(work(), gone, lambda: answered)
    assert learned


async def test_before_the_answer_a_client_that_is_gone_ends_the_work():
    with pytest.raises(ClientGone):
        await while_connected(asyncio.sleep(60), gone, lambda: False)


async def test_work_that_is_cancelled_from_outside_stays_cancelled():
    """A server that shuts down cancels requests whose clients are still there."""

    async def never() -> dict[str, object]:
        await asyncio.sleep(60)
        return {}

    task = asyncio.create_task(while_connected(asyncio.sleep(60), never, lambda: False))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
