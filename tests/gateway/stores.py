"""Stores that tell a test what was kept, or that fail it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tidegate.engine.checkpoint import Store
from tidegate.gateway.app import App


@dataclass
class Recorder:
    """A store with a list of what was saved."""

    inner: Store
    saved: list[Any] = field(default_factory=list)
    reported: list[Any] = field(default_factory=list)

    def find(self, tenant: bytes, bucket: bytes, chains: Any) -> Any:
        return self.inner.find(tenant, bucket, chains)

    def save(self, checkpoint: Any) -> None:
        self.saved.append(checkpoint)
        self.inner.save(checkpoint)

    def report(self, tenant: bytes, report: Any) -> None:
        self.reported.append(report)
        self.inner.report(tenant, report)

    def close(self) -> None:
        self.inner.close()

    @property
    def empty(self) -> bool:
        return not self.saved and not self.reported


@contextmanager
def recorded(app: App) -> Iterator[Recorder]:
    """What an application stores within the block."""
    recorder = Recorder(app.conversations.store)
    app.conversations.store = recorder
    try:
        yield recorder
    finally:
        app.conversations.store = recorder.inner


@dataclass
class Broken:
    """A store whose every method raises."""

    error: BaseException

    def find(self, tenant: bytes, bucket: bytes, chains: Any) -> Any:
        raise self.error

    def save(self, checkpoint: Any) -> None:
        raise self.error

    def report(self, tenant: bytes, report: Any) -> None:
        raise self.error

    def close(self) -> None:
        raise self.error
