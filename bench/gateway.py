"""What a gateway costs: CPU and waiting a request, a stream, a turn more; memory; beside nginx and other gateways.

    python bench/gateway.py                     tidegate, compiled and not, nginx, a bare relay; a quarter of an hour
    python bench/gateway.py --peers             and the gateways of others, which are installed first
    python bench/gateway.py --short             under a minute; fails where a ratio has doubled (bench/baseline.json)

Gateways have one core, load and upstream the other. Every round takes each scenario through all gateways, one right
after the other; figures are medians over rounds, ratios those of the same round. docs/benchmarks.md explains the bars.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rig import compiled, gateways, native, peers
from rig.bars import BARS, CHECKS, KEPT, watched
from rig.bodies import PATHS
from rig.gateways import Gateway, tidegate
from rig.measure import Bench, Live, Round, put_down, set_up
from rig.memory import memory
from rig.scenarios import SCENARIOS, Scenario
from rig.stall import stall
from rig.verdicts import SLACK, Figures, judge, median, number, ratio, table, worsened

NAMES = [*(one.name for one in SCENARIOS), "memory", "stall"]
Found = dict[str, dict[str, list[Round]]]


def say(words: str) -> None:
    print(f"# {words}", file=sys.stderr, flush=True)


def forms() -> list[Gateway]:
    """Tidegate as it is, and compiled where that can be; the last is the one that is held to the bars."""
    fast = compiled.gateway()
    if fast is None:
        say(f"{compiled.NAME} is left out: {compiled.package()[1]}")
    return [gateways.TIDEGATE, *([fast] if fast else [])]


def chosen_gateways(options: argparse.Namespace, tidegates: Sequence[Gateway]) -> list[Gateway]:
    """The gateways of this run, the base first, Tidegate in the forms given."""
    found = [gateways.DIRECT]
    if gateways.nginx_program():
        found += [gateways.NGINX_PROXY, gateways.NGINX_NOT_KEPT]
    else:
        say("nginx is not installed: ratios to it are left out")
    found += [gateways.RELAY, *tidegates, gateways.TIDEGATE_SQLITE]
    if options.against:
        source = options.against.resolve()
        found.append(Gateway("against", partial(tidegate, package=source / "src"), about=f"Tidegate of {source.name}"))
    if options.peers is not None:
        peers.install()
        found += peers.installed(options.peers.split(",") if options.peers else peers.NAMES)
    return [one for one in found if options.api in one.apis and one.name not in options.skip.split(",")]


def bring_up(bench: Bench, wanted: Sequence[Gateway]) -> list[Live]:
    """Those that come up; what doesn't is told and left out."""
    lives = []
    for gateway in wanted:
        try:
            lives.append(bench.bring_up(gateway))
        except RuntimeError as error:
            say(str(error))
    return lives


def measure(bench: Bench, lives: Sequence[Live], scenarios: Sequence[Scenario], rounds: int, seconds: float) -> Found:
    """Every scenario through every gateway, round by round, each round in the other order."""
    found: Found = {}
    for turn in range(rounds if scenarios else 0):
        for scenario in scenarios:
            by_gateway = found.setdefault(scenario.name, {})
            for live in lives if turn % 2 == 0 else lives[::-1]:
                if live.name not in peers.NAMES or scenario.for_peers:
                    by_gateway.setdefault(live.name, []).append(bench.run(live, scenario, seconds))
            if scenario.kind == "last turns":
                by_gateway.setdefault("bare scan", []).append(bench.scan(scenario))
        say(f"round {turn + 1} of {rounds}")
    for live in lives:
        if live.running is not None and b" fault " in live.running.log.read_bytes():
            say(f"{live.name} met faults of its own: some of its figures are those of plain relaying")
    return found


COLUMNS = (
    ("CPU µs", "cpu_us"),
    ("p50 µs", "latency_p50_us"),
    ("CPU ms / 1,000 chunks", "chunk_cpu_ms"),
    ("first byte p50 µs", "first_byte_p50_us"),
    ("chunk delay p50 µs", "chunk_delay_p50_us"),
    ("p99 µs", "chunk_delay_p99_us"),
    ("RSS MB", "rss_mb"),
    ("failures", "failures"),
)
OF_STREAMS = {"chunk_cpu_ms", "first_byte_p50_us", "chunk_delay_p50_us", "chunk_delay_p99_us"}
NOT_OF_STREAMS = {"cpu_us", "latency_p50_us"}


