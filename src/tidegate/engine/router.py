"""Which ways of compacting can be tried for a request, best first, and why each of the others can't.

Knows what a target's provider, model and settings say, and what an endpoint has been seen to lack; tries nothing.
Called by the exchange, and by `tidegate route`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from tidegate.wire.conversation import DialectName

SUMMARY: Final = "summary"

ELIDE: Final = "elide"
"""Asks nobody: old tool results are left out of what is forwarded."""

LEAST_INBAND: Final = 1_000
"""Tokens: OpenAI's smallest threshold (praxis-proxy/ai#838 cites its reference)."""

UNARY: Final = "openai"
TRIGGER: Final = "openai-trigger"
INBAND: Final = "openai-inband"
"""Asked for within the request itself, with no call of its own: in the list, what comes after it is for where it can't
be asked for."""

CLEARING: Final = "context-edit"
"""Asked for within the request itself too, before any other way is tried, wherever it stands in the list."""

WITHIN: Final = frozenset({INBAND, CLEARING})
"""Those that have no call of their own: where they can't be asked for, they are no way of compacting."""

DIALECT_OF: Final[Mapping[str, DialectName]] = {
    "openai": "responses",
    "openai-trigger": "responses",
    "openai-inband": "responses",
    "xai": "responses",
    "anthropic": "messages",
    "context-edit": "messages",
}
"""Strategies that are a provider's own, and the one dialect each is written in."""

OPTIONAL: Final = frozenset({CLEARING, ELIDE})
"""What no provider's file lists, though the provider may have it, or none is asked for it."""

LEARNED: Final = (UNARY, TRIGGER, INBAND)
"""What an endpoint may turn out to have, best first."""

NAMES: Final = (*DIALECT_OF, ELIDE, SUMMARY)
"""Every strategy, in the order in which they are told of."""

Way: TypeAlias = Literal["on-demand", "threshold"]
"""How Claude compacts: in a request that asks for it alone, or from a number of input tokens on."""

CLAUDE: Final[Mapping[Way, str]] = {"on-demand": "anthropic on demand", "threshold": "anthropic at a threshold"}
"""The ways of strategy `anthropic`, best first, and what each is called where an endpoint was seen to lack it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which strategies are to be tried, in order, and who says so."""

    names: tuple[str, ...] = (SUMMARY,)
    by: str = "the provider's file"
    """Whose order it is, for people to read."""
    listed: tuple[str, ...] = ()
    """Those that the provider's file has for the dialect, so that one left out on purpose can be told of."""
    own: bool = False
    """The user's own choice: nothing that an endpoint has shown is added to it."""

    shown: tuple[str, ...] = ()
    """Those among `names` that the endpoint has shown to have."""

    def with_learned(self, learned: Sequence[str]) -> Wanted:
        """With what the endpoint has shown to have, before the summary; the same where that is nothing new."""
        new = [name for name in learned if name not in self.names]
        if not new or self.own:
            return self
        at = self.names.index(SUMMARY) if SUMMARY in self.names else len(self.names)
        return replace(self, names=(*self.names[:at], *new, *self.names[at:]), shown=tuple(new))


@dataclass(frozen=True, slots=True)
class Means:
    """What a provider and a model have to compact with."""

    on_demand: str = ""
    """Anthropic's beta for a compaction that is asked for, as the platform calls it; empty where it has none."""
    threshold: str = ""
    """That for a compaction at a threshold."""
    least_trigger: int = 50_000
    """The smallest such threshold that the platform takes, in tokens."""
    context_edit: str = ""
    """That for the edits that clear old tool results and thinking."""
    clears: bool | None = None
    """Whether the model can do these, None where nothing is known."""
    ways: tuple[str, ...] | None = None
    """How the model compacts by itself (`on-demand`, `threshold`); None where nothing is known."""
    inband: bool = False
    """The provider honours `context_management` in a Responses request."""
    least_inband: int = LEAST_INBAND
    """Smallest threshold, in tokens, that it takes there."""
    timeout: float = 180.0
    """Seconds that one call of the provider's own compaction may take."""
    custom: frozenset[str] = frozenset()
    """Names of the user's own compactors."""

    def claude(self, missing: Collection[str] = ()) -> tuple[Way, ...]:
        """How Claude compacts here, best first: what the platform has a beta for, the model is not known to lack, and
        the endpoint has not refused (`missing`, by `CLAUDE`)."""
        betas: Mapping[Way, str] = {"on-demand": self.on_demand, "threshold": self.threshold}
        able = [way for way in CLAUDE if betas[way] and (self.ways is None or way in self.ways)]
        return tuple(way for way in able if CLAUDE[way] not in missing)


@dataclass(frozen=True, slots=True)
class Choice:
    """One strategy, and why it is tried, or is not."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Route:
    """Strategies to be tried in this order, and the others."""

    strategies: tuple[Choice, ...]
    excluded: tuple[Choice, ...]
    by: str = ""
    """Who named what is to be tried."""

    @property
    def nothing(self) -> str:
        """Why nothing at all is tried, for people to read; empty where something is."""
        if self.strategies:
            return ""
        return f"{self.by} leaves nothing that can be tried here, and does not name {SUMMARY}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the strategies to be tried."""
        return tuple(choice.name for choice in self.strategies)

    def told(self) -> dict[str, list[dict[str, str]]]:
        """As JSON."""
        return {
            "strategies": [{"name": it.name, "reason": it.reason} for it in self.strategies],
            "excluded": [{"name": it.name, "reason": it.reason} for it in self.excluded],
        }


