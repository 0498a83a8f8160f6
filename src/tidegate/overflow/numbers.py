"""Reads the numbers of a refusal, and weighs them: does the prompt fit, and is it only the answer that does not?

Knows what a number's role means, not which words gave it that role (the rules do). Called by `classify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.overflow.verdict import Kind, Sent

_FIELD_ROLES = {
    "n_prompt_tokens": "input", "prompt_tokens": "input", "input_tokens": "input", "num_prompt_tokens": "input",
    "n_ctx": "window", "max_model_len": "window", "context_length": "window", "context_window": "window",
    "max_context_length": "window", "max_context_tokens": "window", "context_limit": "window",
    "max_input_tokens": "limit", "max_prompt_tokens": "limit", "input_limit": "limit",
}  # fmt: skip
"""Fields beside an error's message, by the role of their number."""

_FITS = 0.9
"""A prompt of this share of the window fits with room."""
_ROOM = 0.04
_OF_ASKED = 0.75
"""… and so does one that leaves this share of the window, and this share of the output that was asked for."""
_NEAR = 0.8
"""What was sent is near the window from this share on: tokenisers and estimates differ by that much."""
_LEFT_OVER = 16
"""A negative output limit of at least this size was computed from the prompt; a client's own is -1 or so."""


_UNKNOWN = Sent()
_NO_SIZES = frozenset({"more_input", "excess", "allowance", "requested"})
"""Roles that are merged into others, or that are of a rate."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A refusal's numbers by role (see `pattern.ROLES`), tokens; None where not stated."""

    input: int | None = None
    floor: int | None = None
    total: int | None = None
    output: int | None = None
    window: int | None = None
    limit: int | None = None
    cap: int | None = None
    short: int | None = None

    @property
    def bound(self) -> int | None:
        """What prompt and output are held against together, where it is stated; else what the prompt is."""
        return self.window or self.limit


NONE = Numbers()


@dataclass(frozen=True, slots=True)
class Weighed:
    """What numbers make of a refusal that speaks of the window."""

    kind: Kind
    certain: bool
    room: int | None = None
    """Output tokens that would fit."""


def gather(read: Mapping[str, int], fields: Mapping[str, int]) -> Numbers:
    """Numbers of a matched pattern, completed by those that stand in fields of their own."""
    if not read and not fields:
        return NONE
    found = dict(read)
    for name, number in fields.items():
        role = _FIELD_ROLES.get(name)
        if role and number > 0:
            found.setdefault(role, number)
    if "more_input" in found and "input" in found:
        found["input"] += found.pop("more_input")
    if "excess" in found and "limit" in found:
        found.setdefault("input", found["limit"] + found["excess"])
    if "total" in found and "output" in found:
        found.setdefault("input", found["total"] - found["output"])
    if "limit" in found and "window" in found:
        _settle_limit(found)
    return Numbers(**{role: number for role, number in found.items() if role not in _NO_SIZES})


def _settle_limit(found: dict[str, int]) -> None:
    """Of a window and a limit: vLLM stops counting one token past the longest prompt it allows, and that length is what
    this request left for its prompt, no limit of the model's."""
    limit = found["limit"]
    if found.get("input") == limit + 1:
        found["floor"] = found.pop("input")
    if limit == found["window"] - found.get("output", 0) and "output" in found:
        del found["limit"]


def weigh(numbers: Numbers, sent: Sent | None, *, certain: bool = True) -> Weighed:
    """Whether the prompt does not fit (overflow) or only the output asked for does not (output_limit)."""
    sent = sent or _UNKNOWN
    if numbers.short is not None:
        return _left_over(numbers.short, sent)
    asked = numbers.output if numbers.output is not None else sent.output_limit
    prompt, exact = _prompt(numbers, sent, asked)
    bound = numbers.bound
    if prompt is None or bound is None:
        return _without_numbers(numbers, sent, certain=certain)
    if prompt >= bound:
        return Weighed("overflow", certain=exact or prompt == numbers.floor)
    if not asked:
        return Weighed("overflow", certain=False)
    room = bound - prompt if prompt + asked > bound else asked * 9 // 10
    if prompt <= _FITS * bound or (room >= _ROOM * bound and room > _OF_ASKED * asked):
        return Weighed("output_limit", certain=exact, room=room)
    return Weighed("overflow", certain=exact)


def near_window(sent: Sent | None) -> bool:
    """What was sent is near or over the known window."""
    return bool(sent and sent.tokens and sent.window and sent.tokens >= _NEAR * sent.window)


def _prompt(numbers: Numbers, sent: Sent, asked: int | None) -> tuple[int | None, bool]:
    """The prompt's size and whether it is stated: not where it is our own estimate, or a total less our own limit."""
    if numbers.input is not None:
        return numbers.input, True
    if numbers.total is not None:
        return numbers.total - (asked or 0), False
    if numbers.floor is not None:
        bound = numbers.bound or 0
        if numbers.floor >= bound or not numbers.output:
            return max(numbers.floor, bound), True
        if sent.tokens is not None:
            return max(sent.tokens, numbers.floor), False
    return None, False


def _without_numbers(numbers: Numbers, sent: Sent, *, certain: bool) -> Weighed:
    """No size is stated: the output asked for, or what was sent, may still tell."""
    bound = numbers.bound
    if numbers.floor is not None and bound and numbers.output:
        likely: Kind = "output_limit" if numbers.output * 2 >= bound else "overflow"
        return Weighed(likely, certain=False)
    window = bound or sent.window
    if window and sent.tokens and sent.output_limit:
        fits = sent.tokens <= (_NEAR - 0.1) * window
        if fits and sent.tokens + sent.output_limit > window:
            return Weighed("output_limit", certain=False, room=window - sent.tokens)
    return Weighed("overflow", certain=certain)


def _left_over(short: int, sent: Sent) -> Weighed:
    """`max_tokens must be at least 1, got -46771`: the window less the prompt, unless the client asked for it."""
    if sent.output_limit is not None and sent.output_limit <= 0:
        return Weighed("other_4xx", certain=True)
    if short >= _LEFT_OVER or sent.output_limit is not None:
        return Weighed("overflow", certain=sent.output_limit is not None)
    return Weighed("other_4xx", certain=False)
