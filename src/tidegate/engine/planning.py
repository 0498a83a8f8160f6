"""Where to cut a view, how much room what replaces the rest has, and which strategies are tried.

Knows windows, aims and what providers' own compactions take; makes nothing. Called by the exchange, `ahead`
and `compaction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.context.budget import Budget, Policy
from tidegate.context.cut import Cut, choose
from tidegate.engine.native import NATIVE, claude_ways, largest
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import LEARNED, SUMMARY, WITHIN, route, watched
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import ANTHROPIC, View, barred_cuts, cuts_after_answers, same_role_cuts

Why: TypeAlias = Literal["threshold", "overflow", "requested"]

MIN_GAIN = 0.1
"""A compaction ahead of the window that would free less than this share of the history is not worth a call."""

MIN_GAIN_REFUSED = 128
"""Tokens that are worth a call where the request was refused for its size, or somebody asked for it."""

REFUSED_SHARE = 0.7
"""Of a refused request's size: the window that is assumed where it stays unknown."""

OWN_RECENT = 20_000
"""Newest tokens that Claude's own compaction leaves as they are, at most, where nobody says how many (pi's number)."""

OWN_RECENT_SHARE = 10
"""The part of the window that they are at most (Planck's)."""

OWN_RECENT_PART = 4
"""The part of the history that they are at most."""

OWN_FREES = 4
"""The part of the whole request that a provider's own compaction has to free, or it was of no use."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where to cut, and the room for what replaces the items before it. Estimated tokens."""

    cut: Cut
    """For a text: what is kept is as much as the aim leaves room for."""
    room: int
    window: int | None
    """Of the model in use, as far as is known or assumed; real tokens."""
    strategies: tuple[str, ...] = (SUMMARY,)
    """To be tried in turn."""
    own: Cut | None = None
    """For the provider's own compaction, which no aim bounds; None where none is tried."""

    def cut_for(self, strategy: str) -> Cut:
        """Where a strategy cuts."""
        return self.own if self.own is not None and strategy in NATIVE else self.cut

    @property
    def first(self) -> Cut:
        """Where the first of the strategies cuts."""
        return self.cut_for(self.strategies[0])


def names_of(request: Request, kit: Kit) -> tuple[str, ...]:
    """Ways that can be tried at this request's target, best first."""
    target, known, now = request.target, kit.capabilities, request.now
    wanted = target.wanted.with_learned(known.learned(target.endpoint, LEARNED, now=now))
    missing = known.missing(target.endpoint, target.model, watched(wanted.names), now=now)
    return route(request.conversation.dialect, wanted, target.means, missing).names


def strategies_of(sizing: Sizing) -> tuple[str, ...]:
    """Those of them that have calls of their own."""
    return tuple(name for name in names_of(sizing.request, sizing.kit) if name not in WITHIN)


def plan(sizing: Sizing, view: View, aim: int, why: Why, strategies: tuple[str, ...] | None = None) -> Plan | None:
    """The cuts by which a view gets smaller; None: nothing to gain.

    A text is cut for so that the view comes down to `aim` real tokens, or as near as whole groups allow. A provider's
    own compaction decides itself how much remains, so neither an aim nor the target percentage counts for it: it is
    given all but the newest group; Claude all but the newest turns. Strategies that can't be cut for are left out.
    """
    names = strategies_of(sizing) if strategies is None else strategies
    own = _own_cut(sizing, view, why, names) if any(name in NATIVE for name in names) else None
    text = _text_cut(sizing, view, aim, why) if any(name not in NATIVE for name in names) else None
    names = tuple(name for name in names if (own if name in NATIVE else text) is not None)
    cut = text or own
    if cut is None:
        return None
    policy, limits, size = sizing.policy, sizing.limits(), sizing.measured(view)
    room = policy.room(limits.window or size.tokens, size.shrunk(aim))
    assumed = int(size.tokens * REFUSED_SHARE) if why == "overflow" else None
    return Plan(cut, room, limits.window or assumed, names, own)


