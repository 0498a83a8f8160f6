"""`tidegate demo`: a long agent session through each API against a simulated provider, and what it came to.

Knows how to set the scene and show the figures; the agent is `tidegate.cli.demo`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidegate.cli.demo.figures import Figures, Run


@click.command(short_help="See it work, without a key.")
@click.option("--turns", type=click.IntRange(1), default=60, show_default=True, help="Turns of each session.")
@click.option(
    "--window",
    type=click.IntRange(2000),
    default=8000,
    show_default=True,
    help="Context window of the simulated provider, in tokens.",
)
@click.option(
    "--shape",
    type=click.Choice(["steps", "single"]),
    default="steps",
    show_default=True,
    help="A human message starts every turn, or only the first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, by API.")
@click.option("--forgetful", is_flag=True, help="Let the summarizer forget every fact, to see that they are counted.")
@click.option(
    "--serve",
    is_flag=True,
    help="Afterwards serve a gateway for your own key, until interrupted. Like `tidegate serve`, it keeps sealed "
    "summaries in your data folder.",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port that --serve listens on.  [default: 8484]")
def demo(turns: int, window: int, shape: str, as_json: bool, forgetful: bool, serve: bool, port: int | None) -> None:
    """Drive a tool-using agent through Tidegate, without a key.

    Starts a simulated provider and a gateway in front of it, and takes the same session through the three APIs,
    streaming, the whole history with every request. Everything stays on this machine, and the sessions leave nothing
    behind. Ends with status 1 where a turn was not answered.

    \b
    Examples:
      tidegate demo
      tidegate demo --turns 200 --window 4000
      tidegate demo --shape single --json
      tidegate demo --serve --port 9000
    """
    from tidegate.cli.demo.figures import DIALECTS, measure, plan_for, provider_for
    from tidegate.cli.demo.gateway_process import GatewayDown, gateway
    from tidegate.cli.demo.session import SHAPES
    from tidegate.cli.serve_command import check_gateway, run_gateway
    from tidegate.simulator import serve as simulated

    if serve:
        check_gateway({"port": port})
    elif port is not None:
        raise click.UsageError("--port is the port of --serve")
    chosen = next(known for known in SHAPES if known == shape)
    plan = plan_for(window, chosen)
    runs, alone = {}, {}
    if not as_json:
        click.echo(_opening(turns, window))
    try:
        with simulated(provider_for(window, chosen, forgetful=forgetful)) as simulator, gateway(simulator.url) as url:
            for dialect in DIALECTS:
                alone[dialect] = measure(simulator, simulator.url, dialect, turns, plan)
                runs[dialect] = measure(simulator, url, dialect, turns, plan)
    except GatewayDown as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({dialect: asdict(run.figures) for dialect, run in runs.items()}, indent=2))
    else:
        click.echo(_table(runs, alone))
    failures = [f"{dialect}: {run.failure}" for dialect, run in runs.items() if run.failure]
    if failures:
        raise click.ClickException("\n".join(failures))
    if serve:
        click.echo("\nNow a gateway for your own key.")
        run_gateway({"port": port})


def _opening(turns: int, window: int) -> str:
    return (
        f"A simulated provider with a window of {window:,} tokens, Tidegate in front of it, and an agent that calls\n"
        f"tools for {turns} turns through each API, streaming, its whole history with every request.\n"
    )


def _table(runs: Mapping[str, Run], alone: Mapping[str, Run]) -> str:
    rows: dict[str, Callable[[Figures], str]] = {
        "overflows met": lambda run: f"{run.overflows}",
        "compactions": lambda run: f"{run.compactions}",
        "summary calls": lambda run: f"{run.summary_calls}",
        "provider's rules broken": lambda run: f"{run.rule_violations}",
        "facts still known at the end": lambda run: f"{run.facts_alive} of {run.facts_planted}",
        "tokens of the agent's requests": lambda run: f"{run.tokens_without:,}",
        "tokens sent, summaries included": lambda run: f"{run.tokens_sent:,}",
        "tokens saved": lambda run: f"{run.saved_percent:.0f} %",
    }
    lines = [
        ("", list(runs)),
        ("turns answered", [_answered(run) for run in runs.values()]),
        ("  without Tidegate", [_answered(run) for run in alone.values()]),
        *((name, [cell(run.figures) for run in runs.values()]) for name, cell in rows.items()),
    ]
    return "\n".join(f"{name:<34}" + "".join(f"{cell:>12}" for cell in cells) for name, cells in lines)


def _answered(run: Run) -> str:
    return f"{run.figures.answered} of {run.figures.turns}"
