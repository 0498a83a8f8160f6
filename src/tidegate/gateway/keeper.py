"""Keeps what is learned of windows: reads it from the store at the start, and saves it there a little after it changes.

Knows when; not what is learned (`overflow.window`) nor how it is kept (`store.windows`). Run by the app.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from tidegate.engine.checkpoint import Store, StoreError
from tidegate.overflow.window import Windows
from tidegate.store import KeepsWindows

log = logging.getLogger("tidegate")

_EVERY: Final = 2.0
"""Seconds between two looks whether there is something to save: what a killed process has learned since is lost."""
_AFTER_FAILURE: Final = 60.0
"""Seconds before a store that has failed is tried again."""
_PATIENCE: Final = 3.0
"""Seconds that the start and the end of the gateway wait for the store."""


class Keeper:
    """Saves in the background, never on a request's way. A store that fails costs a warning, said once."""

    def __init__(self, windows: Windows, store: Store, *, every: float = _EVERY) -> None:
        """A store that keeps no windows makes this do nothing."""
        self._windows = windows
        self._store = store if isinstance(store, KeepsWindows) else None
        self._every = every
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._warned = False
        self._rests_until = 0.0

    async def start(self) -> None:
        """Takes up what is kept, and begins to save what comes."""
        if self._store is None:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                self._windows.take_in(await asyncio.to_thread(self._store.windows))
        except Exception as error:
            self._warn(error)
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Saves the rest."""
        if self._task is None:
            return
        self._stopping.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._task

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._stopping.wait()
            if not self._stopping.is_set() and asyncio.get_running_loop().time() >= self._rests_until:
                await self._save()
        await self._save()

    async def _save(self) -> None:
        store, entries = self._store, self._windows.changed()
        if store is None or not entries:
            return
        try:
            self._windows.take_in(await asyncio.to_thread(store.save_windows, entries))
        except Exception as error:
            self._windows.unsaved(entries)
            self._rests_until = asyncio.get_running_loop().time() + _AFTER_FAILURE
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        """The type alone of what is no `StoreError`: a message may quote what it failed on."""
        if not self._warned:
            self._warned = True
            told = str(error) if isinstance(error, StoreError) else f"store: {type(error).__name__}"
            log.warning("%s: learned windows can't be kept", told)
