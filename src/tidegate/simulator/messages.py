"""The Messages API: from a request to a turn, from a reply to a message and its events.

Knows Anthropic's shapes; rules are in `messages_rules` and `messages_thinking`. Called by the app.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.simulator import messages_rules, messages_thinking, tokens
from tidegate.simulator.jsontext import JsonObject, JsonValue, as_object, decode, encode, objects, text_of
from tidegate.simulator.messages_rules import Spoken, text_blocks
from tidegate.simulator.stream import HEARTBEATS, Frame, deltas
from tidegate.simulator.turn import Call, Reply, Tool, Turn, Usage
from tidegate.simulator.world import Desk

_STOP = {
    "stop": "end_turn",
    "tool": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
    "window": "model_context_window_exceeded",
}


def read(body: JsonObject, desk: Desk, *, counting: bool = False) -> Turn:
    """Raises `Refusal`."""
    spoken = messages_rules.check(body, desk, counting=counting)
    dropped = messages_thinking.check(body, spoken, desk)
    gone = {entry["path"] for entry in dropped}
    items = _without(body["messages"], gone) if gone else list(body["messages"])
    tools = objects(body.get("tools"))
    last_text, rounds = _newest(spoken)
    return Turn(
        dialect="messages",
        body=body,
        model=body["model"],
        stream=bool(body.get("stream")),
        items=items,
        fixed=tokens.item(tools) + tokens.item(body.get("system")),
        tools=tuple(_tool(tool) for tool in tools if "input_schema" in tool),
        forced=_forced(body.get("tool_choice")),
        last_text=last_text,
        rounds=rounds,
        max_output=body.get("max_tokens"),
        thinking=messages_thinking.asks(body),
        system=text_of(body.get("system") or ""),
        notes=dropped,
    )


def drop_oldest(turn: Turn) -> bool:
    """Loses the oldest message, with the tool round it begins. False where only the newest would be left to lose."""
    if len(turn.items) < 2:
        return False
    del turn.items[0]
    while len(turn.items) > 1 and not _may_begin(turn.items[0]):
        del turn.items[0]
    return True


def answer(turn: Turn, reply: Reply, usage: Usage, desk: Desk) -> JsonObject:
    """A whole message."""
    mint = desk.world.mint
    content: list[JsonObject] = []
    if reply.thinking:
        content.append(_thinking(turn, reply.thinking, desk))
    if reply.text and reply.finish != "refusal":
        content.append({"type": "text", "text": reply.text, "citations": None})
    content += [_tool_use(call, mint.id("toolu_")) for call in reply.calls]
    if reply.thinking:
        for block in content:
            if block["type"] == "tool_use":
                desk.world.thinking.put(block["id"], content[:1])
    message: JsonObject = {
        "id": mint.id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": content,
        "stop_reason": _STOP[reply.finish],
        "stop_sequence": None,
        "usage": _usage(usage),
    }
    if turn.notes:
        message["input_transformations"] = turn.notes
    return message


def frames(turn: Turn, whole: JsonObject, desk: Desk) -> Iterator[Frame]:
    """The same message as a stream, with a ping where the API sends one."""
    size = desk.world.settings.delta_chars
    usage = whole["usage"]
    begun = whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    begun.pop("input_transformations", None)
    yield _event("message_start", opening=True, message=begun)
    if not whole["content"]:
        yield HEARTBEATS["messages"]
    for index, block in enumerate(whole["content"]):
        start, pieces = _block_events(block, size)
        yield _event("content_block_start", index=index, content_block=start)
        if index == 0:
            yield HEARTBEATS["messages"]
        for delta in pieces:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    end = {"delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None}, "usage": usage}
    if turn.notes:
        end["input_transformations"] = turn.notes
    yield _event("message_delta", **end)
    yield _event("message_stop")


def error_frames(error: JsonObject, event: str, sequence: int) -> Iterator[Frame]:
    """An error inside a stream; no `message_stop` follows."""
    yield Frame(error if error.get("type") == "error" else {"type": "error", **error}, "error")


def _event(kind: str, opening: bool = False, **fields: JsonValue) -> Frame:
    return Frame({"type": kind, **fields}, kind, opening=opening)


def _block_events(block: JsonObject, size: int) -> tuple[JsonObject, list[JsonObject]]:
    """How a block is announced, and its deltas."""
    match block["type"]:
        case "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            pieces = [{"type": "thinking_delta", "thinking": piece} for piece in deltas(block["thinking"], size)]
            return start, [*pieces, {"type": "signature_delta", "signature": block["signature"]}]
        case "tool_use":
            words = _arguments(block)
            pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in deltas(words, size)]
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": ""}, *pieces]
        case "text":
            return block | {"text": ""}, [
                {"type": "text_delta", "text": piece} for piece in deltas(block["text"], size)
            ]
        case _:
            return block, []


def _arguments(block: JsonObject) -> str:
    """A tool use's input as the JSON text that the stream carries."""
    return encode(block["input"]).decode()


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "service_tier": "standard",
    }


def _thinking(turn: Turn, text: str, desk: Desk) -> JsonObject:
    """A thinking block that only this simulator can have made for this conversation."""
    model = messages_thinking.family(turn.model)
    bound = ""
    if messages_thinking.preserves(turn.model, desk.world):
        bound = messages_thinking.prefix_hash(turn.body, turn.body["messages"])
    mint = desk.world.mint
    if desk.world.settings.redact_thinking:
        payload = {"family": model, "bound": bound, "text": text, "nonce": mint.id("")}
        return {"type": "redacted_thinking", "data": mint.seal("redacted", payload)}
    return {"type": "thinking", "thinking": text, "signature": mint.sign(model, text, bound)}


def _tool_use(call: Call, id_: str) -> JsonObject:
    return {"type": "tool_use", "id": id_, "name": call.name, "input": decode(call.arguments)}


def _newest(spoken: list[Spoken]) -> tuple[str, int]:
    """Words of the newest user turn that has any, and the tool results in and after it."""
    rounds = 0
    for turn in reversed(spoken):
        if turn.role != "user":
            continue
        words = [str(block.value["text"]) for block in turn.blocks if block.kind == "text"]
        results = sum(block.kind == "tool_result" for block in turn.blocks)
        if words:
            return "\n".join(words), rounds
        rounds += results
    return "", rounds


def _without(messages: list[JsonObject], gone: set[str]) -> list[JsonObject]:
    """The messages without the blocks at these places."""
    kept = []
    for position, message in enumerate(messages):
        content = [
            block
            for index, block in enumerate(text_blocks(message["content"]))
            if f"messages.{position}.content.{index}" not in gone
        ]
        kept.append(message | {"content": content})
    return kept


def _may_begin(message: JsonObject) -> bool:
    results = any(block.get("type") == "tool_result" for block in objects(message.get("content")))
    return message.get("role") == "user" and not results


def _tool(tool: JsonObject) -> Tool:
    return Tool(str(tool.get("name", "tool")), as_object(tool.get("input_schema")))


def _forced(choice: JsonValue) -> str | None:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        return str(choice.get("name"))
    return {"any": "required", "none": "none"}.get(str(kind))
