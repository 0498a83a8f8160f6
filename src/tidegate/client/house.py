"""What all clients of a process share: settings, providers, the store, and what judges requests.

Knows no SDK and makes no request. Called by the transports.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.config import Settings, load
from tidegate.drive import flights as waiting_flights
from tidegate.drive import thread_flights
from tidegate.drive.aio import Pace
from tidegate.engine.checkpoint import Store
from tidegate.engine.request import Kit
from tidegate.gateway.catalogue import catalogue
from tidegate.gateway.credentials import Tenants
from tidegate.gateway.kit import compactors_of, keys_of, make_kit, store_of
from tidegate.gateway.targets import Targets
from tidegate.store import SqliteStore
from tidegate.store.behind import Behind

Given = Mapping[str, Any]
"""Settings as tables, shaped like the configuration file: `{"compaction": {"threshold_percent": 70}}`."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the requests of one event loop, or of all threads without one, are judged with."""

    kit: Kit
    tenants: Tenants
    flights: waiting_flights.Flights


class House:
    """One set of settings, and all that requests under it share. Used from any thread and any event loop."""

    def __init__(self, settings: Settings) -> None:
        """Raises `ConfigError`, `ProviderError` and `StoreError` where a part can't be made as it was asked for."""
        self.settings = settings
        self._process = os.getpid()
        self.catalogue = catalogue(settings)
        self.targets = Targets(settings, self.catalogue)
        self.custom = compactors_of(settings)
        self._keys = keys_of(settings)
        store = store_of(settings, self._keys)
        self.store: Store = Behind(store) if isinstance(store, SqliteStore) else store
        self.lock = threading.RLock()
        """Held while a blocking request's exchange thinks: threads share what it thinks with."""
        self.kit = make_kit(settings, self.catalogue, self._keys)
        self.tenants = Tenants(self.kit.hasher)
        if self.kit.portable is not None:
            self.kit.portable.save = self.store.save
        self.flights = thread_flights.Flights(prepare_at_once=settings.compaction.prepare_at_once)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Tools] = weakref.WeakKeyDictionary()
        stream = settings.stream
        self.pace = Pace(hold_seconds=stream.hold_seconds, hold_bytes=stream.hold_bytes)

    def current(self) -> House:
        """This one, or in a process that was forked since another of the same settings: there, locks may be held for
        good, and the threads that write and compact are missing."""
        return self if self._process == os.getpid() else _known(self.settings)

    def here(self) -> Tools:
        """The tools of the running event loop: what one loop knows needs no lock."""
        loop = asyncio.get_running_loop()
        with self.lock:
            known = self._loops.get(loop)
            if known is None:
                kit = make_kit(self.settings, self.catalogue, self._keys)
                if kit.portable is not None:
                    kit.portable.save = self.store.save
                flights = waiting_flights.Flights(prepare_at_once=self.settings.compaction.prepare_at_once)
                known = self._loops[loop] = Tools(kit, Tenants(kit.hasher), flights)
        return known


@dataclass(slots=True)
class _Houses:
    known: dict[tuple[object, ...], House] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_houses = _Houses()


def _forked() -> None:
    _houses.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def house(config: str | os.PathLike[str] | None = None, given: Given | None = None) -> House:
    """The house of these settings: clients that ask for the same share one.

    `config` is a file (left out: the one that the gateway would read); `given` lies over it and over the environment.
    Raises `ConfigError`, `ProviderError`, `StoreError`.
    """
    return _known(load(Path(config) if config is not None else None, tables=given))


def _known(settings: Settings) -> House:
    # A file or an environment that has changed makes another: what is compared is what was read.
    key = (os.getpid(), str(settings.file), settings.model_dump_json(warnings=False), str(settings.store.key))
    with _houses.lock:
        known = _houses.known.get(key)
        if known is None:
            known = _houses.known[key] = House(settings)
        return known
