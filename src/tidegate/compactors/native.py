"""What the providers' own compactions have in common: how their one slow call is made, and what its refusal means.

Knows shapes of errors and short names of reasons; not what is sent, nor what a good reply holds. Called by the
strategies `openai`, `xai` and `anthropic`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from tidegate.compactors.strategy import Call, CompactionFailed, Passage, Reply
from tidegate.wire import REQUESTS
from tidegate.wire.answers import read_object
from tidegate.wire.conversation import DialectName, JsonObject
from tidegate.wire.stale import stale_in, without_stale
from tidegate.wire.untyped import object_at, text_at

DROP_HEADERS: Final = frozenset({"idempotency-key", "x-idempotency-key", "content-encoding"})
"""Of the client's headers: they belong to its own body."""

_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|context (?:window|limit|length)|prompt is too long"
    r"|maximum prompt length|input tokens exceed|input is too long",
    re.IGNORECASE,
)


def looks_too_long(reply: Reply) -> bool:
    """Whether a refusal reads like one for length: for use without the providers' own rules."""
    words = reply.body.decode("utf-8", "replace")
    return reply.status in (200, 400, 422) and _TOO_LONG.search(words) is not None


@dataclass(frozen=True, slots=True)
class Options:
    """How a provider is asked to compact."""

    timeout: float = 180.0
    """Seconds for each call."""
    betas: tuple[str, ...] = ()
    """What the platform calls Claude's compaction in `anthropic-beta`; empty: as Anthropic does."""
    least_trigger: int = 50_000
    """Input tokens from which on Anthropic compacts at a threshold at all."""
    retained_user_tokens: int = 64_000
    """Newest user messages that are kept beside an item that stands for everything (Codex' own limit)."""
    max_output: int | None = None
    """The model's own output limit in tokens, None where unknown."""
    binds_thinking: bool = False
    """Thinking blocks are bound to the conversation before them (Anthropic's preserved thinking)."""
    overflows: Callable[[Reply], bool] = looks_too_long
    """Tells a refusal for length from others. An error that came within a 200 is given with that status, alone."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A reply that is no answer: a refusal, or an error within a 200."""

    status: int
    within: bool
    """It came within a 200."""
    error: bytes = field(repr=False)
    """The refusal's body, or the data of the event."""
    code: str
    """Anthropic's `error_code`, else `code`, else `type`."""
    message: str = field(repr=False)

    @property
    def stale(self) -> bool:
        """Something sealed in the history is not what the provider made, or not for this caller."""
        return self.code in _STALE_CODES or _STALE.search(self.message) is not None


Remedy: TypeAlias = Callable[[bytes, Trouble], bytes | None]
"""The body to send instead of a refused one, None where it knows no better."""
Lacks: TypeAlias = Callable[[Trouble], bool]
"""Whether a refusal says that what was asked for does not exist there."""

_STALE_CODES: Final = frozenset(
    {
        "invalid_encrypted_content",
        "invalid_compaction",
        "compaction_signature_invalid",
        "compaction_content_mismatch",
        "compaction_tool_changes_mismatch",
        "compaction_block_ambiguous",
        "compaction_block_misplaced",
    }
)
_STALE: Final = re.compile(
    r"could not decode the compaction blob|could not decrypt|encrypted content[^\n]{0,100} could not be verified"
    r"|invalid `(?:signature|data|encrypted_content)` in `|bound to a different conversation",
    re.IGNORECASE,
)
_REASONS: Final = {
    "compaction_incomplete_turn": "compact_incomplete_turn",
    "compaction_nothing_to_summarize": "compact_nothing",
    "compaction_too_many_tool_references": "compact_too_many_tools",
    "compaction_unavailable": "compact_unavailable",
}
"""By Anthropic's `error_code`."""
_ABSENT: Final = frozenset({404, 405, 501})
_HELD: Final = re.compile(r"\bitem with id\b|not persisted|\bprevious response\b|\bconversation\b", re.IGNORECASE)
"""A 404 for something that the history names, not for the path."""
_NO_MODEL_CODES: Final = frozenset({"model_not_found", "unsupported_model", "model_not_supported", "invalid_model"})
_NO_MODEL: Final = re.compile(
    r"\b(?:unknown|unsupported|invalid) model\b|\bdoes not support compaction\b"
    r"|\bmodel\b[^\n]{0,100}\b(?:not (?:found|supported|available|enabled)|does not exist|unsupported)\b",
    re.IGNORECASE,
)
UNKNOWN_FIELD: Final = re.compile(
    r"\b(?:unknown|unrecogni[sz]ed|unexpected|unsupported) (?:\w+ )?(?:parameter|field|argument|key)"
    r"|extra (?:inputs|fields)\b|\bnot (?:permitted|allowed)\b",
    re.IGNORECASE,
)


def begin(passage: Passage) -> None:
    """Raises `CompactionFailed` where there is nothing to compact, or the provider holds what comes before it."""
    if passage.conversation.server_held:
        raise CompactionFailed("compact_server_held")
    if not passage.items:
        raise CompactionFailed("compact_nothing")


