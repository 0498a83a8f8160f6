"""Requests, kits and histories for the engine's tests."""

from __future__ import annotations

import json
from typing import Any

from tidegate.context.budget import Policy
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.view import read_history
from tidegate.overflow.classify import classify
from tidegate.overflow.window import Windows
from tidegate.providers import load
from tidegate.wire import read

KEY = b"k" * 32
HASHER = Hasher(KEY)
TENANT = HASHER.tenant(b"sk-test")
CATALOGUE = load()

JsonDict = dict[str, Any]


QUIET = Policy(prepare_percent=None)
"""Nothing is prepared behind an answer: a script ends with it."""


def kit(policy: Policy | None = None, **changes: Any) -> Kit:
    return Kit(
        hasher=HASHER,
        ledger=Ledger(HASHER),
        windows=Windows(),
        classify=lambda provider, refusal, sent: classify(refusal, CATALOGUE.rules(provider), sent=sent),
        policy=policy or QUIET,
        **changes,
    )


def target(window: int | None = 8000, **changes: Any) -> Target:
    known: JsonDict = {"provider": "openai", "endpoint": "http://up/v1", "model": "m", "window": window}
    return Target(**{**known, **changes})


def turn(number: int, size: int = 400) -> list[JsonDict]:
    """A human message, a tool call, its result and an answer; about `size` tokens."""
    return [
        {"role": "user", "content": f"step {number}: please go on"},
        {
            "role": "assistant", "content": None,
            "tool_calls": [
                {"id": f"call_{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": f"call_{number}", "content": f"line {number} " + "abcdefg " * (size // 2)},
        {"role": "assistant", "content": f"done {number}"},
    ]  # fmt: skip


def history(turns: int, size: int = 400, last: str = "what next?") -> list[JsonDict]:
    messages = [message for number in range(turns) for message in turn(number, size)]
    return [{"role": "system", "content": "You are a coding agent."}, *messages, {"role": "user", "content": last}]


def body(messages: list[JsonDict], **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def request(
    raw: bytes, *, dialect: Any = "chat", to: Target | None = None, hands_off: str = "", at: float = 1000.0
) -> Request:
    return Request("r1", read(dialect, raw), TENANT, to or target(), at, hands_off)


def checkpoint(
    raw: bytes, length: int, text: str = "## Goal\nEarlier work.", retained: tuple[int, ...] = ()
) -> Checkpoint:
    """A stored checkpoint of the first `length` chained items of a chat body."""
    past = read_history(read("chat", raw), TENANT, HASHER, Ledger(HASHER))
    return Checkpoint(
        tenant=TENANT, bucket=past.chain.bucket, length=length, chain=past.chain.links[length], head=past.head,
        dialect="chat", artifact=Artifact("text", text=text, retained=retained), provider="openai",
        endpoint="http://up/v1", model="m", strategy="summary", tokens_before=6000, tokens_after=3000,
    )  # fmt: skip


def messages_of(raw: bytes | None) -> list[JsonDict]:
    assert raw is not None
    found = json.loads(raw)["messages"]
    assert isinstance(found, list)
    return found
