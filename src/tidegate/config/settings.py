"""What may be set: sections, keys, defaults and limits.

Knows values; not where they come from. Built by `config.load`, read by the gateway, the clients and the commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    PrivateAttr,
    SecretStr,
    model_validator,
)
from pydantic.fields import FieldInfo

from tidegate.config.values import MIB, Allowed, AnyPath, Bytes, Seconds, Strategies, Text, Texts, Url
from tidegate.context.budget import RESERVE_TOKENS, Trigger
from tidegate.context.policies import Chosen, chosen
from tidegate.provider_file import Count, EstimatorName, Percent, PolicyName, Rules, no_truth


class Section(BaseModel):
    """A table of the configuration: an unknown key is an error, nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class ServerSettings(Section):
    """Where the gateway listens and whom it answers."""

    host: Text = Field(
        default="127.0.0.1", description="Address to listen on. Other than loopback, anyone there may use it."
    )
    port: Annotated[int, BeforeValidator(no_truth), Field(ge=0, le=65_535)] = Field(
        default=8484, description="Port to listen on; 0 for any free one."
    )
    body_limit_bytes: Bytes = Field(default=128 * MIB, description="Largest request body, unpacked.")
    allowed_hosts: Texts = Field(
        default=(), description="Names in `Host` that a gateway on loopback answers besides its own."
    )
    allowed_origins: Texts = Field(default=(), description="Web origins that may call a gateway on loopback.")
    drain_seconds: Annotated[int, BeforeValidator(no_truth), Field(ge=0, le=86_400)] = Field(
        default=30, description="How long open streams may go on after a stop was asked for."
    )
    admin_key: Annotated[SecretStr, Allowed("a text of 16 characters at least"), Field(min_length=16)] | None = Field(
        default=None,
        description="Opens the diagnostics of all callers; default: what `tidegate status` makes of the store's key.",
    )
    http: Literal["own", "uvicorn"] = Field(
        default="own", description="What speaks HTTP with clients: Tidegate's own server, or uvicorn."
    )
    workers: Annotated[int, BeforeValidator(no_truth), Field(ge=1, le=256)] = Field(
        default=1, description="Processes that serve. They share a store in a file, not one in memory."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="What is logged, to stderr."
    )


class UpstreamSettings(Section):
    """How providers are reached."""

    url: Url | None = Field(default=None, description="Send everything to this base URL, as the `generic` provider.")
    connect_timeout: Seconds = Field(default=10, description="Seconds to wait for a connection.")
    read_timeout: Seconds = Field(default=600, description="Seconds to wait for the next byte of an answer.")
    max_connections: Count = Field(default=1000, description="Open connections to one host.")
    ca_file: FilePath | None = Field(default=None, description="Certificates to trust besides the system's (PEM).")
    http: Literal["own", "aiohttp"] = Field(
        default="own", description="What speaks HTTP with providers: Tidegate's own client, or aiohttp."
    )
    ask_windows: bool = Field(
        default=True,
        description="Ask servers for the windows of models that nothing here states, and Anthropic's what its models "
        "can do, with the caller's credential.",
    )


class RoutingSettings(Section):
    """The provider of a request whose path and model name none."""

    default_chat: Text = Field(default="openai", description="For `/v1/chat/completions`.")
    default_responses: Text = Field(default="openai", description="For `/v1/responses`.")
    default_messages: Text = Field(default="anthropic", description="For `/v1/messages`.")


