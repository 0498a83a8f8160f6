"""The life of a request (replay, measure, decide, send, recover, learn) as a generator of effects.

Decides everything and does nothing: no socket, no clock, no store. Driven by `tidegate.drive`; tested as a script.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.compactors.strategy import CompactionFailed
from tidegate.context.estimators import ESTIMATORS
from tidegate.engine import beyond
from tidegate.engine.compaction import compact
from tidegate.engine.effects import (
    Deliver,
    Effect,
    Made,
    Notify,
    Outcome,
    Send,
)
from tidegate.engine.learning import keep
from tidegate.engine.request import Kit, Request
from tidegate.engine.sending import Sending
from tidegate.engine.story import Life as Life
from tidegate.engine.view import View, read_history
from tidegate.wire.conversation import DialectName

BEYOND: Mapping[str, tuple[Callable[[Request, Kit], Life], frozenset[DialectName]]] = {
    "own_compaction": (beyond.own_compaction, frozenset({"responses"})),
    "server_held": (beyond.server_held, frozenset({"responses"})),
    "opaque_history": (beyond.opaque, frozenset({"chat", "responses", "messages"})),
}
"""What becomes of histories that can't be worked on, where there is more to it than passing them on: by the reason, and
for which APIs."""


def exchange(request: Request, kit: Kit) -> Life:
    """One request, from its arrival to what was learned of its answer."""
    story, reason = _begin(request, kit)
    if story is not None:
        yield from story.watch() if kit.shadow else story.run()
    elif reason in BEYOND and not kit.shadow and request.conversation.dialect in BEYOND[reason][1]:
        yield from BEYOND[reason][0](request, kit)
    else:
        yield from relayed(reason)


def counted(request: Request, kit: Kit) -> Life:
    """A request to count tokens: what would be forwarded is counted, and nothing is compacted for it."""
    story, reason = _begin(request, kit)
    yield from story.count() if story else relayed(reason)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was made of a history without sending it. Tokens are calibrated estimates."""

    view: View
    """What is to be sent in its place."""
    made: Made | None
    """None where an earlier compaction was all that it took."""
    before: int
    after: int


Asked: TypeAlias = Generator[Effect, object, Compacted]


def requested(request: Request, kit: Kit, *, aim: int | None = None) -> Asked:
    """Compacts a history because somebody asked for it, whatever its size; later requests replay it like any other.

    `aim` are tokens to bring it down to; left out, the configured target. Never more than half of what there is: a
    target that would keep everything is not what was asked for. Raises `CompactionFailed`, also where there is nothing
    to compact.
    """
    story = _story(request, kit)
    view = yield from story.replay()
    before = story.sizing.measured(view).tokens
    wanted = story.sizing.limits().target if aim is None else aim
    half = before // 2
    return (yield from _asked(story, view, before, min(wanted, half) if wanted else half))


def kept_inside(request: Request, kit: Kit) -> Generator[Effect, object, Compacted | None]:
    """Brings a history down to the target where it is due; None where the history is to be sent as it is.

    Raises `CompactionFailed` where it is due and can't be done.
    """
    story = _story(request, kit)
    view = yield from story.replay()
    before = story.sizing.measured(story.whole).tokens
    if story.sizing.not_due(view):
        after = story.sizing.measured(view).tokens
        return Compacted(view, None, before, after) if view.checkpoint is not None else None
    return (yield from _asked(story, view, before, story.sizing.limits().target or before // 2))


def _story(request: Request, kit: Kit) -> Sending:
    story, reason = _begin(request, kit)
    if story is None:
        raise CompactionFailed(reason)
    return story


def _asked(story: Sending, view: View, before: int, aim: int) -> Asked:
    story.note(view, "")
    record = story.kit.records.begins(story.key)
    try:
        smaller, made = yield from compact(story.sizing, view, aim, "requested", base=story.base_of(view))
    except CompactionFailed as error:
        story.in_vain(view, "requested", error.reason)
        raise
    finally:
        story.kit.records.ends(record)
    assert smaller.checkpoint is not None
    story.came_to(smaller, "requested")
    yield from keep(story.request, smaller.checkpoint)
    return Compacted(smaller, made, before, story.sizing.measured(smaller).tokens)


def relayed(reason: str) -> Life:
    """A request that passes as it came, for the named reason."""
    yield Notify("skipped", {"reason": reason})
    yield Send(None)
    yield Deliver(0, Outcome(reason=reason))


def _begin(request: Request, kit: Kit) -> tuple[Sending | None, str]:
    """The story of a request, or why it must pass untouched."""
    conversation = request.conversation
    if request.hands_off:
        return None, request.hands_off
    if conversation.server_held:
        return None, "server_held"
    if len(conversation.items) <= conversation.lead:
        return None, "empty"
    try:
        estimator = ESTIMATORS[kit.policy_for(request.target).estimator]
        history = read_history(conversation, request.tenant, kit.hasher, kit.ledger, estimator)
    except ValueError:  # no object, or nothing that JSON allows
        return None, "unreadable_item"
    if history.opaque:
        return None, "opaque_history"
    return Sending(request, kit, history), ""
