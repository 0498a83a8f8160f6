"""Nothing of a key, a message or a summary is ever logged, at any level, whatever goes wrong."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rawclient import JSON, PATHS, Call, Front, body, call, fronted, history, post
from rawserver import CUT, HOLD, Seen, Step, answer, chunks, stream_head
from stores import Broken

from tidegate.engine.checkpoint import StoreError

KEY, WORDS, SUMMARY, REFUSAL = "KEYPLANTED7731", "WORDSPLANTED7732", "SUMMARYPLANTED7733", "REFUSALPLANTED7734"
PLANTED = (KEY, WORDS, SUMMARY, REFUSAL)

TOO_LONG = {
    "message": "This model's maximum context length is 4000 tokens. However, your messages resulted in 9000 tokens. "
    f"{WORDS} {REFUSAL}",
    "type": "invalid_request_error", "code": "context_length_exceeded",
}  # fmt: skip


def reply(dialect: str, text: str) -> dict[str, Any]:
    if dialect == "chat":
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"id": "c", "object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 90}}
    if dialect == "responses":
        part = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        return {"id": "r", "object": "response", "status": "completed", "output": [part], "usage": {"input_tokens": 90}}
    return {
        "id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 90, "output_tokens": 9},
    }  # fmt: skip


def provider(dialect: str) -> Any:
    """Refuses what is over 16,000 bytes, with words of the request in its refusal, and summarises."""

    def answers(seen: Seen) -> tuple[Step, ...]:
        if len(seen.body) > 16_000:
            refusal = {"type": "error", "error": TOO_LONG}
            return (answer(json.dumps(refusal).encode(), status="400 Bad Request"),)
        text = f"## Goal\n{SUMMARY} and more." if b"working memory" in seen.body else f"hello {WORDS}"
        return (answer(json.dumps(reply(dialect, text)).encode()),)

    return answers


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted(
        toml="[server]\nbody_limit_bytes = 200000\n", server__log_level="debug", upstream__read_timeout=0.4
    ) as front:
        yield front


class Log(logging.Handler):
    """Every record of every logger, as text with its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(name)s %(message)s %(args)s"))
        self.lines: list[str] = []
        self.levels: list[int] = []
        """Of each line."""

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        self.levels.append(record.levelno)

    def of(self, logger: str) -> list[str]:
        return [line for line in self.lines if line.startswith(logger)]


@pytest.fixture
def log() -> Iterator[Log]:
    handler, loggers = Log(), [logging.getLogger(name) for name in ("", "tidegate", "uvicorn.error", "asyncio")]
    levels = [logger.level for logger in loggers]
    loggers[0].addHandler(handler)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    yield handler
    loggers[0].removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def front(shared: Front, log: Log, capfd: pytest.CaptureFixture[str]) -> Iterator[Front]:
    """Looks through all that was logged or printed once the test is done."""
    shared.upstream.reset()
    yield shared
    deadline = time.monotonic() + 2
    while not log.of("tidegate.access"):  # the last line of a request, after its answer
        assert time.monotonic() < deadline, "nothing was logged: this test looks at nothing"
        time.sleep(0.005)
    time.sleep(0.02)
    out, err = capfd.readouterr()
    for planted in PLANTED:
        for told in ("\n".join(log.lines), out, err):
            assert planted.lower() not in told.lower()


def ask(front: Front, dialect: str, sent: Any, *more: tuple[str, str]) -> Any:
    headers = [("Authorization", f"Bearer {KEY}"), ("Cookie", f"session={KEY}"), ("x-note", WORDS), *more]
    return post(front.base, f"{PATHS[dialect]}?key={KEY}&note={WORDS}", sent, *headers)


def said(dialect: str, turns: int = 20, **fields: Any) -> dict[str, Any]:
    long = history(dialect, turns, last=WORDS, model=f"of-{dialect}-{turns}-{len(fields)}", **fields)
    items = long["input" if dialect == "responses" else "messages"]
    items[0]["content"] = f"{WORDS} {items[0]['content']}"
    return long


DIALECTS = pytest.mark.parametrize("dialect", PATHS)


@DIALECTS
def test_a_session_that_is_recovered_and_replayed(front, dialect, log):
    front.upstream.default = provider(dialect)
    actions = [ask(front, dialect, said(dialect)).action for _ in range(2)]
    assert actions == ["recovered", "replayed"]
    steps = {line.split()[2] for line in log.of("tidegate.steps")}
    assert {"measured", "refused", "learned", "compacting", "compacted", "replayed"} <= steps


@DIALECTS
def test_a_refusal_that_quotes_the_request(front, dialect):
    front.upstream.default = lambda seen: (answer(json.dumps({"error": TOO_LONG}).encode(), status="400 Bad Request"),)
    assert ask(front, dialect, said(dialect, 21)).status == 400