class CompactionSettings(Section):
    """When a history is compacted, and how hard Tidegate tries."""

    policy: PolicyName = Field(
        default="default",
        description="A named policy: what the keys down to `estimator` say where they are not set. The defaults here "
        "are those of `default`; [Policies](policies.md) has the others.",
    )
    mode: Literal["on", "shadow"] = Field(
        default="on",
        description="`shadow` decides and tells, in headers and by a line of the log for each decision, and changes "
        "nothing: no call is made, no history rewritten, and a refusal for length is passed on.",
    )
    enabled: bool = Field(default=True, description="Compact before the window is full.")
    trigger: Trigger = Field(
        default="percent",
        description="What begins a compaction before the window is full: a share of the window is reached, a reserve "
        "is no longer free, a number of tokens is passed, or nothing does.",
    )
    threshold_percent: Percent = Field(
        default=85, description="For `percent`: part of the window from which a compaction is due."
    )
    reserve_tokens: Annotated[int, BeforeValidator(no_truth), Field(ge=0)] | None = Field(
        default=None,
        description=f"For `reserve`: tokens kept free, and 15 % of the window at least; default: {RESERVE_TOKENS}, and "
        "15 % of a window that is too small for it.",
    )
    max_tokens: Count = Field(default=8_000, description="For `tokens`: a compaction is due above it.")
    target_percent: Percent = Field(
        default=50,
        description="Part of the window that a text is cut for, not a provider's own compaction; lowered to one below "
        "`threshold_percent`.",
    )
    on_overflow: bool = Field(
        default=True, description="Compact and send again when a provider says that it is too long."
    )
    elide_percent: Percent = Field(
        default=50,
        description="Part of the window from which old tool results are left out, where `elide` is the first of the "
        "`strategies` and half of the history would go.",
    )
    last_resort: bool = Field(
        default=True,
        description="Cut the largest tool results in their middle, the newest too, where nothing else helps after a "
        "provider has said that it is too long.",
    )
    shrink_on_admission: bool = Field(
        default=False,
        description="Compact and send again when one request is above a whole rate allowance and waiting can't help.",
    )
    keep_recent_tokens: Count | None = Field(
        default=None, description="Newest tokens left as they are, at most; default: by the target."
    )
    keep_recent_percent: Percent | None = Field(
        default=10, description="The same, as a part of the window; never less than 4,000 tokens where it is not set."
    )
    preserve_last_n: Count | None = Field(
        default=None,
        description="Newest messages left as they are, at most; fewer where a call would lose its result, or half the "
        "window would not hold them.",
    )
    estimator: EstimatorName = Field(
        default="tidegate", description="How text is counted, as one of the named policies does it."
    )
    prepare: Literal["auto", "off"] = Field(
        default="auto",
        description="Prepare a compaction between turns, with the caller's credential, so that no turn waits for one.",
    )
    prepare_percent: Percent = Field(
        default=70,
        description="Part of the window from which one is prepared; "
        "where it is not below the threshold, four fifths of that.",
    )
    prepare_at_once: Count = Field(default=4, description="Compactions that a process prepares at once, at most.")
    max_per_request: Annotated[int, BeforeValidator(no_truth), Field(ge=1, le=5)] = Field(
        default=2, description="Compactions of one request, at most."
    )
    rest_first_seconds: Seconds = Field(
        default=30,
        description="How long compaction before the window is full rests in a conversation where it failed; twice as "
        "long for each failure in a row.",
    )
    rest_most_seconds: Seconds = Field(default=600, description="How long it rests at most.")
    refills: Count = Field(
        default=3,
        description="It rests after so many compactions in a row, each within `refill_messages` of the one before.",
    )
    refill_messages: Count = Field(default=2, description="Messages by which a history grows between those.")
    regrow_percent: Percent = Field(
        default=10,
        description="Where a compaction could not bring a conversation below the threshold, or was in vain, it has to "
        "grow by this part before the next is tried.",
    )
    strategies: Strategies | None = Field(
        default=None,
        description="Ways of compacting, best first: others are not tried. Of a provider only those that its file "
        "lists, `context-edit`, and `elide`, which asks nobody; default: all that it lists.",
    )
    bridge: Literal["auto", "never"] = Field(
        default="never",
        description="Serve a chat completions client by the Responses API once its history needs compaction, where the "
        "provider compacts there and every field of the request has its like there: for that request only.",
    )
    inband: Literal["auto", "always"] = Field(
        default="auto",
        description="Whose Responses requests may ask the provider to compact within them (`openai-inband`), besides "
        "those whose history it holds: clients that send sealed reasoning back, or every client. One that leaves the "
        "compaction out of its next request is not asked for again in that conversation.",
    )
    portable: Literal["on_switch", "background"] = Field(
        default="on_switch",
        description="When a text is made of what a provider has sealed, for another model, provider or key: when such "
        "a request needs it, or beside it, in the background (a summary more for each compaction).",
    )
    native_timeout_seconds: Seconds = Field(
        default=180, description="Seconds that one call of a provider's own compaction may take."
    )
    summary_max_calls: Annotated[int, BeforeValidator(no_truth), Field(ge=1, le=1000)] = Field(
        default=32, description="Calls that one summary may take where the history is many windows long."
    )
    summary_timeout_seconds: Seconds = Field(default=180, description="Seconds that one call for a summary may take.")
    _warnings: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _as_used(self) -> Self:
        made = chosen([self.given()])
        self._warnings = tuple(f"compaction.{text}" for text in made.told)
        if made.policy.target_percent is not None:
            self.__dict__["target_percent"] = made.policy.target_percent  # frozen for everybody else
        return self

    def given(self) -> dict[str, object]:
        """What is set of a policy's fields; see `context.policies.chosen`."""
        told = self.model_fields_set
        rules = {name: getattr(self, name) for name in Rules.model_fields if name in told}
        given: dict[str, object] = {name: value for name, value in rules.items() if value is not None}
        if self.prepare == "off":
            given["prepare_percent"] = None
        elif told & {"prepare", "prepare_percent"}:
            given["prepare_percent"] = self.prepare_percent
        return given


