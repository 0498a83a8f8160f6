"""Whose rules and words: one row a provider, and the shapes of their refusals.

Knows wordings (as reported in public, see docs/simulator.md) and which quirks each has; called by the app and the
rule modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.turn import DialectName
from tidegate.simulator.wordings import (
    AZURE_BAD_KEY,
    OPENAI_BAD_KEY,
    OPENAI_NO_KEY,
    Overflow,
    Size,
    anthropic_auth,
    anthropic_overflow,
    azure_overflow,
    bedrock_overflow,
    deepseek_overflow,
    groq_overflow,
    llamacpp_overflow,
    mistral_overflow,
    ollama_overflow,
    openai_error,
    openai_overflow,
    openrouter_overflow,
    vllm_overflow,
    xai_auth,
    xai_overflow,
)

__all__ = ["PROFILES", "PROFILE_NAMES", "Profile", "Size", "error_body", "error_type", "profile_for"]

Shape: TypeAlias = Literal["openai", "anthropic", "bedrock", "xai", "openrouter", "mistral", "vllm", "llamacpp"]
CompactPath: TypeAlias = Literal["served", "404", "404-text", "404-json", "405", "501", "502-html"]
"""Whether `/responses/compact` is there, and what says that it is not; `404` is the profile's own."""
Support: TypeAlias = Literal["served", "ignored", "refused"]


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
    compact_path: CompactPath = "404"
    trigger: Support = "refused"
    """What becomes of a `compaction_trigger` item; ignored: the model answers as if it were not there."""
    in_band: Support = "ignored"
    """What becomes of `context_management` on Responses."""
    one_item_replaces_all: bool = False
    """Responses: what stands before a compaction item is gone, and a compaction keeps no message beside it (xAI)."""
    item_aliases: frozenset[str] = frozenset()
    """Other names of the compaction item that are understood."""
    unstored_streams: bool = False
    """Responses: every request must stream and must not be stored; the final event repeats no output (Codex)."""
    prefixes: tuple[str, ...] = ("/v1", "")
    """What may stand before the paths of the APIs."""
    serves: frozenset[str] | None = None
    """The only paths there are, without prefix; None: all that the simulator has."""
    not_found: JsonObject | None = None
    """The body of a 404; None: OpenAI's or Anthropic's."""


_PLAIN_ROLES = frozenset({"system", "user", "assistant", "tool"})

PROFILES: dict[str, Profile] = {
    row.name: row
    for row in (
        Profile(
            "openai",
            "openai",
            openai_overflow,
            OPENAI_NO_KEY,
            OPENAI_BAD_KEY,
            strict_fields=True,
            pairs_reasoning=True,
            compact_path="served",
            trigger="served",
            in_band="served",
        ),
        Profile(
            "codex",
            "openai",
            openai_overflow,
            {"detail": "Unauthorized"},
            {"detail": "Unauthorized"},
            strict_fields=True,
            pairs_reasoning=True,
            compact_path="404-json",
            trigger="served",
            item_aliases=frozenset({"compaction_summary", "context_compaction"}),
            unstored_streams=True,
            prefixes=("/backend-api/codex", ""),
            serves=frozenset({"/responses", "/responses/compact", "/models"}),
            not_found={"detail": "Not Found"},
        ),
        Profile(
            "azure",
            "openai",
            azure_overflow,
            AZURE_BAD_KEY,
            AZURE_BAD_KEY,
            strict_fields=True,
            pairs_reasoning=True,
            compact_path="served",
            in_band="served",
            prefixes=("/openai/v1",),
            not_found={"error": {"code": "404", "message": "Resource not found"}},
        ),
        Profile(
            "anthropic",
            "anthropic",
            anthropic_overflow,
            anthropic_auth("x-api-key header is required"),
            anthropic_auth("invalid x-api-key"),
            strict_fields=True,
        ),
        Profile(
            "vertex",
            "anthropic",
            anthropic_overflow,
            anthropic_auth("Request is missing required authentication credential."),
            anthropic_auth("Request had invalid authentication credentials."),
            strict_fields=True,
        ),
        Profile(
            "foundry",
            "anthropic",
            anthropic_overflow,
            AZURE_BAD_KEY,
            AZURE_BAD_KEY,
            strict_fields=True,
        ),
        Profile(
            "bedrock",
            "bedrock",
            bedrock_overflow,
            {"message": "Missing Authentication Token"},
            {"message": "The security token included in the request is invalid."},
            auth_status=403,
            strict_fields=True,
        ),
        Profile(
            "compatible",
            "anthropic",
            anthropic_overflow,
            anthropic_auth("x-api-key header is required"),
            anthropic_auth("invalid x-api-key"),
        ),
        Profile(
            "xai",
            "xai",
            xai_overflow,
            xai_auth("No API key was given."),
            xai_auth("Incorrect API key provided. You can obtain an API key from https://console.x.ai."),
            auth_status=400,
            compact_path="served",
            one_item_replaces_all=True,
        ),
        Profile(
            "openrouter",
            "openrouter",
            openrouter_overflow,
            {"error": {"message": "No auth credentials found", "code": 401}},
            {"error": {"message": "User not found.", "code": 401}},
            counts_output=True,
            reasoning_field="reasoning",
        ),
        Profile(
            "groq",
            "openai",
            groq_overflow,
            openai_error("Invalid API Key", None, "invalid_api_key"),
            openai_error("Invalid API Key", None, "invalid_api_key"),
            strict_fields=True,
            counts_output=True,
        ),
        Profile(
            "mistral",
            "mistral",
            mistral_overflow,
            {"message": "Unauthorized"},
            {"message": "Unauthorized"},
            strict_fields=True,
            alternates=True,
            roles=_PLAIN_ROLES,
        ),
        Profile(
            "deepseek",
            "openai",
            deepseek_overflow,
            openai_error(
                "Authentication Fails (auth header required)", None, "invalid_request_error", "authentication_error"
            ),
            openai_error("Authentication Fails (no such user)", None, "invalid_request_error", "authentication_error"),
            counts_output=True,
            roles=_PLAIN_ROLES,
            reasoning_field="reasoning_content",
            trigger="ignored",
        ),
        Profile(
            "ollama",
            "openai",
            ollama_overflow,
            {},
            {"error": "unauthorized"},
            needs_key=False,
            silent_truncation=True,
            compact_path="served",
        ),
        Profile(
            "llamacpp",
            "llamacpp",
            llamacpp_overflow,
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
            vllm_overflow,
            {},
            {"error": "Unauthorized"},
            needs_key=False,
            counts_output=True,
            reasoning_field="reasoning_content",
            compact_path="404-json",
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
    if profile.shape == "bedrock":
        if status != 400 or refusal.kind == "path":
            return {"message": message}
        return {"__type": "ValidationException", "message": f"The model returned the following errors: {message}"}
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
            return openai_error(message, refusal.param, refusal.code, kind)


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
