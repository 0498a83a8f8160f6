"""The Messages API: from a request to a turn, from a reply to a message and its events.

Knows Anthropic's shapes; rules are in `messages_rules` and `messages_thinking`. Called by the app.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.simulator import (
    messages_compaction,
    messages_edits,
    messages_order,
    messages_rules,
    messages_thinking,
    tokens,
)
from tidegate.simulator.betas import COMPACTING, of_model
from tidegate.simulator.context_settings import BINDING, THRESHOLD
from tidegate.simulator.jsontext import JsonObject, JsonValue, as_object, decode, encode, objects, text_of
from tidegate.simulator.managed import Managed
from tidegate.simulator.messages_edits import Edits
from tidegate.simulator.messages_rules import Spoken
from tidegate.simulator.messages_window import Window, items_of, replace_blocks
from tidegate.simulator.refusals import refuse
from tidegate.simulator.stream import HEARTBEATS, Frame, deltas
from tidegate.simulator.turn import Call, Reply, Tool, Turn, Usage
from tidegate.simulator.world import Desk

_TOOL_CHANGES = ("tool_addition", "tool_removal")
_STOP = {
    "stop": "end_turn",
    "tool": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
    "window": "model_context_window_exceeded",
}


def read(body: JsonObject, desk: Desk, *, counting: bool = False) -> Turn:
    """Raises `Refusal`."""
    asked = messages_compaction.asks(body, desk)
    on_demand = asked and not counting
    edits = messages_edits.read(body, desk)
    spoken = messages_rules.check(body, desk, counting=counting, compacting=on_demand)
    window = replace_blocks(body, spoken, desk, edit=bool(edits and edits.threshold))
    messages_order.check_order(spoken, compacting=on_demand)
    _platform(body, spoken, edits, desk)
    dropped = messages_thinking.check(body, window, desk, compacting=asked)
    items = items_of(body["messages"], window, {entry["path"] for entry in dropped}, drops=desk.habits.drops_blocks)
    tools = objects(body.get("tools"))
    fixed = tokens.item(tools) + tokens.item(body.get("system"))
    managed = _managed(body, window, edits, desk, on_demand=on_demand)
    if edits is not None:
        managed.original = fixed + tokens.items(body["messages"])
        items, managed.applied = messages_edits.clear(items, fixed, edits, desk)
    managed.changed = items != body["messages"]
    last_text, rounds = _newest(window)
    return Turn(
        dialect="messages",
        body=body,
        model=body["model"],
        stream=bool(body.get("stream")),
        items=items,
        fixed=fixed,
        tools=tuple(_tool(tool) for tool in tools if "input_schema" in tool),
        forced=_forced(body.get("tool_choice")),
        last_text=last_text,
        rounds=rounds,
        max_output=body.get("max_tokens"),
        thinking=messages_thinking.asks(body),
        system=text_of(body.get("system") or ""),
        notes=dropped,
        managed=managed,
    )


def _platform(body: JsonObject, spoken: list[Spoken], edits: Edits | None, desk: Desk) -> None:
    """What not every provider or model can do."""
    if edits and edits.threshold and THRESHOLD not in of_model(body["model"], desk.world.settings.context):
        text = f"context_management: `{body['model']}` does not support `{messages_edits.COMPACT}`"
        refuse(text, rule="compaction-model")
    rounds = any(block.kind in ("tool_use", "tool_result") for turn in spoken for block in turn.blocks)
    if desk.habits.needs_tools and rounds and not body.get("tools"):
        text = "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        refuse(text, rule="tools-missing")


def _managed(body: JsonObject, window: Window, edits: Edits | None, desk: Desk, *, on_demand: bool) -> Managed:
    """What the request asks of context management, and the hashes that what is made of it is bound to."""
    turns = window.spoken
    preserved = messages_thinking.preserves(body["model"], desk.world)
    binds = on_demand or (preserved and messages_thinking.asks(body))
    hashes = window.prefixes() if binds else [""]
    begun = binds and bool(turns) and turns[-1].role == "assistant"
    return Managed(
        on_demand=on_demand,
        itemised=bool(desk.betas & COMPACTING),
        threshold=edits.threshold if edits else None,
        reports=BINDING in desk.betas,
        base=window.base,
        source=hashes[-1],
        answered=hashes[-2] if begun else hashes[-1],
        last_role=turns[-1].role if turns else "",
        preserved=preserved,
        replayed=window.block,
        tool_changes=_tool_changes(window),
        verdict="replayed" if window.block is not None else "",
    )


def _tool_changes(window: Window) -> list[JsonObject] | None:
    """The changes of the tool set in a conversation, those that an earlier compaction tells of included."""
    told = list(objects(window.block.get("tool_changes"))) if window.block else []
    made = [block.value for turn in window.spoken for block in turn.blocks if block.kind in _TOOL_CHANGES]
    return [*told, *made] or None


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
    managed = turn.managed or Managed()
    content: list[JsonObject] = list(managed.made)
    thought = _thinking(turn, reply.thinking, managed, desk) if reply.thinking else None
    if thought is not None:
        content.append(thought)
    if reply.text and reply.finish != "refusal":
        content.append({"type": "text", "text": reply.text, "citations": None})
    content += [_tool_use(call, mint.id("toolu_")) for call in reply.calls]
    if thought is not None:
        for block in content:
            if block["type"] == "tool_use":
                desk.world.thinking.put(block["id"], [thought])
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
    if managed.itemised and (managed.made or desk.habits.itemises_always):
        spent = {"type": "message", **messages_compaction.usage_json(usage)}
        message["usage"]["iterations"] = [*managed.iterations, spent]
    if managed.applied is not None:
        message["context_management"] = {"applied_edits": managed.applied}
    if managed.reports:
        message["input_transformations"] = turn.notes
    return message


def frames(turn: Turn, whole: JsonObject, desk: Desk) -> Iterator[Frame]:
    """The same message as a stream, with a ping where the API sends one."""
    size = desk.world.settings.delta_chars
    usage = whole["usage"]
    before = (turn.managed.before if turn.managed else None) or {}
    opening = usage | {"output_tokens": min(usage["output_tokens"], 1)} | before
    opening.pop("iterations", None)
    begun = whole | {"content": [], "stop_reason": None, "usage": opening}
    begun.pop("context_management", None)
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
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    if "stop_details" in whole:
        delta["stop_details"] = whole["stop_details"]
    end = {"delta": delta, "usage": usage}
    if "context_management" in whole:
        end["context_management"] = whole["context_management"]
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
        case "compaction" if "signature" not in block:
            # A threshold compaction is announced empty and comes in one delta; one on demand comes whole.
            told = {name: value for name, value in block.items() if name != "type"}
            return {"type": "compaction", "content": None}, [{**told, "type": "compaction_delta"}]
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
    return {**messages_compaction.usage_json(usage), "service_tier": "standard"}


def _thinking(turn: Turn, text: str, managed: Managed, desk: Desk) -> JsonObject:
    """A thinking block that only this simulator can have made for this conversation."""
    model = messages_thinking.family(turn.model)
    bound = managed.answered if managed.preserved else ""
    mint = desk.world.mint
    if desk.world.settings.redact_thinking:
        payload = {"family": model, "bound": bound, "text": text, "nonce": mint.id("")}
        return {"type": "redacted_thinking", "data": mint.seal("redacted", payload)}
    return {"type": "thinking", "thinking": text, "signature": mint.sign(model, text, bound)}


def _tool_use(call: Call, id_: str) -> JsonObject:
    return {"type": "tool_use", "id": id_, "name": call.name, "input": decode(call.arguments)}


def _newest(window: Window) -> tuple[str, int]:
    """Words of the newest user turn that has any, and the tool results in and after it; else what a summary says."""
    rounds = 0
    for turn in reversed(window.spoken):
        if turn.role != "user":
            continue
        words = [str(block.value["text"]) for block in turn.blocks if block.kind == "text"]
        results = sum(block.kind == "tool_result" for block in turn.blocks)
        if words:
            return "\n".join(words), rounds
        rounds += results
    asked, earlier = messages_compaction.asked_in(str(window.block["content"])) if window.block else ("", 0)
    return asked, rounds + earlier


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
