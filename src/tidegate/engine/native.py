"""The providers' own compactions, as the engine uses them: what is shown to them, whether it fits, what it is bound to.

Knows views, sizes and targets; the calls themselves are the strategies' (`compactors`). Called by `compaction` and the
exchange.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from math import ceil
from typing import Final, TypeAlias

from tidegate.compactors import anthropic, openai, threshold, xai
from tidegate.compactors.fit import fitted
from tidegate.compactors.native import Options
from tidegate.compactors.strategy import Call, CompactionFailed, Minted, Passage, Reply
from tidegate.engine.capabilities import Unreadable
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.request import Target
from tidegate.engine.router import CLAUDE, Way
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import ANTHROPIC, History, View, artifact_size, asking, forwarded, way_of
from tidegate.overflow.verdict import Refusal, Sent
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName
from tidegate.wire.jsontext import loads

Minting: TypeAlias = Generator[Call, Reply, Minted]

STRATEGIES: Final[Mapping[str, Callable[[Passage, Options], Minting]]] = {
    "openai": openai.compact,
    "openai-trigger": openai.trigger,
    "xai": xai.compact,
}

CLAUDES: Final[Mapping[Way, Callable[[Passage, Options], Minting]]] = {
    "on-demand": anthropic.compact,
    "threshold": threshold.compact,
}
"""Strategy `anthropic`, by the way that the platform and the model have."""

NATIVE: Final = frozenset({*STRATEGIES, ANTHROPIC})
"""Strategies that are the provider's own."""

SPARE_SHARE: Final = 16
"""Of a window, the part that is left free for the provider's own prompt and its summary."""

SPARE: Final = 256
"""Tokens that are left free beside it."""

FITTED_SHARE: Final = 8
"""The part that is left free where something had to be left out: one call is all there is, and sizes are estimates."""

_DATED: Final = re.compile(r"[-@](?:20\d{6}|20\d\d-\d\d-\d\d|latest|default)$")


def binding_of(target: Target, dialect: DialectName) -> str:
    """What a sealed artifact of this target is bound to: it goes nowhere else. The client's own credential is in the
    tenant, under which it is kept; one of several that the gateway holds is named. Whether another model of the same
    maker could read it is not established, so none is shown it."""
    whose = f" {target.credential}" if target.credential else ""
    return f"{target.provider} {target.endpoint} {dialect} {_DATED.sub('', target.model.lower())}{whose}"


def readable(checkpoint: Checkpoint, history: History, target: Target, refused: Unreadable, *, now: float) -> bool:
    """Whether a target can read a checkpoint's artifact, as far as is known: text always, sealed items only where they
    were made, beside the same instructions and tools, and not where they have been refused."""
    artifact = checkpoint.artifact
    if artifact.kind == "text":
        return True
    way = way_of(artifact, history.conversation.dialect)
    if way and not (target.means.on_demand if way == "on-demand" else target.means.threshold):
        return False
    return (
        artifact.owner == binding_of(target, history.conversation.dialect)
        and checkpoint.head == history.head
        and not refused.holds(checkpoint.tenant, checkpoint.chain, artifact.binding, now=now)
    )


def largest(window: int) -> int:
    """Tokens that a provider's own compaction can be given: its prompt and summary must fit the window too."""
    return window - window // SPARE_SHARE - SPARE


def minting(
    name: str, sizing: Sizing, view: View, at: int, retained: tuple[int, ...], *, window: int | None, most: int
) -> Minting:
    """The calls by which a provider compacts the first `at` items of a view. `most`: estimated tokens that may be left
    of the whole request.

    Raises `CompactionFailed`: for the strategy's own reasons, where the call would not fit the window, and where what
    it gave is too large to be of use.
    """
    request, history, target = sizing.request, sizing.history, sizing.request.target
    passage, options = _passage(sizing, view, at, retained, window), _options(sizing)
    steps = _claude(sizing, view, passage, options) if name == ANTHROPIC else STRATEGIES[name](passage, options)
    minted = yield from _announced(steps, view.add_headers)
    if any(not 0 <= p < at for p in minted.retained) or not minted.items:
        raise CompactionFailed("compact_unreadable")
    left = history.overhead + artifact_size(history, artifact_of(minted, target, request.conversation.dialect))
    if left + history.past.sums[-1] - history.past.sums[at] > most:
        raise CompactionFailed("compact_not_smaller")
    return minted


