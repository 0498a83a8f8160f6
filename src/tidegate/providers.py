"""Loads the provider files: the built-in ones, with the user's own laid over them, and answers by name or model.

Knows where the files are and how one lies over another, not what their fields mean (`provider_file`). Makes no request
and reads no environment. Called by the gateway, the drivers and the command line; `classify` by anybody.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import msgspec
from pydantic import ValidationError

from tidegate.overflow import raised, verdict
from tidegate.overflow.classify import classify as judge
from tidegate.overflow.pattern import BadRule
from tidegate.overflow.rules import Rules, RulesFile, check
from tidegate.overflow.told import ModelFacts, windows_from
from tidegate.overflow.verdict import Evidence, Sent, Verdict
from tidegate.provider_file import (
    Auth,
    Data,
    Model,
    Provider,
    Question,
    Quirks,
    Refusal,
    SharedRules,
    api_root,
    host_of,
    host_root,
    told_of,
)

__all__ = [
    "Auth",
    "Catalogue",
    "Model",
    "ModelFacts",
    "Provider",
    "ProviderError",
    "Question",
    "Quirks",
    "Refusal",
    "api_root",
    "classify",
    "host_root",
    "litellm_facts",
    "load",
    "told_of",
    "windows_from",
]

SHARED = "_shared"
"""The file of rules that hold for any provider; a user's overlay may have one too."""

Shape = TypeVar("Shape", bound=Data)


class ProviderError(ValueError):
    """A provider file or an override is wrong. The text names the file, the key and what is allowed."""


class Catalogue:
    """All providers, built in and the user's. Immutable; rules are compiled when first asked for."""

    def __init__(self, providers: Mapping[str, Provider], shared: SharedRules) -> None:
        self._providers = dict(sorted(providers.items()))
        self._shared = shared
        self._rules: dict[str, Rules] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Provider names, sorted."""
        return tuple(self._providers)

    def __iter__(self) -> Iterator[Provider]:
        """The providers, by name."""
        return iter(self._providers.values())

    def get(self, name: str) -> Provider:
        """Raises `ProviderError`, naming the known ones, for a name that is not there."""
        try:
            return self._providers[name]
        except KeyError:
            known = ", ".join(self.names)
            raise ProviderError(f"unknown provider {name!r}; known: {known}") from None

    def rules(self, name: str | None = None) -> Rules:
        """The provider's refusal rules, then the shared ones, then other providers' (gateways pass them on)."""
        key = name if name in self._providers else ""
        if key not in self._rules:
            own = self._providers[key].refusals if key else ()
            self._rules[key] = Rules(
                own=tuple(rule.spec(f"{key}.toml") for rule in own),
                shared=_rules_file(self._shared),
                others=tuple(
                    rule.spec(f"{other.name}.toml") for other in self if other.name != key for rule in other.refusals
                ),
            )
        return self._rules[key]

    def serving(self, model_id: str) -> Provider | None:
        """The one provider whose table has the model; None where none or several do."""
        listed = [(p, p.lists(model_id)) for p in self if p.chosen_by_model and p.models]
        for how in ("exact", "glob"):
            matching = [provider for provider, match in listed if match == how]
            if matching:
                return matching[0] if len(matching) == 1 else None
        return None

    def at(self, url: str) -> Provider | None:
        """The provider whose host, by any of its base URLs, is that of this URL. A base URL of its own counts first."""
        host = host_of(url)
        if not host:
            return None
        found = next((p for p in self if p.base_url and host_of(p.base_url) == host), None)
        return found or next((p for p in self if p.at(host)), None)

    def check(self) -> None:
        """Check every rule: safe pattern, sample recognised as its own kind. Raises `ProviderError`.

        Loading checks the user's rules only; the built-in ones are checked by the tests, to keep the start short.
        """
        for provider in self:
            _check_rules(provider.refusals, f"{provider.name}.toml", self._shared)
        _check_rules(self._shared.refusals, f"{SHARED}.toml", self._shared)


def classify(
    refusal: verdict.Refusal | BaseException | str | bytes,
    *,
    provider: str | None = None,
    model: str | None = None,
    sent: Sent | None = None,
) -> Verdict:
    """What a provider's refusal means: is the input too long for the model's window, or only like it? Never raises.

    `refusal` is a `Refusal` (status, body, headers), an exception of the openai, anthropic, litellm, httpx, httpx2 or
    botocore packages (or one that has such an exception as its cause), or just the error's text. `provider` is a name
    of `tidegate providers`; left out, it is guessed from the exception and the model; any other name means rules for
    any provider. `sent` is what is known of the request and decides where the body can't; its window is looked up by
    the model's name where it is left out.
    """
    read = raised.read(refusal) if isinstance(refusal, BaseException) else None
    if read is not None:
        answer = read.refusal
    elif isinstance(refusal, verdict.Refusal):
        answer = refusal
    else:
        answer = verdict.Refusal(None, refusal if isinstance(refusal, str | bytes) else str(refusal))
    known = default()
    model = model or (read.model if read else "")
    found = _whose(known, provider, read, model)
    if found and model and (sent is None or sent.window is None):
        facts = found.model(model)
        sent = msgspec.structs.replace(sent or Sent(), window=facts.input_limit or facts.window)
    judged = judge(answer, known.rules(found.name if found else None), sent=sent)
    if read and read.no_answer and judged.evidence.source == "classify":
        return Verdict("server", "none", certain=True, evidence=Evidence("no-answer", "classify"))
    return judged


@lru_cache(maxsize=1)
def default() -> Catalogue:
    """The built-in providers, loaded once."""
    return load()


@lru_cache(maxsize=1024)
def litellm_facts(model: str, provider: str = "") -> ModelFacts:
    """What an installed litellm says of a model, by `provider/model` or by the bare name; all None without litellm.

    Its table is read as a file; litellm itself is not imported. It tells input limits only.
    """
    table = _litellm_table()
    for name in (f"{provider}/{model}", model) if provider else (model,):
        facts = told_of(table, name)
        if facts != ModelFacts():
            return facts
    return ModelFacts()


@lru_cache(maxsize=1)
def _litellm_table() -> Mapping[str, ModelFacts]:
    try:
        found = find_spec("litellm")  # finds it, and imports nothing
        where = Path(found.origin).parent if found and found.origin else None
        return windows_from("litellm", (where / _LITELLM_TABLE).read_bytes()) if where else {}
    except (ImportError, OSError, ValueError):
        return {}


_LITELLM_TABLE = "model_prices_and_context_window_backup.json"


def _whose(known: Catalogue, name: str | None, read: raised.Raised | None, model: str) -> Provider | None:
    for given in (name, read.provider if read else None):
        if given:
            return known.get(given) if given in known.names else None
    return (known.at(read.url) if read and read.url else None) or (known.serving(model) if model else None)


def load(overlay: Path | None = None, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> Catalogue:
    """The built-in providers with a folder of the user's files and then tables from their config laid over them.

    A table lies over the built-in one of the same name (a new name: over `generic`) field by field; its `models` and
    `refusals` come before the built-in ones. Raises `ProviderError`.
    """
    tables = {name: dict(table) for name, table in _builtin().items()}
    origin = {name: f"{name}.toml" for name in tables}
    given: list[tuple[str, str, Mapping[str, Any]]] = []
    given += [(path.stem, f"{path}", _read(path)) for path in _user_files(overlay)]
    given += [(name, f"config: providers.{name}", table) for name, table in (overrides or {}).items()]
    for stem, source, table in given:
        name = table.get("name", stem)
        if not isinstance(name, str):
            raise ProviderError(f"{source}: name: should be a string")
        tables[name] = _laid_over(tables.get(name) or _unlike_any(tables), table)
        origin[name] = source
    shared = _validated(SharedRules, tables.pop(SHARED, {}), origin.get(SHARED, SHARED))
    providers = {
        name: _validated(Provider, {"name": name, "title": name, **table}, origin[name])
        for name, table in tables.items()
    }
    for name, rules in _own_rules(given, providers, shared).items():
        _check_rules(rules, origin[name], shared)
    return Catalogue(providers, shared)


def _builtin_folder() -> Traversable:
    packaged = files("tidegate") / "_providers"
    if packaged.is_dir():
        return packaged
    return Path(__file__).parents[2] / "providers"  # an editable install


@lru_cache(maxsize=1)
def _builtin() -> Mapping[str, Mapping[str, Any]]:
    folder = _builtin_folder()
    return {
        entry.name.removesuffix(".toml"): _read(entry) for entry in folder.iterdir() if entry.name.endswith(".toml")
    }


def _unlike_any(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a provider of a new name lies over: the file for any compatible endpoint, but for its name."""
    return {key: value for key, value in tables["generic"].items() if key not in ("name", "title", "chosen_by_model")}


