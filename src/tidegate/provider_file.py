"""What a provider file may say: where an API is, how it authenticates, what its models and refusals are like.

Knows fields and their limits, and answers questions of one provider; reads no file. Called by `providers`, which loads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from ipaddress import ip_address
from typing import Annotated, Literal, TypeAlias
from urllib.parse import quote, urlsplit

import pydantic
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from tidegate.compactors.ride import Caching
from tidegate.context.budget import Trigger
from tidegate.overflow.rules import RuleSpec
from tidegate.overflow.told import ANY, Api, ModelFacts
from tidegate.overflow.verdict import Action, Kind
from tidegate.wire.conversation import DialectName, JsonValue


def _listed(value: object) -> object:
    return [value] if isinstance(value, str | int) else value


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", value):
        raise ValueError("should be an http:// or https:// URL without query")
    return value


Url = Annotated[str, AfterValidator(_url)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Strings = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Statuses = Annotated[tuple[Annotated[int, Field(ge=100, le=599)], ...], BeforeValidator(_listed)]


def no_truth(value: object) -> object:
    """Refuses `true` and `false` for a number; raises `ValueError`."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted")  # noqa: TRY004 - else `true` would be 1, and pydantic wants this one
    return value


Count = Annotated[int, BeforeValidator(no_truth), Field(ge=1)]
Percent = Annotated[float, BeforeValidator(no_truth), Field(ge=1, le=100)]

PolicyName: TypeAlias = Literal["default", "rho", "rho-elixir", "rubypi", "planck"]
"""Named policies; see `context.policies`."""

EstimatorName: TypeAlias = Literal["tidegate", "rho", "rho-elixir", "rubypi", "planck"]
"""Ways to count; see `context.estimators`."""

Compaction: TypeAlias = Literal["on-demand", "threshold"]
"""A way in which a Claude model compacts: when asked to, or by itself once the input passes a threshold."""

NATIVE: Mapping[str, DialectName] = {
    "openai": "responses",
    "openai-trigger": "responses",
    "openai-inband": "responses",
    "xai": "responses",
    "anthropic": "messages",
    "context-edit": "messages",
}
"""Strategies that are the provider's own, and the one dialect each is written in. `elide` and `summary` know all."""


def _in_their_dialect(value: Mapping[DialectName, tuple[str, ...]]) -> Mapping[DialectName, tuple[str, ...]]:
    for dialect, names in value.items():
        for name in names:
            if NATIVE.get(name, dialect) != dialect:
                raise ValueError(f"strategy {name} belongs to the {NATIVE[name]} dialect, not to {dialect}")
        if len(set(names)) < len(names):
            raise ValueError(f"a strategy is given twice for the {dialect} dialect")
    return value


Strategies = Annotated[Mapping[DialectName, tuple[str, ...]], AfterValidator(_in_their_dialect)]


class Data(BaseModel):
    """A table of a provider file: unknown keys are errors, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Auth(Data):
    """How a key travels: `Authorization: Bearer`, `x-api-key`, or a header of its own name."""

    scheme: Literal["bearer", "x-api-key", "header"] = "bearer"
    header: str | None = None
    env: str | tuple[str, ...] | None = None
    """Environment variable that holds the key where the client sends none; several, where there are several keys."""

    @model_validator(mode="after")
    def _header_named(self) -> Auth:
        if (self.scheme == "header") != (self.header is not None):
            raise ValueError("header is given if, and only if, scheme is 'header'")
        return self

    @property
    def envs(self) -> tuple[str, ...]:
        """Names of the variables that hold keys."""
        return (self.env,) if isinstance(self.env, str) else self.env or ()

    def headers(self, key: str) -> dict[str, str]:
        """The header that carries the key."""
        if self.scheme == "bearer":
            return {"authorization": f"Bearer {key}"}
        return {(self.header or "x-api-key").lower(): key}


class Quirks(Data):
    """Where a provider differs from the API whose dialect it speaks."""

    merge_user: bool = False
    """Two user messages in a row are refused (by chat templates, mostly), so they are joined."""
    versioned: bool = True
    """The base URL ends in a version (`/v1`), added where it is left out."""
    resells: bool = False
    """Serves many makers' models, by names like `maker/model`: where it is the default, such a prefix is part of the
    name and chooses no other provider, whom the client's key is not meant for."""
    output_limit_key: Mapping[DialectName, str] = {}
    """Name of the output-limit field in Tidegate's own calls where the client's request names none."""
    summary_extra: Mapping[DialectName, Mapping[str, pydantic.JsonValue]] = {}
    """Fields Tidegate's own calls must carry."""
    summary_omit: Mapping[DialectName, tuple[str, ...]] = {}
    """Fields Tidegate's own calls must not carry."""


