"""Whose rules and words: one row a provider, and the shapes of their refusals.

Knows wordings (as reported in public, see docs/simulator.md) and which quirks each has; called by the app and the
rule modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.turn import DialectName

Shape: TypeAlias = Literal["openai", "anthropic", "xai", "openrouter", "mistral", "vllm", "llamacpp"]


@dataclass(frozen=True, slots=True)
class Size:
    """A request against the window, in real tokens. `tools` is the part of `input` that tool definitions take."""

    input: int
    window: int
    output: int = 0
    tools: int = 0

    @property
    def total(self) -> int:
        """Tokens in and out."""
        return self.input + self.output


Overflow: TypeAlias = Callable[[Size, DialectName], Refusal]


@dataclass(frozen=True, slots=True)
class Profile:
    """A provider's habits."""

    name: str
    shape: Shape
    overflow: Overflow
    unauthorized: JsonObject
    wrong_key: JsonObject
    auth_status: int = 401
    needs_key: bool = True
    strict_fields: bool = False
    counts_output: bool = False
    refuses_exact_fit: bool = False
    """A prompt of exactly the window's size is refused too (llama.cpp)."""
    silent_truncation: bool = False
    alternates: bool = False
    """Chat roles must alternate user and assistant, tool rounds aside, after one optional system message."""
    roles: frozenset[str] = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
    reasoning_field: str = ""
    """Where a chat answer puts its thinking; empty: nowhere."""
    pairs_reasoning: bool = False
    """Responses: a reasoning item and the output made beside it must stay together."""


def _refusal(body: JsonObject, message: str, status: int = 400) -> Refusal:
    return Refusal(message, rule="window", status=status, kind="overflow", shaped=body)


def _openai_error(
    message: str, param: str | None, code: str | int | None, kind: str = "invalid_request_error"
) -> JsonObject:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _requested(size: Size, what: str = "This model's maximum context length is") -> str:
    return (
        f"{what} {size.window} tokens. However, you requested {size.total} tokens ({size.input} in the messages, "
        f"{size.output} in the completion). Please reduce the length of the messages or completion."
    )


def _openai_overflow(size: Size, dialect: DialectName) -> Refusal:
    if dialect == "responses":
        text = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return _refusal(_openai_error(text, "input", "context_length_exceeded"), text)
    if size.output:
        text = _requested(size)
    else:
        text = (
            f"This model's maximum context length is {size.window} tokens. However, your messages resulted in "
            f"{size.input} tokens. Please reduce the length of the messages."
        )
    return _refusal(_openai_error(text, "messages", "context_length_exceeded"), text)


def _anthropic_overflow(size: Size, dialect: DialectName) -> Refusal:
    if size.input > size.window or not size.output:
        text = f"prompt is too long: {size.input} tokens > {size.window} maximum"
    else:
        text = (
            f"input length and `max_tokens` exceed context limit: {size.input} + {size.output} > {size.window}, "
            "decrease input length or `max_tokens` and try again"
        )
    error: JsonObject = {"type": "invalid_request_error", "message": text}
    if dialect == "messages":
        return _refusal({"type": "error", "error": error}, text)
    return _refusal(_openai_error(text, None, "invalid_request_error"), text)


def _xai_overflow(size: Size, dialect: DialectName) -> Refusal:
    text = f"This model's maximum prompt length is {size.window} but the request contains {size.input} tokens."
    return _refusal({"code": "invalid-argument", "error": text}, text)


def _openrouter_overflow(size: Size, dialect: DialectName) -> Refusal:
    parts = [(size.input - size.tools, "of text input"), (size.tools, "of tool input"), (size.output, "in the output")]
    told = ", ".join(f"{count} {what}" for count, what in parts if count)
    text = (
        f"This endpoint's maximum context length is {size.window} tokens. However, you requested about {size.total} "
        f"tokens ({told}). Please reduce the length of either one, or use the context-compression plugin to compress "
        "your prompt automatically."
    )
    if dialect == "messages":
        return _refusal({"type": "error", "error": {"type": "invalid_request_error", "message": text}}, text)
    return _refusal({"error": {"message": text, "code": 400}}, text)


