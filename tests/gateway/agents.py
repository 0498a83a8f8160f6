"""Tool-using agents on the real SDKs, one for each API, synchronous and not, streamed and not.

Each keeps its whole history and sends it again every turn, as real agents do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import anthropic
import openai

Json = dict[str, Any]
Shape = Literal["steps", "single"]

SYSTEM = "You are a coding agent in a shop's repository."
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}


@dataclass
class Turn:
    """What a model answered: items for the history, the calls it made, and the gateway's headers."""

    items: list[Json]
    calls: list[str]
    headers: dict[str, str] = field(default_factory=dict)


class Agent:
    """The part that all APIs share."""

    api: str

    def __init__(self, base: str, *, model: str = "shop-model", stream: bool, key: str = "sk-agent-1") -> None:
        self.base, self.model, self.stream, self.key = base, model, stream, key
        self.history: list[Json] = []
        self.turns: list[Turn] = []
        self._clients: dict[str, Any] = {}
        self.extra: Json = {}
        """Fields added to every request."""

    def client(self, kind: type[Any]) -> Any:
        """One client of that kind for the whole session."""
        made = self._clients.get(f"{kind.__name__} {self.base}")
        if made is None:
            base = self.base if self.api == "messages" else f"{self.base}/v1"
            made = kind(base_url=base, api_key=self.key, max_retries=0)
            self._clients[f"{kind.__name__} {self.base}"] = made
        return made

    def user(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def result(self, call: str, text: str) -> Json:
        raise NotImplementedError

    def invented(self, number: int) -> Turn:
        """A turn that no model has made, in the shape of one: for a history that comes from elsewhere."""
        raise NotImplementedError

    def ask(self) -> Turn:
        raise NotImplementedError

    async def ask_async(self) -> Turn:
        raise NotImplementedError

    def results(self, turn: Turn, text: str) -> None:
        self.history += [self.result(call, text) for call in turn.calls]

    def take(self, turn: Turn) -> Turn:
        self.history += turn.items
        self.turns.append(turn)
        return turn


class Chat(Agent):
    api = "chat"

    def request(self) -> Json:
        tool = {"type": "function", "function": {"name": "read_file", "description": "Read.", "parameters": PARAMETERS}}
        return {
            "model": self.model, "messages": [{"role": "system", "content": SYSTEM}, *self.history],
            "tools": [tool], "max_tokens": 400, **self.extra,
        }  # fmt: skip

    def result(self, call: str, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call, "content": text}

    def invented(self, number: int) -> Turn:
        function = {"name": "read_file", "arguments": json.dumps({"path": f"src/{number}.py"})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        return Turn([{"role": "assistant", "content": None, "tool_calls": [call]}], [f"call_{number}"])

    def _turn(self, message: Any, headers: Any) -> Turn:
        made = [
            {"id": call.id, "type": "function",
             "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in message.tool_calls or []
        ]  # fmt: skip
        item: Json = {"role": "assistant", "content": message.content}
        if made:
            item["tool_calls"] = made
        return Turn([item], [call["id"] for call in made], dict(headers))

    def ask(self) -> Turn:
        completions = self.client(openai.OpenAI).chat.completions
        if not self.stream:
            raw = completions.with_raw_response.create(**self.request())
            return self.take(self._turn(raw.parse().choices[0].message, raw.headers))
        with completions.stream(**self.request()) as stream:
            final = stream.get_final_completion()
            return self.take(self._turn(final.choices[0].message, stream._response.headers))

    async def ask_async(self) -> Turn:
        completions = self.client(openai.AsyncOpenAI).chat.completions
        if not self.stream:
            raw = await completions.with_raw_response.create(**self.request())
            return self.take(self._turn(raw.parse().choices[0].message, raw.headers))
        async with completions.stream(**self.request()) as stream:
            final = await stream.get_final_completion()
            return self.take(self._turn(final.choices[0].message, stream._response.headers))


class Responses(Agent):
    api = "responses"

    def request(self) -> Json:
        tool = {
            "type": "function",
            "name": "read_file",
            "description": "Read.",
            "parameters": PARAMETERS,
            "strict": False,
        }
        return {
            "model": self.model, "instructions": SYSTEM, "input": self.history, "tools": [tool], "store": False,
            "max_output_tokens": 400, **self.extra,
        }  # fmt: skip

    def result(self, call: str, text: str) -> Json:
        return {"type": "function_call_output", "call_id": call, "output": text}

    def invented(self, number: int) -> Turn:
        arguments = json.dumps({"path": f"src/{number}.py"})
        call = {"type": "function_call", "call_id": f"call_{number}", "name": "read_file", "arguments": arguments}
        return Turn([call], [f"call_{number}"])

    def _turn(self, response: Any, headers: Any) -> Turn:
        items = [
            json.loads(item.model_dump_json(exclude_none=True, exclude={"parsed_arguments"}))
            for item in response.output
        ]
        for item in items:
            for part in item.get("content", []):
                part.pop("parsed", None)
        return Turn(items, [item["call_id"] for item in items if item["type"] == "function_call"], dict(headers))

    def ask(self) -> Turn:
        responses = self.client(openai.OpenAI).responses
        if not self.stream:
            raw = responses.with_raw_response.create(**self.request())
            return self.take(self._turn(raw.parse(), raw.headers))
        with responses.stream(**self.request()) as stream:
            return self.take(self._turn(stream.get_final_response(), stream._response.headers))

    async def ask_async(self) -> Turn:
        responses = self.client(openai.AsyncOpenAI).responses
        if not self.stream:
            raw = await responses.with_raw_response.create(**self.request())
            return self.take(self._turn(raw.parse(), raw.headers))
        async with responses.stream(**self.request()) as stream:
            return self.take(self._turn(await stream.get_final_response(), stream._response.headers))


class Messages(Agent):
    api = "messages"

    def request(self) -> Json:
        tool = {"name": "read_file", "description": "Read.", "input_schema": PARAMETERS}
        return {
            "model": self.model, "system": SYSTEM, "messages": self.history, "tools": [tool], "max_tokens": 400,
            **self.extra,
        }  # fmt: skip

    def results(self, turn: Turn, text: str) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call in turn.calls]
        if blocks:
            self.history.append({"role": "user", "content": blocks})

    def invented(self, number: int) -> Turn:
        block = {
            "type": "tool_use",
            "id": f"toolu_{number}",
            "name": "read_file",
            "input": {"path": f"src/{number}.py"},
        }
        return Turn([{"role": "assistant", "content": [block]}], [f"toolu_{number}"])

    def _turn(self, message: Any, headers: Any) -> Turn:
        blocks = [
            json.loads(block.model_dump_json(exclude_none=True, exclude={"parsed_output"})) for block in message.content
        ]
        item = {"role": "assistant", "content": blocks}
        return Turn([item], [block["id"] for block in blocks if block["type"] == "tool_use"], dict(headers))

    def ask(self) -> Turn:
        messages = self.client(anthropic.Anthropic).messages
        if not self.stream:
            raw = messages.with_raw_response.create(**self.request())
            return self.take(self._turn(raw.parse(), raw.headers))
        with messages.stream(**self.request()) as stream:
            return self.take(self._turn(stream.get_final_message(), stream.response.headers))

    async def ask_async(self) -> Turn:
        messages = self.client(anthropic.AsyncAnthropic).messages
        if not self.stream:
            raw = await messages.with_raw_response.create(**self.request())
            return self.take(self._turn(await raw.parse(), raw.headers))
        async with messages.stream(**self.request()) as stream:
            return self.take(self._turn(await stream.get_final_message(), stream.response.headers))


AGENTS: dict[str, type[Agent]] = {agent.api: agent for agent in (Chat, Responses, Messages)}


def output(number: int, size: int = 300) -> str:
    """A tool's plausible output of about `size` tokens."""
    return f"src/module_{number}.py\n" + "".join(f"line {line} of module {number}\n" for line in range(size * 4 // 23))


def fact(number: int) -> str:
    return f"FACT-{number:02d} module {number} listens on port {8000 + number}."


def script(shape: Shape, turns: int, size: int) -> Iterator[tuple[str, str]]:
    """(words of the user before the request, output for the calls of its answer): one pair a request."""
    for number in range(turns):
        told = number % 5 == 0
        words = f"Step {number}. {fact(number) if told else ''} Go on." if shape == "steps" or number == 0 else ""
        yield words, (fact(number) + "\n" if shape == "single" and told else "") + output(number, size)


def hold(agent: Agent, shape: Shape, turns: int, size: int = 1300) -> None:
    """A session of so many requests."""
    for words, result in script(shape, turns, size):
        if words:
            agent.history.append(agent.user(words))
        agent.results(agent.ask(), result)


def imagine(agent: Agent, shape: Shape, turns: int, size: int = 1300) -> None:
    """The history of such a session, without one request."""
    for number, (words, result) in enumerate(script(shape, turns, size)):
        if words:
            agent.history.append(agent.user(words))
        turn = agent.invented(number)
        agent.history += turn.items
        agent.results(turn, result)


async def hold_async(agent: Agent, shape: Shape, turns: int, size: int = 1300) -> None:
    for words, result in script(shape, turns, size):
        if words:
            agent.history.append(agent.user(words))
        agent.results(await agent.ask_async(), result)


def run(agent: Agent, shape: Shape, turns: int, *, asynchronous: bool, size: int = 1300) -> None:
    if asynchronous:
        asyncio.run(hold_async(agent, shape, turns, size))
    else:
        hold(agent, shape, turns, size)
