"""`tidegate classify`: what a provider's refusal means, on what evidence, and what would be done about it.

Knows how to explain a verdict, not how to reach one (`overflow`). Called by the command line's root group.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from tidegate.cli.providers_command import catalogue
from tidegate.cli.settings_file import config_option
from tidegate.overflow import Action, Refusal, Sent, Verdict
from tidegate.overflow import classify as judge
from tidegate.overflow.explain import Considered, considered
from tidegate.providers import Catalogue, Provider, ProviderError

_DONE: dict[Action, str] = {
    "compact": "compact the conversation and send it again",
    "clamp_output": "lower the output limit and send the same conversation again",
    "shrink_bytes": "the request is too large in bytes; fewer tokens alone do not help, so it is passed on",
    "drop_artifact": "drop the compaction artifact and send the client's own history once more",
    "wait": "pass it on; the client's own retry waits",
    "none": "pass it on as it is",
}


@click.command()
@click.argument("body", required=False)
@click.option(
    "--status", type=click.IntRange(100, 599), default=400, show_default=True, help="HTTP status it came with."
)
@click.option("--provider", help="Whose refusal it is.  [default: the model's provider, else any]")
@click.option("--model", default="", help="The model that was asked; its window is looked up.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header it came with. May be repeated."
)
@click.option("--in-stream", is_flag=True, help="It is an event of a stream that began with 200.")
@click.option("--sent-tokens", type=click.IntRange(min=0), help="Size of the refused request, in tokens.")
@click.option("--window", type=click.IntRange(min=1), help="The model's window, in tokens.")
@click.option("--sent-bytes", type=click.IntRange(min=0), help="Size of the refused request, in bytes.")
@click.option("--output-limit", type=click.IntRange(min=0), help="Output limit of the refused request, in tokens.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as one JSON object.")
@config_option("Settings file with providers of your own.")
@click.pass_context
def classify(
    ctx: click.Context,
    body: str | None,
    status: int,
    provider: str | None,
    model: str,
    headers: tuple[str, ...],
    in_stream: bool,
    sent_tokens: int | None,
    window: int | None,
    sent_bytes: int | None,
    output_limit: int | None,
    as_json: bool,
    config_file: Path | None,
) -> None:
    """Say what a refusal means. BODY is the error's body; without it, standard input is read.

    \b
    Examples:
      tidegate classify 'prompt is too long: 213462 tokens > 200000 maximum'
      curl -s ... | tidegate classify --provider vllm
      tidegate classify --status 413 --sent-tokens 900 --window 128000 '' --json
    """
    if body is None:
        if sys.stdin.isatty():
            raise click.UsageError("give the error's body as an argument or on standard input")
        body = sys.stdin.buffer.read().decode("utf-8", "replace")
    whose = _whose(catalogue(ctx, config_file), provider, model)
    facts = whose.model(model)
    refusal = Refusal(200 if in_stream else status, body, _named(headers), in_stream=in_stream)
    sent = Sent(
        tokens=sent_tokens,
        window=window or facts.input_limit or facts.window,
        bytes=sent_bytes,
        output_limit=output_limit,
    )
    rules = catalogue(ctx, config_file).rules(whose.name)
    verdict, touched = judge(refusal, rules, sent=sent), considered(refusal, rules)
    refused = in_stream or not _is_success(status, body, verdict)
    if as_json:
        told = dataclasses.asdict(verdict) | {"done": _DONE[verdict.action]} | ({} if refused else {"kind": None})
        told["considered"] = [dataclasses.asdict(rule) for rule in touched]
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
    elif refused:
        _explain(verdict, touched)
    else:
        click.echo(f"no refusal: status {status}, and nothing in the body says that something went wrong")


def _named(headers: Sequence[str]) -> dict[str, str]:
    for header in headers:
        if not header.partition(":")[0].strip() or ":" not in header:
            raise click.BadParameter("should be NAME:VALUE, for example 'retry-after: 7'", param_hint="--header")
    return {name.strip().lower(): value.strip() for name, _, value in (header.partition(":") for header in headers)}


def _whose(known: Catalogue, name: str | None, model: str) -> Provider:
    try:
        return known.get(name) if name else (known.serving(model) if model else None) or known.get("generic")
    except ProviderError as error:
        raise click.BadParameter(str(error), param_hint="--provider") from None


def _is_success(status: int, body: str, verdict: Verdict) -> bool:
    """Whether there is nothing to judge: a success, for whose body no rule was found that speaks of an error."""
    by_status = verdict.evidence.rule in ("no-error", f"status-{status}")
    return status < 400 and by_status and '"error"' not in body


def _explain(verdict: Verdict, touched: Sequence[Considered]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    sure = "certain" if verdict.certain else "not certain"
    console.print(f"[bold]{verdict.kind}[/bold] ({sure}): {_DONE[verdict.action]}")
    evidence = verdict.evidence
    console.print(f"rule       {evidence.rule} in {evidence.source}")
    if evidence.matched:
        console.print(f"words      {escape(evidence.matched)}")
    for label, value in (
        ("input", verdict.input_tokens),
        ("window", verdict.window),
        ("limit", verdict.input_limit),
        ("asked", verdict.output_requested),
        ("would fit", verdict.output_limit),
    ):
        if value is not None:
            console.print(f"{label:<10} {value:,} tokens")
    if verdict.retry_after is not None:
        console.print(f"wait       {verdict.retry_after:g} s")
    if verdict.admission:
        console.print("admission  one request is above the whole allowance: waiting can't help")
    if verdict.runner_up:
        console.print(f"runner-up  {verdict.runner_up}")
    for rule in touched:
        if rule.evidence.rule != evidence.rule or rule.against:
            why = f"off: {rule.against}" if rule.against else "holds too, after it"
            console.print(escape(f"also       {rule.evidence.rule} ({rule.kind}) on '{rule.evidence.matched}': {why}"))
