"""`GET /tidegate/v1/diagnostics`: what the gateway knows of itself and of each conversation, in numbers and names.

Knows how it is written and who may see what; the engine has noted it. Called by the app.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from hmac import compare_digest
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import parse_qs

from tidegate import __version__
from tidegate.build import compiled
from tidegate.config import Settings
from tidegate.engine.diagnostics import Completed, Failed, Key, Record
from tidegate.gateway.arrival import Arrival
from tidegate.gateway.asgi import AsgiClient
from tidegate.gateway.credentials import identity, with_key
from tidegate.gateway.messages import forwarded
from tidegate.gateway.tally import Tally
from tidegate.overflow.window import Windows
from tidegate.store import Keys
from tidegate.store.seal import derive
from tidegate.wire.conversation import JsonObject, JsonValue
from tidegate.wire.jsontext import dumps

if TYPE_CHECKING:
    from tidegate.gateway.conversations import Conversations

PATH: Final = "/tidegate/v1/diagnostics"
CONVERSATIONS: Final = f"{PATH}/conversations"

ADMIN_HEADER: Final = "x-tidegate-admin-key"
LISTED: Final = 100
"""Conversations that are listed where nothing else is asked for."""

WindowSource: TypeAlias = Literal["unknown", "settings", "server", "table", "policy", "learned"]
"""Who says how large a window is: nobody; the user; the server's own API; a provider's file or another table; the
policy's table; refusals and successes."""


def admin_key(settings: Settings, keys: Keys) -> str:
    """What opens all of it: the key that is set, else one that only whoever can read the store's key can make."""
    own = settings.server.admin_key
    return own.get_secret_value() if own is not None else derive(keys.hash_key, "admin v1").hex()


async def show(
    house: Conversations, settings: Settings, tally: Tally, key: str, arrival: Arrival, client: AsgiClient
) -> None:
    """Answers one request for it; `key` is the admin's, empty for none."""
    given = arrival.header(ADMIN_HEADER.encode())
    if given is not None and not (key and compare_digest(given, key.encode())):
        await client.fail(403, f"The key in {ADMIN_HEADER} is not this gateway's.", "wrong_admin_key")
        return
    page = _Page(house, settings, tally, time.time(), _Callers(house, arrival) if given is None else None)
    if arrival.path == PATH:
        await client.answer(200, dumps(page.whole()), "diagnostics")
    elif arrival.path == CONVERSATIONS:
        asked = parse_qs(arrival.query.decode("latin-1")).get("limit", [""])[-1]
        await client.answer(
            200, dumps(page.listed(int(asked) if re.fullmatch("[0-9]{1,9}", asked) else LISTED)), "diagnostics"
        )
    elif (told := page.one(arrival.path.removeprefix(f"{CONVERSATIONS}/"))) is not None:
        await client.answer(200, dumps(told), "diagnostics")
    else:
        text = f"There is no such conversation, or it is another caller's. {CONVERSATIONS} lists yours."
        await client.fail(404, text, "unknown_conversation")


class _Callers:
    """Whose conversations a request without the admin's key may see: those of its own credential."""

    def __init__(self, house: Conversations, arrival: Arrival) -> None:
        self._house, self._arrival = house, arrival
        self._known: dict[tuple[str, str], frozenset[bytes]] = {}

    def may_see(self, record: Record) -> bool:
        """Whether a conversation is this caller's."""
        target = record.target
        place = target.provider, target.endpoint
        if place not in self._known:
            self._known[place] = frozenset(self._tenants(*place))
        return record.tenant in self._known[place]

    def _tenants(self, name: str, endpoint: str) -> Iterable[bytes]:
        """The tenants that a conversation with these headers may be: one, but where the provider has several keys."""
        house = self._house
        if name not in house.targets.catalogue.names:
            return
        provider, headers = house.targets.catalogue.get(name), forwarded(self._arrival.headers)
        ring = [value for env in provider.auth.envs if (value := house.environ.get(env, ""))]
        for key in ring or [""]:
            secret = identity(with_key(list(headers), provider, house.environ, key), self._arrival.query, provider)
            yield house.tenants.of(secret, endpoint)


