"""Makes the items of a compaction call fit the window: no provider compacts what is over it already.

Knows where each API keeps a tool's output, and estimates sizes; decides no cut and makes no call. Called by the engine
before a provider's own compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from tidegate.context.estimate import item_tokens, text_tokens
from tidegate.wire import REQUESTS
from tidegate.wire.content import as_list
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import array_spans, dumps, loads, object_spans
from tidegate.wire.untyped import objects_at, text_at

LEAST: Final = 200
"""Estimated tokens of a tool's output below which it stays as it is."""

Span: TypeAlias = tuple[int, int]


def fitted(dialect: DialectName, items: Sequence[bytes], room: int) -> tuple[bytes, ...] | None:
    """The items within `room` estimated tokens: the oldest large tool outputs give way to a line that says so, as few
    as need be. None where that is not enough.

    Only the output itself is replaced: its call, its ids, and everything else keep their bytes. What the user said,
    system items, thinking, and what a provider sealed are never touched.
    """
    kept = list(items)
    sizes = [_size(dialect, raw) for raw in items]
    over = sum(sizes) - room
    for n, raw in enumerate(items):
        if over <= 0:
            break
        smaller = _stubbed(dialect, raw) if sizes[n] >= LEAST else None
        if smaller is not None and (size := _size(dialect, smaller)) < sizes[n]:
            kept[n] = smaller
            over -= sizes[n] - size
    return tuple(kept) if over <= 0 else None


def stub(tokens: int) -> str:
    """What stands in the place of an output of so many tokens."""
    return f"[Tool output of about {tokens} tokens left out: it did not fit.]"


def _stubbed(dialect: DialectName, raw: bytes) -> bytes | None:
    """The item with its large outputs replaced, None where it has none that can be."""
    try:
        edits = list(_OUTPUTS[dialect](raw, _object(raw) or {}))
    except ValueError:  # a key comes twice
        return None
    for (start, end), new in reversed(edits):
        raw = raw[:start] + new + raw[end:]
    return raw if edits else None


def _size(dialect: DialectName, raw: bytes) -> int:
    value = _object(raw)
    return item_tokens(dialect, REQUESTS[dialect].parts(value)) if value is not None else len(raw) // 4


_Edits: TypeAlias = Iterator[tuple[Span, bytes]]


def _text_edit(raw: bytes, within: Span, value: JsonObject, key: str, tokens: int) -> _Edits:
    """A stub for what stands under `key` of the object that stands at `within`; it is text, or parts of its own."""
    if tokens >= LEAST and isinstance(value.get(key), str | list):
        yield _moved(object_spans(raw[within[0] : within[1]])[key], within[0]), dumps(stub(tokens))


def _moved(span: Span, by: int) -> Span:
    return span[0] + by, span[1] + by


def _object(raw: bytes) -> JsonObject | None:
    try:
        value = loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# -- where each API keeps a tool's output ------------------------------------------------------------------------------

_TEXT_OUTPUTS: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"}
)
"""Their `output` may be a plain string. A screenshot may not, and what a provider's own tools found is its own."""


def _responses(raw: bytes, value: JsonObject) -> _Edits:
    kind, whole = text_at(value, "type"), (0, len(raw))
    if kind in _TEXT_OUTPUTS:
        tokens = item_tokens("responses", REQUESTS["responses"].parts(value))
        yield from _text_edit(raw, whole, value, "output", tokens)
    elif kind == "shell_call_output" and isinstance(value.get("output"), list):
        start, end = object_spans(raw)["output"]
        for span, entry in zip(array_spans(raw, start, end), as_list(value["output"]), strict=True):
            if isinstance(entry, dict):
                edits = [
                    edit
                    for key in ("stdout", "stderr")
                    for edit in _text_edit(raw, span, entry, key, text_tokens(text_at(entry, key)))
                ]
                yield from sorted(edits)


def _chat(raw: bytes, value: JsonObject) -> _Edits:
    if value.get("role") in ("tool", "function"):
        tokens = item_tokens("chat", REQUESTS["chat"].parts(value))
        yield from _text_edit(raw, (0, len(raw)), value, "content", tokens)


def _messages(raw: bytes, value: JsonObject) -> _Edits:
    content = value.get("content")
    if value.get("role") != "user" or not isinstance(content, list):
        return
    start, end = object_spans(raw)["content"]
    for span, block in zip(array_spans(raw, start, end), content, strict=True):
        if isinstance(block, dict) and text_at(block, "type") == "tool_result" and not _loads_tools(block):
            yield from _text_edit(raw, span, block, "content", _tokens_of(block))


def _loads_tools(block: JsonObject) -> bool:
    """It names deferred tools, which the model can't call without."""
    return any(text_at(part, "type") == "tool_reference" for part in objects_at(block, "content"))


def _tokens_of(block: JsonValue) -> int:
    return item_tokens("messages", REQUESTS["messages"].parts({"role": "user", "content": [block]}))


_OUTPUTS: Final[Mapping[DialectName, Callable[[bytes, JsonObject], _Edits]]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
}
