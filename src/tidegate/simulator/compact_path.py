"""`POST /responses/compact`: what it takes, what it gives back, and the ways in which it isn't there.

Knows OpenAI's and xAI's shapes of it; what a compaction is, is `compaction`'s. Called by the app and `responses`.
"""

from __future__ import annotations

from tidegate.simulator import responses_compaction as compaction
from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.profiles import CompactPath
from tidegate.simulator.refusals import Refusal, refuse
from tidegate.simulator.transport import Exchange
from tidegate.simulator.turn import Reply, Turn
from tidegate.simulator.world import Desk

_HTML = "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>"
_GONE: dict[CompactPath, tuple[int, str, str]] = {
    "404-text": (404, "text/plain", "404 page not found"),
    "404-json": (404, "application/json", '{"detail":"Not Found"}'),
    "405": (405, "application/json", '{"detail":"Method Not Allowed"}'),
    "501": (501, "application/json", '{"error":{"message":"Not implemented","type":"not_implemented"}}'),
    "502-html": (502, "text/html", _HTML),
}
_XAI_FIELDS = ("model", "input")


async def absent(exchange: Exchange, desk: Desk) -> bool:
    """Answers as a gateway does that has no such path; False where it is there, or gone in the profile's own way."""
    found = _GONE.get(desk.compact_path)
    if found is None:
        return False
    status, kind, body = found
    await exchange.whole(status, body.encode(), [("content-type", kind)])
    return True


def admit(body: JsonObject, desk: Desk) -> None:
    """Raises `Refusal` where the account has no quota, or xAI reads a field it does not take."""
    knobs = desk.world.settings.responses_compaction
    if desk.org.partition("/")[0] in knobs.no_quota:
        text = "no quota for remote context compaction"
        raise Refusal(text, rule="quota", status=403, type="permission_denied", kind="auth")
    if desk.profile.shape != "xai":
        return
    if knobs.refuse_extra_fields:
        for name in body:
            if name not in _XAI_FIELDS:
                text = f"Failed to deserialize the JSON body into the target type: unknown field `{name}`"
                refuse(text, rule="unknown-field", param=name, status=422)
    if not body.get("input"):
        refuse("The input must not be empty.", rule="required", param="input")


def answer(turn: Turn, reply: Reply, usage: JsonObject, desk: Desk, created: int) -> JsonObject:
    """The compacted window: messages handed back, then the item; or what the script made of it."""
    mint = desk.world.mint
    compacted = reply.compacted
    output: list[JsonObject] = [{"id": mint.id("msg_", 32)} | entry for entry in compacted.beside] if compacted else []
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"id": mint.id("msg_", 32), "type": "message", "role": "assistant", "status": "completed"}
        output.append(message | {"content": [part]})
    made = compaction.items(compacted, turn, desk)
    whole: JsonObject = {
        "id": mint.id("resp_", 32),
        "object": "response.compaction",
        "created_at": created,
        "output": output + made,
        "usage": usage,
    }
    if desk.profile.one_item_replaces_all:
        whole |= {"id": made[0]["id"] if made else mint.id("cmp_", 32), "model": turn.model}
        usage["dropped_message_count"] = len(turn.items)
    return whole
