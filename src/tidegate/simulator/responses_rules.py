"""What a Responses request must look like, in the order in which the API notices.

Knows OpenAI's rules; not how answers look. Called by `responses`.
"""

from __future__ import annotations

from typing import NoReturn

from tidegate.simulator.fields import (
    RESPONSES_BODY,
    RESPONSES_COUNT_BODY,
    RESPONSES_ITEMS,
    RESPONSES_PARTS,
    RESPONSES_PREFIXES,
)
from tidegate.simulator.jsontext import JsonObject, JsonValue
from tidegate.simulator.refusals import Refusal, refuse
from tidegate.simulator.world import Desk

MAX_STRING = 10_485_760
_ROLES = ("assistant", "system", "developer", "user")
_OPAQUE = ("compaction", "compaction_summary", "context_compaction")

CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "local_shell_call": "local shell call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
    "computer_call": "computer call",
}
"""Item types that the client must answer, and what error texts call them."""
_OUTPUTS = {f"{kind}_output": kind for kind in CALLS}
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


def check(body: JsonObject, desk: Desk, *, counting: bool = False) -> list[JsonObject]:
    """The effective items (those of a previous response first) of a request that breaks no rule.

    Raises `Refusal` with the first rule it breaks.
    """
    if not counting and not isinstance(body.get("model"), str):
        text = "Missing required parameter: 'model'."
        refuse(text, rule="required", param="model", code="missing_required_parameter")
    if body.get("model"):
        desk.check_model(str(body["model"]))
    if desk.strict:
        known = RESPONSES_COUNT_BODY if counting else RESPONSES_BODY
        for name in body:
            if name not in known:
                refuse(f"Unknown parameter: '{name}'.", rule="unknown-field", param=name, code="unknown_parameter")
    items = _items(body)
    for position, item in enumerate(items):
        _item(position, item, desk)
    _limits(body)
    items = [_resolved(item, desk) for item in items]
    before = _previous(body, desk)
    for item in items:
        _sealed(item, desk)
    effective = before + items
    _pairs(effective)
    if desk.profile.pairs_reasoning:
        _reasoning(effective, desk)
    return effective


def _items(body: JsonObject) -> list[JsonObject]:
    given = body.get("input")
    if given is None:
        if body.get("previous_response_id") or body.get("conversation") or body.get("prompt"):
            return []
        text = "One of \"input\" or \"previous_response_id\"or 'prompt'or 'conversation_id' must be provided."
        refuse(text, rule="required", code="missing_required_parameter")
    if isinstance(given, str):
        _length("input", given)
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        text = "Invalid type for 'input': expected one of a string or array of objects."
        refuse(text, rule="type", param="input", code="invalid_type")
    for position, item in enumerate(given):
        if not isinstance(item, dict):
            at = f"input[{position}]"
            refuse(f"Invalid type for '{at}': expected an object.", rule="type", param=at, code="invalid_type")
    return [item if item.get("type") or "role" not in item else item | {"type": "message"} for item in given]


def _length(at: str, text: str) -> None:
    if len(text) > MAX_STRING:
        message = (
            f"Invalid '{at}': string too long. Expected a string with maximum length {MAX_STRING}, but got a string "
            f"with length {len(text)} instead."
        )
        refuse(message, rule="string-too-long", param=at, code="string_above_max_length")


def _item(position: int, item: JsonObject, desk: Desk) -> None:
    at = f"input[{position}]"
    kind = item.get("type") or ("item_reference" if "id" in item else None)
    if not isinstance(kind, str):
        _unknown_type(at, kind, desk)
    if kind in _OPAQUE:
        _opaque(at, item, desk)
    if kind not in RESPONSES_ITEMS:
        _unknown_type(at, kind, desk)
    _identity(at, kind, item)
    if desk.strict:
        for name in item:
            if name not in RESPONSES_ITEMS[kind]:
                text = f"Unknown parameter: '{at}.{name}'."
                refuse(text, rule="unknown-field", param=f"{at}.{name}", code="unknown_parameter")
    if kind == "message":
        _message(at, item)
    elif kind == "reasoning":
        _reasoning_shape(at, item)
    elif kind in CALLS or kind in _OUTPUTS:
        _call_shape(at, kind, item)


def _unknown_type(at: str, kind: JsonValue, desk: Desk) -> NoReturn:
    if desk.profile.shape == "xai":
        text = (
            "Failed to deserialize the JSON body into the target type: input: data did not match any variant of "
            "untagged enum ModelInput"
        )
        refuse(text, rule="item-type", status=422)
    known = ", ".join(f"'{name}'" for name in RESPONSES_ITEMS)
    text = f"Invalid value: '{kind}'. Supported values are: {known}."
    refuse(text, rule="item-type", param=f"{at}.type", code="invalid_value")


