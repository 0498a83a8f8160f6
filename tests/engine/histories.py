"""Histories of agents, tame and nasty, in all three dialects: written move by move, as clients write them.

Signatures, sealed reasoning and their partners come from the simulator's mint, so that its rules can judge what is
sent. Every text holds `SENTINEL`: it must never be told to anyone but the provider.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st

from tidegate.simulator import messages_thinking
from tidegate.simulator.minting import Mint
from tidegate.simulator.settings import SimulatorSettings
from tidegate.simulator.world import World

MANY = int(os.environ.get("TIDEGATE_EXAMPLES", "0"))
"""For a long search; without it the same examples every time."""


def examples(count: int) -> settings:
    """So many examples, or as many as were asked for."""
    phases = [phase for phase in Phase if phase is not Phase.explain]
    return settings(max_examples=MANY or count, deadline=None, derandomize=not MANY, phases=phases, print_blob=False)


Json = dict[str, Any]
Move = tuple[str, int, int]
"""What happens, how large it is (an index of `SIZES`), and a number that chooses among its forms."""

SENTINEL = "zebra"
SIZES = (2, 30, 120, 400)
"""Tokens, roughly."""
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk"
"""The head of a PNG."""
MODELS = {"chat": "m", "responses": "m", "messages": "claude-sonnet-4-5"}
ITEMS_KEY = {"chat": "messages", "responses": "input", "messages": "messages"}


@dataclass
class Writer:
    """One client's transcript. `thinking_bound` gives the hash that new Anthropic thinking is bound to."""

    model: str
    world: World
    items: list[Json] = field(default_factory=list)
    bound: Callable[[list[Json]], str] = lambda items: ""
    count: int = 0

    def words(self, size: int) -> str:
        self.count += 1
        said = f"{SENTINEL}{self.count} "
        return (said + "all work and no play " * (SIZES[size] // 5)).strip()

    def id(self, prefix: str) -> str:
        return self.world.mint.id(prefix)

    def human(self, size: int, form: int = 0) -> None:
        raise NotImplementedError

    def say(self, size: int, form: int = 0) -> None:
        raise NotImplementedError

    def round(self, size: int, form: int = 0) -> None:
        raise NotImplementedError

    def system(self, size: int, form: int = 0) -> None:
        raise NotImplementedError

    def odd(self, size: int, form: int = 0) -> None:
        """Something that a strict provider refuses, or that nobody has heard of."""
        raise NotImplementedError

    def again(self, size: int, form: int = 0) -> None:
        """The same words as ever, to the byte."""
        before = self.count
        self.count = 10_000
        self.human(1, 0)
        self.count = 10_000
        self.say(1, 2)
        self.count = before

    def write(self, moves: Sequence[Move]) -> None:
        for kind, size, form in moves:
            getattr(self, kind)(size, form)

    def ends_open(self) -> bool:
        """Whether the model is to speak next."""
        raise NotImplementedError


class ChatWriter(Writer):
    def human(self, size: int, form: int = 0) -> None:
        words = self.words(size)
        if form % 4 == 1:
            self.items.append({"role": "user", "content": [{"type": "text", "text": words}]})
        elif form % 8 == 3:
            picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PICTURE}}
            self.items.append({"role": "user", "content": [{"type": "text", "text": words}, picture]})
        else:
            self.items.append({"role": "user", "content": words})

    def say(self, size: int, form: int = 0) -> None:
        message: Json = {"role": "assistant", "content": self.words(size)}
        if form % 4 == 1:
            message["reasoning_content"] = self.words(size)
        if form % 8 == 3:
            message = {"role": "assistant", "content": None, "refusal": self.words(size)}
        self.items.append(message)

    def round(self, size: int, form: int = 0) -> None:
        if form % 16 == 7:
            self.items.append(
                {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}}
            )
            self.items.append({"role": "function", "name": "read", "content": self.words(size)})
            return
        ids = [self.id("call_") for _ in range(1 + form % 3)]
        if form % 16 == 9:
            ids = [f"call_{n}" for n in range(len(ids))]  # servers that number the calls of each turn anew
        calls = [
            {"id": id_, "type": "custom", "custom": {"name": "patch", "input": self.words(0)}}
            if form % 8 == 5
            else {"id": id_, "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
            for id_ in ids
        ]
        self.items.append({"role": "assistant", "content": self.words(0) if form % 2 else None, "tool_calls": calls})
        for id_ in _turned(ids, form):
            content: Any = self.words(size)
            if form % 4 == 2:
                content = [{"type": "text", "text": content}]
            self.items.append({"role": "tool", "tool_call_id": id_, "content": content})

    def system(self, size: int, form: int = 0) -> None:
        self.items.append({"role": ("system", "developer")[form % 2], "content": self.words(min(size, 1))})

    def odd(self, size: int, form: int = 0) -> None:
        kind = form % 6
        if kind == 0:
            self.items.append({"role": "tool", "tool_call_id": self.id("call_"), "content": self.words(size)})
        elif kind == 1:
            call = {"id": self.id("call_"), "type": "function", "function": {"name": "read", "arguments": "{}"}}
            self.items.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == 2:
            self.round(size, 3)
            del self.items[-1]
        elif kind == 3:
            id_ = self.id("call_")
            call = {"id": id_, "type": "function", "function": {"name": "read", "arguments": "{}"}}
            self.items.append({"role": "assistant", "content": None, "tool_calls": [call]})
            self.items.append({"role": "user", "content": [{"type": "answer_to", "call": id_, "text": self.words(0)}]})
            self.items.append({"role": "tool", "tool_call_id": id_, "content": self.words(size)})
        elif kind == 4:
            self.items.append({"role": "critic", "content": self.words(size), "about": self.items[-1].get("id", "x")})
        else:
            self.items.append({"role": "user", "content": None})

    def ends_open(self) -> bool:
        return bool(self.items) and self.items[-1]["role"] in ("user", "tool", "function", "system", "developer")


class ResponsesWriter(Writer):
    def human(self, size: int, form: int = 0) -> None:
        words = self.words(size)
        if form % 4 == 1:
            self.items.append({"role": "user", "content": words})
            return
        parts: list[Json] = [{"type": "input_text", "text": words}]
        if form % 8 == 3:
            parts.append({"type": "input_image", "image_url": "data:image/png;base64," + PICTURE})
        self.items.append({"type": "message", "role": "user", "content": parts})

    def say(self, size: int, form: int = 0) -> None:
        if form % 8 == 5:
            self._made([{"id": self.id("ws_"), "type": "web_search_call", "status": "completed",
                         "action": {"type": "search", "query": self.words(0)}}], False)  # fmt: skip
        self._made([self._message(size, form)], form % 2 == 1)

    def round(self, size: int, form: int = 0) -> None:
        reasoning = form % 2 == 1
        calls = [self._call(form + n) for n in range(1 + form // 2 % 3)]
        outputs = {call["call_id"]: self._output(call, size) for call in calls}
        if form % 8 == 4:
            for call in calls:
                self.items += [call, outputs[call["call_id"]]]
            return
        made = [self._message(0, form), *calls] if form % 8 == 3 else calls
        self._made(made, reasoning)
        self.items += [outputs[name] for name in _turned(list(outputs), form)]

    def system(self, size: int, form: int = 0) -> None:
        self.items.append({"type": "message", "role": ("system", "developer")[form % 2],
                           "content": [{"type": "input_text", "text": self.words(min(size, 1))}]})  # fmt: skip

    def odd(self, size: int, form: int = 0) -> None:
        kind = form % 6
        call = self._call(0)
        if kind == 0:
            self.items.append({"type": "function_call_output", "call_id": self.id("call_"), "output": self.words(size)})
        elif kind == 1:
            self.items.append(call)
        elif kind == 2:
            self.items += [call, {"type": "novelty", "about": call["call_id"], "text": self.words(size)}]
            self.items.append(self._output(call, size))
        elif kind == 3:
            self.items += [call, self._output(call, size)]
            self.items.append({"type": "novelty", "id": self.id("nov_"), "of": [call["id"]], "text": self.words(0)})
        elif kind == 4:
            self.items.append(
                {"type": "message", "role": "user", "content": [{"type": "input_echo", "of": call["call_id"]}]}
            )
            self.items += [call, self._output(call, size)]
        else:
            self.items.append({"type": "reasoning", "id": self.id("rs_"), "summary": []})

    def ends_open(self) -> bool:
        last = self.items[-1] if self.items else {}
        return last.get("role") in ("user", "system", "developer") or str(last.get("type")).endswith("_output")

    def _made(self, made: list[Json], reasoning: bool) -> None:
        if reasoning:
            name = self.id("rs_")
            sealed = self.world.mint.seal("reasoning", {"id": name})
            summary = [{"type": "summary_text", "text": self.words(0)}]
            self.items.append({"type": "reasoning", "id": name, "summary": summary, "encrypted_content": sealed})
            for item in made:
                self.world.partners.put(item["id"], name)
        self.items += made

    def _message(self, size: int, form: int) -> Json:
        part = {"type": "output_text", "text": self.words(size), "annotations": []}
        return {"type": "message", "id": self.id("msg_"), "role": "assistant", "status": "completed", "content": [part]}

    def _call(self, form: int) -> Json:
        name = self.id("call_")
        kinds: list[Json] = [
            {"type": "function_call", "id": self.id("fc_"), "name": "read", "arguments": '{"path": "a"}'},
            {"type": "custom_tool_call", "id": self.id("ctc_"), "name": "patch", "input": self.words(0)},
            {"type": "local_shell_call", "id": self.id("lsh_"), "status": "completed",
             "action": {"type": "exec", "command": ["ls", self.words(0)]}},
            {"type": "shell_call", "id": self.id("sh_"), "action": {"commands": [self.words(0)]}},
            {"type": "apply_patch_call", "id": self.id("apc_"), "status": "completed",
             "operation": {"type": "delete_file", "path": self.words(0)}},
        ]  # fmt: skip
        return {**kinds[form % len(kinds)], "call_id": name}

    def _output(self, call: Json, size: int) -> Json:
        return {"type": call["type"] + "_output", "call_id": call["call_id"], "output": self.words(size)}


class MessagesWriter(Writer):
    def human(self, size: int, form: int = 0) -> None:
        words = self.words(size)
        if form % 2 == 0:
            self.items.append({"role": "user", "content": words})
            return
        blocks: list[Json] = [{"type": "text", "text": words}]
        if form % 8 == 3:
            source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
            blocks.append({"type": "image", "source": source})
        self.items.append({"role": "user", "content": blocks})

    def say(self, size: int, form: int = 0) -> None:
        blocks: list[Json] = []
        if form % 8 == 5:
            name = self.id("srvtoolu_")
            blocks.append({"type": "server_tool_use", "id": name, "name": "web_search", "input": {"q": self.words(0)}})
            blocks.append({"type": "web_search_tool_result", "tool_use_id": name, "content": []})
        blocks.append({"type": "text", "text": self.words(size)})
        self._made(blocks, form % 2 == 1, split=form % 16 == 9)

    def round(self, size: int, form: int = 0) -> None:
        ids = [self.id("toolu_") for _ in range(1 + form // 2 % 3)]
        blocks: list[Json] = [{"type": "text", "text": self.words(0)}] if form % 4 == 2 else []
        blocks += [{"type": "tool_use", "id": id_, "name": "read", "input": {"path": self.words(0)}} for id_ in ids]
        self._made(blocks, form % 2 == 1, split=form % 16 == 11)
        results = [self._result(id_, size, form) for id_ in _turned(ids, form)]
        how = form // 8 % 4
        if how == 1:
            self.items += [{"role": "user", "content": [result]} for result in results]
        elif how == 2:
            self.items.append({"role": "user", "content": [*results, {"type": "text", "text": self.words(0)}]})
        else:
            self.items.append({"role": "user", "content": results})

    def system(self, size: int, form: int = 0) -> None:
        self.items.append({"role": "system", "content": self.words(min(size, 1))})

    def odd(self, size: int, form: int = 0) -> None:
        kind = form % 5
        name = self.id("toolu_")
        use = {"type": "tool_use", "id": name, "name": "read", "input": {}}
        result = self._result(name, size, 0)
        if kind == 0:
            self.items.append({"role": "user", "content": [result]})
        elif kind == 1:
            self.items.append({"role": "assistant", "content": [use]})
        elif kind == 2:
            lost = self._result(self.id("toolu_"), 0, 0)
            self.items.append({"role": "assistant", "content": [use]})
            self.items.append({"role": "user", "content": [lost, result, {"type": "text", "text": self.words(0)}]})
        elif kind == 3:
            self.items += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            self.items.append({"role": "user", "content": [{"type": "verdict", "on": name, "text": self.words(0)}]})
        else:
            waiting = {"type": "server_tool_use", "id": self.id("srvtoolu_"), "name": "web_search", "input": {}}
            found = {"type": "web_search_tool_result", "tool_use_id": waiting["id"], "content": []}
            self.items.append({"role": "assistant", "content": [waiting]})
            self.items.append({"role": "assistant", "content": [found, {"type": "text", "text": self.words(size)}]})

    def ends_open(self) -> bool:
        return bool(self.items) and self.items[-1]["role"] == "user"

    def _made(self, blocks: list[Json], thinking: bool, split: bool) -> None:
        before = list(self.items)
        while before and before[-1]["role"] == "assistant":
            before.pop()
        if thinking:
            thoughts = [self._thinking(before)]
            for block in blocks:
                if block["type"] == "tool_use":
                    self.world.thinking.put(block["id"], thoughts)
            if split:
                self.items.append({"role": "assistant", "content": thoughts})
            else:
                blocks = [*thoughts, *blocks]
        self.items.append({"role": "assistant", "content": blocks})

    def _thinking(self, before: list[Json]) -> Json:
        family, words = messages_thinking.family(self.model), self.words(1)
        return {"type": "thinking", "thinking": words,
                "signature": self.world.mint.sign(family, words, self.bound(before))}  # fmt: skip

    def _result(self, name: str, size: int, form: int) -> Json:
        content: Any = self.words(size)
        if form % 4 == 1:
            content = [{"type": "text", "text": content}]
        return {"type": "tool_result", "tool_use_id": name, "content": content}


def _turned(names: list[str], form: int) -> list[str]:
    """Results come in any order."""
    at = form // 4 % len(names)
    return names[at:] + names[:at]


WRITERS: dict[str, type[Writer]] = {"chat": ChatWriter, "responses": ResponsesWriter, "messages": MessagesWriter}


@dataclass(repr=False)
class Talk:
    """A client: its transcript, and all that it sends beside it."""

    dialect: str
    writer: Writer
    lead: list[Json] = field(default_factory=list)
    fields: Json = field(default_factory=dict)
    style: int = 0
    """How it writes JSON."""
    moves_marks: bool = False
    """Puts `cache_control` on its newest messages, each turn anew."""

    def __repr__(self) -> str:
        lines = (json.dumps(item, ensure_ascii=False) for item in self.sent_items())
        return f"{self.dialect} {self.fields}:\n" + "\n".join(line[:240] for line in lines) + "\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def world(self) -> World:
        return self.writer.world

    def sent_items(self, items: Sequence[Json] | None = None) -> list[Json]:
        """The items as they go into a body, leading system items included."""
        own = list(self.writer.items if items is None else items)
        return [*self.lead, *(marked(own) if self.moves_marks else own)]

    def body(self, items: Sequence[Json] | None = None) -> bytes:
        key = ITEMS_KEY[self.dialect]
        pairs = [("model", self.writer.model), *self.fields.items()]
        pairs.insert(self.style % (len(pairs) + 1), (key, self.sent_items(items)))
        spacing = ((",", ":"), (", ", ": "), (" , ", " :  "))[self.style % 3]
        ascii_only = self.style % 2 == 1
        return json.dumps(dict(pairs), separators=spacing, ensure_ascii=ascii_only).encode()


def marked(items: list[Json]) -> list[Json]:
    """The items with cache marks on the newest two user messages, whose string content becomes a part for it."""
    found = list(items)
    newest = [i for i, item in enumerate(items) if item.get("role") == "user" and item.get("content")][-2:]
    for i in newest:
        content = found[i]["content"]
        kind = "input_text" if found[i].get("type") == "message" else "text"
        parts = [{"type": kind, "text": content}] if isinstance(content, str) else list(content)
        parts[-1] = {**parts[-1], "cache_control": {"type": "ephemeral"}}
        found[i] = {**found[i], "content": parts}
    return found


def new_world(**settings: Any) -> World:
    return World(SimulatorSettings(**settings), Mint(7))


TOOLS: dict[str, list[Json]] = {
    "chat": [{"type": "function", "function": {"name": "read", "description": f"{SENTINEL} reads", "parameters": {}}}],
    "responses": [{"type": "function", "name": "read", "parameters": {}, "strict": False}],
    "messages": [{"name": "read", "description": f"{SENTINEL} reads", "input_schema": {"type": "object"}}],
}  # fmt: skip


def talk(dialect: str, form: int = 0, *, model: str | None = None, thinking: str = "adaptive") -> Talk:
    """A client that has said nothing yet; `form` chooses what it sends beside its items."""
    world = new_world()
    writer = WRITERS[dialect](model or MODELS[dialect], world)
    made = Talk(dialect, writer, style=form % 6, moves_marks=dialect != "responses" and form % 5 == 1)
    instruction = f"You are a coding agent. {SENTINEL}0 ünïcode."
    if form % 3:
        made.fields["tools"] = TOOLS[dialect]
    if dialect == "messages":
        made.fields["max_tokens"] = 2048
        if form % 4 == 1:
            made.fields["system"] = instruction
        elif form % 4 == 2:
            cached = {"cache_control": {"type": "ephemeral"}}
            made.fields["system"] = [{"type": "text", "text": instruction}, {"type": "text", "text": "go", **cached}]
        if thinking:
            budget = {"budget_tokens": 1024} if thinking == "enabled" else {}
            made.fields["thinking"] = {"type": thinking, **budget}
    elif dialect == "responses":
        made.fields["store"] = False
        if form % 2:
            made.fields["instructions"] = instruction
        else:
            made.lead = [{"type": "message", "role": "developer", "content": instruction}]
    else:
        made.lead = [{"role": "system", "content": instruction}] * (form % 3)
    if form % 7 == 1:
        made.fields["metadata"] = {"user_id": SENTINEL}
    if messages_thinking.preserves(writer.model, world):
        writer.bound = lambda items: messages_thinking.prefix_hash(json.loads(made.body()), items)
    return made


# -- strategies ------------------------------------------------------------------------------------------------------

TAME = ("human", "say", "round", "round", "round", "system", "again")
NASTY = (*TAME, "odd", "odd")
STEPS = ("round",)


def moves(kinds: Sequence[str], least: int = 2, most: int = 14) -> st.SearchStrategy[list[Move]]:
    move = st.tuples(st.sampled_from(list(kinds)), st.integers(0, len(SIZES) - 1), st.integers(0, 63))
    return st.lists(move, min_size=least, max_size=most)


LONG: list[Move] = [("round", 2, form) for form in (2, 3, 0, 9, 2)]
"""Enough to be worth a compaction."""


def sessions(least: int = 2, most: int = 14) -> st.SearchStrategy[list[Move]]:
    """What a lawful client may do: a human message per step, or one and then only tool calls."""
    first = st.tuples(st.just("human"), st.integers(0, 2), st.integers(0, 63)).map(lambda move: [move])
    rest = st.one_of(moves(TAME, least, most), moves(STEPS, least, most))
    return st.builds(lambda a, b: a + b, first, rest)


def finished(made: Talk, story: Sequence[Move]) -> Talk:
    """The talk after these moves, ended so that the model is to speak."""
    made.writer.write(story)
    if not made.writer.ends_open():
        made.writer.human(1)
    return made


DIALECTS = st.sampled_from(["chat", "responses", "messages"])


@st.composite
def lawful(draw: st.DrawFn, dialect: str | None = None, **options: Any) -> Talk:
    """A history that breaks no rule of its provider (but for mistakes of this generator: ask the judge)."""
    made = talk(dialect or draw(DIALECTS), draw(st.integers(0, 200)), **options)
    return finished(made, draw(sessions()))


@st.composite
def wild(draw: st.DrawFn, dialect: str | None = None) -> Talk:
    """Any history: lost calls, lost results, unknown items, in flight at the end."""
    made = talk(dialect or draw(DIALECTS), draw(st.integers(0, 200)))
    made.writer.human(1, draw(st.integers(0, 7)))
    made.writer.write([*(LONG if draw(st.booleans()) else ()), *draw(moves(NASTY))])
    return made


@st.composite
def alternating(draw: st.DrawFn) -> Talk:
    """A chat that strict templates accept: user and assistant take turns, tool rounds anywhere between."""
    made = talk("chat", draw(st.integers(0, 200)))
    made.lead = made.lead[:1]
    for rounds_before, rounds_after, size in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=7)
    ):
        made.writer.human(size, size)
        for _ in range(rounds_before):
            made.writer.round(size, size)
        made.writer.say(size)
        for _ in range(rounds_after):
            made.writer.round(size, 2)
    made.writer.human(1)
    for _ in range(draw(st.integers(0, 3))):
        made.writer.round(draw(st.integers(0, 3)), 2)
    return made
