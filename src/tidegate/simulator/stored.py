"""What OpenAI keeps for its clients: responses to look up or delete, and conversations.

Knows the paths under `/responses/` and `/conversations`; turns are added elsewhere. Called by the app.
"""

from __future__ import annotations

from tidegate.simulator.chat import CREATED
from tidegate.simulator.jsontext import JsonObject, objects
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.responses_items import check_item, items_of
from tidegate.simulator.world import Desk, Kept, Recent


def serves(method: str, path: str, desk: Desk) -> bool:
    """Whether the path is one of these."""
    if desk.profile.serves is not None:
        return False
    if path.startswith("/responses/"):
        return method in ("GET", "DELETE")
    return path == "/conversations" or path.startswith("/conversations/")


def serve(method: str, path: str, body: JsonObject, desk: Desk) -> JsonObject:
    """The answer. Raises `Refusal` where there is nothing of that name, or nothing of the caller's."""
    kind, _, rest = path.lstrip("/").partition("/")
    id_, _, part = rest.partition("/")
    if kind == "responses" and not part:
        found = _find(desk.world.responses, id_, f"Response with id '{id_}' not found.", desk)
        if method == "GET":
            return found.whole
        desk.world.responses.drop(id_)
        return {"id": id_, "object": "response.deleted", "deleted": True}
    if kind == "conversations" and part in ("", "items"):
        return _conversation(method, id_, part, body, desk)
    raise Refusal(f"Invalid URL ({method} {path})", rule="path", status=404, kind="path")


def _conversation(method: str, id_: str, part: str, body: JsonObject, desk: Desk) -> JsonObject:
    if not id_ and method == "POST":
        made = desk.world.mint.id("conv_", 32)
        whole = {"id": made, "object": "conversation", "created_at": CREATED, "metadata": body.get("metadata") or {}}
        kept = Kept([], desk.org, whole)
        _add(kept, body, desk)
        desk.world.conversations.put(made, kept)
        return whole
    found = _find(desk.world.conversations, id_, "Conversation not found.", desk)
    match method, part:
        case "GET", "items":
            return _listed(found.items)
        case "POST", "items":
            return _listed(_add(found, body, desk))
        case "GET", "":
            return found.whole
        case "POST", "":
            found.whole["metadata"] = body.get("metadata") or {}
            return found.whole
        case "DELETE", "":
            desk.world.conversations.drop(id_)
            return {"id": id_, "object": "conversation.deleted", "deleted": True}
        case _:
            raise Refusal("Method Not Allowed", rule="path", status=405, kind="path")


def _add(kept: Kept, body: JsonObject, desk: Desk) -> list[JsonObject]:
    given = items_of({"input": body.get("items") or []})
    for position, item in enumerate(given):
        check_item(position, item, desk)
    new = [_whole(item, desk) for item in given]
    kept.items = kept.items + new
    return new


def _whole(item: JsonObject, desk: Desk) -> JsonObject:
    """An item as it is kept: a message's words in parts, under an id of its own."""
    if item.get("type") != "message":
        return item
    content = item.get("content")
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    parts = [{"type": kind, "text": content}] if isinstance(content, str) else objects(content)
    return {"id": desk.world.mint.id("msg_", 32), "status": "completed"} | item | {"content": parts}


def _find(kept: Recent[Kept], id_: str, missing: str, desk: Desk) -> Kept:
    found = kept.get(id_)
    if found is None or not desk.owns(found):
        raise Refusal(missing, rule="not-stored", status=404, kind="path")
    return found


def _listed(items: list[JsonObject]) -> JsonObject:
    ends = [str(item.get("id")) for item in (items[:1] + items[-1:])]
    ids = {"first_id": ends[0], "last_id": ends[-1]} if ends else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": items, "has_more": False} | ids
