"""How OpenAI's Chat Completions API writes a conversation, compatible servers' habits included.

Knows message and part shapes; no answers, no sizes. Called through `wire.REQUESTS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate.wire import cache_marks, media
from tidegate.wire.body import Body, leading, read_body
from tidegate.wire.content import (
    Reader,
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
from tidegate.wire.conversation import Conversation, DialectName, Facts, Item, JsonObject, JsonValue, Part, Role
from tidegate.wire.jsontext import dumps
from tidegate.wire.untyped import ids_at, object_at, objects_at, text_at, unique

NAME: DialectName = "chat"
PATH = "/chat/completions"
ITEMS_KEY = "messages"

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_LIMITS = ("max_completion_tokens", "max_tokens")


def read(body: bytes) -> Conversation:
    """The conversation in a body. Raises `UnreadableBody`."""
    top = read_body(body)
    items = top.items(ITEMS_KEY)
    return compose(top, items, leading(items, lambda item: _role(item) == "system"))


def compose(top: Body, items: Sequence[Item], lead: int, *, refers: bool = False) -> Conversation:
    """The conversation of a body whose items are known. Raises `UnreadableBody`."""
    return Conversation(
        dialect=NAME,
        raw=top.raw,
        model=top.text("model"),
        stream=top.flag("stream"),
        output_limit=top.count(*_LIMITS),
        items=items,
        lead=lead,
        tools_key=top.key_of("tools", "functions"),
        schema_key=top.key_of("response_format"),
        server_held=False,
        field_spans=top.spans,
    )


def refers(item: Item) -> bool:
    """Never: this API has no items that stand for others."""
    return False


def facts(item: JsonObject) -> Facts:
    """What the cutter needs to know of a message.

    The legacy `function_call` has no id: call and result are linked by the function's name, as
    `function:NAME`, and a `tool_calls` entry or a `tool` message without an id likewise. Such an id may come
    more than once in a history; a result then answers the nearest call before it.
    """
    role = _role(item)
    calls = tuple(_call_id(call) for call in objects_at(item, "tool_calls")) if role == "assistant" else ()
    if role == "assistant" and "name" in (legacy := object_at(item, "function_call")):
        calls += (_by_name(text_at(legacy, "name")),)
    unknown: list[JsonValue] = [item] if role == "other" else unknown_parts(item.get("content"), _READERS.get)
    marks = cache_marks.controls(item)
    return Facts(
        kind="message",
        role=role,
        human=role == "user" and bool(item.get("content")),
        calls=unique(list(calls)),
        results=_results(item) if role == "tool" else (),
        ids=own_ids(item, unknown),
        mentions=mentioned(unknown),
        marks=len(marks),
        long_mark=any(map(cache_marks.is_long, marks)),
    )


def parts(item: JsonObject) -> Iterator[Part]:
    """The message's pieces: thinking, content, refusal, tool calls. A tool message's words come as one
    result."""
    role = _role(item)
    if role == "other":
        yield from json_pieces(item)
        return
    if role == "assistant":
        yield from _thinking(item)
    if role == "tool":
        yield from _result(item)
    else:
        yield from pieces(item.get("content"), _READERS.get)
    if refusal := text_at(item, "refusal"):
        yield Part("text", refusal)
    if role == "assistant":
        yield from _calls(item)
        if object_at(item, "audio"):
            # https://platform.openai.com/docs/guides/audio: an earlier answer's sound, named by its id.
            yield Part("audio", name=text_at(object_at(item, "audio"), "id"))


def canonical(item: JsonObject) -> JsonValue:
    """The message without `cache_control` on itself and its parts, a string content as one text part."""
    plain: JsonObject = {key: value for key, value in item.items() if key != "cache_control"}
    content = plain.get("content")
    if isinstance(content, str):
        plain["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        plain["content"] = [without_cache_control(part) for part in content]
    return plain


def text_item(role: Role, text: str) -> bytes:
    """Raw JSON of a system, user or assistant message. Raises `ValueError` for another role."""
    if role not in ("system", "user", "assistant"):
        raise ValueError(f"a {role} message needs more than words")
    return dumps({"role": role, "content": text})


def prepend_text(item: JsonObject, text: str) -> bytes | None:
    """Raw JSON of a user message with words put before its own; None for anything else."""
    content = item.get("content")
    if item.get("role") != "user":
        return None
    if isinstance(content, str):
        return dumps({**item, "content": f"{text}\n\n{content}" if content else text})
    if isinstance(content, list):
        return dumps({**item, "content": [{"type": "text", "text": text}, *content]})
    return None


def drop_thinking(item: JsonObject) -> bytes | None:
    """Raw JSON of the message as it is: this API has no thinking blocks bound to what comes before them."""
    return dumps(item)


def with_output_limit(conversation: Conversation, tokens: int) -> bytes | None:
    """The body with its output limit lowered; None where it states none."""
    stated = [name for name in _LIMITS if name in conversation.fields]
    return conversation.replace_fields(dict.fromkeys(stated, dumps(tokens))) if stated else None


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
    """Body of a plain call; the output limit takes the field name that `like` uses, else `max_tokens`."""
    messages: list[JsonValue] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    body: JsonObject = {"model": model, "messages": messages}
    if max_output is not None:
        used = (name for name in _LIMITS if like is not None and name in like.fields)
        body[next(used, "max_tokens")] = max_output
    body["stream"] = stream
    if stream:
        body["stream_options"] = {"include_usage": True}
    body.update(extra or {})
    return dumps({key: value for key, value in body.items() if value is not None})


def _role(item: JsonObject) -> Role:
    return _ROLES.get(text_at(item, "role"), "other")


def _by_name(name: str) -> str:
    return f"function:{name}"


def _call_id(call: JsonObject) -> str:
    return text_at(call, "id") or _by_name(_call_words(call)[0])


def _results(item: JsonObject) -> tuple[str, ...]:
    return (text_at(item, "tool_call_id") or _by_name(text_at(item, "name")),)


def _call_words(call: JsonObject) -> tuple[str, str]:
    """Name and arguments of a `tool_calls` entry, of type function or custom."""
    custom = object_at(call, "custom")
    if custom:
        return text_at(custom, "name"), words_of(custom.get("input"))
    function = object_at(call, "function")
    return text_at(function, "name"), words_of(function.get("arguments"))


def _calls(item: JsonObject) -> Iterator[Part]:
    for call in objects_at(item, "tool_calls"):
        name, words = _call_words(call)
        yield Part("call", words, name=name, id=_call_id(call))
    if legacy := object_at(item, "function_call"):
        name = text_at(legacy, "name")
        yield Part("call", words_of(legacy.get("arguments")), name=name, id=_by_name(name))


def _result(item: JsonObject) -> Iterator[Part]:
    found = [*pieces(item.get("content"), _READERS.get)]
    yield from result_pieces(found, name=text_at(item, "name"), call=_results(item)[0])


def _thinking(item: JsonObject) -> Iterator[Part]:
    # DeepSeek, Qwen, vLLM and others: `reasoning_content`; OpenRouter: `reasoning` and `reasoning_details`.
    words = text_at(item, "reasoning_content") or text_at(item, "reasoning")
    details = objects_at(item, "reasoning_details")
    words = words or "\n".join(text for part in details for text in ids_at(part, "text", "summary"))
    if words:
        yield Part("thinking", words)
    sealed = sum(len(text_at(part, "data")) for part in details)
    if sealed:
        yield Part("opaque", data_bytes=sealed)


def _refusal(part: JsonObject) -> Iterator[Part]:
    yield Part("text", text_at(part, "refusal"))


def _image(part: JsonObject) -> Iterator[Part]:
    # `image_url` is an object here, a string in the Responses API and with some servers.
    link = object_at(part, "image_url")
    yield media.image(text_at(link, "url") or text_at(part, "image_url"), detail=text_at(link, "detail"))


def _audio(part: JsonObject) -> Iterator[Part]:
    sound = object_at(part, "input_audio")
    yield Part("audio", name=text_at(sound, "format"), data_bytes=len(text_at(sound, "data")))


def _file(part: JsonObject) -> Iterator[Part]:
    file = object_at(part, "file")
    yield media.document(text_at(file, "file_data"), name=text_at(file, "filename") or text_at(file, "file_id"))


_READERS: Mapping[str, Reader] = {
    "text": text_piece,
    "refusal": _refusal,
    "image_url": _image,
    "input_audio": _audio,
    "file": _file,
}
