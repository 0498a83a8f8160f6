"""How each of the systems counts a request without a tokenizer: Tidegate's own way, Rho's two, RubyPi's, Planck's.

Knows texts and media of items; knows no model and no budget. Called by the ledger, by name, for a target's policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidegate.context.calibration import RATIO_MAX
from tidegate.context.estimate import (
    IMAGE_UNKNOWN,
    ITEM_OVERHEAD,
    PDF_PAGE,
    item_tokens,
    part_tokens,
    request_overhead,
    system_texts,
    text_tokens,
)
from tidegate.wire.conversation import Conversation, DialectName, JsonValue, Part
from tidegate.wire.jsontext import canonical_dumps, loads

ItemSize: TypeAlias = Callable[[DialectName, Sequence[Part]], int]


@dataclass(frozen=True, slots=True, eq=False)
class Estimator:
    """Rules by which a request is counted. `item`, `lead` and `beside` give units, of which `per_token` are a token:
    a sum is rounded up once, not in every item. Two of the same name never are."""

    name: str
    item: ItemSize
    """Of one item, from its pieces."""
    lead: ItemSize
    """Of a system item that stands before all others."""
    beside: Callable[[Conversation], int]
    """Of all that is no item: system prompt, tools, output schema."""
    words: Callable[[str], int]
    """Tokens of a message that says this."""
    per_token: int = 1
    ratio_max: float = RATIO_MAX
    """Real tokens that an estimated one may stand for: bytes over four characters, where characters are counted."""

    def tokens(self, units: int) -> int:
        """Units as tokens, rounded up."""
        return units if self.per_token == 1 else -(-units // self.per_token)


# -- Tidegate --------------------------------------------------------------------------------------------------------


def _own_words(text: str) -> int:
    return ITEM_OVERHEAD + text_tokens(text)


OWN: Final = Estimator("tidegate", item_tokens, item_tokens, request_overhead, _own_words)


# -- Rho (Elixir): bytes ---------------------------------------------------------------------------------------------


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _quarter(size: int) -> int:
    return -(-size // 4)


def _elixir_item(dialect: DialectName, parts: Sequence[Part]) -> int:
    size = media = 0
    for part in parts:
        if part.kind == "image":
            media += IMAGE_UNKNOWN
        elif part.kind == "file":
            size += _bytes(part.text)
            media += PDF_PAGE * (part.pages or (0 if part.text else 1))
        elif part.kind in ("audio", "opaque"):
            media += part_tokens(dialect, part)
        else:
            size += _bytes(part.text) + (_bytes(part.name) if part.kind == "call" else 0)
    return _quarter(size) + media


def _elixir_beside(conversation: Conversation) -> int:
    system = sum(map(_bytes, system_texts(conversation.system)))
    return _quarter(system) + sum(_quarter(_bytes(text)) for text in _json_texts(conversation.tools))


def _elixir_words(text: str) -> int:
    return _quarter(_bytes(text))


# -- RubyPi: characters, in quarters of a token ----------------------------------------------------------------------

RUBY_MESSAGE: Final = 40
"""Characters that a message counts beside its content."""


def _ruby_content(dialect: DialectName, parts: Sequence[Part]) -> int:
    size = 0
    for part in parts:
        if part.kind in ("text", "result", "json"):
            size += len(part.text)
        elif part.kind not in ("call", "thinking"):
            size += 4 * part_tokens(dialect, part)
    return size


def _ruby_item(dialect: DialectName, parts: Sequence[Part]) -> int:
    return RUBY_MESSAGE + _ruby_content(dialect, parts)


def _ruby_beside(conversation: Conversation) -> int:
    return sum(map(len, system_texts(conversation.system)))


def _ruby_words(text: str) -> int:
    return _quarter(RUBY_MESSAGE + len(text))


# -- Rho (Rust): characters, each piece rounded up --------------------------------------------------------------------

RHO_REQUEST: Final = 3
RHO_MESSAGE: Final = 4
RHO_BLOCK: Final = 1
RHO_CALL: Final = 8
RHO_RESULT: Final = 6
RHO_TOOL: Final = 12
RHO_IMAGE: Final = 85
RHO_IMAGE_BYTES: Final = 4_096
"""Of base64 that are one more token."""


def _rho_text(text: str) -> int:
    return _quarter(len(text))


def _rho_json(value: JsonValue) -> int:
    return _rho_text(canonical_dumps(value).decode("utf-8", "replace"))


def _rho_item(dialect: DialectName, parts: Sequence[Part]) -> int:
    blocks = results = portable = replayed = 0
    message = not parts
    for part in parts:
        if part.kind == "result":
            results += RHO_RESULT + _rho_json({"id": part.id, "ok": True, "content": part.text})
            continue
        message = message or part.kind != "image" or not results
        if part.kind in ("text", "json"):
            blocks += RHO_BLOCK + _rho_text(part.text)
        elif part.kind == "call":
            call: JsonValue = {"id": part.id, "name": part.name, "arguments": _arguments(part.text)}
            blocks += RHO_BLOCK + RHO_CALL + _rho_json(call)
        elif part.kind == "image":
            blocks += RHO_BLOCK + RHO_IMAGE + -(-part.data_bytes // RHO_IMAGE_BYTES)
        elif part.kind == "thinking":
            portable += _rho_text(part.text)
            replayed += _quarter(len(part.text) * bool(part.data_bytes) + part.data_bytes)
        elif part.kind == "opaque":
            replayed += _quarter(part.data_bytes)
        else:
            blocks += RHO_BLOCK + part_tokens(dialect, part)
    return (RHO_MESSAGE if message else 0) + blocks + results + max(portable, replayed)


def _rho_beside(conversation: Conversation) -> int:
    system = sum(RHO_MESSAGE + _rho_text(text) for text in system_texts(conversation.system))
    return RHO_REQUEST + system + sum(RHO_TOOL + _rho_json(_tool(tool)) for tool in _listed(conversation.tools))


def _rho_words(text: str) -> int:
    return RHO_MESSAGE + RHO_BLOCK + _rho_text(text)


def _tool(tool: JsonValue) -> JsonValue:
    """A function's name, description and schema, whatever the API calls them; another tool as it is."""
    if not isinstance(tool, dict):
        return tool
    inner = tool.get("function")
    spec = inner if isinstance(inner, dict) else tool
    schema = spec.get("parameters", spec.get("input_schema"))
    if "name" not in spec or schema is None:
        return tool
    return {"name": spec["name"], "description": spec.get("description", ""), "input_schema": schema}