def ask(
    call: Call, options: Options, *, error_in: Callable[[bytes], bytes], lacks: Lacks, remedies: Sequence[Remedy]
) -> Generator[Call, Reply, tuple[bytes, int]]:
    """Body of the good reply to a call, and how many calls it took: one, and one more for each remedy that helped.

    `error_in` finds the error within a 200, empty for none. Raises `CompactionFailed`, never with a word of the
    conversation or of a reply:

    | reason | meaning |
    |---|---|
    | `compact_unreachable` | no answer could be had, or not in time |
    | `compact_overflow` | the input is over the window; also an answer cut there (`overflow` is True) |
    | `compact_missing` | no such path, field or item type, or not for this model (`missing` is True) |
    | `compact_stale` | something sealed in the history is refused; thinking was left out in one more try |
    | `compact_http_<status>` | refused with that status for another reason, 401 and 403 among them |
    | `compact_error` | an error within a 200 |
    | `compact_unreadable` | a 200 that is not what this API answers |
    | `compact_no_artifact` | a 200 in which nothing was compacted |
    | `compact_two_artifacts` | more than one where one must be |
    | `compact_cut_off` | the stream ended before its end |
    | `compact_cut_by_length` | cut by the output limit |
    | `compact_called_tool`, `compact_refused` | what the model did instead |
    | `compact_unfinished` | ended for a reason that is no ordinary end |
    | `compact_unavailable` | Anthropic has no compaction just now |
    | `compact_incomplete_turn`, `compact_nothing`, `compact_too_many_tools` | Anthropic's reasons of these names |
    | `compact_below_trigger` | too little for the smallest threshold that Anthropic takes |
    | `compact_server_held` | the history is held by the provider: only it could compact that |

    Those after `compact_error` are the strategies' own.
    """
    left = list(remedies)
    calls = 0
    while True:
        reply = yield call
        calls += 1
        trouble = _trouble(reply, error_in)
        if trouble is None:
            return reply.body, calls
        helped = [(remedy, body) for remedy in left if (body := remedy(call.body, trouble)) is not None]
        if not helped:
            raise _failure(trouble, reply, options, lacks)
        remedy, body = helped[0]
        left.remove(remedy)
        call = replace(call, body=body)


def without_stale_thinking(dialect: DialectName) -> Remedy:
    """The remedy that leaves out thinking which the provider can't read. A compaction it can't read stays: it holds
    what is left of the past, so only the items it stands for can take its place."""

    def remedy(body: bytes, trouble: Trouble) -> bytes | None:
        if not trouble.stale:
            return None
        try:
            conversation = REQUESTS[dialect].read(body)
            stale = stale_in(conversation, trouble.error)
            if stale is None or stale.kind != "thinking":
                return None
            return without_stale(conversation, stale)
        except ValueError:  # nothing that JSON allows
            return None

    return remedy


def _trouble(reply: Reply, error_in: Callable[[bytes], bytes]) -> Trouble | None:
    within = 200 <= reply.status < 300
    error = error_in(reply.body) if within else reply.body
    if within and not error:
        return None
    body = read_object(error)
    if body is None:
        return Trouble(reply.status, within, error, "", error.decode("utf-8", "replace"))
    told = _told(body)
    code = text_at(object_at(told, "details"), "error_code") or text_at(told, "code") or text_at(told, "type")
    # xAI's `error` is a string, FastAPI's `detail` is one.
    message = text_at(told, "message") or text_at(body, "error") or text_at(body, "detail")
    return Trouble(reply.status, within, error, code, message)


def _told(body: JsonObject) -> JsonObject:
    """The object that tells of the error, in whatever it is wrapped."""
    wrapped = (object_at(object_at(body, "response"), "error"), object_at(body, "error"), object_at(body, "detail"))
    return next((told for told in wrapped if told), body)


def _failure(trouble: Trouble, reply: Reply, options: Options, lacks: Lacks) -> CompactionFailed:
    if trouble.status == 0:
        return CompactionFailed("compact_unreachable")
    if options.overflows(Reply(trouble.status, trouble.error, reply.headers)):
        return CompactionFailed("compact_overflow", overflow=True)
    if reason := _REASONS.get(trouble.code):
        return CompactionFailed(reason)
    if _is_missing(trouble, lacks):
        return CompactionFailed("compact_missing", missing=True)
    if trouble.stale:
        return CompactionFailed("compact_stale")
    return CompactionFailed("compact_error" if trouble.within else f"compact_http_{trouble.status}")


def _is_missing(trouble: Trouble, lacks: Lacks) -> bool:
    if trouble.status in _ABSENT:
        return _HELD.search(trouble.message) is None
    if trouble.status not in (400, 422) and not trouble.within:
        return False
    return trouble.code in _NO_MODEL_CODES or _NO_MODEL.search(trouble.message) is not None or lacks(trouble)
