"""Compaction on the Messages API: on demand (a request that is nothing else) and at a threshold (within an answer).

Knows both betas' rules and what they answer; blocks that come back are judged in `messages_window`. Called by
`messages` and the app.
"""

from __future__ import annotations

import re
from typing import NoReturn

from tidegate.simulator import summarizer, tokens
from tidegate.simulator.betas import of_model
from tidegate.simulator.context_settings import ON_DEMAND
from tidegate.simulator.jsontext import JsonObject, JsonValue, as_object
from tidegate.simulator.managed import Managed
from tidegate.simulator.messages_window import after_summary, sign
from tidegate.simulator.refusals import Refusal, refuse
from tidegate.simulator.script import Step
from tidegate.simulator.summarizer import Fence
from tidegate.simulator.turn import Finish, Reply, Turn, Usage
from tidegate.simulator.world import Desk

MAX_INSTRUCTIONS = 16_384
_FIELDS = ("type", "instructions")
_ASKED = re.compile(r"^Asked last: (?P<text>.*)\nTool results since: (?P<rounds>\d+)$", re.MULTILINE)
_STOP: dict[Finish, str] = {
    "stop": "end_turn",
    "tool": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
    "window": "model_context_window_exceeded",
}
_NO_ARTIFACT = frozenset({"no_artifact", "empty"})


def asks(body: JsonObject, desk: Desk) -> bool:
    """Whether the request is a compaction on demand. Raises `Refusal` where it may not be one."""
    config = body.get("compaction")
    if config is None:
        return False
    if ON_DEMAND not in desk.habits.betas:
        if desk.strict:
            refuse("compaction: Extra inputs are not permitted", rule="unknown-field")
        return False
    if ON_DEMAND not in desk.betas:
        refuse(f"compaction: this parameter requires anthropic-beta: {ON_DEMAND}", rule="beta-header")
    if not isinstance(config, dict) or config.get("type") != "summarize":
        refuse("compaction.type: Input should be 'summarize'", rule="compaction-type")
    for name in config:
        if name not in _FIELDS and desk.strict:
            refuse(f"compaction.{name}: Extra inputs are not permitted", rule="unknown-field")
    instructions = config.get("instructions")
    if not isinstance(instructions, str | None):
        refuse("compaction.instructions: Input should be a valid string", rule="type")
    if instructions is not None and len(instructions) > MAX_INSTRUCTIONS:
        text = f"compaction.instructions: String should have at most {MAX_INSTRUCTIONS} characters"
        refuse(text, rule="compaction-instructions")
    for name in _withheld(body):
        refuse(f"compaction: cannot be combined with `{name}`", rule="compaction-combined")
    if ON_DEMAND not in of_model(str(body.get("model")), desk.world.settings.context):
        refuse(f"compaction: `{body.get('model')}` does not support compaction", rule="compaction-model")
    return True


def compact(turn: Turn, desk: Desk, step: Step | None) -> JsonObject | None:
    """Compacts if the request asks for it or its threshold is reached.

    Gives the whole answer where nothing follows the compaction; else the turn goes on with what is left. Raises
    `Refusal` where the script has compaction unavailable.
    """
    managed = turn.managed
    if managed is None:
        return None
    if step is not None and step.do == "unavailable":
        _unavailable()
    if managed.on_demand:
        return _on_demand(turn, managed, desk, step)
    if managed.threshold is None or turn.input_tokens < managed.threshold.trigger:
        return None
    if step is not None and step.do == "no_artifact":
        managed.verdict = "failed: no block"
        return None
    return _at_threshold(turn, managed, desk, step)


def due(turn: Turn) -> bool:
    """Whether this request will be compacted: on demand, or because it is over its threshold."""
    managed = turn.managed
    if managed is None:
        return False
    return managed.on_demand or (managed.threshold is not None and turn.input_tokens >= managed.threshold.trigger)


def alone(turn: Turn) -> bool:
    """Whether a compaction at a threshold will be all that this request is answered with."""
    threshold = turn.managed.threshold if turn.managed else None
    return threshold is not None and threshold.pause and due(turn)