class Rules(Data):
    """When histories are compacted, and what is kept of them: of a provider's or a model's own, over those for all.
    What is not given is not changed; a policy that is named comes with settings of its own."""

    model_config = ConfigDict(allow_inf_nan=False)

    policy: PolicyName | None = Field(default=None, description="The named policy that all else is laid over.")
    enabled: bool | None = Field(default=None, description="Compact before the window is full.")
    trigger: Trigger | None = Field(default=None, description="What begins a compaction before the window is full.")
    threshold_percent: Percent | None = Field(default=None, description="For the trigger `percent`.")
    reserve_tokens: Annotated[int, BeforeValidator(no_truth), Field(ge=0)] | None = Field(
        default=None, description="For the trigger `reserve`."
    )
    max_tokens: Count | None = Field(default=None, description="For the trigger `tokens`.")
    target_percent: Percent | None = Field(default=None, description="Part of the window that a text is cut for.")
    on_overflow: bool | None = Field(default=None, description="Compact and send again after a refusal for length.")
    keep_recent_tokens: Count | None = Field(default=None, description="Newest tokens left as they are, at most.")
    keep_recent_percent: Percent | None = Field(default=None, description="The same, as a part of the window.")
    preserve_last_n: Count | None = Field(default=None, description="Newest messages left as they are, at most.")
    estimator: EstimatorName | None = Field(default=None, description="How text is counted.")

    def given(self) -> dict[str, object]:
        """What is set."""
        return {name: value for name in Rules.model_fields if (value := getattr(self, name)) is not None}


class Betas(Data):
    """What a platform calls Anthropic's features that a request must ask for, in its `anthropic-beta` header."""

    on_demand: str | None = None
    """For `compaction` in the request, and for every later request that carries its block."""
    threshold: str | None = None
    """For the edit `compact_20260112`."""
    context_edit: str | None = None
    """For the edits that clear tool calls and thinking."""


class Model(Data):
    """What is known of the models whose ids match. Tokens."""

    match: Strings = Field(min_length=1)
    """Ids or globs, without date suffix; an exact id wins over a glob, an earlier entry over a later."""
    window: PositiveInt | None = None
    input_limit: PositiveInt | None = None
    max_output: PositiveInt | None = None
    binds_thinking: bool = False
    """Thinking blocks are checked against the conversation before them (Anthropic's preserved thinking)."""
    compaction: Annotated[tuple[Compaction, ...], BeforeValidator(_listed)] | None = None
    """How the model itself compacts on this platform, for strategy `anthropic`; empty where it is known not to, None
    where nothing is known. Anthropic's own list of models, where it can be asked, counts for more."""


class PromptCache(Data):
    """How the provider caches the beginnings of requests, for the models whose ids match. Prices are shares of that of
    an input token; see `compactors.ride.Caching`."""

    match: Strings = ("*",)
    """Ids or globs, without date suffix; the first entry that matches counts."""
    read: Annotated[float, Field(ge=0, lt=1)]
    write: Annotated[float, Field(ge=1)] = 1.0
    marks: bool = False
    minimum: PositiveInt = 1024
    lifetime: Annotated[float, Field(gt=0)] = 300.0
    source: str


class Refusal(Data):
    """One rule that tells what a refusal means; see `overflow.rules.RuleSpec`."""

    id: Name
    kind: Kind
    code: Strings = ()
    type: Strings = ()
    status: Statuses = ()
    pattern: str | None = None
    unless: Strings = ()
    """Names of shared counter-evidence, or patterns of its own."""
    action: Action | None = None
    certain: bool = True
    sample: str
    source: str

    def spec(self, file: str) -> RuleSpec:
        """The rule as the pure classifier takes it."""
        return RuleSpec(file=file, **self.model_dump())


class Evidence(Data):
    """Patterns of the three parts of an overflow sentence, and the counter-evidence against it."""

    subject: tuple[str, ...] = ()
    relation: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


class SharedRules(Data):
    """`_shared.toml`: counter-evidence by name, the words that make two of three, and rules for any provider."""

    counter: Mapping[Name, tuple[str, ...]] = {}
    evidence: Evidence = Field(default_factory=lambda: Evidence())
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A request to a provider's API that tells windows: `windows_from(api, answer)` reads the answer."""

    api: Api
    method: Literal["GET", "POST"]
    url: str
    body: bytes = b""
    betas: tuple[str, ...] = ()
    """To be named in `anthropic-beta`, beside those that the caller names."""


class Sdk(Data):
    """How a provider is asked through a package's SDK."""

    prefix: str = ""
    """Put before each model's name: what the package calls the provider, as `bedrock/`."""
    arguments: Mapping[str, pydantic.JsonValue] = {}
    """Arguments of every call, by the package's own names: regions, projects, `drop_params`."""


