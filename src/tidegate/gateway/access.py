"""Writes the lines of requests that are over: gathered for a moment, so that a line costs a request next to nothing.

Knows a stream and the loop's clock; not what a line says. Used by the app where the process is the gateway's own.
"""

from __future__ import annotations

import asyncio
import atexit
import time
from typing import Final, Protocol

GATHERED_SECONDS: Final = 0.2
"""How long lines wait for others."""
MOST: Final = 1024
"""Lines that wait at most."""


class Stream(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> object:
        """Takes a text."""

    def flush(self) -> object:
        """Lets go of it."""


class AccessLog:
    """Lines in the form of the other logs. For one thread: its loop's, where it has one."""

    def __init__(self, stream: Stream, *, level: str = "INFO", name: str = "tidegate.access") -> None:
        self._stream = stream
        self._about = f" {level} {name} "
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._second = -1
        self._stamp = ""
        atexit.register(self.flush)

    def write(self, line: str) -> None:
        """Takes a line. Never raises for a stream that is broken."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        millis = str(1000 + int((now - second) * 1000))[1:]
        self._lines.append(self._stamp + "," + millis + self._about + line + "\n")
        if len(self._lines) >= MOST:
            self.flush()
        elif self._timer is None:
            self._later()

    def flush(self) -> None:
        """Writes what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            try:
                self._stream.write("".join(lines))
                self._stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads it any more

    def _later(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        self._timer = loop.call_later(GATHERED_SECONDS, self.flush)
