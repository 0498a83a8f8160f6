"""What a request body says, in one shape for all three dialects.

Knows spans of bytes and the facts other rooms need of an item; does not know any API's field names
(those are in `chat`, `responses`, `messages`). Called by everything above `wire`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidegate.wire.jsontext import JsonObject as JsonObject
from tidegate.wire.jsontext import JsonValue as JsonValue
from tidegate.wire.jsontext import UnreadableBody as UnreadableBody
from tidegate.wire.jsontext import dumps

DialectName: TypeAlias = Literal["chat", "responses", "messages"]

Role: TypeAlias = Literal["system", "user", "assistant", "tool", "other"]
"""Whose words an item holds. `system` covers developer; `tool` is an item that holds results only."""

PartKind: TypeAlias = Literal["text", "thinking", "call", "result", "image", "file", "audio", "opaque", "json"]


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of an item as a reader sees it: for estimating its size and for writing a transcript.

    `text` holds words (text, thinking, a call's arguments as JSON text, a result's words, an unknown part's
    compact JSON); media carry their dimensions instead and never their base64. `data_bytes` is the length of
    the base64 or opaque payload that was left out.
    """

    kind: PartKind
    text: str = field(default="", repr=False)
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
    """The item's type as on the wire: `message`, `function_call`, `reasoning`, … (`message` where there is
    none)."""
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
    """Holds a provider's compaction artifact, made by a provider or the client, that Tidegate did not
    mint."""
    thinking: bool = False
    """Holds Anthropic `thinking` or `redacted_thinking` blocks."""
    reference: bool = False
    """Stands for server-held content (`item_reference`)."""


@dataclass(frozen=True, slots=True)
class Item:
    """One message or one Responses input item, as the bytes the client sent."""

    raw: bytes = field(repr=False)
    start: int
    end: int
    """Span of `raw` in the body; both 0 for an item that was not in the body as such (a string `input`)."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request body, read once. Nothing in it is a copy that could drift from `raw`."""

    dialect: DialectName
    raw: bytes = field(repr=False)
    model: str
    stream: bool
    output_limit: int | None
    """Output tokens the request asks for, None where it does not say."""
    items: tuple[Item, ...] = field(repr=False)
    lead: int
    """How many items at the beginning are system or developer messages: they are not part of the chain."""
    system: bytes = field(repr=False)
    """Raw JSON of the top-level system prompt (`system`, `instructions`), empty where there is none."""
    tools: bytes = field(repr=False)
    """Raw JSON of the tools, empty where there are none."""
    schema: bytes = field(repr=False)
    """Raw JSON of the output schema (`response_format`, `text`, `output_config`), empty where there is
    none."""
    server_held: bool
    """History is held by the server (`previous_response_id`, `conversation`, `thread`, an item reference)."""
    fields: Mapping[str, bytes] = field(repr=False)
    """Raw JSON of every top-level key, in the order of the body."""
    field_spans: Mapping[str, tuple[int, int]] = field(repr=False)
    """Span in `raw` of every top-level value."""
    items_key: str = "messages"

    def replace_items(self, items: Sequence[bytes], *, keep_from: int) -> bytes:
        """The body with items `lead … keep_from-1` replaced by `items` (raw JSON each); all else keeps its
        bytes.

        The leading system items, the bytes between kept items, and every other field are copied from `raw`;
        with nothing to replace it is `raw` itself. A string `input` becomes a list. Raises `ValueError` where
        `keep_from` lies outside `lead … len(self.items)` and where no item would be left.
        """
        count = len(self.items)
        if not self.lead <= keep_from <= count:
            raise ValueError(f"keep_from must be between {self.lead} and {count}")
        if not items and keep_from == self.lead:
            return self.raw
        if not items and keep_from == count and self.lead == 0:
            raise ValueError("a request needs at least one item")
        start, end = self.field_spans[self.items_key]
        if count == 0 or self.items[0].end == 0:
            whole = [*items, *(item.raw for item in self.items[keep_from:])]
            return self._spliced(start, end, b"[" + b",".join(whole) + b"]")
        new = b",".join(items)
        if keep_from < count:
            return self._spliced(self.items[self.lead].start, self.items[keep_from].start, new + b"," if new else b"")
        if self.lead == 0:
            return self._spliced(self.items[0].start, self.items[-1].end, new)
        return self._spliced(self.items[self.lead - 1].end, self.items[-1].end, b"," + new if new else b"")

    def replace_fields(self, values: Mapping[str, bytes | None]) -> bytes:
        """The body with top-level values replaced by raw JSON; a new key is appended, None removes the key.

        Kept keys, their values and the bytes between them are copied from `raw`.
        """
        pairs = list(self.field_spans.items())
        keep = [name not in values or values[name] is not None for name, _span in pairs]
        added = [
            dumps(name) + b":" + value
            for name, value in values.items()
            if value is not None and name not in self.field_spans
        ]
        first = next((n for n, kept in enumerate(keep) if kept), None)
        if first is None:
            return b"{" + b",".join(added) + b"}"
        pieces: list[bytes] = []
        done = 0
        for n, (name, (start, end)) in enumerate(pairs):
            value = values.get(name)
            if n < first:
                continue
            if n == first and n > 0:
                pieces.append(self.raw[: self._key_start(0)])
                done = self._key_start(n)
            if not keep[n]:
                pieces.append(self.raw[done : pairs[n - 1][1][1]])
                done = end
            elif value is not None:
                pieces += (self.raw[done:start], value)
                done = end
        last = pairs[-1][1][1]
        pieces.append(self.raw[done:last])
        pieces += (b"," + pair for pair in added)
        pieces.append(self.raw[last:])
        return b"".join(pieces)

    def _key_start(self, n: int) -> int:
        """Where the quote of the n-th top-level key stands."""
        spans = list(self.field_spans.values())
        return self.raw.index(b'"', spans[n - 1][1] if n else 0)

    def _spliced(self, start: int, end: int, middle: bytes) -> bytes:
        return b"".join((self.raw[:start], middle, self.raw[end:]))


@dataclass(frozen=True, slots=True)
class RawFields(Mapping[str, bytes]):
    """Top-level values of a body, cut out of it when asked for."""

    raw: bytes = field(repr=False)
    spans: Mapping[str, tuple[int, int]]

    def __getitem__(self, key: str) -> bytes:
        """Raw JSON of the value."""
        start, end = self.spans[key]
        return self.raw[start:end]

    def __iter__(self) -> Iterator[str]:
        """Keys in the order of the body."""
        return iter(self.spans)

    def __len__(self) -> int:
        """How many top-level keys there are."""
        return len(self.spans)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reported them; cache reads and writes are included in `input_tokens`."""

    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0


FinishReason: TypeAlias = Literal[
    "stop", "length", "tool_call", "refusal", "filter", "window", "compaction", "error", "other"
]
"""`window` is an answer cut because the context window ran out (`model_context_window_exceeded`)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, streamed or not, read for its text: for summary calls and for tests."""

    text: str = field(repr=False)
    finish: FinishReason | None
    """None where the answer ended without saying why (a cut stream)."""
    usage: Usage | None = None
    tool_calls: tuple[str, ...] = ()
    """Names of the tools it called."""
    refusal: str = field(default="", repr=False)
    error: bytes = field(default=b"", repr=False)
    """Raw JSON of an error event inside the stream, or of an error object in a 200 body."""
    thinking: str = field(default="", repr=False)
