"""Takes a recorded session through the engine under a policy, in memory: what would have been done, and its size.

Knows settings, targets and the stand-ins for provider and summarizer; no file format. Called by `tidegate replay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from tidegate.cli.replay.recorded import Session, Unreadable, filler
from tidegate.compactors.strategy import Call
from tidegate.config import Settings
from tidegate.context.budget import Policy
from tidegate.context.chain import Chain
from tidegate.context.estimate import text_tokens
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.context.policies import NAMED, Chosen, at_work, chosen
from tidegate.context.recall import Recall
from tidegate.drive.rehearsal import Sheet, Stage, Turn
from tidegate.engine.request import Request, Target
from tidegate.engine.router import ELIDE, SUMMARY, Wanted
from tidegate.engine.sizing import limits_of
from tidegate.engine.view import read_history
from tidegate.gateway.kit import make_kit
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import NoProvider, Targets
from tidegate.providers import Catalogue
from tidegate.store import Keys, MemoryStore
from tidegate.wire.conversation import DialectName, UnreadableBody
from tidegate.wire.own_compaction import own_compaction

OFF: Final = "off"
"""Not a policy, but what they are compared with: nothing is compacted, and no refusal recovered from."""

NAMES: Final = (*NAMED, OFF)

PACE: Final = 20.0
"""Seconds between requests, where the file tells no times."""

REMEMBERED: Final = 16
"""Requests whose beginnings the stand-in's prompt cache has: an agent and its sub-agents take turns."""

SHARE: Final = 10
"""A summary stands in for so many times its tokens."""

FILLED: Final = 0.6
"""Of the room that a summary may take: what it does take at most, as its prompt asks for."""

LEAST: Final = 200
"""Tokens that the shortest summary takes, as far as its room allows."""

CLOSE: Final = 64
"""Tokens that a count may differ from an estimate without anything being missing."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is played: a policy by name, or, where there is none, the settings as they are, and what is laid over it."""

    name: str | None = None
    over: tuple[tuple[str, float], ...] = ()
    """Fields of `Policy`, such as `threshold_percent`."""
    window: int | None = None
    model: str = ""
    provider: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """A request, and what became of it."""

    number: int
    line: int | None
    model: str
    aside: bool
    turn: Turn


@dataclass(frozen=True, slots=True)
class Playing:
    """A session under one policy."""

    name: str
    turns: tuple[Played, ...]
    sheet: Sheet
    window: int | None
    """Of the target of the last request, as are threshold and target; tokens."""
    threshold: int | None
    target: int | None
    provider: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A request body by Tidegate's own estimate; what it shares with another is told by their chains."""

    model: str
    head: bytes
    chain: Chain
    overhead: int
    sums: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """See `Counted`."""
        return self.overhead + self.sums[-1] - self.sums[0]

    def shared(self, other: Measured) -> int:
        """See `Counted`."""
        return self._until(self._common(other)) if self._alike(other) else 0

    def begins(self, other: Measured) -> bool:
        """See `Counted`."""
        return self._alike(other) and self._common(other) == len(self.sums) - 1

    def _alike(self, other: Measured) -> bool:
        return (self.model, self.head, self.chain.dialect) == (other.model, other.head, other.chain.dialect)

    def _until(self, count: int) -> int:
        return self.overhead + self.sums[count] - self.sums[0]

    def _common(self, other: Measured) -> int:
        """How many items both begin with: where one link differs, so do all after it."""
        low, high = 0, min(len(self.sums), len(other.sums)) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.chain.link(middle) == other.chain.link(middle):
                low = middle
            else:
                high = middle - 1
        return low


class Ruler:
    """Counts bodies by Tidegate's own estimate, whatever the policy counts by."""

    def __init__(self) -> None:
        self._hasher = Hasher(bytes(32))
        self._ledger, self._recall = Ledger(self._hasher), Recall(self._hasher)
        self._tenant = self._hasher.tenant(b"replay")

    def __call__(self, dialect: DialectName, model: str, body: bytes) -> Measured:
        """Raises `UnreadableBody`."""
        history = read_history(self._recall.read(dialect, body), self._tenant, self._hasher, self._ledger)
        return Measured(model, history.head, history.chain, history.overhead, tuple(history.past.sums))


def play(session: Session, rules: Rules, settings: Settings, catalogue: Catalogue) -> Playing:
    """The session under these rules. Raises `Unreadable`, `NoProvider` and `ValueError` for rules that can't be."""
    kit = make_kit(settings, catalogue, Keys.random())
    ruler, targets = Ruler(), Targets(settings, catalogue)
    stage = Stage(kit, MemoryStore(), ruler, _summary, text_tokens, remembered=REMEMBERED)
    notes = _told(rules)
    words, more = _missing(session, ruler)
    turns: list[Played] = []
    request, now = None, 0.0
    for number, asked in enumerate(session.requests(words), 1):
        now = max(now + PACE, asked.at or 0.0) if number > 1 else asked.at or 1.0
        try:
            conversation = kit.recall.read(asked.dialect, asked.body)
            target = _target(rules, targets, rules.model or conversation.model, asked.dialect, session.window)
            hands_off = own_compaction(conversation, {}) or ""
            request = Request(f"replay-{number}", conversation, kit.hasher.tenant(b"replay"), target, now, hands_off)
            turn = stage.request(request)
        except UnreadableBody:
            where = f", line {asked.line}" if asked.line else ""
            raise Unreadable(f"{session.file}{where}: no request of the {asked.dialect} API") from None
        turns.append(Played(number, asked.line, target.model, asked.aside, turn))
    if request is None:
        raise Unreadable(f"{session.file}: no answer of a model is in it, so there was no request")
    name = rules.name or _configured(targets, request.target)
    limits = limits_of(request, kit)
    if limits.threshold is None and request.target.policy is not None and request.target.policy.automatic:
        notes = (*notes, f"no window is known of the model {request.target.model or '(none named)'}: give --window")
    return Playing(
        name,
        tuple(turns),
        stage.sheet,
        limits.window,
        limits.threshold,
        limits.target,
        request.target.provider,
        (*session.notes, *more, *notes),
    )


