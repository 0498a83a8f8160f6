"""Recorded sessions in files: requests one a line, a transcript, or what Claude Code and Codex keep.

Tells the formats apart and reads lines; what the agents' own lines mean is told elsewhere. Called by `tidegate replay`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from tidegate.cli.replay import claude_code, codex
from tidegate.cli.replay.recorded import Asked, Session, Unreadable, before_each_answer, body_of, when
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads

Lines = Sequence[tuple[int, JsonObject]]
"""Objects, one a line, each with its number."""

ENDINGS: Final = (".jsonl", ".ndjson")

PATHS: Final[tuple[tuple[str, DialectName], ...]] = (
    ("/chat/completions", "chat"),
    ("/responses", "responses"),
    ("/messages", "messages"),
)
"""How the path of a recorded request ends."""

ANTHROPIC_BLOCKS: Final = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "document"}
)
SHOWN: Final[tuple[DialectName, ...]] = ("responses", "messages", "chat")
"""What items show, the surest first."""

RESPONSES_PARTS: Final = frozenset({"input_text", "output_text", "input_image", "input_file"})

KNOWN: Final = (
    "known are: requests (one JSON object with `messages` or `input` a line), a transcript (a request, a list of "
    "messages, or one message a line), Claude Code's sessions, Codex's rollouts"
)


def read(file: str, content: bytes, dialect: DialectName | None = None) -> Session:
    """The session in a file. `dialect` is that of its requests, where they don't show it.

    Raises `Unreadable`.
    """
    if not file.endswith(ENDINGS):
        try:
            whole = loads(content)
        except ValueError:
            whole = None
        if isinstance(whole, list):
            return _listed(file, whole, dialect)
        if isinstance(whole, dict) and not _is_line_of_an_agent(whole):
            return _one(file, whole, dialect)
    lines, notes = _lines(file, content)
    for _, line in lines:
        if claude_code.is_entry(line):
            return _noted(claude_code.session(file, lines), notes)
        if codex.is_line(line):
            return _noted(codex.session(file, lines), notes)
        if _request_in(line) is not None:
            return _noted(_recorded(file, lines, dialect), notes)
        if _is_item(line):
            return _noted(_transcript(file, {}, [it for _, it in lines if _is_item(it)], dialect), notes)
    raise Unreadable(f"{file}: no line is of a format that is known; {KNOWN}")


def _lines(file: str, content: bytes) -> tuple[Lines, tuple[str, ...]]:
    """The objects of a file, one a line. A last line that is cut, as in a file that is still written, is left out."""
    found: list[tuple[int, JsonObject]] = []
    rows = content.split(b"\n")
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        try:
            value = loads(row)
        except ValueError:
            if number == len(rows) and found:
                return found, (f"line {number}, the last one, is cut and left out",)
            raise Unreadable(f"{file}, line {number}: no JSON") from None
        if not isinstance(value, dict):
            raise Unreadable(f"{file}, line {number}: a JSON object is wanted")
        found.append((number, value))
    if not found:
        raise Unreadable(f"{file}: nothing is in it")
    return found, ()


def _noted(session: Session, notes: tuple[str, ...]) -> Session:
    return replace(session, notes=(*session.notes, *notes)) if notes else session


# -- requests ----------------------------------------------------------------------------------------------------------


def _request_in(line: JsonObject) -> JsonObject | None:
    """The body of a request: the line itself, or what a recording of requests has under `body`."""
    inner = line.get("body")
    for body in (line, inner):
        if isinstance(body, dict) and (isinstance(body.get("messages"), list) or "input" in body):
            return body
    return None


def _recorded(file: str, lines: Lines, dialect: DialectName | None) -> Session:
    asked: list[Asked] = []
    for number, line in lines:
        body = _request_in(line)
        if body is None:
            raise Unreadable(f"{file}, line {number}: no request, as the lines before it are")
        spoken = dialect or _dialect_by_path(line) or dialect_of(body)
        raw = dumps(body)
        try:
            REQUESTS[spoken].read(raw)
        except ValueError:
            raise Unreadable(f"{file}, line {number}: no request of the {spoken} API") from None
        asked.append(Asked(spoken, raw, number, when(line.get("timestamp"))))
    return Session(file, "requests", lambda words: iter(asked))


def _dialect_by_path(line: JsonObject) -> DialectName | None:
    path = line.get("path") or line.get("url")
    if not isinstance(path, str):
        return None
    return next((name for end, name in PATHS if path.partition("?")[0].endswith(end)), None)


# -- transcripts -------------------------------------------------------------------------------------------------------


def _one(file: str, value: JsonObject, dialect: DialectName | None) -> Session:
    """The session in one JSON object."""
    body = _request_in(value)
    if body is None:
        raise Unreadable(f"{file}: a JSON object without `messages` or `input`; {KNOWN}")
    spoken = dialect or _dialect_by_path(value) or dialect_of(body)
    key = REQUESTS[spoken].ITEMS_KEY
    items = body.get(key)
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    fields = {name: field for name, field in body.items() if name != key}
    return _transcript(file, fields, _objects(file, items), spoken)


def _listed(file: str, values: list[JsonValue], dialect: DialectName | None) -> Session:
    """The session in a list: of requests, or of messages."""
    items = _objects(file, values)
    if any(_request_in(item) is not None for item in items):
        return _recorded(file, [*enumerate(items, 1)], dialect)
    if not all(_is_item(item) for item in items):
        raise Unreadable(f"{file}: a list of what is neither messages nor requests; {KNOWN}")
    return _transcript(file, {}, items, dialect)


def _objects(file: str, values: JsonValue) -> list[JsonObject]:
    if not isinstance(values, list) or not values:
        raise Unreadable(f"{file}: no messages are in it")
    items = [item for item in values if isinstance(item, dict)]
    if len(items) < len(values):
        raise Unreadable(f"{file}: among its messages is something else than JSON objects")
    return items


def _transcript(file: str, fields: JsonObject, items: Sequence[JsonObject], dialect: DialectName | None) -> Session:
    spoken = dialect or dialect_of({**fields, "messages": [*items]})
    key = REQUESTS[spoken].ITEMS_KEY
    fields = fields if isinstance(fields.get("model"), str) else {**fields, "model": ""}
    raws = [dumps(item) for item in items]
    counts = [*before_each_answer(spoken, items)]

    def requests(words: bytes) -> Iterator[Asked]:
        return (Asked(spoken, body_of(fields, key, raws[:count])) for count in counts)

    return Session(file, "a transcript", requests)


def _is_item(value: JsonObject) -> bool:
    """Whether it is one message, or one item of the Responses API."""
    if isinstance(value.get("role"), str):
        return "content" in value or "tool_calls" in value
    kind = value.get("type")
    return isinstance(kind, str) and (kind.endswith(("_call", "_call_output")) or kind == "reasoning")


def _is_line_of_an_agent(value: JsonObject) -> bool:
    return claude_code.is_entry(value) or codex.is_line(value)


# -- dialects ----------------------------------------------------------------------------------------------------------


def dialect_of(body: JsonObject) -> DialectName:
    """The API that a body, or a list of items under `messages`, is of: by what only one of them has. Where nothing
    tells, it is chat's, or, for a model of Claude's, that of Messages."""
    if "input" in body or "instructions" in body:
        return "responses"
    if "system" in body or "anthropic_version" in body:
        return "messages"
    tools = body.get("tools")
    if isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools):
        return "messages"
    items = body.get("messages")
    told: set[DialectName] = {it for item in items if (it := _spoken(item))} if isinstance(items, list) else set()
    shown = next((name for name in SHOWN if name in told), None)
    if shown is not None:
        return shown
    model = body.get("model")
    return "messages" if isinstance(model, str) and "claude" in model.lower() else "chat"


def _spoken(item: JsonValue) -> DialectName | None:
    """The API that a message or item shows to be of."""
    if not isinstance(item, dict):
        return None
    content = item.get("content")
    kinds = {part.get("type") for part in content if isinstance(part, dict)} if isinstance(content, list) else set()
    if "role" not in item or kinds & RESPONSES_PARTS or item.get("type") == "message":
        return "responses"
    if kinds & ANTHROPIC_BLOCKS:
        return "messages"
    return "chat" if item["role"] in ("system", "developer", "tool") or "tool_calls" in item else None
