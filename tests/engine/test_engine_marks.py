"""Cache marks on what is forwarded: few enough, in a lawful order, and on a summary that keeps its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_world import Gateway, Provider, breaks, items_of, target_of
from histories import examples, new_world
from hypothesis import event, given
from hypothesis import strategies as st
from stage import HASHER

from tidegate.context.recall import Recall
from tidegate.wire import read

Json = dict[str, Any]
FIVE = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
FIELDS = {"messages": {"max_tokens": 500}, "chat": {}}


def with_mark(item: Json, control: Json) -> Json:
    """The item with a mark on its last part."""
    content = item["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    return {**item, "content": [*parts[:-1], {**parts[-1], "cache_control": control}]}


class Client:
    """A client that marks its system prompt, its tools and the newest of its messages, each turn anew."""

    def __init__(self, dialect: str, system: int, tool: bool, newest: int, control: Json, automatic: bool) -> None:
        self.dialect, self.newest, self.control = dialect, newest, control
        self.items: list[Json] = []
        self.fields: Json = dict(FIELDS[dialect])
        blocks = [{"type": "text", "text": f"Be of use {n}."} for n in range(2)]
        for block in blocks[:system]:
            block["cache_control"] = HOUR if control == HOUR else FIVE
        self.lead: list[Json] = []
        if dialect == "messages":
            self.fields["system"] = blocks
        else:
            self.lead = [{"role": "system", "content": blocks}]
        if tool and dialect == "messages":
            self.fields["tools"] = [{"name": "read", "input_schema": {"type": "object"}, "cache_control": control}]
        if automatic and dialect == "messages":
            self.fields["cache_control"] = control

    def turn(self, number: int, size: int) -> bytes:
        if self.items:
            self.items.append({"role": "assistant", "content": f"done {number}"})
        self.items.append({"role": "user", "content": f"step {number} FACT-{number} " + "x " * size})
        sent = list(self.items)
        users = [n for n, item in enumerate(sent) if item["role"] == "user"][-self.newest :] if self.newest else []
        for n in users:
            sent[n] = with_mark(sent[n], self.control)
        return json.dumps({"model": "m", **self.fields, "messages": [*self.lead, *sent]}).encode()


def marks(raw: bytes) -> int:
    return raw.count(b'"cache_control"')


def summary_of(dialect: str, raw: bytes) -> Json | None:
    """The block of the summary."""
    for item in items_of(dialect, raw):
        content = item["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for part in parts:
            if str(part.get("text")).startswith("<conversation_summary"):
                return part
    return None


CLIENTS = st.builds(
    Client,
    st.sampled_from(["messages", "chat"]),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([FIVE, HOUR]),
    st.booleans(),
).filter(lambda client: marks(client.turn(0, 1)) <= 4)


@examples(60)
@given(CLIENTS, st.lists(st.integers(20, 300), min_size=15, max_size=30), st.booleans())
def test_sessions_keep_the_rules_and_the_bytes_of_their_summaries(
    client: Client, sizes: list[int], recalling: bool
) -> None:
    client.items.clear()
    dialect = client.dialect
    gateway = Gateway(dialect, target_of(dialect, 1500), Provider(dialect))
    world, recall = new_world(), Recall(HASHER)
    seen_blocks: dict[str, Json] = {}
    for number, size in enumerate(sizes):
        raw = client.turn(number, size)
        own = marks(raw)
        if own > 4:
            return
        conversation = recall.read(dialect, raw) if recalling else read(dialect, raw)  # type: ignore[arg-type]
        done = gateway.serve(conversation.raw)
        (sent,) = done.sent
        assert marks(sent) <= (min(own + 1, 4) if own else 0)
        if dialect == "messages":
            assert breaks(dialect, sent, world) == ""
        block = summary_of(dialect, sent)
        if block is not None:
            known = seen_blocks.setdefault(done.outcome.checkpoint if done.outcome else "", block)
            assert block == known
            event("marked" if "cache_control" in block else "not marked")


@pytest.mark.parametrize(
    ("system", "newest", "control", "expected"),
    [(2, 1, FIVE, FIVE), (1, 1, HOUR, HOUR), (2, 2, FIVE, None), (0, 0, FIVE, None), (1, 0, FIVE, FIVE)],
)  # fmt: skip
@pytest.mark.parametrize("dialect", ["messages", "chat"])
def test_the_summary_is_marked_where_the_client_marks(
    dialect: str, system: int, newest: int, control: Json, expected: Json | None
) -> None:
    client = Client(dialect, system, tool=False, newest=newest, control=control, automatic=False)
    gateway = Gateway(dialect, target_of(dialect, 1500), Provider(dialect))
    summaries = set()
    for number in range(30):
        (sent,) = gateway.serve(client.turn(number, 100)).sent
        block = summary_of(dialect, sent)
        if block is not None:
            assert block.get("cache_control") == expected
            summaries.add(json.dumps(block))
    assert 1 <= len(summaries) <= len(gateway.kept)
    kept = [item for item in items_of(dialect, sent) if "FACT-29 " in json.dumps(item)]
    assert kept == [item for item in items_of(dialect, client_body(client)) if "FACT-29 " in json.dumps(item)]


def client_body(client: Client) -> bytes:
    """What the client sent last."""
    last = client.items[-1]
    sent = [*client.items[:-1], with_mark(last, client.control) if client.newest else last]
    return json.dumps({"model": "m", "messages": sent}).encode()
