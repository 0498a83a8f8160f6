"""Reads sizes from a wording nobody has listed: which number is the prompt, the output, the limit.

Knows the words that stand beside numbers in English refusals; claims nothing where they are ambiguous. Called by
`classify` for evidence that no pattern of the provider files covers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NUMBER = r"(\d[\d,]{2,11}|\d{1,4}k)"
_COUNT = re.compile(rf"(?<![\w.,-]){_NUMBER}(?!\w)")
_SUM_OVER = re.compile(
    rf"(?<![\w.,-]){_NUMBER} \+ (\d[\d,]{{0,11}}) ?(?:>=?|is (?:greater|larger|more) than)"
    rf" ?(?:[a-z_]{{1,24}} )?{_NUMBER}"
)
_VERSUS = re.compile(rf"(?<![\w.,-]){_NUMBER}(?: tokens?)? ?(?:>=?|of|/|out of) ?{_NUMBER}(?!\w)")
_OTHER_UNIT = re.compile(
    r" ?(?:characters?|chars|bytes|kb|mb|gb|pixels|seconds|ms|minutes|images?|pages|messages|items|tools|requests|%)"
)
_AFTER = re.compile(
    r" ?(?:tokens? )?(?:(?:in|of|from|for) )?(?:the |your )?(?:text |tool |requested )?"
    r"(input|prompt|messages|completion|output|maximum|max\b|limit)"
)
_BEFORE = re.compile(
    r"(?P<limit>(?:max(?:imum|imal)?|limit|supported|configured|allowed|available|up to|at most|less than|longer than|"
    r"over the|only supports|(?:can ?not|not|must not|can't) exceed|context|window|n_ctx|max_seq_len|capacity)"
    r"(?:[ _](?:allowed|supported|configured|model|input|prompt|context|sequence|total|token|window|length|size|limit|"
    r"tokens?|is|of|only))*)"
    r"|(?P<output>completion|output|max_tokens|reply|generat)"
    r"|(?P<total>total|requested|will take)"
    r"|(?P<input>prompt|input|sequence|messages?\b|contain|\bhas\b|given|received|\bgot\b|current|count|resulted|passed|"
    r"\buses?\b|number of tokens|token indices|n_keep|required|request length|request \()"
)
_TOGETHER = re.compile(
    r"(?:prompt|input|inputs|messages) (?:and|plus|\+) (?:prediction|completion|output|max_|generat)"
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
    added = _SUM_OVER.search(text)
    if added:
        return dict(zip(("input", "output", "limit"), map(_whole, added.groups()), strict=True))
    versus = _VERSUS.search(text)
    if versus and _whole(versus[1]) > _whole(versus[2]):
        return {"input": _whole(versus[1]), "limit": _whole(versus[2])}
    read = _by_words(text)
    return read if _over(read) else {}


def stated_limit(text: str) -> Mapping[str, int]:
    """The one size a text states, where it is a limit in tokens: `the context window (272000 tokens) was exceeded`."""
    text = text[:2000]
    counts = list(_COUNT.finditer(text))
    if len(counts) != 1:
        return {}
    start, end = counts[0].span()
    read = _by_words(text) if "token" in text[max(0, start - 48) : end + 8] else {}
    return read if set(read) == {"limit"} else {}


def _by_words(text: str) -> dict[str, int]:
    read: dict[str, int] = {}
    before = 0
    for found in _COUNT.finditer(text):
        if not _OTHER_UNIT.match(text, found.end()):
            role = _role(text, before, found.start(), found.end())
            if role:
                read.setdefault(role, _whole(found[1]))
        before = found.end()
    if "input" in read and "output" not in read and "total" not in read and _TOGETHER.search(text):
        read["total"] = read.pop("input")
    return read


def _role(text: str, before: int, start: int, end: int) -> str:
    """The role of the number at `start`, from what stands right after it, else last between it and the one before."""
    after = _AFTER.match(text, end, end + 40)
    if after:
        return _ROLE_AFTER[after[1]]
    last = ""
    for word in _BEFORE.finditer(text, max(before, start - 48), start):
        last = word.lastgroup or ""
    return last


def _over(read: Mapping[str, int]) -> bool:
    limit = read.get("limit")
    if limit is None:
        return False
    together = read.get("total", read.get("input", 0) + read.get("output", 0))
    return max(read.get("input", 0), together) > limit


def _whole(digits: str) -> int:
    number = digits.replace(",", "")
    return int(number[:-1]) * 1000 if number.endswith("k") else int(number)
