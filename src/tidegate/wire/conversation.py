"""What a request body says, in one shape for all three dialects.

Knows spans of bytes and the facts other rooms need of an item; does not know any API's field names
(those are in `chat`, `responses`, `messages`). Called by everything above `wire`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

JsonValue: TypeAlias = "None | bool | int | float | str | list[JsonValue] | dict[str, JsonValue]"
JsonObject: TypeAlias = dict[str, JsonValue]

DialectName: TypeAlias = Literal["chat", "responses", "messages"]

Role: TypeAlias = Literal["system", "user", "assistant", "tool", "other"]
"""Whose words an item holds. `system` covers developer; `tool` is an item that holds results only."""

PartKind: TypeAlias = Literal["text", "thinking", "call", "result", "image", "file", "audio", "opaque", "json"]


class UnreadableBody(ValueError):
    """The body is not a conversation Tidegate understands; the request is relayed untouched."""


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of an item as a reader sees it: for estimating its size and for writing a transcript.

    `text` holds words (text, thinking, a call's arguments as JSON text, a result's words, an unknown part's
    compact JSON); media carry their dimensions instead and never their base64. `data_bytes` is the length of the
    base64 or opaque payload that was left out.
    """

    kind: PartKind
    text: str = ""
    name: str = ""
    """Tool name of a call; file name of a file; media type of an image where there is no name."""
    id: str = ""
    """Call id of a call or a result."""
    width: int | None = None
    height: int | None = None
    detail: str = ""
    """OpenAI's image detail (`low`, `high`, `auto`), empty elsewhere."""
    pages: int | None = None
    data_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What the cutter and the engine need to know of an item."""

    kind: str
    """The item's type as on the wire: `message`, `function_call`, `reasoning`, … (`message` where there is none)."""
    role: Role
    human: bool = False
    """A user item with words or media of its own, not only tool results."""
    calls: tuple[str, ...] = ()
    """Ids of the tool calls this item makes that some other item answers."""
    results: tuple[str, ...] = ()
    """Ids of the tool calls this item answers."""
    ids: tuple[str, ...] = ()
    """The item's own id or ids."""
    mentions: tuple[str, ...] = ()
    """For unknown item or part types: every short string in them, since any may be another item's id."""
    leans_on_next: bool = False
    """Must stay with the item after it (a Responses reasoning item and the output it belongs to)."""
    opaque: bool = False
    """Holds a provider's compaction artifact, made by a provider or the client, that Tidegate did not mint."""
    thinking: bool = False
    """Holds Anthropic `thinking` or `redacted_thinking` blocks."""
    reference: bool = False
    """Stands for server-held content (`item_reference`)."""


@dataclass(frozen=True, slots=True)
class Item:
    """One message or one Responses input item, as the bytes the client sent."""

    raw: bytes
    start: int
    end: int
    """Span of `raw` in the body; both 0 for an item that was not in the body as such (a string `input`)."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request body, read once. Nothing in it is a copy that could drift from `raw`."""

    dialect: DialectName
    raw: bytes
    model: str
    stream: bool
    output_limit: int | None
    """Output tokens the request asks for, None where it does not say."""
    items: tuple[Item, ...]
    lead: int
    """How many items at the beginning are system or developer messages: they are not part of the chain."""
    system: bytes
    """Raw JSON of the top-level system prompt (`system`, `instructions`), empty where there is none."""
    tools: bytes
    """Raw JSON of the tools, empty where there are none."""
    schema: bytes
    """Raw JSON of the output schema (`response_format`, `text`, `output_config`), empty where there is none."""
    server_held: bool
    """History is held by the server (`previous_response_id`, `conversation`, `thread`, an item reference)."""
    fields: Mapping[str, bytes] = field(repr=False)
    """Raw JSON of every top-level key, in the order of the body."""
    field_spans: Mapping[str, tuple[int, int]] = field(repr=False)
    """Span in `raw` of every top-level value."""
    items_key: str = "messages"

    def replace_items(self, items: Sequence[bytes], *, keep_from: int) -> bytes:
        """The body with items `lead … keep_from-1` replaced by `items` (raw JSON each); all else keeps its bytes.

        The leading system items, the bytes between kept items, and every other field are copied from `raw`.
        """
        raise NotImplementedError

    def replace_fields(self, values: Mapping[str, bytes | None]) -> bytes:
        """The body with top-level values replaced by raw JSON; a new key is appended, None removes the key."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reported them; cache reads and writes are included in `input_tokens`."""

    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0


FinishReason: TypeAlias = Literal["stop", "length", "tool_call", "refusal", "filter", "window", "compaction", "error", "other"]
"""`window` is an answer cut because the context window ran out (`model_context_window_exceeded`)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, streamed or not, read for its text: for summary calls and for tests."""

    text: str
    finish: FinishReason | None
    """None where the answer ended without saying why (a cut stream)."""
    usage: Usage | None = None
    tool_calls: tuple[str, ...] = ()
    """Names of the tools it called."""
    refusal: str = ""
    error: bytes = b""
    """Raw JSON of an error event inside the stream, or of an error object in a 200 body."""
    thinking: str = ""
