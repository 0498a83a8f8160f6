"""A chat completions request written as a Responses request that means the same, or why there is none.

Knows both APIs of OpenAI (openai 3.57: `CompletionCreateParams`, `ResponseCreateParams`); judges no sizes, sends
nothing. What is in no table here does not map. Called by the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from tidegate.wire.conversation import Conversation, JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads

Mapped: TypeAlias = tuple[str, JsonValue] | None
"""A field of the Responses request, None for one that says no more than is the rule."""

LEAST_OUTPUT: Final = 16
"""Output tokens that the Responses API wants to be asked for at least."""


class Unmapped(Exception):
    """There is no such Responses request. `what` names the first field in the way, by its place and with no word of the
    client's own."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def responses_body(conversation: Conversation) -> bytes:
    """The body of the Responses request that means what a chat completions request does, not to be stored.

    Equal messages become equal items, whatever comes after them. Raises `Unmapped`.
    """
    whole: JsonObject = {"model": conversation.model}
    for name, raw in conversation.fields.items():
        if name in _ELSEWHERE:
            continue
        if raw == b"null" and name in _FIELDS.keys() | _KNOWN:
            continue
        if name not in _FIELDS:
            raise Unmapped(name if name in _KNOWN else "an unknown field")
        try:
            value = loads(raw)
        except ValueError:
            raise Unmapped(name) from None
        mapped = _FIELDS[name](value)
        if mapped is not None:
            _put(whole, *mapped)
    whole["input"] = _items(conversation)
    whole["store"] = False
    return dumps(whole)


def _put(whole: JsonObject, name: str, value: JsonValue) -> None:
    """Two fields of chat may be parts of one here (`text`); the same part twice has no meaning."""
    known = whole.get(name)
    if known is None:
        whole[name] = value
    elif isinstance(known, dict) and isinstance(value, dict) and known.keys().isdisjoint(value):
        whole[name] = {**known, **value}
    else:
        raise Unmapped(name)


# -- fields ----------------------------------------------------------------------------------------------------------


def _same(name: str) -> Callable[[JsonValue], Mapped]:
    return lambda value: (name, value)


def _only(name: str, *rules: JsonValue) -> Callable[[JsonValue], Mapped]:
    """One that may not say anything but the rule."""

    def field(value: JsonValue) -> Mapped:
        if any(value == rule and isinstance(value, bool) == isinstance(rule, bool) for rule in rules):
            return None
        raise Unmapped(name)

    return field


def _output_limit(value: JsonValue) -> Mapped:
    if not isinstance(value, int) or isinstance(value, bool) or value < LEAST_OUTPUT:
        raise Unmapped("max_completion_tokens")
    return "max_output_tokens", value


def _effort(value: JsonValue) -> Mapped:
    return "reasoning", {"effort": value}


def _verbosity(value: JsonValue) -> Mapped:
    return "text", {"verbosity": value}


def _service_tier(value: JsonValue) -> Mapped:
    if value == "scale":
        raise Unmapped("service_tier")
    return "service_tier", value


def _format(value: JsonValue) -> Mapped:
    given = _object(value, "response_format")
    if given in ({"type": "text"}, {"type": "json_object"}):
        return "text", {"format": given}
    if given.get("type") != "json_schema" or given.keys() != {"type", "json_schema"}:
        raise Unmapped("response_format")
    schema = _object(given["json_schema"], "response_format", {"name", "schema", "strict", "description"})
    if not isinstance(schema.get("schema"), dict):
        raise Unmapped("response_format")
    return "text", {"format": {"type": "json_schema", **_said(schema), "strict": bool(schema.get("strict"))}}


def _stream_options(value: JsonValue) -> Mapped:
    given = _object(value, "stream_options", {"include_usage", "include_obfuscation"})
    obfuscated = given.get("include_obfuscation")
    return None if obfuscated is None else ("stream_options", {"include_obfuscation": obfuscated})


def _tools(value: JsonValue) -> Mapped:
    if not isinstance(value, list):
        raise Unmapped("tools")
    return "tools", [_tool(_object(tool, "tools")) for tool in value]


def _tool(tool: JsonObject) -> JsonValue:
    kind = tool.get("type")
    if kind == "function" and tool.keys() == {"type", "function"}:
        # Responses takes a tool for strict where it does not say, chat does not.
        function = _object(tool["function"], "tools", {"name", "description", "parameters", "strict"})
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        return {"type": "function", **_said(function), "parameters": parameters, "strict": bool(function.get("strict"))}
    if kind == "custom" and tool.keys() == {"type", "custom"}:
        custom = _object(tool["custom"], "tools", {"name", "description", "format"})
        made: JsonObject = {"type": "custom", **_said(custom)}
        form = custom.get("format")
        if form is not None:
            made["format"] = _grammar(_object(form, "tools", {"type", "grammar"}))
        return made
    raise Unmapped("tools")


