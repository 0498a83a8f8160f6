"""Agents' conversations, the same in every run: calls of tools, their results, a word of the user now and then.

Knows how each API writes them. The benches send them, whole or turn by turn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

Api = Literal["chat", "messages", "responses"]
Item = dict[str, object]

MODEL = "bench"
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
SENTENCE = (
    "the file function returns error value test patch config request token stream parse buffer index module class "
    "import self result when after before because cannot should Überprüfung naïve"
)
WORDS = SENTENCE.split()
NUMBER = "00000000"
"""Where a conversation's number goes, in its first words."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of an agent: what it asked a tool, and what came back; `user` speaks before it, if anyone does."""

    number: int
    user: str
    words: str
    arguments: str
    result: str


@dataclass(frozen=True, slots=True)
class Written:
    """A body in pieces: `begin`, the items of each turn, joined by commas, `end`."""

    begin: bytes
    turns: tuple[bytes, ...]
    end: bytes

    def whole(self) -> bytes:
        return self.begin + b",".join(self.turns) + self.end

    def sessions(self, first: int) -> bytes:
        """The load generator's file of conversations that grow by a turn, from the turn `first` on (1: one turn)."""
        ends = [len(self.begin) + size for size in accumulate(len(turn) + 1 for turn in self.turns)]
        shown = " ".join(str(end - 1) for end in ends[first - 1 :])
        turns = self.begin + b",".join(self.turns)
        return f"{turns.index(NUMBER.encode())} {shown}\n".encode() + turns + b"\n" + self.end


def prose(chance: random.Random, words: int) -> str:
    """So many words."""
    return " ".join(chance.choice(WORDS) for _ in range(words))


def code(chance: random.Random, lines: int) -> str:
    """Lines as a tool that reads a file would show them, about 70 bytes each."""

    def word() -> str:
        return chance.choice(WORDS)

    return "\n".join(
        f'{line:5d}\t    {word()}_{chance.randrange(99)} = {word()}("{word()}", x[{chance.randrange(999)}])'
        f"  # {prose(chance, 4)}"
        for line in range(lines)
    )


def _turns(chance: random.Random) -> Iterator[Turn]:
    """Turns of about 4 KB each, without end."""
    number = 0
    while True:
        user = f"Conversation {NUMBER}: mend the tests." if number == 0 else ""
        if number % 8 == 7:
            user = prose(chance, chance.randrange(10, 120))
        arguments = json.dumps({"path": f"/src/{chance.choice(WORDS)}.py", "why": prose(chance, 6)})
        lines = chance.randrange(10, 80)
        yield Turn(number, user, prose(chance, chance.randrange(5, 50)), arguments, code(chance, lines))
        number += 1


def _items(api: Api, turn: Turn) -> list[Item]:
    call, name = f"call_{turn.number:08x}", f"tool_{turn.number % 12}"
    user: list[Item] = [{"role": "user", "content": turn.user}] if turn.user else []
    if api == "chat":
        function = {"name": name, "arguments": turn.arguments}
        calls = [{"id": call, "type": "function", "function": function}]
        return [
            *user,
            {"role": "assistant", "content": turn.words, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": turn.result},
        ]
    if api == "messages":
        said = {"type": "text", "text": turn.words}
        use = {"type": "tool_use", "id": call, "name": name, "input": json.loads(turn.arguments)}
        result = {"type": "tool_result", "tool_use_id": call, "content": turn.result}
        return [*user, {"role": "assistant", "content": [said, use]}, {"role": "user", "content": [result]}]
    return [
        *({"type": "message", **item} for item in user),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": turn.words}]},
        {"type": "function_call", "call_id": call, "name": name, "arguments": turn.arguments},
        {"type": "function_call_output", "call_id": call, "output": turn.result},
    ]


def _tool(api: Api, chance: random.Random, number: int) -> Item:
    properties = {f"p{index}": {"type": "string", "description": prose(chance, 12)} for index in range(4)}
    schema = {"type": "object", "properties": properties}
    about = {"name": f"tool_{number}", "description": prose(chance, 60)}
    if api == "messages":
        return {**about, "input_schema": schema}
    if api == "responses":
        return {"type": "function", **about, "parameters": schema}
    return {"type": "function", "function": {**about, "parameters": schema}}


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def write(api: Api, size: int, *, stream: bool = False, turns: int | None = None, seed: int = 7) -> Written:
    """A body of about `size` bytes, or of as many turns.

    A body of 1 KB has no tools, a short system prompt and one small turn.
    """
    chance = random.Random(seed)
    small = size < 3000
    system = prose(chance, 20 if small else max(40, min(size // 20, 1500)))
    tools = [] if small else [_tool(api, chance, number) for number in range(12 if size > 30_000 else 1)]
    head: Item = {"model": MODEL}
    items = b""
    if api == "chat":
        items = _dump({"role": "system", "content": system}) + b","
    elif api == "messages":
        head |= {"max_tokens": 4096, "system": system}
    else:
        head |= {"instructions": system}
    begin = _dump(head)[:-1] + (b',"input":[' if api == "responses" else b',"messages":[') + items
    rest: Item = {"tools": tools} if tools else {}
    end = b"]," + _dump({**rest, "temperature": 0.2, **({"stream": True} if stream else {})})[1:]
    written: list[bytes] = []
    length = len(begin) + len(end)
    for turn in _turns(chance):
        if (turns is None and length >= size) or len(written) == turns:
            break
        if small:
            room = max(40, size - length - 330)
            turn = Turn(turn.number, turn.user, "Reading.", '{"path":"/src/a.py"}', code(chance, 20)[:room])
        written.append(b",".join(_dump(item) for item in _items(api, turn)))
        length += len(written[-1]) + 1
    return Written(begin, tuple(written), end)
