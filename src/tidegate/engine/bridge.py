"""A chat conversation served by the Responses API: when that is worth it, and what ends it before the client has seen
anything.

Knows the mapped request as one like any other; maps nothing itself (`wire.bridge`). Called by the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tidegate.compactors.strategy import CompactionFailed
from tidegate.engine.checkpoint import Found
from tidegate.engine.effects import Deliver, Effect, Head, Send, UpstreamError
from tidegate.engine.exchange import Life
from tidegate.engine.planning import names_of
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import TRIGGER, UNARY, Wanted
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import plain, read_history

BRIDGE: Final = "bridge"
"""What an endpoint was in trouble with, where a conversation could not be served so."""

OVER_IT: Final = (UNARY, TRIGGER)
"""What a conversation is taken over for. A summary can be had on this side; an item in the answer has no place here."""


class Unbridged(UpstreamError):
    """It came to nothing: the client's own request is to be served as the chat completion that it is."""


NEAR: Final = 0.5
"""Share of the threshold from which a history will need compaction before long."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a history, by all that its client sends."""

    tokens: int = 0
    due: bool = False
    """It needs compaction, and so it will with every turn to come."""
    near: bool = False
    """It does, or will before long."""


def size(request: Request, kit: Kit, found: Found) -> Size:
    """How large a chat history is, and whether that calls for compaction. Raises `UnreadableBody`."""
    conversation = request.conversation
    if conversation.server_held or len(conversation.items) <= conversation.lead:
        return Size()
    history = read_history(conversation, request.tenant, kit.hasher, kit.ledger)
    sizing = Sizing(request, kit, history).told(found.reports)
    whole, threshold = plain(history), sizing.limits().threshold
    if history.opaque or threshold is None or not sizing.policy.automatic:
        return Size()
    tokens = sizing.measured(whole).tokens
    return Size(tokens, not sizing.not_due(whole), tokens >= threshold * NEAR)


def taken_over(request: Request, kit: Kit) -> Request | None:
    """The mapped request, to be compacted by the provider's own calls alone; None where it has none, or this failed a
    moment ago."""
    target, now = request.target, request.now
    names = tuple(name for name in names_of(request, kit) if name in OVER_IT)
    if not names or kit.capabilities.missing(target.endpoint, target.model, (BRIDGE,), now=now):
        return None
    wanted: Wanted = replace(target.wanted, names=names, own=True)
    return request.to(replace(target, wanted=wanted))


def bridged(life: Life) -> Life:
    """The life of a mapped request, as far as it goes better than the client's own would: it ends by `Unbridged` where
    a compaction fails, nothing stands in the place of its beginning, or it is refused for anything but its pace."""
    heads: dict[int, Head] = {}
    try:
        effect: Effect = next(life)
        while True:
            if isinstance(effect, Send) and effect.body is None:
                raise Unbridged("The history was not compacted.")
            if isinstance(effect, Deliver) and _worth_less(heads.get(effect.number)):
                raise Unbridged("The mapped request was refused.")
            try:
                result = yield effect
            except CompactionFailed:
                raise Unbridged("The provider did not compact the history.") from None
            except Exception as error:
                effect = life.throw(error)
                continue
            if isinstance(result, Head):
                heads[result.number] = result
            effect = life.send(result)
    except StopIteration:
        return
    finally:
        life.close()


def _worth_less(head: Head | None) -> bool:
    return head is not None and head.refusal is not None and (head.status != 429 or head.in_stream)
