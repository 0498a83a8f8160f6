"""xAI's own compaction: `POST /responses/compact`, one sealed item in the place of everything.

Knows its two fields and its traps; makes no call itself (`compact` yields it). Called by the engine.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

from tidegate.compactors.minted import error_in, leading, output_of, the_artifact, usage_of
from tidegate.compactors.native import (
    DROP_HEADERS,
    UNKNOWN_FIELD,
    Options,
    Trouble,
    ask,
    begin,
    without_stale_thinking,
)
from tidegate.compactors.strategy import Call, Minted, Passage, Reply
from tidegate.wire import responses
from tidegate.wire.answers import read_object
from tidegate.wire.conversation import JsonObject
from tidegate.wire.jsontext import dumps, loads
from tidegate.wire.untyped import text_at

PATH: Final = "/responses/compact"


def compact(passage: Passage, options: Options) -> Generator[Call, Reply, Minted]:
    """Yields the call, is sent its reply, returns the one item. The body has `model` and `input` only
    (docs.x.ai, "Context compaction"), so the system text goes into the input.

    The item replaces every message, so the user's newest words are retained by their positions. Equal input gives
    byte-identical calls. Raises `CompactionFailed` with a reason of `native.ask`'s.
    """
    begin(passage)
    items = b",".join(_input(passage))
    model = dumps(passage.model or passage.conversation.model)
    call = Call(
        path=PATH,
        body=b'{"model":' + model + b',"input":[' + items + b"]}",
        add_headers={"accept": "application/json"},
        drop_headers=DROP_HEADERS,
        timeout=options.timeout,
    )
    remedies = (without_stale_thinking("responses"),)
    body, calls = yield from ask(call, options, error_in=error_in, lacks=_lacks, remedies=remedies)
    item = the_artifact(output_of(body))
    read, written = usage_of(read_object(body) or {})
    return Minted((item,), calls, passage.retained, read, written)


def _lacks(trouble: Trouble) -> bool:
    return UNKNOWN_FIELD.search(trouble.message) is not None


def _input(passage: Passage) -> Sequence[bytes]:
    """The system text, then the passage. After an earlier item, which must be the first of all and hides what stands
    before it."""
    values = [_object(raw) for raw in passage.items]
    items = [_without_null_content(raw, value) for raw, value in zip(passage.items, values, strict=True)]
    sealed = [n for n, value in enumerate(values) if text_at(value, "type") in responses.COMPACTIONS]
    at = sealed[-1] + 1 if sealed else 0
    return [*items[:at], *_system(passage), *items[at:]]


def _system(passage: Passage) -> Sequence[bytes]:
    instructions = passage.conversation.system
    told = [b'{"role":"system","content":' + instructions + b"}"] if instructions.startswith(b'"') else []
    return [*told, *leading(passage)]


def _without_null_content(raw: bytes, value: JsonObject) -> bytes:
    """A reasoning item with `"content": null`, as Codex writes it, is taken for a compaction and refused."""
    if text_at(value, "type") == "reasoning" and "content" in value and value["content"] is None:
        return dumps({key: part for key, part in value.items() if key != "content"})
    return raw


def _object(raw: bytes) -> JsonObject:
    value = loads(raw)
    return value if isinstance(value, dict) else {}
