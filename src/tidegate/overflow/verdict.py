"""What a provider's refusal means. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal[
    "overflow", "output_limit", "payload_bytes", "media_limit", "rate_limit", "quota", "auth", "filter",
    "truncated_output", "server", "stale_artifact", "unsupported", "other_4xx",
]  # fmt: skip

Action: TypeAlias = Literal["compact", "clamp_output", "shrink_bytes", "drop_artifact", "wait", "none"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal as it came: an error answer, or an error event inside a stream that began with 200."""

    status: int | None
    body: bytes | str = field(repr=False)
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    in_stream: bool = False


class Sent(msgspec.Struct, frozen=True):
    """What is known of the request that was refused. Tokens are estimates; None where unknown."""

    tokens: int | None = None
    window: int | None = None
    bytes: int | None = None
    media: int | None = None
    output_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Which rule decided, from which provider file, on which words (cut to 120 characters)."""

    rule: str
    source: str
    matched: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a refusal means and what helps. Numbers are tokens, None unless the refusal states them."""

    kind: Kind
    action: Action
    certain: bool
    evidence: Evidence
    input_tokens: int | None = None
    window: int | None = None
    input_limit: int | None = None
    output_requested: int | None = None
    output_limit: int | None = None
    """Of an `output_limit`: the largest output limit that would be accepted, where the numbers tell."""
    retry_after: float | None = None
    admission: bool = False
    """A rate refusal whose single request is larger than the whole allowance: waiting can't help."""
    allowance: int | None = None
    """With `admission`: tokens of the whole allowance. Never the size of a window."""
    requested: int | None = None
    """With `admission`: tokens that the request counts for, the output it asks for included."""
    runner_up: Kind | None = None
