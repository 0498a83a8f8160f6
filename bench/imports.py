"""How long `import tidegate` and the first client take, each in fresh processes: the least of several runs.

python bench/imports.py            milliseconds; fails where `import tidegate` takes 150 or more
"""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = 9
LIMIT_MS = 150
WHAT = {
    "python alone": "pass",
    "import tidegate": "import tidegate",
    "tidegate.classify": "import tidegate; tidegate.classify",
    "the first client": "import tidegate; tidegate.http_client(settings={'store': {'kind': 'memory'}})",
}


def milliseconds(code: str) -> float:
    """Of the quickest run."""
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        took.append(time.perf_counter() - began)
    return min(took) * 1000


def main() -> int:
    """Prints a line for each, and says whether the bar is met."""
    figures = {name: milliseconds(code) for name, code in WHAT.items()}
    alone = figures.pop("python alone")
    print(f"python alone: {alone:.0f} ms; beside it:")
    for name, took in figures.items():
        print(f"  {name}: {took - alone:.0f} ms")
    return int(figures["import tidegate"] - alone >= LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
