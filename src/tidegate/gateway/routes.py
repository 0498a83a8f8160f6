"""What a request path asks for: which dialect, which provider, which path upstream.

Knows paths only: no headers, no bodies. Called by the app for every request.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.wire.conversation import DialectName

RouteKind: TypeAlias = Literal["conversation", "count", "other", "unknown_provider"]

CONVERSATIONS: dict[str, DialectName] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
}
COUNTS: dict[str, DialectName] = {"/messages/count_tokens": "messages"}

CODEX_BACKEND = "/backend-api/codex"
"""Where the ChatGPT backend serves Codex."""


@dataclass(frozen=True, slots=True)
class Route:
    """`path` is below the API root where `versioned`, else below the host's root."""

    kind: RouteKind
    path: str
    versioned: bool
    dialect: DialectName | None = None
    provider: str | None = None
    """Named by the path; empty for the name of one that is not known."""


def route(path: str, providers: Container[str], *, single: bool = False) -> Route:
    """The route of a request path (decoded, without query).

    `single`: one upstream serves everything, so an unknown prefix is the upstream's own affair.
    """
    provider: str | None = None
    rest = path
    if rest.startswith(CODEX_BACKEND + "/"):
        provider, rest = "chatgpt", rest[len(CODEX_BACKEND) :]
        return _below_root(rest, provider, versioned=True)
    first, _, after = rest[1:].partition("/")
    if first in providers and after:
        provider, rest = first, "/" + after
    versioned = False
    while rest == "/v1" or rest.startswith("/v1/"):
        versioned, rest = True, rest[3:] or "/"
    if rest in CONVERSATIONS or rest in COUNTS:
        return _below_root(rest, provider, versioned=True)
    tail = next((known for known in CONVERSATIONS if rest.endswith(known)), None)
    if tail is not None and provider is None and not versioned:
        if single:
            return Route("conversation", rest, False, CONVERSATIONS[tail])
        head = rest[: -len(tail)].removesuffix("/v1")
        if head.count("/") == 1:
            return Route("unknown_provider", rest, False, CONVERSATIONS[tail], head.strip("/"))
    return Route("other", rest, versioned, None, provider)


def _below_root(rest: str, provider: str | None, *, versioned: bool) -> Route:
    if rest in CONVERSATIONS:
        return Route("conversation", rest, versioned, CONVERSATIONS[rest], provider)
    if rest in COUNTS:
        return Route("count", rest, versioned, COUNTS[rest], provider)
    return Route("other", rest, versioned, None, provider)
