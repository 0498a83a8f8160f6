"""What judges requests and what remembers them, as the settings say: the tools that every exchange of a process shares.

Knows settings, provider files and the store; no server. Called by the gateway and the clients at their start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tidegate.compactors.summary import Options, default_options, focused
from tidegate.config import ConfigError, Settings
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.engine.breaker import Bounds, Breaker
from tidegate.engine.checkpoint import Store, StoreError
from tidegate.engine.prepared import Portable
from tidegate.engine.request import Kit, Target
from tidegate.overflow.classify import classify
from tidegate.overflow.verdict import Refusal, Sent, Verdict
from tidegate.overflow.window import Windows
from tidegate.providers import Catalogue
from tidegate.store import Keys, default_key_file, default_path, load_or_create, open_store
from tidegate.upstream.custom import Compactors, NoCompactor, found
from tidegate.wire.conversation import DialectName


def make_kit(settings: Settings, catalogue: Catalogue, keys: Keys) -> Kit:
    """What judges requests, from the settings."""
    compaction = settings.compaction
    hasher = Hasher(keys.hash_key)

    def judge(provider: str, refusal: Refusal, sent: Sent) -> Verdict:
        return classify(refusal, catalogue.rules(provider), sent=sent)

    return Kit(
        hasher=hasher,
        ledger=Ledger(hasher),
        windows=Windows(),
        classify=judge,
        policy=settings.chosen({}, {}).policy,
        breaker=Breaker(
            Bounds(
                first=compaction.rest_first_seconds,
                most=max(compaction.rest_first_seconds, compaction.rest_most_seconds),
                refills=compaction.refills,
                refill_messages=compaction.refill_messages,
                regrow_percent=compaction.regrow_percent,
            )
        ),
        options=_options(settings, catalogue),
        max_compactions=compaction.max_per_request,
        summary_max_calls=compaction.summary_max_calls,
        inband_for_all=compaction.inband == "always",
        custom={name: given.timeout_seconds for name, given in settings.compactors.items()},
        portable=Portable() if compaction.portable == "background" else None,
        shadow=compaction.mode == "shadow",
        last_resort=compaction.last_resort,
        elide_percent=compaction.elide_percent,
        shrink_on_admission=compaction.shrink_on_admission,
    )


def with_focus(kit: Kit, focus: str) -> Kit:
    """The same, whose summaries look at more; blank for nothing more."""
    if not focus.strip():
        return kit
    usual = kit.options
    return replace(kit, options=lambda target, dialect: focused(usual(target, dialect), focus))


def compactors_of(settings: Settings) -> Compactors:
    """The user's own compactors. Raises `ConfigError` where one can't be had."""
    known = {}
    for name, given in settings.compactors.items():
        try:
            known[name] = found(given.use)
        except NoCompactor as error:
            where = settings.origin(f"compactors.{name}.use")
            raise ConfigError(f"compactors.{name}.use ({where}): {error}") from error
    return Compactors(known)


def keys_of(settings: Settings) -> Keys:
    """The keys of the store: the given one, that of the key file, or, where nothing is kept, ones of chance.

    Raises `StoreError`.
    """
    store = settings.store
    given = store.key.get_secret_value() if store.key is not None else None
    if given is None and store.kind != "sqlite":
        return Keys.random()  # nothing outlives the process, so no key needs to
    try:
        return load_or_create(store.key_file or default_key_file(), given)
    except StoreError as error:
        if given is None:
            raise
        what = str(error).rpartition("configuration: ")[2]
        raise StoreError(f"store.key: {what} (given in {settings.origin('store.key')})") from None


def store_of(settings: Settings, keys: Keys) -> Store:
    """The store. Raises `StoreError`."""
    store = settings.store
    return open_store(
        store.kind,
        path=store.path or default_path(),
        keys=keys,
        retention_days=store.retention_days,
        max_bytes=store.max_bytes,
    )


def _options(settings: Settings, catalogue: Catalogue) -> Callable[[Target, DialectName], Options]:
    """Summary options by target: the user's prompts and caps, the provider's quirks."""
    built_in, own = default_options(), settings.summary
    base = replace(
        built_in,
        prompt=_prompt(settings, "prompt_file") or built_in.prompt,
        update_prompt=_prompt(settings, "update_prompt_file") or built_in.update_prompt,
        system=_prompt(settings, "system_prompt_file") or built_in.system,
        ride_prompt=_prompt(settings, "ride_prompt_file") or built_in.ride_prompt,
        tool_result_chars=own.tool_result_chars,
        ride=own.ride,
        timeout=settings.compaction.summary_timeout_seconds,
    )

    def options(target: Target, dialect: DialectName) -> Options:
        provider = catalogue.get(target.provider)
        fields = provider.summary_fields(dialect)
        chars = None if "tool_result_chars" in own.model_fields_set else target.tool_result_chars
        return replace(
            base,
            tool_result_chars=chars or base.tool_result_chars,
            limit_key=provider.quirks.output_limit_key.get(dialect, ""),
            extra={name: value for name, value in fields.items() if value is not None},
            omit=frozenset(name for name, value in fields.items() if value is None),
            max_output=target.max_output if not target.summary_model else None,
            caching=provider.caching(target.model),
        )

    return options


def _prompt(settings: Settings, key: str) -> str:
    """The user's own prompt, empty where none is given."""
    path: Path | None = getattr(settings.summary, key)
    if path is None:
        return ""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        where = settings.origin(f"summary.{key}")
        raise ConfigError(f"summary.{key} = {path} ({where}): can't be read: {error}") from error
