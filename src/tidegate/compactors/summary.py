"""The `summary` strategy: asks the model in use for a structured summary, in as many calls as it takes.

Knows prompts, budgets and what makes a reply unusable; makes no call itself (`work` yields them).
Called by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from tidegate.compactors.accept import Reading, Remedy, read, remedy
from tidegate.compactors.fence import escape, fence, is_marked, mark, split_marked
from tidegate.compactors.pieces import Piece, Room, levels, plan
from tidegate.compactors.ride import Caching, Continued, Riding, continued, cost
from tidegate.compactors.strategy import Call, CompactionFailed, Reply, Span, Summary
from tidegate.compactors.transcript import Block, earlier, read_items, write
from tidegate.context.estimate import text_tokens
from tidegate.wire import ANSWERS, REQUESTS
from tidegate.wire.conversation import JsonValue

__all__ = ["Options", "default_options", "focused", "is_marked", "mark", "planned_calls", "work"]

LEAST_OUTPUT: Final = 64
"""Real tokens: with less room than this a summary says nothing."""
LEAST_PIECE: Final = 200
"""Estimated tokens of transcript a call must have room for."""
SMALLEST_HALF: Final = 500
"""Estimated tokens of material, previous summary included, that are not halved again when refused as too long."""
ASKED: Final = "summary_request"
"""Tag around the message of a ridden call."""
TOO_LONG: Final = 2
"""Times its room that a summary may take which no output limit has held to it."""
_OUR_FAULT: Final = frozenset({400, 413, 422})
"""Refusals of a ridden call that a transcript may not meet."""
_ENVELOPE: Final = 24
"""Real tokens of the roles and separators around the two messages."""
_LIMIT_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_DROP_HEADERS: Final = frozenset({"idempotency-key", "x-idempotency-key", "content-encoding"})
_WORDS: Final = "{words}"


@dataclass(frozen=True, slots=True)
class Options:
    """How summaries are asked for."""

    prompt: str = field(repr=False)
    """Instructions after a first transcript; `{words}` becomes the number of words to stay below."""
    update_prompt: str = field(repr=False)
    """Instructions where a previous summary is carried forward."""
    system: str = field(repr=False)
    """System prompt of the call: the role, and that what follows is material."""
    tool_result_chars: int = 2000
    """Characters shown of a tool result or of a call's arguments, before any tightening."""
    timeout: float = 180.0
    """Seconds for each call."""
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    """Fields added to the body (a provider's switch for thinking); left out in one more try where
    refused."""
    omit: frozenset[str] = frozenset()
    """Fields never sent (some backends refuse any output limit)."""
    limit_key: str = ""
    """Name of the output-limit field where the client's request names none, empty for the dialect's usual one."""
    max_output: int | None = None
    """The model's own output limit in tokens, None where unknown."""
    ride_prompt: str = field(default="", repr=False)
    """What comes before the instructions where the call rides; without it none does."""
    ride: Riding = "off"
    """Whether the first call continues the session's own request: where that is cheaper, always, or never."""
    caching: Caching | None = None
    """How the provider caches, None where that is not known: then no call rides of itself."""
    focus: str = field(default="", repr=False)
    """What whoever asked for the summary wants it to look at; part of the instructions already."""


def focused(options: Options, focus: str) -> Options:
    """The same, with more to look at in each summary."""
    focus = focus.strip()
    if not focus:
        return options
    more = f"\n\nAdditional focus: {focus}"
    return replace(options, prompt=options.prompt + more, update_prompt=options.update_prompt + more, focus=focus)


@cache
def default_options() -> Options:
    """Options with the prompts that ship with Tidegate."""
    folder = files("tidegate.compactors") / "prompts"
    summary, update, system, ride = (
        (folder / f"{name}.md").read_text("utf-8").strip() for name in ("summary", "update", "system", "ride")
    )
    return Options(prompt=summary, update_prompt=update, system=system, ride_prompt=ride)


def planned_calls(span: Span, options: Options) -> int:
    """How many calls `work` makes at most if no piece is refused and no answer cut or repeated: `span.max_calls` or
    fewer. Exact where it is one; summaries shorter than their room save calls.

    0 where nothing is to be summarised. Raises `CompactionFailed` where not even one call has room.
    """
    job = _Job(span, options)
    return len(job.plan(0, job.previous_tokens, span.max_calls)) if job.blocks(0) else 0


