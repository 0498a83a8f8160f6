"""OpenAI's own compactions: `POST /responses/compact`, and `/responses` with a last item `compaction_trigger`.

Knows which fields each takes and what of their answers is kept; makes no call itself. Called by the engine.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.compactors import minted, native
from tidegate.compactors.minted import Given
from tidegate.compactors.native import DROP_HEADERS, UNKNOWN_FIELD, Options, Trouble
from tidegate.compactors.strategy import Call, CompactionFailed, Minted, Passage, Reply
from tidegate.compactors.users import TRUNCATED, newest_users, words_of
from tidegate.wire import responses, responses_answers
from tidegate.wire.answers import DONE, events_of, is_json, read_object
from tidegate.wire.conversation import Conversation, JsonObject
from tidegate.wire.jsontext import dumps, loads, object_spans
from tidegate.wire.sse import Event
from tidegate.wire.untyped import object_at, text_at

COMPACT_PATH: Final = "/responses/compact"
TRIGGER: Final = b'{"type":"compaction_trigger"}'

_NEEDED: Final = frozenset({"model", "input", "instructions"})
_COMPACT_FIELDS: Final = (
    "instructions",
    "image",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
)
"""What the schema has beside `model` and `input` (openai 3.57, `ResponseCompactParams`). Tools, reasoning and text are
let through by OpenAI's own endpoint only, and nobody needs them."""
_TRIGGER_FIELDS: Final = (
    "access_programs",
    "client_metadata",
    "image",
    "include",
    "instructions",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "text",
    "tool_choice",
    "tools",
    "user",
)
"""Of the client's request: what the provider's cache hangs on, and who asks. Not what shapes, bounds or stores an
answer."""


def compact(passage: Passage, options: Options) -> Generator[Call, Reply, Minted]:
    """Yields the call, is sent its reply, returns the whole window that it gives: user messages, then the sealed item.

    The body has the schema's fields only (developers.openai.com/api/reference/resources/responses/methods/compact);
    where an endpoint refuses one of those that may go, they all go in one more call. Retained are the system items, and
    the user's newest words if they did not come back. Equal input gives byte-identical calls. Raises `CompactionFailed`
    with a reason of `native.ask`'s.
    """
    native.begin(passage)
    fields = {name: raw for name in _COMPACT_FIELDS if _says(raw := passage.conversation.field(name))}
    call = Call(
        path=COMPACT_PATH,
        body=_body(passage, passage.items, fields),
        add_headers={"accept": "application/json"},
        drop_headers=DROP_HEADERS,
        timeout=options.timeout,
    )
    remedies = (_only_needed_fields, _without_strange_ids, native.without_stale_thinking("responses"))
    body, calls = yield from native.ask(call, options, error_in=minted.error_in, lacks=_lacks_field, remedies=remedies)
    output = minted.output_of(body)
    minted.the_artifact(output)
    read, written = minted.usage_of(read_object(body) or {})
    retained = tuple(sorted({*minted.systems(passage), *_words_not_in(passage, output)}))
    return Minted(minted.repaired(output), calls, retained, read, written)


def trigger(passage: Passage, options: Options) -> Generator[Call, Reply, Minted]:
    """Yields the call, is sent its reply, returns the newest user messages and the one sealed item after them.

    The call continues the client's request, so that the provider finds it in its cache; it is streamed and not stored,
    as the ChatGPT backend demands. Retained are the system items only. Equal input gives byte-identical calls. Raises
    `CompactionFailed` with a reason of `native.ask`'s.
    """
    native.begin(passage)
    call = Call(
        path=responses.PATH,
        body=_body(passage, [*passage.items, TRIGGER], _trigger_fields(passage.conversation)),
        add_headers={"accept": "text/event-stream"},
        drop_headers=DROP_HEADERS,
        timeout=options.timeout,
    )
    remedies = (_without_strange_ids, native.without_stale_thinking("responses"))
    body, calls = yield from native.ask(
        call, options, error_in=_error_in_stream, lacks=_lacks_trigger, remedies=remedies
    )
    told = _read(body)
    if told.ending is None:
        raise CompactionFailed("compact_cut_off" if told.begun else "compact_unreadable")
    if told.ending != "completed":
        raise CompactionFailed(_ENDINGS.get(told.reason, "compact_unfinished"), overflow=told.reason == _WINDOW)
    item = minted.the_artifact(told.items)
    users = newest_users(passage.items, options.retained_user_tokens)
    return Minted((*users, item), calls, minted.systems(passage), told.input_tokens, told.output_tokens)


def _body(passage: Passage, items: Sequence[bytes], fields: Mapping[str, bytes]) -> bytes:
    """`model`, the given raw fields, and the leading system items and `items` as `input`."""
    whole = {
        "model": dumps(passage.model or passage.conversation.model),
        **fields,
        "input": b"[" + b",".join((*minted.leading(passage), *items)) + b"]",
    }
    return b"{" + b",".join(dumps(name) + b":" + raw for name, raw in whole.items()) + b"}"


def _says(raw: bytes) -> bool:
    return raw not in (b"", b"null")


_PREFIXES: Final = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}


def _without_strange_ids(body: bytes, trouble: Trouble) -> bytes | None:
    """Without the ids that no item of that type has here: other servers, whose histories these are, took them."""
    if "].id'" not in trouble.message:
        return None
    conversation = responses.read(body)
    items = [conversation.item_raw(n) for n in range(conversation.lead, len(conversation.items))]
    kept = [_without_strange_id(raw) for raw in items]
    return conversation.replace_items(kept, keep_from=len(conversation.items)) if kept != items else None


