"""Processes under measurement: started on one core, asked what they have used, and ended.

Knows Linux's /proc and its clocks; says nothing about what runs in them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Running:
    """A started process, the leader of its own group."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def cpu_ns(self) -> int:
        """Nanoseconds of CPU that the process and its children have used, as the scheduler counts them."""
        return sum(_process_ns(pid) for pid in _family(self.process.pid))

    def rss_mb(self) -> float:
        """Resident memory of the process and its children, in MB."""
        return sum(_rss_kb(pid) for pid in _family(self.process.pid)) / 1024

    def alive(self) -> bool:
        return self.process.poll() is None

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-400:].strip()


def start(
    name: str,
    command: Sequence[str],
    folder: Path,
    core: int | None,
    environment: Mapping[str, str] | None = None,
) -> Running:
    """Starts a command in `folder`, where its log goes too, on one core if one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*pinned, *command],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(name, process, log)


def stop(running: Sequence[Running]) -> None:
    """Ends the groups of these processes, by force what is still there after five seconds."""
    for one in running:
        _signal(one, signal.SIGTERM)
    until = time.monotonic() + 5
    for one in running:
        try:
            one.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(one, signal.SIGKILL)
            one.process.wait()


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cores() -> tuple[int | None, int | None]:
    """One core for what is measured and one for the rest; none where there is only one."""
    mine = sorted(os.sched_getaffinity(0))
    return (mine[0], mine[1]) if len(mine) > 1 else (None, None)


def _signal(running: Running, number: signal.Signals) -> None:
    try:
        os.killpg(running.process.pid, number)
    except ProcessLookupError:
        pass


def _family(leader: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text().rsplit(") ", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry))
    found, left = [], [leader]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def _process_ns(pid: int) -> int:
    """All threads of a process, those that have ended too: its CPU clock, as `clock_getcpuclockid(3)` names it."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def _rss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
