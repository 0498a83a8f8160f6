"""One call of litellm as an exchange needs it: a body of the chat API, whose it is, where it goes; and back.

Knows litellm's arguments, answers and exceptions; calls nothing. Called by the two ways of calling.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, cast

import litellm
import msgspec
from litellm.constants import DEFAULT_CHAT_COMPLETION_PARAM_VALUES

from tidegate.client.crossing import Crossing
from tidegate.client.house import House
from tidegate.client.places import Place, place_of
from tidegate.compactors.strategy import Call, Reply
from tidegate.engine.effects import UpstreamError
from tidegate.gateway.credentials import SECRET_WORDS
from tidegate.gateway.messages import PREFIX
from tidegate.gateway.targets import NoProvider
from tidegate.overflow import raised
from tidegate.providers import ModelFacts, ProviderError
from tidegate.upstream.http import Headers
from tidegate.wire.conversation import JsonObject
from tidegate.wire.jsontext import dumps, loads

BODY: Final = frozenset(DEFAULT_CHAT_COMPLETION_PARAM_VALUES) - {
    "additional_drop_params",
    "allowed_openai_params",
    "api_version",
    "context_management",
    "custom_llm_provider",
    "drop_params",
    "extra_headers",
    "max_retries",
    "metadata",
    "model",
}
"""Arguments that are fields of the chat API; all others say how it is called."""

OF_ONE_CALL: Final = frozenset(
    {
        "context_window_fallback_dict",
        "fallbacks",
        "litellm_call_id",
        "litellm_logging_obj",
        "litellm_trace_id",
        "mock_response",
        "proxy_server_request",
        "text_completion",
    }
)
"""Arguments that a summary's call does not take over."""

ELSEWHERE: Final = ("fallbacks", "model_list", "deployments")
"""Arguments by which litellm makes a call of several: each of those comes by again."""

TOLD: Final = "tidegate_headers"
"""Where, in a call's metadata, the hook puts what a client of LiteLLM's proxy said to Tidegate."""

inside: Final[ContextVar[bool]] = ContextVar("tidegate_litellm_inside", default=False)
"""Whether a call is litellm's own, made on the way of one that is looked after already."""


def plain(value: object) -> Any:
    """A value as JSON has it; litellm's and pydantic's objects as litellm sends them. Raises `TypeError`."""
    return msgspec.to_builtins(value, enc_hook=_dumped)


