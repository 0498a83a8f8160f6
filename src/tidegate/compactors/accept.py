"""Reads the reply to a summary call: a usable summary, or the short name of what is wrong with it.

Knows the shared shape of answers, not the plan. Called by the summary strategy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tidegate.compactors.strategy import Reply
from tidegate.wire.conversation import Answer, DialectName, FinishReason, Usage

Problem: TypeAlias = Literal[
    "summary_unreachable", "summary_http_error", "summary_overflow", "summary_stream_error",
    "summary_cut_off", "summary_cut_by_length", "summary_called_tool", "summary_refused", "summary_filtered",
    "summary_unfinished", "summary_thinking_only", "summary_empty", "summary_too_short",
    "summary_error_text",
]  # fmt: skip

_ENDINGS: Final[dict[FinishReason, Problem]] = {
    "length": "summary_cut_by_length",
    "window": "summary_overflow",
    "tool_call": "summary_called_tool",
    "refusal": "summary_refused",
    "filter": "summary_filtered",
    "error": "summary_stream_error",
    "compaction": "summary_unfinished",
    "other": "summary_unfinished",
}

# A refusal in plain words: short, begins like an apology, has no heading, and stands for much: all four.
_APOLOGY: Final = re.compile(
    r"\W*(?:(?:i['’]?m|i am) (?:really |very |so )?sorry|sorry|i apologi[sz]e|unfortunately,? i|as an ai\b"
    r"|i (?:can['’]?t|cannot|can not|won['’]?t|will not|(?:am|['’]m) (?:unable|not able))"
    r"|i['’]m (?:unable|not able))",
    re.IGNORECASE,
)
_APOLOGY_AT_MOST: Final = 400
"""Characters."""
# An error told as the answer, which gateways and local servers do; as short and as bare as an apology.
_ERROR: Final = re.compile(
    r"\W*(?:(?:(?:api|http|internal|upstream|server|unexpected|fatal) )*error(?:\W{0,2}[:(]| (?:code|occurred|\d))"
    r"|traceback \(most recent|<(?:!doctype|html)\b|(?:request|upstream|generation) (?:failed|timed out)"
    r"|[45]\d\d (?:bad|internal|service|too many|gateway)\b)",
    re.IGNORECASE,
)
_LARGE: Final = 1000
"""Estimated tokens of material from which an answer can be too short to be a summary of it."""
_TOO_SHORT: Final = 32
"""Characters: less than that says nothing of a large material (`Done.`, `OK, I will continue.`)."""

_THOUGHTS: Final = re.compile(r"\s*<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_WRAPPER: Final = re.compile(
    r"(?:```[a-z]*\n(?P<code>.*)\n```|<(?P<tag>summary|previous_summary)>(?P<inner>.*)</(?P=tag)>)\Z",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply, judged. `text` is a summary only where `problem` is None."""

    problem: Problem | None
    text: str = field(default="", repr=False)
    status: int = 0
    usage: Usage | None = None


def read(
    reply: Reply,
    read_answer: Callable[[bytes], Answer],
    overflows: Callable[[Reply], bool],
    material_tokens: int,
    limit: int | None,
) -> Reading:
    """Judges a reply. `material_tokens` is the estimated size of what the call was to summarise, `limit` the output
    limit that was sent, None for none."""
    if reply.status == 0:
        return Reading("summary_unreachable")
    if not 200 <= reply.status < 300:
        problem: Problem = "summary_overflow" if overflows(reply) else "summary_http_error"
        return Reading(problem, status=reply.status)
    answer = read_answer(reply.body)
    if answer.error:
        problem = "summary_overflow" if overflows(reply) else "summary_stream_error"
        return Reading(problem, status=reply.status, usage=answer.usage)
    text = tidy(answer.text)
    found = _badly_ended(answer, limit) or _unlike_a_summary(answer, text, material_tokens)
    return Reading(found, text, reply.status, answer.usage)


def _badly_ended(answer: Answer, limit: int | None) -> Problem | None:
    if answer.tool_calls:
        return "summary_called_tool"
    if answer.refusal:
        return "summary_refused"
    if answer.finish is None:
        return "summary_cut_off"
    if answer.finish != "stop":
        return _ENDINGS[answer.finish]
    # llama.cpp's /v1/responses says `completed` of an answer that its limit cut.
    if limit is not None and answer.usage is not None and answer.usage.output_tokens >= limit:
        return "summary_cut_by_length"
    return None


def _unlike_a_summary(answer: Answer, text: str, material_tokens: int) -> Problem | None:
    if not text:
        return "summary_thinking_only" if answer.thinking or answer.text.strip() else "summary_empty"
    if material_tokens >= _LARGE:
        if len(text) <= _APOLOGY_AT_MOST and "#" not in text and _APOLOGY.match(text):
            return "summary_refused"
        if len(text) <= _APOLOGY_AT_MOST and "#" not in text and _ERROR.match(text):
            return "summary_error_text"
        if len(text) < _TOO_SHORT:
            return "summary_too_short"
    return None


def tidy(text: str) -> str:
    """The summary without thoughts written into the text (`<think>…</think>`, unclosed ones too), and
    without a code fence or tag around the whole."""
    text = _THOUGHTS.sub("", text, count=1) if _THOUGHTS.match(text) else text
    text = text.strip()
    wrapped = _WRAPPER.match(text)
    if wrapped is not None:
        text = (wrapped["code"] if wrapped["code"] is not None else wrapped["inner"]).strip()
    return text


_OTHER_NAME: Final[dict[tuple[DialectName, str], str]] = {
    # A server that refuses the name of the output limit: what to try instead; empty: no limit at all.
    ("chat", "max_tokens"): "max_completion_tokens",
    ("chat", "max_completion_tokens"): "max_tokens",
    ("responses", "max_output_tokens"): "",
}
_NOT_TAKEN: Final = re.compile(
    r"unsupported|not (?:supported|permitted|allowed|recogni[sz]ed)|unknown|unrecogni[sz]ed|unexpected"
    r"|extra inputs|extra fields|invalid param|instead",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"(?<![\w.-])\d{2,7}(?![\w-]|\.\d)")


@dataclass(frozen=True, slots=True)
class Remedy:
    """How to send the call once more after a refused parameter."""

    drop: frozenset[str] = frozenset()
    """Fields to leave out."""
    limit_name: str = ""
    """Another name for the output limit, empty to keep it."""
    limit: int | None = None
    """A smaller output limit."""


def remedy(
    reply: Reply, dialect: DialectName, limit_field: str, limit: int, optional: frozenset[str], least: int
) -> Remedy | None:
    """What to change after a 400 or 422 that names a field we sent; None where nothing we know helps.

    `limit_field` is the output limit's name in the body, `limit` its value, `optional` fields that may
    simply go, and `least` the smallest limit worth trying (a model's own maximum is often stated in the
    refusal)."""
    if reply.status not in (400, 422):
        return None
    words = reply.body.decode("utf-8", "replace")
    for name in sorted(optional):
        if _named(name, words) and _NOT_TAKEN.search(words):
            return Remedy(drop=frozenset({name}))
    if not _named(limit_field, words):
        return None
    if _NOT_TAKEN.search(words) and (dialect, limit_field) in _OTHER_NAME:
        other = _OTHER_NAME[dialect, limit_field]
        return Remedy(drop=frozenset({limit_field}), limit_name=other)
    smaller = [int(number) for number in _NUMBER.findall(words) if least <= int(number) < limit]
    return Remedy(limit=max(smaller)) if smaller else None


def _named(name: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words) is not None
