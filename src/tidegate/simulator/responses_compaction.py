"""What a provider makes of a window that it compacts: messages handed back, and one sealed item.

Knows the items of Responses; not how answers carry them. Called by the app (what is said) and `responses` (items).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tidegate.simulator import model, sealing, summarizer, tokens
from tidegate.simulator.jsontext import JsonObject, JsonValue, objects
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.responses_window import COMPACTION, boundary_of, newest_stand_in
from tidegate.simulator.script import Step
from tidegate.simulator.turn import Compacted, Reply, Turn
from tidegate.simulator.world import Desk

HIDDEN_PROMPT = 96
"""Tokens of the provider's own words in a compaction call, billed with its input."""
_SYSTEM = ("system", "developer")
_FACT = re.compile(r"FACT-\d+")
_COPIES = {"no_artifact": 0, "null_artifact": 0, "two_artifacts": 2}


def reply(turn: Turn, step: Step | None, desk: Desk) -> Reply:
    """What comes of a request for a compaction and nothing else. Raises `Refusal` where the script says so."""
    do = step.do if step else ""
    if step is not None and model.is_scripted(step):
        return model.reply(turn, (), step, desk.world.settings)
    if do == "unavailable":
        text = "The server had an error while processing your request. Sorry about that!"
        raise Refusal(text, rule="unavailable", status=503, type="server_error", kind="path")
    knobs = desk.world.settings.responses_compaction
    beside = handed_back(turn.items, desk)
    covers = knobs.covers_users
    if covers is None:
        covers = boundary_of(desk) == "drop_all"
    seen = [] if covers else [item for item in beside if item["role"] == "user"]
    copies = _COPIES.get(do, 1)
    extra = do == "extra_item" or (turn.compaction == "trigger" and (knobs.extra_message or not copies))
    return Reply(
        text="I went through the conversation." if extra else "",
        compacted=Compacted(condense(turn, desk, seen), tuple(beside), copies=copies, garbled=do == "bad_artifact"),
    )


def in_band(turn: Turn, said: Reply, step: Step | None, desk: Desk) -> Reply:
    """The reply with a compaction beside it where the threshold is reached, and else as it is.

    It comes first where the input alone reaches the threshold, last where the answer does; never after a call, whose
    output would then have lost it. It stands for all that was sent.
    """
    do = step.do if step else ""
    copies = _COPIES.get(do, 1)
    if turn.threshold is None or not copies:
        return said
    first = turn.input_tokens >= turn.threshold
    output = tokens.scale(model.size(said), desk.world.settings.usage_factor)
    if not first and (said.calls or turn.input_tokens + output < turn.threshold):
        return said
    payload = condense(turn, desk, [])
    return replace(said, compacted=Compacted(payload, first=first, copies=copies, garbled=do == "bad_artifact"))


def items(compacted: Compacted | None, turn: Turn, desk: Desk) -> list[JsonObject]:
    """New items that hold the payload, sealed: one, unless the script wants it otherwise."""
    return [_item(compacted, turn, desk) for _ in range(compacted.copies)] if compacted else []


def _item(compacted: Compacted, turn: Turn, desk: Desk) -> JsonObject:
    id_ = desk.world.mint.id("cmp_", 32)
    payload = compacted.payload | {"id": id_}
    padding = desk.world.settings.responses_compaction.padding
    if padding:
        payload["padding"] = "." * padding
    kind = "nothing" if compacted.garbled else COMPACTION
    return {"id": id_, "type": COMPACTION, "encrypted_content": sealing.seal(desk, kind, payload, turn.model)}


def preview(entry: JsonObject, desk: Desk) -> JsonObject:
    """The item as a stream announces it: its blob is another one, and can't be read back."""
    return entry | {"encrypted_content": sealing.seal(desk, "preview", {"id": entry["id"]})}


def condense(turn: Turn, desk: Desk, seen: list[JsonObject]) -> JsonObject:
    """The payload: facts of the window but those still to be read in the messages `seen`, and where the work stands.

    Facts of system items are lost when they are compacted a second time, unless the settings or the boundary keep them.
    """
    settings = desk.world.settings
    spoken = [entry for entry in turn.items if entry.get("role") not in _SYSTEM and entry.get("type") != COMPACTION]
    system = summarizer.facts_of(_text(entry for entry in turn.items if entry.get("role") in _SYSTEM))
    folded = [entry for entry in turn.items if entry.get("type") == COMPACTION]
    carried = {name for entry in folded for name in entry.get("system") or []}
    old = summarizer.facts_of(_text(entry.get("summary") for entry in folded))
    if settings.responses_compaction.system_decays and boundary_of(desk) != "drop_all":
        old = {name: rest for name, rest in old.items() if name not in carried}
        carried = set()
    said = summarizer.facts_of(_text(spoken))
    hidden = set(_FACT.findall(_text(seen)))
    facts = {name: rest for name, rest in (old | system | said).items() if name not in hidden}
    facts = summarizer.remembered(facts, settings.forgetful)
    lines = [f"- {name}{rest}" for name, rest in facts.items()]
    return {
        "summary": "\n".join([f"{len(turn.items)} items were worked through.", *lines]),
        "system": [name for name in facts if (name in system and name not in said) or name in carried],
        "goal": _FACT.sub("(a fact)", turn.last_text[:160]),
        "rounds": turn.rounds,
    }


def handed_back(items: list[JsonObject], desk: Desk) -> list[JsonObject]:
    """The user messages that a compaction leaves as they are: the newest that fit, the oldest cut in its middle.

    Assistant messages too where the settings say so, under the ids they had.
    """
    knobs = desk.world.settings.responses_compaction
    if desk.profile.one_item_replaces_all:
        return []
    least = 0 if knobs.keeps_older_users else newest_stand_in(items) + 1
    left = knobs.user_tokens
    kept: list[JsonObject] = []
    for entry in reversed(items[least:]):
        if entry.get("role") == "user":
            message, size = _message(entry, left)
            if message is not None:
                kept.append(message)
            left = max(left - size, 0)
        elif knobs.retain_assistant_ids and entry.get("role") == "assistant" and entry.get("id"):
            kept.append(entry)
    return kept[::-1]


def _message(entry: JsonObject, left: int) -> tuple[JsonObject | None, int]:
    """A user message within so many tokens, None where there is no room, and its size. Images are free."""
    content = entry.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else objects(content)
    text = "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    size = tokens.words(text) if text else 1
    if left <= 0:
        return None, size
    if size > left:
        media = [part for part in parts if "text" not in part]
        parts = [{"type": "input_text", "text": _middle_out(text, left)}, *media]
    return {"type": "message", "role": "user", "status": "completed", "content": parts}, size


def _middle_out(text: str, left: int) -> str:
    data = text.encode("utf-8", "replace")
    half = left * 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}…{tokens.words(text) - left} tokens truncated…{tail}"


def _text(value: JsonValue | Iterator[JsonValue]) -> str:
    return "\n".join(_strings(value))


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, entry in value.items():
            if name != "encrypted_content":
                yield from _strings(entry)
    elif isinstance(value, list | Iterator):
        for entry in value:
            yield from _strings(entry)