class _Page:
    """What is told at one moment, to one who may see some of it. `callers` is None for the admin."""

    def __init__(
        self, house: Conversations, settings: Settings, tally: Tally, now: float, callers: _Callers | None
    ) -> None:
        self.kit, self.settings, self.tally, self.now = house.kit, settings, tally, now
        self.admin = callers is None
        sees: Callable[[Record], bool] = (lambda record: True) if callers is None else callers.may_see
        self.seen = [(key, record) for key, record in self.kit.records if sees(record)]
        """The one that was checked last first."""

    def whole(self) -> JsonObject:
        """The gateway as such; of conversations only how many there are."""
        records = [record for _, record in self.seen]
        told: JsonObject = {
            "version": __version__,
            "compiled": compiled(),
            "started_at": round(self.tally.began, 3),
            "uptime_seconds": round(self.now - self.tally.began, 3),
            "mode": self.settings.compaction.mode,
            "policy": self.settings.compaction.policy,
            "conversations": {
                "known": len(records),
                "running": sum(record.runs.running for record in records),
                "completed": sum(record.runs.completed for record in records),
                "unchanged": sum(record.runs.unchanged for record in records),
                "failures": sum(record.runs.failures for record in records),
            },
            "models": self._models(records),
        }
        if self.admin:
            kept = self.kit.records
            told |= {
                "pid": os.getpid(),
                "workers": self.settings.server.workers,
                "store": self.settings.store.kind,
                "requests": self.tally.told(),
                "compactions": {
                    "completed": kept.completions, "unchanged": kept.unchanged, "failures": kept.failures
                },
                "learned": self._learned(),
                "capabilities": self._capabilities(),
            }  # fmt: skip
        return told

    def listed(self, limit: int) -> JsonObject:
        """Conversations, the one that was checked last first."""
        some = self.seen[:limit]
        return {"known": len(self.seen), "conversations": [self._facts(key, record) for key, record in some]}

    def one(self, name: str) -> JsonObject | None:
        """The conversation of that name; None where there is none, or it is not to be seen."""
        found = next(((key, record) for key, record in self.seen if self._name(key, record) == name), None)
        return self._facts(*found) if found is not None else None

    def _name(self, key: Key, record: Record) -> str:
        """What tells a conversation from others, and nothing else: a keyed hash."""
        return self.kit.hasher.mix(b"diagnostics", record.tenant, key[0], key[1].encode("utf-8", "replace"))[:8].hex()

    def _facts(self, key: Key, record: Record) -> JsonObject:
        target, size, limits = record.target, record.size, record.limits
        assert size is not None
        assert limits is not None
        breaker = self.kit.breaker.state(self.kit.hasher.mix(record.tenant, key[0], key[1].encode("utf-8", "replace")))
        told: JsonObject = {
            "id": self._name(key, record),
            "provider": target.provider,
            "model": target.model,
            "items": record.items,
            "replaced_items": record.covered,
            "current": {
                "enabled": self.kit.policy_for(target).automatic,
                "tokens": size.tokens,
                "estimated_tokens": size.local,
                "baseline_tokens": size.baseline,
                "window": limits.window,
                "window_source": window_source(record, self.kit.windows, now=self.now),
                "input_limit": limits.limit,
                "threshold": limits.threshold,
                "target": limits.target,
                "running": record.runs.running,
            },
            "last_check": {"at": record.at, "reason": record.reason, "checks": record.checks},
            "completed": {
                "count": record.runs.completed, "unchanged": record.runs.unchanged, "last": _completed(record.runs.last)
            },
            "failures": {"count": record.runs.failures, "last": _failed(record.runs.failed)},
            "breaker": {
                "open_until": breaker.until if breaker.until > self.now else None,
                "rests": breaker.rests,
                "quick_refills": breaker.quick,
                "floor": breaker.floor or None,
            },
        }  # fmt: skip
        if self.admin:
            told["endpoint"] = target.endpoint
        return told

    def _models(self, records: list[Record]) -> list[JsonValue]:
        """Models in use, with what holds for their sizes."""
        found: dict[tuple[str, str, str], list[Record]] = {}
        for record in records:
            target = record.target
            found.setdefault((target.provider, target.endpoint, target.model), []).append(record)
        told: list[JsonValue] = []
        for (provider, endpoint, model), those in sorted(found.items()):
            limits = those[0].limits
            facts: JsonObject = {
                "provider": provider,
                "model": model,
                "conversations": len(those),
                "window": limits.window if limits else None,
                "window_source": window_source(those[0], self.kit.windows, now=self.now),
                "threshold": limits.threshold if limits else None,
                "target": limits.target if limits else None,
            }
            told.append(facts | {"endpoint": endpoint} if self.admin else facts)
        return told

    def _learned(self) -> list[JsonValue]:
        windows = self.kit.windows
        return [
            {
                "endpoint": known.endpoint,
                "model": known.model,
                "limit": known.limit,
                "source": known.source if known.limit is not None else None,
                "of_input": known.of_input,
                "counts": windows.limit(known.endpoint, known.model, now=self.now) is not None,
                "largest_success": known.succeeded or None,
            }
            for known in sorted(windows, key=lambda known: (known.endpoint, known.model))
        ]

    def _capabilities(self) -> list[JsonValue]:
        known = self.kit.capabilities
        return [
            {
                "endpoint": seen.endpoint,
                "model": seen.model or None,
                "strategy": seen.strategy,
                "seen": seen.what,
                "until": known.until(seen),
            }
            for seen in sorted(known, key=lambda seen: (seen.endpoint, seen.model, seen.strategy, seen.what))
            if seen.at <= self.now < known.until(seen)
        ]


def window_source(record: Record, windows: Windows, *, now: float) -> WindowSource:
    """Who says how large the window of a conversation's model is."""
    target, limits = record.target, record.limits
    if limits is None or limits.limit is None:
        return "unknown"
    table = target.window, target.input_limit
    known = windows.within(target.endpoint, target.model, target, now=now)
    policy = target.policy
    tabled = policy is not None and bool(policy.windows) and not target.own_window
    if tabled and policy is not None and policy.window_for(target.model, known[0]) != known[0]:
        return "policy"
    if known != table:
        return "learned"
    if target.own_window or target.own_input_limit:
        return "settings"
    return "server" if target.told_at else "table"


def _completed(last: Completed | None) -> JsonObject | None:
    if last is None:
        return None
    return {
        "at": last.at,
        "why": last.why,
        "strategy": last.strategy,
        "tokens_before": last.before,
        "tokens_after": last.after,
    }


def _failed(last: Failed | None) -> JsonObject | None:
    return None if last is None else {"at": last.at, "why": last.why, "reason": last.reason}
