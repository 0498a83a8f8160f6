"""Compaction for whoever keeps the messages: lists in, new lists out, by the same engine and store as the transports.

Knows the shapes of the three APIs' bodies and how an exchange is asked; the decisions are the engine's. Public.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, cast

from tidegate.client import blocking, waiting
from tidegate.client.blocks import checked, rules_of
from tidegate.client.calls import Asking
from tidegate.client.crossing import Crossing
from tidegate.client.events import Announcer
from tidegate.client.house import Given, House, house
from tidegate.client.places import Place, place_of, provider_at
from tidegate.client.sdk import Below, Sdk, sdk_of
from tidegate.compactors.strategy import CompactionFailed, Summary
from tidegate.compactors.summary import Options, focused
from tidegate.engine import exchange
from tidegate.engine.exchange import kept_inside, relayed, requested
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import plain, read_history
from tidegate.gateway.arrival import next_id
from tidegate.gateway.credentials import Tenants, identity
from tidegate.gateway.messages import forwarded, readable
from tidegate.gateway.targets import Choice
from tidegate.upstream.http import Headers
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads

Message: TypeAlias = Mapping[str, Any]
"""A message, or an input item, as the API's own JSON."""

ITEMS: Final[Mapping[DialectName, str]] = {"chat": "messages", "responses": "input", "messages": "messages"}
SYSTEM: Final[Mapping[DialectName, str]] = {"chat": "", "responses": "instructions", "messages": "system"}
OUTPUT: Final[Mapping[DialectName, str]] = {
    "chat": "max_completion_tokens",
    "responses": "max_output_tokens",
    "messages": "max_tokens",
}
URLS: Final[Mapping[DialectName, str]] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
}

