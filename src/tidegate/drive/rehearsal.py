"""Performs an exchange's effects in memory: the provider and the writer of summaries are stood in for, nothing is sent.

Knows effects, a store, and how a stand-in counts and refuses; no policy and no file. Called by `tidegate replay` and by
`bench/fidelity.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, Self, TypeVar

from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.engine.checkpoint import Checkpoint, Store
from tidegate.engine.effects import (
    Compact,
    Deliver,
    Effect,
    Find,
    Finish,
    Head,
    Made,
    Notify,
    Outcome,
    Prepare,
    Save,
    Send,
    Work,
)
from tidegate.engine.exchange import exchange
from tidegate.engine.request import Kit, Request
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName, JsonObject, Usage
from tidegate.wire.jsontext import dumps

CACHED: Final = 0.1
"""Price of a reused token, as a share of a new one's."""

ANSWER: Final = 200
"""Output tokens that each answer is said to have."""

LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields that limit the output of a call."""

DIALECTS: Final[Mapping[str, DialectName]] = {requests.PATH: name for name, requests in REQUESTS.items()}
"""By the path of a call."""


class Counted(Protocol):
    """A request body, counted."""

    @property
    def tokens(self) -> int:
        """Of all of it."""
        ...

    def shared(self, other: Self) -> int:
        """Those of it with which `other` begins too."""
        ...

    def begins(self, other: Self) -> bool:
        """Whether `other` begins with the whole of it."""
        ...


C = TypeVar("C", bound=Counted)


@dataclass
class Sheet:
    """What a session came to. Tokens, as the ruler counts."""

    asked: int = 0
    """Of the client's own requests."""
    sent: int = 0
    reused: int = 0
    """Of those: identical to the beginning of a request before."""
    largest: int = 0
    requests: int = 0
    """That were answered."""
    compactions: int = 0
    refused: int = 0
    """Times that the stand-in refused a request as too long."""
    summary_calls: int = 0
    summary_new: int = 0
    summary_reused: int = 0
    summary_written: int = 0
    broken: int = 0
    """Requests whose beginning was not the whole of the one before, though nothing was compacted."""

    @property
    def cost(self) -> float:
        """Input tokens, the reused ones at a tenth, those of summary calls and what these wrote included."""
        new = self.sent - self.reused + self.summary_new + self.summary_written
        return new + CACHED * (self.reused + self.summary_reused)


@dataclass(slots=True)
class Turn:
    """What became of one request. Tokens, as the ruler counts."""

    before: int
    """Of the client's own request."""
    sent: int = 0
    """Of what was answered; of what was refused last, where nothing was."""
    reused: int = 0
    answered: bool = False
    refused: int = 0
    outcome: Outcome = field(default_factory=Outcome)
    told: list[Notify] = field(default_factory=list)
    """Numbers and names only."""
    body: bytes = field(default=b"", repr=False)
    """What was answered."""