def _configured(targets: Targets, target: Target) -> str:
    """What the settings as they are say of a target."""
    return f"as configured ({targets.chosen(targets.catalogue.get(target.provider), target.model).name})"


def _told(rules: Rules) -> tuple[str, ...]:
    """What is to be said of the rules themselves."""
    if rules.name is None:
        return ()
    told = tuple(_chosen(rules).told)
    if rules.name in NAMED and not NAMED[rules.name].policy.enabled:
        told = (*told, f"{rules.name} compacts by itself only with `enabled = true`, as it is played here")
    return told


def _chosen(rules: Rules) -> Chosen:
    over = dict(rules.over)
    if rules.name == OFF:
        return chosen([{"enabled": False, "on_overflow": False}])
    made = chosen([{"policy": rules.name, **over}])
    named = at_work(replace(made.named, policy=made.policy))
    return replace(made, named=named, policy=named.policy)


def _target(rules: Rules, targets: Targets, model: str, dialect: DialectName, told_window: int | None) -> Target:
    """Where a request goes, under the rules."""
    choice = targets.choose(Route("conversation", "", "api", dialect, rules.provider or None), dialect, model)
    try:
        target = targets.target(choice, dialect)
    except NoProvider:  # it has no address yet, and none is needed here
        target = targets.target(choice, dialect, "http://replay.invalid/v1")
    if rules.window is not None:
        target = replace(target, window=rules.window, own_window=True, input_limit=None)
    elif target.window is None and target.input_limit is None and told_window is not None:
        target = replace(target, window=told_window)
    if rules.name is None:
        wanted, policy = target.wanted.names, target.policy
        if rules.over and policy is not None:
            policy = targets.followed(choice.provider, choice.model, dict(rules.over))
        return replace(target, policy=policy, wanted=_without_providers(wanted))
    made = _chosen(rules)
    names = made.named.strategies or (*made.named.first, *target.wanted.names)
    return replace(
        target,
        policy=_kept(made.policy),
        wanted=_without_providers(names),
        tool_result_chars=made.named.tool_result_chars,
    )


_policies: dict[Policy, Policy] = {}


def _kept(policy: Policy) -> Policy:
    """One object for equal policies: budgets are remembered by it."""
    return _policies.setdefault(policy, policy)


def _without_providers(names: tuple[str, ...]) -> Wanted:
    """The ways that can be played: whatever asks somebody is stood in for by a summary."""
    return Wanted(tuple(dict.fromkeys(name if name == ELIDE else SUMMARY for name in names)) or (SUMMARY,), own=True)


def _missing(session: Session, ruler: Ruler) -> tuple[bytes, tuple[str, ...]]:
    """A text that stands in for what the file does not hold of its requests, and what is to be said of it."""
    if not session.lacks:
        return b"", ()
    if session.reported is not None:
        first = next((asked for asked in session.requests(b"") if not asked.aside), None)
        gap = session.reported - ruler(first.dialect, "", first.body).tokens if first is not None else 0
        if gap > CLOSE:
            said = f"{gap:,} tokens stand in for them, by the usage of the first answer"
            return filler(gap), (f"{session.lacks} are not in the file: {said}",)
        return b"", ()
    return b"", (f"{session.lacks} are not in the file, and nothing tells their size: all sizes are without them",)


def _summary(call: Call, read: int, most: int) -> str:
    """A text of the size that a summary of what a call shows would have."""
    tokens = min(most, max(min(LEAST, most), min(int(most * FILLED), ceil(read / SHARE))))
    line = "- what was found, decided and left to do stands here in a real summary\n"
    text = "## Summary, simulated\n" + line * (tokens * 4 // len(line) + 1)
    return text[: tokens * 4].strip()


def totals(playing: Playing) -> Mapping[str, int | float]:
    """What a session came to, as numbers. Tokens."""
    sheet = playing.sheet
    return {
        "requests": len(playing.turns),
        "answered": sheet.requests,
        "refused": sheet.refused,
        "compactions": sheet.compactions,
        "tokens_asked": sheet.asked,
        "tokens_sent": sheet.sent,
        "tokens_reused": sheet.reused,
        "reused_share": round(sheet.reused / sheet.sent, 4) if sheet.sent else 0.0,
        "largest": sheet.largest,
        "summary_calls": sheet.summary_calls,
        "summary_tokens_read": sheet.summary_new + sheet.summary_reused,
        "summary_tokens_reused": sheet.summary_reused,
        "summary_tokens_written": sheet.summary_written,
        "cost_tokens": round(sheet.cost),
    }
