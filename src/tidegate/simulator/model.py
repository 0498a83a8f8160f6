"""The simulated model: a small deterministic agent, and the scripted things it may be told to say.

Knows turns and replies, not how any API writes them. Called by the app.
"""

from __future__ import annotations

import re

from tidegate.simulator import summarizer, tokens
from tidegate.simulator.jsontext import JsonValue, as_object, encode
from tidegate.simulator.script import Step
from tidegate.simulator.settings import SimulatorSettings
from tidegate.simulator.turn import Call, Reply, Tool, Turn

_FACT = re.compile(r"FACT-\d+")
_RECALL = re.compile(r"what (facts )?do you (know|remember)", re.IGNORECASE)
_LINE = "This is a sentence of a long answer that says nothing in particular. "


def context(turn: Turn) -> str:
    """Everything that the model can read, as text."""
    readable = (turn.body.get("system"), turn.body.get("instructions"), turn.body.get("tools"), turn.items)
    return encode(readable).decode("utf-8", "replace")


def facts_in(context: str) -> tuple[str, ...]:
    """The `FACT-nn` markers in a text, each once, in order of appearance."""
    return tuple(dict.fromkeys(_FACT.findall(context)))


def reply(turn: Turn, facts: tuple[str, ...], step: Step | None, settings: SimulatorSettings) -> Reply:
    """What the model says, before any output limit cuts it. `facts` are those it can see."""
    if step is not None and step.do in _SCRIPTED:
        return _SCRIPTED[step.do](turn, step)
    fence = summarizer.find(turn)
    if fence is not None:
        return Reply(text=summarizer.summarize(fence, cap(turn, settings), settings.forgetful))
    if _RECALL.search(turn.last_text):
        return _thinking(turn, Reply(text=f"I know {', '.join(facts)}." if facts else "I know no facts."))
    if settings.behaviour == "agent" and _calls_now(turn, settings):
        return _thinking(turn, Reply(calls=_tool_calls(turn, settings), finish="tool"))
    return _thinking(turn, Reply(text=_words(turn, settings)))


def is_scripted(step: Step) -> bool:
    """Whether the step tells the model what to say."""
    return step.do in _SCRIPTED


def cap(turn: Turn, settings: SimulatorSettings) -> int:
    """Most estimated tokens that the answer may have: the asked-for limit, the model's, what the window leaves."""
    real = settings.window - turn.input_tokens
    for limit in (turn.max_output, settings.max_output):
        if limit is not None:
            real = min(real, limit)
    return max(int(real / settings.usage_factor), 1)


def cut(turn: Turn, said: Reply, settings: SimulatorSettings) -> Reply:
    """The reply as its limits leave it. A call that does not fit is lost, a text is cut."""
    most = cap(turn, settings)
    if size(said) <= most or said.finish == "refusal":
        return said
    asked = turn.max_output if turn.max_output is not None else settings.max_output
    by_window = asked is None or turn.input_tokens + asked > settings.window
    thinking = _first_tokens(said.thinking, most)
    text = _first_tokens(said.text, most - tokens.words(thinking))
    return Reply(text=text, thinking=thinking, finish="window" if by_window else "length")


def size(said: Reply) -> int:
    """Estimated output tokens of a reply, at least one."""
    calls = sum(tokens.words(call.name + call.arguments) + tokens.PER_ITEM for call in said.calls)
    summary = tokens.words(said.compacted.payload["summary"]) * said.compacted.copies if said.compacted else 0
    return max(tokens.words(said.text) + tokens.words(said.thinking) + calls + summary, 1)


def _first_tokens(text: str, most: int) -> str:
    return text.encode("utf-8", "ignore")[: max(most, 0) * 4].decode("utf-8", "ignore")


def _calls_now(turn: Turn, settings: SimulatorSettings) -> bool:
    if not turn.tools or turn.forced == "none":
        return False
    return turn.forced is not None or turn.rounds < settings.tool_rounds * settings.parallel_calls


