"""Anthropic's compaction on demand: a request that asks for nothing else, answered by one signed block.

Knows which of a request's fields it can't be asked beside, and what its answers mean; makes no call itself (`compact`
yields it). Called by the engine. Source: platform.claude.com/docs/en/build-with-claude/compaction-on-demand.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Final

from tidegate.compactors.native import DROP_HEADERS, Options, Trouble, ask, begin, without_stale_thinking
from tidegate.compactors.strategy import Call, CompactionFailed, Minted, Passage, Reply
from tidegate.wire import messages
from tidegate.wire.answers import count, failed, read_object
from tidegate.wire.conversation import Conversation, JsonObject
from tidegate.wire.jsontext import array_spans, dumps, loads, object_spans
from tidegate.wire.untyped import object_at, objects_at, text_at

BETA: Final = "compact-2026-09-04"

SUMMARY: Final = 16_000
"""Tokens that a summary gets at most, thinking not counted: it is cut where it needs more, and billed all the same."""
LEAST: Final = 1_024
"""Tokens without which no summary is worth asking for."""

_ENDINGS: Final = {
    "end_turn": "compact_no_artifact",
    "stop_sequence": "compact_no_artifact",
    "max_tokens": "compact_cut_by_length",
    "model_context_window_exceeded": "compact_overflow",
    "tool_use": "compact_called_tool",
    "refusal": "compact_refused",
}
"""What a 200 without a block means, by its `stop_reason`."""

_LACKS: Final = re.compile(
    r"\bcompaction: extra inputs|\bprefill\b"
    r"|\b(?:unknown|unrecogni[sz]ed|unsupported) (?:parameter|field|argument)[^\n]{0,4}\bcompaction\b",
    re.IGNORECASE,
)
"""That the platform has no such thing. Where it passes over the field, a last message of the assistant's is taken for
the beginning of an answer."""

_LACKS_BETA: Final = re.compile(
    r"\brequires anthropic-beta|input tag 'compaction'|expected content block types"
    r"|\bcompact beta\b|unexpected value[^\n]{0,100}anthropic-beta|invalid beta flag",
    re.IGNORECASE,
)


def headers(options: Options) -> Mapping[str, str]:
    """What every request must say that holds the block, beside its own values of that header."""
    return {"anthropic-beta": ",".join(options.betas or (BETA,))}


def compact(passage: Passage, options: Options) -> Generator[Call, Reply, Minted]:
    """Yields the call, is sent its reply, returns the block, byte for byte, as a message of its own, which must come
    first.

    The call is the client's request with the passage for its messages, so that the provider finds it in its cache; what
    only shapes an answer is withheld, as the API demands. Where thinking is bound to its past nothing is retained: kept
    thinking stays valid only directly behind the block. Equal input gives byte-identical calls. Raises
    `CompactionFailed` with a reason of `native.ask`'s.
    """
    begin(passage)
    call = Call(
        path=messages.PATH,
        body=request_of(passage, options, {"compaction": b'{"type":"summarize"}', "context_management": None}),
        add_headers={"accept": "application/json", **headers(options)},
        drop_headers=DROP_HEADERS,
        timeout=options.timeout,
    )
    remedies = (smaller_limit, without_stale_thinking("messages"))
    body, calls = yield from ask(call, options, error_in=error_in, lacks=_lacks, remedies=remedies)
    message = read_object(body)
    if message is None:
        raise CompactionFailed("compact_unreadable")
    block = block_of(body, message)
    read, written = usage_of(message)
    item = b'{"role":"assistant","content":[' + block + b"]}"
    bound = options.binds_thinking and b'thinking"' in passage.conversation.raw
    return Minted((item,), calls, () if bound else passage.retained, read, written)


def _lacks(trouble: Trouble) -> bool:
    return lacks_beta(trouble) or _LACKS.search(trouble.message) is not None


def lacks_beta(trouble: Trouble) -> bool:
    """Whether a refusal says that a beta for compaction is not known there."""
    return _LACKS_BETA.search(trouble.message) is not None


def error_in(body: bytes) -> bytes:
    """The error within a 200, empty for none."""
    message = read_object(body)
    return body if message is not None and failed(message, "content") else b""


# -- the call --------------------------------------------------------------------------------------------------------


def request_of(passage: Passage, options: Options, asked: Mapping[str, bytes | None]) -> bytes:
    """The client's request with the passage for its messages, what is `asked` for, and nothing that shapes an
    answer."""
    conversation = passage.conversation
    alone = messages.read(conversation.replace_items(passage.items, keep_from=len(conversation.items)))
    fields: dict[str, bytes | None] = {
        "model": dumps(passage.model or conversation.model),
        "max_tokens": dumps(_limit(passage, options)),
        **asked,
        **dict.fromkeys(("stream", "stop_sequences", "output_format")),
    }
    if text_at(_value(conversation, "tool_choice"), "type") in ("any", "tool"):
        fields["tool_choice"] = None
    if conversation.field("output_config"):
        fields["output_config"] = _without_shape(conversation)
    return alone.replace_fields(fields)


def _without_shape(conversation: Conversation) -> bytes | None:
    """`output_config` without the answer's format and what is left of a task's budget; None where it says no more."""
    config = _value(conversation, "output_config")
    budget = object_at(config, "task_budget")
    if "format" not in config and "remaining" not in budget:
        return conversation.field("output_config")
    kept = {key: part for key, part in config.items() if key != "format"}
    if budget:
        kept["task_budget"] = {key: part for key, part in budget.items() if key != "remaining"}
    return dumps(kept) if kept else None


def _limit(passage: Passage, options: Options) -> int:
    """Output tokens for the summary and the thinking before it, within what the model writes and the window leaves."""
    thinking = _value(passage.conversation, "thinking")
    budget = count(thinking, "budget_tokens")
    thought = budget or (SUMMARY if text_at(thinking, "type") == "adaptive" else 0)
    bounds = [SUMMARY + thought]
    if options.max_output is not None:
        bounds.append(options.max_output)
    if passage.window is not None and passage.size:
        bounds.append(passage.window - passage.size)
    return max(LEAST + budget, min(bounds))


_TOO_MUCH_OUTPUT: Final = (
    re.compile(r"exceed context limit: (?P<input>\d+) \+ \d+ > (?P<whole>\d+)"),
    re.compile(r"max_tokens: \d+ > (?P<whole>\d+), which is the maximum"),
)


def smaller_limit(body: bytes, trouble: Trouble) -> bytes | None:
    """With the output limit that a refusal leaves: of the window, or of the model's own."""
    told = next((found for rule in _TOO_MUCH_OUTPUT if (found := rule.search(trouble.message))), None)
    if told is None:
        return None
    left = int(told["whole"]) - int(told.groupdict().get("input") or 0)
    conversation = messages.read(body)
    least = LEAST + count(_value(conversation, "thinking"), "budget_tokens")
    if not least <= left < (conversation.output_limit or 0):
        return None
    return conversation.replace_fields({"max_tokens": dumps(left)})


