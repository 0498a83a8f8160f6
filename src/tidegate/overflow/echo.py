"""Cuts out of a refusal's words what repeats the request or the model: quoted and bracketed, or after "user said".

Knows the words that introduce an echo, and those that introduce another refusal (`message`, `error`): what those quote
is kept. Judges nothing. Called by `unwrap`.
"""

from __future__ import annotations

import re

_TRAILERS = (
    "invalid user message=", "input_value=", "{'input':", ", 'input':", '{"input":', ',"input":', ', "input":',
    "failed_generation", "received model group=", "context_window_fallbacks=", "available model group fallbacks",
    "set 'context_window_fallback",
)  # fmt: skip
"""Where an echo of the request or a gateway's own trailer begins, and runs to the end."""
_INTRODUCES = (
    "content", "messages", "message", "input", "prompt", "arguments", "argument", "args", "text", "value", "query",
    "request", "payload", "instructions", "system", "generat", "completion", "string", "token", "near", "received",
    "got", "schema", "excerpt", "snippet", "quote", "reply", "phrase",
)  # fmt: skip
"""Words right before what the client sent, or the model said."""
_KEYED = re.compile(r"""(?:s|ed text|ion)?['"]? ?[:=] ?(['"“[{«])""")
"""`content: '…`, `"messages":[…`."""
_QUOTED = re.compile(r"""s? (['"“«])""")
"""`at message '…`."""
_FROM_HERE = re.compile(
    r"\buser(?:'s)? (?:said|says|wrote|asked|message|prompt|input|text|query|content)(?: (?:is|was|said))? ?[:=]"
    r"|\bjson at position \d{1,9}\b|\b(?:tool|function)(?:[ _](?:call|result|output|response))?\b.{0,60} "
    r"(?:reported|returned|said|contained|printed|wrote) ?:"
)
"""What follows is not the provider's, to the end."""
_CLOSING = {"“": "”", "«": "»", "[": "]", "{": "}"}
_SHORTEST = 16
"""Characters that a quotation has at least, to be more than a name."""
_SHORT = 400
_OPENING = re.compile(r"""[ :=(]['"“«][^'"”»\n]{15}|[:=] ?['"]?.?['"]|[:=] ?[\[{]""")
"""A quotation longer than a name, or with quotes in it; a bracket."""
_MOST = 24
_ENDS = re.compile(r"[,;.)\]}\n]|$")
_LETTER = re.compile(r"[a-z]")


def without_echo(text: str) -> str:
    """The text, lower case, without what it repeats."""
    if len(text) < _SHORTEST:
        return text
    if "=" in text or "'" in text or '"' in text:
        text = text[: min((at for marker in _TRAILERS if (at := text.find(marker)) >= 0), default=len(text))]
    if ":" in text and ("user" in text or "tool" in text or "function" in text or "json at" in text):
        found = _FROM_HERE.search(text)
        text = text[: found.start()] if found else text
    if not _may_quote(text) or (len(text) < _SHORT and not _OPENING.search(text)):
        return text
    return _without_quotations(text)


def _may_quote(text: str) -> bool:
    """Whether a quote or a bracket opens anywhere: not that of "model's"."""
    if "'" in text or '"' in text:
        return (
            " '" in text or ' "' in text or ":'" in text or ':"' in text or "='" in text or '="' in text
            or ":[" in text or ": [" in text or ":{" in text or ": {" in text
        )  # fmt: skip
    return ": [" in text or ": {" in text or "“" in text or "«" in text


def _without_quotations(text: str) -> str:
    cuts: list[tuple[int, int]] = []
    for word in _INTRODUCES:
        if word in text:
            cuts += _quotations(text, word)
    if not cuts:
        return text
    cuts.sort()
    kept, end = [], 0
    for start, stop in cuts:
        if start >= end:
            kept.append(text[end:start])
        end = max(end, stop)
    return " ".join((*kept, text[end:]))


def _quotations(text: str, word: str) -> list[tuple[int, int]]:
    """Where what the word introduces stands, at a few places."""
    cuts: list[tuple[int, int]] = []
    at = text.find(word)
    for _ in range(_MOST):
        if at < 0:
            break
        end = at + len(word)
        if not (at and _LETTER.match(text, at - 1)):
            found = _KEYED.match(text, end) if word != "message" else None  # another refusal may follow `message:`
            found = found or (_QUOTED.match(text, end) if not text.endswith("error ", 0, at) else None)
            cut = _span(text, found.start(1)) if found else None
            if cut:
                cuts.append(cut)
                end = max(end, cut[1])
        at = text.find(word, end)
    if at >= 0:
        cuts.append((at, len(text)))  # so many are an echo by themselves
    return cuts


def _span(text: str, opening: int) -> tuple[int, int] | None:
    """From an opening quote or bracket to where it closes, else to the end; None where it is too short to be more than
    a name."""
    mark = text[opening]
    closing = _CLOSING.get(mark, mark)
    close = text.rfind(closing, opening + 1)
    if mark not in "[{" and close >= 0:
        at = text.find(closing, opening + 1)
        for _ in range(_MOST):
            if at < 0:
                break
            if text[at - 1] != "\\" and _ENDS.match(text, at + 1):
                close = at
                break
            if at - opening < _SHORTEST and text.startswith(" ", at + 1):
                return None  # a short name in quotes
            at = text.find(closing, at + 1)
    stop = len(text) if close < 0 else close + 1
    return None if stop - opening < _SHORTEST or " " not in text[opening : opening + 200] else (opening, stop)
