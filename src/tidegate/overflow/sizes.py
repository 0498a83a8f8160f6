"""Reads sizes from a wording nobody has listed: which number is the prompt, the output, the limit.

Knows the words that stand beside numbers in English refusals; claims nothing where they are ambiguous. Called by
`classify` for evidence that no pattern of the provider files covers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NUMBER = r"(\d[\d,]{2,11})"
_COUNT = re.compile(rf"(?<![\w.,]){_NUMBER}(?!\w)")
_SUM = re.compile(rf"{_NUMBER} \+ {_NUMBER} > {_NUMBER}")
_VERSUS = re.compile(rf"{_NUMBER}(?: tokens?)? (?:>|of|/|out of) {_NUMBER}")
_OTHER_UNIT = re.compile(r" ?(?:characters|chars|bytes|kb|mb|seconds|ms|minutes|images|pages|messages|items|tools|%)")
_AFTER = re.compile(
    r" ?(?:tokens? )?(?:(?:in|of|from|for) )?(?:the |your )?(?:text |tool |requested )?"
    r"(input|prompt|messages|completion|output|maximum|max\b|limit)"
)
_BEFORE = re.compile(
    r"(?P<limit>limit|max|window|context (?:length|size)|n_ctx|capacity|supports|allow(?:ed|s)|up to|at most|"
    r"less than|over the)"
    r"|(?P<output>completion|output|max_tokens|reply|generat)"
    r"|(?P<total>total|requested)"
    r"|(?P<input>prompt|input|messages|contain|\bhas\b|given|received|\bgot\b|current|count|resulted|passed|\buses?\b|length)"
)
_ROLE_AFTER = {
    "input": "input", "prompt": "input", "messages": "input", "completion": "output", "output": "output",
    "maximum": "limit", "max": "limit", "limit": "limit",
}  # fmt: skip


def sizes(text: str) -> Mapping[str, int]:
    """Numbers by role (`input`, `output`, `total`, `limit`); empty where they don't show something over a limit.

    `text` is lower case; its first 2,000 characters are read.
    """
    text = text[:2000]
    added = _SUM.search(text)
    if added:
        return dict(zip(("input", "output", "limit"), map(_whole, added.groups()), strict=True))
    versus = _VERSUS.search(text)
    if versus and _whole(versus[1]) > _whole(versus[2]):
        return {"input": _whole(versus[1]), "limit": _whole(versus[2])}
    read: dict[str, int] = {}
    for found in _COUNT.finditer(text):
        if _OTHER_UNIT.match(text, found.end()):
            continue
        role = _role(text, found.start(), found.end())
        if role:
            read.setdefault(role, _whole(found[1]))
    return read if _over(read) else {}


def _role(text: str, start: int, end: int) -> str:
    after = _AFTER.match(text, end, end + 40)
    if after:
        return _ROLE_AFTER[after[1]]
    before = text[max(0, start - 40) : start]
    last = ""
    for word in _BEFORE.finditer(before):
        last = word.lastgroup or ""
    return last


def _over(read: Mapping[str, int]) -> bool:
    limit = read.get("limit")
    if limit is None:
        return False
    together = read.get("total", read.get("input", 0) + read.get("output", 0))
    return max(read.get("input", 0), together) > limit


def _whole(digits: str) -> int:
    return int(digits.replace(",", ""))
