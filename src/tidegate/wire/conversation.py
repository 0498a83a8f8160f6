"""What a request body says, in one shape for all three dialects.

Knows spans of bytes and the facts other rooms need of an item; does not know any API's field names
(those are in `chat`, `responses`, `messages`). Called by everything above `wire`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, overload

import msgspec

from tidegate.wire.discreet import Discreet
from tidegate.wire.jsontext import JsonObject as JsonObject
from tidegate.wire.jsontext import JsonValue as JsonValue
from tidegate.wire.jsontext import UnreadableBody as UnreadableBody
from tidegate.wire.jsontext import dumps

DialectName: TypeAlias = Literal["chat", "responses", "messages"]

Role: TypeAlias = Literal["system", "user", "assistant", "tool", "other"]
"""Whose words an item holds. `system` covers developer; `tool` is an item that holds results only."""

PartKind: TypeAlias = Literal["text", "thinking", "call", "result", "image", "file", "audio", "opaque", "json"]


class Part(msgspec.Struct, frozen=True, gc=False):
    """One piece of an item as a reader sees it: for estimating its size and for writing a transcript.

    `text` holds words (text, thinking, a call's arguments as JSON text, a result's words, an unknown part's
    compact JSON); media carry their dimensions instead and never their base64. `data_bytes` is the length of
    the base64 or opaque payload that was left out.
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

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        return f"Part(kind={self.kind!r}, name={self.name!r}, id={self.id!r}, data_bytes={self.data_bytes})"