def _grammar(form: JsonObject) -> JsonValue:
    if "grammar" not in form:
        return form
    return {"type": form.get("type"), **_object(form["grammar"], "tools", {"definition", "syntax"})}


def _tool_choice(value: JsonValue) -> Mapped:
    if isinstance(value, str):
        return "tool_choice", value
    given = _object(value, "tool_choice")
    kind = given.get("type")
    if kind == "allowed_tools":
        allowed = _object(given.get("allowed_tools"), "tool_choice", {"mode", "tools"})
        tools = allowed.get("tools")
        if not isinstance(tools, list):
            raise Unmapped("tool_choice")
        named: list[JsonValue] = [_named(_object(tool, "tool_choice")) for tool in tools]
        return "tool_choice", {"type": "allowed_tools", "mode": allowed.get("mode"), "tools": named}
    return "tool_choice", _named(given)


def _named(choice: JsonObject) -> JsonValue:
    kind = choice.get("type")
    if kind not in ("function", "custom") or choice.keys() != {"type", kind}:
        raise Unmapped("tool_choice")
    return {"type": kind, "name": _object(choice[str(kind)], "tool_choice", {"name"}).get("name")}


_ELSEWHERE: Final = frozenset({"model", "messages"})
_FIELDS: Final[Mapping[str, Callable[[JsonValue], Mapped]]] = {
    "frequency_penalty": _only("frequency_penalty", 0),
    "logit_bias": _only("logit_bias", {}),
    "logprobs": _only("logprobs", False),
    "max_completion_tokens": _output_limit,
    "max_tokens": _output_limit,
    "metadata": _same("metadata"),
    "modalities": _only("modalities", ["text"]),
    "n": _only("n", 1),
    "parallel_tool_calls": _same("parallel_tool_calls"),
    "presence_penalty": _only("presence_penalty", 0),
    "prompt_cache_key": _same("prompt_cache_key"),
    "prompt_cache_options": _same("prompt_cache_options"),
    "prompt_cache_retention": _same("prompt_cache_retention"),
    "reasoning_effort": _effort,
    "response_format": _format,
    "safety_identifier": _same("safety_identifier"),
    "service_tier": _service_tier,
    "stop": _only("stop", []),
    "store": _only("store", False),
    "stream": _same("stream"),
    "stream_options": _stream_options,
    "temperature": _same("temperature"),
    "tool_choice": _tool_choice,
    "tools": _tools,
    "top_logprobs": _only("top_logprobs"),
    "top_p": _same("top_p"),
    "user": _same("user"),
    "verbosity": _verbosity,
}
_KNOWN: Final = frozenset(
    {"audio", "function_call", "functions", "moderation", "prediction", "seed", "web_search_options"}
)
"""Fields of chat that Responses has not, or not with the same meaning."""


# -- messages --------------------------------------------------------------------------------------------------------


def _items(conversation: Conversation) -> list[JsonValue]:
    items: list[JsonValue] = []
    kinds: dict[str, str] = {}
    for place in range(len(conversation.items)):
        where = f"messages[{place}]"
        try:
            message = _object(loads(conversation.item_raw(place)), where)
        except ValueError:
            raise Unmapped(where) from None
        role = message.get("role")
        if role not in _MESSAGES:
            raise Unmapped(f"{where}.role")
        items += _MESSAGES[str(role)](message, where, kinds)
    return items


def _instructions(message: JsonObject, where: str, _kinds: dict[str, str]) -> list[JsonValue]:
    _fields(message, where, {"role", "content"})
    parts = _parts(message.get("content"), where, {"text": _text("input_text")})
    return [{"type": "message", "role": message["role"], "content": parts}]


def _user(message: JsonObject, where: str, _kinds: dict[str, str]) -> list[JsonValue]:
    _fields(message, where, {"role", "content"})
    return [{"type": "message", "role": "user", "content": _parts(message.get("content"), where, _USER_PARTS)}]


def _assistant(message: JsonObject, where: str, kinds: dict[str, str]) -> list[JsonValue]:
    _fields(
        message, where, {"role", "content", "refusal", "tool_calls"}, absent=("annotations", "audio", "function_call")
    )
    content = message.get("content")
    parts = _parts(content, where, _ASSISTANT_PARTS) if content not in (None, "", []) else []
    if message.get("refusal"):
        parts.append({"type": "refusal", "refusal": message["refusal"]})
    items: list[JsonValue] = [{"type": "message", "role": "assistant", "content": parts}] if parts else []
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise Unmapped(f"{where}.tool_calls")
    items += [_call(_object(call, f"{where}.tool_calls"), f"{where}.tool_calls", kinds) for call in calls or []]
    if not items:
        raise Unmapped(f"{where}.content")
    return items


