"""`tidegate simulate`: a provider for dry runs, on loopback.

Knows the simulator's settings as flags. Added to the command group by `tidegate.cli`.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import click

from tidegate.simulator import SimulatorSettings, Step, read_steps, run
from tidegate.simulator.jsontext import NotJson, decode
from tidegate.simulator.profiles import PROFILE_NAMES

_NO_SUCH_HOST = frozenset({errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN})
"""Errors that another port would not mend: no address of this machine, or no name at all."""

_EXAMPLES = """
\b
Examples:
  tidegate simulate --window 24000                an agent's own prompt and tools have to fit
  tidegate simulate --profile vllm --port 9500
  tidegate simulate --script faults.json --delay 0.5

\b
Then point a client at it, directly or through the gateway:
  OPENAI_BASE_URL=http://127.0.0.1:9484/v1 OPENAI_API_KEY=any  my-agent
  ANTHROPIC_BASE_URL=http://127.0.0.1:9484 ANTHROPIC_API_KEY=any  my-agent
  tidegate serve --upstream http://127.0.0.1:9484
"""


@click.command("simulate", epilog=_EXAMPLES)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9484, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--window", default=8000, show_default=True, type=click.IntRange(min=1), help="Context window in tokens.")
@click.option(
    "--profile",
    default="auto",
    show_default=True,
    type=click.Choice(PROFILE_NAMES),
    help="Whose refusals and quirks; auto: the maker of the API being spoken.",
)
@click.option("--tool-rounds", default=2, show_default=True, type=click.IntRange(min=0), help="Tool calls a turn.")
@click.option("--forgetful", is_flag=True, help="Summaries keep none of the FACT-nn markers.")
@click.option("--delay", default=0.0, show_default=True, type=click.FloatRange(min=0), help="Seconds before an answer.")
@click.option("--seed", default=0, show_default=True, help="Ids and signatures follow from it.")
@click.option(
    "--script",
    "script_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON list of scripted steps (docs/simulator.md).",
)
def simulate(
    host: str,
    port: int,
    window: int,
    profile: str,
    tool_rounds: int,
    forgetful: bool,
    delay: float,
    seed: int,
    script_file: Path | None,
) -> None:
    """Run a provider that speaks the three APIs and enforces their rules.

    It refuses what does not fit the window, in the real provider's words, so that an agent can be tried against a small
    one. What it saw is at /__sim/state.
    """
    settings = SimulatorSettings(
        window=window,
        profile=profile,
        tool_rounds=tool_rounds,
        forgetful=forgetful,
        delay=delay,
        seed=seed,
        script=_script(script_file),
    )
    try:
        run(
            settings,
            host,
            port,
            lambda url: click.echo(f"Simulated provider ({profile}, window {window} tokens) on {url}"),
        )
    except OSError as error:
        option = "--host" if error.errno in _NO_SUCH_HOST else "--port"
        reason = (error.strerror or str(error)).partition(" (while ")[0]
        raise click.ClickException(f"Can't listen on {host}:{port}: {reason}. Choose another with {option}.") from None


def _script(path: Path | None) -> tuple[Step, ...]:
    if path is None:
        return ()
    try:
        return tuple(read_steps(decode(path.read_bytes())))
    except (NotJson, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--script") from None
