"""What can be chosen about compaction on the Responses API, most of it where public reports contradict each other.

Values with their allowed ranges. Part of the settings; read by the modules that compact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tidegate.simulator.profiles import CompactPath, Support

Boundary: TypeAlias = Literal["keep_users", "drop_all", "keep_all_and_bill"]
"""What is left of the items before the newest compaction item: the user messages, nothing, or all of them."""
Bound: TypeAlias = Literal["key", "project", "org", "provider"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCompaction:
    """How a simulated provider compacts on the Responses API. Sizes in tokens, times in seconds.

    Raises `ValueError` that names the setting and what is allowed.
    """

    path: CompactPath | None = None
    """`/responses/compact`: there, or how it is missing; None: as the profile says."""
    trigger: Support | None = None
    """A `compaction_trigger` item; ignored: an ordinary answer. None: as the profile says."""
    in_band: Support | None = None
    """`context_management`; None: as the profile says."""
    boundary: Boundary = "keep_users"
    """xAI's is always `drop_all`."""
    user_tokens: int = 64_000
    """The newest user messages that `/responses/compact` hands back, the oldest of them cut in its middle."""
    keeps_older_users: bool = True
    """Whether user messages before an earlier compaction item are handed back again."""
    retain_assistant_ids: bool = False
    """Whether `/responses/compact` hands back assistant messages too, with the ids they had."""
    extra_message: bool = False
    """Whether an assistant message stands beside the item that answers a trigger."""
    covers_users: bool | None = None
    """Whether the blob remembers facts of messages that were handed back; None: only where `boundary` drops them."""
    system_decays: bool = True
    """Whether facts of system items are lost when a compaction item is compacted again."""
    bound_to: Bound = "org"
    """Who may send a blob back; organisations and projects are those of `orgs`."""
    no_quota: frozenset[str] = frozenset()
    """Organisations whose compactions are refused for want of quota (xAI)."""
    bound_to_model: bool = False
    """Whether only the model that made a blob reads it."""
    default_threshold: int | None = None
    """For `context_management` without one; None: four fifths of the window."""
    seconds: float = 0.0
    """Silence before the answer of a compaction."""
    padding: int = 0
    """Bytes that each blob is longer than it has to be."""
    refuse_extra_fields: bool = False
    """Whether xAI's path refuses fields other than `model` and `input` (it is not known to)."""

    def __post_init__(self) -> None:
        """Checks names and ranges."""
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed and not (value is None and name in ("path", "trigger", "in_band")):
                raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
        for name in ("user_tokens", "seconds", "padding"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 0")


_ALLOWED: dict[str, tuple[str, ...]] = {
    "path": get_args(CompactPath),
    "trigger": get_args(Support),
    "in_band": get_args(Support),
    "boundary": get_args(Boundary),
    "bound_to": get_args(Bound),
}