def _identity(at: str, kind: str, item: JsonObject) -> None:
    id_ = item.get("id")
    if id_ is None:
        return
    if not isinstance(id_, str) or len(id_) > 64:
        text = (
            f"Invalid '{at}.id': string too long. Expected a string with maximum length 64, but got a string with "
            f"length {len(str(id_))} instead."
        )
        refuse(text, rule="item-id", param=f"{at}.id", code="string_above_max_length")
    prefixes = RESPONSES_PREFIXES.get(kind)
    if prefixes and not id_.startswith(prefixes):
        text = f"Invalid '{at}.id': '{id_}'. Expected an ID that begins with '{prefixes[0]}'."
        refuse(text, rule="item-id", param=f"{at}.id", code="invalid_value")


def _message(at: str, item: JsonObject) -> None:
    role = item.get("role")
    if role not in _ROLES:
        known = ", ".join(f"'{name}'" for name in _ROLES)
        text = f"Invalid value: '{role}'. Supported values are: {known}."
        refuse(text, rule="role", param=f"{at}.role", code="invalid_value")
    content = item.get("content")
    if isinstance(content, str):
        _length(f"{at}.content", content)
        return
    if not isinstance(content, list):
        text = f"Missing required parameter: '{at}.content'."
        refuse(text, rule="required", param=f"{at}.content", code="missing_required_parameter")
    known_parts = RESPONSES_PARTS["assistant" if role == "assistant" else "user"]
    for index, part in enumerate(content):
        here = f"{at}.content[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in known_parts:
            names = " and ".join(f"'{name}'" for name in known_parts)
            text = f"Invalid value: '{kind}'. Supported values are: {names}."
            refuse(text, rule="part-type", param=here, code="invalid_value")
        if isinstance(part.get("text"), str):
            _length(f"{here}.text", part["text"])


def _reasoning_shape(at: str, item: JsonObject) -> None:
    content = item.get("content")
    if content:
        text = (
            f"Invalid '{at}.content': array too long. Expected an array with maximum length 0, but got an array with "
            f"length {len(content) if isinstance(content, list) else 1} instead."
        )
        refuse(text, rule="reasoning-content", param=f"{at}.content", code="array_above_max_length")
    if not isinstance(item.get("summary"), list):
        text = f"Missing required parameter: '{at}.summary'."
        refuse(text, rule="required", param=f"{at}.summary", code="missing_required_parameter")


def _call_shape(at: str, kind: str, item: JsonObject) -> None:
    wanted = {"function_call": ("call_id", "name", "arguments"), "custom_tool_call": ("call_id", "name", "input")}
    names = wanted.get(kind, ("output",) if kind.startswith("local_shell") else ("call_id",))
    if kind == "local_shell_call":
        names = ("call_id",)
    for name in (*names, *(("output",) if kind in _OUTPUTS and "output" not in names else ())):
        if item.get(name) is None:
            text = f"Missing required parameter: '{at}.{name}'."
            refuse(text, rule="required", param=f"{at}.{name}", code="missing_required_parameter")


def _limits(body: JsonObject) -> None:
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
    if edits is None:
        return
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
    id_ = body.get("previous_response_id")
    if body.get("conversation") is not None:
        if id_ is not None:
            text = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
            refuse(text, rule="previous-response", param="previous_response_id", code="mutually_exclusive_parameters")
        refuse("Conversation not found.", rule="conversation", param="conversation", status=404)
    if id_ is None:
        return []
    stored = desk.world.responses.get(str(id_))
    if stored is None or stored.org != desk.org:
        text = f"Previous response with id '{id_}' not found."
        refuse(text, rule="previous-response", param="previous_response_id", code="previous_response_not_found")
    return list(stored.items)


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


def _opaque(at: str, item: JsonObject, desk: Desk) -> None:
    """Compaction items: none was made here, so each is a stranger's."""
    if desk.profile.shape == "xai":
        text = "Could not decode the compaction blob. Ensure it is unmodified from the compact response."
        refuse(text, rule="encrypted-content")
    if not item.get("encrypted_content"):
        name = f"{at}.encrypted_content"
        text = f"Missing required parameter: '{name}'."
        refuse(text, rule="required", param=name, code="missing_required_parameter")
    _unverified(item)


def _unverified(item: JsonObject) -> None:
    sealed = str(item.get("encrypted_content"))
    if item.get("id"):
        text = (
            f"The encrypted content for item {item['id']} could not be verified. Reason: Encrypted content could not "
            "be decrypted or parsed."
        )
    else:
        text = f"The encrypted content {sealed[:4]}...{sealed[-4:]} could not be verified."
    refuse(text, rule="encrypted-content", code="invalid_encrypted_content")


def _sealed(item: JsonObject, desk: Desk) -> None:
    sealed = item.get("encrypted_content")
    if item.get("type") != "reasoning" or not sealed:
        return
    payload = desk.world.mint.unseal("reasoning", sealed) if isinstance(sealed, str) else None
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
        elif kind in _OUTPUTS:
            id_ = str(item.get("call_id") or item.get("id"))
            asked = _OUTPUTS[kind]
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
