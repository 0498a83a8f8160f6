"""What is known of each item already seen: its facts, its size and its fingerprint, so that a turn reads only
what is new.

Knows items by a keyed hash of their bytes and keeps no text; knows no conversation as a whole. Called by the
engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from tidegate.context.entries import Entry, Top
from tidegate.context.estimators import OWN, Estimator
from tidegate.context.fingerprint import Hasher
from tidegate.wire import REQUESTS, cache_marks
from tidegate.wire.conversation import Conversation, DialectName, UnreadableBody
from tidegate.wire.jsontext import canonical_dumps, loads

TOPS: Final = 512
"""Tops that are remembered: one for each agent at work, and hundreds of bytes each."""


class Ledger:
    """A bounded memory of items; the least recently used are forgotten first. May be shared by threads."""

    __slots__ = ("_capacity", "_hash", "_hasher", "_known", "_tops")

    def __init__(self, hasher: Hasher, capacity_entries: int = 65_536) -> None:
        """Remembers `capacity_entries` items at most, one at least."""
        if capacity_entries < 1:
            raise ValueError("a ledger needs room for one entry at least")
        self._hasher = hasher
        self._hash = hasher.raw
        self._capacity = capacity_entries
        self._known: OrderedDict[tuple[str, bytes], Entry] = OrderedDict()
        self._tops: OrderedDict[bytes, Top] = OrderedDict()

    def __len__(self) -> int:
        """How many entries are remembered."""
        return len(self._known)

    def entry(self, dialect: DialectName, raw: bytes, estimator: Estimator = OWN) -> Entry:
        """What an item says, by its raw JSON, and its size by an estimator; read only if it is not known. Raises
        `UnreadableBody` where `raw` is no JSON object."""
        known = self._known
        key = (dialect if estimator is OWN else f"{dialect} {estimator.name}", self._hash(raw))
        entry = known.get(key)
        if entry is None:
            entry = known[key] = self._read(dialect, raw, estimator)
            while len(known) > self._capacity:
                known.popitem(last=False)
            return entry
        try:
            known.move_to_end(key)
        except KeyError:  # forgotten by another thread just now
            pass
        return entry

    def entries(self, conversation: Conversation) -> tuple[Entry, ...]:
        """One entry for every item of the conversation, leading system items included."""
        return self.entries_of(conversation, range(len(conversation.items)))

    def entries_of(
        self, conversation: Conversation, positions: Iterable[int], estimator: Estimator = OWN
    ) -> tuple[Entry, ...]:
        """One entry for each of these items of the conversation."""
        dialect, raw = conversation.dialect, conversation.item_raw
        return tuple([self.entry(dialect, raw(n), estimator) for n in positions])

    def top(self, conversation: Conversation, estimator: Estimator = OWN) -> Top:
        """What the conversation says beside its chained items; read only if it is not known. Raises `UnreadableBody`
        where a part of it is not JSON."""
        lead = [conversation.item_raw(n) for n in range(conversation.lead)]
        parts = (conversation.dialect.encode(), conversation.system, conversation.tools, conversation.schema, *lead)
        key = self._hasher.mix(*parts) if estimator is OWN else self._hasher.mix(estimator.name.encode(), *parts)
        top = self._tops.get(key)
        if top is None:
            top = self._tops[key] = self._read_top(conversation, estimator)
            while len(self._tops) > TOPS:
                self._tops.popitem(last=False)
            return top
        try:
            self._tops.move_to_end(key)
        except KeyError:  # forgotten by another thread just now
            pass
        return top

    def _read_top(self, conversation: Conversation, estimator: Estimator) -> Top:
        dialect, requests = conversation.dialect, REQUESTS[conversation.dialect]
        units = estimator.beside(conversation)
        marks = cache_marks.count(conversation.system) + cache_marks.count(conversation.tools)
        for n in range(conversation.lead):
            entry = self.entry(dialect, conversation.item_raw(n))
            item = loads(conversation.item_raw(n))
            assert isinstance(item, dict)
            units += estimator.lead(dialect, [*requests.parts(item)])
            marks += entry.facts.marks
        return Top(self._hasher.head(conversation), units // estimator.per_token, marks, units % estimator.per_token)

    def _read(self, dialect: DialectName, raw: bytes, estimator: Estimator) -> Entry:
        requests = REQUESTS[dialect]
        try:
            item = loads(raw)
            if not isinstance(item, dict):
                raise UnreadableBody("an item is not a JSON object")
            canonical = canonical_dumps(requests.canonical(item))
        except UnreadableBody:
            raise
        except (ValueError, RecursionError) as error:
            raise UnreadableBody("an item is not JSON") from error
        units = estimator.item(dialect, [*requests.parts(item)])
        fingerprint = self._hasher.item(dialect, canonical)
        if estimator.per_token == 1:
            return Entry(requests.facts(item), units, fingerprint)
        return Entry(requests.facts(item), estimator.tokens(units), fingerprint, units)
