"""The two C programs of the benches: built where they are missing or older than their source, and driven.

Knows their command lines and their JSON; the comments that begin `load.c` and `upstream.c` explain them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEY = "sk-bench-1234567890abcdef"
"""What the benches' client gives as its key."""


def cache() -> Path:
    """Where programs, bodies and peers are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tidegate-bench"


def missing() -> str | None:
    """What this machine lacks to run the benches, if anything."""
    if not sys.platform.startswith("linux"):
        return "Linux (for epoll, /proc and the CPU clocks of processes)"
    return None if _compiler() else "a C compiler (gcc or cc)"


def build(name: str) -> Path:
    """The program of `name`.c."""
    source, program = HERE / f"{name}.c", cache() / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        compiler = _compiler()
        assert compiler
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", program, source], check=True)
    return program


def _compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


@dataclass(frozen=True, slots=True)
class Load:
    """The load generator, on its core."""

    program: Path
    core: int | None

    def run(self, port: int, path: str, *arguments: str) -> dict[str, Any]:
        """What one run saw; `{"answered": 0, "error": …}` where it could not even start."""
        pinned = [] if self.core is None else ["taskset", "-c", str(self.core)]
        key = ["-H", f"Authorization: Bearer {KEY}", "-H", "anthropic-version: 2023-06-01"]
        command = [*pinned, str(self.program), "-p", str(port), "-u", path, *key, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {"answered": 0, "error": done.stderr[-300:]}
        return found


@dataclass(frozen=True, slots=True)
class Upstream:
    """The control port of the upstream."""

    port: int

    def get(self, path: str) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
        return found

    def set(self, **values: int) -> None:
        self.get("/__set?" + "&".join(f"{name}={value}" for name, value in values.items()))

    def stats(self) -> dict[str, int]:
        return self.get("/__stats")
