"""What a checked request asks for and what the model answers, in one shape for the three APIs.

Values only. Made by the dialect modules, read by the model, the summarizer and the app.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.managed import Managed

DialectName: TypeAlias = Literal["chat", "responses", "messages"]
DIALECTS: tuple[DialectName, ...] = ("chat", "responses", "messages")

Finish: TypeAlias = Literal["stop", "tool", "length", "refusal", "window"]
"""Why the model stopped; `window`: the context window ran out."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call. `custom` tools take free text instead of JSON."""

    name: str
    schema: JsonObject = field(default_factory=dict)
    custom: bool = False


@dataclass(slots=True)
class Turn:
    """A request that broke no rule."""

    dialect: DialectName
    body: JsonObject = field(repr=False)
    model: str
    stream: bool
    items: list[JsonObject] = field(repr=False)
    """The effective conversation, server-held items included, system text left out."""
    fixed: int
    """Estimated tokens of system text and tools."""
    tools: tuple[Tool, ...]
    forced: str | None
    """`none`, `required`, a tool's name, or None where the model may choose."""
    last_text: str = field(repr=False)
    """Words of the newest user message that has any."""
    rounds: int
    """Tool results since that message."""
    max_output: int | None
    thinking: bool
    system: str = field(default="", repr=False)
    input_tokens: int = 0
    """Real tokens, filled in by the app."""
    cached_tokens: int = 0
    truncate: bool = False
    """The request agrees to lose its beginning (`truncation: auto`)."""
    history: list[JsonObject] = field(default_factory=list, repr=False)
    """Responses: the conversation as it is stored, before compaction items took the place of what they stand for."""
    compaction: Literal["", "unary", "trigger"] = ""
    """Responses: whether it asks for a compaction and nothing else, and in which way."""
    threshold: int | None = None
    """Responses: real tokens from which the answer brings a compaction with it."""
    notes: list[JsonObject] = field(default_factory=list)
    """What the provider did to the input (Anthropic's `input_transformations`)."""
    framing: str = "sse"
    """How a stream is written: `sse` or `eventstream`."""
    managed: Managed | None = None
    """Messages: what the provider's own context management does to it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is JSON text, or free text for a custom tool."""

    name: str
    arguments: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction on Responses made: the payload to seal, as so many items."""

    payload: JsonObject = field(repr=False)
    beside: tuple[JsonObject, ...] = field(default=(), repr=False)
    """Messages of the window that are handed back."""
    first: bool = False
    """It stands before the words of the answer."""
    copies: int = 1
    garbled: bool = False
    """What is handed out can't be read back."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says."""

    text: str = field(default="", repr=False)
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    finish: Finish = "stop"
    compacted: Compacted | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Real tokens of one exchange; `cached` is a part of `input`, `thinking` a part of `output`."""

    input: int
    output: int
    cached: int = 0
    thinking: int = 0