def asked_in(summary: str) -> tuple[str, int]:
    """The newest human words that a summary tells of, and the tool results since."""
    found = _ASKED.search(summary)
    return (found["text"], int(found["rounds"])) if found else ("", 0)


def usage_json(usage: Usage) -> JsonObject:
    """Usage as Anthropic writes it."""
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _withheld(body: JsonObject) -> list[str]:
    """Fields of the request that only shape a reply, which a compaction has none of."""
    output = as_object(body.get("output_config"))
    found = [name for name in ("context_management", "stop_sequences") if body.get(name) is not None]
    if output.get("format") is not None:
        found.append("output_config.format")
    if as_object(body.get("tool_choice")).get("type") in ("any", "tool"):
        found.append("tool_choice")
    if as_object(output.get("task_budget")).get("remaining") is not None:
        found.append("output_config.task_budget.remaining")
    return found


def _unavailable() -> NoReturn:
    details: JsonObject = {"error_code": "compaction_unavailable"}
    text = "Compaction is temporarily unavailable. Try again."
    raise Refusal(
        text, rule="compaction_unavailable", status=529, type="overloaded_error", kind="script", details=details
    )


def _on_demand(turn: Turn, managed: Managed, desk: Desk, step: Step | None) -> JsonObject:
    if len(managed.tool_changes or ()) > desk.world.settings.context.most_tool_changes:
        text = "messages: the conversation references more distinct tools than a `compaction` block can record"
        code = "compaction_too_many_tool_references"
        raise Refusal(text, rule=code, details={"error_code": code})
    said = _said(turn, desk, step)
    prompt = tokens.scale(desk.world.settings.context.prompt, desk.world.settings.usage_factor)
    size = tokens.scale(tokens.words(said.text), desk.world.settings.usage_factor)
    room = desk.world.settings.window - turn.input_tokens - prompt
    if said.finish == "stop" and size > room:
        said, size = Reply(finish="window"), max(room, 0)
    elif said.finish == "stop" and turn.max_output is not None and size > turn.max_output:
        said, size = Reply(finish="length"), turn.max_output
    spent = Usage(turn.input_tokens + prompt, max(size, 1), turn.cached_tokens)
    if step is not None and step.usage:
        spent = Usage(step.usage.get("input", spent.input), step.usage.get("output", spent.output))
    managed.iterations.append({"type": "compaction", **usage_json(spent)})
    stop = _STOP[said.finish]
    null = step is not None and step.do == "null_artifact"
    if null or (said.finish == "stop" and said.text):
        managed.made = _signed(turn, managed, desk, None if null else said.text, step)
        stop = "compaction"
    managed.verdict = "failed: null" if null else "compacted" if managed.made else f"failed: {stop}"
    message = _message(turn, desk, managed.made, stop)
    if said.finish == "refusal":
        message["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
    return message


def _at_threshold(turn: Turn, managed: Managed, desk: Desk, step: Step | None) -> JsonObject | None:
    factor = desk.world.settings.usage_factor
    prompt = tokens.scale(desk.world.settings.context.prompt, factor)
    failed = step is not None and step.do == "null_artifact"
    summary = None if failed else _summary(turn, desk)
    output = tokens.scale(tokens.words(summary or "x"), factor)
    managed.before = usage_json(Usage(turn.input_tokens, 1, turn.cached_tokens))
    read = Usage(turn.input_tokens + prompt, output, turn.cached_tokens)
    managed.iterations.append({"type": "compaction", **usage_json(read)})
    block: JsonObject = {"type": "compaction", "content": summary}
    if desk.world.settings.context.sealed_blocks:
        payload: JsonObject = {"nonce": desk.world.mint.id(""), "model": turn.model}
        block["encrypted_content"] = desk.world.mint.seal("compaction-metadata", payload)
    twice = step is not None and step.do == "two_artifacts"
    managed.made = [block, dict(block)] if twice else [block]
    managed.verdict = "failed: null" if failed else "compacted"
    if summary is not None:
        _go_on_from(turn, managed, summary, factor)
    if managed.threshold is not None and managed.threshold.pause:
        managed.verdict = "failed: null" if failed else "paused"
        return _message(turn, desk, managed.made, "compaction")
    return None


def _go_on_from(turn: Turn, managed: Managed, summary: str, factor: float) -> None:
    """What the model gets from here on: the summary alone, thinking bound to it."""
    turn.items = [{"role": "assistant", "content": [{"type": "text", "text": summary}]}]
    turn.input_tokens = tokens.scale(turn.fixed + tokens.items(turn.items), factor)
    turn.cached_tokens = 0
    managed.changed = True
    managed.answered = after_summary(managed.base, summary)


def _said(turn: Turn, desk: Desk, step: Step | None) -> Reply:
    """The summary, or what the script says instead."""
    if step is None or step.do in ("answer", "bad_artifact", "two_artifacts", "null_artifact"):
        return Reply(text=_summary(turn, desk))
    match step.do:
        case "no_artifact" | "empty":
            return Reply()
        case "text":
            return Reply(text=step.text)
        case "length":
            return Reply(finish="length")
        case "window_exceeded":
            return Reply(finish="window")
        case "tool_call":
            return Reply(finish="tool")
        case "refusal":
            return Reply(finish="refusal")
        case "longer" | "long":
            return Reply(text="A sentence that says nothing. " * (turn.input_tokens // 7 + 60))
        case "refusal_text":
            return Reply(text=step.text or "I'm sorry, but I can't help with that.")
        case "error_text":
            return Reply(text=step.text or "Error: upstream request failed (internal server error).")
        case _:
            return Reply(text=_summary(turn, desk))


def _summary(turn: Turn, desk: Desk) -> str:
    """A summary of the messages, never of system text or tools, which every request has anew."""
    replayed = turn.managed.replayed if turn.managed else None
    previous = str(replayed["content"]) if replayed else ""
    items = turn.items[1:] if replayed else turn.items
    if replayed and turn.items:
        first = turn.items[0]
        items = [first | {"content": first["content"][1:]}, *items]
    fence = Fence("\n".join(_words(items)), previous)
    text = summarizer.summarize(fence, 1_000_000, desk.world.settings.forgetful)
    last = " ".join(turn.last_text.split())[:200] or "(nothing)"
    return f"{text}\n\nAsked last: {last}\nTool results since: {turn.rounds}"


def _words(value: JsonValue) -> list[str]:
    """Every text in a value, types, ids and signatures aside."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for entry in value for text in _words(entry)]
    if isinstance(value, dict):
        skipped = ("type", "role", "id", "tool_use_id", "signature", "data", "cache_control")
        return [text for key, entry in value.items() if key not in skipped for text in _words(entry)]
    return []


def _signed(turn: Turn, managed: Managed, desk: Desk, content: str | None, step: Step | None) -> list[JsonObject]:
    if content is None:
        return [{"type": "compaction", "content": None}]
    record: JsonObject = {
        "org": desk.org,
        "platform": desk.profile.name,
        "model": turn.model,
        "source": managed.source,
        "base": managed.base,
        "last_role": managed.last_role,
        "preserved": managed.preserved,
    }
    signature = sign(desk.world.mint, content, managed.tool_changes, record)
    block: JsonObject = {"type": "compaction", "content": content, "signature": signature}
    if managed.tool_changes is not None:
        block["tool_changes"] = managed.tool_changes
    if step is not None and step.do == "bad_artifact":
        block["signature"] = signature[:-6] + ("AAAAAA" if signature[-6:] != "AAAAAA" else "BBBBBB")
    return [block, dict(block)] if step is not None and step.do == "two_artifacts" else [block]


def _message(turn: Turn, desk: Desk, content: list[JsonObject], stop: str) -> JsonObject:
    managed = turn.managed
    message: JsonObject = {
        "id": desk.world.mint.id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {**usage_json(Usage(0, 0)), "service_tier": "standard"},
    }
    if managed is not None:
        message["usage"]["iterations"] = managed.iterations
        if managed.applied is not None:
            message["context_management"] = {"applied_edits": managed.applied}
        if managed.reports:
            message["input_transformations"] = turn.notes
    return message
