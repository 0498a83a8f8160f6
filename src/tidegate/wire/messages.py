"""How Anthropic's Messages API writes a conversation.

Knows message and block shapes; no answers, no sizes. Called through `wire.REQUESTS`. The blocks are those of
https://platform.claude.com/docs/en/api/messages, betas included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tidegate.wire import cache_marks, media
from tidegate.wire.body import Body, leading, read_body
from tidegate.wire.content import (
    Reader,
    as_list,
    json_pieces,
    mentioned,
    own_ids,
    pieces,
    result_pieces,
    text_piece,
    unknown_parts,
    without_cache_control,
)
from tidegate.wire.conversation import Conversation, DialectName, Facts, Item, JsonObject, JsonValue, Part, Role
from tidegate.wire.jsontext import dumps, loads
from tidegate.wire.untyped import ids_at, json_text, object_at, objects_at, text_at, unique

NAME: DialectName = "messages"
PATH = "/messages"
ITEMS_KEY = "messages"

_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_DEFAULT_OUTPUT = 4096
"""Tokens; `max_tokens` is required."""
_USES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_RESULTS_WITH_PARTS = frozenset({"tool_result", "mcp_tool_result"})
_THINKING = frozenset({"thinking", "redacted_thinking"})


def read(body: bytes) -> Conversation:
    """The conversation in a body. Raises `UnreadableBody`."""
    top = read_body(body)
    items = top.items(ITEMS_KEY)
    return compose(top, items, leading(items, lambda item: text_at(item, "role") == "system"))


def compose(top: Body, items: Sequence[Item], lead: int, *, refers: bool = False) -> Conversation:
    """The conversation of a body whose items are known. Raises `UnreadableBody`."""
    return Conversation(
        dialect=NAME,
        raw=top.raw,
        model=top.text("model"),
        stream=top.flag("stream"),
        output_limit=top.count("max_tokens"),
        items=items,
        lead=lead,
        system_key=top.key_of("system"),
        tools_key=top.key_of("tools"),
        schema_key=top.key_of("output_config", "output_format"),
        server_held=top.present("thread"),
        field_spans=top.spans,
    )


def refers(item: Item) -> bool:
    """Never: this API has no items that stand for others."""
    return False


def facts(item: JsonObject) -> Facts:
    """What the cutter needs to know of a message.

    A call that the same message answers (a server tool's) opens nothing and closes nothing; one that is still
    waiting when the message ends (`pause_turn`) is answered by a later item.
    """
    role = _ROLES.get(text_at(item, "role"), "other")
    blocks = _blocks(item.get("content"))
    called = [text_at(block, "id") for block in blocks if _is_use(block)]
    answered = [text_at(block, "tool_use_id") for block in blocks if _is_result(block)]
    within = {*called} & {*answered}
    own_words = any(_is_own(block) for block in blocks)
    if role == "user" and answered and not own_words:
        role, own_words = "tool", False
    unknown: list[JsonValue] = [item] if role == "other" else unknown_parts(item.get("content"), _reader_of)
    marks = cache_marks.controls(item)
    return Facts(
        kind="message",
        role=role,
        human=role == "user" and own_words,
        calls=unique([name for name in called if name and name not in within]),
        results=unique([name for name in answered if name and name not in within]),
        ids=own_ids(item, unknown),
        mentions=mentioned(unknown),
        opaque=any(_is_compaction(block) for block in blocks),
        thinking=any(text_at(block, "type") in _THINKING for block in blocks),
        marks=len(marks),
        long_mark=any(map(cache_marks.is_long, marks)),
    )


def parts(item: JsonObject) -> Iterator[Part]:
    """The message's pieces; a result's words come as one, its media after them."""
    content = item.get("content")
    if text_at(item, "role") not in _ROLES or not isinstance(content, str | list):
        yield from json_pieces(item)
    else:
        yield from pieces(content, _reader_of)


def canonical(item: JsonObject) -> JsonValue:
    """The message without `cache_control` on itself, its blocks and the parts of its tool results; string
    content as one text block. What a tool was given or gave as JSON is kept to the letter."""
    plain: JsonObject = {key: value for key, value in item.items() if key != "cache_control"}
    if "content" in plain:
        plain["content"] = _canonical_content(plain["content"], _canonical_block)
    return plain


def text_item(role: Role, text: str) -> bytes:
    """Raw JSON of a system, user or assistant message. Raises `ValueError` for another role."""
    if role not in _ROLES:
        raise ValueError(f"a {role} message needs more than words")
    return dumps({"role": role, "content": text})


def prepend_text(item: JsonObject, text: str) -> bytes | None:
    """Raw JSON of a user message with words put before its own.

    None for other roles, and where tool results or a compaction block must come first.
    """
    content = item.get("content")
    if item.get("role") != "user":
        return None
    if isinstance(content, str):
        return dumps({**item, "content": f"{text}\n\n{content}" if content else text})
    if not isinstance(content, list) or any(
        _is_result(block) or text_at(block, "type") == "compaction" for block in _blocks(content)
    ):
        return None
    return dumps({**item, "content": [{"type": "text", "text": text}, *content]})


def drop_thinking(item: JsonObject) -> bytes | None:
    """Raw JSON of the message without its thinking blocks, whole ones only (their signatures cover every
    byte); None where nothing would be left."""
    content = item.get("content")
    if not isinstance(content, list):
        return dumps(item)
    kept = [block for block in content if not (isinstance(block, dict) and text_at(block, "type") in _THINKING)]
    return dumps({**item, "content": kept}) if kept else None


def with_output_limit(conversation: Conversation, tokens: int) -> bytes | None:
    """The body with `max_tokens` lowered; None where thinking was promised as much."""
    thinking = conversation.fields.get("thinking")
    promised = loads(thinking) if thinking else None
    budget = promised.get("budget_tokens") if isinstance(promised, dict) else None
    if isinstance(budget, int) and budget >= tokens:
        return None
    return conversation.replace_fields({"max_tokens": dumps(tokens)})


def text_request(
    *,
    model: str,
    system: str,
    prompt: str,
    max_output: int | None,
    stream: bool,
    like: Conversation | None = None,
    extra: Mapping[str, JsonValue] | None = None,
) -> bytes:
    """Body of a plain call; `like` has nothing to lend, the limit has one name and is required (4,096 if
    None)."""
    body: JsonObject = {
        "model": model,
        "max_tokens": max_output if max_output is not None else _DEFAULT_OUTPUT,
        "system": system or None,
        "messages": [{"role": "user", "content": prompt}],
        "stream": stream,
    }
    body.update(extra or {})
    return dumps({key: value for key, value in body.items() if value is not None})


def _blocks(content: JsonValue) -> list[JsonObject]:
    """The content's blocks; a string as one text block, what is neither passed over."""
    texts: list[JsonValue] = [
        {"type": "text", "text": part} if isinstance(part, str) else part for part in as_list(content)
    ]
    return [part for part in texts if isinstance(part, dict)]


def _is_use(block: JsonObject) -> bool:
    return text_at(block, "type") in _USES


def _is_result(block: JsonObject) -> bool:
    kind = text_at(block, "type")
    return kind == "tool_result" or kind.endswith("_tool_result")


def _is_own(block: JsonObject) -> bool:
    """Words or media of the speaker's own."""
    if _is_result(block):
        return False
    return text_at(block, "type") != "text" or bool(text_at(block, "text"))


def _is_compaction(block: JsonObject) -> bool:
    # `content: null` is a compaction that failed: the server ignores it.
    return text_at(block, "type") == "compaction" and bool(ids_at(block, "content", "encrypted_content"))


def _reader_of(kind: str) -> Reader | None:
    return _READERS.get(kind) or (_result if kind.endswith("_tool_result") else None)


def _nested_reader_of(kind: str) -> Reader | None:
    """Results and documents hold words and media, no results and no documents of documents."""
    return _READERS.get(kind) if kind in ("text", "image", "search_result") else None


def _result_reader_of(kind: str) -> Reader | None:
    return _document if kind == "document" else _nested_reader_of(kind)


def _result(block: JsonObject) -> Iterator[Part]:
    content = block.get("content")
    if isinstance(content, dict) and text_at(content, "type") == "web_fetch_result":
        content = [text_at(content, "url"), content.get("content")]
    yield from result_pieces([*pieces(content, _result_reader_of)], call=text_at(block, "tool_use_id"))


def _thinking(block: JsonObject) -> Iterator[Part]:
    yield Part("thinking", text_at(block, "thinking"), data_bytes=len(text_at(block, "signature")))


def _redacted(block: JsonObject) -> Iterator[Part]:
    yield Part("opaque", data_bytes=len(text_at(block, "data")))


def _use(block: JsonObject) -> Iterator[Part]:
    given = block.get("input")
    words = "" if given is None else json_text(given)
    yield Part("call", words, name=text_at(block, "name"), id=text_at(block, "id"))


def _compaction(block: JsonObject) -> Iterator[Part]:
    yield Part("opaque", text_at(block, "content"), data_bytes=len(text_at(block, "encrypted_content")))


def _image(block: JsonObject) -> Iterator[Part]:
    source = object_at(block, "source")
    if text_at(source, "type") == "base64":
        media_type = text_at(source, "media_type") or "image"
        yield media.image(text_at(source, "data"), media_type=media_type)
    else:
        yield media.image(text_at(source, "url"), name=text_at(source, "file_id"))


def _document(block: JsonObject) -> Iterator[Part]:
    source, title = object_at(block, "source"), text_at(block, "title")
    kind = text_at(source, "type")
    yield Part("text", text_at(block, "context"))
    if kind == "text":
        yield Part("text", text_at(source, "data"), name=title)
    elif kind == "content":
        yield from pieces(source.get("content"), _nested_reader_of)
    elif kind == "base64":
        media_type = text_at(source, "media_type") or "application/pdf"
        yield media.document(text_at(source, "data"), media_type=media_type, name=title)
    else:
        yield media.document("", name=title or next(iter(ids_at(source, "file_id", "url")), ""))


def _search_result(block: JsonObject) -> Iterator[Part]:
    yield Part("text", "\n".join(ids_at(block, "title", "source")))
    for part in objects_at(block, "content"):
        yield Part("text", text_at(part, "text"))


def _upload(block: JsonObject) -> Iterator[Part]:
    yield Part("file", name=text_at(block, "file_id"))


def _canonical_content(content: JsonValue, each: Callable[[JsonValue], JsonValue]) -> JsonValue:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [each(block) for block in content] if isinstance(content, list) else content


def _canonical_block(block: JsonValue) -> JsonValue:
    plain = without_cache_control(block)
    if isinstance(plain, dict) and text_at(plain, "type") in _RESULTS_WITH_PARTS and "content" in plain:
        return {**plain, "content": _canonical_content(plain["content"], without_cache_control)}
    return plain


_READERS: Mapping[str, Reader] = {
    "text": text_piece,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "tool_use": _use,
    "server_tool_use": _use,
    "mcp_tool_use": _use,
    "tool_result": _result,
    "compaction": _compaction,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "container_upload": _upload,
}
