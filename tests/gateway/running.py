"""A simulator with a gateway in front of it, for a test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate import config
from tidegate.gateway.app import App
from tidegate.gateway.server import serving
from tidegate.simulator import Simulator, SimulatorSettings, serve


@dataclass
class Running:
    base: str
    app: App
    simulator: Simulator

    @property
    def records(self) -> list[Any]:
        return list(self.simulator.state.records)

    def of(self, kind: str) -> list[Any]:
        return [record for record in self.records if record.kind == kind]

    @property
    def violations(self) -> list[Any]:
        return [record.violation for record in self.records if record.violation]


def settings(toml: str = "", **flags: Any) -> config.Settings:
    """Settings of a gateway on any port with a store in memory, which asks no questions of its own; `toml` is a
    configuration file's text, flags are dotted keys with `__` for the dots."""
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    given = {"port": 0, "store.kind": "memory", "server.log_level": "error", "upstream.ask_windows": False, **dotted}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tidegate.toml"
        path.write_text(toml)
        return config.load(path, given, {})


@contextmanager
def running(
    simulated: SimulatorSettings | None = None, *, window: int | None = None, toml: str = "", **flags: Any
) -> Iterator[Running]:
    """The gateway sends everything to the simulator; `window` is what it knows of every model."""
    known = f'[models."*"]\nwindow = {window}\n' if window else ""
    with (
        serve(simulated) as simulator,
        serving(settings(toml + known, upstream=simulator.url, **flags)) as (base, app),
    ):
        yield Running(base, app, simulator)
