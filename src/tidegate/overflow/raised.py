"""Reads the exceptions of client libraries as the refusals they carry, by names and attributes: none is imported.

Knows where openai, anthropic, litellm, httpx, httpx2, botocore and their like keep an answer's status, body and
headers; judges nothing. Called by `tidegate.classify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from tidegate.overflow.verdict import Refusal

_MOST_CAUSES = 12
_NO_ANSWER = frozenset(
    {
        "APIConnectionError", "APITimeoutError", "TransportError", "TimeoutException", "HTTPClientError",
        "ConnectionError", "TimeoutError", "ConnectTimeoutError", "ReadTimeoutError",
        "ClientConnectionError", "ServerTimeoutError",
    }
)  # fmt: skip
"""Classes, by name, of what is raised when no answer came."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception, read: the refusal in it, whose it is, and where it was asked for."""

    refusal: Refusal
    url: str = ""
    provider: str = ""
    """As LiteLLM names it."""
    model: str = ""
    no_answer: bool = False
    """The connection failed or took too long; the refusal's body is then the exception's own text."""


def read(error: BaseException) -> Raised:
    """The refusal in an exception, or in the first of its causes that has one; else its text, without a status.

    Never raises, whatever an attribute does. A body that a client did not read from its stream is taken from the parsed
    `body` it keeps, or from the exception's text.
    """
    for candidate in _causes(error):
        raised = _read(candidate)
        if raised is not None:
            return raised
    no_answer = _is_no_answer(error)
    # Of a timeout nobody has said anything; LiteLLM makes connection errors of refusals, whose words are in the text.
    return Raised(Refusal(None, "" if no_answer and _is_timeout(error) else _text(error)), no_answer=no_answer)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, then what it was raised for or while handling, nearest first."""
    waiting: list[object] = [error]
    seen: list[BaseException] = []
    while waiting and len(seen) < _MOST_CAUSES:
        candidate = waiting.pop(0)
        if not isinstance(candidate, BaseException) or any(candidate is one for one in seen):
            continue
        seen.append(candidate)
        yield candidate
        waiting += (_attribute(candidate, "original_exception"), candidate.__cause__)
        if not candidate.__suppress_context__:
            waiting.append(candidate.__context__)
        grouped = _attribute(candidate, "exceptions")
        if isinstance(grouped, tuple):
            waiting += grouped
        if attempt := _attribute(candidate, "last_attempt"):
            waiting.append(_attribute(attempt, "_exception"))


def _read(error: BaseException) -> Raised | None:
    """What an exception says by itself; None where it is no client's answer."""
    completion = _attribute(error, "completion")
    if completion is not None and (dump := _called(completion, "model_dump_json")) is not None:
        return Raised(Refusal(200, dump))  # a whole answer that the client could not use
    response = _attribute(error, "response")
    status = _status(error, response)
    body = _body(error, response)
    if status is None and body is None:
        return None
    litellm = _module(error) == "litellm"
    if litellm or body is None:
        body = _beside(_text(error), body)
    in_stream = _is_event(error, response, status)
    return Raised(
        Refusal(200 if in_stream and status is None else status, body, _headers(response), in_stream),
        url=_url(error, response),
        provider=_word(error, "llm_provider") if litellm else "",
        model=_word(error, "model") if litellm else "",
        no_answer=status is None and _is_no_answer(error),
    )


def _status(error: BaseException, response: object) -> int | None:
    if isinstance(response, Mapping):  # botocore
        metadata = response.get("ResponseMetadata")
        number = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
        return number if _is_status(number) else None
    for holder, name in (
        (error, "status_code"), (response, "status_code"), (error, "status"), (response, "status"),
        (error, "http_status"), (error, "code"),
    ):  # fmt: skip
        number = _attribute(holder, name)
        if isinstance(number, int) and _is_status(number):
            return int(number)
    return None


def _is_status(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 100 <= number <= 599


def _body(error: BaseException, response: object) -> bytes | str | None:
    """The answer's body as it came, else as the client parsed it; None where there is none."""
    if isinstance(response, Mapping):
        return _json(response)
    for holder, name in ((response, "content"), (response, "text"), (error, "body"), (error, "details")):
        value = _attribute(holder, name)
        if isinstance(value, bytes | str) and value:
            return value
        if isinstance(value, Mapping | list) and value:
            wrapped = isinstance(value, Mapping) and not ("error" in value or "errors" in value)
            return _json({"error": value} if wrapped else value)
    return None


def _beside(text: str, body: bytes | str | None) -> str:
    """An exception's text, and the body in it where there is one."""
    if not body:
        return text
    raw = body if isinstance(body, str) else body.decode("utf-8", "replace")
    return _json({"error": {"message": text, "metadata": {"raw": raw}}})


def _is_event(error: BaseException, response: object, status: int | None) -> bool:
    """Raised for an event inside a stream that began with 200."""
    if type(error).__name__ == "EventStreamError":
        return True
    if status is not None:
        return status < 400
    return _attribute(error, "request") is not None or isinstance(response, Mapping)


def _is_no_answer(error: BaseException) -> bool:
    return any(kind.__name__ in _NO_ANSWER for kind in type(error).__mro__)


def _is_timeout(error: BaseException) -> bool:
    return any(kind.__name__ in _NO_ANSWER and "Timeout" in kind.__name__ for kind in type(error).__mro__)


def _headers(response: object) -> Mapping[str, str] | None:
    holder: object = response
    if isinstance(response, Mapping):
        holder = response.get("ResponseMetadata")
        headers = holder.get("HTTPHeaders") if isinstance(holder, Mapping) else None
    else:
        headers = _attribute(holder, "headers")
    if not isinstance(headers, Mapping):
        return None
    try:
        return {str(name): str(value) for name, value in headers.items()}
    except Exception:
        return None


def _url(error: BaseException, response: object) -> str:
    for holder in (error, response):
        url = _attribute(_attribute(holder, "request"), "url")
        if url is not None:
            return _text(url)
    return ""


def _module(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _word(error: BaseException, name: str) -> str:
    value = _attribute(error, name)
    return value if isinstance(value, str) else ""


def _attribute(holder: object, name: str) -> object:
    """An attribute, None where there is none or it can't be read (a stream that was not)."""
    if holder is None:
        return None
    try:
        value: object = getattr(holder, name, None)
    except Exception:
        return None
    return value


def _called(holder: object, name: str) -> str | None:
    method = _attribute(holder, name)
    try:
        value = method() if callable(method) else None
    except Exception:
        return None
    return value if isinstance(value, str) else None


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return type(value).__name__


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_text).decode()
    except Exception:
        return _text(value)
