"""`tidegate simulate`: a provider for dry runs, on loopback.

Knows the simulator's settings as flags. Added to the command group by `tidegate.cli`.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import get_args

import click

from tidegate.simulator import ContextManagement, ResponsesCompaction, SimulatorSettings, Step, read_steps, run
from tidegate.simulator.compaction_settings import Boundary
from tidegate.simulator.context_settings import KNOWN_BETAS
from tidegate.simulator.jsontext import NotJson, decode
from tidegate.simulator.profiles import PROFILE_NAMES, CompactPath, Support

_NO_SUCH_HOST = frozenset({errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN})
"""Errors that another port would not mend: no address of this machine, or no name at all."""

_EXAMPLES = """
\b
Examples:
  tidegate simulate --window 24000                an agent's own prompt and tools have to fit
  tidegate simulate --profile vllm --port 9500
  tidegate simulate --script faults.json --delay 0.5
  tidegate simulate --compact-path 404-text       a gateway that can't compact

\b
Then point a client at it, directly or through the gateway:
  OPENAI_BASE_URL=http://127.0.0.1:9484/v1 OPENAI_API_KEY=any  my-agent
  ANTHROPIC_BASE_URL=http://127.0.0.1:9484 ANTHROPIC_API_KEY=any  my-agent
  tidegate serve --upstream http://127.0.0.1:9484
"""


@click.command("simulate", short_help="Run a provider that enforces the real ones' rules.", epilog=_EXAMPLES)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9484, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--window", default=8000, show_default=True, type=click.IntRange(min=1), help="Context window in tokens.")
@click.option(
    "--profile",
    default="auto",
    show_default=True,
    type=click.Choice(PROFILE_NAMES),
    help="Whose refusals and quirks; auto: the maker of the API being spoken, or whose prefix the path has.",
)
@click.option(
    "--compact-path",
    type=click.Choice(get_args(CompactPath)),
    help="Whether /responses/compact is there, or how it is missing.  [default: as the profile]",
)
@click.option(
    "--trigger",
    type=click.Choice(get_args(Support)),
    help="What becomes of a compaction_trigger item.  [default: as the profile]",
)
@click.option(
    "--in-band",
    type=click.Choice(get_args(Support)),
    help="What becomes of context_management on Responses.  [default: as the profile]",
)
@click.option(
    "--boundary",
    default="keep_users",
    show_default=True,
    type=click.Choice(get_args(Boundary)),
    help="What stays of the items before a compaction item.",
)
@click.option(
    "--beta",
    "betas",
    multiple=True,
    type=click.Choice([*sorted(KNOWN_BETAS), "none"]),
    help="Anthropic beta on context that is served; may be repeated.  [default: as the profile]",
)
@click.option(
    "--least-trigger",
    default=50_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Smallest trigger of a compact_20260112 edit, in tokens.",
)
@click.option(
    "--org",
    "orgs",
    multiple=True,
    metavar="KEY=ORG[/PROJECT]",
    help="Whose a key is; what a provider seals is bound to it. May be repeated.",
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
    compact_path: CompactPath | None,
    trigger: Support | None,
    in_band: Support | None,
    boundary: Boundary,
    betas: tuple[str, ...],
    least_trigger: int,
    orgs: tuple[str, ...],
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
        orgs=_orgs(orgs),
        responses_compaction=ResponsesCompaction(
            path=compact_path, trigger=trigger, in_band=in_band, boundary=boundary
        ),
        context=ContextManagement(
            betas=tuple(name for name in betas if name != "none") if betas else None, least_trigger=least_trigger
        ),
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


def _orgs(pairs: tuple[str, ...]) -> dict[str, str]:
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if not all(key and org for key, org in found.items()):
        raise click.BadParameter("expected KEY=ORG or KEY=ORG/PROJECT", param_hint="--org")
    return found


def _script(path: Path | None) -> tuple[Step, ...]:
    if path is None:
        return ()
    try:
        return tuple(read_steps(decode(path.read_bytes())))
    except (NotJson, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--script") from None