def scenario_table(figures: Figures, scenario: Scenario, bases: Sequence[str]) -> str:
    """All gateways in one scenario, with how many times the bases' CPU they take."""
    left_out = NOT_OF_STREAMS if scenario.kind == "stream" else OF_STREAMS
    columns = [(title, metric) for title, metric in COLUMNS if metric not in left_out]
    main = columns[0][1]
    rows = []
    for name in figures[scenario.name]:
        cells = [number(median(figures, scenario.name, name, metric)) for _, metric in columns]
        times = [number(ratio(figures, scenario.name, main, name, base)) for base in bases]
        rows.append([name, cells[0], *times, *cells[1:]])
    titles = [columns[0][0], *(f"× {base}" for base in bases), *(title for title, _ in columns[1:])]
    return table(["gateway", *titles], rows)


def bars_table(figures: Figures, names: Sequence[str], everything: bool) -> tuple[str, bool]:
    """The bars, those without a figure too if `everything` was asked for; and whether none is missed.

    `names` are those of Tidegate's forms: the last is held to the bars, the figures of the others stand beside, as does
    its multiple of an nginx that keeps its connections to the upstream.
    """
    judged = names[-1]
    others = [judge(BARS, figures, name) for name in names[:-1]]
    says = {True: "met", False: "missed", None: "not measured"}
    verdicts = []
    rows = []
    for verdict, *beside in zip(judge(BARS, figures, judged), *others, strict=True):
        if not everything and verdict.value is None:
            continue
        verdicts.append(verdict)
        bar = verdict.bar
        limit = f"{'≥' if bar.least else '≤'} {number(bar.limit)} {bar.unit}"
        stretch = f"{number(bar.stretch)} {bar.unit}" if bar.stretch is not None else ""
        result = "met, and the stretch" if verdict.stretched else says[verdict.met]
        values = [number(one.value) for one in (verdict, *beside)]
        kept = number(verdict.beside) if bar.beside else ""
        rows.append([f"{bar.point}. {bar.what}", *values, limit, stretch, result, kept])
    header = ["bar", judged, *names[:-1], "limit", "stretch", "result", f"{judged} × {KEPT}"]
    return table(header, rows), all(one.met is not False for one in verdicts)


def machine() -> str:
    """The machine in a line."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release().split('-')[0]}, "
        f"CPython {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )


def report(figures: Figures, scenarios: Sequence[Scenario], names: Sequence[str], markdown: bool) -> bool:
    """Prints the tables; whether no bar is missed. `names` are those of Tidegate's forms."""
    mark = "### " if markdown else "\n== "
    measured = {name for by_gateway in figures.values() for name in by_gateway}
    bases = [one.name for one in (gateways.NGINX_PROXY, gateways.NGINX_NOT_KEPT) if one.name in measured]
    bases = bases or [gateways.RELAY.name]
    bars, all_met = bars_table(figures, names, everything=len(scenarios) == len(SCENARIOS))
    if markdown:
        print(f"Machine: {machine()}.\n")
    print(f"{mark}Bars\n\n{bars}")
    for scenario in scenarios:
        print(f"\n{mark}{scenario.title}\n\n{scenario_table(figures, scenario, bases)}")
    for name in ("memory", "stall"):
        for gateway, rounds in figures.get(name, {}).items():
            rows = [[metric, number(median(figures, name, gateway, metric))] for metric in rounds[0]]
            print(f"\n{mark}{name.capitalize()}\n\n{table([gateway, 'measured'], rows)}")
    return all_met


SHORT_ROUNDS, SHORT_SECONDS = 3, 0.4
BASELINE = Path(__file__).with_name("baseline.json")


