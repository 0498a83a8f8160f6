"""An agent's long session: the whole history with every request, one tool call after another.

Knows how an agent behaves, over plain HTTP; not what answers it. Run by the demo and by tests.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from tidegate.cli.demo import material
from tidegate.cli.demo.speech import SPEECHES, Answer, CutShort, JsonObject, NoAnswer, Request, events
from tidegate.simulator import tokens

Shape: TypeAlias = Literal["steps", "single"]
"""`steps`: a human message starts every turn. `single`: one human message, then only tool calls."""
SHAPES: tuple[Shape, ...] = ("steps", "single")

ROUNDS_MOST = 8
"""Tool calls one after another in a turn, after which the agent gives the turn up."""
REPEATS_MOST = 2
"""Times the agent asks again for an answer that was cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a session goes. Sizes in characters, but `max_output` in tokens."""

    shape: Shape = "steps"
    stream: bool = True
    model: str = "demo-model"
    key: str = "sk-demo"
    output_length: int = 4800
    """Characters of a tool's output."""
    fact_every: int = 5
    """A fact is planted in the first turn and in every so manieth after it."""
    max_output: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)
    """More fields for every request body."""
    timeout: float = 120.0
    """Seconds an answer may be silent."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request got. `answer` is None where it was none; `why` then says so."""

    status: int
    headers: Mapping[str, str]
    answer: Answer | None
    why: str = ""
    cut: bool = False
    """The answer was cut short, for want of room or by its limit."""

    @property
    def action(self) -> str:
        """What a gateway says it did; empty without one."""
        return self.headers.get("x-tidegate-action", "")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: its requests, and whether the agent got what it needed to go on."""

    number: int
    answered: bool
    replies: tuple[Reply, ...]


class Session:
    """An agent at work through one API. Raises `OSError` where nothing listens."""

    def __init__(self, base_url: str, dialect: str, plan: Plan | None = None) -> None:
        self.plan = plan or Plan()
        self.speech = SPEECHES[dialect]
        self.items: list[JsonObject] = []
        self.turns: list[Turn] = []
        self.planted: list[str] = []
        """Markers of the facts said so far."""
        self.tokens_without = 0
        """Tokens of every request as the agent wrote it, by the simulator's ruler."""
        address = urlsplit(base_url)
        self._prefix = address.path.rstrip("/")
        self._connection = http.client.HTTPConnection(
            address.hostname or "127.0.0.1", address.port, timeout=self.plan.timeout
        )

    def close(self) -> None:
        """Gives the connection back."""
        self._connection.close()

    def run(self, turns: int) -> list[Turn]:
        """Takes so many turns, or fewer: an agent whose turn is not answered stops. Returns all turns taken."""
        for _ in range(turns):
            if not self.turn().answered:
                break
        return self.turns

    @property
    def failure(self) -> str:
        """Why the last turn was not answered; empty where it was."""
        if not self.turns or self.turns[-1].answered:
            return ""
        last = self.turns[-1].replies[-1]
        why = last.why or "the agent got neither a tool call nor words to go on with"
        return f"turn {self.turns[-1].number} was not answered (status {last.status}): {why}"

    def turn(self) -> Turn:
        """Takes the next turn."""
        number = len(self.turns) + 1
        if self.plan.shape == "steps":
            answered, replies = self._step(number)
        else:
            answered, replies = self._round(number)
        self.turns.append(Turn(number, answered, tuple(replies)))
        return self.turns[-1]

    def _step(self, number: int) -> tuple[bool, list[Reply]]:
        """A human message, tool calls, and the model's words."""
        self.items.append(self.speech.human(material.ask(number) + self._fact(number)))
        replies: list[Reply] = []
        for _ in range(ROUNDS_MOST):
            replies.extend(self._ask())
            answer = replies[-1].answer
            if answer is None:
                return False, replies
            if not answer.calls:
                return bool(answer.text), replies
            self._work(answer, number)
        return False, replies

    def _round(self, number: int) -> tuple[bool, list[Reply]]:
        """One request of a session that the human only started."""
        if number == 1:
            start = "Work through the project file by file until nothing is left to do."
            self.items.append(self.speech.human(start + self._fact(number)))
        replies = self._ask()
        answer = replies[-1].answer
        if answer is None:
            return False, replies
        self._work(answer, number)
        return bool(answer.calls), replies

    def _fact(self, number: int) -> str:
        if (number - 1) % self.plan.fact_every:
            return ""
        planted = len(self.planted) + 1
        self.planted.append(material.marker(planted))
        return f" Remember {material.fact(planted)}."

    def _work(self, answer: Answer, number: int) -> None:
        """Runs the tools that were called, and puts their results into the history."""
        outputs = []
        for call in answer.calls:
            # With a single human message, later facts can only come from what the agent reads.
            said = self._fact(number).strip() if self.plan.shape == "single" and number > 1 else ""
            path = str(call.arguments.get("path", "?"))
            text = material.file_text(path, number, self.plan.output_length - len(said))
            outputs.append((call, f"{said}\n{text}" if said else text))
        if outputs:
            self.items.extend(self.speech.results(outputs))

    def _ask(self) -> list[Reply]:
        """The request of the moment; again where its answer was cut short, as agents do."""
        replies = [self._request()]
        while replies[-1].cut and len(replies) <= REPEATS_MOST:
            replies.append(self._request())
        return replies

    def _request(self) -> Reply:
        plan = self.plan
        asked = Request(plan.model, plan.stream, plan.max_output, dict(plan.extra))
        body = self.speech.body(self.items, asked)
        self.tokens_without += size(body)
        headers = {"content-type": "application/json", **self.speech.headers(plan.key), **plan.headers}
        try:
            self._connection.request("POST", self._prefix + self.speech.path, json.dumps(body).encode(), headers)
            response = self._connection.getresponse()
            data = response.read()
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            self._connection.close()
            return Reply(0, {}, None, f"{type(error).__name__}: {error}")
        met = {name.lower(): value for name, value in response.getheaders()}
        if response.status != 200:
            return Reply(response.status, met, None, data[:500].decode("utf-8", "replace"))
        try:
            answer = self.speech.streamed(events(data)) if plan.stream else self.speech.whole(json.loads(data))
        except NoAnswer as error:
            return Reply(response.status, met, None, str(error), isinstance(error, CutShort))
        except ValueError as error:
            return Reply(response.status, met, None, f"what came can't be read: {error}")
        self.items.extend(answer.items)
        return Reply(response.status, met, answer)


def size(body: JsonObject) -> int:
    """Input tokens of a request body as the simulator counts them, artifacts aside."""
    fixed = (body.get("tools"), body.get("system"), body.get("instructions"))
    return tokens.items(fixed) + tokens.items(body.get("messages") or body.get("input") or ())
