"""Writes conversation items as a role-labelled transcript: what a summarizer is shown.

Knows parts and labels, not any API's fields (`wire` reads those) and not the window. Called by the
summary strategy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate.compactors.fence import escape, split_marked
from tidegate.context.estimate import text_tokens
from tidegate.wire.conversation import Facts, JsonObject, Part, Role


class Reader(Protocol):
    """What is asked of a dialect (`wire.REQUESTS[dialect]`)."""

    def facts(self, item: JsonObject) -> Facts:
        """Whose words an item holds, and which calls it makes and answers."""
        ...

    def parts(self, item: JsonObject) -> Iterator[Part]:
        """The item's pieces, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Caps:
    """Most characters shown of one piece, by what it is; None shows all of it. Head and tail are kept."""

    result: int | None
    call: int | None
    other: int | None
    """Unknown parts and items, as JSON."""
    assistant: int | None = None
    user: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """One labelled piece of a transcript. Blocks of an item, and items of a group, are best kept in one
    call."""

    text: str
    tokens: int
    """Estimated, the blank line after it included."""
    item: int
    group: int


_LABELS: Final[dict[Role, str]] = {
    "user": "User",
    "assistant": "Assistant",
    "system": "System",
    "tool": "Tool result",
    "other": "Item",
}
_EARLIER: Final = "Earlier summary"

# A line of the material that looks like one of our labels gets a backslash: a tool result can't speak as
# the user.
_LABEL_LINE: Final = re.compile(
    r"^(\\*\[(?:User|Assistant|System|Tool result|Tool call|Item|Earlier summary)\b)", re.MULTILINE
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_NAME: Final = re.compile(r"[^\w.,:/@ +-]")
_LONGEST_NAME: Final = 120


def cap(text: str, limit: int | None) -> str:
    """`text` within about `limit` characters: two thirds head, one third tail, and how many were left out
    between."""
    if limit is None or len(text) <= limit:
        return text
    head = (limit * 2) // 3
    tail = limit - head
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[len(text) - tail :]}"


def cut_to_tokens(text: str, tokens: int) -> str:
    """`text` cut by `cap` until it is estimated at no more than `tokens`."""
    size = text_tokens(text)
    limit = len(text)
    while size > tokens and limit > 1:
        # Aim a little low: the kept ends may be denser than the whole.
        limit = max(1, min(limit - 1, int(limit * max(tokens - 16, 1) / size * 0.97)))
        shorter = cap(text, limit)
        size = text_tokens(shorter)
        if size <= tokens:
            return shorter
    return text if size <= tokens else text[:limit]


@dataclass(frozen=True, slots=True)
class Material:
    """The items as they are read, once for all caps."""

    facts: tuple[Facts, ...]
    parts: tuple[tuple[Part, ...], ...]
    groups: tuple[int, ...]


def read_items(values: Sequence[JsonObject], reader: Reader) -> Material:
    """Facts, parts and groups of the items."""
    facts = tuple(reader.facts(value) for value in values)
    return Material(facts, tuple(tuple(reader.parts(value)) for value in values), group(facts))


def write(material: Material, caps: Caps) -> tuple[Block, ...]:
    """The items as blocks, in order, escaped and ready for a fence.

    How many blocks there are does not depend on `caps`. Left out: thinking, empty text, base64. Media and
    opaque payloads are stubs. A summary Tidegate made earlier is labelled as one, never as the user's
    words."""
    names: dict[str, str] = {}
    return tuple(
        _block(label, text, at, material.groups[at])
        for at, (parts, fact) in enumerate(zip(material.parts, material.facts, strict=True))
        for label, text in _labelled(parts, fact, caps, names)
    )


def earlier(summary: str, tokens: int) -> tuple[Block, ...]:
    """A previous summary as blocks of at most about `tokens` each, cut between lines, for when it must be
    folded too."""
    chunks: list[str] = [""]
    for line in summary.splitlines(keepends=True):
        if chunks[-1] and text_tokens(chunks[-1] + line) > tokens:
            chunks.append("")
        chunks[-1] += line
    # Items of their own, before the first real one, so that they may fall into different calls.
    return tuple(
        _block(_EARLIER, chunk, number - len(chunks), number - len(chunks))
        for number, chunk in enumerate(chunks)
        if chunk.strip()
    )


