"""What is known of a history's items, read in order, so that the next turn adds only its own.

Knows facts, sizes and fingerprints by position; knows no bytes of a body and no API. Called by the recall and the
engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.context.chain import Chain
from tidegate.context.cut import Seam, seam
from tidegate.context.entries import Entry
from tidegate.context.estimators import OWN, Estimator
from tidegate.context.fingerprint import Hasher
from tidegate.wire.conversation import DialectName, Facts

TENANTS: int = 4
"""Tenants whose chain of one history is remembered: few share a body's first bytes, and fewer send it by turns."""

SEAMS: int = 4
"""Places to cut that are remembered: those of the checkpoints that a store finds."""

ITEM_BYTES: int = 640
"""Of memory that an item of a history takes, roughly: its facts, its fingerprint, its numbers and its links."""


_ZEROS: Final = [array("Q", bytes(8 * count)) for count in range(65)]
_NO_SEAMS: Final[dict[int, Seam]] = {}


def _zeros(count: int) -> array[int]:
    """So many zeros; shared, not to be changed: most conversations have nothing else to count."""
    return _ZEROS[count] if count < len(_ZEROS) else array("Q", bytes(8 * count))


class Past:
    """The chained items of one body. A function of their bytes alone: it may be shared by tenants and by threads, and
    is never changed but for what it remembers of questions already answered."""

    __slots__ = (
        "_chains",
        "_facts",
        "_seams",
        "entries",
        "estimator",
        "humans",
        "marks",
        "odd",
        "sums",
        "thoughts",
        "turns",
        "units",
    )

    def __init__(self, estimator: Estimator = OWN, units: int = 0) -> None:
        """Of no items yet; `units` stand before them that make no whole token, where the estimator counts such."""
        self.estimator = estimator
        self.entries: tuple[Entry, ...] = ()
        self.sums = array("Q", (estimator.tokens(units),))
        """`sums[k]`: estimated tokens of the first k items, and of what stands before them that makes no whole one."""
        self.units = array("Q", (units,)) if units else _zeros(1)
        """The same before it is rounded; only the first of them where the estimator counts whole tokens."""
        self.humans = array("q")
        """The newest item with the user's own words up to each position, that included; -1 for none."""
        self.turns = array("q")
        """The newest assistant item that does not follow another, up to each position; -1 for none."""
        self.thoughts = _zeros(1)
        """`thoughts[k]`: items with thinking blocks among the first k."""
        self.marks = _zeros(1)
        """`marks[k]`: cache marks on the first k items."""
        self.odd: int | None = None
        """The first item that stands for what Tidegate can't read: an artifact of another's making, a reference."""
        self._chains: tuple[Chain, ...] = ()
        self._seams: dict[int, Seam] = _NO_SEAMS
        self._facts: list[Facts] | None = None

    def __len__(self) -> int:
        """How many items there are."""
        return len(self.entries)

    @property
    def facts(self) -> list[Facts]:
        """Facts of every item; not to be changed."""
        if self._facts is None:
            self._facts = [entry.facts for entry in self.entries]
        return self._facts

    @property
    def weight(self) -> int:
        """Bytes of memory that its seams take, roughly; its items take `ITEM_BYTES` each."""
        return sum(64 * len(seam.called) + seam.made_bytes for seam in tuple(self._seams.values()))

    def extended(self, kept: int, new: Sequence[Entry]) -> Past:
        """The first `kept` items, and new ones after them."""
        past = Past(self.estimator)
        past.entries = self.entries[:kept] + tuple(new)
        whole = self.estimator.per_token == 1
        past.units = self.units if whole else self.units[: kept + 1]
        past.sums, past.thoughts = self.sums[: kept + 1], self.thoughts[: kept + 1]
        past.marks = self.marks[: kept + 1]
        past.humans, past.turns = self.humans[:kept], self.turns[:kept]
        past.odd = self.odd if self.odd is not None and self.odd < kept else None
        past._append(kept, new)
        if not past.thoughts[-1]:
            past.thoughts = _zeros(len(past.thoughts))
        if not past.marks[-1]:
            past.marks = _zeros(len(past.marks))
        # Both are replaced as they grow, never changed, so another thread may do so now.
        past._chains = tuple([chain.cut(kept) for chain in self._chains])
        if self._seams:
            past._seams = {at: known for at, it in self._seams.items() if (known := it.cut(kept)) is not None}
        return past

    def _append(self, position: int, new: Sequence[Entry]) -> None:
        tokens, thoughts, marks = self.sums[position], self.thoughts[position], self.marks[position]
        whole = self.estimator.per_token == 1
        units = 0 if whole else self.units[position]
        human = self.humans[position - 1] if position else -1
        turn = self.turns[position - 1] if position else -1
        # The first item begins no turn: there is nothing before it that could wait for an answer.
        follows = not position or self.entries[position - 1].facts.role == "assistant"
        for entry in new:
            facts = entry.facts
            tokens += entry.tokens
            thoughts += facts.thinking
            marks += facts.marks
            if facts.human:
                human = position
            assistant = facts.role == "assistant"
            if assistant and not follows:
                turn = position
            follows = assistant
            if (facts.opaque or facts.reference) and self.odd is None:
                self.odd = position
            if whole:
                self.sums.append(tokens)
            else:
                units += entry.units
                self.units.append(units)
                self.sums.append(self.estimator.tokens(units))
            self.thoughts.append(thoughts)
            self.marks.append(marks)
            self.humans.append(human)
            self.turns.append(turn)
            position += 1

    def chain(self, hasher: Hasher, tenant: bytes, dialect: DialectName) -> Chain:
        """The chain of these items for a tenant."""
        chains = self._chains
        chain: Chain | None = None
        for known in chains:
            if known.tenant == tenant:
                chain = known
        if chain is None:
            chain = hasher.chain(tenant, dialect, ())
        missing = len(self.entries) - len(chain)
        if missing:
            chain = hasher.longer(chain, [entry.fingerprint for entry in self.entries[-missing:]])
            others = [known for known in chains if known.tenant != tenant]
            self._chains = (*others, chain) if len(others) < TENANTS else (chain,)
        return chain

    def seam(self, at: int) -> Seam:
        """What is known of cutting before the item at `at`, from 1 to n-1."""
        known, length = self._seams.get(at), len(self.entries)
        if known is not None and known.seen == length:
            return known
        longer = known.longer([entry.facts for entry in self.entries[known.seen :]]) if known else None
        if longer is None:
            longer = seam(self.facts, at)
            if known is not None:
                # What was made of the items before the cut is none the worse for new ones after it.
                longer = msgspec.structs.replace(longer, made=known.made, made_bytes=known.made_bytes)
        self.remember(longer)
        return longer

    def remember(self, known: Seam) -> None:
        """Keeps what was found out of a seam."""
        seams = {at: it for at, it in [*self._seams.items()][1 - SEAMS :] if at != known.at}
        self._seams = {**seams, known.at: known}

    def safe(self, at: int) -> bool:
        """Whether the history may be cut before the item at `at`: what `safe_cuts` says of it."""
        known = self.seam(at)
        if known.tied:
            return False
        last = len(self.entries) - 1
        over = max(self.turns[last], self.humans[last])
        return over >= at or not known.waits(self.facts, over)

    def words_before(self, at: int) -> tuple[int, ...]:
        """The newest words of the user with what belongs to them, where a safe cut before `at` would part with them;
        empty where they come after it, or there are none."""
        newest = self.humans[-1]
        if newest < 0 or newest >= at:
            return ()
        known = self.seam(at)
        if known.words is None or known.newest != newest:
            known = known.with_words(self.facts, newest)
            self.remember(known)
        return known.words or ()
