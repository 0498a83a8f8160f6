"""Who begins a Messages conversation, who answers whom: roles, tool ids, tool rounds.

Knows Anthropic's rules on the order of blocks that are each well formed. Called by `messages`.
"""

from __future__ import annotations

import re

from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.messages_rules import Spoken, nothing_to_summarize
from tidegate.simulator.refusals import Refusal, refuse

_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")


def check_order(spoken: list[Spoken], *, compacting: bool = False) -> None:
    """Who begins, and tool rounds. Raises `Refusal`."""
    if compacting:
        _nothing_open(spoken)
    if not spoken or (spoken[0].role != "user" and spoken[0].blocks[0].kind != "compaction"):
        refuse('messages: first message must use the "user" role', rule="first-role")
    _tool_ids(spoken)
    _rounds(spoken)


def _nothing_open(spoken: list[Spoken]) -> None:
    """A compaction needs something to summarise, and no call left without its result at the end."""
    if not any(turn.role in ("user", "assistant") for turn in spoken):
        nothing_to_summarize()
    last = spoken[-1]
    done = {block.value.get("tool_use_id") for block in last.blocks}
    for block in last.blocks:
        open_call = block.kind == "tool_use" or (block.kind == "server_tool_use" and block.value.get("id") not in done)
        if last.role == "assistant" and open_call:
            text = f"{block.at}: the conversation to compact ends on an `assistant` turn that is not finished"
            details: JsonObject = {"error_code": "compaction_incomplete_turn"}
            raise Refusal(text, rule="compaction_incomplete_turn", details=details)


def _tool_ids(spoken: list[Spoken]) -> None:
    seen: set[str] = set()
    for turn in spoken:
        for block in turn.blocks:
            if block.kind != "tool_use":
                continue
            id_ = str(block.value["id"])
            if not _TOOL_ID.fullmatch(id_):
                text = f"{block.at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
                refuse(text, rule="tool-id")
            if id_ in seen:
                refuse(f"{block.at}: `tool_use` ids must be unique", rule="duplicate-call")
            seen.add(id_)


def _rounds(spoken: list[Spoken]) -> None:
    """Every tool use answered at the very beginning of the next user message, and nothing else answered there."""
    for position, turn in enumerate(spoken):
        before = spoken[position - 1] if position else None
        asked = [block for block in before.blocks if block.kind == "tool_use"] if before else []
        if before is not None and asked:
            _answered(before, [str(block.value["id"]) for block in asked], turn)
        open_ids = {str(block.value["id"]) for block in asked}
        answered: set[str] = set()
        for block in turn.blocks:
            if block.kind != "tool_result":
                continue
            id_ = str(block.value["tool_use_id"])
            if id_ not in open_ids:
                text = (
                    f"{block.at}: unexpected `tool_use_id` found in `tool_result` blocks: {id_}. Each `tool_result` "
                    "block must have a corresponding `tool_use` block in the previous message."
                )
                refuse(text, rule="result-without-call")
            if id_ in answered:
                text = (
                    f"{block.at}: each tool_use must have a single result. Found multiple `tool_result` blocks with "
                    f"id: {id_}"
                )
                refuse(text, rule="duplicate-result")
            answered.add(id_)
    last = spoken[-1]
    ids = [str(block.value["id"]) for block in last.blocks if block.kind == "tool_use"]
    if ids:
        _unanswered(last, ids)


def _answered(asking: Spoken, ids: list[str], turn: Spoken) -> None:
    first: set[str] = set()
    for block in turn.blocks:
        if block.kind != "tool_result":
            break
        first.add(str(block.value["tool_use_id"]))
    missing = [id_ for id_ in ids if id_ not in first]
    if missing:
        _unanswered(asking, missing)


def _unanswered(asking: Spoken, ids: list[str]) -> None:
    text = (
        f"messages.{asking.message}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )
    refuse(text, rule="call-without-result")