def _user_files(overlay: Path | None) -> Sequence[Path]:
    if overlay is None:
        return ()
    if not overlay.is_dir():
        raise ProviderError(f"{overlay}: not a folder of provider files")
    return sorted(overlay.glob("*.toml"))


def _read(path: Traversable) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ProviderError(f"{path}: {error}") from error


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[key] = _laid_over(under, value)
        elif key in ("models", "refusals") and isinstance(value, list) and isinstance(under, list):
            merged[key] = [*value, *under]
        else:
            merged[key] = value
    return merged


def _validated(shape: type[Shape], table: Mapping[str, Any], source: str) -> Shape:
    try:
        return shape.model_validate(table)
    except ValidationError as error:
        _explain(error, shape, source)


def _own_rules(
    given: Sequence[tuple[str, str, Mapping[str, Any]]], providers: Mapping[str, Provider], shared: SharedRules
) -> dict[str, tuple[Refusal, ...]]:
    """The user's rules by provider: they stand before the built-in ones."""
    counts: dict[str, int] = {}
    for stem, _, table in given:
        name = table.get("name", stem)
        counts[name] = counts.get(name, 0) + len(table.get("refusals", ()))
    return {
        name: (shared.refusals if name == SHARED else providers[name].refusals)[:count]
        for name, count in counts.items()
        if count
    }


def _explain(error: ValidationError, shape: type[Data], source: str) -> NoReturn:
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in problem["loc"]) or "(file)"
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            text = f"unknown key; allowed: {', '.join(_allowed(shape, problem['loc'][:-1]))}"
        lines.append(f"{source}: {key}: {text}")
    raise ProviderError("\n".join(lines)) from None


def _allowed(shape: type[Data], location: Sequence[str | int]) -> list[str]:
    fields: type[Data] = shape
    for part in location:
        if isinstance(part, int):
            continue
        inner = fields.model_fields[part].annotation
        found = [kind for kind in (inner, *get_args(inner)) if isinstance(kind, type) and issubclass(kind, Data)]
        if found:
            fields = found[0]
    return sorted(fields.model_fields)


def _rules_file(shared: SharedRules) -> RulesFile:
    return RulesFile(
        counter=shared.counter,
        evidence=shared.evidence.model_dump(),
        rules=tuple(rule.spec(f"{SHARED}.toml") for rule in shared.refusals),
    )


def _check_rules(rules: Sequence[Refusal], source: str, shared: SharedRules) -> None:
    try:
        check([rule.spec(source) for rule in rules], _rules_file(shared))
    except BadRule as error:
        raise ProviderError(f"{source}: {error}") from None