class SummarySettings(Section):
    """How summaries are made."""

    model: Text | None = Field(
        default=None, description="Model that summarises, at the same provider; default: the one in use."
    )
    models: Texts = Field(
        default=(),
        description="Models at the same provider that are asked in turn where the one before gives no summary.",
    )
    prompt_file: FilePath | None = Field(
        default=None,
        description="Instructions for a first summary, instead of the built-in; `{words}` becomes the number of words "
        "to stay below.",
    )
    update_prompt_file: FilePath | None = Field(
        default=None, description="Instructions for carrying a summary forward."
    )
    system_prompt_file: FilePath | None = Field(
        default=None,
        description="System prompt of a call that is shown a transcript: the role, and that all else is material.",
    )
    ride_prompt_file: FilePath | None = Field(
        default=None,
        description="What comes before the instructions where the call continues the session's own request (`ride`).",
    )
    tool_result_chars: Count = Field(
        default=2000, description="Characters of each tool result shown to the summarizer."
    )
    ride: Literal["auto", "always", "off"] = Field(
        default="auto",
        description="Ask for the summary at the end of the session's own request, whose input the provider has cached: "
        "where that is known to cost less, whenever it can be, or never.",
    )


class StreamSettings(Section):
    """How a client is kept waiting while a compaction runs, and how long an answer's beginning is held back."""

    heartbeat_after_seconds: Seconds = Field(default=5, description="Silence before the first heartbeat.")
    heartbeat_every_seconds: Seconds = Field(default=10, description="Time between heartbeats.")
    hold_seconds: Seconds = Field(
        default=15, description="How long the beginning of a stream is held to see whether it is refused."
    )
    hold_bytes: Bytes = Field(default=MIB, description="How much of it is held.")


class StoreSettings(Section):
    """Where checkpoints are kept."""

    kind: Literal["sqlite", "memory", "none"] = Field(default="sqlite", description="A file, this process, or nowhere.")
    path: AnyPath | None = Field(
        default=None, description="The SQLite file; default: `checkpoints.db` in the user's data folder."
    )
    retention_days: Annotated[float, BeforeValidator(no_truth), Field(gt=0, le=36_500)] = Field(
        default=30, description="Days after its last use that a checkpoint is kept."
    )
    max_bytes: Bytes = Field(default=1024 * MIB, description="Size of the file; above it the least recently used go.")
    key_file: AnyPath | None = Field(
        default=None,
        description="File with the key that seals; made on first start. Default: `key` in the user's data folder.",
    )
    key: Annotated[SecretStr, Allowed("at least 32 random bytes in base64 or hex")] | None = Field(
        default=None, description="The key itself, instead of a file. Replicas that share a store share it."
    )


