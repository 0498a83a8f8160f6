"""What a Messages request must look like: fields, messages, blocks.

Knows Anthropic's rules of form; those on order are in `messages_order`, on thinking in `messages_thinking`. Called by
`messages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from tidegate.simulator.betas import COMPACTING
from tidegate.simulator.fields import MESSAGES_BLOCKS, MESSAGES_BODY, MESSAGES_COUNT_BODY
from tidegate.simulator.jsontext import JsonObject, JsonValue, objects
from tidegate.simulator.refusals import Refusal, refuse
from tidegate.simulator.world import Desk

MAX_MESSAGES = 100_000
MAX_MARKERS = 4
_ROLES = ("user", "assistant", "system")
_MESSAGE_FIELDS = frozenset({"role", "content"})
_SYSTEM_FIELDS = _MESSAGE_FIELDS | {"clear_at", "output_config"}


@dataclass(frozen=True, slots=True)
class Block:
    """A content block with its place: `messages.4.content.0`."""

    message: int
    index: int
    value: JsonObject

    @property
    def at(self) -> str:
        """Its place as error texts write it."""
        return f"messages.{self.message}.content.{self.index}"

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.value.get("type"))


@dataclass(frozen=True, slots=True)
class Spoken:
    """Consecutive messages of one role, which the API reads as one."""

    role: str
    blocks: tuple[Block, ...]

    @property
    def message(self) -> int:
        """Position of its last message."""
        return self.blocks[-1].message


def check(body: JsonObject, desk: Desk, *, counting: bool = False, compacting: bool = False) -> list[Spoken]:
    """The turns of a request that breaks no rule of form. Raises `Refusal` with the first one it breaks.

    Their order is looked at by `messages_order`. Failed compactions (`content: null`) are left out.
    """
    for name in ("model", "messages", *(() if counting else ("max_tokens",))):
        if body.get(name) is None:
            refuse(f"{name}: Field required", rule="required")
    if not isinstance(body["model"], str) or not body["model"]:
        refuse("model: Input should be a valid string", rule="type")
    desk.check_model(body["model"])
    if not counting:
        _limit(body, desk)
    if desk.strict:
        for name in body:
            if name not in (MESSAGES_COUNT_BODY if counting else MESSAGES_BODY):
                refuse(f"{name}: Extra inputs are not permitted", rule="unknown-field")
    if body.get("thread") is not None:
        details: JsonObject = {"error_code": "thread_unsupported_request"}
        raise Refusal("thread: threads are not available here", rule="thread", details=details)
    messages = body["messages"]
    if not isinstance(messages, list):
        refuse("messages: Input should be a valid list", rule="type")
    if not messages:
        if compacting:
            nothing_to_summarize()
        refuse("messages: at least one message is required", rule="empty")
    if len(messages) > MAX_MESSAGES:
        refuse(f"messages: List should have at most {MAX_MESSAGES} items after validation", rule="too-many-messages")
    _system(body.get("system"))
    spoken = _spoken(messages, desk)
    _markers(body)
    return spoken


def nothing_to_summarize() -> NoReturn:
    """The refusal of a compaction of nothing."""
    text = "messages: there is no `user` or `assistant` content to summarize"
    details: JsonObject = {"error_code": "compaction_nothing_to_summarize"}
    raise Refusal(text, rule="compaction_nothing_to_summarize", details=details)


def is_known(block: JsonValue) -> bool:
    """Whether a provider without the compaction betas knows this type of block."""
    return isinstance(block, dict) and block.get("type") in MESSAGES_BLOCKS and block.get("type") != "compaction"


def text_blocks(content: JsonValue) -> list[JsonValue]:
    """A content field as its list of blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def _limit(body: JsonObject, desk: Desk) -> None:
    limit = body["max_tokens"]
    if not isinstance(limit, int) or isinstance(limit, bool):
        refuse("max_tokens: Input should be a valid integer", rule="type")
    if limit < 1:
        refuse("max_tokens: Input should be greater than or equal to 1", rule="output-limit")
    most = desk.world.settings.max_output
    if most is not None and limit > most:
        text = f"max_tokens: {limit} > {most}, which is the maximum allowed number of output tokens for {body['model']}"
        refuse(text, rule="output-limit")


def _system(system: JsonValue) -> None:
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        refuse("system: Input should be a valid list", rule="type")
    for index, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            refuse(f"system.{index}: Input should be a text block", rule="type")
        if not block.get("text"):
            refuse("system: text content blocks must be non-empty", rule="empty-text")


def _spoken(messages: list[JsonValue], desk: Desk) -> list[Spoken]:
    turns: list[Spoken] = []
    drops = desk.habits.drops_blocks
    for position, message in enumerate(messages):
        found = _blocks(position, message, len(messages), desk, drops=drops)
        blocks = tuple(block for block in found if not _is_no_op(block))
        role = message["role"]
        if turns and turns[-1].role == role:
            turns[-1] = Spoken(role, turns[-1].blocks + blocks)
        elif blocks:
            turns.append(Spoken(role, blocks))
    return turns


def _is_no_op(block: Block) -> bool:
    """A compaction that failed, sent back as it came."""
    return block.kind == "compaction" and block.value.get("content") is None


