"""Compaction blocks among the messages: where they may stand, what they stand for, what the model then gets.

Knows the rules of both compaction betas on blocks that come back; the betas' own parameters are elsewhere. Called by
`messages`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from tidegate.simulator.context_settings import ON_DEMAND
from tidegate.simulator.jsontext import JsonObject, JsonValue, encode, objects
from tidegate.simulator.messages_rules import Block, Spoken, is_known, text_blocks
from tidegate.simulator.minting import Mint, hash_of
from tidegate.simulator.refusals import Refusal, refuse
from tidegate.simulator.world import Desk

THINKING = ("thinking", "redacted_thinking")
_MARK = "EuYB"


@dataclass(frozen=True, slots=True)
class Window:
    """What is left of the messages once a block stands for their beginning."""

    spoken: list[Spoken] = field(repr=False)
    """The turns after the block; all of them where there is none."""
    base: str
    """Hash of system and tools."""
    start: str
    """Hash of all that comes before `spoken`."""
    at: Block | None = field(default=None, repr=False)
    """The block that stands for the beginning."""

    hashes: list[str] = field(default_factory=list, repr=False)

    def prefixes(self) -> list[str]:
        """The hash of what comes before each turn, and of the whole: an answer began after the last message of another
        role. Computed when first asked for."""
        if not self.hashes:
            self.hashes.append(self.start)
            for turn in self.spoken:
                self.hashes.append(chain(self.hashes[-1], (turn,)))
        return self.hashes

    @property
    def block(self) -> JsonObject | None:
        """Its value."""
        return self.at.value if self.at else None


def items_of(messages: list[JsonObject], window: Window, gone: Container[str], *, drops: bool) -> list[JsonObject]:
    """The messages as the model gets them: from the block on, the block by its words, without the blocks in `gone`.

    `drops`: blocks of unknown types are ignored.
    """
    first = window.at.message if window.at else 0
    shown = [
        _shown(message, position, window, gone, drops=drops)
        for position, message in enumerate(messages)
        if position >= first
    ]
    return [message for message in shown if message["content"]]


def replace_blocks(body: JsonObject, spoken: list[Spoken], desk: Desk, *, edit: bool) -> Window:
    """The effective window; `edit`: a `compact_20260112` edit is in force.

    Without the edit, a block must be signed, alone and first (on-demand); with it, the latest block counts and any
    content does. Raises `Refusal`.
    """
    base = base_hash(body)
    found = [block for turn in spoken for block in turn.blocks if block.kind == "compaction"]
    if not found:
        return Window(spoken, base, base)
    block = _latest(found, desk) if edit else _signed(found, spoken, desk)
    after = _after(spoken, block)
    start = after_summary(base, block.value["content"])
    sealed = {} if edit else unsign(desk.world.mint, block.value.get("signature")) or {}
    follows = not after or after[0].role not in ("system", sealed.get("last_role"))
    if sealed.get("preserved") and sealed.get("base") == base and follows:
        # The API wrote the summary, on a model that keeps the record: thinking after it is still in its conversation.
        start = str(sealed["source"])
    return Window(after, base, start, block)


def base_hash(body: JsonObject) -> str:
    """Hash of what stands before all messages: system, and the tools that are not deferred."""
    tools = [tool for tool in objects(body.get("tools")) if not tool.get("defer_loading")]
    return hash_of(encode(_plain(body.get("system"))), encode(_plain(tools)))


def after_summary(base: str, summary: str) -> str:
    """Hash of a beginning that is nothing but a summary."""
    return hash_of(base.encode(), b"compaction", encode(summary))


def chain(start: str, turns: Iterable[Spoken]) -> str:
    """Hash of turns that follow what `start` is the hash of.

    Cache markers, earlier thinking (which the API itself may drop), a string content's form and where consecutive
    messages of one role are divided make no difference.
    """
    for turn in turns:
        start = hash_of(start.encode(), turn.role.encode(), encode(_plain([block.value for block in turn.blocks])))
    return start


def sign(mint: Mint, content: str, tool_changes: JsonValue, record: JsonObject) -> str:
    """A signature over a summary and the record of what it was made from."""
    payload = record | {"content": hash_of(encode(content)), "tools": _hash_changes(tool_changes), "nonce": mint.id("")}
    return _MARK + mint.seal("compaction", payload).removeprefix("gAAAA")


def unsign(mint: Mint, signature: JsonValue) -> JsonObject | None:
    """What a signature records, None where it is not this simulator's."""
    if not isinstance(signature, str) or not signature.startswith(_MARK):
        return None
    return mint.unseal("compaction", "gAAAA" + signature.removeprefix(_MARK))