@DIALECTS
def test_a_summary_that_is_refused_in_the_words_of_the_request(front, dialect):
    front.upstream.default = lambda seen: (
        answer(json.dumps({"error": {"message": f"{WORDS} {REFUSAL}"}}).encode(), status="403 Forbidden"),
    )
    assert ask(front, dialect, said(dialect, 22)).status == 403


@DIALECTS
@pytest.mark.parametrize("error", [StoreError("store: down"), RuntimeError(f"{WORDS} {KEY}")], ids=["known", "bug"])
def test_a_store_that_fails_on_it(front, dialect, error, monkeypatch):
    monkeypatch.setattr(front.app.conversations, "store", Broken(error))
    front.upstream.default = provider(dialect)
    ask(front, dialect, said(dialect, 23))


@DIALECTS
@pytest.mark.parametrize(
    "place",
    [
        "tidegate.engine.exchange.read_history",
        "tidegate.engine.story.compact",
        "tidegate.context.recall.Recall.read",
        "tidegate.gateway.messages.own_compaction",
        "tidegate.gateway.conversations.exchange",
        "tidegate.gateway.credentials.Tenants.accepted",
        "tidegate.gateway.targets.Targets.choose",
        "tidegate.gateway.asgi.AsgiClient.deliver",
        "tidegate.drive.aio.Driver.drive",
        "tidegate.drive.answer.HeldAnswer.head",
    ],
)
def test_a_bug_whose_message_quotes_the_request(front, dialect, place, monkeypatch):
    def bug(*args: object, **kwargs: object) -> None:
        raise ValueError(f"{WORDS} {KEY} {args!r}")

    monkeypatch.setattr(place, bug)
    front.upstream.default = provider(dialect)
    ask(front, dialect, said(dialect, 24))


BAD = [
    f'{{"model": "{WORDS}", "messages": "{WORDS}"}}'.encode(),
    f'{{"{WORDS}": '.encode(),
    f"[{json.dumps(WORDS)}]".encode(),
    (WORDS * 20_000).encode(),
]


@DIALECTS
@pytest.mark.parametrize("raw", BAD, ids=["wrong types", "cut", "a list", "too large"])
def test_a_bad_body(front, dialect, raw):
    ask(front, dialect, raw)
    ask(front, dialect, raw, ("Content-Encoding", "gzip"))


@DIALECTS
def test_an_upstream_that_breaks(front, dialect):
    for steps in ((CUT,), (HOLD,), (b"HTTP/1.1 200 " + WORDS.encode() + b"\xff\r\n\r\n" + WORDS.encode(), CUT)):
        front.upstream.then(*steps)
        ask(front, dialect, said(dialect, 3))
    front.upstream.then(stream_head(), *chunks(f"data: {WORDS}\n\n".encode(), end=False), 0.05, CUT)
    ask(front, dialect, said(dialect, 3, stream=True))


def test_a_client_that_leaves(front):
    front.upstream.then(HOLD)
    headers = [*JSON, ("Authorization", f"Bearer {KEY}")]
    leaving = Call(front.base, "POST", PATHS["chat"], headers, json.dumps(body("chat", WORDS)).encode())
    seen = front.upstream.wait()
    leaving.close()
    assert seen.left.wait(2)


def test_other_paths_and_the_gateways_own_errors(front):
    call(front.base, "GET", f"/v1/files?key={KEY}", [("x-api-key", KEY)])
    call(front.base, "POST", "/v1/embeddings", [*JSON, ("x-api-key", KEY)], WORDS.encode())
    call(front.base, "GET", "/v1/models", [("Host", f"{WORDS}.example"), ("Origin", f"https://{KEY}.example")])
    call(front.base, "GET", "/readyz", [("Authorization", KEY)])
    call(front.base, "GET", "/v1/responses", [("Upgrade", "websocket"), ("Connection", "upgrade"), ("x-api-key", KEY)])


def test_in_shadow_each_decision_is_a_line_at_info_in_numbers(log: Log) -> None:
    toml = '[models."*"]\nwindow = 4000\n'
    with fronted(toml=toml, compaction__mode="shadow", server__log_level="info") as front:
        front.upstream.then(answer(json.dumps(reply("chat", f"hello {WORDS}")).encode()))
        sent = body("chat", messages=[{"role": "user", "content": f"{WORDS} " * 1_500}])
        got = post(front.base, PATHS["chat"], sent, ("Authorization", f"Bearer {KEY}"))
        assert got.status == 200
    ((line, level),) = [it for it in zip(log.lines, log.levels, strict=True) if " shadow " in it[0]]
    assert level == logging.INFO
    assert line.startswith("tidegate.steps ")
    assert "reason=nothing_to_compact" in line
    assert "threshold=3400 target=2000" in line
    for planted in PLANTED:
        assert planted not in line