def _blocks(position: int, message: JsonValue, count: int, desk: Desk, *, drops: bool) -> Iterator[Block]:
    at = f"messages.{position}"
    if not isinstance(message, dict):
        refuse(f"{at}: Input should be an object", rule="type")
    role = message.get("role")
    if role not in _ROLES:
        refuse(f"{at}.role: Input should be 'user' or 'assistant'", rule="role")
    if desk.strict:
        for name in message:
            if name not in (_SYSTEM_FIELDS if role == "system" else _MESSAGE_FIELDS):
                refuse(f"{at}.{name}: Extra inputs are not permitted", rule="unknown-field")
    content = message.get("content")
    if content is None:
        refuse(f"{at}.content: Field required", rule="required")
    if not isinstance(content, str | list):
        refuse(f"{at}.content: Input should be a valid list", rule="type")
    if not content and not (role == "assistant" and position == count - 1):
        text = f"{at}: all messages must have non-empty content except for the optional final assistant message"
        refuse(text, rule="empty")
    for index, value in enumerate(text_blocks(content)):
        if not isinstance(value, dict):
            refuse(f"{at}.content.{index}: Input should be an object", rule="type")
        block = Block(position, index, value)
        if drops and not is_known(value):
            continue
        _block(block, str(role), desk)
        yield block


def _block(block: Block, role: str, desk: Desk) -> None:
    if block.kind == "compaction" and not desk.betas & COMPACTING:
        text = f"{block.at}: `compaction` is not one of the expected content block types"
        refuse(text, rule="block-type")
    known = MESSAGES_BLOCKS.get(block.kind)
    if known is None:
        tags = ", ".join(f"'{name}'" for name in MESSAGES_BLOCKS)
        text = (
            f"{block.at}: Input tag '{block.kind}' found using 'type' does not match any of the expected tags: {tags}"
        )
        refuse(text, rule="block-type")
    if desk.strict:
        for name in block.value:
            if name not in known:
                refuse(f"{block.at}.{block.kind}.{name}: Extra inputs are not permitted", rule="unknown-field")
    if block.kind == "text":
        _text(block.value.get("text"), block)
    elif block.kind == "tool_result":
        if role != "user":
            refuse(f"{block.at}: `tool_result` blocks can only be in `user` messages", rule="block-role")
        _required(block, "tool_use_id")
        for part in objects(block.value.get("content")):
            if part.get("type") == "text":
                _text(part.get("text"), block)
    elif block.kind == "tool_use":
        if role != "assistant":
            refuse(f"{block.at}: `tool_use` blocks can only be in `assistant` messages", rule="block-role")
        for name in ("id", "name", "input"):
            _required(block, name)
        if not isinstance(block.value["input"], dict):
            refuse(f"{block.at}.tool_use.input: Input should be a valid dictionary", rule="type")
    elif block.kind == "compaction":
        _compaction(block)
    elif block.kind in ("thinking", "redacted_thinking") and role != "assistant":
        refuse(f"{block.at}: `{block.kind}` blocks can only be in `assistant` messages", rule="block-role")


def _compaction(block: Block) -> None:
    for name in ("content", "signature", "encrypted_content"):
        if not isinstance(block.value.get(name), str | None):
            refuse(f"{block.at}.compaction.{name}: Input should be a valid string", rule="type")
    if block.value.get("content") == "":
        refuse(f"{block.at}.compaction.content: String should have at least 1 character", rule="empty-text")


def _required(block: Block, name: str) -> None:
    if block.value.get(name) is None:
        refuse(f"{block.at}.{block.kind}.{name}: Field required", rule="required")


def _text(text: JsonValue, block: Block) -> None:
    if not isinstance(text, str):
        refuse(f"{block.at}.text.text: Field required", rule="required")
    if not text:
        refuse("messages: text content blocks must be non-empty", rule="empty-text")
    if not text.strip():
        refuse("messages: text content blocks must contain non-whitespace text", rule="empty-text")


def _markers(body: JsonObject) -> None:
    """At most four, the one that a top-level `cache_control` places included; none on thinking; those of an hour before
    those of five minutes, in the order in which the API reads a request."""
    order = ("tools", "system", "messages")
    found = [marker for name in order for marker in _find_markers(body.get(name))]
    if body.get("cache_control"):
        found.append(("", body["cache_control"]))
    if len(found) > MAX_MARKERS:
        text = f"A maximum of {MAX_MARKERS} blocks with cache_control may be provided. Found {len(found)}."
        refuse(text, rule="cache-control")
    short = False
    for kind, control in found:
        if kind in ("thinking", "redacted_thinking"):
            refuse(f"cache_control can't be set on `{kind}` blocks", rule="cache-control")
        long = isinstance(control, dict) and control.get("ttl") == "1h"
        if long and short:
            text = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
            refuse(text, rule="cache-control-order")
        short = short or not long


def _find_markers(value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Markers on system texts, tools, blocks and the blocks in tool results, with the type of what bears them; none
    inside tool inputs or schemas."""
    if isinstance(value, list):
        for part in value:
            yield from _find_markers(part)
    elif isinstance(value, dict):
        # A tool result's own comes after those in it: it marks the end of the whole.
        if isinstance(value.get("content"), list):
            yield from _find_markers(value["content"])
        if value.get("cache_control"):
            yield str(value.get("type")), value["cache_control"]
