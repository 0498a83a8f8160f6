"""The effective window on Responses: what the model gets of the items that were sent or stored.

Knows where a compaction item cuts; not whether items are well formed. Called by the rules and by `compaction`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.world import Desk

KEPT_ROLES = ("user", "system", "developer")
COMPACTION = "compaction"


def effective(items: list[JsonObject], payloads: Mapping[int, JsonObject], desk: Desk) -> list[JsonObject]:
    """The items with each compaction item replaced by what it stands for (`payloads`, by position).

    Before the newest one, `boundary` says what stays. What is billed, checked for pairs and seen by the model is this.
    """
    boundary = boundary_of(desk)
    newest = max(payloads, default=-1)
    return [
        item if position not in payloads else stand_in(payloads[position])
        for position, item in enumerate(items)
        if position >= newest
        or boundary == "keep_all_and_bill"
        or (boundary == "keep_users" and item.get("role") in KEPT_ROLES)
    ]


def boundary_of(desk: Desk) -> str:
    """What becomes of the items before a compaction item, by this profile."""
    settings = desk.world.settings.responses_compaction
    return "drop_all" if desk.profile.one_item_replaces_all else settings.boundary


def stand_in(payload: JsonObject) -> JsonObject:
    """A compaction item as the model sees it."""
    return {"type": COMPACTION} | {name: payload.get(name) for name in ("summary", "system", "goal", "rounds")}


def newest_stand_in(items: list[JsonObject]) -> int:
    """Position of the newest compaction item among effective items, -1 where there is none."""
    found = [position for position, item in enumerate(items) if item.get("type") == COMPACTION]
    return found[-1] if found else -1
