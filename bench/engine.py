"""What Tidegate's own work on a request costs, without any network: read, chain, find, splice, estimate.

    python bench/engine.py [--seconds 1]

Prints microseconds of CPU a request (best of five rounds), for chat bodies of three sizes: at first sight, seen before
with nothing new, and grown by one turn with a checkpoint to replay.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.effects import Deliver, Find, Finish, Head, Save, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.view import read_history
from tidegate.overflow.verdict import Evidence, Verdict
from tidegate.overflow.window import Windows
from tidegate.store import MemoryStore
from tidegate.wire import read
from tidegate.wire.conversation import Usage

HASHER = Hasher(b"b" * 32)
TENANT = HASHER.tenant(b"sk-bench")


def body(size: int, extra: int = 0) -> bytes:
    """An agent's chat history of about `size` bytes, and `extra` turns more."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a coding agent. " * 20}]
    turns = max(1, size // 2400) + extra
    for turn in range(turns):
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "read", "arguments": '{"path":"a.py"}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": f"line {turn} " + "value abcdefg " * 150},
        ]
    messages.insert(1, {"role": "user", "content": "Mend the tests."})
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


def kit() -> Kit:
    verdict = Verdict("server", "none", True, Evidence("bench", "bench"))
    return Kit(HASHER, Ledger(HASHER), Windows(), lambda provider, refusal, sent: verdict)


def live(raw: bytes, tools: Kit, store: MemoryStore) -> None:
    """One exchange, its effects answered at once."""
    target = Target("openai", "http://up/v1", "m", window=10**9)
    life = exchange(Request("r", read("chat", raw), TENANT, target, 0.0), tools)
    effect: object = next(life)
    try:
        while True:
            match effect:
                case Find(tenant, bucket, chains):
                    effect = life.send(store.find(tenant, bucket, chains))
                case Send():
                    effect = life.send(Head(0, 200, {}))
                case Deliver():
                    effect = life.send(Finish(Usage(1000), "stop"))
                case Save(tenant, record) if not isinstance(record, Checkpoint):
                    store.report(tenant, record)
                    effect = life.send(None)
                case _:
                    effect = life.send(None)
    except StopIteration:
        pass


def remember(raw: bytes, store: MemoryStore) -> None:
    """A checkpoint of half the history."""
    past = read_history(read("chat", raw), TENANT, HASHER, Ledger(HASHER))
    length = len(past.entries) // 4 * 2 + 1
    text = "## Goal\nMend the tests. " * 40
    store.save(
        Checkpoint(
            TENANT, past.chain.bucket, length, past.chain.links[length], past.head, "chat",
            Artifact("text", text=text, retained=(0,)), "openai", "http://up/v1", "m", "summary", 1, 1,
        )
    )  # fmt: skip


def best(work: Callable[[], None], seconds: float) -> float:
    """Microseconds of CPU for one call, best of five rounds."""
    found = float("inf")
    for _ in range(5):
        count, began = 0, time.process_time()
        while (spent := time.process_time() - began) < seconds / 5:
            work()
            count += 1
        found = min(found, spent / count * 1e6)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=1.0, help="CPU seconds for each figure")
    seconds = options.parse_args().seconds
    print(f"{'body':>8} {'first sight':>12} {'known':>10} {'replayed':>10}   µs of CPU a request")
    for size in (1_000, 100_000, 1_000_000):
        raw, grown = body(size), body(size, extra=1)
        tools, store = kit(), MemoryStore()
        first = best(lambda raw=raw: live(raw, kit(), MemoryStore()), seconds)  # type: ignore[misc]
        known = best(lambda raw=raw, tools=tools: live(raw, tools, MemoryStore()), seconds)  # type: ignore[misc]
        remember(raw, store)
        again = best(lambda grown=grown, tools=tools, store=store: live(grown, tools, store), seconds)  # type: ignore[misc]
        print(f"{len(raw):>8} {first:>12.0f} {known:>10.0f} {again:>10.0f}")


if __name__ == "__main__":
    main()