def _groq_overflow(size: Size, dialect: DialectName) -> Refusal:
    text = "Please reduce the length of the messages or completion."
    return _refusal(_openai_error(text, "messages", "context_length_exceeded"), text)


def _mistral_overflow(size: Size, dialect: DialectName) -> Refusal:
    text = (
        f"Prompt contains {size.input} tokens and 0 draft tokens, too large for model with {size.window} maximum "
        "context length"
    )
    body: JsonObject = {"object": "error", "message": text, "type": "invalid_request_invalid_args", "param": None}
    return _refusal(body | {"code": "3051", "raw_status_code": 400}, text)


def _deepseek_overflow(size: Size, dialect: DialectName) -> Refusal:
    text = _requested(size)
    return _refusal(_openai_error(text, None, "invalid_request_error"), text)


def _ollama_overflow(size: Size, dialect: DialectName) -> Refusal:
    if dialect == "messages":
        text = (
            "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust "
            "the context length in settings, or use a model with a longer context length"
        )
        return _refusal({"type": "error", "error": {"type": "invalid_request_error", "message": text}}, text)
    text = f"prompt too long; exceeded max context length by {size.input - size.window} tokens"
    return _refusal({"error": text}, text)


def _llamacpp_overflow(size: Size, dialect: DialectName) -> Refusal:
    text = f"request ({size.input} tokens) exceeds the available context size ({size.window} tokens), try increasing it"
    error: JsonObject = {"code": 400, "message": text, "type": "exceed_context_size_error"}
    return _refusal({"error": error | {"n_prompt_tokens": size.input, "n_ctx": size.window}}, text)


def _vllm_overflow(size: Size, dialect: DialectName) -> Refusal:
    if dialect == "responses":
        text = f"The engine prompt length {size.input} exceeds the max_model_len {size.window}. Please reduce prompt."
        return _refusal({"message": text, "type": "invalid_request_error", "param": "input", "code": 400}, text)
    # vLLM stops counting as soon as the limit is passed: the number is a floor, not the prompt's size.
    least = min(size.input, max(size.window - size.output, 0) + 1)
    text = (
        f"This model's maximum context length is {size.window} tokens. However, you requested {size.output} output "
        f"tokens and your prompt contains at least {least} input tokens, for a total of at least "
        f"{least + size.output} tokens. Please reduce the length of the input prompt or the number of requested output "
        f"tokens. (parameter=input_tokens, value={least})"
    )
    error: JsonObject = {"message": text, "type": "BadRequestError", "param": "input_tokens", "code": 400}
    if dialect == "messages":
        return _refusal({"type": "error", "error": {"type": "BadRequestError", "message": text}}, text)
    return _refusal({"error": error}, text)


_OPENAI_NO_KEY = _openai_error(
    "You didn't provide an API key. Send it in an Authorization header as a Bearer token.", None, None
)
_OPENAI_BAD_KEY = _openai_error("Incorrect API key provided.", None, "invalid_api_key")
_PLAIN_ROLES = frozenset({"system", "user", "assistant", "tool"})


def _anthropic_auth(message: str) -> JsonObject:
    return {"type": "error", "error": {"type": "authentication_error", "message": message}}


def _xai_auth(message: str) -> JsonObject:
    return {"code": "Client specified an invalid argument", "error": message}