def _without_strange_id(raw: bytes) -> bytes:
    item = minted.given(raw).value
    prefix = _PREFIXES.get(responses.facts(item).kind, "")
    if not prefix or not text_at(item, "id") or text_at(item, "id").startswith(prefix):
        return raw
    return dumps({key: value for key, value in item.items() if key != "id"})


# -- the compact path ------------------------------------------------------------------------------------------------


def _only_needed_fields(body: bytes, trouble: Trouble) -> bytes | None:
    conversation = responses.read(body)
    spare = [name for name in conversation.field_spans if name not in _NEEDED]
    if not spare or not _lacks_field(trouble):
        return None
    return conversation.replace_fields(dict.fromkeys(spare))


def _lacks_field(trouble: Trouble) -> bool:
    """A field of the body is not known, not one of an item's."""
    unknown = trouble.code == "unknown_parameter" or UNKNOWN_FIELD.search(trouble.message) is not None
    return unknown and trouble.status in (400, 422) and "input[" not in trouble.message


def _words_not_in(passage: Passage, output: Sequence[Given]) -> tuple[int, ...]:
    """The retained positions of the user's newest words, where these words are in no returned message."""
    systems = minted.systems(passage)
    words = tuple(p for p in passage.retained if p not in systems)
    returned = [words_of(item.value) for item in output if text_at(item.value, "role") == "user"]
    mine = [value for p in words if text_at(value := minted.retained_value(passage, p), "role") == "user"]
    return () if all(any(_same(words_of(value), text) for text in returned) for value in mine) else words


def _same(text: str, returned: str) -> bool:
    """Whether a returned message is this one, whole or cut in its middle."""
    if text == returned:
        return True
    cut = TRUNCATED.search(returned)
    return cut is not None and text.startswith(returned[: cut.start()]) and text.endswith(returned[cut.end() :])


# -- the trigger -----------------------------------------------------------------------------------------------------

_WINDOW: Final = "model_context_window_exceeded"
_ENDINGS: Final = {
    "max_output_tokens": "compact_cut_by_length",
    "max_tokens": "compact_cut_by_length",
    "content_filter": "compact_refused",
    _WINDOW: "compact_overflow",
}
"""By `incomplete_details.reason`."""
_COMPLETED: Final = frozenset({"response.completed", "response.done"})


@dataclass(slots=True)
class _Told:
    """What the events of one answer, or its one response, add up to."""

    begun: bool = False
    items: list[Given] = field(default_factory=list)
    ending: str | None = None
    reason: str = ""
    error: bytes = b""
    input_tokens: int = 0
    output_tokens: int = 0

    def end(self, response: JsonObject, status: str, raw: bytes) -> None:
        """The end of the answer; `raw` is the response's JSON. Items that came before are not overruled by a list that
        the ChatGPT backend leaves empty."""
        self.ending = status
        self.reason = text_at(object_at(response, "incomplete_details"), "reason")
        self.input_tokens, self.output_tokens = minted.usage_of(response)
        if not any(item.is_artifact for item in self.items) and isinstance(response.get("output"), list):
            self.items = minted.output_of(raw)


def _trigger_fields(conversation: Conversation) -> Mapping[str, bytes]:
    fields = {name: raw for name in _TRIGGER_FIELDS if _says(raw := conversation.field(name))}
    if fields.get("tool_choice") not in (b'"auto"', b'"none"'):
        fields.pop("tool_choice", None)
    if "text" in fields:
        fields["text"] = _without_format(fields["text"])
    return {**fields, "store": b"false", "stream": b"true"}


def _without_format(raw: bytes) -> bytes:
    """How the client wants its answers to look is not how a compaction looks."""
    value = loads(raw)
    if not isinstance(value, dict) or "format" not in value:
        return raw
    return dumps({key: part for key, part in value.items() if key != "format"})


def _lacks_trigger(trouble: Trouble) -> bool:
    words = trouble.message
    return "compaction_trigger" in words or "untagged enum" in words


def _error_in_stream(body: bytes) -> bytes:
    return minted.error_in(body) if is_json(body) else _read(body).error


def _read(body: bytes) -> _Told:
    told = _Told()
    if is_json(body):
        response = read_object(body) or {}
        if isinstance(response.get("output"), list):
            told.end(response, text_at(response, "status"), body)
        return told
    for event in events_of(body):
        if told.ending is None and not told.error and event.data.strip() != DONE:
            _take(told, event)
    return told


def _take(told: _Told, event: Event) -> None:
    body = read_object(event.data)
    if body is None:
        return
    told.begun = True
    kind = text_at(body, "type") or event.name
    told.error = responses_answers.signal(event).error
    if kind == "response.output_item.done":
        told.items += _under("item", event)
    elif not told.error and kind in responses_answers.TERMINAL:
        response = object_at(body, "response")
        status = "completed" if kind in _COMPLETED else kind.removeprefix("response.")
        told.end(response, text_at(response, "status") or status, next((g.raw for g in _under("response", event)), b""))


def _under(key: str, event: Event) -> Iterator[Given]:
    try:
        start, end = object_spans(event.data)[key]
    except (ValueError, KeyError):
        return
    yield minted.given(event.data[start:end])
