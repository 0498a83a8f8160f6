"""The Responses API: from a request to a turn, from a reply to a response object and its events.

Knows OpenAI's shapes; rules are in `responses_rules`. Called by the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tidegate.simulator import compact_path, responses_rules, sealing, tokens
from tidegate.simulator import responses_compaction as compaction
from tidegate.simulator.chat import CREATED
from tidegate.simulator.jsontext import JsonObject, JsonValue, as_object, objects, text_of
from tidegate.simulator.responses_window import newest_stand_in
from tidegate.simulator.stream import Frame, deltas
from tidegate.simulator.turn import Call, Reply, Tool, Turn, Usage
from tidegate.simulator.world import Desk, Kept

_SYSTEM = ("system", "developer")


def read(body: JsonObject, desk: Desk, *, counting: bool = False, compacting: bool = False) -> Turn:
    """A request at `/responses`, or at the paths that count and compact. Raises `Refusal`."""
    if compacting:
        compact_path.admit(body, desk)
    checked = responses_rules.check(body, desk, "count" if counting else "compact" if compacting else "answer")
    items = checked.items
    last_text, rounds = _newest(items)
    alone: Literal["", "unary", "trigger"] = "unary" if compacting else "trigger" if checked.trigger else ""
    tools = objects(body.get("tools"))
    instructions = body.get("instructions")
    words = [str(instructions)] if instructions else []
    words += [text_of(item.get("content")) for item in items if item.get("role") in _SYSTEM]
    return Turn(
        dialect="responses",
        body=body,
        model=str(body.get("model") or "simulated"),
        stream=bool(body.get("stream")) and not compacting,
        items=items,
        fixed=tokens.item(tools) + tokens.item(instructions) + (compaction.HIDDEN_PROMPT if alone else 0),
        tools=tuple(_tools(tools)),
        forced=_forced(body.get("tool_choice")),
        last_text=last_text,
        rounds=rounds,
        max_output=body.get("max_output_tokens"),
        thinking=_thinks(body.get("reasoning")),
        system="\n".join(words),
        truncate=body.get("truncation") == "auto",
        history=checked.history,
        compaction=alone,
        threshold=None if alone or counting else _threshold(body, desk),
    )


def _newest(items: list[JsonObject]) -> tuple[str, int]:
    """Words of the newest user message, and tool outputs since; a compaction item after it tells what it stands for."""
    humans = [position for position, item in enumerate(items) if item.get("role") == "user"]
    human = humans[-1] if humans else -1
    folded = newest_stand_in(items)
    start = max(human, folded)
    rounds = sum(str(item.get("type")).endswith("_output") for item in items[start + 1 :])
    if folded > human:
        return str(items[folded].get("goal") or ""), rounds + (items[folded].get("rounds") or 0)
    return text_of(items[human].get("content")) if humans else "", rounds


def _threshold(body: JsonObject, desk: Desk) -> int | None:
    edits = objects(body.get("context_management"))
    if not edits or desk.in_band != "served":
        return None
    settings = desk.world.settings
    asked: int | None = edits[0].get("compact_threshold")
    return asked or settings.responses_compaction.default_threshold or settings.window * 4 // 5


def drop_oldest(turn: Turn) -> bool:
    """Loses the oldest item with everything that can't stand without it; system items stay."""
    spoken = [position for position, item in enumerate(turn.items) if item.get("role") not in _SYSTEM]
    humans = [position for position in spoken if turn.items[position].get("role") == "user"]
    if not spoken or (humans and spoken[0] == humans[-1]):
        return False
    first = spoken[0]
    gone = {first}
    while turn.items[max(gone)].get("type") == "reasoning" and max(gone) + 1 < len(turn.items):
        gone.add(max(gone) + 1)
    calls = {turn.items[position].get("call_id") for position in gone} - {None}
    turn.items[:] = [
        item for position, item in enumerate(turn.items) if position not in gone and item.get("call_id") not in calls
    ]
    return True