# -- Planck: what a reader takes for a character, each piece rounded down ---------------------------------------------

_JOINED: Final = re.compile(
    "\r\n|\u200d.?|[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u093c\u093e-\u094d\u0e31\u0e34-\u0e3a"
    "\u0e47-\u0e4e\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\u3099\u309a\ufe00-\ufe0f\ufe20-\ufe2f\U0001f3fb-\U0001f3ff"
    "\U000e0100-\U000e01ef]"
)
_FLAGS: Final = re.compile("[\U0001f1e6-\U0001f1ff]{2,}")


def graphemes(text: str) -> int:
    """How many characters a reader sees, as Elixir's `String.length` counts. Exact for ASCII; for others the common
    marks, joiners, skin tones and flags are known, not all of Unicode's table."""
    if text.isascii():
        return len(text) - text.count("\r\n")
    joined = sum(1 if found == "\r\n" else len(found) for found in _JOINED.findall(text))
    return len(text) - joined - sum(len(run) // 2 for run in _FLAGS.findall(text))


def inspected(value: JsonValue) -> str:
    """A value as Elixir's `inspect` writes it: `%{"path" => "a.txt"}`."""
    if isinstance(value, dict):
        return "%{" + ", ".join(f"{inspected(key)} => {inspected(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inspected, value)) + "]"
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    return canonical_dumps(value).decode("utf-8", "replace")


def _planck_item(dialect: DialectName, parts: Sequence[Part]) -> int:
    total = 0
    for part in parts:
        if part.kind == "call":
            total += (graphemes(part.name) + graphemes(inspected(_arguments(part.text)))) // 4
        elif part.kind in ("text", "thinking", "result", "json"):
            total += graphemes(part.text) // 4
    return total


def _planck_beside(conversation: Conversation) -> int:
    system = sum(graphemes(text) // 4 for text in system_texts(conversation.system))
    tools = _listed(conversation.tools)
    return system + (graphemes(canonical_dumps(tools).decode("utf-8", "replace")) // 4 if tools else 0)


def _planck_words(text: str) -> int:
    return graphemes(text) // 4


# -- what they share -------------------------------------------------------------------------------------------------


def _arguments(text: str) -> JsonValue:
    """Arguments of a call as a value, as text where they are no JSON."""
    try:
        return loads(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return text


def _listed(raw: bytes) -> list[JsonValue]:
    """The tools of a request."""
    if not raw:
        return []
    try:
        value = loads(raw)
    except (ValueError, RecursionError):
        return [raw.decode("utf-8", "replace")]
    return value if isinstance(value, list) else [] if value is None else [value]


def _json_texts(raw: bytes) -> list[str]:
    return [canonical_dumps(tool).decode("utf-8", "replace") for tool in _listed(raw)]


ESTIMATORS: Final[Mapping[str, Estimator]] = {
    it.name: it
    for it in (
        OWN,
        Estimator("rho", _rho_item, _rho_item, _rho_beside, _rho_words, ratio_max=16),
        Estimator("rho-elixir", _elixir_item, _elixir_item, _elixir_beside, _elixir_words, ratio_max=4),
        Estimator("rubypi", _ruby_item, _ruby_content, _ruby_beside, _ruby_words, per_token=4, ratio_max=16),
        Estimator("planck", _planck_item, _planck_item, _planck_beside, _planck_words, ratio_max=16),
    )
}
"""By the name that `compaction.estimator` takes."""
