"""`context_management` on the Messages API: which edits a request asks for, and the two that clear.

Knows tool clearing and thinking clearing; the compaction edit is only read here. Called by `messages`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.simulator import tokens
from tidegate.simulator.context_settings import EDITING, THRESHOLD
from tidegate.simulator.jsontext import JsonObject, JsonValue, as_object, objects
from tidegate.simulator.managed import Threshold
from tidegate.simulator.messages_rules import text_blocks
from tidegate.simulator.refusals import refuse
from tidegate.simulator.world import Desk

COMPACT, CLEAR_TOOLS, CLEAR_THINKING = "compact_20260112", "clear_tool_uses_20250919", "clear_thinking_20251015"
_BETA = {COMPACT: THRESHOLD, CLEAR_TOOLS: EDITING, CLEAR_THINKING: EDITING}
_FIELDS = {
    COMPACT: frozenset({"type", "trigger", "pause_after_compaction", "instructions"}),
    CLEAR_TOOLS: frozenset({"type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"}),
    CLEAR_THINKING: frozenset({"type", "keep"}),
}
CLEARED = "[Old tool result content cleared]"
_THINKING = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class Edits:
    """The edits that a request asks for, checked."""

    threshold: Threshold | None = None
    tools: JsonObject | None = field(default=None, repr=False)
    thinking: JsonObject | None = field(default=None, repr=False)


def read(body: JsonObject, desk: Desk) -> Edits | None:
    """The edits; None where there is no `context_management`, or the provider knows none. Raises `Refusal`."""
    value = body.get("context_management")
    if value is None:
        return None
    if not desk.betas & {THRESHOLD, EDITING}:
        if desk.strict:
            refuse("context_management: Extra inputs are not permitted", rule="beta-header")
        return None
    edits = value.get("edits", []) if isinstance(value, dict) else None
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        refuse("context_management.edits: Input should be a valid list", rule="type")
    found: dict[str, JsonObject] = {}
    for position, edit in enumerate(edits):
        at = f"context_management.edits.{position}"
        kind = _kind(edit, at, desk)
        if kind in found:
            refuse(f"{at}: each kind of edit may be given once", rule="edit-twice")
        if kind == CLEAR_THINKING and found:
            refuse(f"{at}: `{CLEAR_THINKING}` must be the first edit", rule="edit-order")
        found[kind] = edit
        _CHECKS[kind](edit, f"{at}.{kind}", desk)
    compact = found.get(COMPACT)
    threshold = None
    if compact is not None:
        trigger = as_object(compact.get("trigger")).get("value", 150_000)
        threshold = Threshold(trigger, pause=bool(compact.get("pause_after_compaction")))
    return Edits(threshold, found.get(CLEAR_TOOLS), found.get(CLEAR_THINKING))


def clear(items: list[JsonObject], fixed: int, edits: Edits, desk: Desk) -> tuple[list[JsonObject], list[JsonObject]]:
    """The messages as the clearing edits leave them, and `applied_edits`. `fixed`: tokens of system and tools."""
    applied: list[JsonObject] = []
    factor = desk.world.settings.usage_factor
    for edit, apply in ((edits.thinking, _clear_thinking), (edits.tools, _clear_tools)):
        if edit is None:
            continue
        before = tokens.items(items)
        left, told = apply(items, edit, tokens.scale(fixed + before, factor))
        saved = tokens.scale(before - tokens.items(left), factor)
        least = as_object(edit.get("clear_at_least")).get("value", 0)
        if told and saved >= least:
            items = left
            applied.append({"type": edit["type"], **told, "cleared_input_tokens": saved})
    return items, applied


def _kind(edit: JsonObject, at: str, desk: Desk) -> str:
    kind = str(edit.get("type"))
    beta = _BETA.get(kind)
    if beta is None or beta not in desk.betas:
        tags = ", ".join(f"'{name}'" for name, needs in _BETA.items() if needs in desk.betas)
        text = f"{at}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {tags}"
        refuse(text, rule="edit-type" if beta is None else "beta-header")
    if desk.strict:
        for name in edit:
            if name not in _FIELDS[kind]:
                refuse(f"{at}.{kind}.{name}: Extra inputs are not permitted", rule="unknown-field")
    return kind


def _check_compact(edit: JsonObject, at: str, desk: Desk) -> None:
    least = desk.world.settings.context.least_trigger
    _measure(edit.get("trigger"), f"{at}.trigger", ("input_tokens",), least)
    if not isinstance(edit.get("pause_after_compaction"), bool | None):
        refuse(f"{at}.pause_after_compaction: Input should be a valid boolean", rule="type")
    if not isinstance(edit.get("instructions"), str | None):
        refuse(f"{at}.instructions: Input should be a valid string", rule="type")


def _check_tools(edit: JsonObject, at: str, desk: Desk) -> None:
    _measure(edit.get("trigger"), f"{at}.trigger", ("input_tokens", "tool_uses"), 0)
    _measure(edit.get("keep"), f"{at}.keep", ("tool_uses",), 0)
    _measure(edit.get("clear_at_least"), f"{at}.clear_at_least", ("input_tokens",), 0)
    for name in ("exclude_tools", "clear_tool_inputs"):
        value = edit.get(name)
        right = value is None or (isinstance(value, list) and all(isinstance(entry, str) for entry in value))
        if not right and not (name == "clear_tool_inputs" and isinstance(value, bool)):
            refuse(f"{at}.{name}: Input should be a valid list", rule="type")


def _check_thinking(edit: JsonObject, at: str, desk: Desk) -> None:
    if edit.get("keep") != "all":
        _measure(edit.get("keep"), f"{at}.keep", ("thinking_turns", "all"), 1)


_CHECKS = {COMPACT: _check_compact, CLEAR_TOOLS: _check_tools, CLEAR_THINKING: _check_thinking}


def _measure(value: JsonValue, at: str, kinds: tuple[str, ...], least: int) -> None:
    """A field like `{"type": "input_tokens", "value": 100000}`."""
    if value is None:
        return
    if not isinstance(value, dict) or value.get("type") not in kinds:
        tag = value.get("type") if isinstance(value, dict) else value
        tags = ", ".join(f"'{kind}'" for kind in kinds)
        text = f"{at}: Input tag '{tag}' found using 'type' does not match any of the expected tags: {tags}"
        refuse(text, rule="edit-measure")
    if value["type"] == "all":
        return
    number = value.get("value")
    if not isinstance(number, int) or isinstance(number, bool):
        refuse(f"{at}.{value['type']}.value: Input should be a valid integer", rule="edit-measure")
    if number < least:
        text = f"{at}.{value['type']}.value: Input should be greater than or equal to {least}"
        refuse(text, rule="edit-measure")


def _clear_tools(items: list[JsonObject], edit: JsonObject, size: int) -> tuple[list[JsonObject], JsonObject]:
    """All but the newest results become a stand-in, where the trigger is reached."""
    trigger = as_object(edit.get("trigger")) or {"type": "input_tokens", "value": 100_000}
    keep = as_object(edit.get("keep")).get("value", 3)
    excluded = edit.get("exclude_tools") or ()
    uses = [block for block in _blocks(items) if block.get("type") == "tool_use"]
    if (len(uses) if trigger["type"] == "tool_uses" else size) < trigger["value"]:
        return items, {}
    old = uses[: max(len(uses) - keep, 0)]
    goes = {str(block["id"]): str(block["name"]) for block in old if block["name"] not in excluded}
    inputs = edit.get("clear_tool_inputs") or False
    if not goes:
        return items, {}
    return [_cleared(message, goes, inputs) for message in items], {"cleared_tool_uses": len(goes)}


def _cleared(message: JsonObject, goes: dict[str, str], inputs: JsonValue) -> JsonObject:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    left = []
    for block in content:
        if block.get("type") == "tool_result" and str(block.get("tool_use_id")) in goes:
            left.append(block | {"content": CLEARED})
        elif block.get("type") == "tool_use" and (name := goes.get(str(block.get("id")))) is not None:
            emptied = inputs is True or (isinstance(inputs, list) and name in inputs)
            left.append(block | {"input": {}} if emptied else block)
        else:
            left.append(block)
    return message | {"content": left}


def _clear_thinking(items: list[JsonObject], edit: JsonObject, size: int) -> tuple[list[JsonObject], JsonObject]:
    """Thinking of all but the newest turns that have any goes; by default of all but the newest one."""
    keep = edit.get("keep")
    if keep == "all" or as_object(keep).get("type") == "all":
        return items, {}
    most = as_object(keep).get("value", 1)
    turns = [index for index, message in enumerate(items) if any(map(_thinks, text_blocks(message["content"])))]
    goes = set(turns[: max(len(turns) - most, 0)])
    if not goes:
        return items, {}
    left = []
    for index, message in enumerate(items):
        if index in goes:
            kept = [block for block in text_blocks(message["content"]) if not _thinks(block)]
            left += [message | {"content": kept}] if kept else []
        else:
            left.append(message)
    return left, {"cleared_thinking_turns": len(goes)}


def _thinks(block: JsonValue) -> bool:
    return isinstance(block, dict) and block.get("type") in _THINKING


def _blocks(items: Iterable[JsonObject]) -> list[JsonObject]:
    return [block for message in items for block in objects(message.get("content"))]