def answer(turn: Turn, reply: Reply, usage: Usage, desk: Desk) -> JsonObject:
    """A whole response object, stored if the request says so; or what `/responses/compact` hands back."""
    if turn.compaction == "unary":
        return compact_path.answer(turn, reply, _usage(usage), desk, CREATED)
    output = _output(turn, reply, desk)
    body = turn.body
    cut_short = reply.finish in ("length", "window")
    whole: JsonObject = {
        "id": desk.world.mint.id("resp_", 32),
        "object": "response",
        "created_at": CREATED,
        "completed_at": CREATED,
        "status": "incomplete" if cut_short else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut_short else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": turn.model,
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None} | as_object(body.get("reasoning")),
        "service_tier": "default",
        "store": body.get("store") is not False,
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": body.get("truncation", "disabled"),
        "usage": _usage(usage),
        "user": None,
    }
    if whole["store"]:
        desk.world.responses.put(whole["id"], Kept(turn.history + output, desk.org, whole))
        for item in output:
            desk.world.stored_items.put(item["id"], item)
    if body.get("conversation") is not None:
        conversation = responses_rules.conversation_of(body, desk)
        conversation.items = turn.history + output
        whole["conversation"] = {"id": conversation.whole["id"]}
    return whole


def frames(turn: Turn, whole: JsonObject, desk: Desk) -> Iterator[Frame]:
    """The same response as a stream."""
    sequence = -1

    def event(kind: str, opening: bool = False, **fields: JsonValue) -> Frame:
        nonlocal sequence
        sequence += 1
        return Frame({"type": kind, "sequence_number": sequence, **fields}, kind, opening=opening)

    begun = whole | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    begun["completed_at"] = None
    yield event("response.created", opening=True, response=begun)
    yield event("response.in_progress", opening=True, response=begun)
    size = desk.world.settings.delta_chars
    for index, item in enumerate(whole["output"]):
        at = {"item_id": item["id"], "output_index": index}
        yield event("response.output_item.added", output_index=index, item=_begun(item, desk))
        match item["type"]:
            case "reasoning":
                at["summary_index"] = 0
                part = item["summary"][0]
                yield event("response.reasoning_summary_part.added", part=part | {"text": ""}, **at)
                for piece in deltas(part["text"], size):
                    yield event("response.reasoning_summary_text.delta", delta=piece, **at)
                yield event("response.reasoning_summary_text.done", text=part["text"], **at)
                yield event("response.reasoning_summary_part.done", part=part, **at)
            case "function_call":
                for piece in deltas(item["arguments"], size):
                    yield event("response.function_call_arguments.delta", delta=piece, **at)
                done = {"name": item["name"], "arguments": item["arguments"]}
                yield event("response.function_call_arguments.done", **done, **at)
            case "compaction":
                if turn.compaction:
                    yield event("response.compaction.compacting", **at)
            case "custom_tool_call":
                for piece in deltas(item["input"], size):
                    yield event("response.custom_tool_call_input.delta", delta=piece, **at)
                yield event("response.custom_tool_call_input.done", input=item["input"], **at)
            case _:
                at["content_index"] = 0
                yield from (event(kind, **fields) for kind, fields in _text_events(item["content"][0], at, size))
        yield event("response.output_item.done", output_index=index, item=item)
    if desk.profile.unstored_streams:
        whole = whole | {"output": []}
    yield event("response.completed" if whole["status"] == "completed" else "response.incomplete", response=whole)


def error_frames(error: JsonObject, event: str, sequence: int) -> Iterator[Frame]:
    """A failure inside a stream: a nested `error` event, or `response.failed`."""
    inner = error.get("error", error)
    if not isinstance(inner, dict):
        inner = {"code": error.get("code"), "message": inner, "type": "invalid_request_error", "param": None}
    if event == "response.failed":
        failed: JsonObject = {
            "id": f"resp_failed_{sequence}",
            "object": "response",
            "created_at": CREATED,
            "status": "failed",
            "error": {"code": inner.get("code"), "message": inner.get("message")},
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": "simulated",
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
        }
        yield Frame({"type": "response.failed", "sequence_number": sequence, "response": failed}, "response.failed")
        return
    nested = {name: inner.get(name) for name in ("type", "code", "message", "param")}
    yield Frame({"type": "error", "sequence_number": sequence, "error": nested}, "error")


