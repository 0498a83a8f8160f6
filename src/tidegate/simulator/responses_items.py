"""What each item of a Responses request must look like: its type, id, fields, role and parts.

Knows shapes; not what items mean to each other. Called by `responses_rules`.
"""

from __future__ import annotations

from typing import NoReturn

from tidegate.simulator.fields import RESPONSES_ITEMS, RESPONSES_PARTS, RESPONSES_PREFIXES
from tidegate.simulator.jsontext import JsonObject, JsonValue
from tidegate.simulator.refusals import refuse
from tidegate.simulator.world import Desk

MAX_STRING = 10_485_760
TRIGGER = "compaction_trigger"
XAI_BLOB = "Could not decode the compaction blob. Ensure it is unmodified from the compact response."
_ROLES = ("assistant", "system", "developer", "user")

CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "local_shell_call": "local shell call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
    "computer_call": "computer call",
}
"""Item types that the client must answer, and what error texts call them."""
OUTPUTS = {f"{kind}_output": kind for kind in CALLS}


def items_of(body: JsonObject) -> list[JsonObject]:
    """The items of `input`, a bare string as a user message. Raises `Refusal`."""
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


def check_item(position: int, item: JsonObject, desk: Desk) -> None:
    """Raises `Refusal` where an item does not look as its type must."""
    at = f"input[{position}]"
    kind = item.get("type") or ("item_reference" if "id" in item else None)
    if not isinstance(kind, str):
        _unknown_type(at, kind, desk)
    if kind == TRIGGER and desk.trigger != "refused":
        return
    known = RESPONSES_ITEMS.get("compaction" if kind in desk.profile.item_aliases else kind)
    if known is None:
        _unknown_type(at, kind, desk)
    _identity(at, kind, item)
    if desk.strict:
        for name in item:
            if name not in known:
                text = f"Unknown parameter: '{at}.{name}'."
                refuse(text, rule="unknown-field", param=f"{at}.{name}", code="unknown_parameter")
    if kind == "message":
        _message(at, item)
    elif kind == "reasoning":
        _reasoning_shape(at, item, desk)
    elif kind in CALLS or kind in OUTPUTS:
        _call_shape(at, kind, item)
    elif known is RESPONSES_ITEMS["compaction"] and not item.get("encrypted_content"):
        _no_blob(f"{at}.encrypted_content", desk)


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


def _reasoning_shape(at: str, item: JsonObject, desk: Desk) -> None:
    if desk.profile.shape == "xai":
        # Read as a compaction blob where the content is null; a list or nothing is fine.
        if "content" in item and item["content"] is None:
            refuse(XAI_BLOB, rule="encrypted-content")
        return
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
    for name in (*names, *(("output",) if kind in OUTPUTS and "output" not in names else ())):
        if item.get(name) is None:
            text = f"Missing required parameter: '{at}.{name}'."
            refuse(text, rule="required", param=f"{at}.{name}", code="missing_required_parameter")


def _no_blob(at: str, desk: Desk) -> NoReturn:
    if desk.profile.shape == "xai":
        refuse(XAI_BLOB, rule="encrypted-content")
    text = f"Missing required parameter: '{at}'."
    refuse(text, rule="required", param=at, code="missing_required_parameter")
