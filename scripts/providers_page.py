"""Writes `docs/providers.md` from the provider files; `--check` only says whether it is what it would be.

Knows how the page looks, not what the facts are. Run after a change to `providers/*.toml`; a test does the check.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tidegate.providers import Catalogue, Model, Provider, load
from tidegate.wire.conversation import DialectName

PAGE = Path(__file__).parents[1] / "docs" / "providers.md"

INTRODUCTION = """\
<!-- Written by scripts/providers_page.py from providers/*.toml. Change those, then run it. -->

# Providers

What Tidegate knows of each provider without being told. `tidegate providers --json` prints the same with your own files
and settings laid over it; [Configuration](configuration.md) says how to give them, and each provider's file has the
sources of what it states.

A conversation is compacted by the first strategy of its API that applies. `openai` and `xai` call the provider's own
compact path, `openai-trigger` sends an item that asks for it, `anthropic` uses Anthropic's beta for a compaction on
demand, and that for a compaction at a threshold where a platform or a model has it alone. `summary`, a text by the
model itself, works everywhere and comes last. A dash means that the API is not served.

By `openai-inband` the provider compacts within the request itself (`context_management`): where its turn comes, for
clients that send sealed items back, and whatever comes before it where the provider holds the history, which no other
way can work on. What an endpoint has shown to have, though its file lists it not, is tried before the summary.

`context-edit` asks Anthropic to leave old tool results out within the request, ahead of all other ways: a configuration
may name it and no built-in file does. So it is with `elide`, which leaves them out of what is forwarded, and asks
nobody.
"""

MODELS = """\
Tokens. *Input* is what a prompt is held against where that is less than the window, or all that is known. *Compacts*
says which of Anthropic's betas a model has on this platform, where the file knows. A name
ends before its date.
"""


def page(catalogue: Catalogue) -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Strategies", _rows(STRATEGIES, map(_strategies, catalogue))]
    parts += ["## Where they are, and their keys", _rows(PLACES, map(_place, catalogue))]
    parts += ["## Notes and models", MODELS]
    for provider in catalogue:
        parts += _section(provider)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


DIALECTS: tuple[DialectName, ...] = ("chat", "responses", "messages")
STRATEGIES = ("provider", *DIALECTS)
NOT_SERVED = "–"


def _strategies(provider: Provider) -> tuple[str, ...]:
    served = {dialect: ", ".join(provider.strategies_for(dialect)) for dialect in provider.dialects}
    return f"`{provider.name}`", *(served.get(dialect, NOT_SERVED) for dialect in DIALECTS)


PLACES = ("provider", "base URL", "key from", "asked for windows")


def _place(provider: Provider) -> tuple[str, ...]:
    where = [f"`{provider.api_root}`"] if provider.api_root else []
    where += [f"{dialect}: `{provider.root_for(dialect)}`" for dialect in provider.base_urls]
    if not where:
        where = [f"yours: `{provider.base_url_form}`" if provider.base_url_form else "yours"]
    if provider.through:
        over_http = f"; over HTTP, {where[0]}" if provider.base_url_form else ""
        where = [f"{provider.through}'s SDK{over_http}"]
    header = {"bearer": "", "x-api-key": ", as `x-api-key`", "header": f", as `{provider.auth.header}`"}
    key = f"`{', '.join(provider.auth.envs)}`{header[provider.auth.scheme]}" if provider.auth.envs else "the client"
    return f"`{provider.name}`", "<br>".join(where), key, ", ".join(provider.windows_api) or "no"


def _section(provider: Provider) -> Iterator[str]:
    yield f"### {provider.name}"
    yield f"{provider.title}. Sources: [{provider.name}.toml](../providers/{provider.name}.toml)."
    facts = list(provider.notes)
    if provider.bridge:
        facts.append("Chat completions may be answered by the Responses API, which compacts (`compaction.bridge`).")
    if provider.inband:
        facts.append("Compacts within a Responses request where that asks for it (`context_management`).")
    facts += [
        f"A threshold of `{name}` is {least:,} tokens or more." for name, least in provider.minimum_trigger.items()
    ]
    if provider.refusals:
        ids = (f"`{rule.id}` ({rule.kind})" for rule in provider.refusals)
        facts.append(f"Refusals known by words of its own: {', '.join(ids)}.")
    facts += [f"{name.replace('-', ' ').capitalize()}: `{url}`" for name, url in provider.elsewhere.items()]
    if facts:
        yield "\n".join(f"- {fact}" for fact in facts)
    if provider.models:
        tells = any(model.compaction is not None for model in provider.models)
        columns = ("models", "window", "input", "output", *(["compacts"] if tells else []))
        yield _rows(columns, (_model(model)[: len(columns)] for model in provider.models))


def _model(model: Model) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in model.match)
    sizes = (f"{size:,}" if size else "" for size in (model.window, model.input_limit, model.max_output))
    ways = model.compaction
    return names, *sizes, ", ".join(ways) if ways else ("" if ways is None else "no")


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Status of the program: 1 where `--check` finds another page than the files make."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the page is not up to date")
    asked = parser.parse_args(arguments)
    made = page(load())
    if not asked.check:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made:
        return 0
    print(f"{PAGE} is not what the provider files make; run scripts/providers_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