class Provider(Data):
    """One provider file, the user's overlay included."""

    name: Name
    title: str
    base_url: Url | None = None
    """With or without the final `/v1`; None where the user gives it."""
    base_urls: Mapping[DialectName, Url] = {}
    """Dialects served from another base URL."""
    base_url_form: str | None = None
    """What the base URL looks like where each customer has one of their own, for people to read."""
    elsewhere: Mapping[str, Url] = {}
    """The same provider's other base URLs by region or plan, to be given as `base_url`."""
    hosts: tuple[str, ...] = ()
    """Globs of hosts that are this provider's too, where customers have hosts of their own."""
    through: Literal["litellm"] | None = None
    """The package whose SDK speaks to the provider, where none of the three dialects is served at its own paths. Such a
    provider is reached over HTTP only where a `base_url` says who serves a dialect on its behalf."""
    sdk: Sdk = Sdk()
    """How it is asked through that."""
    notes: tuple[str, ...] = ()
    """What differs by region, platform or plan, or could not be established, for people to read."""
    dialects: tuple[DialectName, ...] = Field(min_length=1)
    auth: Auth = Auth()
    strategies: Strategies = {}
    """Compaction strategies in order of preference; `summary` where a dialect is not named."""
    native_timeout: PositiveFloat | None = None
    """Seconds one call of the provider's own compaction may take; None: as configured."""
    inband: bool = False
    """`context_management` within a Responses request is honoured: the only way where the history is the provider's."""
    bridge: bool = False
    """What chat completions ask of a model, the Responses API can be asked as well, for every model here: so a chat
    client's history may be compacted there (`compaction.bridge`)."""
    minimum_trigger: Mapping[str, PositiveInt] = {}
    """Smallest threshold the provider accepts, tokens, by strategy."""
    betas: Betas = Betas()
    counts_output: bool = True
    """The provider refuses a request whose input and output limit together exceed the window."""
    chosen_by_model: bool = True
    """May be chosen by a model's name alone."""
    windows_api: Annotated[tuple[Literal["models", "anthropic", "props", "show"], ...], BeforeValidator(_listed)] = ()
    """The provider's own API that tells its models' windows: a list of models, llama.cpp's `/props`, Ollama's. Of
    several the first that tells; those of local servers are asked on private networks only then."""
    compaction: Rules = Rules()
    """When and how far histories are compacted here, where it differs from what is set for all."""
    quirks: Quirks = Quirks()
    prompt_cache: tuple[PromptCache, ...] = ()
    models: tuple[Model, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def api_root(self) -> str:
        """Where the dialects' paths begin, version included: `https://api.openai.com/v1`. Empty without a base URL."""
        return api_root(self.base_url or "", versioned=self.quirks.versioned)

    @property
    def host_root(self) -> str:
        """The same without the version, for paths that are relayed as they are."""
        return host_root(self.base_url or "")

    def root_for(self, dialect: DialectName) -> str:
        """`api_root`, or the dialect's own where it is served from another base URL."""
        if dialect in self.base_urls:
            return api_root(self.base_urls[dialect], versioned=self.quirks.versioned)
        return self.api_root

    def by_sdk(self, dialect: DialectName | None) -> bool:
        """Whether a dialect, or what belongs to none, is served through the package's SDK rather than over HTTP."""
        return self.through is not None and not (self.root_for(dialect) if dialect else self.api_root)

    @property
    def tells_abilities(self) -> bool:
        """Whether its own API tells what its models can do, beside how large they are."""
        return "anthropic" in self.windows_api

    @property
    def without_base_url(self) -> str:
        """Why nothing can be sent where no base URL is known, and what to set."""
        form = f" (of the form {self.base_url_form})" if self.base_url_form else ""
        how = f"Start with --upstream URL, or set providers.{self.name}.base_url{form}."
        return f"Provider {self.name} has no base URL. {how}"

    def strategies_for(self, dialect: DialectName) -> tuple[str, ...]:
        """Names of compaction strategies, best first."""
        return self.strategies.get(dialect, ("summary",))

    def summary_fields(self, dialect: DialectName) -> dict[str, JsonValue]:
        """Fields of Tidegate's own calls: added, or to be left out where the value is None."""
        left_out: dict[str, JsonValue] = dict.fromkeys(self.quirks.summary_omit.get(dialect, ()))
        return {**left_out, **self.quirks.summary_extra.get(dialect, {})}

    def caching(self, model_id: str) -> Caching | None:
        """How the provider caches requests to a model; None where the file does not say."""
        names = spellings(model_id)
        for entry in self.prompt_cache:
            if any(fnmatchcase(name, glob) for name in names for glob in entry.match):
                return Caching(entry.read, entry.write, entry.marks, entry.minimum, entry.lifetime)
        return None

    def model(self, model_id: str) -> ModelFacts:
        """What the file says of a model; all None where it says nothing."""
        found = self._matching(model_id)
        if found is None:
            return ModelFacts()
        return ModelFacts(found.window, found.input_limit, found.max_output, found.binds_thinking)

    def compaction_of(self, model_id: str) -> tuple[Compaction, ...] | None:
        """How a model compacts by itself on this platform; None where the file says nothing of it."""
        found = self._matching(model_id)
        return found.compaction if found else None

    def at(self, host: str) -> bool:
        """Whether a host is the provider's, by any of its base URLs."""
        urls = (self.base_url, *self.base_urls.values(), *self.elsewhere.values())
        return any(url and host_of(url) == host for url in urls) or any(fnmatchcase(host, glob) for glob in self.hosts)

    def questions(self, model_id: str, base_url: str | None = None) -> tuple[Question, ...]:
        """What to ask the provider for a model's window, the surest answer first; nothing where it can't be asked.

        `base_url` is the endpoint in use, where it is not the file's.
        """
        base = base_url or self.base_url
        if not base:
            return ()
        probing = len(self.windows_api) > 1 and not _is_private(base)
        return tuple(
            question
            for asked in self.windows_api
            if not (probing and asked in ("props", "show"))
            for question in self._questions(asked, model_id, base)
        )

    def _questions(self, asked: str, model_id: str, base: str) -> tuple[Question, ...]:
        host = host_root(base)
        if asked == "props":
            named = f"?model={quote(model_id, safe='')}" if model_id else ""
            return (Question("props", "GET", f"{host}/props{named}"),)
        if asked == "show":
            body = json.dumps({"model": model_id}).encode()
            return Question("ps", "GET", f"{host}/api/ps"), Question("show", "POST", f"{host}/api/show", body)
        listed = f"{api_root(base, versioned=self.quirks.versioned)}/models"
        if asked == "anthropic":
            betas = (self.betas.on_demand,) if self.betas.on_demand else ()
            return (Question("anthropic", "GET", f"{listed}?limit=1000", betas=betas),)
        return (Question("models", "GET", listed),)

    def lists(self, model_id: str) -> Literal["exact", "glob", None]:
        """Whether a model is in the file's table, by its very name or by a glob."""
        if any(name in self._exact for name in spellings(model_id)):
            return "exact"
        return "glob" if self._matching(model_id) else None

    @cached_property
    def _exact(self) -> dict[str, Model]:
        table: dict[str, Model] = {}
        for model in self.models:
            for name in model.match:
                table.setdefault(name, model)
        return table

    def _matching(self, model_id: str) -> Model | None:
        names = spellings(model_id)
        for name in names:
            if name in self._exact:
                return self._exact[name]
        for model in self.models:
            globs = [glob for glob in model.match if "*" in glob or "[" in glob or "?" in glob]
            if any(fnmatchcase(name, glob) for name in names for glob in globs):
                return model
        return None


_VERSION = re.compile(r"/v\d+(?:beta\d*|alpha\d*)?$")
_DATE = re.compile(r"[-@](?:20\d{6}|20\d\d-\d\d-\d\d)$")


def host_of(url: str) -> str:
    """The host of a URL, lower-cased; empty where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_private(url: str) -> bool:
    """Whether the host is this machine, or one of a private network by its address or its name."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal", ".lan", ".home.arpa"))
    return address.is_private or address.is_loopback


def api_root(base_url: str, *, versioned: bool = True) -> str:
    """A base URL with its version: `https://x` and `https://x/v1` give `https://x/v1`, `…/paas/v4` stays."""
    url = base_url.rstrip("/")
    if not url or not versioned or _VERSION.search(url):
        return url
    return f"{url}/v1"


def host_root(base_url: str) -> str:
    """A base URL without its final version."""
    return _VERSION.sub("", base_url.rstrip("/"))


def told_of(told: Mapping[str, ModelFacts], model_id: str) -> ModelFacts:
    """What was told of a model, however the answer spells its name; all None where nothing was."""
    lowered = {name.lower(): facts for name, facts in told.items()}
    for name in (*spellings(model_id), f"{model_id.strip().lower()}:latest", ANY):
        if name in lowered:
            return lowered[name]
    return ModelFacts()


def spellings(model_id: str) -> tuple[str, ...]:
    """The id, then without `:tag`, without its date, and without `-latest`: the ways a table may know it."""
    name = model_id.strip().lower()
    bare = name.partition(":")[0]
    undated = _DATE.sub("", bare)
    return tuple(dict.fromkeys((name, bare, undated, undated.removesuffix("-latest"))))