class ModelSizes(Section):
    """What is known of a model, in tokens, and the ways of compacting it."""

    window: Count | None = Field(default=None, description="Context window.")
    input_limit: Count | None = Field(default=None, description="Input accepted, where it is less than the window.")
    max_output: Count | None = Field(default=None, description="Longest answer.")
    strategies: Strategies | None = Field(
        default=None,
        description="Ways of compacting, best first, whether or not the provider's file lists them.",
    )


class CompactorSettings(Section):
    """A compactor of the user's own: its name may stand in every list of `strategies`."""

    use: Text = Field(
        description="A URL (`http://127.0.0.1:9000`), `module:Class`, or the name of an entry point of the group "
        "`tidegate.compactors`."
    )
    timeout_seconds: Seconds = Field(default=600, description="Seconds that it may take for one compaction.")


class ModelSettings(Rules, ModelSizes):
    """What is known of a model, and when and how it is compacted; wins over the provider files."""


class Settings(Section):
    """The whole configuration."""

    server: ServerSettings = ServerSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    routing: RoutingSettings = RoutingSettings()
    compaction: CompactionSettings = CompactionSettings()
    summary: SummarySettings = SummarySettings()
    stream: StreamSettings = StreamSettings()
    store: StoreSettings = StoreSettings()
    models: Mapping[str, ModelSettings] = {}
    """By model name or glob, with or without `provider/`."""
    compactors: Mapping[str, CompactorSettings] = {}
    """The user's own, by name."""
    providers: Mapping[str, Mapping[str, Any]] = {}
    """Tables laid over the provider files of the same name; `tidegate.providers` validates them."""
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _file: Path | None = PrivateAttr(None)
    _rules: tuple[str, ...] = PrivateAttr(())

    @property
    def file(self) -> Path | None:
        """The file that was read, None where there was none."""
        return self._file

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was set, allowed, and yet can't be meant; to be shown at the start."""
        return (*self.compaction._warnings, *self._rules)

    def chosen(self, provider: Mapping[str, object], model: Mapping[str, object]) -> Chosen:
        """The policy for a model of a provider, each with what is set for it alone."""
        return chosen([self.compaction.given(), provider, model])

    @model_validator(mode="after")
    def _rules_as_used(self) -> Self:
        """Tells what can't be meant of a model's or a provider's own rules, once each."""
        told = []
        known = {text.partition(".")[2] for text in self.compaction._warnings}
        for name, model in self.models.items():
            found = self.chosen({}, model.given()).told if model.given() else ()
            told += [f"models.{name}.{text}" for text in found if text not in known]
        for name, table in self.providers.items():
            rules = table.get("compaction")
            if isinstance(rules, Mapping) and rules:
                try:
                    found = self.chosen(Rules.model_validate(rules).given(), {}).told
                except ValueError:
                    continue  # `tidegate.providers` says what is wrong with it
                told += [f"providers.{name}.compaction.{text}" for text in found if text not in known]
        self._rules = tuple(told)
        return self

    def provider_origin(self, name: str, key: str = "") -> str:
        """Where a provider's field was given, or any of its fields; empty where none was."""
        table = f"providers.{name}"
        parts = [table, *key.split(".")] if key else [table]
        for length in range(len(parts), 0, -1):
            if place := self._origins.get(".".join(parts[:length])):
                return place
        return next((place for known, place in self._origins.items() if known.startswith(f"{table}.")), "")

    def origin(self, key: str) -> str:
        """Where the value of a dotted key came from: a file, a variable, a flag, or "default".

        Raises `KeyError` for a key that does not exist.
        """
        if key in self._origins:
            return self._origins[key]
        section, _, rest = key.partition(".")
        if (section, rest) in KEYS or section in TABLES:
            return "default"
        raise KeyError(key)


TABLES: Final = ("models", "providers", "compactors")
"""Sections whose tables have names of the user's choosing."""


def _sections() -> Iterator[tuple[str, type[Section]]]:
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield name, field.annotation


SECTIONS: Final[Mapping[str, type[Section]]] = dict(_sections())
KEYS: Final[Mapping[tuple[str, str], FieldInfo]] = {
    (section, key): field for section, shape in SECTIONS.items() for key, field in shape.model_fields.items()
}
