"""Reads sizes from a wording nobody has listed: which number is the prompt, the output, the limit.

Knows the words that stand beside numbers in English refusals; claims nothing where they are ambiguous. Called by
`classify` for evidence that no pattern of the provider files covers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidegate.overflow.counts import NUMBER, whole

_COUNT = re.compile(rf"(?<![a-z0-9_.,-])({NUMBER})(?![a-z0-9_])")
_SUM_OVER = re.compile(
    rf"(?<![\w.,-])({NUMBER}) \+ (?:[a-z_]{{1,24}} )?({NUMBER}) ?(?:>=?|is (?:greater|larger|more) than)"
    rf" ?(?:[a-z_]{{1,24}} ){{0,3}}({NUMBER})"
)
_VERSUS = re.compile(rf"(?<![\w.,-])({NUMBER})(?: tokens?)? ?(?:>=?|of|/|out of) ?({NUMBER})(?!\w)")
_LEAST = 100
"""Smaller numbers are of other things."""
_LEAST_LIMIT = 256
"""No window is smaller: a limit that is, is one of other things."""
_OTHER_UNIT = re.compile(
    r" ?-?(?:characters?|chars|words?|bytes|[kmg]i?b\b|pixels|milliseconds|seconds?|secs?|ms|s\b|minutes?|mins?|hours?|"
    r"hrs?|days?|weeks?|images?|frames|pages|documents|files|messages\b(?! tokens?)|items|elements|entries|rows|"
    r"records|lines|tools|functions|properties|requests|calls|users|keys|conversations|dimensions|credits?|dollars|usd|%)"
)
_OTHER_NOUN = re.compile(
    r"(?:\b(?:tools?|functions?|images?|messages?|items?|rows?|files?|requests?|words?|characters?|bytes|properties|"
    r"stop sequences|dimensions?|by|logprobs|batch size|seed|port|line|column|position|index|at|code|error|status|http|"
    r"version|id) (?:count |number |limit )?(?:is |of )?|[$#€@])$"
)
"""What a number is of, right before it."""
_AFTER = re.compile(
    r"[ -]?(?:tokens? )?(?:(?:in|of|from|for) )?(?:the |your )?(?:text |tool |requested )?"
    r"(input|prompt|messages|completion|output|max(?:imum)? (?:new )?tokens|maximum|max\b|limit|allowed|available|"
    r"supported|permitted|"
    r"(?:were |was |are )?(?:provided|given|sent|received|used))"
)
_BEFORE = re.compile(
    r"(?P<limit>(?:max(?:imum|imal)?|limit|supported|configured|allowed|available|up to|at most|less than|longer than|"
    r"more than the|"
    r"over the|only (?:supports|has|holds|takes|fits)|\bvs\.?|accepts|erlaubt|máximo|massimo|limite|최대|"
    r"максим[а-я]{2,4}|最大|上限|限制|(?:can ?not|not|must not|can't) exceed|context|window|n_ctx|max_seq_len|capacity)"
    r"(?:[ _](?:allowed|supported|configured|model|input|prompt|context|sequence|total|token|window|length|size|limit|"
    r"tokens?|is|of|only))*)"
    r"|(?P<output>completion|output|max_tokens|reply|generat)"
    r"|(?P<total>total|requested|will take)"
    r"|(?P<input>prompt|input|sequence|messages?\b|contain|\bhas\b|given|received|\bgot\b|current|count|resulted|passed|"
    r"\buses?\b|number of tokens|token indices|n_keep|required|request length|request \(|\bsent\b|provided|needs?\b|"
    r"anfrage|eingabe|requête|entrée|entrada|mensaje|запрос|длина|输入|請求|请求|token数|入力|프롬프트|입력)"
)
_TOGETHER = re.compile(
    r"(?:prompt|input|inputs|messages) (?:and|plus|\+) (?:prediction|completion|output|max_|generat)"
)
_ROLE_AFTER = {
    "input": "input", "prompt": "input", "messages": "input", "completion": "output", "output": "output",
    "maximum": "limit", "max": "limit", "limit": "limit", "allowed": "limit", "available": "limit",
    "supported": "limit", "permitted": "limit",
}  # fmt: skip


def sizes(text: str) -> Mapping[str, int]:
    """Numbers by role (`input`, `output`, `total`, `limit`); empty where they don't show something over a limit.

    `text` is lower case; its first 2,000 characters are read.
    """
    text = text[:2000]
    added = _SUM_OVER.search(text)
    if added and (summed := _whole_ones(added)):
        return dict(zip(("input", "output", "limit"), summed, strict=True))
    for versus in _VERSUS.finditer(text):
        pair = _whole_ones(versus)
        if pair and not _other(text, versus.start(), versus.end()) and pair[0] >= pair[1] >= _LEAST_LIMIT:
            return {"input": pair[0], "limit": pair[1]}
    read = _by_words(text)
    return read if _over(read) else {}


def _whole_ones(found: re.Match[str]) -> list[int]:
    """The numbers of a match; none where one can't be read."""
    numbers = [
        whole(found[group], found.string[found.end(group) : found.end(group) + 4])
        for group in range(1, found.re.groups + 1)
    ]
    return [number for number in numbers if number is not None] if None not in numbers else []


def _other(text: str, start: int, end: int) -> bool:
    """Whether a number is of something else than tokens, by the words around it."""
    return bool(_OTHER_UNIT.match(text, end) or _OTHER_NOUN.search(text[max(0, start - 32) : start]))


def stated_limit(text: str) -> Mapping[str, int]:
    """The one size a text states, where it is a limit in tokens: `the context window (272000 tokens) was exceeded`."""
    text = text[:2000]
    counts = [found for found in _COUNT.finditer(text) if len(found[1]) > 2]
    if len(counts) != 1:
        return {}
    start, end = counts[0].span()
    read = _by_words(text) if "token" in text[max(0, start - 48) : end + 8] else {}
    return read if set(read) == {"limit"} else {}


def _by_words(text: str) -> dict[str, int]:
    read: dict[str, int] = {}
    before = 0
    for found in _COUNT.finditer(text):
        number = whole(found[1], text[found.end() : found.end() + 4])
        if number is not None and number >= _LEAST and not _other(text, found.start(), found.end()):
            role = _role(text, before, found.start(), found.end())
            if role:
                read.setdefault(role, number)
        before = found.end()
    if "input" in read and "output" not in read and "total" not in read and _TOGETHER.search(text):
        read["total"] = read.pop("input")
    return read


def _role(text: str, before: int, start: int, end: int) -> str:
    """The role of the number at `start`, from what stands right after it, else last between it and the one before."""
    after = _AFTER.match(text, end, end + 40)
    if after:
        of_output = after[1].startswith("max") and after[1].endswith("tokens")
        return "output" if of_output else _ROLE_AFTER.get(after[1], "input")
    last = ""
    for word in _BEFORE.finditer(text, max(before, start - 48), start):
        last = word.lastgroup or ""
    return last


def summed(text: str) -> bool:
    """Whether a text speaks of prompt and output together: then an output limit's name is nothing against it."""
    return bool(_TOGETHER.search(text) or _SUM_OVER.search(text, 0, 2000))


def _over(read: Mapping[str, int]) -> bool:
    limit = read.get("limit")
    if limit is None or limit < _LEAST_LIMIT:
        return False
    together = read.get("total", read.get("input", 0) + read.get("output", 0))
    return max(read.get("input", 0), together) > limit
