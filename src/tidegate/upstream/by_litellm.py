"""A `Client` that asks LiteLLM's SDK in place of a server: for providers that speak no API of ours over HTTP.

Knows LiteLLM's calls, their arguments and what they give and raise; no provider. LiteLLM is imported with the first
request, in a thread: it takes seconds. Made by the gateway for providers whose file says `through = "litellm"`.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from json import JSONDecoder
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from tidegate.engine.effects import UpstreamError
from tidegate.upstream import faults
from tidegate.upstream.client import ListenedAnswer
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers, Request, Timeouts
from tidegate.upstream.pool import Counters
from tidegate.wire import ANSWERS, sse
from tidegate.wire.answers import DONE
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads

PEER: Final = "LiteLLM"
BODY_LIMIT: Final = 64 << 20
"""Bytes of a request's body, unpacked, where no other limit is set: it is held whole, whatever the client asks for."""

_CALLS: Final[Mapping[str, tuple[DialectName, str]]] = {
    "/chat/completions": ("chat", "acompletion"),
    "/responses": ("responses", "aresponses"),
    "/messages": ("messages", "anthropic_messages"),
}
"""By path: the API, and the function of LiteLLM that serves it."""


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


FIELDS: Final[Mapping[DialectName, frozenset[str]]] = {
    "chat": _names(
        "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages "
        "modalities model n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention "
        "reasoning_effort response_format safety_identifier seed service_tier stop store stream stream_options "
        "temperature thinking tool_choice tools top_logprobs top_p user verbosity web_search_options"
    ),
    "responses": _names(
        "background context_management include input instructions max_output_tokens max_tool_calls metadata model "
        "parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention reasoning "
        "safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs "
        "top_p truncation user"
    ),
    "messages": _names(
        "cache_control container context_management inference_geo max_tokens mcp_servers messages metadata model "
        "output_config output_format service_tier speed stop_sequences stream system temperature thinking tool_choice "
        "tools top_k top_p"
    ),
}
"""Fields of a body that are arguments by their own names. All others are LiteLLM's own affair by name (`api_base`,
`mock_response`, …), which is no client's to set: they go into the body that it sends, where it can add to that."""

_NEEDED: Final[Mapping[DialectName, tuple[str, ...]]] = {
    "chat": ("model", "messages"),
    "responses": ("model", "input"),
    "messages": ("model", "messages", "max_tokens"),
}
"""Fields without which LiteLLM's functions can't be called at all."""

_TRACE: Final = "\nTraceback (most recent call last):"
_PASSED: Final = ("retry-after", "retry-after-ms", "x-should-retry")
_CODES: Final = {"ContextWindowExceededError": "context_length_exceeded", "RateLimitError": "rate_limit_exceeded"}
_STATUSES: Final = {"ContextWindowExceededError": 400, "RateLimitError": 429}
"""What such a one means where it keeps the status of an answer whose body was the refusal: 200."""

Json: TypeAlias = dict[str, Any]