def _call(call: JsonObject, where: str, kinds: dict[str, str]) -> JsonValue:
    kind, name = call.get("type", "function"), call.get("id")
    if kind not in _CALLS or not isinstance(name, str) or not call.keys() <= {"id", "type", "index", kind}:
        raise Unmapped(where)
    made, words = _CALLS[str(kind)]
    said = _object(call.get(str(kind)), where, {"name", words})
    if not (isinstance(said.get("name"), str) and isinstance(said.get(words), str)):
        raise Unmapped(where)
    if name in kinds:
        raise Unmapped(where)  # chat takes the id of an earlier round again, Responses refuses it
    kinds[name] = made
    return {"type": made, "call_id": name, "name": said["name"], words: said[words]}


def _result(message: JsonObject, where: str, kinds: dict[str, str]) -> list[JsonValue]:
    _fields(message, where, {"role", "content", "tool_call_id"})
    name, content = message.get("tool_call_id"), message.get("content")
    made = kinds.get(name) if isinstance(name, str) else None
    if made is None:
        raise Unmapped(f"{where}.tool_call_id")
    output = content if isinstance(content, str) else _parts(content, where, {"text": _text("input_text")})
    return [{"type": f"{made}_output", "call_id": name, "output": output}]


_CALLS: Final = {"function": ("function_call", "arguments"), "custom": ("custom_tool_call", "input")}
_Message: TypeAlias = Callable[[JsonObject, str, dict[str, str]], list[JsonValue]]
_MESSAGES: Final[Mapping[str, _Message]] = {
    "system": _instructions,
    "developer": _instructions,
    "user": _user,
    "assistant": _assistant,
    "tool": _result,
}

_Part: TypeAlias = Callable[[JsonObject, str], JsonObject]
_BREAKPOINT: Final = "prompt_cache_breakpoint"


def _parts(content: JsonValue, where: str, readers: Mapping[str, _Part]) -> list[JsonValue]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise Unmapped(f"{where}.content")
    made: list[JsonValue] = []
    for place, given in enumerate(content):
        at = f"{where}.content[{place}]"
        part = _object(given, at)
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in readers:
            raise Unmapped(at)
        mark = {_BREAKPOINT: part[_BREAKPOINT]} if part.get(_BREAKPOINT) is not None else {}
        rest = {key: value for key, value in part.items() if key != _BREAKPOINT}
        made.append({**readers[kind](rest, at), **mark})
    return made


def _text(kind: str, key: str = "text") -> _Part:
    def part(given: JsonObject, where: str) -> JsonObject:
        _fields(given, where, {"type", key})
        if not isinstance(given.get(key), str):
            raise Unmapped(where)
        return {"type": kind, key: given[key]}

    return part


def _image(given: JsonObject, where: str) -> JsonObject:
    _fields(given, where, {"type", "image_url"})
    link = _object(given.get("image_url"), where, {"url", "detail"})
    if not isinstance(link.get("url"), str):
        raise Unmapped(where)
    return {"type": "input_image", "image_url": link["url"], "detail": link.get("detail") or "auto"}


def _file(given: JsonObject, where: str) -> JsonObject:
    _fields(given, where, {"type", "file"})
    return {"type": "input_file", **_said(_object(given.get("file"), where, {"file_data", "file_id", "filename"}))}


_USER_PARTS: Final[Mapping[str, _Part]] = {"text": _text("input_text"), "image_url": _image, "file": _file}
_ASSISTANT_PARTS: Final[Mapping[str, _Part]] = {"text": _text("output_text"), "refusal": _text("refusal", "refusal")}


# -- shapes ----------------------------------------------------------------------------------------------------------


def _object(value: JsonValue, where: str, keys: set[str] | None = None) -> JsonObject:
    """An object with no other keys than these. Raises `Unmapped`."""
    if not isinstance(value, dict) or (keys is not None and not value.keys() <= keys):
        raise Unmapped(where)
    return value


def _fields(value: JsonObject, where: str, keys: set[str], *, absent: Sequence[str] = ()) -> None:
    """No other keys than these; of `absent` ones only such as say nothing. Raises `Unmapped`."""
    for key, given in value.items():
        if key in keys or (key in absent and given in (None, [])):
            continue
        raise Unmapped(f"{where}.{key}" if key in (*absent, "name") else where)


def _said(value: JsonObject) -> JsonObject:
    return {key: given for key, given in value.items() if given is not None}