class Stage(Generic[C]):
    """One session under one kit. `count` measures a body that goes to the target of a request; `writes` gives the text
    that a summary call is answered with, of the call, its body, and the output tokens that it may have."""

    def __init__(
        self,
        kit: Kit,
        store: Store,
        count: Callable[[DialectName, str, bytes], C],
        writes: Callable[[Call, int, int], str],
        measure: Callable[[str], int],
        *,
        remembered: int = 1,
        sheet: Sheet | None = None,
    ) -> None:
        """`measure` are the tokens of a text that was written; `remembered` how many requests back the stand-in's
        prompt cache reaches."""
        self.kit, self.store = kit, store
        self.sheet = sheet or Sheet()
        self._count, self._writes, self._measure = count, writes, measure
        self._last: deque[C] = deque(maxlen=remembered)
        self._prepared: dict[bytes, Made] = {}

    def request(self, request: Request) -> Turn:
        """Takes one request through its life."""
        conversation = request.conversation
        turn = Turn(self._count(conversation.dialect, request.target.model, conversation.raw).tokens)
        self.sheet.asked += turn.before
        life = exchange(request, self.kit)
        try:
            effect = next(life)
            while True:
                try:
                    result = self._perform(effect, request, turn)
                except CompactionFailed as error:
                    effect = life.throw(error)
                else:
                    effect = life.send(result)
        except StopIteration:
            return turn

    def _perform(self, effect: Effect, request: Request, turn: Turn) -> object:
        match effect:
            case Find(tenant=tenant, bucket=bucket, chains=chains):
                return self.store.find(tenant, bucket, chains) if bucket else None
            case Save(tenant=tenant, record=record):
                if isinstance(record, Checkpoint):
                    self.store.save(record)
                else:
                    self.store.report(tenant, record)
            case Compact(key, _, work):
                return self._prepared.pop(key, None) or self._made(work(), request)
            case Prepare():
                return self._prepare(effect, request, turn)
            case Send(body=body):
                return self._answered(request.conversation.raw if body is None else body, request, turn)
            case Deliver(outcome=outcome):
                turn.outcome = outcome
                return Finish(Usage(turn.sent, ANSWER, turn.reused), "stop") if turn.answered else Finish()
            case Notify():
                turn.told.append(effect)
                self.sheet.compactions += effect.event == "compacted"
        return None

    def _prepare(self, effect: Prepare, request: Request, turn: Turn) -> bool:
        try:
            made = self._made(effect.work(), request)
        except CompactionFailed as error:
            turn.told.append(effect.ended(error))
        else:
            self._prepared[effect.key] = made
            turn.told.append(effect.ended(made))
        return True

    def _answered(self, body: bytes, request: Request, turn: Turn) -> Head:
        sheet, target = self.sheet, request.target
        counted = self._count(request.conversation.dialect, target.model, body)
        turn.sent, turn.reused, turn.body = counted.tokens, self._reused(counted), body
        window = target.window or target.input_limit
        if window is not None and counted.tokens > window:
            sheet.refused += 1
            turn.refused += 1
            return Head(turn.refused - 1, 400, {}, refusal(request.conversation.dialect, counted.tokens, window))
        turn.answered = True
        sheet.requests += 1
        sheet.sent += counted.tokens
        sheet.reused += turn.reused
        sheet.largest = max(sheet.largest, counted.tokens)
        compacted = any(notice.event == "compacted" for notice in turn.told)
        sheet.broken += bool(self._last) and not compacted and not self._last[-1].begins(counted)
        self._last.append(counted)
        return Head(turn.refused, 200, {})

    def _reused(self, counted: C) -> int:
        return max((counted.shared(earlier) for earlier in self._last), default=0)

    def _made(self, work: Work, request: Request) -> Made:
        try:
            call = next(work)
            while True:
                call = work.send(self._summed_up(call, request))
        except StopIteration as end:
            made: Made = end.value
            return made

    def _summed_up(self, call: Call, request: Request) -> Reply:
        dialect = DIALECTS[call.path]
        conversation = REQUESTS[dialect].read(call.body)
        counted = self._count(dialect, conversation.model, call.body)
        limits = [int(raw) for name in LIMITS if (raw := conversation.field(name)).isdigit()]
        text = self._writes(call, counted.tokens, min(limits, default=8_192))
        reused, written = self._reused(counted), self._measure(text)
        sheet = self.sheet
        sheet.summary_calls += 1
        sheet.summary_new += counted.tokens - reused
        sheet.summary_reused += reused
        sheet.summary_written += written
        body = dumps(answer(dialect, conversation.model, text, counted.tokens, written))
        return Reply(200, body, {"content-type": "application/json"})


def refusal(dialect: DialectName, tokens: int, window: int) -> bytes:
    """Body of a refusal for length, in the words of the API's own maker."""
    if dialect == "messages":
        error: JsonObject = {
            "type": "invalid_request_error",
            "message": f"prompt is too long: {tokens} tokens > {window} maximum",
        }
        return dumps({"type": "error", "error": error})
    text = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens."
    )
    return dumps({"error": {"message": text, "type": "invalid_request_error", "code": "context_length_exceeded"}})


def answer(dialect: DialectName, model: str, text: str, read: int, written: int) -> JsonObject:
    """A whole answer of that text, in the API's own shape."""
    if dialect == "messages":
        return {
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": read, "output_tokens": written},
        }
    if dialect == "responses":
        content: JsonObject = {"type": "output_text", "text": text, "annotations": []}
        return {
            "object": "response",
            "status": "completed",
            "model": model,
            "output": [{"type": "message", "role": "assistant", "status": "completed", "content": [content]}],
            "usage": {"input_tokens": read, "output_tokens": written, "total_tokens": read + written},
        }
    return {
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }
