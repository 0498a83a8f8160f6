"""Runs a simulator: in the foreground for people, in a thread for tests and the demo.

Knows uvicorn. Called by the CLI, tests, demo and benches.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidegate.simulator.app import SimulatorApp, create_app
from tidegate.simulator.script import Step
from tidegate.simulator.settings import SimulatorSettings
from tidegate.simulator.state import SimulatorState


class _Protocol(HttpToolsProtocol):
    """Lends the app its transport, so that a scripted fault can break the connection off."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}


@dataclass(frozen=True, slots=True)
class Simulator:
    """A running simulator."""

    url: str
    """Like `http://127.0.0.1:51234`; the APIs are at `url` and at `url + "/v1"`."""
    app: SimulatorApp

    @property
    def state(self) -> SimulatorState:
        """What it saw."""
        return self.app.state

    def script(self, *steps: Step) -> None:
        """Adds scripted steps for the next requests."""
        self.app.state.script.push(*steps)

    def configure(self, **changes: Any) -> None:
        """Changes settings for the requests to come."""
        self.app.configure(replace(self.app.settings, **changes))

    def reset(self) -> None:
        """Forgets every request, the script and what is stored."""
        self.app.state.reset()


def run(
    settings: SimulatorSettings,
    host: str = "127.0.0.1",
    port: int = 9484,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Serves until interrupted; port 0 takes a free one. `announce` is told the URL once it listens.

    Raises `OSError` where the address can't be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        if announce is not None:
            shown = f"[{host}]" if ":" in host else host
            announce(f"http://{shown}:{listener.getsockname()[1]}")
        uvicorn.Server(_config(create_app(settings), log_level="warning")).run(sockets=[listener])


@contextmanager
def serve(settings: SimulatorSettings | None = None) -> Iterator[Simulator]:
    """A simulator on a free loopback port, in a thread of its own, for as long as the block lasts.

    Raises `RuntimeError` where it does not start within ten seconds.
    """
    app = create_app(settings or SimulatorSettings())
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(_config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True, name="simulator")
    thread.start()
    try:
        for _ in range(2000):
            if server.started:
                break
            thread.join(0.005)
        else:
            raise RuntimeError("the simulator did not start within ten seconds")
        yield Simulator(f"http://127.0.0.1:{listener.getsockname()[1]}", app)
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
        listener.close()


def _config(app: SimulatorApp, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        **options,
    )
