"""What a provider seals for clients to carry, and who may bring it back.

Knows owners; how a seal is made and checked is the mint's. Called by the Responses modules.
"""

from __future__ import annotations

from tidegate.simulator.jsontext import JsonObject, JsonValue
from tidegate.simulator.minting import hash_of
from tidegate.simulator.world import Desk

_NOBODY = {"org": "", "key": "", "model": ""}


def seal(desk: Desk, kind: str, payload: JsonObject, model: str = "") -> str:
    """An `encrypted_content` that only this provider reads, and only for its owner."""
    owner = {"org": desk.org, "key": _hidden(desk.key), "model": model}
    return desk.world.mint.seal(_kind(desk, kind), payload | {"owner": owner})


def unseal(desk: Desk, kind: str, sealed: JsonValue, model: str = "") -> JsonObject | None:
    """The payload; None where another provider made it, a byte has changed, or it isn't the caller's."""
    payload = desk.world.mint.unseal(_kind(desk, kind), sealed) if isinstance(sealed, str) else None
    if payload is None:
        return None
    owner = payload.get("owner", _NOBODY)
    knobs = desk.world.settings.responses_compaction
    if knobs.bound_to_model and kind == "compaction" and owner["model"] != model:
        return None
    match knobs.bound_to:
        case "provider":
            same = True
        case "key":
            same = owner["key"] == _hidden(desk.key)
        case "project":
            same = owner["org"] == desk.org
        case _:
            same = owner["org"].partition("/")[0] == desk.org.partition("/")[0]
    return payload if same else None


def _kind(desk: Desk, kind: str) -> str:
    return kind if desk.profile.name == "openai" else f"{kind} of {desk.profile.name}"


def _hidden(key: str) -> str:
    return hash_of(key.encode("utf-8", "surrogatepass")) if key else ""