class ByLiteLLM:
    """See `Client`. Kept connections are LiteLLM's own."""

    def __init__(
        self,
        *,
        prefix: str = "",
        arguments: Mapping[str, JsonValue] | None = None,
        timeouts: Timeouts | None = None,
        body_limit: int = BODY_LIMIT,
    ) -> None:
        """`prefix` is put before each model's name, unless it is there; `arguments` are added to every call. A body of
        more than `body_limit` bytes is refused."""
        self._body_limit = body_limit
        self._prefix, self._arguments = prefix, dict(arguments or {})
        self._timeouts = timeouts or Timeouts()

    @property
    def timeouts(self) -> Timeouts:
        """See `Client.timeouts`."""
        return self._timeouts

    @property
    def counters(self) -> Counters:
        """None of its own."""
        return Counters(0, 0, 0)

    async def send(self, request: Request, timeouts: Timeouts | None = None, *, again: bool = False) -> SdkAnswer:
        """See `Client.send`. What LiteLLM raises for a provider's answer is that answer; nothing is sent twice."""
        timeouts = timeouts or self._timeouts
        path = urlsplit(request.url).path
        dialect, name = _CALLS.get(path, ("messages" if path.startswith("/messages/") else "chat", ""))
        if not name or request.method != "POST":
            text = f"LiteLLM's SDK is not asked for {request.method} {path}, only for POST to {', '.join(_CALLS)}."
            return _told(404, ANSWERS[dialect].error_body(404, text, code="not_served"))
        try:
            body = await _body(request, self._body_limit)
        except BodyTooLarge:
            text = f"The request body is larger than {self._body_limit} bytes, this gateway's limit."
            return _told(413, ANSWERS[dialect].error_body(413, text))
        if body is None:
            text = "The request's body is no JSON object, so LiteLLM's SDK can't be asked."
            return _told(400, ANSWERS[dialect].error_body(400, text))
        if fault := _fault(dialect, body):
            return _told(400, ANSWERS[dialect].error_body(400, fault))
        litellm = await asyncio.to_thread(imported)
        call = getattr(litellm, name, None)
        if call is None:
            raise UpstreamError(f"The installed LiteLLM has no {name}. Install a newer one.")
        arguments = self._called_with(dialect, body, request.headers, timeouts)
        try:
            async with asyncio.timeout(timeouts.head):
                given = await call(**arguments)
        except TimeoutError:
            raise faults.timed_out(PEER, faults.BEGAN_NOT, timeouts.head) from None
        except Exception as error:
            return _refusal(dialect, error)
        if not hasattr(given, "__aiter__"):
            return _told(200, dumps(_plain(given)))
        return SdkAnswer(200, [(b"content-type", b"text/event-stream")], _events(dialect, given), timeouts.read, given)

    def send_now(
        self, request: Request, listener: Callable[[bool], None], timeouts: Timeouts | None = None
    ) -> ListenedAnswer | None:
        """None: the SDK is to be awaited."""
        return None

    def beside(self, *, max_per_host: int) -> ByLiteLLM:
        """See `Client.beside`."""
        return self

    async def close(self) -> None:
        """Nothing is held here."""

    def _called_with(self, dialect: DialectName, body: JsonObject, headers: Headers, timeouts: Timeouts) -> Json:
        given: Json = {name: value for name, value in body.items() if name in FIELDS[dialect]}
        rest = {name: value for name, value in body.items() if name not in FIELDS[dialect]}
        if rest and dialect != "messages":
            given["extra_body"] = rest
        given |= {"num_retries": 0, "max_retries": 0, "timeout": timeouts.read, **self._arguments}
        model = str(body.get("model", ""))
        given["model"] = model if model.startswith(self._prefix) else self._prefix + model
        if key := _key(headers):
            given["api_key"] = key
        betas = [value.decode("latin-1") for name, value in headers if name.lower() == b"anthropic-beta"]
        if betas and dialect == "messages":
            given["extra_headers"] = {**given.get("extra_headers", {}), "anthropic-beta": ",".join(betas)}
        return given


class SdkAnswer:
    """See `Answer`: made of what the SDK gave."""

    def __init__(
        self, status: int, headers: Headers, pieces: AsyncIterator[bytes], seconds: float, source: object = None
    ) -> None:
        self.status, self.headers = status, headers
        self._pieces, self._seconds, self._source = pieces, seconds, source
        self._over = False

    async def read(self) -> bytes:
        """See `Answer.read`."""
        if self._over:
            return b""
        try:
            async with asyncio.timeout(self._seconds):
                return await anext(self._pieces)
        except StopAsyncIteration:
            self._over = True
            return b""
        except TimeoutError:
            self.abandon()
            raise faults.timed_out(PEER, faults.SENT_NOTHING, self._seconds) from None

    async def read_all(self, limit: int) -> bytes:
        """See `Answer.read_all`."""
        whole = bytearray()
        while piece := await self.read():
            whole += piece
            if len(whole) > limit:
                await self.close()
                raise faults.too_long(limit)
        return bytes(whole)

    async def close(self) -> None:
        """See `Answer.close`: the SDK closes its own connection."""
        if not self._over:
            self._over = True
            await _closed(self._source)

    def abandon(self) -> None:
        """See `Answer.abandon`."""
        if not self._over:
            self._over = True
            task = asyncio.ensure_future(_closed(self._source))
            _closing.add(task)
            task.add_done_callback(_closing.discard)


_closing: set[asyncio.Future[None]] = set()
"""The loop itself holds tasks weakly."""


async def _closed(source: object) -> None:
    close = getattr(source, "aclose", None) or getattr(getattr(source, "completion_stream", None), "aclose", None)
    if close is not None:
        try:
            await close()
        except Exception as error:
            _log.debug("a stream of LiteLLM could not be closed: %s", type(error).__name__)


_log = logging.getLogger("tidegate.steps")


def imported() -> Any:
    """LiteLLM, without what it does on its own: fetching tables, telemetry, logs that quote what was said.

    Raises `UpstreamError` where it is not installed.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    warnings.filterwarnings("ignore", message="Items? .* `ReadOnly` qualifier", category=UserWarning)
    try:
        litellm: Any = importlib.import_module("litellm")
    except ImportError as error:
        missing = error.name in (None, "litellm")
        text = "This provider is reached through LiteLLM's SDK, which " + (
            "is not installed" if missing else f"can't be imported ({error.name} is missing)"
        )
        raise UpstreamError(
            f"{text} where the gateway runs. Install it with: pip install 'tidegate[litellm]'", status=501
        ) from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings")  # it quotes what does not fit
    return litellm


async def _body(request: Request, limit: int) -> JsonObject | None:
    """The request's JSON; None where it is none. Raises `BodyTooLarge`."""
    encodings = [value.decode("latin-1") for name, value in request.headers if name.lower() == b"content-encoding"]
    try:
        raw = await _gathered(request.body, limit)
        read = loads(decode_body(raw, ", ".join(encodings), limit) if encodings else raw)
    except BodyTooLarge:
        raise
    except (ValueError, BodyUnreadable):
        return None
    return read if isinstance(read, dict) else None


