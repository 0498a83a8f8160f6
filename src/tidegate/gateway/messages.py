"""Error answers and headers of the gateway's own, in the client's dialect.

Knows texts and shapes; no sockets. Called by the app and the client's side of an exchange.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.engine.effects import Outcome
from tidegate.upstream.http import Headers, hop_by_hop
from tidegate.wire import ANSWERS
from tidegate.wire.conversation import DialectName
from tidegate.wire.jsontext import loads

PREFIX = b"x-tidegate-"
BYPASS = b"x-tidegate-bypass"

NOT_FORWARDED = frozenset({b"host", b"content-length", b"expect"})
"""Request headers that belong to one hop, beside those HTTP names."""


def forwarded(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """A client's headers as they go upstream: hop-by-hop ones, the host's, and Tidegate's own left out."""
    return [
        (name, value)
        for name, value in hop_by_hop(list(headers))
        if name not in NOT_FORWARDED and not name.startswith(PREFIX)
    ]


def returned(headers: Headers) -> Headers:
    """An upstream's headers as they go to the client."""
    return [(name.lower(), value) for name, value in hop_by_hop(headers) if not name.lower().startswith(PREFIX)]


def outcome_headers(request_id: str, outcome: Outcome) -> Headers:
    """The `x-tidegate-*` headers of an answer."""
    pairs: list[tuple[bytes, str | int | None]] = [
        (b"x-tidegate-request-id", request_id),
        (b"x-tidegate-action", outcome.action),
        (b"x-tidegate-strategy", outcome.strategy or None),
        (b"x-tidegate-reason", outcome.reason or None),
        (b"x-tidegate-checkpoint", outcome.checkpoint or None),
        (b"x-tidegate-tokens-before", outcome.tokens_before),
        (b"x-tidegate-tokens-after", outcome.tokens_after),
    ]
    return [(name, str(value).encode()) for name, value in pairs if value is not None]


def error_answer(
    dialect: DialectName | None, status: int, text: str, request_id: str, code: str | None = None
) -> bytes:
    """An error body in the client's own shape; the chat shape where no dialect is spoken."""
    return ANSWERS[dialect or "chat"].error_body(status, text, code=code, request_id=request_id)


def refusal_text(body: bytes) -> tuple[str, str]:
    """(message, code) of a provider's error body, for telling it again inside a stream."""
    try:
        value = loads(body)
    except ValueError:
        return body[:2000].decode("utf-8", "replace").strip() or "The provider refused the request.", ""
    inner = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(inner, dict):
        message, code = inner.get("message"), inner.get("code")
        return (
            message if isinstance(message, str) and message else "The provider refused the request.",
            code if isinstance(code, str) else "",
        )
    return (inner if isinstance(inner, str) else "The provider refused the request."), ""
