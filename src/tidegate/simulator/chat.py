"""The chat completions API: from a request to a turn, from a reply to an answer.

Knows OpenAI's shapes; rules are in `chat_rules`. Called by the app.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.simulator import chat_rules, tokens
from tidegate.simulator.jsontext import JsonObject, JsonValue, as_object, objects, text_of
from tidegate.simulator.stream import Frame, deltas
from tidegate.simulator.turn import Reply, Tool, Turn, Usage
from tidegate.simulator.world import Desk

_SYSTEM = ("system", "developer")
_FINISH = {"stop": "stop", "tool": "tool_calls", "length": "length", "window": "length", "refusal": "stop"}
CREATED = 1_796_000_000
"""Seconds since 1970 that every answer claims: answers are the same in every run."""


def read(body: JsonObject, desk: Desk) -> Turn:
    """Raises `Refusal`."""
    messages = chat_rules.check(body, desk)
    humans = [position for position, message in enumerate(messages) if message["role"] == "user"]
    newest = humans[-1] if humans else -1
    tools = objects(body.get("tools"))
    return Turn(
        dialect="chat",
        body=body,
        model=body["model"],
        stream=bool(body.get("stream")),
        items=messages,
        fixed=tokens.item(tools),
        tools=tuple(_tool(tool) for tool in tools),
        forced=_forced(body.get("tool_choice")),
        last_text=text_of(messages[newest].get("content")) if humans else "",
        rounds=sum(message["role"] == "tool" for message in messages[newest + 1 :]),
        max_output=chat_rules.output_limit(body),
        thinking=body.get("reasoning_effort") not in (None, "none") or bool(body.get("reasoning")),
        system="\n".join(text_of(message.get("content")) for message in messages if message["role"] in _SYSTEM),
    )


def drop_oldest(turn: Turn) -> bool:
    """Loses the oldest message that is no system text, with the tool round it belongs to. False where only the
    newest user message would be left to lose."""
    spoken = [position for position, item in enumerate(turn.items) if item["role"] not in _SYSTEM]
    humans = [position for position in spoken if turn.items[position]["role"] == "user"]
    if not spoken or (humans and spoken[0] == humans[-1]):
        return False
    at = spoken[0]
    del turn.items[at]
    while at < len(turn.items) and turn.items[at]["role"] == "tool":
        del turn.items[at]
    return True


def answer(turn: Turn, reply: Reply, usage: Usage, desk: Desk) -> JsonObject:
    """A whole chat completion."""
    refused = reply.finish == "refusal"
    message: JsonObject = {
        "role": "assistant",
        "content": None if refused or (reply.calls and not reply.text) else reply.text,
        "refusal": reply.text if refused else None,
    }
    if reply.thinking and desk.profile.reasoning_field:
        message[desk.profile.reasoning_field] = reply.thinking
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": desk.world.mint.id("call_"),
                "type": "custom",
                "custom": {"name": call.name, "input": call.arguments},
            }
            if call.custom
            else {
                "id": desk.world.mint.id("call_"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[reply.finish]}
    return {
        "id": desk.world.mint.id("chatcmpl-"),
        "object": "chat.completion",
        "created": CREATED,
        "model": turn.model,
        "choices": [choice],
        "usage": _usage(usage),
        "system_fingerprint": "fp_simulator",
    }


def frames(turn: Turn, whole: JsonObject, desk: Desk) -> Iterator[Frame]:
    """The same answer as a stream."""
    size = desk.world.settings.delta_chars
    choice = whole["choices"][0]
    message = choice["message"]
    wants_usage = bool(as_object(turn.body.get("stream_options")).get("include_usage"))

    def chunk(delta: JsonObject, finish: str | None = None, opening: bool = False) -> Frame:
        entry = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return Frame(_chunk(whole, [entry]) | ({"usage": None} if wants_usage else {}), opening=opening)

    yield chunk({"role": "assistant", "content": ""}, opening=True)
    thinking = message.get(desk.profile.reasoning_field, "") if desk.profile.reasoning_field else ""
    for piece in deltas(thinking, size):
        yield chunk({desk.profile.reasoning_field: piece})
    for name in ("content", "refusal"):
        for piece in deltas(message[name] or "", size):
            yield chunk({name: piece})
    for index, call in enumerate(message.get("tool_calls", ())):
        body, words = ("custom", "input") if call["type"] == "custom" else ("function", "arguments")
        start = {"index": index, "id": call["id"], "type": call["type"], body: {"name": call[body]["name"], words: ""}}
        yield chunk({"tool_calls": [start]})
        for piece in deltas(call[body][words], size):
            yield chunk({"tool_calls": [{"index": index, body: {words: piece}}]})
    yield chunk({}, choice["finish_reason"])
    if wants_usage:
        yield Frame(_chunk(whole, []) | {"usage": whole["usage"]})
    yield Frame("[DONE]")


def error_frames(error: JsonObject, event: str, sequence: int) -> Iterator[Frame]:
    """An error inside a stream that has begun; no `[DONE]` follows."""
    yield Frame(error if "error" in error else {"error": error})


def _chunk(whole: JsonObject, choices: list[JsonValue]) -> JsonObject:
    names = ("id", "created", "model", "system_fingerprint")
    return {name: whole[name] for name in names} | {"object": "chat.completion.chunk", "choices": choices}


def _usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking, "audio_tokens": 0},
    }


def _tool(tool: JsonObject) -> Tool:
    if tool.get("type") == "custom":
        return Tool(str(as_object(tool.get("custom")).get("name", "tool")), custom=True)
    function = as_object(tool.get("function"))
    return Tool(str(function.get("name", "tool")), as_object(function.get("parameters")))


def _forced(choice: JsonValue) -> str | None:
    if isinstance(choice, str):
        return None if choice == "auto" else choice
    if isinstance(choice, dict):
        body = as_object(choice.get("function") or choice.get("custom"))
        return str(body["name"]) if "name" in body else None
    return None
