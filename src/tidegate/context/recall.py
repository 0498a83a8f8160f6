"""Reads a request body by what is new in it: the beginning that an earlier body had too is only hashed, not read again.

Knows bodies by keyed hashes and keeps no text of them but short settings; knows no tenant. Called by whoever receives
requests; the engine finds what was read of the items by the conversation's note.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec
from blake3 import blake3

from tidegate.context.entries import Top
from tidegate.context.estimators import OWN, Estimator
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.context.note import Note
from tidegate.context.past import ITEM_BYTES, Past
from tidegate.context.remembered import Mark, Record
from tidegate.wire import REQUESTS
from tidegate.wire.body import Body, items_of
from tidegate.wire.conversation import (
    Conversation,
    DialectName,
    Items,
    RawFields,
    Spans,
    UnreadableBody,
)
from tidegate.wire.jsontext import array_spans, check_utf8, object_spans

MAX_BYTES: Final = 96 * 1024 * 1024
"""Memory for all bodies remembered: that of a thousand sessions of a hundred items each."""

SAMPLE: Final = 32
"""Bytes of a body that are looked at in one place."""

FIRST: Final = 192
"""Bytes at the front that every sample holds: the model, and what agents begin with."""

LEVELS: Final = 3
"""Samples under which a body is found: of all but its newest items, of half and of a quarter of it, so that items that
change at its end don't hide it."""

ALIKE: Final = 8
"""Bodies kept under one sample."""

FINE: Final = 8
"""The newest items are told apart one by one: clients move cache marks over the last few. Before them ever fewer."""

SHORT_TAIL: Final = 512
"""Bytes after the items that are kept as they are (settings, mostly); a longer tail (tools) is kept as a hash."""

RECORD_BYTES: Final = 3_072
"""Of memory that a body takes beside its items, roughly."""

DIGEST: Final = 16
"""Bytes of a mark's hash. It is keyed, so that nobody can look for two beginnings that share one."""

_SHORT: Final = (1 << 61) - 1
"""A sample is cut to what compiled code keeps within itself."""

MARKS: Final = 40
"""Marks of one body before those far from its end are thinned out."""

MARK_BYTES: Final = 200
"""Of memory that a mark takes, roughly."""

RECOUNT: Final = 1_024
"""Bodies added until their bytes are counted anew, lest two threads' adding at once should let the sum drift."""

_SPACE: Final = b" \t\n\r"


def history_of(
    conversation: Conversation, hasher: Hasher, ledger: Ledger, estimator: Estimator = OWN
) -> tuple[Past, Top]:
    """What the conversation's chained items say, their sizes by an estimator, and what stands beside them; items that
    its note knows are not looked at again. Raises `UnreadableBody`."""
    note = conversation.note
    if not isinstance(note, Note) or note.hasher is not hasher:
        note = Note(hasher)
    kept, past, lead, count = note.kept, note.past, conversation.lead, len(conversation.items)
    if estimator is not (OWN if past is None else past.estimator):
        return _counted_otherwise(conversation, ledger, estimator, note)
    if past is None or len(past) != count - lead or kept != count - lead:
        new = ledger.entries_of(conversation, range(lead + kept, count), estimator)
        past = (past or _NOTHING).extended(kept, new)
        # In this order: another thread may look in between, and a longer past has the same first items.
        note.past = past
        note.kept = count - lead
    if estimator is OWN:
        top = note.top
        if top is None:
            top = note.top = ledger.top(conversation)
        return past, top
    top = ledger.top(conversation, estimator)
    if past.units[0] != top.units:
        return _counted_otherwise(conversation, ledger, estimator, note)
    return past, top


def _counted_otherwise(
    conversation: Conversation, ledger: Ledger, estimator: Estimator, note: Note
) -> tuple[Past, Top]:
    """`history_of` where the note knows sizes by another estimator, or behind another beginning: all anew, the ledger
    knows what it has read. A note's top is of Tidegate's own estimator always: a past says whose it is, a top does not.
    """
    top = ledger.top(conversation, estimator)
    new = ledger.entries_of(conversation, range(conversation.lead, len(conversation.items)), estimator)
    past = Past(estimator, top.units).extended(0, new)
    note.kept = 0
    note.past = past
    note.kept = len(past)
    return past, top


