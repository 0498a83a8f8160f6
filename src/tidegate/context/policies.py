"""The named policies: Tidegate's own, and what Rho (Elixir), RubyPi, Rho (Rust) and Planck do, on the same engine.

Knows settings by name; no configuration and no window. Called by whoever reads the settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidegate.context.budget import Policy

WHOLE: Final = 2**31 - 1
"""Characters of a tool result that stand for all of it."""


@dataclass(frozen=True, slots=True)
class Named:
    """A policy by its name, with what the other rooms take from it. `docs/policies.md` has the sources."""

    policy: Policy
    strategies: tuple[str, ...] | None = None
    """Ways of compacting, in order; None for the provider's own order."""
    first: tuple[str, ...] = ()
    """Ways before the provider's own, where that order counts."""
    tool_result_chars: int | None = None
    """Characters of each tool result that a summarizer is shown; None for the usual number."""
    recovers: bool | None = None
    """After a refusal: always, never, or (None) where it compacts ahead of the window too."""


DEFAULT: Final = "default"

NAMED: Final[Mapping[str, Named]] = {
    DEFAULT: Named(Policy(keep_recent_percent=10, keep_recent_least=4_000), recovers=True),
    "rho": Named(
        Policy(
            enabled=False,
            on_overflow=False,
            prepare_percent=None,
            estimator="rho",
            counts="reported",
            room_by_target=True,
            elides_enough=True,
        ),
        first=("elide",),
        tool_result_chars=WHOLE,
    ),
    "rho-elixir": Named(
        Policy(
            trigger="reserve",
            target_percent=None,
            keep_recent_tokens=20_000,
            prepare_percent=None,
            estimator="rho-elixir",
            windows=(("*claude*", 200_000), ("*", 128_000)),
        ),
        strategies=("summary",),
        tool_result_chars=2_000,
        recovers=True,
    ),
    "rubypi": Named(
        Policy(
            trigger="tokens",
            max_tokens=8_000,
            target_percent=None,
            preserve_last_n=4,
            merges_summary=True,
            on_overflow=False,
            prepare_percent=None,
            estimator="rubypi",
            counts="estimate",
        ),
        strategies=("summary",),
        tool_result_chars=WHOLE,
        recovers=False,
    ),
    "planck": Named(
        Policy(
            threshold_percent=80,
            rounds_down=True,
            target_percent=None,
            keep_recent_percent=10,
            on_overflow=False,
            prepare_percent=None,
            estimator="planck",
            counts="estimate",
        ),
        strategies=("summary",),
        tool_result_chars=WHOLE,
        recovers=False,
    ),
}
"""By the name that `compaction.policy` takes."""


def at_work(named: Named) -> Named:
    """The same, compacting by itself: `rho` does so only where somebody turns it on."""
    policy = named.policy
    return named if policy.enabled else replace(named, policy=replace(policy, enabled=True, on_overflow=True))


KEPT: Final = ("enabled", "on_overflow", "prepare_percent")
"""What is said of all models counts for one whose policy is named, too."""

ONLY_FOR: Final[Mapping[str, str]] = {
    "threshold_percent": "percent",
    "reserve_tokens": "reserve",
    "max_tokens": "tokens",
}
"""Settings that one trigger alone looks at, and which."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The policy that a name and the settings over it make."""

    name: str
    named: Named
    policy: Policy
    told: tuple[str, ...] = ()
    """What was set, allowed, and yet can't be meant: a text each, with keys as they are."""


def chosen(levels: Iterable[Mapping[str, object]]) -> Chosen:
    """The policy that these settings make, from the most general to the most special: fields of `Policy`, and `policy`
    for a name, by which a level begins anew but for `KEPT`. Raises `ValueError` for what a policy can't be.

    A target percentage that is not below that of the threshold is lowered to one below it.
    """
    name, given = DEFAULT, dict[str, object]()
    for level in levels:
        if level.get("policy"):
            name = str(level["policy"])
            given = {key: value for key, value in given.items() if key in KEPT}
        given.update((key, value) for key, value in level.items() if key != "policy")
    named = NAMED[name]
    values = dict(given)
    for one, other in (("keep_recent_tokens", "keep_recent_percent"), ("keep_recent_percent", "keep_recent_tokens")):
        if one in given:
            values.setdefault(other, None)
            values["keep_recent_least"] = 0
    if "on_overflow" not in given and named.recovers is None:
        values["on_overflow"] = values.get("enabled", named.policy.enabled)
    policy = replace(named.policy, **values)  # type: ignore[arg-type]
    told = [
        f"{key} has no effect: the trigger is {policy.trigger}"
        for key, trigger in ONLY_FOR.items()
        if key in given and policy.trigger not in (trigger, "off")
    ]
    target, threshold = policy.target_percent, policy.threshold_percent
    if target is not None and target >= threshold and policy.trigger in ("percent", "off"):
        used = one_below(threshold)
        told.append(
            f"target_percent {target:g} is not below threshold_percent {threshold:g}; {used:g} is used, one below it"
        )
        policy = replace(policy, target_percent=used)
    return Chosen(name, named, policy, tuple(told))


def one_below(threshold_percent: float) -> float:
    """The highest target for a threshold, both in percent: one below it, and 1 at least (in tokens it is always lower
    than the threshold)."""
    return max(1.0, round(threshold_percent - 1, 2))
