"""A gateway of its own: a process with nothing but the settings it is given, gone when the block ends.

Knows how to start and stop it. Used by the demo and by tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

LISTENING = "Tidegate listening on "
START_SECONDS = 30.0
STOP_SECONDS = 10.0

MEMORY_ONLY = """\
[store]
kind = "memory"
key_file = "key"
"""
"""Settings of a gateway that leaves nothing behind."""


class GatewayDown(RuntimeError):
    """The gateway did not start; the text holds the end of what it said."""


@contextmanager
def gateway(upstream: str, settings: str = MEMORY_ONLY, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """The base URL of a gateway on a free loopback port that sends everything to `upstream`.

    `settings` is the text of its settings file; files it names relatively live in a folder that goes with it. The
    caller's `TIDEGATE_*` variables do not reach it, `environ` does. Raises `GatewayDown`.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        file = Path(folder, "settings.toml")
        file.write_text(settings, "utf-8")
        clean = {name: value for name, value in os.environ.items() if not name.upper().startswith("TIDEGATE_")}
        command = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--upstream", upstream]
        with Path(folder, "log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(  # noqa: S603 - this interpreter and this package
                [*command, "--config", str(file)],
                cwd=folder,
                env=clean | dict(environ or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                yield _url(process, Path(folder, "log"))
            finally:
                _stop(process)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    """Waits for the line that names the address."""
    assert process.stdout is not None
    late = Timer(START_SECONDS, process.kill)
    late.start()
    try:
        for line in process.stdout:
            if line.startswith(LISTENING):
                return line.removeprefix(LISTENING).strip()
    finally:
        late.cancel()
    process.wait()
    said = log.read_text("utf-8", "replace").strip()
    raise GatewayDown(f"The gateway ended with status {process.returncode} before it listened.\n{said[-2000:]}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
