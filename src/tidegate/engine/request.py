"""What the exchange is given: one request, where it goes, and the tools to judge it.

Values and pure collaborators only. Built by the gateway or a client transport, once a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.compactors.summary import Options, default_options
from tidegate.context.budget import Policy
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.context.recall import Recall
from tidegate.engine.breaker import Breaker
from tidegate.engine.capabilities import Capabilities, Unreadable
from tidegate.engine.carried import Given
from tidegate.engine.clamps import Clamps
from tidegate.engine.diagnostics import Records
from tidegate.engine.prepared import Portable, Preparations
from tidegate.engine.router import Means, Wanted
from tidegate.engine.warmth import Warmth
from tidegate.overflow.verdict import Refusal, Sent, Verdict
from tidegate.overflow.window import Windows
from tidegate.wire.conversation import Conversation, DialectName


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes and what is known of the model there. Windows are tokens, None where unknown."""

    provider: str
    endpoint: str
    """API root, like `https://api.openai.com/v1`: windows and reports belong to it."""
    model: str
    """As the upstream names it."""
    window: int | None = None
    input_limit: int | None = None
    """Input tokens the provider accepts where that is less than the window, or the window is unknown."""
    max_output: int | None = None
    counts_output: bool = False
    """The provider refuses a request whose input and output limit together pass the window."""
    merge_user: bool = False
    """Two user messages in a row are refused by the model's template, so a summary is merged into the next one."""
    binds_thinking: bool = False
    """Thinking blocks are bound to the conversation before them, so a rewritten past invalidates them."""
    wanted: Wanted = field(default_factory=Wanted)
    """Strategies to be tried, best first."""
    means: Means = field(default_factory=Means)
    """What provider and model have to compact with."""
    summary_model: str = ""
    """Model for summaries, empty for the model in use."""
    summary_window: int | None = None
    """Window of `summary_model`."""
    summarizers: tuple[tuple[str, int | None], ...] = ()
    """Models that are asked in turn where that one gave no summary, and their windows."""
    own_window: bool = False
    """The user set the window: nothing raises it."""
    own_input_limit: bool = False
    """The user set the input limit: nothing raises it."""
    policy: Policy | None = None
    """What is asked for at this target; None for the kit's."""
    tool_result_chars: int | None = None
    """Characters of each tool result that a summarizer is shown; None for the usual number."""
    credential: str = ""
    """Name (a keyed hash) of the one of several keys of the gateway's that is used; empty for the client's own, and
    where there is one only."""
    told_at: float = 0.0
    """When the server itself told the window, seconds since the epoch; 0 where a table says it."""

    @property
    def merges(self) -> bool:
        """Whether a summary goes into the user message after it, where one follows."""
        return self.merge_user or (self.policy is not None and self.policy.merges_summary)


class Request:
    """One request of a client. `conversation.raw` is what goes upstream if nothing has to change. Nothing of it
    changes."""

    __slots__ = ("conversation", "counted", "credentials", "hands_off", "id", "now", "target", "tenant")

    def __init__(
        self,
        id: str,
        conversation: Conversation,
        tenant: bytes,
        target: Target,
        now: float,
        hands_off: str = "",
        counted: int = 0,
        credentials: tuple[str, ...] = (),
    ) -> None:
        self.id, self.conversation, self.tenant, self.target = id, conversation, tenant, target
        self.now = now
        """Seconds since the epoch when it arrived."""
        self.hands_off = hands_off
        """Why the request must pass untouched (a bypass header, the agent's own compaction), empty for no reason."""
        self.counted = counted
        """Input tokens that all of it takes, as known from the same history in another shape; 0 where nothing is
        known."""
        self.credentials = credentials
        """Names of the keys that it may go out with, the conversation's own first, where the client brings none and the
        gateway has several."""

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Request(id={self.id!r}, conversation={self.conversation!r}, target={self.target!r}, now={self.now})"

    def to(self, target: Target) -> Request:
        """The same for another target."""
        return Request(
            self.id,
            self.conversation,
            self.tenant,
            target,
            self.now,
            self.hands_off,
            self.counted,
            self.credentials,
        )


@dataclass(frozen=True, slots=True)
class Kit:
    """What judges requests; shared by all requests of a process."""

    hasher: Hasher
    ledger: Ledger
    windows: Windows
    classify: Callable[[str, Refusal, Sent], Verdict]
    """By provider name."""
    policy: Policy = field(default_factory=Policy)
    options: Callable[[Target, DialectName], Options] = lambda target, dialect: default_options()
    """How summaries are asked for at a target."""
    breaker: Breaker = field(default_factory=Breaker)
    preparations: Preparations = field(default_factory=Preparations)
    capabilities: Capabilities = field(default_factory=Capabilities)
    unreadable: Unreadable = field(default_factory=Unreadable)
    given: Given = field(default_factory=Given)
    clamps: Clamps = field(default_factory=Clamps)
    inband_for_all: bool = False
    """Every client can carry a provider's compaction item, whatever it has sent back so far."""
    max_compactions: int = 2
    """Compactions one request may cause, its recoveries included."""
    summary_max_calls: int = 32
    custom: Mapping[str, float] = field(default_factory=dict)
    """The user's own compactors, and the seconds that each may take."""
    portable: Portable | None = field(default=None, repr=False)
    """Keeps texts beside what providers seal; None where none are made ahead of a change of model or account."""
    shadow: bool = False
    """Only decide and tell: nothing is called and nothing changed."""
    last_resort: bool = False
    """Cut the largest tool results where nothing else helps after a refusal for length."""
    elide_percent: float = 50
    """Part of the window from which old tool results are left out, where that is the first way."""
    shrink_on_admission: bool = False
    """Compact a request that is above a whole rate allowance, and send it again."""
    records: Records = field(default_factory=Records, repr=False)
    """What is known of conversations, for whoever asks."""
    warmth: Warmth = field(default_factory=Warmth, repr=False)
    """What providers are likely to have in their prompt caches."""
    recall: Recall = field(init=False, repr=False)
    """Reads bodies by what is new in them."""

    def after(self, before: Kit) -> Kit:
        """The same judgement with the memory of another: the settings were changed, the world was not."""
        kept = {name: getattr(before, name) for name in REMEMBERED}
        kept["breaker"] = before.breaker.within(self.breaker.bounds)
        if self.portable is not None and before.portable is not None:
            kept["portable"] = before.portable
        made = replace(self, **kept)
        object.__setattr__(made, "recall", before.recall)
        return made

    def policy_for(self, target: Target) -> Policy:
        """What is asked for at a target."""
        return target.policy or self.policy

    def __post_init__(self) -> None:
        """Under the same key as the chains."""
        object.__setattr__(self, "recall", Recall(self.hasher))


REMEMBERED: Final = (
    "hasher", "ledger", "windows", "preparations", "capabilities", "unreadable", "given", "clamps", "records", "warmth",
)  # fmt: skip
"""Parts of a kit that are what was seen, not what was set."""