def note(text: str) -> Block:
    """A remark of ours inside a transcript."""
    return _block("Item", text, -1, -1)


def _block(label: str, text: str, item: int, group: int) -> Block:
    written = escape(f"[{label}]\n{text}")
    return Block(written, text_tokens(written) + 1, item, group)


def group(facts: Sequence[Facts]) -> tuple[int, ...]:
    """A number for each item, the same for items that belong together: calls with their results, and what
    leans on them."""
    numbers: list[int] = []
    waiting: set[str] = set()
    leaning = False
    last = -1
    for fact in facts:
        if fact.human and not fact.results:
            waiting.clear()  # a call nobody answered
        if not waiting and not leaning:
            last += 1
        numbers.append(last)
        waiting.update(fact.calls)
        waiting.difference_update(fact.results)
        leaning = fact.leans_on_next
    return tuple(numbers)


def _labelled(parts: Sequence[Part], fact: Facts, caps: Caps, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(label, text) of each block of one item: neighbouring words are one block, stubs join what is before
    them."""
    label = ""
    texts: list[str] = []
    for part in parts:
        for its_label, text in _piece(part, fact, caps, names):
            if texts and its_label and (its_label != label or part.kind in ("call", "result")):
                yield label, "\n".join(texts)
                texts.clear()
            label = its_label or label or _LABELS[fact.role]
            texts.append(text)
    if texts:
        yield label, "\n".join(texts)


def _piece(part: Part, fact: Facts, caps: Caps, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What is shown of one part: nothing, one block, or two where an earlier summary precedes a user's
    words.

    An empty label means: belongs to whatever is before it in the item.
    """
    match part.kind:
        case "text":
            summary, words = split_marked(part.text) if fact.role == "user" else ("", part.text)
            if summary.strip():
                yield _EARLIER, _plain(summary)
            if words.strip():
                yield _LABELS[fact.role], _plain(cap(words, _text_cap(fact.role, caps)))
        case "thinking":
            return
        case "call":
            name = _name(part.name)
            if part.id:
                names[part.id] = name
            yield f"Tool call {name}".rstrip(), _plain(cap(part.text, caps.call)) or "(no arguments)"
        case "result":
            name = _name(part.name) or names.get(part.id, "")
            yield f"Tool result {name}".rstrip(), _plain(cap(part.text, caps.result)) or "(empty)"
        case "image" | "file" | "audio":
            yield "", media_stub(part)
        case "opaque":
            if part.text.strip():
                yield _EARLIER, _plain(part.text)
            elif fact.opaque or (fact.kind == "message" and fact.role != "assistant"):
                # All else that is sealed is thinking.
                yield f"Item {_name(fact.kind)}".rstrip(), f"[unreadable content, {part.data_bytes} bytes]"
        case "json":
            yield f"Item {_name(fact.kind)}".rstrip(), _plain(cap(part.text, caps.other)) or "(empty)"


def _text_cap(role: Role, caps: Caps) -> int | None:
    return {"user": caps.user, "assistant": caps.assistant, "tool": caps.result}.get(role)


def media_stub(part: Part) -> str:
    """`[image 1024×768]`, `[PDF, 12 pages: name]`, `[audio: name]`: what a reader needs to know was
    there."""
    if part.kind == "image":
        size = f" {part.width}×{part.height}" if part.width and part.height else ""
        return f"[image{size}{_after_colon(part.name)}]"
    is_pdf = part.pages is not None or "pdf" in part.name.lower()
    what = "PDF" if is_pdf else part.kind
    pages = f", {part.pages} page{'s' if part.pages != 1 else ''}" if part.pages is not None else ""
    return f"[{what}{pages}{_after_colon(part.name)}]"


def _after_colon(name: str) -> str:
    shown = _name(name)
    return f": {shown}" if shown else ""


def _name(text: str) -> str:
    """A tool's, file's or type's name as it may stand in a label: one short line without brackets."""
    return _NOT_NAME.sub("", text)[:_LONGEST_NAME].strip()


def _plain(text: str) -> str:
    return _LABEL_LINE.sub(r"\\\1", _SURROGATE.sub("\ufffd", text))