NOTHING: Final = frozenset({"nothing_to_compact", "no_smaller", "empty"})
"""Reasons why there is nothing to gain, which are no failures."""


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a list is due for compaction, and by which numbers. Tokens, calibrated estimates."""

    due: bool
    tokens: int
    threshold: int | None
    """From here it is due; None where the window is needed for that and unknown."""
    target: int | None
    window: int | None
    reason: str
    """Why it is not due, empty where it is: `below_threshold`, `unknown_window`, `disabled`."""


@dataclass(frozen=True, slots=True)
class CompactedMessages:
    """What became of a list. Tokens are calibrated estimates, `input_tokens` and `output_tokens` those billed."""

    messages: list[dict[str, Any]] = field(repr=False)
    """A new list, to be sent, or kept, in place of the one that was given."""
    tokens_before: int
    tokens_after: int
    dropped_count: int
    """Of the given messages: how many the new list has no more, or has only in what replaces them."""
    checkpoint: str
    """Id of what was stored: the same list, or one that goes on from it, needs no other call."""
    strategy: str
    summary: str = field(repr=False)
    """The summary's text; empty where a provider's own items replace the messages."""
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Compactor:
    """Keeps lists of messages inside a context window.

    `client` is a client of the openai or anthropic package (blocking or not): its model, credential and address are
    used for summaries. Without one, sizes can be had and nothing can be compacted. `dialect` is `chat`, `responses` or
    `messages`; left out, the one that the client is used for. The rules are those of `[compaction]`, by keyword:
    `max_tokens`, `preserve_last_n`, `threshold_percent`, `policy` ... `summary_model` asks another model of the same
    provider. `settings` are tables shaped like the configuration file.

    A list is never changed. What was compacted is stored as by the gateway, for the same credential.

    Raises `ConfigError` for rules and settings that are not allowed, `NoSuchApi` for a client of another kind.
    """

    def __init__(
        self,
        client: object | None = None,
        *,
        model: str,
        dialect: DialectName | None = None,
        window: int | None = None,
        summary_model: str | None = None,
        system: str | Sequence[Message] | None = None,
        tools: Sequence[Message] | None = None,
        config: str | os.PathLike[str] | None = None,
        settings: Given | None = None,
        **rules: Any,
    ) -> None:
        self.model, self.system, self.tools = model, system, tools
        self._sdk: Sdk | None = sdk_of(client) if client is not None else None
        self.dialect: DialectName = dialect or (self._sdk.dialect if self._sdk else "chat")
        if "max_tokens" in rules:
            rules.setdefault("trigger", "tokens")
        self._rules = checked(rules)
        self._house: House = house(config, _with(settings, model, window, summary_model))

    # -- sizes ---------------------------------------------------------------------------------------------------

    def estimate(self, messages: Sequence[Message]) -> int:
        """Tokens of a request with these messages, system prompt and tools included."""
        return self.check(messages).tokens

    def check(self, messages: Sequence[Message]) -> Check:
        """Whether a list is due, and why not. Raises `ValueError` for a list that is none of the dialect's."""
        place, headers, raw = self._address(messages)
        kept = self._here()
        with kept.lock:
            request = self._request(place, headers, raw, kept.kit, kept.tenants)
            history = read_history(request.conversation, request.tenant, kept.kit.hasher, kept.kit.ledger)
            sizing = Sizing(request, kept.kit, history)
            view, limits = plain(history), sizing.limits()
            reason = sizing.not_due(view)
            tokens = sizing.measured(view).tokens
        return Check(not reason, tokens, limits.threshold, limits.target, limits.window, reason)

    def should_compact(self, messages: Sequence[Message]) -> bool:
        """Whether a list is due for compaction."""
        return self.check(messages).due

    # -- compaction ----------------------------------------------------------------------------------------------

    def compact_sync(
        self,
        messages: Sequence[Message],
        *,
        force: bool = False,
        target_tokens: int | None = None,
        focus: str = "",
    ) -> CompactedMessages | None:
        """A smaller list; None where none is due, or where nothing is to be gained.

        `force` compacts a list of any size, to half of it at most, or to `target_tokens`. `focus` is told to the
        summarizer. Raises `CompactionFailed` where it was due and could not be done, `ValueError` for a list that is
        none of the dialect's, and `TypeError` for a Compactor without a blocking client.
        """
        sdk = self._needs(asynchronous=False)
        kept = self._here()
        asked = self._asked(messages, sdk, kept.kit, kept.tenants, force, target_tokens, focus)
        upstream = blocking.Upstream(asked.asking, Below(sdk), kept.custom)
        driver = blocking.driver_of(asked.asking.crossing, upstream, kept)
        try:
            return asked.told(messages, driver.result(asked.life))
        except CompactionFailed as error:
            _no_failure(error)
            return None
        except BaseException:
            asked.announcer.over(cancelled=True)
            raise
        finally:
            asked.announcer.over()

    async def compact(
        self,
        messages: Sequence[Message],
        *,
        force: bool = False,
        target_tokens: int | None = None,
        focus: str = "",
    ) -> CompactedMessages | None:
        """`compact_sync` for asynchronous programs; a blocking client is used in a thread."""
        if self._sdk is not None and not self._sdk.asynchronous:
            return await asyncio.to_thread(
                self.compact_sync, messages, force=force, target_tokens=target_tokens, focus=focus
            )
        sdk, kept = self._needs(asynchronous=True), self._here()
        tools = kept.here()
        asked = self._asked(messages, sdk, tools.kit, tools.tenants, force, target_tokens, focus)
        upstream = waiting.Upstream(asked.asking, Below(sdk), kept.custom)
        driver = waiting.driver_of(asked.asking.crossing, upstream, waiting.Handed(), kept, tools.flights)
        try:
            return asked.told(messages, await driver.result(asked.life))
        except CompactionFailed as error:
            _no_failure(error)
            return None
        except BaseException:
            asked.announcer.over(cancelled=True)
            raise
        finally:
            asked.announcer.over()

    # -- how it is asked -----------------------------------------------------------------------------------------

    def _needs(self, *, asynchronous: bool) -> Sdk:
        if self._sdk is None:
            raise TypeError("This Compactor has no client: give it one of the openai or anthropic package to compact.")
        if self._sdk.asynchronous and not asynchronous:
            raise TypeError("This Compactor has an asynchronous client: await `compact`, or give it a blocking one.")
        return self._sdk

    def _here(self) -> House:
        self._house = self._house.current()
        return self._house

    def _body(self, messages: Sequence[Message]) -> JsonObject:
        body: dict[str, Any] = {"model": self.model, ITEMS[self.dialect]: [_json_of(one) for one in messages]}
        key = SYSTEM[self.dialect]
        if self.system is not None and key:
            body[key] = self.system
        elif self.system is not None:
            body["messages"].insert(0, {"role": "system", "content": self.system})
        if self.tools is not None:
            body["tools"] = [dict(tool) for tool in self.tools]
        if self.dialect == "messages":
            body["max_tokens"] = 1024
        return cast(JsonObject, body)

    def _address(self, messages: Sequence[Message]) -> tuple[Place, Headers, bytes]:
        """Where the request would go, under which headers, and its body."""
        body = self._body(messages)
        if self._sdk is not None:
            request = self._sdk.request(self.dialect, body)
            headers = [(name.lower(), value) for name, value in request.headers.raw]
            url, raw = str(request.url), request.content
        else:
            targets = self._house.targets
            provider = self._house.catalogue.get(targets.defaults[self.dialect])
            headers, url, raw = [], f"{targets.root(provider, self.dialect)}{URLS[self.dialect]}", dumps(body)
        place = place_of("POST", url)
        if place is None:
            raise ValueError(f"{url} is no endpoint of a conversation")
        return place, headers, raw

    def _request(self, place: Place, headers: Headers, raw: bytes, kit: Kit, tenants: Tenants) -> Request:
        provider = provider_at(self._house.catalogue, place)
        conversation = kit.recall.read(self.dialect, raw)
        target = self._house.targets.target(Choice(provider, self.model), self.dialect, place.root)
        rules = {**self._rules, **rules_of(headers)}
        if rules:
            target = replace(target, policy=self._house.targets.followed(provider, self.model, rules))
        secret = identity(readable(forwarded(headers)), place.query, provider)
        return Request(next_id(), conversation, tenants.of(secret, place.root), target, time.time())

    def _asked(
        self,
        messages: Sequence[Message],
        sdk: Sdk,
        kit: Kit,
        tenants: Tenants,
        force: bool,
        aim: int | None,
        focus: str,
    ) -> _Asked:
        original = sdk.request(self.dialect, self._body(messages))
        place, headers, raw = self._address(messages)
        with self._house.lock:
            request = self._request(place, headers, raw, kit, tenants)
        if focus:
            kit = replace(kit, options=_focused(kit.options, focus))
        life = requested(request, kit, aim=aim) if force or aim is not None else kept_inside(request, kit)
        provider = provider_at(self._house.catalogue, place)
        announcer = Announcer(request.id, provider.name, self.model)
        sent = readable(forwarded(headers))
        one = Crossing(request.id, place, provider, relayed(""), sent, raw, b"", tenants, announcer)
        return _Asked(Asking(sdk.library, original, one), announcer, life, self.dialect, self.system is not None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One list on its way."""

    asking: Asking
    announcer: Announcer
    life: Any
    dialect: DialectName
    led: bool
    """A system prompt was put before the messages."""

    def told(self, messages: Sequence[Message], made: exchange.Compacted | None) -> CompactedMessages | None:
        """What came of it, as a caller is given it."""
        if made is None or made.view.checkpoint is None:
            return None
        body = loads(made.view.body)
        items = body[ITEMS[self.dialect]] if isinstance(body, dict) else None
        assert isinstance(items, list)
        if self.led and self.dialect == "chat":
            items = items[1:]
        checkpoint = made.view.checkpoint
        result = made.made.result if made.made is not None else None
        text = result.text if isinstance(result, Summary) else checkpoint.artifact.text
        return CompactedMessages(
            messages=cast(list[dict[str, Any]], items),
            tokens_before=made.before,
            tokens_after=made.after,
            dropped_count=_gone(messages, items),
            checkpoint=checkpoint.id,
            strategy=checkpoint.strategy,
            summary=text,
            calls=result.calls if result is not None else 0,
            input_tokens=result.input_tokens if result is not None else 0,
            output_tokens=result.output_tokens if result is not None else 0,
        )


def _gone(before: Sequence[Message], after: Sequence[JsonValue]) -> int:
    kept = [item for item in after if isinstance(item, dict)]
    return sum(_json_of(message) not in kept for message in before)


def _json_of(value: Any) -> Any:
    """A message as the SDK would write it: an answer's own object with what the provider said, and no more."""
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: _json_of(one) for key, one in value.items()}
    return [_json_of(one) for one in value] if isinstance(value, list | tuple) else value


def _no_failure(error: CompactionFailed) -> None:
    """Raises it, unless all it says is that there is nothing to be gained."""
    if error.reason not in NOTHING:
        raise error


def _focused(options: Callable[[Target, DialectName], Options], focus: str) -> Callable[[Target, DialectName], Options]:
    return lambda target, dialect: focused(options(target, dialect), focus)


def _with(settings: Given | None, model: str, window: int | None, summary_model: str | None) -> Given:
    given: dict[str, Any] = {name: dict(table) for name, table in (settings or {}).items()}
    if window is not None:
        models = given.setdefault("models", {})
        models[model] = {**models.get(model, {}), "window": window}
    if summary_model is not None:
        given.setdefault("summary", {})["model"] = summary_model
    return given
