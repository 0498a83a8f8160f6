"""How OpenAI's Responses API writes a conversation, as input items.

Knows item and part shapes; no answers, no sizes. Called through `wire.REQUESTS`. The items are those of
https://platform.openai.com/docs/api-reference/responses/create and what Codex adds to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate.wire import media
from tidegate.wire.body import Body, item_value, leading, read_body
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
    words_of,
)
from tidegate.wire.conversation import (
    Conversation,
    DialectName,
    Facts,
    Item,
    JsonObject,
    JsonValue,
    Part,
    Role,
)
from tidegate.wire.jsontext import dumps
from tidegate.wire.untyped import ids_at, object_at, objects_at, text_at

NAME: DialectName = "responses"
PATH = "/responses"
ITEMS_KEY = "input"

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})
"""One family: Codex accepts the second as an alias, the third was its name in May 2026."""

_CALLS: Mapping[str, tuple[str, str]] = {
    # The call's type: the keys of its tool's name and of its arguments. Another item answers it by `call_id`.
    "function_call": ("name", "arguments"),
    "custom_tool_call": ("name", "input"),
    "local_shell_call": ("", "action"),
    "shell_call": ("", "action"),
    "apply_patch_call": ("", "operation"),
    "computer_call": ("", "action"),
    "tool_search_call": ("", "arguments"),
    "mcp_approval_request": ("name", "arguments"),
    "program": ("", "code"),
}
_OUTPUTS: Mapping[str, str] = {
    # The result's type: the key of its content.
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "computer_call_output": "output",
    "tool_search_output": "tools",
    "mcp_approval_response": "approve",
    "program_output": "result",
}
_SELF_ANSWERED: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    # Calls the provider ran itself, whose result stands in the same item: name, arguments, results.
    "web_search_call": ("", "action", ("results",)),
    "file_search_call": ("", "queries", ("results",)),
    "code_interpreter_call": ("", "code", ("outputs",)),
    "mcp_call": ("name", "arguments", ("output", "error")),
}
_SETTINGS = frozenset({"additional_tools", "configuration_update"})
"""Items without words that govern all that follows, like a developer message."""


def read(body: bytes) -> Conversation:
    """The conversation in a body. A string `input` is one user message. Raises `UnreadableBody`."""
    top = read_body(body)
    items = _items(top)
    lead = leading(items, lambda item: _role(item) == "system")
    return compose(top, items, lead, refers=any(refers(item) for item in items))


def compose(top: Body, items: Sequence[Item], lead: int, *, refers: bool = False) -> Conversation:
    """The conversation of a body whose items are known, and whether one of them `refers` to an item that the server
    holds. Raises `UnreadableBody`."""
    return Conversation(
        dialect=NAME,
        raw=top.raw,
        model=top.text("model"),
        stream=top.flag("stream"),
        output_limit=top.count("max_output_tokens"),
        items=items,
        lead=lead,
        system_key=top.key_of("instructions"),
        tools_key=top.key_of("tools"),
        schema_key=top.key_of("text"),
        server_held=top.present("previous_response_id") or top.present("conversation") or refers,
        field_spans=top.spans,
        items_key=ITEMS_KEY,
    )


def refers(item: Item) -> bool:
    """Whether the item stands for one that the server holds."""
    return _may_refer(item) and _kind(item_value(item) or {}) == "item_reference"


def facts(item: JsonObject) -> Facts:
    """What the cutter needs to know of an item.

    Only a reasoning item leans on the next one. Assistant items that directly follow it belong to the same
    output and must stay with it too (openai-agents-python#2727: `msg_…` without its `rs_…` is refused); that
    hangs on their neighbours, so the cutter ties such a run together by kind and role.
    """
    kind = _kind(item)
    if kind == "message":
        return _message_facts(item)
    if kind == "reasoning":
        return Facts(kind, "assistant", ids=ids_at(item, "id"), leans_on_next=True)
    if kind in _CALLS:
        return Facts(kind, "assistant", calls=(_call_id(item),), ids=ids_at(item, "id"), mentions=_caller(item))
    if kind in _OUTPUTS:
        # By its reference a local shell's output bears the call's id as its own: name it, whichever id is meant.
        named = ids_at(item, "id") if kind == "local_shell_call_output" else ()
        mentions = named + _caller(item)
        return Facts(kind, "tool", results=(_call_id(item),), ids=ids_at(item, "id"), mentions=mentions)
    if kind in _SELF_ANSWERED or kind in ("image_generation_call", "mcp_list_tools"):
        approved = ids_at(item, "approval_request_id")
        return Facts(kind, "assistant", ids=ids_at(item, "id"), mentions=approved + _caller(item))
    if kind in COMPACTIONS:
        return Facts(kind, "other", ids=ids_at(item, "id"), opaque=True)
    if kind == "item_reference":
        return Facts(kind, "other", ids=ids_at(item, "id"), mentions=ids_at(item, "id"), reference=True)
    if kind == "compaction_trigger":
        return Facts(kind, "other", ids=ids_at(item, "id"))
    return Facts(kind, _role(item), ids=own_ids(item, [item]), mentions=mentioned([item]))


def parts(item: JsonObject) -> Iterator[Part]:
    """The item's pieces. A call with its own result gives both."""
    kind = _kind(item)
    if kind == "message":
        yield from pieces(item.get("content"), _READERS.get)
    elif kind == "reasoning":
        yield from _reasoning(item)
    elif kind in _CALLS:
        name_key, words_key = _CALLS[kind]
        yield _call(item, kind, name_key, words_key)
    elif kind in _OUTPUTS:
        yield from _output(item, kind)
    elif kind in _SELF_ANSWERED:
        yield from _self_answered(item, kind)
    elif kind == "image_generation_call":
        yield from _generated_image(item)
    elif kind in COMPACTIONS:
        yield Part("opaque", data_bytes=len(text_at(item, "encrypted_content")))
    else:
        yield from json_pieces(item)


def canonical(item: JsonObject) -> JsonValue:
    """The item without `cache_control` on itself and its parts, a message's string content as one text
    part."""
    plain: JsonObject = {key: value for key, value in item.items() if key != "cache_control"}
    content = plain.get("content")
    if isinstance(content, str):
        plain["content"] = [_text_part(_role(item), content)]
    elif isinstance(content, list):
        plain["content"] = [without_cache_control(part) for part in content]
    return plain


def text_item(role: Role, text: str) -> bytes:
    """Raw JSON of a system, user or assistant message. Raises `ValueError` for another role."""
    if role not in ("system", "user", "assistant"):
        raise ValueError(f"a {role} item needs more than words")
    return dumps({"type": "message", "role": role, "content": [_text_part(role, text)]})


def prepend_text(item: JsonObject, text: str) -> bytes | None:
    """Raw JSON of a user message with words put before its own; None for anything else."""
    content = item.get("content")
    if _kind(item) != "message" or item.get("role") != "user":
        return None
    if isinstance(content, str):
        return dumps({**item, "content": f"{text}\n\n{content}" if content else text})
    if isinstance(content, list):
        return dumps({**item, "content": [_text_part("user", text), *content]})
    return None


def drop_thinking(item: JsonObject) -> bytes | None:
    """Raw JSON of the item, None for a reasoning item: it is thinking as a whole."""
    return None if _kind(item) == "reasoning" else dumps(item)


def with_output_limit(conversation: Conversation, tokens: int) -> bytes | None:
    """The body with its output limit lowered; None where it states none."""
    if conversation.output_limit is None:
        return None
    return conversation.replace_fields({"max_output_tokens": dumps(tokens)})


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
    """Body of a plain call that the provider does not keep; `like` has nothing to lend, the limit has one
    name."""
    body: JsonObject = {
        "model": model,
        "instructions": system or None,
        "input": [{"type": "message", "role": "user", "content": [_text_part("user", prompt)]}],
        "max_output_tokens": max_output,
        "store": False,
        "stream": stream,
    }
    body.update(extra or {})
    return dumps({key: value for key, value in body.items() if value is not None})


def _items(top: Body) -> Sequence[Item]:
    raw = top.fields.get(ITEMS_KEY, b"")
    if not raw.startswith(b'"'):
        return top.items(ITEMS_KEY)
    # Spliced as bytes, so that the string keeps its escapes.
    return (Item(b'{"role":"user","content":' + raw + b"}", 0, 0),)


def _may_refer(item: Item) -> bool:
    """Worth a look: names the type, or is too short to be anything else and has neither role nor type of its
    own."""
    raw = item.raw
    if b"item_reference" in raw:
        return True
    return len(raw) < 256 and b'"role"' not in raw and (b'"type"' not in raw or b"null" in raw)


def _kind(item: JsonObject) -> str:
    """The item's type. It may be left out of messages and of item references."""
    kind = text_at(item, "type")
    if kind:
        return kind
    if "role" in item or "content" in item:
        return "message"
    return "item_reference" if text_at(item, "id") else "unknown"


def _role(item: JsonObject) -> Role:
    kind = _kind(item)
    if kind in _SETTINGS:
        return "system"
    if "role" in item:
        return _ROLES.get(text_at(item, "role"), "other")
    if kind.endswith("_output"):
        return "tool"
    return "assistant" if kind.endswith("_call") else "other"


def _message_facts(item: JsonObject) -> Facts:
    role = _role(item)
    content = item.get("content")
    unknown: list[JsonValue] = [item] if role == "other" else unknown_parts(content, _READERS.get)
    return Facts(
        kind="message",
        role=role,
        human=role == "user" and any(part != "" for part in as_list(content)),
        ids=own_ids(item, unknown),
        mentions=mentioned(unknown),
    )


def _call_id(item: JsonObject) -> str:
    """What links a call and its result."""
    kind = _kind(item)
    if kind == "mcp_approval_request":
        return text_at(item, "id")
    if kind == "mcp_approval_response":
        return text_at(item, "approval_request_id")
    if call := text_at(item, "call_id"):
        return call
    if kind.startswith("tool_search"):
        return "tool_search"  # one the provider ran: its call and output carry no id
    if kind == "function_call_output" and text_at(item, "name"):
        return f"function:{text_at(item, 'name')}"
    return text_at(item, "id")  # the reference gives a local shell's output the call's id as its own


def _caller(item: JsonObject) -> tuple[str, ...]:
    """The program that made this call, where one did (programmatic tool calling)."""
    return ids_at(object_at(item, "caller"), "caller_id")


def _call(item: JsonObject, kind: str, name_key: str, words_key: str) -> Part:
    value = item.get(words_key)
    if value is None and words_key == "action":
        value = item.get("actions")  # a computer call may batch them
    return Part("call", words_of(value), name=text_at(item, name_key) or kind, id=_call_id(item))


def _output(item: JsonObject, kind: str) -> Iterator[Part]:
    found = [*pieces(item.get(_OUTPUTS[kind]), _READERS.get)]
    if reason := text_at(item, "reason"):
        found.append(Part("text", reason))
    yield from result_pieces(found, name=text_at(item, "name"), call=_call_id(item))


def _self_answered(item: JsonObject, kind: str) -> Iterator[Part]:
    name_key, words_key, result_keys = _SELF_ANSWERED[kind]
    name, call = text_at(item, name_key) or kind, text_at(item, "id")
    yield Part("call", words_of(item.get(words_key)), name=name, id=call)
    found = [piece for key in result_keys for piece in pieces(item.get(key), _READERS.get)]
    if found:
        yield from result_pieces(found, name=name, call=call)


def _generated_image(item: JsonObject) -> Iterator[Part]:
    yield Part("call", text_at(item, "revised_prompt"), name="image_generation_call", id=text_at(item, "id"))
    if picture := text_at(item, "result"):
        yield media.image(picture, media_type="image/" + (text_at(item, "output_format") or "png"))


def _reasoning(item: JsonObject) -> Iterator[Part]:
    thoughts = [*objects_at(item, "summary"), *objects_at(item, "content")]
    words = "\n".join(text for piece in thoughts if (text := text_at(piece, "text")))
    if words:
        yield Part("thinking", words)
    if sealed := text_at(item, "encrypted_content"):
        yield Part("opaque", data_bytes=len(sealed))


def _text_part(role: Role, text: str) -> JsonObject:
    return {"type": "output_text" if role == "assistant" else "input_text", "text": text}


def _refusal(part: JsonObject) -> Iterator[Part]:
    yield Part("text", text_at(part, "refusal"))


def _image(part: JsonObject) -> Iterator[Part]:
    link = text_at(part, "image_url") or text_at(object_at(part, "image_url"), "url") or text_at(part, "url")
    yield media.image(link, detail=text_at(part, "detail"), name=text_at(part, "file_id"))


def _file(part: JsonObject) -> Iterator[Part]:
    name = next(iter(ids_at(part, "filename", "file_id", "file_url")), "")
    data = text_at(part, "file_data")
    yield media.document(data, media_type="" if data.startswith("data:") else "application/pdf", name=name)


def _audio(part: JsonObject) -> Iterator[Part]:
    sound = object_at(part, "input_audio")
    yield Part("audio", name=text_at(sound, "format"), data_bytes=len(text_at(sound, "data")))


_READERS: Mapping[str, Reader] = {
    "input_text": text_piece,
    "output_text": text_piece,
    "text": text_piece,
    "refusal": _refusal,
    "input_image": _image,
    "image": _image,
    "computer_screenshot": _image,
    "input_file": _file,
    "input_audio": _audio,
}
