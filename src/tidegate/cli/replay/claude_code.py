"""Claude Code's session files (`~/.claude/projects/*/*.jsonl`): the requests that were made for each of their answers.

Knows its entries: a tree of messages by `uuid` and `parentUuid`, one line for each block of an answer, sub-agents' own
branches, its own compactions. Called by `sessions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.cli.replay.recorded import Asked, Session, body_of, count_of, when, with_words_before
from tidegate.wire.conversation import JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads

LACKS: Final = "the system prompt, the tools and the reminders that Claude Code adds"

MADE_UP: Final = "<synthetic>"
"""Model of an answer that Claude Code has written itself, as it does for errors."""


def is_entry(line: JsonObject) -> bool:
    """Whether a line is one of Claude Code's messages."""
    return line.get("type") in ("user", "assistant") and "uuid" in line and isinstance(line.get("message"), dict)


def session(file: str, lines: Sequence[tuple[int, JsonObject]]) -> Session:
    """The session of a file's lines, each with its number."""

    def requests(words: bytes) -> Iterator[Asked]:
        return _Tree(words).requests(lines)

    own = [entry for _, entry in lines if _answers(entry)]
    first = next((entry for entry in own if entry.get("isSidechain") is not True), own[0] if own else {})
    return Session(file, "a session of Claude Code", requests, reported=_usage(first), lacks=LACKS)


@dataclass(slots=True)
class _Node:
    entry: JsonObject = field(repr=False)
    parent: str | None
    answer: str = ""
    """Id of the answer that it is a block of; empty for anything but an answer."""
    results: tuple[str, ...] = ()
    """Ids of the calls that it answers."""


class _Tree:
    """The entries so far. Those written later may move earlier ones, so requests are found as lines are read."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._nodes: dict[str, _Node] = {}
        self._answers: dict[str, list[str]] = {}
        """By the id of an answer: its lines."""
        self._results: dict[str, list[str]] = {}
        """By the id of a call: the lines that answer it."""
        self._order: dict[str, int] = {}
        self._raws: dict[tuple[str, ...], bytes] = {}
        self._moved: dict[str, str] = {}
        """What comes after an entry, and what it comes after instead."""

    def requests(self, lines: Sequence[tuple[int, JsonObject]]) -> Iterator[Asked]:
        for number, entry in lines:
            if entry.get("type") == "system" and entry.get("subtype") == "compact_boundary":
                self._keep_beside_summary(entry)
            name, parent = _text(entry.get("uuid")), _text(entry.get("parentUuid"))
            if not name:
                continue
            node = _Node(entry, self._moved.get(parent, parent) or None)
            if _answers(entry):
                message = entry["message"]
                assert isinstance(message, dict)
                node.answer = _text(message.get("id")) or name
                if node.answer not in self._answers and (items := self._items(node.parent)):
                    aside = entry.get("isSidechain") is True
                    body = self._body(_text(message.get("model")), items)
                    yield Asked("messages", body, number, when(entry.get("timestamp")), aside)
                self._answers.setdefault(node.answer, []).append(name)
            elif is_entry(entry):
                node.results = tuple(_text(it.get("tool_use_id")) for it in _blocks(entry) if "tool_use_id" in it)
                for call in node.results:
                    self._results.setdefault(call, []).append(name)
            self._order[name] = len(self._order)
            self._nodes[name] = node

    def _body(self, model: str, items: Sequence[bytes]) -> bytes:
        fields: JsonObject = {"model": model}
        if self._words:
            words = loads(self._words)
            assert isinstance(words, str)
            fields = with_words_before("messages", fields, words)
        return body_of(fields, "messages", items)

    def _items(self, last: str | None) -> list[bytes]:
        """What was sent so that an answer came after that entry: raw messages."""
        runs: list[tuple[str, list[str]]] = []
        done: set[str] = set()
        for name in self._path(last):
            node = self._nodes[name]
            if name in done or not is_entry(node.entry) or (_role(node) == "assistant" and not node.answer):
                continue
            told = self._answers[node.answer] if node.answer else [name]
            for role, names in ((_role(node), told), ("user", self._answered(told) if node.answer else [])):
                new = [it for it in names if it not in done]
                if not new:
                    continue
                if runs and runs[-1][0] == role:
                    runs[-1][1].extend(new)
                else:
                    runs.append((role, new))
                done.update(new)
        return [self._raw(role, tuple(names)) for role, names in runs]

    def _path(self, last: str | None) -> list[str]:
        """Entries from the first to that one."""
        found: dict[str, None] = {}
        while last is not None and last in self._nodes and last not in found:
            found[last] = None
            last = self._nodes[last].parent
        return [*reversed(found)]

    def _answered(self, told: Sequence[str]) -> list[str]:
        """Lines with the results of an answer's calls: where there are several, only the last is on the path."""
        calls = [_text(it.get("id")) for name in told for it in _blocks(self._nodes[name].entry) if "id" in it]
        found = {lines[0]: None for call in calls if (lines := self._results.get(call))}
        return sorted(found, key=self._order.__getitem__)

    def _raw(self, role: str, names: tuple[str, ...]) -> bytes:
        if names not in self._raws:
            contents = [_content(self._nodes[name].entry) for name in names]
            content: JsonValue = contents[0]
            if len(contents) > 1:
                content = [block for it in contents for block in _as_blocks(it)]
            self._raws[names] = dumps({"role": role, "content": content})
        return self._raws[names]

    def _keep_beside_summary(self, boundary: JsonObject) -> None:
        """What Claude Code's own compaction has left as it was comes after its summary from here on."""
        told = boundary.get("compactMetadata")
        kept = told.get("preservedSegment") or told.get("preservedMessages") if isinstance(told, dict) else None
        if not isinstance(kept, dict):
            return
        names = kept.get("uuids")
        if not isinstance(names, list) or not names:
            names = [kept.get("headUuid"), kept.get("tailUuid")]
        head, tail, anchor = _text(names[0]), _text(names[-1]), _text(kept.get("anchorUuid"))
        if head in self._nodes and tail and anchor and anchor not in self._path(self._nodes[head].parent):
            self._nodes[head].parent = anchor
            self._moved[anchor] = tail


def _answers(entry: Mapping[str, JsonValue]) -> bool:
    """Whether an entry is of an answer of the model's."""
    message = entry.get("message")
    if entry.get("type") != "assistant" or not isinstance(message, dict):
        return False
    return entry.get("isApiErrorMessage") is not True and message.get("model") != MADE_UP


def _usage(entry: Mapping[str, JsonValue]) -> int | None:
    """Input tokens of an answer, cache reads and writes included."""
    message = entry.get("message")
    usage = message.get("usage") if isinstance(message, dict) else None
    if not isinstance(usage, dict):
        return None
    keys = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(count_of(usage.get(key)) or 0 for key in keys) or None


def _role(node: _Node) -> str:
    return "assistant" if node.entry.get("type") == "assistant" else "user"


def _content(entry: JsonObject) -> JsonValue:
    message = entry.get("message")
    return message.get("content") if isinstance(message, dict) else None


def _as_blocks(content: JsonValue) -> list[JsonValue]:
    return [*content] if isinstance(content, list) else [{"type": "text", "text": content}]


def _blocks(entry: JsonObject) -> list[JsonObject]:
    content = _content(entry)
    return [it for it in content if isinstance(it, dict)] if isinstance(content, list) else []


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
