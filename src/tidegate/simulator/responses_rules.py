"""What a Responses request must look like, in the order in which the API notices.

Knows OpenAI's rules; not how answers look. Called by `responses`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, NoReturn, TypeAlias

from tidegate.simulator import sealing
from tidegate.simulator.fields import RESPONSES_BODY, RESPONSES_COMPACT_BODY, RESPONSES_COUNT_BODY
from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.refusals import Refusal, refuse
from tidegate.simulator.responses_items import CALLS, OUTPUTS, TRIGGER, XAI_BLOB, check_item, items_of
from tidegate.simulator.responses_window import COMPACTION, effective
from tidegate.simulator.world import Desk, Kept

Purpose: TypeAlias = Literal["answer", "count", "compact"]
_FIELDS = {"answer": RESPONSES_BODY, "count": RESPONSES_COUNT_BODY, "compact": RESPONSES_COMPACT_BODY}

_MADE_BY_MODEL = frozenset(CALLS) | {
    "web_search_call",
    "file_search_call",
    "image_generation_call",
    "code_interpreter_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "tool_search_call",
    "program",
    "reasoning",
}


class Checked(NamedTuple):
    """A conversation that breaks no rule."""

    items: list[JsonObject]
    """What the model gets."""
    history: list[JsonObject]
    """The same before compaction items took the place of what they stand for; those of a previous response first."""
    trigger: bool
    """Whether it ends in a `compaction_trigger`, which is in neither list."""


def check(body: JsonObject, desk: Desk, purpose: Purpose = "answer") -> Checked:
    """Raises `Refusal` with the first rule that the request breaks."""
    if purpose == "answer" and desk.profile.unstored_streams:
        _unstored_stream(body)
    if purpose != "count" and not isinstance(body.get("model"), str):
        text = "Missing required parameter: 'model'."
        refuse(text, rule="required", param="model", code="missing_required_parameter")
    if body.get("model"):
        desk.check_model(str(body["model"]))
    if desk.strict:
        for name in body:
            if name not in _FIELDS[purpose]:
                _unknown(name)
    items = items_of(body)
    if purpose == "compact" and not items and not body.get("previous_response_id"):
        refuse("Invalid 'input': empty array. Expected an item.", rule="required", param="input", code="invalid_value")
    for position, item in enumerate(items):
        check_item(position, item, desk)
    items, trigger = _trigger(items, desk, purpose)
    _limits(body, desk)
    items = [_resolved(item, desk) for item in items]
    history = _previous(body, desk) + items
    model = str(body.get("model") or "")
    payloads = {
        position: _unsealed(item, desk, model) for position, item in enumerate(history) if _is_compaction(item, desk)
    }
    for item in items:
        _sealed_reasoning(item, desk)
    window = effective(history, payloads, desk)
    _pairs(window)
    if desk.profile.pairs_reasoning:
        _reasoning(history, desk)
    return Checked(window, history, trigger)


def _unstored_stream(body: JsonObject) -> None:
    for name, wanted in (("store", False), ("stream", True)):
        if body.get(name) is not wanted:
            text = f"{name.capitalize()} must be set to {str(wanted).lower()}"
            raise Refusal(text, rule="unstored-stream", param=name, shaped={"detail": text})


def _unknown(name: str) -> NoReturn:
    refuse(f"Unknown parameter: '{name}'.", rule="unknown-field", param=name, code="unknown_parameter")


def _trigger(items: list[JsonObject], desk: Desk, purpose: Purpose) -> tuple[list[JsonObject], bool]:
    """The items without their trigger, and whether there was one that counts."""
    found = [position for position, item in enumerate(items) if item.get("type") == TRIGGER]
    if not found:
        return items, False
    rest = [item for item in items if item.get("type") != TRIGGER]
    if desk.trigger == "ignored":
        return rest, False
    if purpose == "compact":
        text = "Invalid value: 'compaction_trigger'. A trigger is not allowed here."
        refuse(text, rule="trigger", param="input", code="invalid_value")
    if found != [len(items) - 1]:
        text = "Invalid 'input': a 'compaction_trigger' must be the final input item."
        refuse(text, rule="trigger", param="input", code="invalid_value")
    return rest, purpose == "answer"


def _limits(body: JsonObject, desk: Desk) -> None:
    limit = body.get("max_output_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 16):
        text = (
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got "
            f"{limit} instead."
        )
        refuse(text, rule="output-limit", param="max_output_tokens", code="integer_below_min_value")
    if body.get("stream_options") is not None and not body.get("stream"):
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        refuse(text, rule="companion", param="stream_options")
    edits = body.get("context_management")
    if edits is None or desk.in_band == "ignored":
        return
    if desk.in_band == "refused":
        _unknown("context_management")
    if not isinstance(edits, list):
        text = "Invalid type for 'context_management': expected an array of objects."
        refuse(text, rule="type", param="context_management", code="invalid_type")
    for index, edit in enumerate(edits):
        at = f"context_management[{index}]"
        if not isinstance(edit, dict) or edit.get("type") != "compaction":
            text = f"Invalid value for '{at}.type'. Supported values are: 'compaction'."
            refuse(text, rule="context-management", param=f"{at}.type", code="invalid_value")
        least = edit.get("compact_threshold")
        if least is not None and (not isinstance(least, int) or least < 1000):
            text = (
                f"Invalid '{at}.compact_threshold': integer below minimum value. Expected a value >= 1000, but got "
                f"{least} instead."
            )
            refuse(text, rule="context-management", param=f"{at}.compact_threshold", code="integer_below_min_value")


def _previous(body: JsonObject, desk: Desk) -> list[JsonObject]:
    """The items that the server holds for this request."""
    id_ = body.get("previous_response_id")
    if body.get("conversation") is not None:
        if id_ is not None:
            text = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
            refuse(text, rule="previous-response", param="previous_response_id", code="mutually_exclusive_parameters")
        return list(conversation_of(body, desk).items)
    if id_ is None:
        return []
    stored = desk.world.responses.get(str(id_))
    if stored is None or not desk.owns(stored):
        text = f"Previous response with id '{id_}' not found."
        refuse(text, rule="previous-response", param="previous_response_id", code="previous_response_not_found")
    return list(stored.items)


def conversation_of(body: JsonObject, desk: Desk) -> Kept:
    """The stored conversation that a request names by `conversation`. Raises `Refusal`."""
    named = body.get("conversation")
    id_ = named.get("id") if isinstance(named, dict) else named
    found = desk.world.conversations.get(str(id_))
    if found is None or not desk.owns(found):
        raise Refusal("Conversation not found.", rule="conversation", param="conversation", status=404)
    return found


def _resolved(item: JsonObject, desk: Desk) -> JsonObject:
    """A reference replaced by what it stands for. A reasoning item without its sealed content is one too."""
    reference = item.get("type") in (None, "item_reference")
    if not reference and not (item.get("type") == "reasoning" and not item.get("encrypted_content") and item.get("id")):
        return item
    stored = desk.world.stored_items.get(str(item.get("id")))
    if stored is None:
        text = (
            f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false. Try "
            "again with `store` set to true, or remove this item from your input."
        )
        refuse(text, rule="item-reference", param="input", status=404)
    return stored


def _unverified(item: JsonObject) -> NoReturn:
    sealed = str(item.get("encrypted_content"))
    if item.get("id"):
        text = (
            f"The encrypted content for item {item['id']} could not be verified. Reason: Encrypted content could not "
            "be decrypted or parsed."
        )
    else:
        text = f"The encrypted content {sealed[:4]}...{sealed[-4:]} could not be verified."
    refuse(text, rule="encrypted-content", code="invalid_encrypted_content")


def _is_compaction(item: JsonObject, desk: Desk) -> bool:
    return item.get("type") == COMPACTION or item.get("type") in desk.profile.item_aliases


def _unsealed(item: JsonObject, desk: Desk, model: str) -> JsonObject:
    """What a compaction item stands for."""
    payload = sealing.unseal(desk, COMPACTION, item.get("encrypted_content"), model)
    if payload is not None and item.get("id") in (None, payload.get("id")):
        return payload
    if desk.profile.shape == "xai":
        refuse(XAI_BLOB, rule="encrypted-content")
    _unverified(item)


def _sealed_reasoning(item: JsonObject, desk: Desk) -> None:
    sealed = item.get("encrypted_content")
    if item.get("type") != "reasoning" or not sealed:
        return
    payload = sealing.unseal(desk, "reasoning", sealed)
    if payload is not None and item.get("id") in (None, payload.get("id")):
        return
    if desk.profile.shape == "xai":
        refuse("Could not decrypt the provided encrypted_content.", rule="encrypted-content")
    _unverified(item)


def _pairs(items: list[JsonObject]) -> None:
    """Every output after its call, every call with one output."""
    calls: dict[str, str] = {}
    answered: set[str] = set()
    for item in items:
        kind = str(item.get("type"))
        if kind in CALLS:
            id_ = str(item.get("call_id"))
            if id_ in calls:
                text = f"Duplicate tool call id '{id_}' in input."
                refuse(text, rule="duplicate-call", param="input")
            calls[id_] = kind
        elif kind in OUTPUTS:
            id_ = str(item.get("call_id") or item.get("id"))
            asked = OUTPUTS[kind]
            if calls.get(id_) != asked:
                text = f"No tool call found for {CALLS[asked]} output with call_id {id_}."
                refuse(text, rule="result-without-call", param="input")
            if id_ in answered:
                text = f"Duplicate output for {CALLS[asked]} {id_}."
                refuse(text, rule="duplicate-result", param="input")
            answered.add(id_)
    for id_, kind in calls.items():
        if id_ not in answered:
            refuse(f"No tool output found for {CALLS[kind]} {id_}.", rule="call-without-result", param="input")


def _reasoning(items: list[JsonObject], desk: Desk) -> None:
    """A reasoning item stays with the output made beside it, both ways."""
    seen: set[str] = set()
    for position, item in enumerate(items):
        if item.get("type") == "reasoning":
            following = items[position + 1] if position + 1 < len(items) else {}
            kind = following.get("type")
            if kind not in _MADE_BY_MODEL and not (kind == "message" and following.get("role") == "assistant"):
                name = item.get("id") or "rs_unknown"
                text = f"Item '{name}' of type 'reasoning' was provided without its required following item."
                refuse(text, rule="reasoning-without-output", param="input")
            seen.add(str(item.get("id")))
            continue
        partner = desk.world.partners.get(str(item.get("id"))) if item.get("id") else None
        if partner is not None and partner not in seen:
            text = (
                f"Item '{item['id']}' of type '{item['type']}' was provided without its required 'reasoning' item: "
                f"'{partner}'."
            )
            raise Refusal(text, rule="output-without-reasoning", param="input")
