"""How large a request is, how much of it is cached, and whether it fits the window.

Knows the settings' ruler and the profile's refusal; nothing of any API but what a turn holds. Called by the app.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.simulator import tokens
from tidegate.simulator.jsontext import JsonObject, encode
from tidegate.simulator.minting import hash_of
from tidegate.simulator.profiles import Size
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.script import Step
from tidegate.simulator.state import Record
from tidegate.simulator.turn import Turn
from tidegate.simulator.world import Desk, World


def measure(turn: Turn, record: Record, world: World) -> None:
    """Fills in the turn's size, and what of it the provider has cached."""
    settings = world.settings
    factor = settings.usage_factor
    sizes = [tokens.item(item) for item in turn.items]
    turn.input_tokens = tokens.scale(turn.fixed + sum(sizes), factor)
    if settings.prompt_cache and record.kind != "count":
        turn.cached_tokens = min(tokens.scale(_cached(turn, sizes, world), factor), turn.input_tokens)
    record.input_tokens, record.cached_tokens = turn.input_tokens, turn.cached_tokens


def refusal_of(
    turn: Turn, record: Record, step: Step | None, desk: Desk, drop_oldest: Callable[[Turn], bool]
) -> Refusal | None:
    """The refusal of a request that does not fit, after what the profile or the request lets be dropped."""
    settings, profile = desk.world.settings, desk.profile
    counts = profile.counts_output if settings.counts_output is None else settings.counts_output
    output = (turn.max_output or 0) if counts else 0
    silent = profile.silent_truncation if settings.silent_truncation is None else settings.silent_truncation
    if silent or turn.truncate:
        while turn.input_tokens + output > settings.window and drop_oldest(turn):
            turn.input_tokens = tokens.scale(turn.fixed + tokens.items(turn.items), settings.usage_factor)
            record.truncated = True
        record.input_tokens = turn.input_tokens
    tools = tokens.scale(tokens.item(turn.body.get("tools")), settings.usage_factor)
    size = Size(turn.input_tokens, settings.window, output, min(tools, turn.input_tokens))
    if step is not None and step.do == "overflow":
        return profile.overflow(size, turn.dialect)
    fits = size.input < size.window or (size.input == size.window and not profile.refuses_exact_fit)
    if fits and size.total <= size.window:
        return None
    refusal = profile.overflow(size, turn.dialect)
    if fits:
        refusal.kind, refusal.rule = "output_limit", "output-over-window"
    return refusal


def note_window(turn: Turn, record: Record) -> None:
    """Notes what the model gets where a compaction or the provider's store made it other than the body."""
    replayed = bool(turn.history) and turn.history != turn.items
    if replayed or turn.body.get("previous_response_id") or turn.body.get("conversation"):
        record.effective = encode(turn.items)
    if replayed:
        record.verdict = "replayed"


_CACHED_BY = ("tools", "system", "instructions", "tool_choice", "thinking", "response_format", "text", "output_config")
"""Fields that a cached beginning hangs on beside the model and the items; limits and streaming are none of them."""


def _cached(turn: Turn, sizes: list[int], world: World) -> int:
    """Estimated tokens of the longest beginning that an earlier request had too; remembers this one's."""
    known = 0
    fixed = [turn.body.get(name) for name in _CACHED_BY]
    chain = hash_of(turn.model.encode(), encode(fixed))
    held = turn.fixed
    for item, size in zip(turn.items, sizes, strict=True):
        chain = hash_of(chain.encode(), encode(_unmarked(item)))
        held += size
        if world.prefixes.get(chain):
            known = held
        world.prefixes.put(chain, held)
    return known


def _unmarked(value: JsonObject) -> JsonObject:
    content = value.get("content")
    if not isinstance(content, list):
        return value
    plain = [
        {key: entry for key, entry in part.items() if key != "cache_control"} if isinstance(part, dict) else part
        for part in content
    ]
    return value | {"content": plain}
