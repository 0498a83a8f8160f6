"""One request of an SDK on its way: what is read of it, whose it is, and what is to become of it.

Knows what an exchange needs; no sockets, no SDK. Called by the transports.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidegate.client.blocks import HEADER, rules_of
from tidegate.client.events import Announcer
from tidegate.client.house import House
from tidegate.client.places import Place, provider_at
from tidegate.client.switch import is_testing
from tidegate.config import ConfigError
from tidegate.engine.effects import Notify, Outcome
from tidegate.engine.exchange import Life, counted, exchange, relayed
from tidegate.engine.request import Kit, Request, Target
from tidegate.gateway.arrival import next_id
from tidegate.gateway.credentials import Tenants, identity
from tidegate.gateway.messages import BYPASS, forwarded, hands_off, outcome_headers, readable
from tidegate.gateway.targets import Choice
from tidegate.gateway.telling import steps, tell
from tidegate.providers import Provider
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers
from tidegate.wire.conversation import DialectName, UnreadableBody


@dataclass(frozen=True, slots=True)
class Crossing:
    """What is to become of a request, and what it carries upstream."""

    id: str
    place: Place
    provider: Provider
    life: Life = field(repr=False)
    headers: Headers = field(repr=False)
    """As they go upstream: those of the hop and Tidegate's own left out."""
    body: bytes = field(repr=False)
    """As the SDK wrote it."""
    secret: bytes = field(repr=False)
    tenants: Tenants = field(repr=False)
    announcer: Announcer

    @property
    def dialect(self) -> DialectName:
        """Of the API."""
        return self.place.dialect

    def heard(self, status: int) -> None:
        """An answer of this status has come to the caller's credential."""
        if 200 <= status < 300:
            self.tenants.accepted(self.secret, self.place.root)

    def given(self, headers: Headers, outcome: Outcome) -> Headers:
        """The headers of an answer as the SDK gets them: the provider's own, and what happened."""
        return [*headers, *outcome_headers(self.id, outcome)]

    def failed(self, error: BaseException) -> None:
        """Tells the log of a fault of Tidegate's own. The type alone: a message may quote what it failed on."""
        self.notify(Notify("fault", {"where": "client", "error": type(error).__name__}))

    def notify(self, notice: Notify) -> None:
        """Tells the listeners and the log."""
        self.announcer.hears(notice)
        tell(self.id, notice)


def crossing(house: House, kit: Kit, tenants: Tenants, place: Place, headers: Headers, body: bytes) -> Crossing:
    """The crossing of a request; whatever goes wrong in reading it, it is relayed. `headers` in lower case.

    Raises `ConfigError` for rules of its own that are not allowed.
    """
    name, provider = next_id(), provider_at(house.catalogue, place)
    sent = readable(forwarded(headers))
    secret = identity(sent, place.query, provider)
    reason, life, model = "", None, ""
    try:
        encoding = _last(headers, b"content-encoding")
        plain = (
            decode_body(body, encoding.decode("latin-1"), house.settings.server.body_limit_bytes) if encoding else body
        )
        conversation = kit.recall.read(place.dialect, plain)
        model = conversation.model
        asked = _last(headers, BYPASS)
        reason = "testing" if is_testing() else hands_off(asked, conversation, _plain(headers))
        if not reason:
            target = target_of(house, provider, place, model, rules_of(headers))
            request = Request(name, conversation, tenants.of(secret, place.root), target, time.time())
            life = counted(request, kit) if place.kind == "count" else exchange(request, kit)
    except ConfigError as error:
        # Told to whoever wrote it, who can mend it: nothing has been sent yet.
        raise ConfigError(f"{HEADER.decode()}: {error}") from None
    except (UnreadableBody, BodyUnreadable, BodyTooLarge):
        reason = "unreadable_body"
    except Exception as error:
        steps.warning("%s fault where=reading error=%s", name, type(error).__name__)
        reason = "fault"
    announcer = Announcer(name, provider.name, model)
    return Crossing(name, place, provider, life or relayed(reason), sent, body, secret, tenants, announcer)


def target_of(house: House, provider: Provider, place: Place, model: str, rules: Mapping[str, object]) -> Target:
    """What is known of the model there, and the policy that a request follows under `rules` of its own. Raises
    `ConfigError`."""
    target = house.targets.target(Choice(provider, model), place.dialect, place.root)
    return replace(target, policy=house.targets.followed(provider, model, rules)) if rules else target


def _last(headers: Headers, name: bytes) -> bytes | None:
    return next((value for key, value in reversed(headers) if key == name), None)


def _plain(headers: Headers) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