def _value(conversation: Conversation, key: str) -> JsonObject:
    raw = conversation.field(key)
    value = loads(raw) if raw else None
    return value if isinstance(value, dict) else {}


# -- the answer ------------------------------------------------------------------------------------------------------


def block_of(body: bytes, message: JsonObject) -> bytes:
    """The one block that stands for everything, as its bytes came. Raises `CompactionFailed`."""
    if not isinstance(message.get("content"), list):
        raise CompactionFailed("compact_unreadable")
    ending = text_at(message, "stop_reason")
    if ending != "compaction":
        reason = _ENDINGS.get(ending, "compact_unfinished")
        raise CompactionFailed(reason, overflow=reason == "compact_overflow")
    try:
        spans = array_spans(body, *object_spans(body)["content"])
        found = [raw for start, end in spans if _is_summary(raw := body[start:end])]
    except ValueError as error:
        raise CompactionFailed("compact_unreadable") from error
    if len(found) != 1:
        raise CompactionFailed("compact_two_artifacts" if found else "compact_no_artifact")
    return found[0]


def _is_summary(raw: bytes) -> bool:
    """`content: null` is a compaction that failed."""
    block = read_object(raw) or {}
    return text_at(block, "type") == "compaction" and bool(text_at(block, "content").strip())


def usage_of(message: JsonObject) -> tuple[int, int]:
    """Input and output tokens of all that was sampled: a compaction is billed in `iterations` only."""
    usage = object_at(message, "usage")
    samples = objects_at(usage, "iterations") or [usage]
    keys = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    read = sum(count(sample, key) for sample in samples for key in keys)
    return read, sum(count(sample, "output_tokens") for sample in samples)
