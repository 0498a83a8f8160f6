"""A store whose reports are written a moment later, by a thread, and are found at once.

Knows when; not how anything is kept. A report is worth less than a turn's time: what is lost with the process is a
calibration, never a checkpoint. Called by drivers from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from tidegate.engine.checkpoint import Checkpoint, Found, Report, Store, StoreError
from tidegate.store.record import REPORTS_PER_BUCKET

_SECONDS: Final = 0.5
"""How long reports are gathered: as long as others that share the store do not know of them."""
_MOST: Final = 4096
"""Reports that wait at most; the oldest are left out where the store can't keep up."""


@runtime_checkable
class Batches(Protocol):
    """A store that writes many reports cheaper together."""

    def report_all(self, reports: Sequence[tuple[bytes, Report]]) -> None:
        """Adds reports, each with its tenant. Raises `StoreError`."""
        ...


class Behind:
    """Wraps a store. `on_fault` hears of reports that could not be written; from any thread."""

    def __init__(
        self, store: Store, *, seconds: float = _SECONDS, on_fault: Callable[[StoreError], None] = lambda error: None
    ) -> None:
        self._store, self._seconds, self._on_fault = store, seconds, on_fault
        self._lock = threading.Lock()
        self._waiting: OrderedDict[tuple[bytes, bytes], list[Report]] = OrderedDict()
        self._writing: Mapping[tuple[bytes, bytes], list[Report]] = {}
        self._count = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def find(self, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]) -> Found:
        """See `Store`; reports that are still to be written included."""
        found = self._store.find(tenant, bucket, chains)
        key = tenant, bucket
        with self._lock:
            mine = [*self._writing.get(key, ()), *self._waiting.get(key, ())]
        if not mine:
            return found
        newest = [report for report in reversed(mine) if chains.get(report.length) == report.chain]
        older = [report for report in found.reports if not any(report.is_of_same_view(new) for new in newest)]
        return Found(found.checkpoints, (*newest, *older)[:REPORTS_PER_BUCKET])

    def save(self, checkpoint: Checkpoint) -> None:
        """See `Store`: at once."""
        self._store.save(checkpoint)

    def report(self, tenant: bytes, report: Report) -> None:
        """Keeps a report, to be written soon. Never waits for the store."""
        with self._lock:
            reports = self._waiting.setdefault((tenant, report.bucket), [])
            same = next((at for at, known in enumerate(reports) if known.is_of_same_view(report)), None)
            if same is None:
                self._count += 1
            else:
                del reports[same]
            reports.append(report)
            while self._count > _MOST:
                _, gone = self._waiting.popitem(last=False)
                self._count -= len(gone)
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="tidegate-reports", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Writes what waits. Raises nothing: `on_fault` hears of what goes wrong."""
        with self._lock:
            self._writing, self._waiting, self._count = self._waiting, OrderedDict(), 0
        try:
            self._write([(tenant, report) for (tenant, _), reports in self._writing.items() for report in reports])
        except StoreError as error:
            self._on_fault(error)
        except Exception as error:
            self._on_fault(StoreError(f"reports could not be written ({type(error).__name__})"))
        finally:
            with self._lock:
                self._writing = {}

    def _write(self, reports: Sequence[tuple[bytes, Report]]) -> None:
        if isinstance(self._store, Batches):
            self._store.report_all(reports)
        else:
            for tenant, report in reports:
                self._store.report(tenant, report)

    def close(self) -> None:
        """Writes what waits and closes the store."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
        self.flush()
        self._store.close()

    def _run(self) -> None:
        """Writes until nothing has come for a while: an idle process keeps no thread."""
        while not self._stop.wait(self._seconds):
            self.flush()
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
