"""Where each API keeps a tool's output, and how it is replaced without a change to anything else.

Knows shapes of items; decides nothing. Called by `fit` and `elide`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from tidegate.context.estimate import item_tokens, text_tokens
from tidegate.wire import REQUESTS
from tidegate.wire.content import as_list
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import array_spans, dumps, loads, object_spans
from tidegate.wire.untyped import objects_at, text_at

Span: TypeAlias = tuple[int, int]

Say: TypeAlias = Callable[[str, int, JsonValue], str | None]
"""What comes in the place of an output: by the id of its call, its estimated tokens, and itself, which is a text or a
list of parts. None: it stays."""


def edited(dialect: DialectName, raw: bytes, say: Say) -> bytes | None:
    """The item with its outputs replaced, None where none was.

    Only the output itself is replaced: its call, its ids, and everything else keep their bytes.
    """
    try:
        edits = list(_OUTPUTS[dialect](raw, object_of(raw) or {}, say))
    except ValueError:  # a key comes twice
        return None
    for (start, end), new in reversed(edits):
        raw = raw[:start] + new + raw[end:]
    return raw if edits else None


def object_of(raw: bytes) -> JsonObject | None:
    """An item parsed, None where it is no object."""
    try:
        value = loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


_Edits: TypeAlias = Iterator[tuple[Span, bytes]]


def _text_edit(raw: bytes, within: Span, value: JsonObject, key: str, call: str, tokens: int, say: Say) -> _Edits:
    """What is said in the place of what stands under `key` of the object that stands at `within`."""
    content = value.get(key)
    if not isinstance(content, str | list):
        return
    said = say(call, tokens, content)
    if said is not None:
        yield _moved(object_spans(raw[within[0] : within[1]])[key], within[0]), dumps(said)


def _moved(span: Span, by: int) -> Span:
    return span[0] + by, span[1] + by


_TEXT_OUTPUTS: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"}
)
"""Their `output` may be a plain string. A screenshot may not, and what a provider's own tools found is its own."""


def _responses(raw: bytes, value: JsonObject, say: Say) -> _Edits:
    kind, whole, call = text_at(value, "type"), (0, len(raw)), text_at(value, "call_id")
    if kind in _TEXT_OUTPUTS:
        tokens = item_tokens("responses", REQUESTS["responses"].parts(value))
        yield from _text_edit(raw, whole, value, "output", call, tokens, say)
    elif kind == "shell_call_output" and isinstance(value.get("output"), list):
        start, end = object_spans(raw)["output"]
        for span, entry in zip(array_spans(raw, start, end), as_list(value["output"]), strict=True):
            if isinstance(entry, dict):
                edits = [
                    edit
                    for key in ("stdout", "stderr")
                    for edit in _text_edit(raw, span, entry, key, call, text_tokens(text_at(entry, key)), say)
                ]
                yield from sorted(edits)


def _chat(raw: bytes, value: JsonObject, say: Say) -> _Edits:
    if value.get("role") in ("tool", "function"):
        tokens = item_tokens("chat", REQUESTS["chat"].parts(value))
        yield from _text_edit(raw, (0, len(raw)), value, "content", text_at(value, "tool_call_id"), tokens, say)


def _messages(raw: bytes, value: JsonObject, say: Say) -> _Edits:
    content = value.get("content")
    if value.get("role") != "user" or not isinstance(content, list):
        return
    start, end = object_spans(raw)["content"]
    for span, block in zip(array_spans(raw, start, end), content, strict=True):
        if isinstance(block, dict) and text_at(block, "type") == "tool_result" and not _loads_tools(block):
            yield from _text_edit(raw, span, block, "content", text_at(block, "tool_use_id"), _tokens_of(block), say)


def _loads_tools(block: JsonObject) -> bool:
    """It names deferred tools, which the model can't call without."""
    return any(text_at(part, "type") == "tool_reference" for part in objects_at(block, "content"))


def _tokens_of(block: JsonValue) -> int:
    return item_tokens("messages", REQUESTS["messages"].parts({"role": "user", "content": [block]}))


_OUTPUTS: Final[Mapping[DialectName, Callable[[bytes, JsonObject, Say], _Edits]]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
}