_NOTHING: Final = Past()


class Recall:
    """A bounded memory of bodies; the least recently used are forgotten first. May be shared by threads: what is
    remembered is never changed, and where two add at once the worst is that a body is forgotten early."""

    __slots__ = ("_at", "_bytes", "_changes", "_hasher", "_max", "_records", "_told")

    def __init__(self, hasher: Hasher, max_bytes: int = MAX_BYTES) -> None:
        """Takes about `max_bytes` of memory at most."""
        self._hasher, self._max = hasher, max_bytes
        self._records: OrderedDict[Record, None] = OrderedDict()
        self._at: dict[int, Record | tuple[Record, ...]] = {}
        """One is kept as it is: most are alone under their samples."""
        self._bytes = 0
        self._changes = 0
        self._told: Conversation | None = None

    def __len__(self) -> int:
        """How many bodies are remembered."""
        return len(self._records)

    @property
    def weight(self) -> int:
        """Bytes of memory they take, roughly."""
        return sum(record.weight for record in tuple(self._records))

    def read(self, dialect: DialectName, raw: bytes) -> Conversation:
        """What `tidegate.wire.read` gives, with a note for `history_of`. Raises `UnreadableBody`."""
        keys = _samples(dialect, raw)
        found = self._find(dialect, raw, keys)
        if found is not None:
            try:
                conversation = self._known(raw, keys, *found)
            except ValueError:  # odd in some way: the whole is read, and says what is wrong with it
                conversation = None
            if conversation is not None:
                return conversation
        conversation = REQUESTS[dialect].read(raw)
        conversation = msgspec.structs.replace(conversation, note=Note(self._hasher))
        self._remember(conversation, keys)
        return conversation

    # -- what is known -------------------------------------------------------------------------------------------

    def _find(self, dialect: DialectName, raw: bytes, keys: list[int]) -> tuple[Record, int, blake3] | None:
        """The body that shares the longest beginning with this one, which of its marks ends that, and the running hash
        up to there."""
        at = self._at
        for key in reversed(keys):
            if found_at := at.get(key):
                break
        else:
            return None
        records = (found_at,) if isinstance(found_at, Record) else found_at
        best, place = None, -1
        for record in records:
            found = _likely(record.marks, raw)
            if found >= 0 and (best is None or record.marks[found].offset > best.marks[place].offset):
                best, place = record, found
        if best is None:
            return None
        view, mark, running = memoryview(raw), best.marks[place], self._hasher.prefix(dialect)
        running.update(view[: mark.offset])
        if running.digest(length=DIGEST) == mark.digest:
            return best, place, running
        # Something changed before it: once more, with a look at each mark on the way.
        running, done, place = self._hasher.prefix(dialect), 0, -1
        for n, mark in enumerate(best.marks):
            if mark.offset > len(raw):
                break
            ahead = running.copy()
            ahead.update(view[done : mark.offset])
            if ahead.digest(length=DIGEST) != mark.digest:
                break
            running, done, place = ahead, mark.offset, n
        return (best, place, running) if place >= 0 else None

    def _known(self, raw: bytes, keys: list[int], record: Record, place: int, running: blake3) -> Conversation | None:
        """The conversation of a body that begins like a known one. None or `ValueError` where it must be read whole."""
        mark, told = record.marks[place], record.told
        count, offset = mark.count, mark.offset
        same_tail = self._same_tail(record, raw, offset)
        if same_tail:
            inner = raw[offset : len(raw) - record.tail_size]
            if count == len(record.starts) and len(raw) == record.size and not inner.strip(_SPACE):
                self._touch(record)
                return self._as_told(record, raw, record.starts, record.ends, record.shift, record.note)
            check_utf8(inner)
            new = array_spans(b"[{}%b]" % inner, 0, len(inner) + 4)
            spans, by = record.spans, offset - 3
        else:
            opened = b'{"%b":[{}' % told.items_key.encode()
            text = opened + raw[offset:]
            by = offset - len(opened)
            here = object_spans(text)
            new = array_spans(text, *here[told.items_key])
            spans = _joined(record.spans, here, told.items_key, by)
        items = _with(
            record, count, items_of(raw, [(start + by, end + by) for start, end in new[1:]], told.items_key), raw
        )
        requests = REQUESTS[told.dialect]
        if told.dialect == "responses" and any(requests.refers(items[n]) for n in range(count, len(items))):
            return None
        note = record.note.following(count - told.lead, same_top=same_tail)
        starts, ends = items.bounds()
        if same_tail:
            shift = record.shift + len(raw) - record.size
            conversation = self._as_told(record, raw, starts, ends, shift, note)
        else:
            shift = 0
            conversation = requests.compose(Body(raw, spans, RawFields(raw, spans)), items, told.lead)
            conversation = msgspec.structs.replace(conversation, note=note)
        if not conversation.server_held:
            marks = (*record.marks[: place + 1], *_marks(running, raw, offset, ends, count))
            old = record if len(record.starts) - count < FINE else None
            self._keep(conversation, keys, (starts, ends), marks, spans, shift, record if same_tail else None, old)
        return conversation

    def _same_tail(self, record: Record, raw: bytes, offset: int) -> bool:
        start = len(raw) - record.tail_size
        if start < offset:
            return False
        if record.tail_size <= SHORT_TAIL:
            return raw.endswith(record.tail)
        return self._hasher.raw(raw[start:]) == record.tail

    def _as_told(
        self, record: Record, raw: bytes, starts: array[int], ends: array[int], shift: int, note: Note
    ) -> Conversation:
        told = record.told
        spans = Spans(record.spans, record.spans[told.items_key][1], shift) if shift else record.spans
        return msgspec.structs.replace(told, raw=raw, items=Items(raw, starts, ends), field_spans=spans, note=note)

    # -- remembering ---------------------------------------------------------------------------------------------

    def _remember(self, conversation: Conversation, keys: list[int]) -> None:
        """Remembers a body that was read whole, where its beginning may come again and says all that it should."""
        items, spans = conversation.items, conversation.field_spans
        if (
            conversation.server_held
            or not isinstance(items, Items)
            or len(items) <= conversation.lead
            # Bodies with such keys are judged as a whole: see `object_spans`.
            or not all(key.isascii() for key in spans)
        ):
            return
        running = self._hasher.prefix(conversation.dialect)
        starts, ends = items.bounds()
        marks = _marks(running, conversation.raw, 0, ends, conversation.lead)
        self._keep(conversation, keys, (starts, ends), marks, spans, 0, None, None)

    def _keep(
        self,
        conversation: Conversation,
        keys: list[int],
        bounds: tuple[array[int], array[int]],
        marks: tuple[Mark, ...],
        spans: Mapping[str, tuple[int, int]],
        shift: int,
        same_tail: Record | None,
        old: Record | None,
    ) -> None:
        raw, note = conversation.raw, conversation.note
        keys = keys[: _levels(marks[-1].offset)][-LEVELS:]
        if not keys or not isinstance(note, Note):
            return
        if same_tail is not None:
            told, tail_size, tail = same_tail.told, same_tail.tail_size, same_tail.tail
        else:
            told = msgspec.structs.replace(conversation, raw=b"", items=(), field_spans={}, note=None)
            start = spans[conversation.items_key][1] - 1
            tail_size = len(raw) - start
            tail = raw[start:] if tail_size <= SHORT_TAIL else self._hasher.raw(raw[start:])
            if told == self._told:
                told = self._told  # one agent's conversations are told alike: kept once
            else:
                self._told = told
        marks = _thinned(marks)
        weight = RECORD_BYTES + len(tail) + MARK_BYTES * len(marks) + (ITEM_BYTES + 16) * len(bounds[0])
        weight += note.past.weight if note.past else 0
        record = Record(tuple(keys), len(raw), told, *bounds, marks, tail_size, tail, spans, shift, note, weight)
        if old is not None:
            self._forget(old)
        if weight > self._max:
            return
        self._records[record] = None
        self._bytes += weight
        for key in keys:
            before = self._at.get(key)
            if before is None:
                self._at[key] = record
            else:
                self._at[key] = (record, before) if isinstance(before, Record) else (record, *before[: ALIKE - 1])
        self._changes += 1
        if self._changes % RECOUNT == 0:
            self._bytes = self.weight
        while self._bytes > self._max and self._records:
            self._forget(next(iter(self._records)))

    def _touch(self, record: Record) -> None:
        try:
            self._records.move_to_end(record)
        except KeyError:  # forgotten by another thread just now
            pass

    def _forget(self, record: Record) -> None:
        try:
            del self._records[record]
        except KeyError:  # by another thread, just now
            return
        self._bytes -= record.weight
        for key in record.keys:
            found = self._at.get(key)
            if found is record:
                self._at.pop(key, None)
            elif isinstance(found, tuple) and record in found:
                left = tuple([other for other in found if other is not record])
                self._at[key] = left[0] if len(left) == 1 else left