def _latest(found: list[Block], desk: Desk) -> Block:
    """Threshold: the newest block counts, unsigned as it is."""
    for block in found:
        if block.value.get("signature") is not None:
            text = (
                f"{block.at}: a `compaction` block with a `signature` cannot be combined with a `compact_20260112` edit"
            )
            refuse(text, rule="compaction-signed-with-edit")
        sealed = block.value.get("encrypted_content")
        if sealed is not None and desk.world.mint.unseal("compaction-metadata", str(sealed)) is None:
            refuse(f"{block.at}: Invalid `encrypted_content` in `compaction` block", rule="compaction-metadata")
    return found[-1]


def _signed(found: list[Block], spoken: list[Spoken], desk: Desk) -> Block:
    """On demand: one block, signed here, first of all, as it was."""
    if ON_DEMAND not in desk.betas:
        text = f"{found[0].at}: `compaction` blocks need a `compact_20260112` edit in `context_management`"
        refuse(text, rule="compaction-without-edit")
    if len(found) > 1:
        text = f"{found[1].at}: `messages` holds more than one `compaction` block; send only the newest one"
        _refuse(text, "compaction_block_ambiguous")
    block, first = found[0], spoken[0]
    if first.role == "system" or first.blocks[0] is not block:
        text = f"{block.at}: the `compaction` block must be the first block of the conversation"
        _refuse(text, "compaction_block_misplaced")
    sealed = unsign(desk.world.mint, block.value.get("signature"))
    if sealed is None or not _may_read(sealed, desk):
        _refuse(f"{block.at}: Invalid `signature` in `compaction` block", "compaction_signature_invalid")
    if sealed["content"] != hash_of(encode(block.value["content"])):
        text = f"{block.at}: the `compaction` block's `content` is not the text that its `signature` recorded"
        _refuse(text, "compaction_content_mismatch")
    if sealed["tools"] != _hash_changes(block.value.get("tool_changes")):
        text = f"{block.at}: the `compaction` block's `tool_changes` are not what was returned with the block"
        _refuse(text, "compaction_tool_changes_mismatch")
    return block


def _may_read(sealed: JsonObject, desk: Desk) -> bool:
    bound = desk.world.settings.context.bound_to
    whole, mine = str(sealed.get("org")), desk.org
    if bound == "organization":
        whole, mine = whole.partition("/")[0], mine.partition("/")[0]
    return bound == "anyone" or (whole == mine and sealed.get("platform") == desk.profile.name)


def _refuse(message: str, code: str) -> NoReturn:
    raise Refusal(message, rule=code, details={"error_code": code})


def _after(spoken: list[Spoken], block: Block) -> list[Spoken]:
    place = (block.message, block.index)
    turns: list[Spoken] = []
    for turn in spoken:
        kept = tuple(
            entry for entry in turn.blocks if (entry.message, entry.index) > place and entry.kind != "compaction"
        )
        if kept:
            turns.append(Spoken(turn.role, kept))
    return turns


def _shown(message: JsonObject, position: int, window: Window, gone: Container[str], *, drops: bool) -> JsonObject:
    """One message as the model gets it."""
    first = window.at.index if window.at and position == window.at.message else 0
    blocks = text_blocks(message["content"])
    kept: list[JsonValue] = []
    for index, block in enumerate(blocks):
        if window.at and (position, index) == (window.at.message, window.at.index):
            kept.append({"type": "text", "text": block["content"]})
        elif index < first or block.get("type") == "compaction" or (drops and not is_known(block)):
            continue
        elif f"messages.{position}.content.{index}" not in gone:
            kept.append(block)
    return message if kept == blocks else message | {"content": kept}


def _hash_changes(changes: JsonValue) -> str:
    return hash_of(encode(changes)) if changes is not None else ""


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        return value
    kept = [entry for entry in value if not (isinstance(entry, dict) and entry.get("type") in THINKING)]
    return [
        {key: _plain(part) if key == "content" else part for key, part in entry.items() if key != "cache_control"}
        if isinstance(entry, dict)
        else entry
        for entry in kept
    ]
