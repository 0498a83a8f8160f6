"""Which headers pass, and the gateway's own headers and error texts.

Knows names and shapes; no sockets. Called by what answers a client and by what asks an upstream.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate

from tidegate.engine.effects import Outcome, UpstreamError
from tidegate.upstream.http import Headers, lower, stopped
from tidegate.wire.conversation import Conversation, DialectName
from tidegate.wire.jsontext import loads
from tidegate.wire.own_compaction import own_compaction

PREFIX = b"x-tidegate-"
BYPASS = b"x-tidegate-bypass"

NOT_FORWARDED = frozenset({b"host", b"content-length", b"expect"})
"""Request headers that belong to one hop, beside those HTTP names."""

BODY_BOUND = frozenset(
    {b"content-encoding", b"content-md5", b"content-digest", b"repr-digest", b"digest", b"idempotency-key"}
)
"""Request headers that speak of the body's very bytes, or name the request for good: only the client's own has them."""

_PLAIN = (b"accept-encoding", b"identity")

NO = frozenset({b"", b"0", b"false", b"no", b"off"})


def forwarded(headers: Headers) -> Headers:
    """A client's headers, named in lower case, as they go upstream: hop-by-hop ones, the host's, Tidegate's own left
    out."""
    dropped = stopped(headers) | NOT_FORWARDED
    return [(name, value) for name, value in headers if name not in dropped and not name.startswith(PREFIX)]


def readable(headers: Headers) -> Headers:
    """The same, asking for an answer that isn't compressed, so that it can be read as it passes."""
    for place, (name, _) in enumerate(headers):
        if name == b"accept-encoding":
            kept = [(name, value) for name, value in headers[place + 1 :] if name != b"accept-encoding"]
            return [*headers[:place], _PLAIN, *kept]
    return [*headers, _PLAIN]


def unbound(headers: Headers) -> Headers:
    """The headers as they go with another body than the client's."""
    return [(name, value) for name, value in headers if name not in BODY_BOUND]


def returned(status: int, headers: Headers) -> Headers:
    """An upstream's headers as they go to the client."""
    lowered = [(lower(name), value) for name, value in headers]
    dropped = stopped(lowered)
    if status in (204, 304):
        # A 304 may tell the length of what it leaves out; the server would wait for that many bytes.
        dropped |= {b"content-length"}
    return [(name, value) for name, value in lowered if name not in dropped and not name.startswith(PREFIX)]


def outcome_headers(request_id: str, outcome: Outcome) -> Headers:
    """The `x-tidegate-*` headers of an answer."""
    headers = [(b"x-tidegate-request-id", request_id.encode()), (b"x-tidegate-action", outcome.action.encode())]
    if outcome.strategy:
        headers.append((b"x-tidegate-strategy", outcome.strategy.encode()))
    if outcome.reason:
        headers.append((b"x-tidegate-reason", outcome.reason.encode()))
    if outcome.checkpoint:
        headers.append((b"x-tidegate-checkpoint", outcome.checkpoint.encode()))
    if outcome.tokens_before is not None:
        headers.append((b"x-tidegate-tokens-before", b"%d" % outcome.tokens_before))
    if outcome.tokens_after is not None:
        headers.append((b"x-tidegate-tokens-after", b"%d" % outcome.tokens_after))
    if outcome.compaction_input_tokens or outcome.compaction_output_tokens:
        headers += [
            (b"x-tidegate-compaction-input-tokens", b"%d" % outcome.compaction_input_tokens),
            (b"x-tidegate-compaction-output-tokens", b"%d" % outcome.compaction_output_tokens),
        ]
    return headers


def answer_headers(status: int, headers: Headers, request_id: str, outcome: Outcome) -> Headers:
    """The headers that an upstream's answer begins with here. Raises `UpstreamError` for a status that HTTP does not
    have."""
    if not 200 <= status <= 599:
        raise UpstreamError(f"The upstream answered with status {status}. Check that the URL is that of the API.")
    return returned(status, headers) + outcome_headers(request_id, outcome)


def own_headers(request_id: str, reason: str = "") -> Headers:
    """The headers of an answer that is the gateway's own: nothing was relayed, so it has no action."""
    told = [(b"x-tidegate-reason", reason.encode())] if reason else []
    return [
        (b"date", formatdate(usegmt=True).encode()),
        (b"x-tidegate-request-id", request_id.encode()),
        *told,
    ]


def bypasses(asked: bytes) -> bool:
    """Whether a client that sent `BYPASS` with this value wants its request left alone."""
    return asked.strip().lower() not in NO


def hands_off(asked: bytes | None, conversation: Conversation, headers: Mapping[str, str]) -> str:
    """Why a request must pass untouched, empty for no reason. `asked` is the value of `BYPASS`, None where the client
    did not send it; `headers` are its own, in lower case."""
    if asked is not None and bypasses(asked):
        return "bypassed"
    return "own_compaction" if own_compaction(conversation, headers) else ""


def spoken(headers: Mapping[str, str]) -> DialectName:
    """Whose errors and defaults a client expects where the path does not say: Anthropic's clients are known by their
    headers."""
    return "messages" if "anthropic-version" in headers or "x-api-key" in headers else "chat"


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
