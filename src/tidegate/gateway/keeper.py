"""Keeps what is learned of endpoints: read from the store at the start, saved there a little after it changes.

Knows when; not what is learned (`overflow.window`, `engine.capabilities`) nor how it is kept (`store`). Run by the app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

from tidegate.engine.capabilities import Capabilities, Seen
from tidegate.engine.checkpoint import Store, StoreError
from tidegate.overflow.learned import Learned
from tidegate.overflow.window import Windows
from tidegate.store import KeepsCapabilities, KeepsWindows

log = logging.getLogger("tidegate")

_EVERY: Final = 2.0
"""Seconds between two looks whether there is something to save: what a killed process has learned since is lost."""
_LOOK_EVERY: Final = 10.0
"""Seconds between two looks at what other processes have saved of what endpoints lack."""
_AFTER_FAILURE: Final = 60.0
"""Seconds before a store that has failed is tried again."""
_PATIENCE: Final = 3.0
"""Seconds that the start and the end of the gateway wait for the store."""

T = TypeVar("T")


class Learning(Protocol[T]):
    """What learns while requests are served."""

    def changed(self) -> tuple[T, ...]:
        """What has changed since this was asked last."""
        ...

    def unsaved(self, entries: Iterable[T]) -> None:
        """These could not be saved: they count as changed again."""
        ...

    def take_in(self, entries: Iterable[T]) -> int:
        """Takes up what was saved; how much of it was new."""
        ...


class _Shelf(Generic[T]):
    """One kind of what is learned, and where it is kept. A store that fails costs a warning, said once."""

    def __init__(
        self,
        name: str,
        learning: Learning[T],
        read: Callable[[], list[T]],
        save: Callable[[Iterable[T]], list[T]],
        look_every: float | None = None,
    ) -> None:
        """`look_every`: seconds between looks at what others have saved, None: never after the start."""
        self._name, self._learning, self._read, self._save = name, learning, read, save
        self._look_every = look_every
        self._warned = False
        self._rests_until = self._look_at = 0.0

    async def begin(self) -> None:
        """Takes up what is kept."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._look()
        except Exception as error:
            self._warn(error)

    async def due(self) -> None:
        """Saves what has changed, and looks at what others saved, where it is time."""
        now = asyncio.get_running_loop().time()
        if now < self._rests_until:
            return
        if self._look_every is not None and now >= self._look_at:
            try:
                await self._look()
            except Exception as error:
                self._failed(error)
                return
        await self.save()

    async def save(self) -> None:
        """Saves what has changed."""
        entries = self._learning.changed()
        if not entries:
            return
        try:
            self._learning.take_in(await asyncio.to_thread(self._save, entries))
        except Exception as error:
            self._learning.unsaved(entries)
            self._failed(error)

    async def _look(self) -> None:
        if self._look_every is not None:
            self._look_at = asyncio.get_running_loop().time() + self._look_every
        self._learning.take_in(await asyncio.to_thread(self._read))

    def _failed(self, error: Exception) -> None:
        self._rests_until = asyncio.get_running_loop().time() + _AFTER_FAILURE
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        """The type alone of what is no `StoreError`: a message may quote what it failed on."""
        if not self._warned:
            self._warned = True
            told = str(error) if isinstance(error, StoreError) else f"store: {type(error).__name__}"
            log.warning("%s: learned %s can't be kept", told, self._name)


class Keeper:
    """Saves in the background, never on a request's way."""

    def __init__(
        self,
        windows: Windows,
        store: Store,
        capabilities: Capabilities | None = None,
        *,
        every: float = _EVERY,
        look_every: float = _LOOK_EVERY,
    ) -> None:
        """A store that keeps nothing of the kind makes this do nothing. Times are seconds."""
        shelves: list[_Shelf[Learned] | _Shelf[Seen]] = []
        if isinstance(store, KeepsWindows):
            shelves.append(_Shelf("windows", windows, store.windows, store.save_windows))
        if capabilities is not None and isinstance(store, KeepsCapabilities):
            read, save = store.capabilities, store.save_capabilities
            shelves.append(_Shelf("capabilities", capabilities, read, save, look_every))
        self._shelves: Sequence[_Shelf[Learned] | _Shelf[Seen]] = shelves
        self._every = every
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes up what is kept, and begins to save what comes."""
        if not self._shelves:
            return
        await asyncio.gather(*(shelf.begin() for shelf in self._shelves))
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
            if not self._stopping.is_set():
                for shelf in self._shelves:
                    await shelf.due()
        for shelf in self._shelves:
            await shelf.save()
