"""Reads numbers of tokens as people and programs write them: `131072`, `131,072`, `131 072`, `200.000`, `128k`, `1M`.

Knows spellings, not what a number counts. Called by `pattern`, `rules` and `sizes`.
"""

from __future__ import annotations

import re

NUMBER = r"(?:\d{1,3}(?:[ ,.'_]\d{3}){1,5}(?!\d)|\d[\d,_]{0,14}(?:\.\d{1,3})?)(?: ?[km](?![a-z0-9])|[万萬])?"
"""A number in lower-case text, in a regular expression without groups."""

_TIMES = {"k": 1_000, "m": 1_000_000, "万": 10_000, "萬": 10_000}
"""A window "of 128k" may be 131,072: read as 128,000, which is never too much."""
_GOES_ON = re.compile(r"[.,'_]?\d| ?[kmg]i?b\b|%")
_POINT_ZERO = re.compile(r"(?<=\d)\.0{1,2}$")
_INDIAN = re.compile(r"\d{1,2}(?:,\d{2}){1,4},\d{3}")


def whole(written: str, after: str = "") -> int | None:
    """The number that is written, None where it can be read in two ways or is none of tokens.

    `after` is what follows it in the text: digits there, or a unit of bytes, mean that it was not read to its end.
    """
    if after and _GOES_ON.match(after):
        return None
    digits = _POINT_ZERO.sub("", written.rstrip(",_ "))
    times = _TIMES.get(digits[-1:], 0)
    if times:
        digits = digits[:-1].rstrip()
    if digits.isdecimal():
        return int(digits) * (times or 1)
    separators = set(re.sub(r"\d", "", digits))
    if len(separators) != 1:
        return None
    parts = digits.split(separators.pop())
    grouped = len(parts[0]) <= 3 and parts[0] != "0" and all(len(part) == 3 for part in parts[1:])
    if times and "." in digits and len(parts) == 2:  # 1.5m, and 1.048m too
        return round(float(digits) * times)
    if not grouped and not _INDIAN.fullmatch(digits):
        return None
    return int("".join(parts)) * (times or 1)