def _samples(dialect: DialectName, raw: bytes) -> list[int]:
    """What bodies are looked up under, from few samples of the beginning to all of them, twice as far apart each time.
    Equal ones say nothing yet: a hash decides."""
    key = hash((dialect, raw[:FIRST]))
    keys = [key]
    place, last = 2 * FIRST, len(raw) - SAMPLE
    while place <= last:
        key = hash((key, raw[place : place + SAMPLE]))
        keys.append(key)
        place *= 2
    return keys


def _levels(size: int) -> int:
    """How many of the samples lie within the first `size` bytes."""
    if size < FIRST:
        return 0
    return max(1, ((size - SAMPLE) // FIRST).bit_length())


def _likely(marks: tuple[Mark, ...], raw: bytes) -> int:
    """The last mark that the body seems to have, -1 for none."""
    last = marks[-1]
    if last.offset <= (size := len(raw)) and hash(raw[last.near : last.offset]) & _SHORT == last.sample:
        return len(marks) - 1
    first = marks[0]
    if first.offset > size or hash(raw[first.near : first.offset]) & _SHORT != first.sample:
        return -1
    for place in range(len(marks) - 2, 0, -1):
        mark = marks[place]
        if mark.offset <= size and hash(raw[mark.near : mark.offset]) & _SHORT == mark.sample:
            return place
    return 0 if len(marks) > 1 else -1


def _marks(running: blake3, raw: bytes, done: int, ends: array[int], known: int) -> tuple[Mark, ...]:
    """Marks after the newest items and, ever fewer, after those before them, but none of the first `known`. `running`
    has hashed `done` bytes."""
    marks, view, total = [], memoryview(raw), len(ends)
    first = max(known + 1, total - FINE + 1)
    far = [total - back for back in _FAR if total - back > known] if first > known + 1 else []
    for count in (*far, *range(first, total + 1)):
        offset = ends[count - 1]
        running.update(view[done:offset])
        done, near = offset, max(0, offset - SAMPLE)
        marks.append(Mark(count, offset, running.digest(length=DIGEST), near, hash(raw[near:offset]) & _SHORT))
    return tuple(marks)


_FAR: Final = tuple(reversed([FINE << n for n in range(24)]))


def _thinned(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Fewer of the marks that are far from the end, where there are many."""
    if len(marks) <= MARKS:
        return marks
    kept: list[Mark] = []
    newest, least = marks[-1].count, 0
    for mark in reversed(marks):
        back = newest - mark.count
        if back < FINE or back >= least:
            kept.append(mark)
            least = 2 * back
    return tuple(reversed(kept))


def _with(record: Record, count: int, new: Items, raw: bytes) -> Items:
    """The first `count` items of a body and new ones."""
    starts, ends = new.bounds()
    return Items(raw, record.starts[:count] + starts, record.ends[:count] + ends)


def _joined(
    then: Mapping[str, tuple[int, int]], here: Mapping[str, tuple[int, int]], items_key: str, by: int
) -> dict[str, tuple[int, int]]:
    """Spans of the values before the items, as they were, and of the others, as they stand `by` bytes further on than
    `here`. Raises `UnreadableBody` for keys that must be judged in the whole body."""
    first = then[items_key][0]
    spans = {key: span for key, span in then.items() if span[0] < first}
    if any(key in spans or not key.isascii() for key in here):
        raise UnreadableBody("a top-level key comes twice")
    spans[items_key] = (first, here[items_key][1] + by)
    for key, (start, end) in here.items():
        if key != items_key:
            spans[key] = (start + by, end + by)
    return spans
