"""Reads what the APIs of servers and providers, and litellm's table, tell of models' windows.

Knows their answers' fields; makes no request (`providers` says what to ask) and believes no size a window can't have.
Called by the gateway and by `providers`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.overflow.learned import LARGEST, SMALLEST
from tidegate.wire.conversation import JsonObject, JsonValue

Api: TypeAlias = Literal["models", "anthropic", "props", "show", "ps", "litellm"]
"""`models`: a list of models in OpenAI's form, with whatever sizes vLLM, OpenRouter, llama.cpp, Groq, Mistral, Gemini,
Copilot, LM Studio and others add; `anthropic`: Anthropic's list; `props`: llama.cpp's; `show` and `ps`: Ollama's;
`litellm`: litellm's table of models."""

ANY = "*"
"""Stands for the one model that was asked about, where the answer does not name it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is said of one model, in tokens; None where nothing is."""

    window: int | None = None
    input_limit: int | None = None
    max_output: int | None = None
    binds_thinking: bool = False
    on_demand: bool | None = None
    """Whether Claude compacts on demand."""
    threshold: bool | None = None
    """Whether it compacts at a threshold."""
    clears: bool | None = None
    """Whether it clears old tool results."""

    @property
    def sized(self) -> bool:
        """Whether anything is said of how much the model takes."""
        return self.window is not None or self.input_limit is not None

    @property
    def tells(self) -> bool:
        """Whether anything is said that a target goes by."""
        return self.sized or (self.on_demand, self.threshold, self.clears) != (None, None, None)


def windows_from(api: Api, body: bytes | str) -> dict[str, ModelFacts]:
    """What an answer tells, by the models' names as it has them; empty where it tells nothing. Never raises.

    Ollama's `show` tells the window only where the model has one of its own; else the size it was trained with, which
    is more than the server gives it: `ps` tells that, once the model is loaded. llama.cpp's is that of one slot.
    Of a name that stands twice the larger sizes count. Answers of more than 16 MiB, or of 200,000
    lists and objects, are not read.
    """
    try:
        answer: JsonValue = json.loads(body) if _affordable(body) else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(answer, dict | list):
        return {}
    told: dict[str, ModelFacts] = {}
    for name, facts in _of_one(api, answer) if api in ("props", "show") else _of_many(api, answer):
        if facts != ModelFacts():
            told[name] = _larger(told[name], facts) if name in told else facts
    return told


def _affordable(body: bytes | str) -> bool:
    """Whether it is a list of models, by the lists and objects in it: millions would take seconds, and much memory."""
    if len(body) > _MOST_BYTES:
        return False
    parts = body.count("[") + body.count("{") if isinstance(body, str) else body.count(b"[") + body.count(b"{")
    return parts <= _MOST_PARTS


_MOST_BYTES = 16 * 1024 * 1024
_MOST_PARTS = 200_000


def _larger(one: ModelFacts, other: ModelFacts) -> ModelFacts:
    """Of a name that stands twice in a list, the larger sizes: too small a window costs detail at every turn, too large
    a one is put right by the first refusal."""
    return ModelFacts(
        _max(one.window, other.window),
        _max(one.input_limit, other.input_limit),
        _max(one.max_output, other.max_output),
        one.binds_thinking or other.binds_thinking,
        *(
            said if said is not None else again
            for said, again in (
                (one.on_demand, other.on_demand),
                (one.threshold, other.threshold),
                (one.clears, other.clears),
            )
        ),
    )


def _max(one: int | None, other: int | None) -> int | None:
    return max(filter(None, (one, other)), default=None)


_LISTS = ("data", "models")
_NAMES = ("id", "model", "name", "key")
_PLACES = ((), ("meta",), ("limits",), ("capabilities", "limits"), ("model_spec",), ("top_provider",))
"""Where an entry of a list of models keeps its sizes; the first that has one counts."""
_WINDOW = (
    "max_model_len", "loaded_context_length", "n_ctx", "context_length", "context_window", "contextWindow",
    "max_context_length", "max_context_window_tokens", "contextLength", "context_size", "availableContextTokens",
    "max_context_tokens", "n_ctx_train",
)  # fmt: skip
"""What is served before what was trained."""
_INPUT = ("max_input_tokens", "max_prompt_tokens", "inputTokenLimit", "input_token_limit")
_OUTPUT = ("max_output_tokens", "max_completion_tokens", "outputTokenLimit", "output_token_limit", "max_output_length")


