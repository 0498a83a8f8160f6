"""A provider with a window, as a process, and gateways brought up before it: for sessions, not for CPU.

Knows how `window_upstream.py` is started and asked. Gateways have one core, all else the other.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from rig.gateways import Gateway, Place
from rig.processes import Running, cores, free_port, start, stop


@dataclass(frozen=True, slots=True)
class Provider:
    """The upstream with a window (tokens), and its notes."""

    running: Running
    port: int
    folder: Path
    window: int

    def notes(self) -> list[dict[str, object]]:
        """What it was asked since the last call."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/__notes", timeout=30) as answer:
            found: list[dict[str, object]] = json.load(answer)
        return found

    def bring_up(self, gateway: Gateway) -> tuple[Running | None, int]:
        """The gateway's process and port; raises `RuntimeError` if it does not come up."""
        if gateway.launch is None:
            return None, self.port
        place = Place(free_port(), self.port, self.folder / gateway.name.replace(" ", "-"), self.window)
        place.folder.mkdir(parents=True)
        launch = gateway.launch(place)
        running = start(gateway.name, launch.command, place.folder, cores()[0], launch.environment)
        if _answers(place.port, gateway.seconds, running):
            return running, place.port
        stop([running])
        raise RuntimeError(f"{gateway.name} does not come up; its log ends: {running.last_words()}")


def provide(folder: Path, window: int, summary_seconds: float = 0.0) -> Provider:
    """Starts the upstream; a summary takes it so many seconds."""
    port, program = free_port(), Path(__file__).with_name("window_upstream.py")
    command = [sys.executable, str(program), str(port), str(window), str(summary_seconds)]
    provider = Provider(start("upstream", command, folder / "upstream", cores()[1]), port, folder, window)
    if not _answers(port, 10, provider.running):
        raise RuntimeError(f"the upstream does not answer: {provider.running.last_words()}")
    return provider


def _answers(port: int, seconds: float, running: Running) -> bool:
    """Whether anything, also an error, is answered within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and running.alive():
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10).close()
            return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.3)
    return False
