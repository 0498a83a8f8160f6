"""A chat completion's end as nearly all servers write it, for one quick look.

Knows the names and types of a few fields, not what they mean. Called by `wire.chat_answers`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class Details(msgspec.Struct):
    """Of which tokens the prompt is made."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What the completion cost, in the words of several servers."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None


class Choice(msgspec.Struct):
    """How one of the choices ended."""

    finish_reason: str | None
    index: int | None = 0
    usage: Literal[None] = None


class Completion(msgspec.Struct):
    """A completion as nearly all servers write it. One that has any of the odd fields does not fit, and is read at
    length."""

    choices: list[Choice]
    usage: Usage
    error: Literal[None] = None
    base_resp: Literal[None] = None
    type: Literal[None] = None
    x_groq: Literal[None] = None


decode: Final = msgspec.json.Decoder(Completion).decode
"""A body as a `Completion`. Raises `ValueError` for one that is none, `RecursionError` for one that is too deep."""
