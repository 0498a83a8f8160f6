"""OpenAI's compaction within a Responses request: the field that asks for it, and a history behind its item.

Knows bytes and items only; decides nothing and calls nobody. Called by the engine.
"""

from __future__ import annotations

from typing import Final

from tidegate.wire.body import item_value
from tidegate.wire.conversation import Conversation
from tidegate.wire.responses import COMPACTIONS, facts

FIELD: Final = "context_management"
"""Of the request (developers.openai.com/api/docs/guides/compaction; openai 3.57, `ContextManagement`)."""


def asking(body: bytes, threshold: int) -> bytes:
    """A body that asks for a compaction from so many input tokens on, by a field at its end; all its other bytes stay.

    The body is a JSON object with other fields and without this one.
    """
    end = body.rindex(b"}")
    field = b',"%b":[{"type":"compaction","compact_threshold":%d}]' % (FIELD.encode(), threshold)
    return b"".join((body[:end], field, body[end:]))


def pruned(conversation: Conversation) -> bytes:
    """The body without what its newest compaction item stands for: what the model and its tools said before it.

    OpenAI lets a client drop all that stands before it, and reports differ on whether that is billed. Messages of the
    user and instructions stay, since a compact call hands those back beside its item, and some servers read them. All
    stays where there is no item, nothing but messages before it (what a compact call gives is never to be pruned), or
    where an item after it hangs on one before.
    """
    values = [item_value(item) or {} for item in conversation.items]
    known = [facts(value) for value in values]
    lead, count = conversation.lead, len(known)
    newest = max((n for n in range(lead, count) if known[n].kind in COMPACTIONS), default=-1)
    before = range(lead, newest)
    if all(known[n].kind == "message" or known[n].kind in COMPACTIONS for n in before):
        return conversation.raw
    kept = [n for n in before if known[n].kind == "message" and known[n].role in ("user", "system")]
    gone = {name for n in before if n not in kept for name in (*known[n].calls, *known[n].ids)}
    if any(gone.intersection((*known[n].results, *known[n].mentions)) for n in range(newest, count)):
        return conversation.raw
    return conversation.replace_items([conversation.item_raw(n) for n in kept], keep_from=newest)
