"""How each provider words it: an input over the window, a missing key, a wrong one.

Knows wordings as reported in public (see docs/simulator.md); not which profile has which. Read by `profiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.turn import DialectName


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


def _refusal(body: JsonObject, message: str, status: int = 400) -> Refusal:
    return Refusal(message, rule="window", status=status, kind="overflow", shaped=body)


def openai_error(
    message: str, param: str | None, code: str | int | None, kind: str = "invalid_request_error"
) -> JsonObject:
    """OpenAI's error envelope."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _requested(size: Size, what: str = "This model's maximum context length is") -> str:
    return (
        f"{what} {size.window} tokens. However, you requested {size.total} tokens ({size.input} in the messages, "
        f"{size.output} in the completion). Please reduce the length of the messages or completion."
    )


def openai_overflow(size: Size, dialect: DialectName) -> Refusal:
    """OpenAI's, in the words of the API that is spoken."""
    if dialect == "responses":
        text = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return _refusal(openai_error(text, "input", "context_length_exceeded"), text)
    if size.output:
        text = _requested(size)
    else:
        text = (
            f"This model's maximum context length is {size.window} tokens. However, your messages resulted in "
            f"{size.input} tokens. Please reduce the length of the messages."
        )
    return _refusal(openai_error(text, "messages", "context_length_exceeded"), text)


def anthropic_overflow(size: Size, dialect: DialectName) -> Refusal:
    """Anthropic's words for an input over the window."""
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
    return _refusal(openai_error(text, None, "invalid_request_error"), text)


def bedrock_overflow(size: Size, dialect: DialectName) -> Refusal:
    """Amazon's wrapping of Anthropic's words."""
    text = anthropic_overflow(size, dialect).message
    wrapped = f"The model returned the following errors: {text}"
    return _refusal({"__type": "ValidationException", "message": wrapped}, text)


def xai_overflow(size: Size, dialect: DialectName) -> Refusal:
    """xAI's words for an input over the window."""
    text = f"This model's maximum prompt length is {size.window} but the request contains {size.input} tokens."
    return _refusal({"code": "invalid-argument", "error": text}, text)


def openrouter_overflow(size: Size, dialect: DialectName) -> Refusal:
    """OpenRouter's words for an input over the window."""
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


def groq_overflow(size: Size, dialect: DialectName) -> Refusal:
    """Groq's words for an input over the window."""
    text = "Please reduce the length of the messages or completion."
    return _refusal(openai_error(text, "messages", "context_length_exceeded"), text)


def mistral_overflow(size: Size, dialect: DialectName) -> Refusal:
    """Mistral's words for an input over the window."""
    text = (
        f"Prompt contains {size.input} tokens and 0 draft tokens, too large for model with {size.window} maximum "
        "context length"
    )
    body: JsonObject = {"object": "error", "message": text, "type": "invalid_request_invalid_args", "param": None}
    return _refusal(body | {"code": "3051", "raw_status_code": 400}, text)


def deepseek_overflow(size: Size, dialect: DialectName) -> Refusal:
    """DeepSeek's words for an input over the window."""
    text = _requested(size)
    return _refusal(openai_error(text, None, "invalid_request_error"), text)


def ollama_overflow(size: Size, dialect: DialectName) -> Refusal:
    """Ollama's words for an input over the window."""
    if dialect == "messages":
        text = (
            "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust "
            "the context length in settings, or use a model with a longer context length"
        )
        return _refusal({"type": "error", "error": {"type": "invalid_request_error", "message": text}}, text)
    text = f"prompt too long; exceeded max context length by {size.input - size.window} tokens"
    return _refusal({"error": text}, text)


def llamacpp_overflow(size: Size, dialect: DialectName) -> Refusal:
    """llama.cpp's words for an input over the window."""
    text = f"request ({size.input} tokens) exceeds the available context size ({size.window} tokens), try increasing it"
    error: JsonObject = {"code": 400, "message": text, "type": "exceed_context_size_error"}
    return _refusal({"error": error | {"n_prompt_tokens": size.input, "n_ctx": size.window}}, text)


def vllm_overflow(size: Size, dialect: DialectName) -> Refusal:
    """vLLM's words for an input over the window."""
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


OPENAI_NO_KEY = openai_error(
    "You didn't provide an API key. Send it in an Authorization header as a Bearer token.", None, None
)
OPENAI_BAD_KEY = openai_error("Incorrect API key provided.", None, "invalid_api_key")


def azure_overflow(size: Size, dialect: DialectName) -> Refusal:
    """Azure OpenAI's words for an input over the window."""
    text = (
        f"Input tokens exceed the configured limit of {size.window} tokens. Your messages resulted in {size.total} "
        "tokens. Please reduce the length of the messages."
    )
    param = "input" if dialect == "responses" else "messages"
    return _refusal(openai_error(text, param, "context_length_exceeded"), text)


AZURE_BAD_KEY: JsonObject = {
    "error": {
        "code": "401",
        "message": "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a valid "
        "key for an active subscription and use a correct regional API endpoint for your resource.",
    }
}


def anthropic_auth(message: str) -> JsonObject:
    """Anthropic's envelope of a refused key."""
    return {"type": "error", "error": {"type": "authentication_error", "message": message}}


def xai_auth(message: str) -> JsonObject:
    """xAI's flat body of a refused key."""
    return {"code": "Client specified an invalid argument", "error": message}
