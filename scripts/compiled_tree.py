"""Prints a folder with the compiled package of this checkout, for PYTHONPATH; makes it where there is none yet.

    python scripts/compiled_tree.py

What was made of the same sources by the same Python is taken from ~/.cache/tidegate-bench. Needs the development
tools and a C compiler; ends with status 3, and says why, where they are missing. Called by scripts/test and the bench.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = 4
"""Of older sources that many are kept."""
CANNOT = 3


def cache() -> Path:
    """Where the benches keep things between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tidegate-bench"


def digest() -> str:
    """Of all that the package is made from."""
    files = [ROOT / "hatch_build.py", ROOT / "pyproject.toml", *(ROOT / "providers").glob("*.toml")]
    made_from = hashlib.sha256(sys.version.encode())
    for file in sorted([*files, *(ROOT / "src").rglob("*.py")]):
        made_from.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return made_from.hexdigest()[:16]


def missing() -> str:
    """What it takes to compile and is not there."""
    tools = [name for name in ("pip", "hatchling", "mypyc", "setuptools") if find_spec(name) is None]
    if tools:
        return f"{', '.join(tools)} in {sys.executable}"
    return "" if any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))) else "a C compiler"


def make(folder: Path) -> None:
    """Builds the compiled wheel and unpacks it into `folder`."""
    unfinished = folder.with_name(f"{folder.name}-{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(unfinished), str(ROOT)]
    try:
        subprocess.run(command, env={**os.environ, "TIDEGATE_COMPILE": "1"}, stdout=sys.stderr, check=True)
        if not folder.exists():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    made = sorted(folder.parent.glob("compiled-*"), key=lambda one: one.stat().st_mtime, reverse=True)
    for old in made[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def main() -> int:
    """Prints the folder; the exit status."""
    folder = cache() / f"compiled-{digest()}"
    if not folder.exists():
        if lacking := missing():
            print(f"nothing can be compiled without {lacking}", file=sys.stderr)
            return CANNOT
        print("Compiling; it takes about two minutes of one core, and is kept", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        make(folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
