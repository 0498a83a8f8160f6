"""Anthropic's compaction at a threshold, asked for as a call of its own: the smallest trigger, and a pause behind the
block.

Knows the edit, and how a request says that it carries such a block; makes no call itself (`compact` yields it). Called
by the engine. Source: platform.claude.com/docs/en/build-with-claude/compaction-threshold.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final

from tidegate.compactors.anthropic import block_of, error_in, lacks_beta, request_of, smaller_limit, usage_of
from tidegate.compactors.native import DROP_HEADERS, Options, Trouble, ask, begin, without_stale_thinking
from tidegate.compactors.strategy import Call, CompactionFailed, Minted, Passage, Reply
from tidegate.wire import messages
from tidegate.wire.answers import read_object
from tidegate.wire.conversation import Conversation, JsonObject
from tidegate.wire.jsontext import dumps, loads
from tidegate.wire.untyped import text_at

BETA: Final = "compact-2026-01-12"
EDIT: Final = "compact_20260112"

LARGE: Final = 1_000_000
"""Tokens that no request reaches where the model's window is not known."""
SURE_SHARE: Final = 8
"""Of the smallest trigger, the part by which an estimate must be over it: what stays below is answered, and billed, as
an ordinary request."""

_LACKS: Final = re.compile(
    r"\bcontext_management(?:\.edits)?: extra inputs|input tag 'compact_|does not support [`']?compact_"
    r"|\b(?:unknown|unrecogni[sz]ed|unsupported) (?:parameter|field|argument)[^\n]{0,4}\bcontext_management\b",
    re.IGNORECASE,
)


def compact(passage: Passage, options: Options) -> Generator[Call, Reply, Minted]:
    """Yields the call, is sent its reply, returns the block, byte for byte, as a message of its own, which must come
    first: in each later request too, beside the header and an edit (`standing`).

    The client's own request never asks for it, so that its answer is the provider's own from the first byte. The block
    is not signed and keeps no record of what it was made of: where thinking is bound to its past, that of kept messages
    is not valid behind it. Equal input gives byte-identical calls. Raises `CompactionFailed` with a reason of
    `native.ask`'s; without a call where the passage is too small for any trigger (`compact_below_trigger`), or ends
    with an answer, which would be taken for the beginning of the next one (`compact_incomplete_turn`).
    """
    begin(passage)
    if passage.size < options.least_trigger + options.least_trigger // SURE_SHARE:
        raise CompactionFailed("compact_below_trigger")
    last = loads(passage.items[-1])
    if not isinstance(last, dict) or text_at(last, "role") != "user":
        raise CompactionFailed("compact_incomplete_turn")
    edit = {**_edit(options.least_trigger), "pause_after_compaction": True}
    call = Call(
        path=messages.PATH,
        body=request_of(passage, options, {"context_management": dumps({"edits": [edit]})}),
        add_headers={"accept": "application/json", "anthropic-beta": ",".join(options.betas or (BETA,))},
        drop_headers=DROP_HEADERS,
        timeout=options.timeout,
    )
    remedies = (smaller_limit, without_stale_thinking("messages"))
    body, calls = yield from ask(call, options, error_in=error_in, lacks=_lacks, remedies=remedies)
    message = read_object(body)
    if message is None:
        raise CompactionFailed("compact_unreadable")
    item = b'{"role":"assistant","content":[' + block_of(body, message) + b"]}"
    read, written = usage_of(message)
    return Minted((item,), calls, passage.retained, read, written)


def is_signed(item: bytes) -> bool:
    """Whether an item that was minted holds the block of a compaction on demand: that one is signed."""
    return b'"signature"' in item


def standing(conversation: Conversation, window: int | None, least: int) -> bytes | None:
    """The `context_management` of a request that carries such a block, and is not to be compacted: the client's own
    edits, then one that no request of the model's reaches. None where the client's own can't be read."""
    raw = conversation.field("context_management")
    own = loads(raw) if raw else {}
    own = {} if own is None else own
    edits = own.get("edits", []) if isinstance(own, dict) else None
    if not isinstance(own, dict) or not isinstance(edits, list):
        return None
    return dumps({**own, "edits": [*edits, _edit(max(window or LARGE, least))]})


def _edit(trigger: int) -> JsonObject:
    return {"type": EDIT, "trigger": {"type": "input_tokens", "value": trigger}}


def _lacks(trouble: Trouble) -> bool:
    return lacks_beta(trouble) or _LACKS.search(trouble.message) is not None
