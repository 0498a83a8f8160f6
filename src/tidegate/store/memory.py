"""A store that lives as long as its process: bounded, least recently used out first.

Knows values; no file, no key. Called by drivers from any thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from tidegate.engine.checkpoint import Checkpoint, Found, Report, StoreError
from tidegate.store.record import REPORTS_PER_BUCKET, longest_of_each_kind

_Bucket: TypeAlias = tuple[bytes, bytes]
_Key: TypeAlias = tuple[bytes, bytes, str]

_ROW_BYTES: Final = 1024
"""What a checkpoint takes besides its artifact, roughly."""


class MemoryStore:
    """Keeps at most `max_entries` checkpoints of `max_bytes` in all, none unused for `retention_days`."""

    def __init__(
        self,
        *,
        max_bytes: int = 256 * 1024 * 1024,
        max_entries: int = 10_000,
        retention_days: float = 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Bounds in bytes, checkpoints and days; `clock` gives seconds since the epoch."""
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._retention = retention_days * 86_400
        self._clock = clock
        self._lock = threading.Lock()
        self._bytes = 0
        self._used: OrderedDict[_Key, float] = OrderedDict()  # least recently used first
        self._rows: dict[tuple[bytes, bytes], dict[str, Checkpoint]] = {}  # (tenant, chain) -> binding -> row
        self._lengths: dict[_Bucket, Counter[int]] = {}
        self._reports: OrderedDict[_Bucket, tuple[Report, ...]] = OrderedDict()
        self._report_count = 0
        self._closed = False

    def find(self, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]) -> Found:
        """The checkpoints that match, longest first; reports of the request's prefixes, newest first."""
        with self._lock:
            self._check_open()
            key = tenant, bucket
            known, kept = self._lengths.get(key), self._reports.get(key)
            if known is None:
                return Found((), _of(kept, chains)) if kept else _NOTHING
            self._forget_old()
            lengths = sorted(self._lengths.get(key, ()), reverse=True)
            rows = [
                row
                for length in lengths
                if length in chains
                for row in self._rows.get((tenant, chains[length]), {}).values()
                if row.length == length
            ]
            found = []
            for row, _, first in longest_of_each_kind(rows, lambda r: (r.artifact.binding, r.head), lambda r: r):
                found.append(row)
                if first:
                    self._touch(_key(row))
            return Found(tuple(found), _of(kept, chains) if kept else ())

    def save(self, checkpoint: Checkpoint) -> None:
        """Adds a checkpoint; one that is there under the same (tenant, chain, binding) stays as it is."""
        size = _size_of(checkpoint)
        with self._lock:
            self._check_open()
            if size > self._max_bytes:
                raise StoreError(f"store in memory: a checkpoint of {size} bytes is over its {self._max_bytes}")
            key = _key(checkpoint)
            if key in self._used:
                self._touch(key)
                return
            row = replace(checkpoint, created_at=self._clock())
            self._rows.setdefault((row.tenant, row.chain), {})[row.artifact.binding] = row
            self._lengths.setdefault((row.tenant, row.bucket), Counter())[row.length] += 1
            self._bytes += size
            self._touch(key)
            while len(self._used) > self._max_entries or self._bytes > self._max_bytes:
                self._forget(next(iter(self._used)))
            self._forget_old()

    def report(self, tenant: bytes, report: Report) -> None:
        """Adds a report; the newest 16 of its (tenant, bucket) are kept."""
        with self._lock:
            self._check_open()
            key = tenant, report.bucket
            kept = self._reports.get(key, ())
            others = [known for known in kept if not known.is_of_same_view(report)]
            newest = (*others, report)[-REPORTS_PER_BUCKET:]
            self._report_count += len(newest) - len(kept)
            self._reports[key] = newest
            self._reports.move_to_end(key)
            while self._report_count > self._max_entries and len(self._reports) > 1:
                _, gone = self._reports.popitem(last=False)
                self._report_count -= len(gone)

    def close(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._closed = True
            self._used.clear()
            self._rows.clear()
            self._lengths.clear()
            self._reports.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("store in memory: is closed")

    def _touch(self, key: _Key) -> None:
        self._used[key] = self._clock()
        self._used.move_to_end(key)

    def _forget_old(self) -> None:
        limit = self._clock() - self._retention
        while self._used and self._used[oldest := next(iter(self._used))] < limit:
            self._forget(oldest)

    def _forget(self, key: _Key) -> None:
        tenant, chain, binding = key
        del self._used[key]
        rows = self._rows[tenant, chain]
        row = rows.pop(binding)
        if not rows:
            del self._rows[tenant, chain]
        self._bytes -= _size_of(row)
        lengths = self._lengths[tenant, row.bucket]
        lengths[row.length] -= 1
        if not lengths[row.length]:
            del lengths[row.length]
        if not lengths:
            del self._lengths[tenant, row.bucket]


_NOTHING: Final = Found()


def _of(reports: tuple[Report, ...], chains: Mapping[int, bytes]) -> tuple[Report, ...]:
    """Those of a history's beginnings, newest first."""
    return tuple([report for report in reversed(reports) if chains.get(report.length) == report.chain])


def _key(row: Checkpoint) -> _Key:
    return row.tenant, row.chain, row.artifact.binding


def _size_of(row: Checkpoint) -> int:
    return _ROW_BYTES + sys.getsizeof(row.artifact.text) + sum(map(sys.getsizeof, row.artifact.items))
