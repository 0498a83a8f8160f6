"""What the model is shown in place of a history: the splice of an artifact and the items kept.

Knows legal orders and merges; makes no decision and no call. Called by the exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.compactors.summary import mark
from tidegate.context.cut import newest_turn, safe_cuts
from tidegate.context.estimate import request_overhead, text_tokens
from tidegate.context.fingerprint import Chain, Hasher
from tidegate.context.ledger import Entry, Ledger
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.request import Target
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import Conversation, JsonObject, UnreadableBody
from tidegate.wire.jsontext import dumps, loads

ITEM_OVERHEAD = 4
"""Tokens every message costs beside its words."""

DROP_BLOCK_BETA = "thinking-binding-controls-2026-08-01"


@dataclass(frozen=True, slots=True)
class History:
    """A request's items, read: the chain and, for each chained item, its facts and size."""

    conversation: Conversation
    chain: Chain
    head: bytes
    entries: tuple[Entry, ...] = field(repr=False)
    """Of the chained items only."""
    overhead: int
    """Tokens of all that is never compacted: system, leading system items, tools, schema."""

    @property
    def raws(self) -> tuple[bytes, ...]:
        """Raw JSON of the chained items."""
        lead = self.conversation.lead
        return tuple(item.raw for item in self.conversation.items[lead:])

    def value(self, position: int) -> JsonObject:
        """The chained item at `position`, parsed."""
        value = loads(self.conversation.items[self.conversation.lead + position].raw)
        if not isinstance(value, dict):
            raise UnreadableBody(f"item {position} is not an object")
        return value


@dataclass(frozen=True, slots=True)
class View:
    """What is forwarded: the first `covered` chained items replaced by `checkpoint`, the rest as they are."""

    body: bytes = field(repr=False)
    covered: int
    checkpoint: Checkpoint | None
    tokens: int
    """Estimated, uncalibrated."""
    artifact_tokens: int = 0
    """Estimated tokens of the artifact and the items retained with it."""
    add_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def chain(self) -> bytes:
        """Chain of the checkpoint in it, empty for none."""
        return self.checkpoint.chain if self.checkpoint else b""


def read_history(conversation: Conversation, tenant: bytes, hasher: Hasher, ledger: Ledger) -> History:
    """Reads every item once (or finds it in the ledger) and chains them. Raises `UnreadableBody`."""
    every = ledger.entries(conversation)
    lead = conversation.lead
    entries = every[lead:]
    chain = hasher.chain(tenant, conversation.dialect, [entry.fingerprint for entry in entries])
    overhead = request_overhead(conversation) + sum(entry.tokens for entry in every[:lead])
    return History(conversation, chain, hasher.head(conversation), entries, overhead)


def plain(history: History) -> View:
    """The history as the client sent it."""
    tokens = history.overhead + sum(entry.tokens for entry in history.entries)
    return View(history.conversation.raw, 0, None, tokens)


def applicable(history: History, checkpoint: Checkpoint) -> bool:
    """Whether a matching checkpoint may stand for the beginning of this very history: something is left after it, the
    cut splits nothing here, and the newest words of the user stay verbatim."""
    n, k = len(history.entries), checkpoint.length
    if not 0 < k < n or history.chain.links[k] != checkpoint.chain:
        return False
    facts = [entry.facts for entry in history.entries]
    newest = newest_turn(facts)
    if newest is not None and newest < k and newest not in checkpoint.artifact.retained:
        return False
    return all(p < k for p in checkpoint.artifact.retained) and safe_cuts(facts)[k]


def replaced(history: History, checkpoint: Checkpoint, target: Target) -> View:
    """The history with the checkpoint's artifact in place of its first items."""
    conversation, covered = history.conversation, checkpoint.length
    artifact = checkpoint.artifact
    before, after, taken = _artifact_items(history, artifact, covered, target)
    tail = list(history.raws[covered + taken :])
    edited, add_headers, bind = _bound_thinking(history, covered + taken, target)
    lead = conversation.lead
    if edited:
        tail = [raw for raw in (edited.get(i, raw) for i, raw in enumerate(tail)) if raw is not None]
        body = conversation.replace_items([*before, *after, *tail], keep_from=len(conversation.items))
    else:
        body = conversation.replace_items([*before, *after], keep_from=lead + covered + taken)
    if bind:
        body = _drop_mismatched(REQUESTS[conversation.dialect].read(body))
    kept = sum(entry.tokens for entry in history.entries[covered:])
    artifact_tokens = artifact_size(history, artifact)
    return View(body, covered, checkpoint, history.overhead + artifact_tokens + kept, artifact_tokens, add_headers)


