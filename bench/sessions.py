"""Sessions of 40 turns that outgrow their window, through Tidegate and other gateways: who fails, and what it costs.

    python bench/sessions.py                 tidegate alone, and no gateway
    python bench/sessions.py --peers         and the gateways of others, which are installed first

Both shapes (a user at each step, a user once) on chat, messages and responses. docs/benchmarks.md explains the columns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from rig import compiled, gateways, peers
from rig.agent import Agent, Seen, Shape, seen, tool_result
from rig.bodies import PATHS, Api
from rig.gateways import Gateway, tidegate
from rig.processes import Running, cores, stop
from rig.verdicts import number, table
from rig.windowed import Provider, provide

EARLIER = "\n[compaction]\nthreshold_percent = 73\nprepare_percent = 60\n"
"""From where cliffcompaction and ctxkeeper are told to compact here."""
ELIDES = '\n[compaction]\nstrategies = ["elide", "summary"]\n'


def ours(package: Path) -> list[Gateway]:
    """Tidegate as it is, with tool results left out first, with the threshold of others, and before an upstream of
    which nothing is known."""
    return [
        Gateway("tidegate", partial(tidegate, package=package, caches=True)),
        Gateway("tidegate, elide first", partial(tidegate, package=package, caches=True, more=ELIDES)),
        Gateway("tidegate, from 73 %", partial(tidegate, package=package, caches=True, more=EARLIER)),
        Gateway("tidegate, nothing known", partial(tidegate, package=package, models=False)),
    ]


@dataclass(frozen=True, slots=True)
class Plan:
    """A session: its API and shape, how many turns, how large a tool's result is."""

    api: Api
    shape: Shape
    turns: int
    result_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One session through one gateway."""

    gateway: str
    api: Api
    shape: Shape
    failures: int
    p50_ms: float
    cpu_ms: float
    seen: Seen
    p50s: tuple[float, ...] = ()
    """Of every round."""


def session(provider: Provider, up: tuple[Running | None, int], name: str, plan: Plan) -> Row:
    """One session through the gateway that is up."""
    running, port = up
    provider.notes()  # of the session before
    agent = Agent(plan.api, plan.shape, f"http://127.0.0.1:{port}", plan.result_bytes, name=f"{name} {time.time_ns()}")
    before = running.cpu_ns() if running is not None else 0
    done = [agent.act() for _ in range(plan.turns)]
    cpu_ms = (running.cpu_ns() - before) / 1e6 / plan.turns if running is not None else 0.0
    failures = sum(turn.status != 200 for turn in done)
    p50_ms = statistics.median(turn.seconds for turn in done) * 1000
    results = {tool_result(number, plan.result_bytes) for number in range(plan.turns)}
    return Row(name, plan.api, plan.shape, failures, p50_ms, cpu_ms, seen(provider.notes(), results))


def typical(rounds: Sequence[Row]) -> Row:
    """The first round's session, with the medians of what is read from a clock."""
    medians = {name: statistics.median(getattr(row, name) for row in rounds) for name in ("p50_ms", "cpu_ms")}
    failures = max(row.failures for row in rounds)
    return replace(rounds[0], failures=failures, p50s=tuple(row.p50_ms for row in rounds), **medians)


def slower(row: Row, other: Row) -> float:
    """The median of the rounds' own ratios: what slows the machine for a while slows both."""
    return statistics.median(one / two for one, two in zip(row.p50s, other.p50s, strict=True))


def say(words: str) -> None:
    print(f"# {words}", file=sys.stderr, flush=True)


