"""Tidegate with its hot modules compiled, for the benches: built once for each state of the sources.

Knows `scripts/compiled_tree.py`, which does it and says why where it can't.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache, partial
from pathlib import Path

from rig.gateways import ROOT, Gateway, tidegate

NAME = "tidegate-compiled"


@cache
def package() -> tuple[Path | None, str]:
    """(the folder with the compiled package, or None; why there is none)."""
    command = [sys.executable, str(ROOT / "scripts/compiled_tree.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["it failed"])[-1]
    return Path(done.stdout.strip()), ""


def gateway() -> Gateway | None:
    """The compiled gateway, where it can be built."""
    folder, _ = package()
    if folder is None:
        return None
    return Gateway(NAME, partial(tidegate, package=folder), about="the same with its hot modules compiled")