PROFILES: dict[str, Profile] = {
    row.name: row
    for row in (
        Profile(
            "openai",
            "openai",
            _openai_overflow,
            _OPENAI_NO_KEY,
            _OPENAI_BAD_KEY,
            strict_fields=True,
            pairs_reasoning=True,
        ),
        Profile(
            "anthropic",
            "anthropic",
            _anthropic_overflow,
            _anthropic_auth("x-api-key header is required"),
            _anthropic_auth("invalid x-api-key"),
            strict_fields=True,
        ),
        Profile(
            "xai",
            "xai",
            _xai_overflow,
            _xai_auth("No API key was given."),
            _xai_auth("Incorrect API key provided. You can obtain an API key from https://console.x.ai."),
            auth_status=400,
        ),
        Profile(
            "openrouter",
            "openrouter",
            _openrouter_overflow,
            {"error": {"message": "No auth credentials found", "code": 401}},
            {"error": {"message": "User not found.", "code": 401}},
            counts_output=True,
            reasoning_field="reasoning",
        ),
        Profile(
            "groq",
            "openai",
            _groq_overflow,
            _openai_error("Invalid API Key", None, "invalid_api_key"),
            _openai_error("Invalid API Key", None, "invalid_api_key"),
            strict_fields=True,
            counts_output=True,
        ),
        Profile(
            "mistral",
            "mistral",
            _mistral_overflow,
            {"message": "Unauthorized"},
            {"message": "Unauthorized"},
            strict_fields=True,
            alternates=True,
            roles=_PLAIN_ROLES,
        ),
        Profile(
            "deepseek",
            "openai",
            _deepseek_overflow,
            _openai_error(
                "Authentication Fails (auth header required)", None, "invalid_request_error", "authentication_error"
            ),
            _openai_error("Authentication Fails (no such user)", None, "invalid_request_error", "authentication_error"),
            counts_output=True,
            roles=_PLAIN_ROLES,
            reasoning_field="reasoning_content",
        ),
        Profile(
            "ollama", "openai", _ollama_overflow, {}, {"error": "unauthorized"}, needs_key=False, silent_truncation=True
        ),
        Profile(
            "llamacpp",
            "llamacpp",
            _llamacpp_overflow,
            {},
            {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}},
            needs_key=False,
            refuses_exact_fit=True,
            alternates=True,
            reasoning_field="reasoning_content",
        ),
        Profile(
            "vllm",
            "vllm",
            _vllm_overflow,
            {},
            {"error": "Unauthorized"},
            needs_key=False,
            counts_output=True,
            reasoning_field="reasoning_content",
        ),
    )
}
PROFILE_NAMES = ("auto", *PROFILES)


def profile_for(name: str, dialect: DialectName) -> Profile:
    """The profile of a request; `auto` is the maker of the API being spoken."""
    if name == "auto":
        return PROFILES["anthropic" if dialect == "messages" else "openai"]
    return PROFILES[name]


_XAI_CODES = {400: "invalid-argument", 401: "unauthenticated", 403: "permission_denied", 404: "not-found"}
_XAI_LATER = {422: "invalid-argument", 429: "resource-exhausted", 503: "unavailable"}


def error_body(profile: Profile, dialect: DialectName, refusal: Refusal, request_id: str) -> JsonObject:
    """The refusal as this provider writes it on this API."""
    if refusal.shaped is not None:
        body = dict(refusal.shaped)
        if dialect == "messages" and body.get("type") == "error":
            body["request_id"] = request_id
        return body
    message, kind, status = refusal.message, refusal.type, refusal.status
    if dialect == "messages" and profile.shape not in ("llamacpp", "vllm"):
        error: JsonObject = {"type": kind, "message": message}
        if refusal.details:
            error["details"] = refusal.details
        return {"type": "error", "error": error, "request_id": request_id}
    match profile.shape:
        case "xai":
            return {"code": (_XAI_CODES | _XAI_LATER).get(status, "internal"), "error": message}
        case "openrouter":
            return {"error": {"message": message, "code": status}}
        case "mistral":
            code = refusal.code if refusal.code is not None else "3051"
            return {"object": "error", "message": message, "type": kind, "param": refusal.param, "code": code}
        case "vllm":
            kind = "BadRequestError" if kind == "invalid_request_error" else kind
            if dialect == "messages":
                return {"type": "error", "error": {"type": kind, "message": message}}
            return {"error": {"message": message, "type": kind, "param": refusal.param, "code": status}}
        case "llamacpp":
            return {"error": {"code": status, "message": message, "type": kind}}
        case _:
            return _openai_error(message, refusal.param, refusal.code, kind)


_OPENAI_TYPES = {401: "invalid_request_error", 429: "rate_limit_exceeded", 404: "invalid_request_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_type(dialect: DialectName, status: int) -> str:
    """The error type that goes with a status on this API."""
    if dialect == "messages":
        return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