class Facts(msgspec.Struct, frozen=True, gc=False):
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
    marks: int = 0
    """Cache marks (`cache_control`) on it and its parts."""
    long_mark: bool = False
    """One of them asks for an hour."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """One message or one Responses input item, as the bytes the client sent."""

    raw: bytes
    start: int
    end: int
    """Span of `raw` in the body; both 0 for an item that was not in the body as such (a string `input`)."""

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        return f"Item(start={self.start}, end={self.end})"


class Items(Sequence[Item]):
    """The items of a body, cut out of it when asked for: known by their spans, none of them built or copied."""

    __slots__ = ("_ends", "_raw", "_shift", "_starts")

    def __init__(self, raw: bytes, starts: array[int], ends: array[int], shift: int = 0) -> None:
        """The n-th item is `raw[starts[n] + shift : ends[n] + shift]`."""
        self._raw, self._starts, self._ends, self._shift = raw, starts, ends, shift

    def __len__(self) -> int:
        """How many there are."""
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        """An item, or several."""
        if isinstance(index, slice):
            return tuple(self[n] for n in range(*index.indices(len(self._starts))))
        start, end = self._starts[index] + self._shift, self._ends[index] + self._shift
        return Item(self._raw[start:end], start, end)

    def __iter__(self) -> Iterator[Item]:
        """Each in turn."""
        return (self[n] for n in range(len(self._starts)))

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of equal items."""
        if not isinstance(other, Items | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def raw(self, index: int) -> bytes:
        """Raw JSON of an item."""
        return self._raw[self._starts[index] + self._shift : self._ends[index] + self._shift]

    def span(self, index: int) -> tuple[int, int]:
        """Where an item stands in the body."""
        return self._starts[index] + self._shift, self._ends[index] + self._shift

    def bounds(self) -> tuple[array[int], array[int]]:
        """Starts and ends of all items, as they stand in the body."""
        if self._shift:
            return array("Q", (n + self._shift for n in self._starts)), array(
                "Q", (n + self._shift for n in self._ends)
            )
        return self._starts, self._ends

    def moved(self, raw: bytes, by: int) -> Items:
        """The same items in a body where they all stand `by` bytes further on."""
        return Items(raw, self._starts, self._ends, self._shift + by)


class Spans(Mapping[str, tuple[int, int]]):
    """Where each top-level value stands in a body that differs from an earlier one inside one value only: all that ends
    at or after `pivot` there has moved by `by` bytes."""

    __slots__ = ("_by", "_pivot", "_then")

    def __init__(self, then: Mapping[str, tuple[int, int]], pivot: int, by: int) -> None:
        self._then, self._pivot, self._by = then, pivot, by

    def __getitem__(self, key: str) -> tuple[int, int]:
        """Start and end of the value."""
        start, end = self._then[key]
        if end < self._pivot:
            return start, end
        return (start if start < self._pivot else start + self._by), end + self._by

    def __iter__(self) -> Iterator[str]:
        """Keys in the order of the body."""
        return iter(self._then)

    def __contains__(self, key: object) -> bool:
        """Whether the body has the key."""
        return key in self._then

    def __len__(self) -> int:
        """How many top-level keys there are."""
        return len(self._then)


class Conversation(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A request body, read once. Nothing in it is a copy that could drift from `raw`."""

    dialect: DialectName
    raw: bytes
    model: str
    stream: bool
    output_limit: int | None
    """Output tokens the request asks for, None where it does not say."""
    items: Sequence[Item]
    lead: int
    """How many items at the beginning are system or developer messages: they are not part of the chain."""
    server_held: bool
    """History is held by the server (`previous_response_id`, `conversation`, `thread`, an item reference)."""
    field_spans: Mapping[str, tuple[int, int]]
    """Span in `raw` of every top-level value, in the order of the body."""
    system_key: str = ""
    """Name of the top-level field that holds the system prompt (`system`, `instructions`), empty where none does."""
    tools_key: str = ""
    """Name of the field that holds the tools, empty where none does."""
    schema_key: str = ""
    """Name of the field that holds the output schema (`response_format`, `text`, `output_config`), empty where none
    does."""
    items_key: str = "messages"
    note: object = None
    """Whatever its reader wants to find again with it. No part of what it says."""

    def __eq__(self, other: object) -> bool:
        """Whether both say the same in the same bytes."""
        if not isinstance(other, Conversation):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _TOLD)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        return (
            f"Conversation(dialect={self.dialect!r}, model={self.model!r}, stream={self.stream!r}, "
            f"output_limit={self.output_limit!r}, items={len(self.items)}, lead={self.lead!r})"
        )

    @property
    def fields(self) -> RawFields:
        """Raw JSON of every top-level key, in the order of the body."""
        return RawFields(self.raw, self.field_spans)

    @property
    def system(self) -> bytes:
        """Raw JSON of the top-level system prompt, empty where there is none."""
        return self.field(self.system_key) if self.system_key else b""

    @property
    def tools(self) -> bytes:
        """Raw JSON of the tools, empty where there are none."""
        return self.field(self.tools_key) if self.tools_key else b""

    @property
    def schema(self) -> bytes:
        """Raw JSON of the output schema, empty where there is none."""
        return self.field(self.schema_key) if self.schema_key else b""

    def field(self, key: str) -> bytes:
        """Raw JSON of a top-level key, empty where the body has none of that name."""
        spans = self.field_spans
        if key not in spans:
            return b""
        start, end = spans[key]
        return self.raw[start:end]

    def item_raw(self, index: int) -> bytes:
        """Raw JSON of an item, without building the item."""
        items = self.items
        return items.raw(index) if isinstance(items, Items) else items[index].raw

    def with_model(self, name: str) -> Conversation:
        """The conversation of the body with another model's name in it: what reading that body would give."""
        start, end = self.field_spans["model"]
        value = dumps(name)
        by = len(value) - (end - start)
        view = memoryview(self.raw)
        raw = b"".join((view[:start], value, view[end:]))
        items = self.items
        if isinstance(items, Items):
            items = items.moved(raw, by if self.field_spans[self.items_key][0] > start else 0)
        spans = dict(Spans(self.field_spans, end, by))
        return msgspec.structs.replace(self, raw=raw, model=name, items=items, field_spans=spans)

    def replace_items(self, items: Sequence[bytes], *, keep_from: int) -> bytes:
        """The body with items `lead … keep_from-1` replaced by `items` (raw JSON each); all else keeps its
        bytes.

        The leading system items, the bytes between kept items, and every other field are copied from `raw`;
        with nothing to replace it is `raw` itself. A string `input` becomes a list. Raises `ValueError` where
        `keep_from` lies outside `lead … len(self.items)` and where no item would be left.
        """
        edit = self._edit_items(items, keep_from)
        return self.raw if edit is None else self._edited([edit])

    def replace(self, items: Sequence[bytes], *, keep_from: int, fields: Mapping[str, bytes]) -> bytes:
        """`replace_items`, and other top-level values replaced by raw JSON or appended, in one copy. The items' own key
        may not be among `fields`."""
        edits = [edit] if (edit := self._edit_items(items, keep_from)) else []
        added = []
        for name, value in fields.items():
            if name in self.field_spans:
                edits.append((*self.field_spans[name], value))
            else:
                added.append(b"," + dumps(name) + b":" + value)
        if added:
            last = max(end for _start, end in self.field_spans.values())
            edits.append((last, last, b"".join(added)))
        return self._edited(sorted(edits, key=lambda edit: edit[:2]))

    def _edit_items(self, items: Sequence[bytes], keep_from: int) -> tuple[int, int, bytes] | None:
        """The span of `raw` that goes and what comes in its place."""
        count = len(self.items)
        if not self.lead <= keep_from <= count:
            raise ValueError(f"keep_from must be between {self.lead} and {count}")
        if not items and keep_from == self.lead:
            return None
        if not items and keep_from == count and self.lead == 0:
            raise ValueError("a request needs at least one item")
        if count == 0 or not isinstance(self.items, Items):
            whole = [*items, *(item.raw for item in self.items[keep_from:])]
            return *self.field_spans[self.items_key], b"[" + b",".join(whole) + b"]"
        new = b",".join(items)
        if keep_from < count:
            return self._span(self.lead)[0], self._span(keep_from)[0], new + b"," if new else b""
        last = self._span(count - 1)[1]
        if self.lead == 0:
            return self._span(0)[0], last, new
        return self._span(self.lead - 1)[1], last, b"," + new if new else b""

    def _span(self, index: int) -> tuple[int, int]:
        items = self.items
        return items.span(index) if isinstance(items, Items) else (items[index].start, items[index].end)

    def _edited(self, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
        """`raw` with spans replaced, given in order."""
        view, pieces, done = memoryview(self.raw), list[bytes | memoryview](), 0
        for start, end, value in edits:
            pieces += (view[done:start], value)
            done = end
        pieces.append(view[done:])
        return b"".join(pieces)

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


_TOLD = tuple(name for name in Conversation.__struct_fields__ if name != "note")


class RawFields(Mapping[str, bytes]):
    """Top-level values of a body, cut out of it when asked for."""

    __slots__ = ("_raw", "_spans")

    def __init__(self, raw: bytes, spans: Mapping[str, tuple[int, int]]) -> None:
        self._raw, self._spans = raw, spans

    def __getitem__(self, key: str) -> bytes:
        """Raw JSON of the value."""
        start, end = self._spans[key]
        return self._raw[start:end]

    def __iter__(self) -> Iterator[str]:
        """Keys in the order of the body."""
        return iter(self._spans)

    def __len__(self) -> int:
        """How many top-level keys there are."""
        return len(self._spans)


class Cleared(msgspec.Struct, frozen=True):
    """What a provider says that it left out of a request which asked for that (Anthropic's `applied_edits`)."""

    input_tokens: int = 0
    tool_uses: int = 0
    thinking_turns: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the provider reported them; cache reads and writes are included in `input_tokens`."""

    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0
    cleared: Cleared | None = None
    """Left out before these were counted; None where nothing was."""


FinishReason: TypeAlias = Literal[
    "stop", "length", "tool_call", "refusal", "filter", "window", "compaction", "error", "other"
]
"""`window` is an answer cut because the context window ran out (`model_context_window_exceeded`)."""


class Answer(Discreet, frozen=True):
    """A whole answer, streamed or not, read for its text: for summary calls and for tests."""

    hidden: ClassVar[frozenset[str]] = frozenset({"text", "refusal", "error", "thinking"})

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
    compacts: bool = False
    """It holds a compaction item of the Responses API; read from a JSON body's end only."""
