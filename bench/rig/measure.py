"""One scenario through one gateway, and what it cost: CPU, waiting, memory, failures.

Knows how a gateway is brought up and when it answers. CPU is what the scheduler counted for the gateway's processes:
other work on the machine hardly moves it, unlike all that is read from a clock.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.bodies import PATHS, Api
from rig.gateways import Gateway, Place
from rig.native import Load, Upstream, build
from rig.processes import Running, cores, free_port, start, stop
from rig.scenarios import Bodies, Scenario

Round = dict[str, float]
"""What one run found, by the metric's name."""

FAILURES = ("failed_connects", "failed_statuses", "cut", "short_streams", "timed_out")
SCAN = """
import json, sys, time
import msgspec
class Body(msgspec.Struct):
    messages: list[msgspec.Raw] = []
    input: list[msgspec.Raw] = []
body = open(sys.argv[1], "rb").read()
decode = msgspec.json.Decoder(Body).decode
times = []
for _ in range(15):
    began = time.thread_time_ns()
    decode(body)
    times.append(time.thread_time_ns() - began)
print(sorted(times)[7] / 1e3)
"""


@dataclass(frozen=True, slots=True)
class Live:
    """A gateway that answers, and where; no process: the upstream itself."""

    name: str
    port: int
    running: Running | None
    idle_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Bench:
    """The upstream, the load generator and the bodies of a run; one core for gateways, one for these."""

    folder: Path
    api: Api
    upstream: Upstream
    load: Load
    bodies: Bodies
    gateway_core: int | None

    @property
    def path(self) -> str:
        return PATHS[self.api]

    def probe(self, port: int) -> dict[str, Any]:
        """One short request."""
        return self.load.run(port, self.path, "-b", str(self.bodies.short()), "-n", "1", "-T", "10")

    def bring_up(self, gateway: Gateway, window: int = 8_000_000) -> Live:
        """Starts a gateway and waits until it answers a request; raises `RuntimeError` if it doesn't."""
        if gateway.launch is None:
            return Live(gateway.name, self.upstream.port, None)
        self.upstream.set(stream=0)
        place = Place(free_port(), self.upstream.port, self.folder / f"{gateway.name}-{free_port()}", window)
        place.folder.mkdir(parents=True)
        launch = gateway.launch(place)
        running = start(gateway.name, launch.command, place.folder, self.gateway_core, launch.environment)
        until = time.monotonic() + gateway.seconds
        found: dict[str, Any] = {}
        while time.monotonic() < until and running.alive():
            found = self.probe(place.port)
            if found["answered"]:
                time.sleep(0.2)
                return Live(gateway.name, place.port, running, running.rss_mb())
            time.sleep(0.3)
        stop([running])
        raise RuntimeError(f"{gateway.name} does not answer: {found}; its log ends: {running.last_words()}")

    def run(self, live: Live, scenario: Scenario, seconds: float) -> Round:
        """Runs the scenario once."""
        streams = scenario.kind == "stream"
        self.upstream.set(stream=int(streams), chunks=scenario.chunks, interval_us=scenario.interval_us)
        found: Round = {}
        for step in self.bodies.steps(scenario, seconds):
            if not step.measured:
                self.load.run(live.port, self.path, *step.arguments)
                continue
            before, cpu = self.upstream.stats(), _cpu_ns(live)
            with _peak(live) as peak:
                seen = self.load.run(live.port, self.path, *step.arguments)
            spent, after = _cpu_ns(live) - cpu, self.upstream.stats()
            requests, chunks = after["requests"] - before["requests"], after["chunks"] - before["chunks"]
            found = {"failures": float(sum(seen.get(name, 0) for name in FAILURES)), "requests": float(requests)}
            found["answered"] = float(seen["answered"])
            if not seen["answered"]:
                found["failures"] = max(1.0, found["failures"])
                continue
            if live.running is not None:
                found["cpu_us"] = spent / 1e3 / max(requests, 1)
                found["rss_mb"] = max(peak)
                if chunks:
                    found["chunk_cpu_ms"] = spent / 1e6 / chunks * 1000
            for name in ("latency", "first_byte", "chunk_delay", "stream_delay"):
                for part in ("p50", "p99", "max"):
                    if f"{name}_us" in seen:
                        found[f"{name}_{part}_us"] = seen[f"{name}_us"][part]
        return found

    def scan(self, scenario: Scenario) -> Round:
        """The bare scan of the scenario's body: where each item begins and ends, nothing built (msgspec)."""
        pinned = [] if self.gateway_core is None else ["taskset", "-c", str(self.gateway_core)]
        command = [*pinned, sys.executable, "-c", SCAN, str(self.bodies.whole(scenario))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return {"cpu_us": float(done.stdout)}


@contextlib.contextmanager
def set_up(folder: Path, api: Api) -> Iterator[Bench]:
    """A bench with its upstream running; builds the two programs first."""
    gateway_core, other_core = cores()
    upstream = Upstream(free_port())
    running = start("upstream", [str(build("upstream")), str(upstream.port)], folder / "upstream", other_core)
    bench = Bench(folder, api, upstream, Load(build("load"), other_core), Bodies(api), gateway_core)
    try:
        _await(upstream)
        yield bench
    finally:
        stop([running])


def put_down(lives: Sequence[Live]) -> None:
    """Ends gateways."""
    stop([live.running for live in lives if live.running is not None])


def _await(upstream: Upstream) -> None:
    for _ in range(50):
        with contextlib.suppress(OSError):
            upstream.stats()
            return
        time.sleep(0.1)
    raise RuntimeError("the upstream does not answer")


def _cpu_ns(live: Live) -> int:
    return live.running.cpu_ns() if live.running is not None else 0


@contextlib.contextmanager
def _peak(live: Live) -> Iterator[list[float]]:
    """Resident MB while the block runs, looked up once a second, and once at its end."""
    seen: list[float] = []
    done = threading.Event()

    def look() -> None:
        while live.running is not None and not done.wait(1.0):
            seen.append(live.running.rss_mb())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()
        if live.running is not None:
            seen.append(live.running.rss_mb())
