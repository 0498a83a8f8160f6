"""Which refusals another of several keys may not meet.

Knows verdicts; no key. Called by the exchange, and by the gateway, where keys rest.
"""

from __future__ import annotations

from typing import Final

from tidegate.overflow.verdict import Kind, Verdict

_OF_A_KEY: Final[frozenset[Kind]] = frozenset({"auth", "quota", "rate_limit"})


TRIES: Final = 3
"""Keys that one request goes out with at most."""


def of_a_key(verdict: Verdict) -> bool:
    """Whether a refusal is about who asks, and not about what is asked: an overflow may come as a 403 or a 429 too, and
    a request above a whole allowance is above that of every key."""
    return verdict.kind in _OF_A_KEY and not verdict.admission
