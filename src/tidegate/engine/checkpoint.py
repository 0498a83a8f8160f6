"""What a compaction leaves behind, and how it is found again.

Knows values only: no storage, no clock. Called by the exchange and the stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from tidegate.wire.conversation import DialectName

ArtifactKind: TypeAlias = Literal["text", "opaque"]

ELIDED: Final = " elided"
"""At the end of the binding of an artifact behind which items are elided: a store keeps it apart from the same artifact
alone, and from a summary of as many items."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """What replaces the compacted items.

    A `text` artifact is a summary, readable by any model of its tenant. An `opaque` one is a provider's own items,
    readable only where `binding` says.
    """

    kind: ArtifactKind
    text: str = field(default="", repr=False)
    items: tuple[bytes, ...] = field(default=(), repr=False)
    """Raw JSON of opaque items, as minted, byte for byte."""
    retained: tuple[int, ...] = ()
    """Positions (in the chain, from 0) of original items inside the span that are sent again verbatim after the
    artifact: the newest user turn where the cut fell inside it, system items from the middle of the span."""
    binding: str = ""
    """What an opaque artifact is bound to (provider, endpoint, API, model family); empty for text."""
    sealed_tokens: int = 0
    """Tokens of what only its provider can read, as counted when it was made; 0 where that was not told."""
    elided: tuple[tuple[int, int], ...] = ()
    """(position, characters kept at either end) of items in the span whose large tool results are left out, or cut:
    such a span is not replaced but for these."""
    base: int = 0
    """Where items are elided: how many first items the text stands for, none where there is no text."""

    def stands_for(self, length: int) -> int:
        """How many first items the artifact replaces, of a span of that length."""
        return self.base if self.elided else length

    @property
    def owner(self) -> str:
        """What it is bound to, whether or not items are elided behind it."""
        return self.binding.removesuffix(ELIDED)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The first `length` items, whose chain is `chain`, may be replaced by `artifact`."""

    tenant: bytes
    bucket: bytes
    """H[1] of the chain: where the lengths at which checkpoints exist are kept."""
    length: int
    chain: bytes
    """H[length], 32 bytes."""
    head: bytes
    """Hash of system prompt, leading system items and tools at minting; opaque artifacts need it equal."""
    dialect: DialectName
    artifact: Artifact
    provider: str
    endpoint: str
    model: str
    strategy: str
    tokens_before: int
    tokens_after: int
    created_at: float = 0.0
    """Seconds since the epoch, set by the store when it saves."""

    @property
    def id(self) -> str:
        """Short public name of the checkpoint, safe to log: says nothing of its content."""
        return self.chain[:8].hex()


class Report:
    """Input tokens a provider reported for a view: the first `length` items, replaced as `checkpoint` says. Nothing of
    it changes."""

    __slots__ = ("bucket", "chain", "checkpoint", "endpoint", "head", "input_tokens", "length", "model")

    def __init__(
        self,
        bucket: bytes,
        length: int,
        chain: bytes,
        checkpoint: bytes,
        head: bytes,
        endpoint: str,
        model: str,
        input_tokens: int,
    ) -> None:
        self.bucket, self.length, self.chain = bucket, length, chain
        self.checkpoint = checkpoint
        """Chain of the checkpoint that was in the view, empty for none."""
        self.head, self.endpoint, self.model = head, endpoint, model
        self.input_tokens = input_tokens
        """Cache reads and writes included."""

    def is_of_same_view(self, other: Report) -> bool:
        """Whether another report is of the same view at the same place, so that the newer one replaces the older."""
        return (
            self.length == other.length
            and self.chain == other.chain
            and self.checkpoint == other.checkpoint
            and self.head == other.head
            and self.model == other.model
            and self.endpoint == other.endpoint
            and self.bucket == other.bucket
        )

    def __eq__(self, other: object) -> bool:
        """Equal where all that they say is."""
        if not isinstance(other, Report):
            return NotImplemented
        return self.is_of_same_view(other) and self.input_tokens == other.input_tokens

    def __hash__(self) -> int:
        """Of the view."""
        return hash((self.chain, self.checkpoint, self.length))

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Report(length={self.length}, model={self.model!r}, input_tokens={self.input_tokens})"


class Found:
    """What a store knows of a history: the checkpoints that match it, longest first, and reports of its prefixes.
    Nothing of it changes."""

    __slots__ = ("checkpoints", "reports")

    def __init__(self, checkpoints: tuple[Checkpoint, ...] = (), reports: tuple[Report, ...] = ()) -> None:
        self.checkpoints, self.reports = checkpoints, reports

    def __eq__(self, other: object) -> bool:
        """Equal where both parts are."""
        if not isinstance(other, Found):
            return NotImplemented
        return self.checkpoints == other.checkpoints and self.reports == other.reports

    def __hash__(self) -> int:
        """Of both."""
        return hash((self.checkpoints, self.reports))

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Found(checkpoints={self.checkpoints!r}, reports={self.reports!r})"


class Store(Protocol):
    """Keeps checkpoints and reports. Synchronous and quick (a point read is microseconds); any method may raise
    `StoreError`, which costs the request its replay and nothing else."""

    def find(self, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]) -> Found:
        """Two reads: the lengths under (tenant, bucket); then the exact (tenant, length, chains[length]) for each that
        `chains` has. `chains` maps every prefix length of the request (1…n) to H[length]. Reports likewise, newest
        first, at most 16."""
        ...

    def save(self, checkpoint: Checkpoint) -> None:
        """Adds a checkpoint atomically. One with the same (tenant, chain, binding) is kept as it is, never edited."""
        ...

    def report(self, tenant: bytes, report: Report) -> None:
        """Adds a report; only the newest few of a bucket are kept."""
        ...

    def close(self) -> None:
        """Gives files and connections back."""
        ...


class StoreError(Exception):
    """The store could not answer; the message names the store and the cause, never any content."""
