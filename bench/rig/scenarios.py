"""What is sent through each gateway: bodies sent again, conversations that grow, streams.

A scenario is one run of the load generator; how often and through what is `bench/gateway.py`'s matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from rig.bodies import Api, Written, write
from rig.native import cache

Kind = Literal["resent", "growing", "last turns", "stream"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to load a gateway.

    resent      one body, again and again: a known conversation
    growing     conversations that begin with a turn and grow by one a request, up to `size` bytes; then the next
    last turns  the last `turns` turns of one conversation of `size` bytes; what comes before is sent once, unmeasured
    stream      one short body, answered by `chunks` chunks, `interval_us` apart
    """

    name: str
    title: str
    kind: Kind
    size: int
    connections: int = 1
    seconds: float = 1.0  # of the run's length, as given by --secs
    requests: int | None = None
    chunks: int = 0
    interval_us: int = 0
    turns: int = 25
    for_peers: bool = True


SCENARIOS = (
    Scenario("1k", "1 KB, one at a time", "resent", 1_000),
    Scenario("1k_c32", "1 KB, 32 at once", "resent", 1_000, connections=32),
    Scenario("100k", "100 KB, one at a time", "resent", 100_000),
    Scenario("1m", "1 MB, one at a time", "resent", 1_000_000),
    Scenario("4m", "4 MB, one at a time", "resent", 4_000_000, for_peers=False),
    Scenario("grow_100k", "sessions from 4 KB to 100 KB, 8 at once", "growing", 100_000, connections=8, seconds=1.5),
    Scenario("turns_1m", "a turn more of 1 MB", "last turns", 1_000_000, requests=40, turns=41),
    Scenario("turns_4m", "a turn more of 4 MB, 2,000 items", "last turns", 4_000_000, requests=24, for_peers=False),
    Scenario(
        "streams_20", "20 streams, 10 ms a chunk", "stream", 1_000, 20, requests=20, chunks=300, interval_us=10_000
    ),
    Scenario("first_20", "20 streams, short", "stream", 1_000, 20, requests=300, chunks=8, interval_us=10_000),
    Scenario(
        "streams_500", "500 streams, 250 ms a chunk", "stream", 1_000, 500, requests=500, chunks=20, interval_us=250_000
    ),
)
BY_NAME: Mapping[str, Scenario] = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass(frozen=True, slots=True)
class Step:
    """Arguments for the load generator; a step that is not measured only makes a conversation known."""

    arguments: tuple[str, ...]
    measured: bool = True


@dataclass(slots=True)
class Bodies:
    """The files that the load generator sends, in `folder`, and the numbers of conversations not yet sent."""

    api: Api
    folder: Path = field(default_factory=lambda: cache() / "bodies")
    numbers: count[int] = field(default_factory=lambda: count(1, 10_000))
    made: set[Path] = field(default_factory=set)

    def steps(self, scenario: Scenario, seconds: float) -> list[Step]:
        """The runs of the load generator that make up the scenario."""
        connections = ("-c", str(scenario.connections))
        lasting = ("-d", str(seconds * scenario.seconds), "-w", "0.3")
        number = ("-k", str(next(self.numbers)))
        match scenario.kind:
            case "resent":
                return [Step(("-b", str(self.whole(scenario)), *connections, *lasting))]
            case "growing":
                return [Step(("-g", str(self._sessions(scenario)), *connections, *lasting, *number))]
            case "last turns":
                file = ("-g", str(self._sessions(scenario)), *number)
                return [
                    Step((*file, "-n", "1"), measured=False),
                    Step((*file, "-n", str(scenario.requests), "-o", "1")),
                ]
            case "stream":
                bounded = ("-n", str(scenario.requests), "-r", "1000", "-s", "-e", str(scenario.chunks))
                return [Step(("-b", str(self.whole(scenario)), *connections, *bounded))]

    def short(self) -> Path:
        """A short body, to see who answers."""
        return self.whole(BY_NAME["1k"])

    def whole(self, scenario: Scenario) -> Path:
        """The scenario's body, or its conversation at its longest."""
        return self._file(scenario, lambda written: written.whole(), "body")

    def _sessions(self, scenario: Scenario) -> Path:
        def content(written: Written) -> bytes:
            return written.sessions(len(written.turns) - scenario.turns + 1 if scenario.kind == "last turns" else 1)

        return self._file(scenario, content, "sessions")

    def _file(self, scenario: Scenario, content: Callable[[Written], bytes], kind: str) -> Path:
        path = self.folder / f"{self.api}-{scenario.name}.{kind}"
        if path not in self.made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content(write(self.api, scenario.size, stream=scenario.kind == "stream")))
            self.made.add(path)
        return path