def _own_cut(sizing: Sizing, view: View, why: Why, names: tuple[str, ...]) -> Cut | None:
    """The latest cut whose items the provider's own compaction takes within its window; for Claude's the earliest that
    leaves no more than the newest turns: beside its block they stay valid, thinking and all."""
    history, policy, size, limits = sizing.history, sizing.policy, sizing.measured(view), sizing.limits()
    claude = ANTHROPIC in names
    barred = barred_cuts(history, sizing.request.target) | (_barred_for_claude(sizing, view) if claude else frozenset())
    local = size.local - history.overhead
    keep = 0
    if claude:
        recent = policy.recent(limits.window)
        if recent is None:
            recent = min(OWN_RECENT, (limits.window or size.tokens) // OWN_RECENT_SHARE)
        keep = min(size.shrunk(recent), local // OWN_RECENT_PART)
    window = limits.window or (int(size.tokens * REFUSED_SHARE) if why == "overflow" else None)
    limit = min((it for it in (window, limits.limit) if it), default=None)
    half = (size.shrunk(window) if window else size.local) // 2
    return choose(
        history.facts,
        [entry.tokens for entry in history.entries],
        covered=view.covered,
        room=keep,
        tail_max=half,
        head_max=None if limit is None else size.shrunk(largest(limit)) - history.overhead - view.artifact_tokens,
        min_gain=least_gain(sizing, view, why),
        retain_system_max=half // 4,
        barred=barred,
        keep_last=policy.preserve_last_n if claude else None,
        unanswered_max=min(half, local - size.local // OWN_FREES),
    )


def _barred_for_claude(sizing: Sizing, view: View) -> frozenset[int]:
    """Positions at which Claude's own compaction, as it would be asked for first, can't end or would cost thinking."""
    way = next(iter(claude_ways(sizing, view)), None)
    if way == "threshold":
        return cuts_after_answers(sizing.history)
    return same_role_cuts(sizing.history) if sizing.request.target.binds_thinking else frozenset()


def _text_cut(sizing: Sizing, view: View, aim: int, why: Why) -> Cut | None:
    """The cut that brings a view down to `aim` real tokens, a summary that takes all its room included."""
    history, policy = sizing.history, sizing.policy
    size, limits = sizing.measured(view), sizing.limits()
    recent = _recent(policy, limits, aim, why)
    aim = size.shrunk(aim)
    room = policy.room(limits.window or size.tokens, aim)
    half_window = size.shrunk(limits.window) // 2 if limits.window else aim
    # A refused request has to get small; else it is enough that it is not due again at once.
    most = (
        aim if why == "overflow" or limits.threshold is None else max(aim, (aim + size.shrunk(limits.threshold)) // 2)
    )
    return choose(
        history.facts,
        [entry.tokens for entry in history.entries],
        covered=view.covered,
        room=max(0, aim - history.overhead - room),
        tail_max=half_window if recent is None else min(half_window, max(1, size.shrunk(recent))),
        min_gain=least_gain(sizing, view, why),
        retain_system_max=max(0, aim // 4),
        barred=barred_cuts(history, sizing.request.target),
        keep_last=policy.preserve_last_n,
        unanswered_max=min(half_window, max(0, most - history.overhead - room)),
    )


def _recent(policy: Policy, limits: Budget, aim: int, why: Why) -> int | None:
    """Real tokens at the end that stay as they are, at most. What is made ahead of time leaves out as much of them as
    is still to come, half of them at most: the aim is lower by that then."""
    recent = policy.recent(limits.window)
    if recent is None or why != "threshold" or limits.target is None:
        return recent
    return max(recent // 2, recent - max(0, limits.target - aim))


def least_gain(sizing: Sizing, view: View, why: Why) -> int:
    """Estimated tokens that a compaction has to free."""
    local = sizing.measured(view).local - sizing.history.overhead
    return MIN_GAIN_REFUSED if why != "threshold" else int(MIN_GAIN * local)