def _tool_calls(turn: Turn, settings: SimulatorSettings) -> tuple[Call, ...]:
    named = [tool for tool in turn.tools if tool.name == turn.forced]
    tool = (named or turn.tools)[0]
    serial = len(turn.items)
    return tuple(
        _call(tool, f"{serial}{'abcdefgh'[index % 8] if index else ''}") for index in range(settings.parallel_calls)
    )


def _call(tool: Tool, serial: str) -> Call:
    if tool.custom:
        return Call(tool.name, f"step {serial}", custom=True)
    arguments = _value(tool.schema, "argument", serial)
    return Call(tool.name, encode(arguments if isinstance(arguments, dict) else {}).decode())


def _value(schema: JsonValue, name: str, serial: str, depth: int = 0) -> JsonValue:
    """A value that fits a tool's schema, different in each turn where the schema leaves room."""
    if not isinstance(schema, dict) or depth > 5:
        return f"{name}-{serial}"
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((entry for entry in kind if entry != "null"), "string")
    number = int("".join(filter(str.isdigit, serial)) or 0)
    match kind:
        case "object":
            known = as_object(schema.get("properties"))
            wanted = [key for key in schema.get("required") or known if isinstance(key, str)]
            return {key: _value(known.get(key), key, serial, depth + 1) for key in wanted}
        case "array":
            return [_value(schema.get("items"), name, serial, depth + 1)]
        case "integer" | "number":
            return number
        case "boolean":
            return number % 2 == 0
        case "null":
            return None
        case _:
            return f"src/step_{serial}.py" if "path" in name or "file" in name else f"{name} {serial}"


def _words(turn: Turn, settings: SimulatorSettings) -> str:
    if settings.answer_tokens:
        return _long(settings.answer_tokens)
    said = " ".join(turn.last_text.split())[:160]
    if settings.behaviour == "echo":
        return said or "(nothing was said)"
    if turn.rounds:
        return f"Done after {turn.rounds} tool results, at item {len(turn.items)}."
    return f"You said: {said}" if said else f"Understood, at item {len(turn.items)}."


def _long(count: int) -> str:
    return (_LINE * (count * 4 // len(_LINE) + 1))[: count * 4]


def _thinking(turn: Turn, said: Reply) -> Reply:
    if not turn.thinking:
        return said
    thought = f"Item {len(turn.items)}: {len(said.calls)} calls to make, {turn.rounds} results read so far."
    return Reply(text=said.text, calls=said.calls, thinking=thought, finish=said.finish)


_SCRIPTED = {
    "text": lambda turn, step: Reply(text=step.text),
    "echo": lambda turn, step: Reply(text=turn.last_text),
    "long": lambda turn, step: _thinking(turn, Reply(text=_long(step.tokens))),
    "tool_call": lambda turn, step: _thinking(turn, Reply(calls=(_scripted_call(turn, step),), finish="tool")),
    "empty": lambda turn, step: Reply(),
    "refusal": lambda turn, step: Reply(text=step.text or "I can't help with that.", finish="refusal"),
    "refusal_text": lambda turn, step: Reply(text=step.text or "I'm sorry, but I can't help with that."),
    "error_text": lambda turn, step: Reply(text=step.text or "Error: upstream request failed (internal server error)."),
    "longer": lambda turn, step: Reply(text=_long(tokens.words(turn.last_text) * 2 + 200)),
    "length": lambda turn, step: Reply(text=step.text or "## Goal\nThe beginning of a", finish="length"),
    "window_exceeded": lambda turn, step: Reply(text=step.text or "The beginning of a", finish="window"),
}


def _scripted_call(turn: Turn, step: Step) -> Call:
    name = step.name or (turn.tools[0].name if turn.tools else "read_file")
    return Call(name, encode(step.arguments or {"path": "src/scripted.py"}).decode())
