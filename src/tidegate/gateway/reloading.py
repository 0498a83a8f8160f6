"""Reads the settings anew at a SIGHUP, and lets the gateway go by them without a pause.

Knows which settings hold for a running process, and what to tell of them; not what they mean. Called by `server`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

from tidegate.config import ConfigError, Settings
from tidegate.engine.request import Kit
from tidegate.gateway.app import App
from tidegate.providers import Catalogue, ProviderError
from tidegate.store import Keys

log = logging.getLogger("tidegate")

HANGUP: Final[int] = getattr(signal, "SIGHUP", 0)
"""0 where there is no such signal."""

_FIXED: Final[dict[str, frozenset[str]]] = {
    "server": frozenset({"host", "port", "body_limit_bytes", "drain_seconds", "http", "workers"}),
    "upstream": frozenset({"connect_timeout", "read_timeout", "max_connections", "ca_file", "http"}),
    "store": frozenset({"kind", "path", "retention_days", "max_bytes", "key_file", "key"}),
}
"""What a process is built with, by section."""


class Reloading:
    """The settings of one process that can be read anew."""

    def __init__(
        self,
        app: App,
        read: Callable[[], Settings],
        judging: Callable[[Settings, Keys], tuple[Catalogue, Kit]],
    ) -> None:
        """`read` raises `ConfigError`; `judging` makes what requests go by, and raises that or `ProviderError`.
        The signal is heard from now on. Called from the main thread."""
        self._app, self._read, self._judging = app, read, judging
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Lock()
        self._terminal = sys.stdin is not None and sys.stdin.isatty()
        self.pending = False
        """The signal was heard where no loop runs yet."""
        if HANGUP:
            signal.signal(HANGUP, self._note)
        app.on_serving = self._listen

    def reload(self) -> None:
        """Goes by the settings as they are now; where they are wrong, by those before, which is told in the log."""
        self.pending = False
        if not self._ended_with_terminal():
            self._tell(self._made())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pending = True

    def _listen(self) -> None:
        """Hears the signal in the loop that serves."""
        if HANGUP:
            with suppress(RuntimeError, ValueError):  # another thread than the main one has no signals
                asyncio.get_running_loop().add_signal_handler(HANGUP, self._heard)
        if self.pending:
            self._heard()

    def _heard(self) -> None:
        self.pending = False
        if not self._ended_with_terminal():
            task = asyncio.create_task(self._behind())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _behind(self) -> None:
        """Reads in a thread, so that no stream stands still for it."""
        async with self._reading:
            self._tell(await asyncio.to_thread(self._made))

    def _ended_with_terminal(self) -> bool:
        """Whether it is the terminal that hung up: then this process ends, in good order."""
        if not self._terminal or sys.stdin.isatty():
            return False
        signal.raise_signal(signal.SIGTERM)
        return True

    def _made(self) -> tuple[Settings, Catalogue, Kit] | Exception:
        try:
            settings, before = self._read(), self._app.settings.file
            if before is not None and settings.file is None:
                raise ConfigError(f"{before} is not there any more")
            return settings, *self._judging(as_running(settings, self._app.settings), self._app.keys)
        except Exception as error:
            return error

    def _tell(self, made: tuple[Settings, Catalogue, Kit] | Exception) -> None:
        try:
            if isinstance(made, Exception):
                raise made
            settings, catalogue, kit = made
            running = self._app.settings
            self._app.follow(as_running(settings, running), catalogue, kit)
        except (ConfigError, ProviderError, ValueError, OSError) as error:
            log.warning("settings read anew are wrong, and those before still hold: %s", error)
            return
        except Exception as error:
            # What nobody has thought of: it must end neither a worker nor the one that looks after them.
            log.warning("settings could not be read anew, and those before still hold: %s", type(error).__name__)
            return
        log.setLevel(settings.server.log_level.upper())
        log.info("settings read anew%s", f" from {settings.file}" if settings.file else "")
        for warning in settings.warnings:
            log.warning("%s", warning)
        for key in changed(settings, running):
            log.warning("%s (%s): holds only once the gateway is started anew", key, settings.origin(key))


def changed(settings: Settings, running: Settings) -> list[str]:
    """Dotted keys of what a process is built with that are another in `settings` than in what it runs with."""
    return [
        f"{section}.{key}"
        for section, keys in _FIXED.items()
        for key in sorted(keys)
        if getattr(getattr(settings, section), key) != getattr(getattr(running, section), key)
    ]


def as_running(settings: Settings, running: Settings) -> Settings:
    """The settings, but with what a process is built with as it runs with it."""
    kept = {}
    for section, keys in _FIXED.items():
        mine, theirs = getattr(settings, section), getattr(running, section)
        kept[section] = mine.model_copy(update={key: getattr(theirs, key) for key in keys})
    return settings.model_copy(update=kept)
