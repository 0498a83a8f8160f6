"""The small answers: lists of models with their window, token counts, paths that do not exist.

Called by the app.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.simulator import betas, tokens
from tidegate.simulator.capabilities import anthropic_model
from tidegate.simulator.chat import CREATED
from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.profiles import Profile
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.settings import SimulatorSettings
from tidegate.simulator.transport import Exchange
from tidegate.simulator.turn import Turn

_WINDOW_FIELDS = {
    "openrouter": "context_length",
    "vllm": "max_model_len",
    "mistral": "max_context_length",
    "xai": "context_length",
}
"""Where each provider's model list tells the window; others here say `context_window`."""


def models(path: str, settings: SimulatorSettings, profile: Profile, headers: Mapping[str, str]) -> JsonObject:
    """The list of models, or one of them for `/models/{id}`. Raises `Refusal` for one that does not exist."""
    anthropic = "anthropic-version" in headers
    wanted = path.removeprefix("/models").lstrip("/")
    names = settings.models or ("simulated",)
    if wanted.startswith("claude-") and not settings.models:
        names = (wanted,)
    served = settings.context.habits(profile.name).betas
    asked = betas.asked(headers.get("anthropic-beta", ""))
    entries = [
        anthropic_model(name, settings, served, asked) if anthropic else _model(name, settings, profile)
        for name in names
    ]
    if wanted:
        for entry in entries:
            if entry["id"] == wanted:
                return entry
        text = f"model: {wanted}" if anthropic else f"The model '{wanted}' does not exist"
        kind = "not_found_error" if anthropic else "invalid_request_error"
        raise Refusal(text, rule="model", status=404, kind="path", type=kind, code="model_not_found")
    if anthropic:
        return {"data": entries, "has_more": False, "first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": entries}


def counted(turn: Turn, factor: float) -> JsonObject:
    """The answer of a counting endpoint."""
    if turn.dialect != "messages":
        return {"object": "response.input_tokens", "input_tokens": turn.input_tokens}
    told: JsonObject = {"input_tokens": turn.input_tokens}
    if turn.managed is not None and turn.managed.applied is not None:
        told["context_management"] = {"original_input_tokens": tokens.scale(turn.managed.original, factor)}
    return told


def no_such_path(exchange: Exchange, known: bool, profile: Profile) -> Refusal:
    """The refusal of a path that is not served, or of a method other than POST on one that is."""
    anthropic = "anthropic-version" in exchange.headers or "/messages" in exchange.path
    if exchange.headers.get("upgrade", "").lower() == "websocket":
        return Refusal("WebSockets are not served here.", rule="path", status=426, kind="path")
    if known:
        return Refusal("Method Not Allowed", rule="path", status=405, kind="path", headers={"allow": "POST"})
    if profile.not_found is not None:
        return Refusal("Not Found", rule="path", status=404, kind="path", shaped=profile.not_found)
    if anthropic:
        return Refusal("Not found", rule="path", status=404, kind="path", type="not_found_error")
    return Refusal(f"Invalid URL ({exchange.method} {exchange.path})", rule="path", status=404, kind="path")


def _model(name: str, settings: SimulatorSettings, profile: Profile) -> JsonObject:
    entry: JsonObject = {"id": name, "object": "model", "created": CREATED, "owned_by": "simulator"}
    if profile.name == "llamacpp":
        return entry | {"meta": {"n_ctx": settings.window, "n_ctx_train": max(settings.window, 131_072)}}
    entry[_WINDOW_FIELDS.get(profile.name, "context_window")] = settings.window
    return entry
