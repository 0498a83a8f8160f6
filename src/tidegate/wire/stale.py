"""The opaque parts of a history that a provider may refuse to read again, and a body without them.

Knows what must go with what in each API; judges no refusal. Called by the engine once a refusal says that one is stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.wire import chat, messages, responses
from tidegate.wire.body import item_value
from tidegate.wire.content import as_list
from tidegate.wire.conversation import Conversation, DialectName, Facts, JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads
from tidegate.wire.untyped import ids_at, text_at

StaleKind: TypeAlias = Literal["thinking", "compaction"]


@dataclass(frozen=True, slots=True)
class Stale:
    """What a refusal means: all thinking, or the compactions at these positions of the refused body's items.

    A refusal names one thinking block, the first that fails; those beside it were sealed with the same key, and there
    is one retry. Of compactions only the one that is named goes: another may hold all that is left of the past.
    """

    kind: StaleKind
    positions: frozenset[int] = frozenset()
    """Of compactions; of thinking none, so that it holds for any body with these items."""
    open_turn: bool = False
    """Thinking may be taken out of an answer that still goes on."""


Values: TypeAlias = Sequence[JsonObject]
Edits: TypeAlias = Mapping[int, bytes | None]
"""By position: the item as it is to be sent, None where it goes."""


def stale_in(conversation: Conversation, refusal: bytes) -> Stale | None:
    """What of this history the words of a refusal can mean; None where it holds nothing of the kind, and where what is
    named must not be taken out of it."""
    values = [item_value(item) or {} for item in conversation.items]
    return _STALE[conversation.dialect](conversation, values, refusal.decode("utf-8", "replace"))


def foreign_in(conversation: Conversation, refusal: bytes) -> Stale | None:
    """What of this history another maker has sealed, by the words of a refusal of its shape: where they name a field of
    sealed reasoning by its place (`Unknown parameter: 'input[3].status'`). What is in it could be read no better."""
    if conversation.dialect != "responses":
        return None
    for place in _INPUT_PLACE.findall(refusal.decode("utf-8", "replace")):
        item = item_value(conversation.items[int(place)]) if int(place) < len(conversation.items) else None
        if item is not None and _is_sealed_reasoning(item):
            return Stale("thinking")
    return None


def without_stale(conversation: Conversation, stale: Stale) -> bytes | None:
    """The body without it, and without what the API would refuse alone; all other items keep their bytes.

    None where nothing would go, where something that must stay hangs on it, and where nothing would be left of the
    user's own, or of a compaction that stands for it.
    """
    values = [item_value(item) or {} for item in conversation.items]
    edits = _EDITS[conversation.dialect](conversation, values, stale)
    if not edits:
        return None
    lead = conversation.lead
    kept = [
        (i, edits.get(i, item.raw))
        for i, item in enumerate(conversation.items)
        if i >= lead and edits.get(i, item.raw) is not None
    ]
    raws = [raw for _i, raw in kept if raw is not None]
    if conversation.dialect == "messages":
        if raws and _begins_with_compaction(loads(raws[0])):
            return conversation.replace_items(raws, keep_from=len(conversation.items))
        if raws and text_at(values[kept[0][0]], "role") != "user":
            return None  # the API wants a user message first, unless a compaction is
    if not any(_FACTS[conversation.dialect](values[i]).human for i, _raw in kept):
        return None
    return conversation.replace_items(raws, keep_from=len(conversation.items))


# -- Responses -------------------------------------------------------------------------------------------------------

_LOSES_ID = frozenset(
    {
        "message",
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "tool_search_call",
    }
)
"""Without their id the API takes them for the client's own, and asks for no reasoning beside them."""

_GOES_ALONG = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
    }
)
"""They need their id, and nothing answers them."""

_SHORTENED = re.compile(r"([\w+/=-]{2,16})\.{3}([\w+/=-]{2,16})")
"""How the API names a sealed content without an id: `The encrypted content gAAA...Rg== could not be verified.`"""
_WORD = re.compile(r"[\w-]+")
_INPUT_PLACE = re.compile(r"\binput\[(\d{1,6})\]\.")


def _stale_item(conversation: Conversation, values: Values, told: str) -> Stale | None:
    words = frozenset(_WORD.findall(told))
    shortened = _SHORTENED.findall(told)

    def named(item: JsonObject) -> bool:
        sealed = text_at(item, "encrypted_content")
        by_content = any(sealed.startswith(start) and sealed.endswith(end) for start, end in shortened)
        return text_at(item, "id") in words or (bool(sealed) and by_content)

    compactions = frozenset(i for i, item in enumerate(values) if _is_sealed_compaction(item))
    thinking = [item for item in values if _is_sealed_reasoning(item)]
    meant = frozenset(i for i in compactions if named(values[i]))
    if thinking and (any(map(named, thinking)) or not (meant or (compactions and "compaction" in told.lower()))):
        return Stale("thinking")
    return Stale("compaction", meant or compactions) if compactions else None


def _is_sealed_compaction(item: JsonObject) -> bool:
    """One with nothing sealed in it was never readable: to leave it out would hide a mistake, and the past with it."""
    return text_at(item, "type") in responses.COMPACTIONS and bool(text_at(item, "encrypted_content"))


def _is_sealed_reasoning(item: JsonObject) -> bool:
    return text_at(item, "type") == "reasoning" and bool(text_at(item, "encrypted_content"))


