"""Compaction for whoever keeps the messages: lists in, new lists out, by the same engine and store as the transports.

Knows the shapes of the three APIs' bodies and how an exchange is asked; the decisions are the engine's. Public.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tidegate.client import blocking, waiting
from tidegate.client.blocks import checked, rules_of
from tidegate.client.calls import Asking
from tidegate.client.crossing import Crossing, target_of
from tidegate.client.events import Announcer
from tidegate.client.house import Given, House, house
from tidegate.client.lists import NOTHING, CompactedMessages, Listed, Message
from tidegate.client.places import Place, place_of, provider_at
from tidegate.client.plan import Asked, Plan
from tidegate.client.sdk import Below, Sdk, sdk_of
from tidegate.compactors.strategy import CompactionFailed
from tidegate.engine.exchange import kept_inside, relayed, requested
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import Wanted
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import plain, read_history
from tidegate.gateway.arrival import next_id
from tidegate.gateway.credentials import Tenants, identity
from tidegate.gateway.kit import with_focus
from tidegate.gateway.messages import forwarded, readable
from tidegate.providers import Provider
from tidegate.upstream.http import Headers
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName
from tidegate.wire.jsontext import dumps

if TYPE_CHECKING:
    import httpx2

SUMMARIES: Final = Wanted(by="a plan", own=True)
"""What a plan asks for: a call that whoever has a model can make."""


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


class Compactor:
    """Keeps lists of messages inside a context window.

    `client` is a client of the openai or anthropic package (blocking or not): its model, credential and address are
    used for summaries. Without one, sizes can be had, and a `plan` for whoever makes the calls. `dialect` is `chat`,
    `responses` or `messages`; left out, the one that the client is used for. The rules are those of `[compaction]`, by
    keyword: `max_tokens`, `preserve_last_n`, `threshold_percent`, `policy` ... `summary_model` asks another model of
    the same provider. `settings` are tables shaped like the configuration file.

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
        kept = self._here()
        sending = self._sending(self._list(messages))
        with kept.lock:
            request = self._request(sending, kept.kit, kept.tenants)
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
        made = None
        with asked.ending():
            made = driver.result(asked.life)
        return asked.listed.told(made)

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
        made = None
        with asked.ending():
            made = await driver.result(asked.life)
        return asked.listed.told(made)

    def plan(
        self,
        messages: Sequence[Message],
        *,
        force: bool = False,
        target_tokens: int | None = None,
        focus: str = "",
    ) -> Plan | None:
        """`compact` for programs that make the calls themselves, with or without a client here: what is to be asked,
        and what comes of the answers; None where none is due, or nothing is to be gained. Asks for summaries only. The
        store is looked into at once, by a blocking call.

        Raises `CompactionFailed` where it is due and can't be done, and `ValueError` for a list that is none of the
        dialect's.
        """
        listed, kept = self._list(messages), self._here()
        sending = self._sending(listed)
        with kept.lock:
            request = self._request(sending, kept.kit, kept.tenants)
        request = request.to(replace(request.target, wanted=SUMMARIES))
        plan = Plan(listed, _life(request, kept.kit, force, target_tokens, focus), kept.store, kept.lock)
        return plan if plan.request is not None or plan.made is not None else None

    # -- how it is asked -----------------------------------------------------------------------------------------

    def _needs(self, *, asynchronous: bool) -> Sdk:
        if self._sdk is None:
            raise TypeError(
                "This Compactor has no client: give it one of the openai or anthropic package to compact, or make the "
                "calls of its `plan`."
            )
        if self._sdk.asynchronous and not asynchronous:
            raise TypeError("This Compactor has an asynchronous client: await `compact`, or give it a blocking one.")
        return self._sdk

    def _here(self) -> House:
        self._house = self._house.current()
        return self._house

    def _list(self, messages: Sequence[Message]) -> Listed:
        return Listed(self.dialect, self.model, messages, self.system, self.tools)

    def _sending(self, listed: Listed) -> _Sending:
        body, original = listed.body(), None
        headers: Headers = []
        if self._sdk is not None:
            original = self._sdk.request(self.dialect, body)
            headers = [(name.lower(), value) for name, value in original.headers.raw]
            url, raw = str(original.url), original.content
        else:
            targets = self._house.targets
            provider = self._house.catalogue.get(targets.defaults[self.dialect])
            url, raw = f"{targets.root(provider, self.dialect)}{REQUESTS[self.dialect].PATH}", dumps(body)
        place = place_of("POST", url)
        if place is None:
            raise ValueError(f"{url} is no endpoint of a conversation")
        return _Sending(place, provider_at(self._house.catalogue, place), headers, raw, original)

    def _request(self, sending: _Sending, kit: Kit, tenants: Tenants) -> Request:
        provider, place = sending.provider, sending.place
        conversation = kit.recall.read(self.dialect, sending.raw)
        rules = {**self._rules, **rules_of(sending.headers)}
        target = target_of(self._house, provider, place, self.model, rules)
        secret = identity(readable(forwarded(sending.headers)), place.query, provider)
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
        listed = self._list(messages)
        sending = self._sending(listed)
        assert sending.original is not None, "there is a client"
        with self._house.lock:
            request = self._request(sending, kit, tenants)
        life = _life(request, kit, force, aim, focus)
        announcer = Announcer(request.id, sending.provider.name, self.model)
        sent = readable(forwarded(sending.headers))
        one = Crossing(
            request.id, sending.place, sending.provider, relayed(""), sent, sending.raw, b"", tenants, announcer
        )
        return _Asked(listed, Asking(sdk.library, sending.original, one), life)


@dataclass(frozen=True, slots=True)
class _Sending:
    """A request with the list as the client would send it."""

    place: Place
    provider: Provider
    headers: Headers = field(repr=False)
    raw: bytes = field(repr=False)
    original: httpx2.Request | None = field(repr=False)
    """None where there is no client."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One list on its way."""

    listed: Listed
    asking: Asking
    life: Asked

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Tells the listeners how it ends. That nothing is to be gained is no failure."""
        announcer = self.asking.crossing.announcer
        try:
            yield
        except CompactionFailed as error:
            if error.reason not in NOTHING:
                raise
        except BaseException:
            announcer.over(cancelled=True)
            raise
        finally:
            announcer.over()


def _life(request: Request, kit: Kit, force: bool, aim: int | None, focus: str) -> Asked:
    kit = with_focus(kit, focus)
    return requested(request, kit, aim=aim) if force or aim is not None else kept_inside(request, kit)


def _with(settings: Given | None, model: str, window: int | None, summary_model: str | None) -> Given:
    given: dict[str, Any] = {name: dict(table) for name, table in (settings or {}).items()}
    if window is not None:
        models = given.setdefault("models", {})
        models[model] = {**models.get(model, {}), "window": window}
    if summary_model is not None:
        given.setdefault("summary", {})["model"] = summary_model
    return given
