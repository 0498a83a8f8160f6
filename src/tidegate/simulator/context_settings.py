"""What can be chosen about Anthropic's context management, and which provider has what of it.

Values with their allowed ranges. Part of the settings; read by the modules of the Messages API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

ON_DEMAND = "compact-2026-09-04"
THRESHOLD = "compact-2026-01-12"
EDITING = "context-management-2025-06-27"
BINDING = "thinking-binding-controls-2026-08-01"
KNOWN_BETAS = frozenset({ON_DEMAND, THRESHOLD, EDITING, BINDING})
BlockOwner: TypeAlias = Literal["workspace", "organization", "anyone"]


@dataclass(frozen=True, slots=True)
class Habits:
    """What a provider of the Messages API does about context."""

    betas: frozenset[str] = frozenset()
    """The betas it knows. The fields of one that it does not know are unknown fields."""
    drops_blocks: bool = False
    """A content block of an unknown type is ignored, not refused."""
    itemises_always: bool = True
    """With a compaction beta on, usage tells its iterations even where nothing was compacted."""
    needs_tools: bool = False
    """A history with tool rounds needs `tools`."""


HABITS: dict[str, Habits] = {
    "anthropic": Habits(betas=KNOWN_BETAS),
    "vertex": Habits(betas=KNOWN_BETAS),
    "foundry": Habits(betas=KNOWN_BETAS),
    # Amazon's page says that both compaction betas work, Anthropic's that the newer one does not.
    "bedrock": Habits(betas=KNOWN_BETAS - {ON_DEMAND}, itemises_always=False, needs_tools=True),
    "compatible": Habits(drops_blocks=True),
}
"""By profile; the others know none of the betas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextManagement:
    """How a simulated provider manages context on the Messages API. Sizes in tokens.

    Raises `ValueError` that names the setting and what is allowed.
    """

    betas: tuple[str, ...] | None = None
    """The betas served: `compact-2026-09-04`, `compact-2026-01-12`, `context-management-2025-06-27`,
    `thinking-binding-controls-2026-08-01`; None: as the profile does."""
    model_betas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of those, the ones that a model can do; of models that aren't named, by the name."""
    drops_blocks: bool | None = None
    """Whether unknown content blocks are ignored; None: as the profile does."""
    least_trigger: int = 50_000
    """Smallest trigger that a `compact_20260112` edit may have."""
    prompt: int = 100
    """The hidden prompt that asks for a summary: it must fit the window too."""
    seconds: float = 0.0
    """Silence before an answer in which something is compacted."""
    bound_to: BlockOwner = "organization"
    """Who may send a signed block back: the same `workspace` (project), the same `organization`, each on the same
    platform; or `anyone`. No page says."""
    most_tool_changes: int = 100
    """Changes of the tool set that a signed block can record. The real number is not told."""
    sealed_blocks: bool = False
    """Threshold blocks carry an `encrypted_content` that must come back as it was."""

    def __post_init__(self) -> None:
        """Checks names and ranges."""
        if self.bound_to not in get_args(BlockOwner):
            raise ValueError(f"bound_to: {self.bound_to!r} is not one of {', '.join(get_args(BlockOwner))}")
        told = [self.betas or (), *self.model_betas.values()]
        for name in (name for names in told for name in names):
            if name not in KNOWN_BETAS:
                raise ValueError(f"betas: {name!r} is not one of {', '.join(sorted(KNOWN_BETAS))}")
        for name, least in (("least_trigger", 1), ("prompt", 0), ("most_tool_changes", 0), ("seconds", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is less than {least}")

    def habits(self, profile: str) -> Habits:
        """What a profile's provider does under these settings."""
        row = HABITS.get(profile, Habits())
        return Habits(
            betas=row.betas if self.betas is None else frozenset(self.betas),
            drops_blocks=row.drops_blocks if self.drops_blocks is None else self.drops_blocks,
            itemises_always=row.itemises_always,
            needs_tools=row.needs_tools,
        )
