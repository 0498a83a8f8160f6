"""Whatever fails, the client is no worse off than without a gateway; nothing goes round in circles; nobody is told a
word of the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from engine_world import Exchange, Gateway, Provider, Summarizer, items_of, new_kit, reply_of, ruler, target_of
from histories import DIALECTS, ITEMS_KEY, SENTINEL, Json, Talk, examples, finished, talk, wild
from hypothesis import event, given
from hypothesis import strategies as st

from tidegate.compactors.strategy import Call, Reply
from tidegate.context.budget import Policy
from tidegate.engine.checkpoint import Found, Store, StoreError
from tidegate.engine.effects import Head, UpstreamError
from tidegate.engine.exchange import counted
from tidegate.store.memory import MemoryStore
from tidegate.wire import read
from tidegate.wire.conversation import UnreadableBody

# -- failures of Tidegate's own helpers ------------------------------------------------------------------------------


class BrokenStore:
    """Fails at everything it is asked."""

    def find(self, *_: Any) -> Found:
        raise StoreError("checkpoints.db: is locked")

    def save(self, *_: Any) -> None:
        raise StoreError("checkpoints.db: disk full")

    def report(self, *_: Any) -> None:
        raise StoreError("checkpoints.db: disk full")

    def close(self) -> None: ...


def broken(status: int, body: bytes = b"", error: str = "") -> Callable[[Call], Reply]:
    return lambda call: Reply(status, body, error=error)


def saying(text: str) -> Callable[[Call], Reply]:
    return lambda call: reply_of(call.path, text)


SUMMARIZERS: dict[str, Callable[[Call], Reply]] = {
    "unreachable": broken(0, error="connection refused"),
    "failing": broken(500, f'{{"error": {{"message": "{SENTINEL} broke"}}}}'.encode()),
    "denied": broken(401, b'{"error": {"message": "no such key"}}'),
    "too small": broken(400, b'{"error": {"message": "maximum context length is 8 tokens", '
                             b'"code": "context_length_exceeded"}}'),
    "no JSON": broken(200, f"<html>{SENTINEL}".encode()),
    "silent": saying(""),
    "verbose": saying(f"{SENTINEL} says it all again. " * 4000),
}  # fmt: skip


@examples(80)
@given(wild(), st.sampled_from([*SUMMARIZERS]), st.booleans(), st.integers(1, 4))
def test_where_nothing_helps_the_clients_own_bytes_are_sent(made: Talk, how: str, no_store: bool, share: int) -> None:
    raw = made.body()
    window = max(300, ruler(made.dialect, raw) // share)
    store: Store = BrokenStore() if no_store else MemoryStore()
    provider = Provider(made.dialect, window)
    gateway = Gateway(made.dialect, target_of(made.dialect, window), provider, SUMMARIZERS[how], store)
    seen = gateway.serve(raw)
    assert (seen.sent, seen.originals) == ([raw], [True])
    assert seen.delivered is seen.heads[0]
    assert not seen.checkpoints
    event("summary tried" if seen.compactions else "not due")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "tool", "message", "function_call", "reasoning", "text", "call_1"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "text", "id", "role", "content", "call_id", "input", "x"]), inner),
    max_leaves=6,
)  # fmt: skip
FIELDS = ["role", "type", "content", "tool_calls", "tool_call_id", "call_id", "id", "function_call", "name", "summary",
          "arguments", "output", "action", "encrypted_content", "cache_control", "refusal"]  # fmt: skip
ROLES = st.sampled_from(["user", "assistant", "tool", "system", "function", "developer"])


@st.composite
def junk(draw: st.DrawFn) -> tuple[str, bytes]:
    """A body whose items are objects, and nothing else is sure."""
    dialect = draw(DIALECTS)
    items = draw(st.lists(st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=4), min_size=1, max_size=8))
    for item in items:
        if draw(st.booleans()):
            item["role"] = draw(ROLES)
        if draw(st.booleans()):
            item["content"] = "word " * draw(st.sampled_from([1, 200, 600]))
    body = {"model": "m", ITEMS_KEY[dialect]: items, **draw(st.dictionaries(st.just("thinking"), JUNK))}
    return dialect, json.dumps(body).encode("utf-8", "surrogatepass")


@examples(100)
@given(junk(), st.booleans(), st.booleans())
def test_no_body_breaks_the_engine(body: tuple[str, bytes], merge_user: bool, binds_thinking: bool) -> None:
    dialect, raw = body
    try:
        read(dialect, raw)  # type: ignore[arg-type]
    except UnreadableBody:
        return
    to = target_of(dialect, 600, merge_user=merge_user, binds_thinking=binds_thinking)
    gateway = Gateway(dialect, to, Provider(dialect, 600), store=MemoryStore())
    for life in (None, None, counted):
        seen = gateway.serve(raw, **({"life": life} if life else {}))
        assert seen.delivered is not None
        assert all(original == (sent == raw) for sent, original in zip(seen.sent, seen.originals, strict=True))
        event("compacted" if seen.checkpoints else "as it came")


# -- never a loop ----------------------------------------------------------------------------------------------------


def overflow(window: object, tokens: object, *, code: bool = True, in_stream: bool = False) -> Callable[[int], Head]:
    message = f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens}."
    error = {"message": message + f" {SENTINEL}", "code": "context_length_exceeded" if code else None}
    return lambda number: Head(number, 200 if in_stream else 400, {}, _error(error), in_stream)


def refusal(status: int, message: str, code: str | None = None) -> Callable[[int], Head]:
    return lambda number: Head(number, status, {}, _error({"message": f"{message} {SENTINEL}", "code": code}))


def _error(error: Json) -> bytes:
    return json.dumps({"error": {"type": "invalid_request_error", "param": None, **error}}).encode()


def gone(number: int) -> Head:
    raise UpstreamError("cut before the head", status=502)


MOODS: dict[str, Callable[[int], Head]] = {
    "overflow": overflow(8000, 9000),
    "overflow without numbers": overflow("its", "too many"),
    "overflow of nonsense": overflow(10**15, -3),
    "overflow of a tiny window": overflow(300, 10**9),
    "overflow by words only": overflow(1200, 5000, code=False),
    "overflow in the stream": overflow(2000, 2001, in_stream=True),
    "rule": refusal(400, "messages: something is wrong"),
    "output over the window": refusal(400, "input length and `max_tokens` exceed context limit: 900 + 2048 > 2900"),
    "output": refusal(400, "max_tokens: 9000 > 4096, which is the maximum allowed number of output tokens"),
    "bytes": refusal(413, "Request exceeds the maximum size", "request_too_large"),
    "rate": refusal(429, "Rate limit reached", "rate_limit_exceeded"),
    "allowance": refusal(429, "Too large on tokens per min: Limit 700, Requested 9000.", "rate_limit_exceeded"),
    "stale": refusal(400, "The encrypted content could not be verified.", "invalid_encrypted_content"),
    "signature": refusal(400, "messages.1.content.0: Invalid `signature` in `thinking` block"),
    "server": refusal(500, "The server had an error"),
    "bare": lambda number: Head(number, 400, {}, b""),
    "html": lambda number: Head(number, 502, {}, f"<html>{SENTINEL}".encode()),
    "cut": gone,
    "answer": lambda number: Head(number, 200, {"x-size": "900"}),
}


@dataclass
class Moody:
    """Answers by a list, the last one for ever."""

    moods: list[str]
    given: int = field(default=0)

    def __call__(self, seen: Exchange, raw: bytes) -> Head:
        mood = self.moods[min(self.given, len(self.moods) - 1)]
        self.given += 1
        return MOODS[mood](len(seen.sent) - 1)


def bounded(seen: Exchange, most: int) -> None:
    assert seen.compactions <= most
    dropped = sum(notice.event == "dropped" for notice in seen.notices)
    assert dropped <= 1
    assert len(seen.sent) <= 1 + most + 1 + dropped
    assert len(set(seen.sent)) == len(seen.sent), "no body is sent twice"
    assert sum(seen.originals) <= 1
    dialect = seen.request.conversation.dialect
    with_less_output = 0
    for (before, after), original in zip(pairwise(seen.sent), seen.originals[1:], strict=True):
        if not original and items_of(dialect, after) == items_of(dialect, before):
            with_less_output += 1
        else:
            assert original or len(after) < len(before), "what is sent again is smaller"
    assert with_less_output <= 1
    if seen.error is None:
        assert seen.delivered in seen.heads
    else:
        assert not seen.heads, "an upstream that is lost after a refusal costs no more than the refusal"
    if not seen.answered and seen.delivered is not None:
        # The first refusal is of what the client asked for; a newer one counts where it says to come again later.
        assert seen.delivered is seen.heads[0] or seen.delivered is seen.heads[-1]


@examples(150)
@given(
    wild(),
    st.lists(st.sampled_from([*MOODS]), min_size=1, max_size=6),
    st.integers(0, 3),
    st.sampled_from([None, 500, 1200, 8000]),
    st.booleans(),
    st.booleans(),
)
def test_sends_and_compactions_are_bounded(
    made: Talk, moods: list[str], most: int, window: int | None, on_overflow: bool, shrink: bool
) -> None:
    kit = new_kit(Policy(on_overflow=on_overflow), max_compactions=most, shrink_on_admission=shrink)
    gateway = Gateway(made.dialect, target_of(made.dialect, window), Moody(moods), kit=kit)
    for _ in range(3):
        seen = gateway.serve(made.body())
        bounded(seen, most)
        event(f"{len(seen.sent)} sends, {seen.compactions} compactions")
        made.writer.round(1, 0)


@pytest.mark.parametrize("mood", [name for name in MOODS if name != "answer"])
@pytest.mark.parametrize("window", [None, 1200])
def test_an_upstream_that_always_refuses_is_heard_and_left_alone(mood: str, window: int | None) -> None:
    made = finished(talk("chat", 1), [("human", 1, 0), *[("round", 2, 2)] * 12])
    gateway = Gateway("chat", target_of("chat", window), Moody([mood]))
    for _ in range(3):
        bounded(gateway.serve(made.body()), 2)


def test_a_lost_upstream_costs_no_refusal_that_was_heard() -> None:
    made = finished(talk("chat", 1), [("human", 1, 0), *[("round", 2, 2)] * 12])
    gateway = Gateway("chat", target_of("chat", 1200), Moody(["rule", "cut"]))
    seen = gateway.serve(made.body())
    assert seen.originals == [False, True]
    assert seen.error is None
    assert seen.delivered is seen.heads[0]


# -- nothing leaks ---------------------------------------------------------------------------------------------------


def told(seen: Exchange) -> str:
    """All that somebody beside client and provider may get to see of an exchange."""
    return " ".join(map(repr, [*seen.notices, seen.outcome, seen.error, *seen.effects]))


@examples(80)
@given(
    wild(),
    st.lists(st.sampled_from([*MOODS]), min_size=1, max_size=4),
    st.sampled_from([*SUMMARIZERS, "good"]),
    st.integers(1, 4),
)
def test_nobody_is_told_a_word(made: Talk, moods: list[str], how: str, share: int) -> None:
    window = max(500, ruler(made.dialect, made.body()) // share)
    summarize = SUMMARIZERS.get(how) or Summarizer(words=f" {SENTINEL} too.")
    gateway = Gateway(made.dialect, target_of(made.dialect, window), Moody(moods), summarize)
    for _ in range(2):
        seen = gateway.serve(made.body())
        assert SENTINEL not in told(seen)
        assert "all work" not in told(seen)
        made.writer.round(1, 0)
    event("compacted" if gateway.kept else "nothing kept")


@examples(100)
@given(wild(), st.data())
def test_a_body_that_can_not_be_read_is_not_quoted(made: Talk, data: st.DataObject) -> None:
    raw = bytearray(made.body())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b'"', b"}", b"[", b"\xff", b"\\"])
        )
    said = ""
    try:
        read(made.dialect, bytes(raw))  # type: ignore[arg-type]
    except UnreadableBody as error:
        said = f"{error} {error!r}"
    assert SENTINEL not in said
