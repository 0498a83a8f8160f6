"""What the answers of all three APIs have in common: reading JSON leniently, and how a 200 says it failed.

Knows the error shapes of providers, not the content of an answer. Called by the three answer modules and
`watch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tidegate.wire.conversation import JsonObject, JsonValue
from tidegate.wire.jsontext import loads
from tidegate.wire.signals import Signal
from tidegate.wire.sse import Event, Reader

DONE: Final = b"[DONE]"

_SPACE: Final = b" \t\r\n\xef\xbb\xbf"
_JSON_STARTS: Final = (b"{", b"[")
_SSE_STARTS: Final = (b"data", b"event", b":", b"id", b"retry")


def is_json(body: bytes) -> bool | None:
    """Whether these first bytes of an answer begin JSON rather than an event stream; None where they don't
    tell yet."""
    first = body.lstrip(_SPACE)[:1]
    return first in _JSON_STARTS if first else None


def looks_like_sse(body: bytes) -> bool:
    """Whether these first bytes of an answer could begin an event stream."""
    start = body.lstrip(_SPACE)[:5]
    return any(start.startswith(field) or field.startswith(start) for field in _SSE_STARTS)


def read_object(data: bytes) -> JsonObject | None:
    """The JSON object these bytes are, None where they are none. Never raises."""
    try:
        value = loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def unreadable(event: Event) -> Signal:
    """What an event means whose data is no JSON object: content, unless named an error or cut by the stream's
    end."""
    if event.unterminated or not event.data.strip():
        return Signal("ignored")
    return Signal("error", error=event.data) if event.name == "error" else Signal("content")


def events_of(body: bytes) -> Iterator[Event]:
    """The events of a whole stream, comments left out."""
    reader = Reader()
    for event in (*reader.feed(body), *reader.close()):
        if not event.comment:
            yield event


def count(fields: JsonObject, key: str) -> int:
    """A token count, 0 where it is absent, null, negative or no number."""
    value = fields.get(key)
    number = int(value) if isinstance(value, float) else value
    return int(number) if isinstance(number, int) and number > 0 else 0


def joined(pieces: Iterable[str]) -> str:
    """Deltas as one text. A pair of surrogates that was cut in two by the deltas is a character again."""
    text = "".join(pieces)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def failed(body: JsonObject, content: str) -> bool:
    """Whether a JSON object under a 200 says that the call failed; `content` is the key an answer would have.

    Shapes: `{"error": …}` of any kind (OpenAI, Anthropic, Ollama, xAI's string), OpenRouter's and llama.cpp's
    bare `{"code", "message"}`, MiniMax's `base_resp.status_code`, Baidu's `error_code`, Vercel's
    `error_type`, FastAPI's `{"detail"}`.
    """
    if body.get("error") or body.get("type") == "error" or _refused(body.get("base_resp")):
        return True
    if isinstance(body.get(content), list):
        return False
    if "message" in body and ("code" in body or body.get("object") == "error"):
        return True
    return any(body.get(key) for key in ("error_code", "error_type", "error_msg", "detail"))


def _refused(base_resp: JsonValue) -> bool:
    return isinstance(base_resp, dict) and bool(base_resp.get("status_code"))


OPENAI_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    426: "invalid_request_error",
    429: "rate_limit_error",
}
"""`error.type` by status, as OpenAI and the servers that follow it name them."""


def openai_error(status: int, message: str, code: str | None) -> JsonObject:
    """OpenAI's error object (platform.openai.com/docs/guides/error-codes), the same for chat and
    Responses."""
    kind = OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": None, "code": code}