def artifact_size(history: History, artifact: Artifact) -> int:
    """Estimated tokens of an artifact and the items retained with it."""
    words = text_tokens(mark(artifact.text)) + ITEM_OVERHEAD if artifact.text else 0
    opaque = sum(len(raw) // 4 + ITEM_OVERHEAD for raw in artifact.items)
    return words + opaque + sum(history.entries[p].tokens for p in artifact.retained)


def _artifact_items(
    history: History, artifact: Artifact, covered: int, target: Target
) -> tuple[list[bytes], list[bytes], int]:
    """(items before the tail: system ones and the artifact, retained user items, tail items merged into them)."""
    requests = REQUESTS[history.conversation.dialect]
    systems = [history.raws[p] for p in artifact.retained if history.entries[p].facts.role == "system"]
    others = [p for p in artifact.retained if history.entries[p].facts.role != "system"]
    if target.binds_thinking:
        others = [p for p in others if _unbound(history, p) is not None]
    if artifact.kind == "opaque":
        return [*systems, *artifact.items], [history.raws[p] for p in others], 0
    text = mark(artifact.text)
    merge = target.merge_user or history.conversation.dialect == "messages"
    after = [(_unbound(history, p) if target.binds_thinking else None) or history.raws[p] for p in others]
    # The API of Messages wants a user message first; elsewhere instructions stand before everything else.
    user_first = history.conversation.dialect == "messages" and systems
    if merge and not user_first:
        if others:
            merged = requests.prepend_text(history.value(others[0]), text)
            if merged is not None:
                return systems, [merged, *after[1:]], 0
        elif history.entries[covered].facts.role == "user":
            merged = requests.prepend_text(history.value(covered), text)
            if merged is not None:
                return systems, [merged], 1
    summary = requests.text_item("user", text)
    return ([summary, *systems], after, 0) if user_first else ([*systems, summary], after, 0)


def _unbound(history: History, position: int) -> bytes | None:
    """An item without thinking blocks, None where nothing else is in it."""
    if not history.entries[position].facts.thinking:
        return history.raws[position]
    return REQUESTS[history.conversation.dialect].drop_thinking(history.value(position))


def _bound_thinking(
    history: History, start: int, target: Target
) -> tuple[dict[int, bytes | None], dict[str, str], bool]:
    """Tail items (by place in the tail) without the thinking blocks that the new past has invalidated.

    In an open tool round the newest assistant turn must keep its blocks, so there the API is told to drop what does not
    match (wire contract of preserved thinking: `thinking.block_binding`).
    """
    if not target.binds_thinking:
        return {}, {}, False
    bearing = [i for i in range(start, len(history.entries)) if history.entries[i].facts.thinking]
    if not bearing:
        return {}, {}, False
    open_round = history.entries[-1].facts.role == "tool"
    newest_assistant = max(
        (i for i, entry in enumerate(history.entries) if entry.facts.role == "assistant"), default=-1
    )
    held = open_round and newest_assistant in bearing
    edited = {i - start: _unbound(history, i) for i in bearing if not (held and i == newest_assistant)}
    return edited, ({"anthropic-beta": DROP_BLOCK_BETA} if held else {}), held


def _drop_mismatched(conversation: Conversation) -> bytes:
    raw = conversation.fields.get("thinking")
    thinking = loads(raw) if raw else None
    if not isinstance(thinking, dict):
        return conversation.raw
    binding = thinking.get("block_binding")
    merged = {**(binding if isinstance(binding, dict) else {}), "prefix_mismatch_behavior": "drop_block"}
    return conversation.replace_fields({"thinking": dumps({**thinking, "block_binding": merged})})


def items_to_summarise(history: History, view: View, cut_at: int, retained: Sequence[int]) -> tuple[JsonObject, ...]:
    """The items a new summary must cover: those retained beside the last artifact and not any more, then those between
    it and the cut."""
    earlier = view.checkpoint.artifact.retained if view.checkpoint else ()
    gone = [p for p in earlier if p not in retained]
    return tuple(history.value(p) for p in [*gone, *range(view.covered, cut_at)])