HEADER = (
    "gateway", "failures", "orphans", "newest whole", "prefix kept", "new", "reused", "cost", "p50 ms", "CPU ms",
    "summaries", "refused",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """A row of a session's table."""
    came = row.seen
    return [
        row.gateway, str(row.failures), str(came.orphans), f"{came.whole} of {came.requests}",
        f"{came.kept} of {came.kept_of}", f"{came.new:,}", f"{came.reused:,}", f"{came.cost:,}", number(row.p50_ms),
        number(row.cpu_ms) if row.cpu_ms else "", str(came.summaries), str(came.refused),
    ]  # fmt: skip


HELD = ("tidegate", "tidegate, elide first")
"""The rows that are held to bars."""


def bars(rows: Sequence[Row]) -> tuple[list[list[str]], bool]:
    """What Tidegate is held to in each session, and whether nothing is missed."""
    lines, missed = [], 0
    for row in sorted((one for one in rows if one.gateway in HELD), key=lambda one: HELD.index(one.gateway)):
        others = {one.gateway: one for one in rows if (one.api, one.shape) == (row.api, row.shape)}
        rivals = [one for name, one in others.items() if name in peers.NAMES and not one.failures]
        whole = [one for one in rivals if one.seen.whole == one.seen.requests]
        alike = [one for one in whole if bool(one.seen.summaries) == bool(row.seen.summaries)]
        cliff = others.get("cliffcompaction")
        checks: list[tuple[str, bool | None]] = [
            (str(row.failures + row.seen.orphans), row.failures + row.seen.orphans == 0),
            (f"{row.seen.kept} of {row.seen.kept_of}", row.seen.kept == row.seen.kept_of),
            *(_cheapest(row, some) for some in (alike, whole, rivals)),
            (number(slower(row, cliff)), slower(row, cliff) <= 1 / 5) if cliff else ("", None),
        ]
        missed += sum(met is False for _, met in checks)
        shown = [f"{text}{'' if met is None else ': met' if met else ': missed'}" for text, met in checks]
        lines.append([f"{row.gateway}: {row.api}, {row.shape}", *shown])
    return lines, not missed


def _cheapest(row: Row, rivals: Sequence[Row]) -> tuple[str, bool | None]:
    """Our cost against the cheapest of these."""
    if not rivals:
        return "", None
    best = min(rivals, key=lambda one: one.seen.cost)
    return f"{number(row.seen.cost / best.seen.cost)} × {best.gateway}", row.seen.cost < best.seen.cost


def report(rows: Sequence[Row], markdown: bool) -> bool:
    """Prints the bars and a table for each API and shape; whether no bar is missed."""
    mark = "### " if markdown else "\n== "
    lines, all_met = bars(rows)
    header = [
        "session", "failures, orphans", "prefix kept", "cost to the cheapest that works alike",
        "of those with the newest result whole", "of all without failures", "p50 to cliffcompaction's (≤ 0.2)",
    ]  # fmt: skip
    print(f"{mark}Bars\n\n{table(header, lines)}")
    for api in PATHS:
        for shape in get_args(Shape):
            found = [cells(row) for row in rows if (row.api, row.shape) == (api, shape)]
            if found:
                print(f"\n{mark}{api}, {shape}\n\n{table(HEADER, found)}")
    return all_met


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="?", const="", metavar="NAMES", help=f"all, or of: {', '.join(peers.NAMES)}")
    parser.add_argument("--api", choices=list(PATHS), action="append", help="default: all three")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of all sessions, one gateway after the other; default: 3"
    )
    parser.add_argument("--turns", type=int, default=40, help="default: 40")
    parser.add_argument("--result-bytes", type=int, default=4400, help="bytes of a tool's result; default: 4400")
    parser.add_argument("--window", type=int, default=32_768, help="tokens, of four bytes; default: 32768")
    parser.add_argument("--plain", action="store_true", help="do not build the compiled form")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all rows")
    parser.add_argument("--markdown", action="store_true", help="the tables of docs/benchmarks.md")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    package, why_not = (None, "asked for") if chosen.plain else compiled.package()
    say(f"tidegate runs {'compiled' if package else f'from its sources ({why_not})'}")
    wanted = [gateways.DIRECT, *ours(package or gateways.ROOT / "src")]
    if chosen.peers is not None:
        peers.install()
        wanted += peers.installed(chosen.peers.split(",") if chosen.peers else peers.NAMES)
    if (core := cores()[1]) is not None:
        os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        provider = provide(Path(name), chosen.window)
        up: dict[str, tuple[Running | None, int]] = {}
        try:
            for gateway in wanted:
                try:
                    up[gateway.name] = provider.bring_up(gateway)
                except RuntimeError as error:
                    say(str(error))
            plans = [
                (gateway, Plan(api, shape, chosen.turns, chosen.result_bytes))
                for api in chosen.api or list(PATHS)
                for shape in get_args(Shape)
                for gateway in wanted
                if gateway.name in up and api in gateway.apis
            ]
            rounds = []
            for count in range(chosen.rounds):
                # The next round the other way round, as gateway.py does.
                order = plans[:: 1 if count % 2 == 0 else -1]
                done = [session(provider, up[gateway.name], gateway.name, plan) for gateway, plan in order]
                rounds.append(done[:: 1 if count % 2 == 0 else -1])
                say(f"round {count + 1}")
        finally:
            stop([running for running, _ in up.values() if running is not None] + [provider.running])
    rows = [typical(of_all) for of_all in zip(*rounds, strict=True)]
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if report(rows, chosen.markdown) else 1


if __name__ == "__main__":
    sys.exit(main())