NOTHING: Final[Mapping[str, str]] = {}


def route(dialect: DialectName, wanted: Wanted, means: Means, missing: Mapping[str, str] = NOTHING) -> Route:
    """The route of one target and dialect. `missing` are strategies that need not be tried at the endpoint now, and
    why. Where a provider's file leaves nothing, a summary is tried; a list of the user's own is kept to."""
    tried: list[Choice] = []
    excluded: list[Choice] = []
    for name in wanted.names:
        why_not = _why_not(name, dialect, means, missing, shown=name in wanted.shown)
        if why_not:
            excluded.append(Choice(name, why_not))
        else:
            by = "the endpoint has shown to have it" if name in wanted.shown else f"named by {wanted.by}"
            tried.append(Choice(name, f"{_means(name, means, missing)}; {by}"))
    instead = not wanted.own and SUMMARY not in wanted.names and WITHIN.issuperset(it.name for it in tried)
    if instead:
        tried.append(Choice(SUMMARY, f"{_means(SUMMARY, means, missing)}; {wanted.by} leaves nothing else to be asked"))
    for name in (*NAMES, *sorted(means.custom)):
        if name not in wanted.names and not (instead and name == SUMMARY):
            excluded.append(Choice(name, _why_not_wanted(name, dialect, wanted)))
    return Route(tuple(tried), tuple(excluded), wanted.by)


def watched(names: tuple[str, ...]) -> tuple[str, ...]:
    """What an endpoint may be seen to lack of these strategies: one of Claude's ways too."""
    return (*names, *CLAUDE.values()) if "anthropic" in names else names


def ordered(
    listed: Sequence[str],
    *,
    model: Sequence[str] | None = None,
    house: Sequence[str] | None = None,
    listed_by: str = "the provider's file",
    model_by: str = "models",
    house_by: str = "compaction.strategies",
    own: bool = False,
    custom: Collection[str] = (),
) -> Wanted:
    """Whose order counts: that of a `model` names what is to be tried, whatever its provider lists. That of the
    `house`, for all providers, leaves out and puts in order what the provider lists, and may add what is optional.
    `own`: that list is the user's. `custom`
    are the user's own compactors, which are no provider's."""
    if model is not None:
        return Wanted(tuple(dict.fromkeys(model)), model_by, tuple(listed), own=True)
    if house is not None:
        names = tuple(name for name in dict.fromkeys(house) if name in listed or name in OPTIONAL or name in custom)
        return Wanted(names, house_by, tuple(listed), own=True)
    return Wanted(tuple(listed), listed_by, tuple(listed), own=own)


def _why_not(name: str, dialect: DialectName, means: Means, missing: Mapping[str, str], *, shown: bool) -> str:
    """Why a strategy that is wanted can't be tried; empty where it can."""
    if name in means.custom:
        return missing.get(name, "")
    if name not in NAMES:
        return "there is no such strategy"
    own = DIALECT_OF.get(name, dialect)
    if own != dialect:
        return f"belongs to the {own} API, not to {dialect}"
    if name == INBAND and not means.inband and not shown:
        return "the provider's file does not say that it honours context_management (inband = true)"
    if name == CLEARING and (not means.context_edit or means.clears is False):
        return f"the {'model' if means.context_edit else 'platform'} has no context editing"
    if name == "anthropic":
        if not (means.on_demand or means.threshold):
            return "the platform has no compaction of Claude's"
        if not means.claude():
            return "the model does not compact by itself in a way that the platform has"
        if not means.claude(missing):
            return missing.get(CLAUDE["threshold"]) or missing[CLAUDE["on-demand"]]
    return missing.get(name, "")


def _why_not_wanted(name: str, dialect: DialectName, wanted: Wanted) -> str:
    own = DIALECT_OF.get(name, dialect)
    if own != dialect:
        return f"belongs to the {own} API, not to {dialect}"
    if name in wanted.listed:
        return f"left out by {wanted.by}"
    if name in (SUMMARY, ELIDE) or name not in NAMES:
        return f"not named by {wanted.by}"
    return "the provider's file does not list it"


def _means(name: str, means: Means, missing: Mapping[str, str]) -> str:
    """What is there to compact with."""
    if name in means.custom:
        return f"a compactor of your own ([compactors.{name}])"
    if name == "anthropic":
        known = "the model is known to" if means.ways else "nothing is known against it: the model may"
        betas = {"on-demand": f"on demand ({means.on_demand})", "threshold": f"at a threshold ({means.threshold})"}
        return f"{known} compact {' or '.join(betas[way] for way in means.claude(missing))}"
    return {
        "openai": "the provider compacts a window in one call (POST /responses/compact)",
        "openai-trigger": "the provider compacts where a request ends with a compaction_trigger",
        INBAND: "the provider compacts within a request that asks for it (context_management): where the client sends "
        "sealed items back, or the history is the provider's own",
        CLEARING: "the provider leaves old tool results out within a request that asks for it, where that is enough "
        f"({means.context_edit})",
        "xai": "the provider compacts a window into one item (POST /responses/compact)",
        ELIDE: "old, large tool results are left out of what is forwarded, where that is enough; nobody is asked",
        SUMMARY: "a model writes a summary",
    }[name]
