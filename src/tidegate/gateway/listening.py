"""Serves an application on a bound socket until told to stop: with the gateway's own HTTP/1.1, or with uvicorn.

Knows loops, signals and the order of starting and stopping; not what is served. Called by `server` and `supervisor`.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.gateway import memory
from tidegate.gateway.http1 import Http1, Limits
from tidegate.gateway.http1_asgi import lifespan
from tidegate.gateway.http1_line import AsgiApplication

if TYPE_CHECKING:
    import uvicorn

BACKLOG: Final = 2048
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Server(Protocol):
    """What serves one application in one loop."""

    @property
    def started(self) -> bool:
        """It answers."""

    def run(self, bound: socket.socket) -> None:
        """Serves until `stop`, or until a signal where this is the main thread; such a signal is raised again at the
        end, so that the process ends by it."""

    def stop(self) -> None:
        """Ends `run` in good order. From any thread."""


class OwnServer:
    """Serves with `http1`."""

    def __init__(self, app: AsgiApplication, limits: Limits, *, drain_seconds: float) -> None:
        self._app = app
        self._limits = limits
        self._drain_seconds = drain_seconds
        self._stops = 0
        self._stopped: Callable[[], object] | None = None
        self.started = False

    def run(self, bound: socket.socket) -> None:
        """Serves."""
        with _signals(self._signalled), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve(bound))

    def stop(self) -> None:
        """Ends `run`; asked again, at once."""
        self._stops += 1
        if self._stopped is not None:
            self._stopped()

    def _signalled(self, number: int) -> None:
        # A second Ctrl-C means now. A supervisor's SIGTERM may well follow the terminal's SIGINT.
        if not self._stops or number == signal.SIGINT:
            self.stop()

    async def _serve(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        http = Http1(self._app, self._limits)
        http.on_quiet = memory.release
        asked = asyncio.Event()

        def stopped() -> None:
            asked.set()
            if self._stops > 1:
                http.cut()

        self._stopped = lambda: loop.call_soon_threadsafe(stopped)
        try:
            async with lifespan(self._app):
                accepting = await loop.create_server(http, sock=bound, backlog=BACKLOG)
                self.started = True
                if not self._stops:
                    await asked.wait()
                accepting.close()
                await http.drain(self._drain_seconds)
        finally:
            self._stopped = None


class UvicornServer:
    """Serves with uvicorn."""

    def __init__(self, app: AsgiApplication, *, drain_seconds: int) -> None:
        import uvicorn

        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            server_header=False,
            date_header=False,
            http="httptools",
            loop="uvloop" if sys.platform != "win32" else "asyncio",
            timeout_graceful_shutdown=drain_seconds,
            timeout_keep_alive=75,
            backlog=BACKLOG,
        )
        self._server: uvicorn.Server = uvicorn.Server(config)

    @property
    def started(self) -> bool:
        """It answers."""
        return self._server.started

    def run(self, bound: socket.socket) -> None:
        """Serves."""
        self._server.run(sockets=[bound])

    def stop(self) -> None:
        """Ends `run`."""
        self._server.should_exit = True


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


@contextmanager
def _signals(heard: Callable[[int], None]) -> Iterator[None]:
    """Passes signals to stop on to `heard`, and raises the first of them again at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        caught.append(number)
        heard(number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        signal.raise_signal(caught[0])
