"""Which provider serves a request, under which model name, and what is known of that model.

Knows the catalogue and the user's settings; no headers, no sockets. Called by the app for every conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from tidegate.config import ModelSettings, Settings
from tidegate.context.budget import Policy
from tidegate.context.policies import Chosen, chosen
from tidegate.engine.request import Target
from tidegate.engine.router import CLAUDE, INBAND, LEAST_INBAND, Means, Wanted, Way, ordered
from tidegate.gateway.routes import Route
from tidegate.providers import Catalogue, ModelFacts, Provider, api_root, host_root
from tidegate.wire.conversation import DialectName

GENERIC = "generic"

LEAST_TRIGGER = 50_000
"""Tokens, where a provider's file does not say: Anthropic's own smallest threshold."""

NOTHING_TOLD = ModelFacts()

TOLD_KEPT = 4096
"""Models of endpoints of which something was told."""


class NoProvider(LookupError):
    """No provider can serve the request; the text says what to change."""


def no_such(name: str | None, catalogue: Catalogue) -> NoProvider:
    """What to raise for a name that is no provider's."""
    return NoProvider(f"There is no provider named {name!r}. Known providers: {', '.join(catalogue.names)}.")


class Choice(msgspec.Struct, frozen=True):
    """A provider and the model's name there."""

    provider: Provider
    model: str


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a model, and of its sizes who says so; see `Target`."""

    facts: ModelFacts
    own_window: bool
    own_input_limit: bool
    told_at: float


def _ways(listed: tuple[Way, ...] | None, told: ModelFacts) -> tuple[Way, ...] | None:
    """How a model compacts: by what its own API told, and by the file where that says nothing; None where neither
    does."""
    able: dict[Way, bool | None] = {"on-demand": told.on_demand, "threshold": told.threshold}
    if listed is None and set(able.values()) == {None}:
        return None
    return tuple(way for way in CLAUDE if (listed is None or way in listed if able[way] is None else able[way]))


def _before(found: Wanted, made: Chosen) -> Wanted:
    """With the ways of a policy that come before all others."""
    first = made.named.first
    if not first:
        return found
    return replace(found, names=tuple(dict.fromkeys((*first, *found.names))), by=f"the policy {made.name}, {found.by}")


def _least(one: int | None, other: int | None) -> int | None:
    return min((size for size in (one, other) if size is not None), default=None)


class Targets:
    """Chooses providers: by the path, then a `provider/` prefix of the model, the model tables, the default."""

    def __init__(self, settings: Settings, catalogue: Catalogue, before: Targets | None = None) -> None:
        """`before`: those of other settings, which were told what holds for these too."""
        self.settings, self.catalogue = settings, catalogue
        self.custom = frozenset(settings.compactors)
        self.single = settings.upstream.url is not None
        routing = settings.routing
        self.defaults: Mapping[DialectName, str] = {
            "chat": routing.default_chat,
            "responses": routing.default_responses,
            "messages": routing.default_messages,
        }
        self.summary_models = settings.summary.models
        self.summary_model = settings.summary.model or ""
        self._told: OrderedDict[tuple[str, str], tuple[ModelFacts, float]] = OrderedDict(before._told if before else ())
        self._policies: dict[Policy, Policy] = {}
        self._target = lru_cache(maxsize=4096)(self._make_target)

    def choose(self, route: Route, dialect: DialectName, model: str) -> Choice:
        """The provider of a conversation. Raises `NoProvider`."""
        if self.single:
            return Choice(self.catalogue.get(GENERIC), model)
        if route.provider is not None:
            return Choice(self._serving(self.catalogue.get(route.provider), dialect), model)
        default = self.catalogue.get(self.defaults[dialect])
        if default.quirks.resells and dialect in default.dialects:
            own = f"{default.name}/"
            return Choice(default, model[len(own) :] if model.startswith(own) else model)
        prefix, slash, rest = model.partition("/")
        if slash and rest and prefix in self.catalogue.names and dialect in self.catalogue.get(prefix).dialects:
            return Choice(self.catalogue.get(prefix), rest)
        listed = self.catalogue.serving(model) if model else None
        if listed is not None and dialect in listed.dialects:
            return Choice(listed, model)
        return Choice(self._serving(default, dialect), model)

    def other(self, route: Route, dialect: DialectName) -> Provider:
        """The provider of a request that is no conversation: by path, else the default of the API the client speaks."""
        if self.single:
            return self.catalogue.get(GENERIC)
        return self.catalogue.get(route.provider or self.defaults[dialect])

    def target(self, choice: Choice, dialect: DialectName, endpoint: str = "") -> Target:
        """What is known of the chosen model there, or at the API root that is named."""
        return self._target(choice.provider.name, choice.model, dialect, endpoint)

    def wanted(self, provider: Provider, model: str, dialect: DialectName) -> Wanted:
        """Ways of compacting, best first: the user's own, else those of the provider's file."""
        given = "strategies" in self.settings.providers.get(provider.name, {})
        house, house_by = self.settings.compaction.strategies, "compaction.strategies"
        own, first = self._own(provider.name, model).strategies, None
        if house is None:
            made = self.chosen(provider, model)
            house, house_by = made.named.strategies, f"the policy {made.name}"
            first = made if house is None and own is None and not given else None
        found = ordered(
            provider.strategies_for(dialect),
            model=own,
            house=house,
            house_by=house_by,
            own=given,
            custom=self.custom,
            listed_by=f"providers.{provider.name}.strategies" if given else f"the file of provider {provider.name}",
            model_by="the model's strategies under [models]",
        )
        return found if first is None else _before(found, first)

    def chosen(self, provider: Provider, model: str) -> Chosen:
        """The policy that is followed: the model's own, over the provider's, over the one for all."""
        return self.settings.chosen(provider.compaction.given(), self._own(provider.name, model).given())

    def followed(self, provider: Provider, model: str, more: Mapping[str, object]) -> Policy:
        """The policy of `chosen` with more rules over it. Raises `ValueError` for what a policy can't be."""
        own = self._own(provider.name, model).given()
        made = chosen([self.settings.compaction.given(), provider.compaction.given(), own, more])
        return self._policy(made.policy)

    def under(self, target: Target, dialect: DialectName, name: str) -> Target:
        """The same under the policy of that name, as it is by itself."""
        made = chosen([{"policy": name}])
        wanted = target.wanted
        if made.named.strategies is not None:
            listed = self.catalogue.get(target.provider).strategies_for(dialect)
            wanted = ordered(listed, house=made.named.strategies, house_by=f"the policy {name}")
        return replace(
            target,
            policy=self._policy(made.policy),
            wanted=_before(wanted, made),
            tool_result_chars=made.named.tool_result_chars,
        )

    def means(self, provider: Provider, model: str, told: ModelFacts = NOTHING_TOLD) -> Means:
        """What provider and model have to compact with. What its own API `told` of a model counts for more than the
        file."""
        return Means(
            custom=self.custom,
            on_demand=provider.betas.on_demand or "",
            threshold=provider.betas.threshold or "",
            least_trigger=provider.minimum_trigger.get("anthropic", LEAST_TRIGGER),
            context_edit=provider.betas.context_edit or "",
            clears=told.clears,
            ways=_ways(provider.compaction_of(model), told),
            inband=provider.inband,
            least_inband=provider.minimum_trigger.get(INBAND, LEAST_INBAND),
            timeout=provider.native_timeout or self.settings.compaction.native_timeout_seconds,
        )

    def askable(self, provider: Provider, model: str) -> bool:
        """Whether the server is worth a question: neither the user nor the provider's own file states how large the
        model's window is, or it tells what its models can do."""
        own = self._own(provider.name, model)
        return provider.tells_abilities or not (own.window or own.input_limit or provider.model(model).sized)

    def borrowed(self, provider: Provider, model: str) -> ModelFacts:
        """For an endpoint of no known kind: what the one other provider that has such a model says of it."""
        listed = self.catalogue.serving(model) if provider.name == GENERIC else None
        return listed.model(model) if listed is not None else ModelFacts()

    def tell(self, endpoint: str, model: str, facts: ModelFacts, at: float = 0.0) -> None:
        """Sizes of an endpoint's model for targets from now on: what the server itself told at that time (seconds since
        the epoch), or, `at` 0, what a table says that counts for less than all else."""
        self._told[endpoint, model] = facts, at
        self._told.move_to_end((endpoint, model))
        if len(self._told) > TOLD_KEPT:
            self._told.popitem(last=False)
        self._target.cache_clear()

    def said(self, endpoint: str, model: str) -> ModelFacts | None:
        """What `tell` was told last of an endpoint's model."""
        told = self._told.get((endpoint, model))
        return told[0] if told is not None else None

    def root(self, provider: Provider, dialect: DialectName | None = None) -> str:
        """The provider's API root. Raises `NoProvider` where it has none."""
        if self.single and provider.name == GENERIC:
            return api_root(str(self.settings.upstream.url), versioned=provider.quirks.versioned)
        root = provider.root_for(dialect) if dialect else provider.api_root
        if not root and provider.through:
            return f"{provider.through}://{provider.name}"  # no address: a name for what is learned of it
        if not root:
            raise NoProvider(provider.without_base_url)
        return root

    def url(self, route: Route, provider: Provider, query: bytes) -> str:
        """Where a route's path is at the provider. Raises `NoProvider`."""
        root = self.root(provider, route.dialect)
        if route.base == "host":
            root = host_root(root)
        elif route.base == "origin":
            parts = urlsplit(root)
            root = f"{parts.scheme}://{parts.netloc}"
        path = route.path if route.path.startswith("/") or not route.path else f"/{route.path}"
        return f"{root}{path}?{query.decode('latin-1')}" if query else f"{root}{path}"

    def _policy(self, policy: Policy) -> Policy:
        """One object for equal policies, so that what is remembered of one is found quickly. There are as many as the
        settings have tables."""
        return self._policies.setdefault(policy, policy)

    def _serving(self, provider: Provider, dialect: DialectName) -> Provider:
        if dialect not in provider.dialects:
            names = ", ".join(p.name for p in self.catalogue if dialect in p.dialects)
            raise NoProvider(f"Provider {provider.name} does not serve the {dialect} API. Providers that do: {names}.")
        return provider

    def _make_target(self, name: str, model: str, dialect: DialectName, endpoint: str) -> Target:
        provider = self.catalogue.get(name)
        endpoint = endpoint or self.root(provider, dialect)
        known, made = self._known(provider, endpoint, model), self.chosen(provider, model)
        told, at = self._told.get((endpoint, model), (NOTHING_TOLD, 0.0))
        names = dict.fromkeys(name for name in (self.summary_model, *self.summary_models) if name)
        windows = {name: self._summary_window(provider, endpoint, name) for name in names}
        first = self.summary_model or model
        return Target(
            provider=name,
            endpoint=endpoint,
            model=model,
            window=known.facts.window,
            input_limit=known.facts.input_limit,
            max_output=known.facts.max_output,
            counts_output=provider.counts_output,
            merge_user=provider.quirks.merge_user,
            binds_thinking=known.facts.binds_thinking,
            wanted=self.wanted(provider, model, dialect),
            policy=self._policy(made.policy),
            tool_result_chars=made.named.tool_result_chars,
            means=self.means(provider, model, told if at else NOTHING_TOLD),
            summary_model=self.summary_model,
            summary_window=windows.get(self.summary_model),
            summarizers=tuple((name, windows[name]) for name in names if name != first),
            own_window=known.own_window,
            own_input_limit=known.own_input_limit,
            told_at=known.told_at,
        )

    def _summary_window(self, provider: Provider, endpoint: str, model: str) -> int | None:
        facts = self._known(provider, endpoint, model).facts
        return facts.window or facts.input_limit

    def _known(self, provider: Provider, endpoint: str, model: str) -> _Known:
        """Of the first source that states a size: the user, the provider's file, the server itself, the file of another
        provider that serves such a model, litellm's table. Output limits likewise. Where the server itself states less
        than the provider's file, that holds."""
        own, file = self._own(provider.name, model), provider.model(model)
        facts, at = self._told.get((endpoint, model), (ModelFacts(), 0.0))
        told, guessed = (facts, ModelFacts()) if at else (ModelFacts(), facts)
        other = self.borrowed(provider, model) if file == ModelFacts() else ModelFacts()
        sources = (file, told, other, guessed)
        sized = next((source for source in sources if source.sized), ModelFacts())
        if sized is file and file.window and told.window and told.window < file.window:
            sized = told
        output = _least(file.max_output, told.max_output) or other.max_output or guessed.max_output
        return _Known(
            ModelFacts(
                own.window or sized.window,
                own.input_limit or (sized.input_limit if own.window is None else None),
                own.max_output or output,
                file.binds_thinking or other.binds_thinking,
            ),
            own_window=own.window is not None,
            own_input_limit=own.input_limit is not None,
            told_at=at if sized is told and own.window is None else 0.0,
        )

    def _own(self, provider: str, model: str) -> ModelSettings:
        """The user's own figures: of the very name, else of the first glob that matches; `provider/` may lead."""
        table = self.settings.models
        for name in (f"{provider}/{model}", model):
            if name in table:
                return table[name]
        for pattern, figures in table.items():
            if fnmatchcase(model, pattern) or fnmatchcase(f"{provider}/{model}", pattern):
                return figures
        return ModelSettings()