def work(span: Span, options: Options, overflows: Callable[[Reply], bool]) -> Generator[Call, Reply, Summary]:
    """Yields the calls, is sent their replies, returns the summary. `overflows` tells a refusal for length
    from others.

    Equal input gives byte-identical calls. What does not fit one call is folded: each further piece goes
    with the summary so far and the update prompt. A piece refused for its length is halved. All within
    `span.max_calls`.

    Where `options.ride` says so, the first call continues the session's own request instead (see `ride`); what it gives
    must be as good as any other summary, else the calls above are made after it, within the same bound.

    Raises `CompactionFailed` with one of these reasons, never with a word of the conversation or of a
    reply:

    | reason | meaning |
    |---|---|
    | `summary_nothing` | no items and no previous summary |
    | `summary_no_room` | the window or the room is too small for any call |
    | `summary_overflow` | still too long after halving (`overflow` is True) |
    | `summary_too_many_calls` | the bound was used up by refused or repeated calls |
    | `summary_unreachable` | no answer could be had |
    | `summary_http_<status>` | refused with that status, not for length |
    | `summary_stream_error` | an error inside a 200 answer |
    | `summary_cut_off` | the stream ended without saying why |
    | `summary_cut_by_length` | cut by the output limit, also with twice the room or where there is none |
    | `summary_called_tool`, `summary_refused`, `summary_filtered` | what the model did instead |
    | `summary_unfinished` | ended for a reason that is no ordinary end |
    | `summary_thinking_only`, `summary_empty` | no text |
    | `summary_too_short` | under 32 characters for 1,000 tokens or more of material |
    | `summary_error_text` | a short error message in place of a summary of as much |
    | `summary_not_smaller` | not smaller than what it replaces |

    `summary_refused` covers a plain-text refusal too, judged narrowly: at most 400 characters, beginning
    like an apology, without a heading, for 1,000 tokens or more of material."""
    job = _Job(span, options)
    tally = _Tally(span.max_calls)
    ridden = yield from _ride(job, overflows, tally)
    if ridden:
        return _finished(span, ridden, tally)
    summary = job.previous
    pieces: list[Piece] | None = None
    while True:
        if pieces is None:
            start = job.done
            if start == len(job.blocks(0)):
                break
            if not tally.spare:
                raise CompactionFailed("summary_too_many_calls")
            pieces = job.plan(start, text_tokens(summary), tally.spare)
        if not pieces:
            break
        piece = pieces[0]
        reading = yield from _ask(job, piece, summary, overflows, tally)
        if reading.problem == "summary_overflow":
            job.halve(piece.tokens + text_tokens(summary))
            pieces = None
        elif reading.problem is not None:
            http = reading.problem == "summary_http_error"
            raise CompactionFailed(f"summary_http_{reading.status}" if http else reading.problem)
        else:
            summary = reading.text
            rest = pieces[1:]
            job.done = rest[0].start if rest else piece.stop
            # Planned anew with the room there really is, but for a plan that leaves out what comes next.
            as_planned = text_tokens(summary) <= job.carried_tokens and len(rest) <= tally.spare
            pieces = rest if as_planned and job.done != piece.stop else None
    return _finished(span, summary, tally)


