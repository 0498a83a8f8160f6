"""Histories and checkpoints for the tests of the store."""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Any

from tidegate.engine.checkpoint import Artifact, Checkpoint, Report

TENANT = b"T" * 32
OTHER = b"O" * 32


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def history(*items: str) -> dict[int, bytes]:
    """The chain of a history: length to hash."""
    chains, last = {}, b""
    for length, item in enumerate(items, 1):
        last = blake2b(last + item.encode(), digest_size=32).digest()
        chains[length] = last
    return chains


def checkpoint(chains: dict[int, bytes], length: int, text: str = "what happened", **changes: Any) -> Checkpoint:
    """One that stands for the first `length` items; `binding` makes it an opaque one."""
    binding = changes.pop("binding", "")
    artifact = Artifact("opaque", items=(text.encode(),), binding=binding) if binding else Artifact("text", text)
    return Checkpoint(
        **{
            "tenant": TENANT,
            "bucket": chains[1],
            "length": length,
            "chain": chains[length],
            "head": b"h" * 32,
            "dialect": "chat",
            "artifact": artifact,
            "provider": "openai",
            "endpoint": "https://api.example/v1",
            "model": "gpt-x",
            "strategy": "summary",
            "tokens_before": 9000,
            "tokens_after": 700,
        }
        | changes
    )


def report(chains: dict[int, bytes], length: int, tokens: int = 1000, **changes: Any) -> Report:
    return Report(
        **{
            "bucket": chains[1],
            "length": length,
            "chain": chains[length],
            "checkpoint": b"",
            "head": b"h" * 32,
            "endpoint": "https://api.example/v1",
            "model": "gpt-x",
            "input_tokens": tokens,
        }
        | changes
    )