def _text_events(part: JsonObject, at: JsonObject, size: int) -> Iterator[tuple[str, JsonObject]]:
    refused = part["type"] == "refusal"
    words = part["refusal" if refused else "text"]
    empty = {"type": "refusal", "refusal": ""} if refused else part | {"text": ""}
    logprobs: JsonObject = {} if refused else {"logprobs": []}
    name = "refusal" if refused else "output_text"
    yield "response.content_part.added", at | {"part": empty}
    for piece in deltas(words, size):
        yield f"response.{name}.delta", at | {"delta": piece} | logprobs
    yield f"response.{name}.done", at | {"refusal" if refused else "text": words} | logprobs
    yield "response.content_part.done", at | {"part": part}


def _begun(item: JsonObject, desk: Desk) -> JsonObject:
    """An output item as it stands when it is announced."""
    match item["type"]:
        case "reasoning":
            return item | {"summary": []}
        case "function_call":
            return item | {"arguments": "", "status": "in_progress"}
        case "compaction":
            return compaction.preview(item, desk)
        case "custom_tool_call":
            return item | {"input": "", "status": "in_progress"}
        case _:
            return item | {"content": [], "status": "in_progress"}


def _output(turn: Turn, reply: Reply, desk: Desk) -> list[JsonObject]:
    mint = desk.world.mint
    output: list[JsonObject] = []
    made = compaction.items(reply.compacted, turn, desk)
    if reply.text or not (reply.calls or turn.compaction or made):
        output.append(_message(reply, mint.id("msg_", 32)))
    output += [_call(call, desk) for call in reply.calls]
    if reply.thinking:
        output.insert(0, _reasoning(reply, output, turn, desk))
    return made + output if reply.compacted and reply.compacted.first else output + made


def _reasoning(reply: Reply, output: list[JsonObject], turn: Turn, desk: Desk) -> JsonObject:
    """The reasoning item of an output, which from now on belongs to it."""
    mint = desk.world.mint
    reasoning_id = mint.id("rs_", 32)
    reasoning: JsonObject = {
        "id": reasoning_id,
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": reply.thinking}],
    }
    include = turn.body.get("include")
    if isinstance(include, list) and "reasoning.encrypted_content" in include:
        reasoning["encrypted_content"] = sealing.seal(desk, "reasoning", {"id": reasoning_id, "text": reply.thinking})
    for item in output:
        desk.world.partners.put(item["id"], reasoning_id)
    return reasoning


def _message(reply: Reply, id_: str) -> JsonObject:
    part: JsonObject = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
    if reply.finish == "refusal":
        part = {"type": "refusal", "refusal": reply.text}
    status = "incomplete" if reply.finish in ("length", "window") else "completed"
    return {"id": id_, "type": "message", "status": status, "role": "assistant", "content": [part]}


def _call(call: Call, desk: Desk) -> JsonObject:
    mint = desk.world.mint
    common: JsonObject = {"call_id": mint.id("call_"), "name": call.name, "status": "completed"}
    if call.custom:
        return {"id": mint.id("ctc_", 32), "type": "custom_tool_call", "input": call.arguments} | common
    return {"id": mint.id("fc_", 32), "type": "function_call", "arguments": call.arguments} | common


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.thinking},
        "total_tokens": usage.input + usage.output,
    }


def _tools(tools: list[JsonObject]) -> Iterator[Tool]:
    """The tools that the client runs; hosted ones are never called."""
    for tool in tools:
        kind = tool.get("type")
        if kind == "function":
            yield Tool(str(tool.get("name", "tool")), as_object(tool.get("parameters")))
        elif kind == "custom":
            yield Tool(str(tool.get("name", "tool")), custom=True)
        elif kind == "namespace":
            yield from _tools(objects(tool.get("tools")))


def _forced(choice: JsonValue) -> str | None:
    if isinstance(choice, str):
        return None if choice == "auto" else choice
    if isinstance(choice, dict) and "name" in choice:
        return str(choice["name"])
    return None


def _thinks(reasoning: JsonValue) -> bool:
    return isinstance(reasoning, dict) and reasoning.get("effort") != "none" and bool(reasoning)
