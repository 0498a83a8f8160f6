"""What Anthropic's models API tells of a model: its line, its windows, what it can do.

Knows the shape of that answer; which betas a model has is in `betas`. Called by the catalogue.
"""

from __future__ import annotations

from tidegate.simulator.betas import of_model
from tidegate.simulator.context_settings import EDITING, ON_DEMAND, THRESHOLD
from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.settings import SimulatorSettings


def anthropic_model(
    name: str, settings: SimulatorSettings, served: frozenset[str], asked: frozenset[str]
) -> JsonObject:
    """One entry of the models API. `served`: betas of the provider, `asked`: those in the request's header."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "2026-11-30T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": settings.window,
        "max_tokens": settings.max_output or settings.window,
        "capabilities": _capabilities(of_model(name, settings.context) & served, asked & served),
    }


def _capabilities(able: frozenset[str], asked: frozenset[str]) -> JsonObject:
    """`compaction` is told only to those who ask with its beta header."""
    told: JsonObject = {
        name: _support(True)
        for name in ("batch", "citations", "code_execution", "image_input", "pdf_input", "structured_outputs")
    }
    efforts = {name: _support(True) for name in ("low", "medium", "high", "max")}
    told["effort"] = _support(True) | efforts
    told["server_tools"] = _support(False) | {"web_search": _support(False), "code_execution": _support(False)}
    kinds = {name: _support(True) for name in ("adaptive", "enabled")}
    told["thinking"] = _support(True) | {"types": kinds}
    told["context_management"] = _support(bool(able & {EDITING, THRESHOLD})) | {
        "clear_tool_uses_20250919": _support(EDITING in able),
        "clear_thinking_20251015": _support(EDITING in able),
        "compact_20260112": _support(THRESHOLD in able),
    }
    if ON_DEMAND in asked:
        told["compaction"] = _support(ON_DEMAND in able) | {"summarize": _support(ON_DEMAND in able)}
    return told


def _support(supported: bool) -> JsonObject:
    return {"supported": supported}