def _of_many(api: Api, answer: JsonObject | list[JsonValue]) -> Iterator[tuple[str, ModelFacts]]:
    if api == "litellm":
        for name, entry in answer.items() if isinstance(answer, dict) else ():
            if isinstance(entry, dict):
                yield name, ModelFacts(input_limit=_size(entry, _INPUT), max_output=_size(entry, _OUTPUT))
        return
    for entry in _entries(answer):
        name = next((given for key in _NAMES if isinstance(given := entry.get(key), str) and given), "")
        if not name:
            continue
        places = [place for path in _PLACES if (place := _within(entry, path)) is not None]
        window, limit, output = (_first(places, names) for names in (_WINDOW, _INPUT, _OUTPUT))
        if api == "anthropic":
            yield name, _claude(entry, window or limit, output or _size(entry, ("max_tokens",)))
            continue
        yield name.removeprefix("models/"), ModelFacts(window, limit, output)


def _claude(entry: JsonObject, window: int | None, output: int | None) -> ModelFacts:
    """Its "maximum input" is the window, input and output together. What it can do is told by its capabilities; of
    compaction on demand only to who asks with its beta header."""
    managed = ("capabilities", "context_management")
    return ModelFacts(
        window,
        None,
        output,
        on_demand=_supported(entry, ("capabilities", "compaction", "summarize")),
        threshold=_supported(entry, (*managed, "compact_20260112")),
        clears=_supported(entry, (*managed, "clear_tool_uses_20250919")),
    )


def _supported(entry: JsonObject, path: tuple[str, ...]) -> bool | None:
    found = _within(entry, path)
    told = found.get("supported") if found else None
    return told if isinstance(told, bool) else None


def _entries(answer: JsonObject | list[JsonValue]) -> Iterator[JsonObject]:
    """The models of a list; of an answer about one model, that one."""
    lists = [answer]
    if isinstance(answer, dict):
        lists = [listed for key in _LISTS if isinstance(listed := answer.get(key), list)] or [[answer]]
    yield from (entry for listed in lists for entry in listed if isinstance(entry, dict))


def _of_one(api: Api, answer: JsonObject | list[JsonValue]) -> Iterator[tuple[str, ModelFacts]]:
    if not isinstance(answer, dict):
        return
    if api == "props":
        settings = _within(answer, ("default_generation_settings",))
        window = _first([settings or {}, answer], ("n_ctx",))
    else:
        window = _parameter(answer.get("parameters")) or _trained(answer.get("model_info"))
    yield ANY, ModelFacts(window)


_NUM_CTX = re.compile(r"^[ \t]{0,8}num_ctx[ \t]{1,64}(\d{1,9})[ \t]{0,8}$", re.MULTILINE)


def _parameter(parameters: JsonValue) -> int | None:
    found = _NUM_CTX.search(parameters[:100_000]) if isinstance(parameters, str) else None
    return _plausible(int(found[1])) if found else None


def _trained(info: JsonValue) -> int | None:
    if not isinstance(info, dict):
        return None
    sizes = [_plausible(value) for key, value in info.items() if key.endswith(".context_length")]
    return next((size for size in sizes if size), None)


def _within(entry: JsonObject, path: tuple[str, ...]) -> JsonObject | None:
    for key in path:
        inner = entry.get(key)
        if not isinstance(inner, dict):
            return None
        entry = inner
    return entry


def _first(places: list[JsonObject], names: tuple[str, ...]) -> int | None:
    return next((size for place in places if (size := _size(place, names))), None)


def _size(entry: Mapping[str, JsonValue], names: tuple[str, ...]) -> int | None:
    return next((size for name in names if (size := _plausible(entry.get(name)))), None)


def _plausible(value: JsonValue) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not SMALLEST <= value <= LARGEST:
        return None
    return int(value)
