"""What a request path asks for: which API, which provider, which path there.

Knows paths only: no headers, no bodies. Called by the app for every request.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, TypeAlias

import msgspec

from tidegate.wire.conversation import DialectName

RouteKind: TypeAlias = Literal["conversation", "count", "other", "unknown_provider"]
Base: TypeAlias = Literal["api", "host", "origin"]
"""What a path is put behind: the API root (version included), the same without its version, or scheme and host."""

ENDPOINTS: dict[str, tuple[RouteKind, DialectName]] = {
    "/chat/completions": ("conversation", "chat"),
    "/responses": ("conversation", "responses"),
    "/messages": ("conversation", "messages"),
    "/messages/count_tokens": ("count", "messages"),
}
SECTIONS: dict[str, DialectName | None] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
    "/models": None,
}
"""Parts of the API that may be asked for without the version, with all that lies below them, and whose they are."""

CHATGPT = "chatgpt"
BACKEND = "/backend-api/"
CODEX = "/backend-api/codex"
"""Where the ChatGPT site serves Codex."""


class Route(msgspec.Struct, frozen=True):
    """`path` is as it came, less what named the provider and the version."""

    kind: RouteKind
    path: str
    base: Base
    dialect: DialectName | None = None
    """The API that the path belongs to, as far as it says so."""
    provider: str | None = None
    """Named by the path."""


def route(path: str, providers: Container[str], *, single: bool = False) -> Route:
    """The route of a request path (percent-encoded, without query).

    `single`: one upstream serves everything, so an unknown prefix is the upstream's own affair, and a provider's name
    is dropped only where a path of the API follows.
    """
    if path.startswith(CODEX + "/"):
        return _below_root(path[len(CODEX) :], CHATGPT)
    if path.startswith(BACKEND) and not single:
        return Route("other", path, "origin", None, CHATGPT)
    first, slash, after = path[1:].partition("/")
    if slash and first in providers:
        below = _api_path("/" + after)
        if below is not None:
            return _below_root(below, first)
        if not single:
            return Route("other", "/" + after, "host", None, first)
    below = _api_path(path)
    return _foreign(path, single=single) if below is None else _below_root(below, None)


def _api_path(path: str) -> str | None:
    """The path below the API root, where it is one: after `/v1`, however often a base URL has put it there, or in a
    known section."""
    versioned = False
    while path == "/v1" or path.startswith("/v1/"):
        versioned, path = True, path[3:]
    return path if versioned or _section(path) else None


def _section(path: str) -> str | None:
    return next((name for name in SECTIONS if path == name or path.startswith(name + "/")), None)


def _below_root(path: str, provider: str | None) -> Route:
    if path in ENDPOINTS:
        kind, dialect = ENDPOINTS[path]
        return Route(kind, path, "api", dialect, provider)
    section = _section(path)
    return Route("other", path, "api", SECTIONS[section] if section else None, provider)


def _foreign(path: str, *, single: bool) -> Route:
    """A path with an unknown beginning: `/api/paas/v4/chat/completions` is a conversation for the one upstream; where
    there are many, `/openia/v1/chat/completions` means a provider that is not there."""
    tail = next((known for known in ENDPOINTS if path.endswith(known)), None)
    if tail is None:
        return Route("other", path, "host")
    kind, dialect = ENDPOINTS[tail]
    if single:
        return Route(kind, path, "host", dialect)
    head = path[: -len(tail)].removesuffix("/v1")
    if head.count("/") == 1:
        return Route("unknown_provider", path, "host", dialect, head.strip("/"))
    return Route("other", path, "host")