def _responses_edits(conversation: Conversation, values: Values, stale: Stale) -> Edits:
    """Reasoning and what was made beside it: the API refuses `Item 'msg_…' … without its required 'reasoning' item`."""
    if stale.kind == "compaction":
        return dict.fromkeys(stale.positions, None)
    edits: dict[int, bytes | None] = {}
    facts = [responses.facts(item) for item in values]
    beside = directly = False
    for i, item in enumerate(values):
        kind, role = facts[i].kind, facts[i].role
        if kind == "reasoning":
            beside = directly = _is_sealed_reasoning(item)
            if beside:
                edits[i] = None
        elif role != "assistant":
            # Results may stand between the calls of one answer.
            beside, directly = beside and role == "tool", False
        elif beside and ids_at(item, "id"):
            if kind in _LOSES_ID:
                edits[i] = dumps({key: value for key, value in item.items() if key != "id"})
            elif directly:
                if kind not in _GOES_ALONG:
                    return {}
                edits[i] = None
    return {} if _unlinks(values, facts, edits) else edits


def _unlinks(values: Values, facts: Sequence[Facts], edits: Edits) -> bool:
    """Whether an item that stays names one of the ids that go."""
    gone = {
        text_at(values[i], "id")
        for i in edits
        if facts[i].kind != "reasoning" and text_at(values[i], "id") != text_at(values[i], "call_id")
    }
    return any(gone.intersection((*facts[i].results, *facts[i].mentions)) for i in range(len(values)) if i not in edits)


# -- Messages --------------------------------------------------------------------------------------------------------

_PLACE = re.compile(r"messages\.(\d{1,9})\.content")


def _stale_block(conversation: Conversation, values: Values, told: str) -> Stale | None:
    places = frozenset(int(place) for place in _PLACE.findall(told))
    compactions = frozenset(i for i, item in enumerate(values) if messages.facts(item).opaque)
    thinking = {i for i, item in enumerate(values) if messages.facts(item).thinking}
    if compactions and (not thinking or "compaction" in told.lower()):
        return Stale("compaction", places & compactions or compactions)
    # `Remove the block`, says the API of thinking that is bound to another past, and takes it in an open round too.
    bound = _BOUND in told
    if not thinking or (not bound and places & _open_turn(conversation, values)):
        return None
    return Stale("thinking", open_turn=bound)


_BOUND = "bound to a different conversation"


def _open_turn(conversation: Conversation, values: Values) -> frozenset[int]:
    """The newest answer, where the request asks for thinking and goes on with that answer: the API wants its thinking
    back as it was (`blocks in the latest assistant message cannot be modified`)."""
    raw = conversation.fields.get("thinking")
    asked = loads(raw) if raw else None
    if not isinstance(asked, dict) or text_at(asked, "type") in ("", "disabled"):
        return frozenset()
    end = len(values)
    while end > 0 and text_at(values[end - 1], "role") != "assistant":
        end -= 1
    after = values[end:]
    goes_on = not after or any(messages.facts(item).results for item in after)
    start = end
    while start > 0 and text_at(values[start - 1], "role") == "assistant":
        start -= 1
    return frozenset(range(start, end)) if goes_on else frozenset()


def _messages_edits(conversation: Conversation, values: Values, stale: Stale) -> Edits:
    """Blocks go whole: a signature covers every byte. A message with nothing else in it goes with them."""
    if stale.kind == "compaction":
        return {i: _without_compaction(values[i]) for i in stale.positions}
    kept = frozenset() if stale.open_turn else _open_turn(conversation, values)
    return {
        i: messages.drop_thinking(item)
        for i, item in enumerate(values)
        if i not in kept and messages.facts(item).thinking
    }


def _begins_with_compaction(item: JsonValue) -> bool:
    first = next(iter(as_list(item.get("content"))), None) if isinstance(item, dict) else None
    is_block = isinstance(first, dict) and text_at(first, "type") == "compaction"
    return is_block and messages.facts({"content": [first]}).opaque  # `content: null` is a compaction that failed


def _without_compaction(item: JsonObject) -> bytes | None:
    blocks = as_list(item.get("content"))
    kept = [block for block in blocks if not (isinstance(block, dict) and text_at(block, "type") == "compaction")]
    return dumps({**item, "content": kept}) if kept else None


# -- Chat ------------------------------------------------------------------------------------------------------------

_SEALED = frozenset({"reasoning_details", "thinking_blocks"})
"""OpenRouter's and LiteLLM's fields for what a provider sealed or signed; words beside them stay."""


def _is_signed(item: JsonObject) -> bool:
    return text_at(item, "role") == "assistant" and not _SEALED.isdisjoint(item)


def _stale_field(conversation: Conversation, values: Values, told: str) -> Stale | None:
    return Stale("thinking") if any(map(_is_signed, values)) else None


def _chat_edits(conversation: Conversation, values: Values, stale: Stale) -> Edits:
    return {
        i: dumps({key: value for key, value in item.items() if key not in _SEALED})
        for i, item in enumerate(values)
        if _is_signed(item)
    }


_STALE: Mapping[DialectName, Callable[[Conversation, Values, str], Stale | None]] = {
    "chat": _stale_field,
    "responses": _stale_item,
    "messages": _stale_block,
}
_EDITS: Mapping[DialectName, Callable[[Conversation, Values, Stale], Edits]] = {
    "chat": _chat_edits,
    "responses": _responses_edits,
    "messages": _messages_edits,
}
_FACTS: Mapping[DialectName, Callable[[JsonObject], Facts]] = {
    "chat": chat.facts,
    "responses": responses.facts,
    "messages": messages.facts,
}
