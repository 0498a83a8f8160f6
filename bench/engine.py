"""What Tidegate's own work on a request costs, without any network: from a body's bytes to the decision to send.

    python bench/engine.py [--rounds 9]

Read, chain, find, replay, measure, decide; the store is in memory. Prints microseconds of CPU a request (best round)
for chat bodies of several sizes: `first` at first sight; `same` sent again; `grown` with a round of a tool call and its
result more each time. `replayed` is the same where a checkpoint stands for all but the last few items, as in a long
session. `scan` is a bare look for the spans of all items, `hash` the hash of the known beginning alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.effects import Find, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.view import read_history
from tidegate.overflow.verdict import Evidence, Verdict
from tidegate.overflow.window import Windows
from tidegate.store import MemoryStore
from tidegate.wire import read
from tidegate.wire.own_compaction import own_compaction

HASHER = Hasher(b"b" * 32)
TENANT = HASHER.tenant(b"sk-bench")
TARGET = Target("openai", "http://up/v1", "m", window=10**9)
HEADERS = {
    "host": "gateway", "content-type": "application/json", "authorization": "Bearer sk-bench", "accept": "*/*",
    "user-agent": "bench", "content-length": "1000", "accept-encoding": "gzip", "connection": "keep-alive",
}  # fmt: skip
TURNS = 40
"""Requests of a round."""


@dataclass(frozen=True)
class Case:
    """A body: so many messages of so many bytes."""

    name: str
    items: int
    item_bytes: int


CASES = (
    Case("1 KB", 1, 400),
    Case("100 KB", 84, 1_000),
    Case("1 MB", 800, 1_100),
    Case("4 MB", 2_000, 1_900),
)


def messages(case: Case, turns: int = 0) -> list[dict[str, Any]]:
    """An agent's history: its system prompt, a question, and rounds of a call and its result; `turns` more rounds."""
    found: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent. " * 16},
        {"role": "user", "content": "Mend the tests. " + "value abcdefg " * (case.item_bytes // 14)},
    ]
    for turn in range(case.items // 2 + turns):
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "read", "arguments": '{"path":"a.py"}'}}
        words = f"line {turn} " + "value abcdefg " * (2 * case.item_bytes // 14)
        found += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": words},
        ]
    return found


def body(case: Case, turns: int = 0) -> bytes:
    return json.dumps({"model": "m", "messages": messages(case, turns), "stream": True}).encode()


def kit() -> Kit:
    verdict = Verdict("server", "none", True, Evidence("bench", "bench"))
    return Kit(HASHER, Ledger(HASHER), Windows(), lambda provider, refusal, sent: verdict)


def decided(raw: bytes, tools: Kit, store: MemoryStore) -> Send:
    """One exchange up to what is sent first."""
    conversation = tools.recall.read("chat", raw)
    assert own_compaction(conversation, HEADERS) is None
    life = exchange(Request("r", conversation, TENANT, TARGET, 0.0), tools)
    effect: object = next(life)
    while not isinstance(effect, Send):
        if isinstance(effect, Find):
            effect = life.send(store.find(effect.tenant, effect.bucket, effect.chains))
        else:
            effect = life.send(None)
    return effect


def remember(raw: bytes, store: MemoryStore) -> None:
    """A checkpoint of all but the last rounds."""
    past = read_history(read("chat", raw), TENANT, HASHER, Ledger(HASHER))
    length = len(past.entries) - 6 if len(past.entries) > 20 else 1
    text = "## Goal\nMend the tests. " * (200 if length > 1 else 1)
    store.save(
        Checkpoint(
            TENANT, past.chain.bucket, length, past.chain.links[length], past.head, "chat",
            Artifact("text", text=text, retained=(0,) if length > 1 else ()), "openai", "http://up/v1", "m", "summary",
            1, 1,
        )
    )  # fmt: skip


def spent(bodies: Sequence[bytes], rounds: int, *, known: bytes | None, replayed: bool) -> float:
    """Microseconds of CPU a request, best of the rounds, each with a memory of its own in which `known` was read."""
    best = float("inf")
    for _ in range(rounds):
        tools, store = kit(), MemoryStore()
        if replayed:
            remember(bodies[0], store)
        if known is not None:
            sent = decided(known, tools, store)
            assert (sent.body is not None) == replayed or len(known) < 10_000
        gc.collect()
        began = time.process_time_ns()
        for raw in bodies:
            decided(raw, tools, store)
        best = min(best, (time.process_time_ns() - began) / len(bodies) / 1000)
    return best


def bare(raw: bytes, rounds: int) -> tuple[float, float]:
    """Microseconds of CPU for a bare scan of the items' spans, and for the hash alone."""
    scan = msgspec.json.Decoder(dict[str, msgspec.Raw])
    items = msgspec.json.Decoder(list[msgspec.Raw])
    best = [float("inf")] * 2
    for _ in range(rounds):
        began = time.process_time_ns()
        items.decode(scan.decode(raw)["messages"])
        scanned = time.process_time_ns()
        running = HASHER.prefix("chat")
        running.update(raw)
        running.digest()
        best = [min(best[0], scanned - began), min(best[1], time.process_time_ns() - scanned)]
    return best[0] / 1000, best[1] / 1000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=9, help="rounds of each case, of which the best counts")
    rounds = options.parse_args().rounds
    titles = ("first", "same", "grown", "replayed same", "replayed grown", "scan", "hash")
    print(f"{'body':>8}" + "".join(f"{title:>16}" for title in titles) + "   µs of CPU a request")
    for case in CASES:
        raw = body(case)
        same, grown = [raw] * TURNS, [body(case, turn) for turn in range(1, TURNS + 1)]
        figures = (
            spent([raw], rounds, known=None, replayed=False),
            spent(same, rounds, known=raw, replayed=False),
            spent(grown, rounds, known=raw, replayed=False),
            spent(same, rounds, known=raw, replayed=True),
            spent(grown, rounds, known=raw, replayed=True),
            *bare(raw, rounds),
        )
        print(f"{case.name:>8}" + "".join(f"{figure:>16.1f}" for figure in figures))


if __name__ == "__main__":
    main()