def short(folder: Path, update: bool) -> int:
    """Measures the watched ratios and compares them with the stored ones; the exit status."""
    bases = [gateways.NGINX_PROXY] if gateways.nginx_program() else []
    bases += [gateways.RELAY] if update or not bases else []
    scenarios = [one for one in SCENARIOS if one.name in {scenario for _, scenario, _ in CHECKS}]
    tidegates = forms()
    with set_up(folder, "chat") as bench:
        lives = bring_up(bench, [*bases, *tidegates])
        try:
            found = measure(bench, lives, scenarios, SHORT_ROUNDS, SHORT_SECONDS)
        finally:
            put_down(lives)
    stored: dict[str, dict[str, dict[str, float]]] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if update:
        for one in bases:
            for form in tidegates:
                ratios = watched(found, one.name, form.name)
                kept = stored.setdefault(form.name, {})
                kept[one.name] = {check: round(value, 2) for check, value in ratios.items() if value is not None}
        BASELINE.write_text(json.dumps(stored, indent=2) + "\n")
    base = bases[0].name
    bad = [form.name for form in tidegates if not _no_worse(found, form.name, base, stored)]
    return 1 if bad else 0


def _no_worse(found: Found, name: str, base: str, stored: Mapping[str, Mapping[str, Mapping[str, float]]]) -> bool:
    """Prints how the watched ratios of a form compare with the stored ones."""
    now, before = watched(found, base, name), stored.get(name, {}).get(base, {})
    worse = {missed.check for missed in worsened(before, now)}
    rows = [
        [check, number(value), number(before.get(check)), "WORSE" if check in worse else "ok"]
        for check, value in now.items()
    ]
    print(table([f"CPU of {name}", f"× {base}", "stored", f"{SLACK:g} times that is worse"], rows), end="\n\n")
    return not worse


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", metavar="NAMES", help=f"of: {', '.join(NAMES)}")
    add("--rounds", type=int, default=5, help="default: 5")
    add("--secs", type=float, default=2.0, help="seconds of a scenario's run; default: 2")
    add("--api", choices=list(PATHS), default="chat", help="default: chat")
    add("--peers", nargs="?", const="", metavar="NAMES", help=f"all, or of: {', '.join(peers.NAMES)}")
    add("--skip", default="", metavar="NAMES", help="gateways to leave out")
    add("--against", type=Path, metavar="CHECKOUT", help="another checkout of Tidegate, side by side")
    add("--summary-secs", type=float, default=5.0, help="of the stall scenario: seconds of a summary; default: 5")
    add("--json", type=Path, metavar="FILE", help="every round's figures")
    add("--markdown", action="store_true", help="the results' section of docs/benchmarks.md")
    add("--short", action="store_true", help="the short form, for CI")
    add("--update-baseline", action="store_true", help="with --short: store this run's ratios")
    return parser.parse_args()


def full(folder: Path, chosen: argparse.Namespace) -> int:
    """Measures what was asked for, prints it; the exit status."""
    names = chosen.only.split(",") if chosen.only else NAMES
    scenarios = [one for one in SCENARIOS if one.name in names]
    found: Found = {}
    skipped = chosen.skip.split(",")
    tidegates = [one for one in forms() if one.name not in skipped] or [gateways.TIDEGATE]
    with set_up(folder, chosen.api) as bench:
        lives = bring_up(bench, chosen_gateways(chosen, tidegates)) if scenarios else []
        try:
            found = measure(bench, lives, scenarios, chosen.rounds, chosen.secs)
        finally:
            put_down(lives)
        if "memory" in names:
            rounds = min(3, chosen.rounds)
            found["memory"] = {one.name: [memory(bench, one) for _ in range(rounds)] for one in tidegates}
    if "stall" in names:
        say(f"a session with summaries of {chosen.summary_secs:g} s")
        judged = tidegates[-1]
        found["stall"] = {judged.name: [stall(folder / "stall", judged, chosen.summary_secs)]}
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": machine(), "rounds": found}, indent=1))
    return 0 if report(found, scenarios, [one.name for one in tidegates], chosen.markdown) else 1


def main() -> int:
    chosen = options()
    lacking = native.missing()
    if lacking:
        say(f"no figures: the bench needs {lacking}")
        return 0 if chosen.short else 2
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        return short(Path(name), chosen.update_baseline) if chosen.short else full(Path(name), chosen)


if __name__ == "__main__":
    sys.exit(main())