def artifact_of(minted: Minted, target: Target, dialect: DialectName) -> Artifact:
    """What was minted, bound to where that was."""
    # Anthropic's block is sealed but not hidden: its words can be counted.
    sealed = 0 if dialect == "messages" else minted.output_tokens
    return Artifact(
        "opaque",
        items=minted.items,
        retained=minted.retained,
        binding=binding_of(target, dialect),
        sealed_tokens=sealed,
    )


def claude_ways(sizing: Sizing, view: View) -> tuple[Way, ...]:
    """How Claude can be asked to compact this view, best first: a block that stands in it is read by its own way
    alone."""
    target, request = sizing.request.target, sizing.request
    missing = sizing.kit.capabilities.missing(target.endpoint, target.model, tuple(CLAUDE.values()), now=request.now)
    carried = way_of(view.checkpoint.artifact, request.conversation.dialect) if view.checkpoint else None
    return tuple(way for way in target.means.claude(missing) if carried in (None, way))


def _claude(sizing: Sizing, view: View, passage: Passage, options: Options) -> Minting:
    """By the first way that is there. One that is not is remembered, and the other one tried."""
    target, means = sizing.request.target, sizing.request.target.means
    betas: Mapping[Way, str] = {"on-demand": means.on_demand, "threshold": means.threshold}
    failure = CompactionFailed("compact_missing")
    for way in claude_ways(sizing, view):
        try:
            return (yield from CLAUDES[way](passage, replace(options, betas=(betas[way],))))
        except CompactionFailed as error:
            failure = error
        if not failure.missing:
            break
        sizing.kit.capabilities.lacks(target.endpoint, target.model, CLAUDE[way], now=sizing.request.now)
    raise failure


def _passage(sizing: Sizing, view: View, at: int, retained: tuple[int, ...], window: int | None) -> Passage:
    history, target = sizing.history, sizing.request.target
    sums, ratio = history.past.sums, sizing.measured(view).ratio
    items = forwarded(history, view, target, at)
    size = ceil((history.overhead + view.artifact_tokens + sums[at] - sums[view.covered]) * ratio)
    if window is not None and size > largest(window):
        # No provider's compaction takes more than its window.
        limit = window - window // FITTED_SHARE
        smaller = fitted(history.conversation.dialect, items, int(limit / ratio) - history.overhead)
        if smaller is None:
            raise CompactionFailed("compact_no_room")
        items, size = smaller, limit
        if target.binds_thinking:
            # It was thought behind what has just been left out.
            items = _without_thinking(history.conversation.dialect, items)
    return Passage(asking(history, view, target), items, retained, target.model, window, size)


def _without_thinking(dialect: DialectName, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Thinking blocks go whole, and with them a message of nothing else."""
    requests = REQUESTS[dialect]
    kept: list[bytes | None] = []
    for raw in items:
        value = loads(raw) if b'thinking"' in raw else None
        thinks = isinstance(value, dict) and requests.facts(value).thinking
        kept.append(requests.drop_thinking(value) if thinks and isinstance(value, dict) else raw)
    return tuple(raw for raw in kept if raw is not None)


def _options(sizing: Sizing) -> Options:
    target, kit = sizing.request.target, sizing.kit

    def overflows(reply: Reply) -> bool:
        refusal = Refusal(reply.status, reply.body, reply.headers, in_stream=reply.status == 200)
        return kit.classify(target.provider, refusal, Sent()).action == "compact"

    means = target.means
    return Options(
        timeout=means.timeout,
        least_trigger=means.least_trigger,
        max_output=target.max_output,
        binds_thinking=target.binds_thinking,
        overflows=overflows,
    )


def _announced(steps: Minting, added: Mapping[str, str]) -> Minting:
    """The same calls, with the headers that the view's own artifact needs."""
    reply: Reply | None = None
    try:
        while True:
            call = next(steps) if reply is None else steps.send(reply)
            reply = yield _with(call, added) if added else call
    except StopIteration as end:
        minted: Minted = end.value
        return minted
    finally:
        steps.close()


def _with(call: Call, added: Mapping[str, str]) -> Call:
    headers = dict(call.add_headers)
    for name, value in added.items():
        known = headers.get(name)
        parts = [*(known.split(",") if known else ()), *value.split(",")]
        headers[name] = ",".join(dict.fromkeys(parts))
    return replace(call, add_headers=headers)
