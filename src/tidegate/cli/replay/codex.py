"""Codex's rollout files (`~/.codex/sessions/**/rollout-*.jsonl`): the requests that were made for their answers.

Knows its lines (`session_meta`, `turn_context`, `response_item`, `compacted`, `event_msg`) and what each does to the
history. Called by `sessions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tidegate.cli.replay.recorded import Asked, Session, body_of, count_of, is_answer, when, with_words_before
from tidegate.context.estimate import text_tokens
from tidegate.wire.conversation import JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads

KINDS: Final = frozenset({"session_meta", "turn_context", "response_item", "compacted", "event_msg"})

NOT_SENT: Final = frozenset({"ghost_snapshot", "other"})
"""Items that Codex keeps and does not send."""

KEPT_WORDS: Final = 20_000
"""Tokens of the user's words that Codex leaves where it compacts and the file does not tell what is left
(`COMPACT_USER_MESSAGE_MAX_TOKENS`)."""

LACKS: Final = "the tools"


def is_line(line: JsonObject) -> bool:
    """Whether a line is one of Codex's."""
    return _text(line.get("type")) in KINDS and isinstance(line.get("payload"), dict)


def session(file: str, lines: Sequence[tuple[int, JsonObject]]) -> Session:
    """The session of a file's lines, each with its number."""

    def requests(words: bytes) -> Iterator[Asked]:
        return _requests(words, lines)

    window, reported = _counts(lines)
    return Session(file, "a rollout of Codex", requests, window=window, reported=reported, lacks=LACKS)


def _requests(words: bytes, lines: Sequence[tuple[int, JsonObject]]) -> Iterator[Asked]:
    history: list[JsonObject] = []
    raws: list[bytes] = []
    model = instructions = ""
    answering = aside = False
    for number, line in lines:
        payload = line.get("payload")
        if not isinstance(payload, dict):
            continue
        match line.get("type"):
            case "session_meta":
                # A forked session begins with its parent's lines, that one's `session_meta` among them.
                instructions = instructions or _instructions(payload)
                source = payload.get("source")
                aside = aside or (isinstance(source, dict) and "subagent" in source)
            case "turn_context":
                model = _text(payload.get("model")) or model
            case "response_item" if _text(payload.get("type")) not in NOT_SENT:
                if is_answer("responses", payload):
                    if history and not answering:
                        body = _body(model, instructions, words, raws)
                        yield Asked("responses", body, number, when(line.get("timestamp")), aside)
                    answering = True
                else:
                    answering = False
                history.append(payload)
                raws.append(dumps(payload))
            case "compacted":
                history, answering = _compacted(history, payload), False
                raws = [dumps(item) for item in history]
            case "event_msg" if payload.get("type") == "thread_rolled_back":
                history, answering = _rolled_back(history, payload), False
                raws = raws[: len(history)]
    if history and not answering:
        yield Asked("responses", _body(model, instructions, words, raws), lines[-1][0], None, aside)


def _body(model: str, instructions: str, words: bytes, raws: Sequence[bytes]) -> bytes:
    fields: JsonObject = {"model": model}
    if instructions:
        fields["instructions"] = instructions
    if words:
        told = loads(words)
        assert isinstance(told, str)
        fields = with_words_before("responses", fields, told)
    return body_of(fields, "input", raws)


def _counts(lines: Sequence[tuple[int, JsonObject]]) -> tuple[int | None, int | None]:
    """(window, input tokens of the first request), as far as Codex has noted them."""
    window = reported = None
    for _, line in lines:
        payload = line.get("payload")
        if line.get("type") != "event_msg" or not isinstance(payload, dict):
            continue
        info = payload.get("info")
        told = info if isinstance(info, dict) else payload
        window = window or count_of(told.get("model_context_window"))
        usage = told.get("last_token_usage")
        if reported is None and isinstance(usage, dict):
            reported = count_of(usage.get("input_tokens"))
    return window, reported


def _instructions(meta: JsonObject) -> str:
    told = meta.get("base_instructions")
    if isinstance(told, dict):
        told = told.get("text")
    return _text(told) or _text(meta.get("instructions"))


def _compacted(history: Sequence[JsonObject], payload: JsonObject) -> list[JsonObject]:
    """The history after Codex's own compaction."""
    told = payload.get("replacement_history")
    if isinstance(told, list):
        return [item for item in told if isinstance(item, dict)]
    kept: list[JsonObject] = []
    room = KEPT_WORDS
    for item in reversed(history):
        if item.get("role") == "user":
            room -= text_tokens(dumps(item).decode())
            if room < 0:
                break
            kept.insert(0, item)
    return [*kept, {"type": "message", "role": "user", "content": [_input_text(payload.get("message"))]}]


def _input_text(text: JsonValue) -> JsonObject:
    return {"type": "input_text", "text": _text(text)}


def _rolled_back(history: Sequence[JsonObject], payload: JsonObject) -> list[JsonObject]:
    """The history without its last turns, each of which begins with words of the user's."""
    turns = [at for at, item in enumerate(history) if item.get("role") == "user" and not _is_context(item)]
    count = count_of(payload.get("num_turns")) or 0
    if not count:
        return [*history]
    return [*history[: turns[-count] if count <= len(turns) else 0]]


def _is_context(item: JsonObject) -> bool:
    """Whether Codex wrote it in the user's name, about the place it works in."""
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else None
    text = _text(first.get("text")) if isinstance(first, dict) else ""
    return text.startswith(("<environment_context>", "<user_instructions>", "# AGENTS.md"))


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