def _fault(dialect: DialectName, body: JsonObject) -> str:
    """Why LiteLLM is not asked; empty where nothing is against it."""
    for name in _NEEDED[dialect]:
        if body.get(name) is None:
            return f"The request has no {name}, which LiteLLM's SDK needs."
    if "://" in str(body["model"]):
        return "The model's name has a URL in it, and where LiteLLM's SDK sends to is no client's to say."
    return ""


async def _gathered(body: bytes | AsyncIterable[bytes] | None, limit: int) -> bytes:
    whole = bytearray()
    if body is None or isinstance(body, bytes):
        whole += body or b""
    else:
        async for piece in body:
            whole += piece
            if len(whole) > limit:
                break
    if len(whole) > limit:
        raise BodyTooLarge
    return bytes(whole)


def _key(headers: Headers) -> str:
    """The client's credential, without its scheme; empty where it sends none."""
    named = {name.lower(): value.decode("latin-1").strip() for name, value in headers}
    scheme, _, bearer = named.get(b"authorization", "").partition(" ")
    return named.get(b"x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")


async def _events(dialect: DialectName, stream: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """A stream of the SDK's as the API's own. What is raised in its course is told as the API tells it."""
    try:
        async for chunk in stream:
            yield _event(dialect, chunk)
    except Exception as error:
        if not answered(error):
            raise faults.cut(PEER, headed=True) from None
        status, code = _status(error), _CODES.get(type(error).__name__)
        yield ANSWERS[dialect].error_event(_text(error), status=status, code=code)
        return
    if dialect == "chat":
        yield sse.write(DONE)


def _event(dialect: DialectName, chunk: Any) -> bytes:
    if isinstance(chunk, bytes | str):
        return chunk if isinstance(chunk, bytes) else chunk.encode()
    told = _plain(chunk)
    name = "" if dialect == "chat" or not isinstance(told, dict) else str(told.get("type", ""))
    return sse.write(dumps(told), name)


def _plain(value: object) -> Any:
    """The SDK's objects as JSON has them: what is not set is left out."""
    return msgspec.to_builtins(value, enc_hook=_dumped)


def _dumped(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is nothing that JSON has")
    return dump(exclude_none=True, mode="json", warnings=False)


def answered(error: Exception) -> bool:
    """Whether an exception of the SDK's stands for a provider's answer."""
    return 400 <= _status(error) <= 599


def _status(error: Exception) -> int:
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return status
    told = 502 if getattr(error, "llm_provider", None) else 0  # a provider's words, in what it called no refusal
    return _STATUSES.get(type(error).__name__, told)


def _text(error: Exception) -> str:
    """LiteLLM's words, without the lines of its own code that it adds where it has no name for what went wrong."""
    return str(error).partition(_TRACE)[0]


def _refusal(dialect: DialectName, error: Exception) -> SdkAnswer:
    """The answer that an exception stands for: the provider's own words where they are there, else LiteLLM's.

    Raises `UpstreamError` for one that stands for none. The type alone: its text may quote what was said.
    """
    if not answered(error):
        raise UpstreamError(f"LiteLLM could not make the call: {type(error).__name__}.") from error
    status, text = _status(error), _text(error)
    own = _held(dialect, error) or _embedded(dialect, text)
    code = _CODES.get(type(error).__name__)
    body = dumps(own) if own is not None else ANSWERS[dialect].error_body(status, text, code=code)
    response = getattr(error, "response", None)
    told: dict[str, str] = {}
    for headers in (getattr(error, "litellm_response_headers", None), getattr(response, "headers", None)):
        for name in _PASSED:
            if headers and (value := headers.get(name)):
                told.setdefault(name, str(value))
    return _told(status, body, [(name.encode(), value.encode("latin-1", "replace")) for name, value in told.items()])


def _held(dialect: DialectName, error: Exception) -> JsonObject | None:
    """The provider's own error, where the SDK's exception keeps it read: OpenAI's alone."""
    body = getattr(error, "body", None)
    return {"error": body} if isinstance(body, dict) and "message" in body and dialect != "messages" else None


def _embedded(dialect: DialectName, text: str) -> JsonObject | None:
    """The provider's own error within an exception's text, where it has the shape of that API's."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        read, _ = JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    if not isinstance(read, dict) or not isinstance(read.get("error"), dict):
        return None
    return read if (read.get("type") == "error") is (dialect == "messages") else None


def _told(status: int, body: bytes, headers: Headers | None = None) -> SdkAnswer:
    async def whole() -> AsyncIterator[bytes]:
        yield body

    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(headers or [])]
    return SdkAnswer(status, head, whole(), 60.0)