def _dumped(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} is nothing that JSON has")
    return dump(exclude_none=True, mode="json", warnings=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of `litellm.completion` or `acompletion`."""

    kwargs: Mapping[str, Any] = field(repr=False)
    """As they were given."""
    body: JsonObject = field(repr=False)
    raw: bytes = field(repr=False)
    headers: Headers = field(repr=False)
    """The call's own, and what tells one caller from another."""
    place: Place
    llm: str
    """Provider, as litellm names it."""
    model: str
    """Model, as the provider names it."""

    def sending(self, raw: bytes | None, add_headers: Mapping[str, str]) -> dict[str, Any]:
        """The call's arguments, with another body where one is given."""
        sent = dict(self.kwargs)
        mine = sent.get("extra_headers")
        headers = {name: value for name, value in (mine or {}).items() if not name.lower().startswith("x-tidegate-")}
        headers.update(add_headers)
        if headers != (mine or {}):
            sent["extra_headers"] = headers
        if raw is None:
            return sent
        body = loads(raw)
        assert isinstance(body, dict)
        for key in self.body.keys() - body.keys() - {"model"}:
            sent.pop(key, None)
        sent.update({key: value for key, value in body.items() if key != "model" and value != self.body.get(key)})
        return sent

    def calling(self, call: Call) -> dict[str, Any]:
        """Arguments of a summary's call: by the same model's credential, its answer in one piece."""
        body = loads(call.body)
        assert isinstance(body, dict)
        kept = {key: value for key, value in self.sending(None, {}).items() if key not in BODY | OF_ONE_CALL}
        if isinstance(kept.get("metadata"), dict):
            kept["metadata"] = {key: value for key, value in kept["metadata"].items() if key != TOLD}
        model = body.pop("model", None)
        if model not in (None, self.model):
            kept |= {"model": model, "custom_llm_provider": self.llm}
        fields = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
        return {**kept, **fields, "timeout": call.timeout, "drop_params": True}


def asked(kwargs: Mapping[str, Any], house: House) -> Asked | None:
    """A call as an exchange needs it; None for one that is litellm's own affair, or can't be read."""
    if inside.get() or any(kwargs.get(name) for name in ELSEWHERE) or not isinstance(kwargs.get("model"), str):
        return None
    try:
        model, llm, key, base = litellm.get_llm_provider(
            model=kwargs["model"],
            custom_llm_provider=kwargs.get("custom_llm_provider"),
            api_base=kwargs.get("api_base") or kwargs.get("base_url"),
            api_key=kwargs.get("api_key"),
        )
        body: JsonObject = {"model": model, "messages": plain(kwargs["messages"])}
    except Exception:
        # What litellm can't place it refuses in its own words.
        return None
    for name in sorted(BODY & kwargs.keys()):
        try:
            if name != "messages" and kwargs[name] is not None:
                body[name] = plain(kwargs[name])
        except TypeError:
            continue  # a class that describes an answer's shape
    place = place_of(
        "POST", f"{_root(base or kwargs.get('api_base') or kwargs.get('base_url'), llm, house)}/chat/completions"
    )
    assert place is not None
    _tell_window(kwargs, llm, model, place, house)
    return Asked(kwargs, body, dumps(body), _headers(kwargs, key, llm), place, llm, model)


def _root(base: object, llm: str, house: House) -> str:
    if isinstance(base, str) and base.startswith(("http://", "https://")):
        return base.rstrip("/").removesuffix("/chat/completions")
    try:
        provider = house.catalogue.get(llm)
        if "chat" in provider.dialects:
            return house.targets.root(provider, "chat").rstrip("/")
    except (NoProvider, ProviderError):
        pass
    return f"https://{llm}.litellm.invalid"


def _tell_window(kwargs: Mapping[str, Any], llm: str, model: str, place: Place, house: House) -> None:
    """What litellm knows of the model counts less than what the user, a provider's file or the provider itself says."""
    tables = (
        kwargs.get("model_info"),
        litellm.model_cost.get(f"{llm}/{model}"),
        litellm.model_cost.get(model),
    )
    limit = next((size for one in tables if isinstance(one, dict) and (size := one.get("max_input_tokens"))), None)
    if isinstance(limit, int) and limit > 0:
        with house.lock:
            if house.targets.said(place.root, model) is None:
                house.targets.tell(place.root, model, ModelFacts(input_limit=limit))


def _headers(kwargs: Mapping[str, Any], key: object, llm: str) -> Headers:
    """The headers of a request that would come of it, as far as they say whose it is and what Tidegate is told."""
    metadata = {**_table(kwargs.get("litellm_metadata")), **_table(kwargs.get("metadata"))}
    secrets = {name: value for name, value in kwargs.items() if _secret(name, value)}
    secrets.setdefault("api_key", key or litellm.api_key or os.environ.get(f"{llm.upper()}_API_KEY"))
    # A proxy's callers share its credential: their own keys tell them apart.
    secrets["user_api_key"] = metadata.get("user_api_key")
    told = {**_table(metadata.get(TOLD)), **_table(kwargs.get("extra_headers"))}
    return [
        *((str(name).lower().encode("latin-1", "replace"), str(value).encode()) for name, value in told.items()),
        *((f"litellm-{name}".encode(), value.encode()) for name, value in secrets.items() if isinstance(value, str)),
    ]


def _secret(name: str, value: object) -> bool:
    return isinstance(value, str) and bool(value) and any(word.decode() in name.lower() for word in SECRET_WORDS)


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Asking:
    """A call, and what is to become of it."""

    asked: Asked
    crossing: Crossing

    def tell(self, error: UpstreamError) -> NoReturn:
        """Raises what the caller is told: the exception as litellm raised it."""
        cause = error.__cause__
        if isinstance(cause, Exception):
            raise cause from cause.__cause__
        raise litellm.APIConnectionError(message=str(error), llm_provider=self.asked.llm, model=self.asked.model)


class Heard:
    """What litellm gave or raised, as an HTTP answer would have been."""

    def __init__(self, response: Any = None, error: Exception | None = None, *, stream: bool = False) -> None:
        self.response, self.error, self.stream = response, error, stream
        self.status = 200
        self.headers: Headers = [(b"content-type", b"text/event-stream" if stream else b"application/json")]
        self.waiting: deque[bytes] = deque()
        """Pieces to be read next."""
        self.chunks: deque[tuple[int, Any]] = deque()
        """litellm's own chunks that were read, and how many bytes each of them was."""
        if error is not None:
            self.status, body = refused(error)
            self.headers = [(b"content-type", b"application/json"), *_wait(error)]
            self.waiting.append(body)
        elif not stream:
            self.waiting.append(dumps(plain(response)))

    def piece(self, chunk: Any) -> bytes:
        """A chunk of a stream as an event."""
        data = b"data: " + dumps(plain(chunk)) + b"\n\n"
        self.chunks.append((len(data), chunk))
        return data

    def given(self, outcome: Headers) -> Any:
        """The answer as litellm made it, with the headers that tell what happened."""
        hidden = getattr(self.response, "_hidden_params", None)
        if isinstance(hidden, dict):
            told = {name.decode(): value.decode() for name, value in outcome if name.startswith(PREFIX)}
            hidden["additional_headers"] = {**(hidden.get("additional_headers") or {}), **told}
        return self.response


class Passed:
    """Finds litellm's own chunks again in the bytes of a stream that passes."""

    def __init__(self, heard: Heard) -> None:
        self._chunks, self._bytes = heard.chunks, 0

    def of(self, piece: bytes) -> list[Any]:
        """The chunks that are complete with this piece."""
        self._bytes += len(piece)
        found = []
        while self._chunks and self._chunks[0][0] <= self._bytes:
            size, chunk = self._chunks.popleft()
            self._bytes -= size
            found.append(chunk)
        return found


def streamed(response: Any, kind: type[Any], chunks: object, body: object) -> Any:
    """A stream that is litellm's own but for where its chunks come from: of a `kind` that gives `chunks` and ends
    `body`."""
    made = object.__new__(kind)
    made.__dict__ = response.__dict__
    made.__dict__["_tidegate"] = chunks, body
    return made


def answered(error: Exception) -> bool:
    """Whether an exception stands for a provider's answer."""
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and 400 <= status <= 599


def refused(error: Exception) -> tuple[int, bytes]:
    """Status and body of the answer that an exception stands for."""
    status = cast(int, getattr(error, "status_code", 500))
    read = raised.read(error)
    body = read.refusal.body if read is not None else str(error)
    return status, body if isinstance(body, bytes) else body.encode("utf-8", "replace")


def _wait(error: Exception) -> Headers:
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or {}
    return [(name.encode(), headers[name].encode()) for name in ("retry-after",) if name in headers]


def replied(response: Any) -> Reply:
    """A whole answer to a summary's call."""
    return Reply(200, dumps(plain(response)), {"content-type": "application/json"})


def lost(error: Exception) -> Reply:
    """What an exception means to a summary's call. The type alone: a message may quote what it failed on."""
    if not answered(error):
        return Reply(0, error=type(error).__name__)
    status, body = refused(error)
    return Reply(status, body, {"content-type": "application/json"})


def elsewhere(call: Call) -> Reply | None:
    """The answer to a call of an API that litellm is not asked through."""
    return None if call.path == "/chat/completions" else Reply(404, error="litellm is asked for chat completions only")