def _ride(job: _Job, overflows: Callable[[Reply], bool], tally: _Tally) -> Generator[Call, Reply, str]:
    """The summary that the session's own request gives when it is continued; empty where that is not worth its price,
    not possible, or gave nothing of use."""
    span, options = job.span, job.options
    before = options.update_prompt if span.previous else options.prompt
    words = str(max(40, span.room * 3 // 5 // 10 * 10))
    request = f"<{ASKED}>\n{options.ride_prompt}\n\n{before.replace(_WORDS, words)}\n</{ASKED}>"
    ready = _ready(job, request, spare=tally.spare)
    if ready is None:
        return ""
    reply = yield Call(
        path=REQUESTS[span.conversation.dialect].PATH,
        body=ready.body,
        add_headers={"accept": "text/event-stream"} if ready.stream else {},
        drop_headers=_DROP_HEADERS,
        timeout=options.timeout,
    )
    reading = read(reply, ANSWERS[span.conversation.dialect].read_answer, overflows, span.size, ready.limit)
    tally.add(reading)
    http = reading.problem == "summary_http_error"
    hopeless = reading.problem == "summary_unreachable" or (http and reply.status not in _OUR_FAULT)
    if reading.problem is not None and (hopeless or not tally.spare):
        raise CompactionFailed(f"summary_http_{reading.status}" if http else reading.problem)
    tokens = text_tokens(mark(reading.text))
    fits = tokens < span.size and job.real(tokens) <= TOO_LONG * span.room
    return reading.text if reading.problem is None and fits else ""


def _ready(job: _Job, request: str, spare: int) -> Continued | None:
    """The ridden call, None where the transcript is shown instead."""
    span, options, ride = job.span, job.options, job.span.ride
    if ride is None or options.ride == "off" or not options.ride_prompt or not job.blocks(0):
        return None
    tokens = job.real(text_tokens(request) + _ENVELOPE)
    if options.ride == "auto" and (options.caching is None or cost(ride, options.caching, tokens) >= job.price(spare)):
        return None
    free = None if span.window is None else span.window - job.margin - ride.tokens - tokens
    if options.max_output is not None:
        free = options.max_output if free is None else min(free, options.max_output)
    return continued(ride, span.conversation, request, room=span.room, free=free, caching=options.caching)


def _finished(span: Span, summary: str, tally: _Tally) -> Summary:
    if not summary:
        raise CompactionFailed("summary_nothing")
    if text_tokens(mark(summary)) >= span.size:
        raise CompactionFailed("summary_not_smaller")
    return Summary(summary, tally.made, span.retained, tally.input_tokens, tally.output_tokens)


class _Tally:
    """Counts calls against their bound, and the tokens they were billed."""

    def __init__(self, bound: int) -> None:
        self.made = self.input_tokens = self.output_tokens = 0
        self._bound = bound

    @property
    def spare(self) -> int:
        """Calls still allowed."""
        return self._bound - self.made

    def add(self, reading: Reading) -> None:
        """Counts a call that was answered."""
        self.made += 1
        if reading.usage is not None:
            self.input_tokens += reading.usage.input_tokens
            self.output_tokens += reading.usage.output_tokens


class _Job:
    """One span's arithmetic: what is written at which level, and what fits. Sizes are estimated tokens
    unless named real."""

    def __init__(self, span: Span, options: Options) -> None:
        self.span, self.options = span, options
        self.done = 0
        """Blocks already in the summary."""
        self._limit: int | None = None
        self._level = 0
        self._material = read_items(span.values, REQUESTS[span.conversation.dialect])
        self._levels = levels(options.tool_result_chars)
        self._ratio = max(1.0, span.ratio)
        self._overhead = (
            text_tokens(options.system)
            + max(text_tokens(options.prompt), text_tokens(options.update_prompt))
            + text_tokens(fence("previous_summary", "") + fence("transcript", ""))
            + _ENVELOPE
        )
        if self._most_output() < LEAST_OUTPUT:
            raise CompactionFailed("summary_no_room")
        previous = split_marked(span.previous)[0] or span.previous.strip()
        # Too large to go along with a piece (a switch to a smaller model): it is folded like the transcript
        # itself.
        whole = self._room(0).first
        too_large = text_tokens(previous) > whole // 2
        self._earlier = earlier(previous, max(LEAST_PIECE, whole // 2)) if too_large else ()
        self.previous = "" if too_large else previous
        self.previous_tokens = text_tokens(self.previous)
        self.blocks: Callable[[int], tuple[Block, ...]] = cache(self._write)

    @property
    def carried_tokens(self) -> int:
        """What is set aside for the running summary in every call after the first."""
        return int(self._planned_output() / self._ratio)

    def plan(self, start: int, previous_tokens: int, calls: int) -> list[Piece]:
        """The pieces from block `start` on, in at most `calls` calls."""
        room = self._room(previous_tokens)
        if min(room.first, room.later) < LEAST_PIECE:
            # A single call needs no room for a running summary after it.
            if room.first < LEAST_PIECE:
                raise CompactionFailed("summary_no_room")
            room, calls = Room(room.first, room.first), 1
        # What was tightened once stays so: a plan made anew must not spend the calls it saved.
        self._level, pieces = plan(self.blocks, range(self._level, len(self._levels)), start, room, calls)
        return pieces

    def price(self, calls: int) -> float:
        """Full-price tokens that the calls of a transcript read, as they are planned."""
        try:
            pieces = self.plan(0, self.previous_tokens, calls)
        except CompactionFailed:
            return 0.0
        finally:
            self._level = 0
        carried = self.previous_tokens + (len(pieces) - 1) * self.carried_tokens
        return self.real(sum(piece.tokens for piece in pieces) + len(pieces) * self._overhead + carried)

    def halve(self, shown: int) -> None:
        """Takes a refusal for length to heart: no later call shows more than half of what that one did."""
        self._limit = shown // 2
        if shown <= SMALLEST_HALF:
            raise CompactionFailed("summary_overflow", overflow=True)

    def output_limit(self, prompt_tokens: int, wanted: int | None = None) -> int:
        """Real tokens to ask for: what the artifact may take, the model may write and the window leaves
        free.

        Less than `LEAST_OUTPUT` means no. `wanted` replaces the artifact's room, 0 is returned where it
        can't be had."""
        bounds = [wanted or self.span.room, self.options.max_output]
        if self.span.window is not None:
            bounds.append(self.span.window - self.margin - self.real(prompt_tokens))
        least = min(bound for bound in bounds if bound is not None)
        return 0 if wanted and least < wanted else least

    def _write(self, level: int) -> tuple[Block, ...]:
        return self._earlier + write(self._material, self._levels[level])

    def _room(self, previous_tokens: int) -> Room:
        if self.span.window is None:
            # The client sent these items, and more, in one request: a call of that size is worth trying.
            first = later = self.span.size + self.span.size // 4 + LEAST_PIECE
        else:
            free = self.span.window - self.margin - self._planned_output()
            free_of_overhead = int(free / self._ratio) - self._overhead
            first = free_of_overhead - previous_tokens
            later = free_of_overhead - self.carried_tokens
        if self._limit is not None:
            first = min(first, max(LEAST_PIECE, self._limit - previous_tokens))
            later = min(later, max(LEAST_PIECE, self._limit - self.carried_tokens))
        return Room(first, later)

    def _planned_output(self) -> int:
        """Real tokens set aside for an answer while dividing: never more than a quarter of the window."""
        most = self._most_output()
        return most if self.span.window is None else min(most, max(LEAST_OUTPUT, self.span.window // 4))

    def _most_output(self) -> int:
        return min(self.span.room, self.options.max_output or self.span.room)

    @property
    def margin(self) -> int:
        """Real tokens left free: the estimate may be a little low, and a prompt of exactly the window is
        refused."""
        return max(32, (self.span.window or 0) // 32)

    def real(self, tokens: int) -> int:
        """Real tokens that so many estimated ones have proved to be."""
        return -int(-tokens * self._ratio // 1)


def _ask(
    job: _Job, piece: Piece, summary: str, overflows: Callable[[Reply], bool], tally: _Tally
) -> Generator[Call, Reply, Reading]:
    """One piece's call, repeated once with twice the output where it was cut, and once where a field was
    refused."""
    span, options = job.span, job.options
    read_answer = ANSWERS[span.conversation.dialect].read_answer
    material = _material(piece, summary)
    instructions = options.update_prompt if summary else options.prompt
    prompt_tokens = text_tokens(options.system) + text_tokens(material + instructions) + _ENVELOPE
    limit = job.output_limit(prompt_tokens)
    if limit < LEAST_OUTPUT:
        raise CompactionFailed("summary_no_room")
    change: Remedy | None = None
    doubled = False
    while True:
        words = str(max(40, limit * 3 // 5 // 10 * 10))
        body = _body(job, material + instructions.replace(_WORDS, words), limit, change)
        reply = yield Call(
            path=REQUESTS[span.conversation.dialect].PATH,
            body=body,
            add_headers={"accept": "text/event-stream"},
            drop_headers=_DROP_HEADERS,
            timeout=options.timeout,
        )
        limit_field = _limit_field(body)
        material_tokens = piece.tokens + text_tokens(summary)
        reading = read(reply, read_answer, overflows, material_tokens, limit if limit_field else None)
        tally.add(reading)
        if not tally.spare:
            return reading
        if reading.problem == "summary_cut_by_length" and not doubled:
            doubled, twice = True, job.output_limit(prompt_tokens, 2 * limit)
            if twice:
                limit = twice
                continue
        if reading.problem == "summary_http_error" and change is None:
            change = _remedy(job, reply, limit_field, limit)
            if change is not None:
                limit = change.limit or limit
                continue
        return reading


def _material(piece: Piece, summary: str) -> str:
    before = fence("previous_summary", escape(summary)) + "\n\n" if summary else ""
    return f"{before}{fence('transcript', piece.text)}\n\n"


def _body(job: _Job, prompt: str, limit: int, change: Remedy | None) -> bytes:
    span, options = job.span, job.options
    fields: dict[str, JsonValue] = {**_limit_as_named(span, options, limit), **options.extra}
    fields |= dict.fromkeys(options.omit)
    if change is not None:
        fields |= dict.fromkeys(change.drop)
        if change.limit_name:
            fields[change.limit_name] = limit
    return REQUESTS[span.conversation.dialect].text_request(
        model=span.model or span.conversation.model,
        system=options.system,
        prompt=prompt,
        max_output=limit,
        stream=True,
        like=span.conversation,
        extra=fields,
    )


def _limit_as_named(span: Span, options: Options, limit: int) -> dict[str, JsonValue]:
    """The output limit under the provider's own name for it, in place of the usual one; nothing where the client's
    request has shown the name."""
    if not options.limit_key or any(name in span.conversation.fields for name in _LIMIT_FIELDS):
        return {}
    return {**dict.fromkeys(_LIMIT_FIELDS), options.limit_key: limit}


def _limit_field(body: bytes) -> str:
    sent = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return next((name for name in _LIMIT_FIELDS if name in sent), "")


def _remedy(job: _Job, reply: Reply, limit_field: str, limit: int) -> Remedy | None:
    optional = frozenset(name for name, value in job.options.extra.items() if value is not None)
    return remedy(reply, job.span.conversation.dialect, limit_field, limit, optional, LEAST_OUTPUT)
