"""What the model is shown in place of a history: the splice of an artifact and the items kept.

Knows legal orders and merges; makes no decision and no call. Called by the exchange.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal
from zlib import crc32

import msgspec

from tidegate.compactors import elide, threshold
from tidegate.compactors.summary import mark
from tidegate.context.chain import Chain
from tidegate.context.entries import Entry
from tidegate.context.estimators import OWN, Estimator
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.context.past import Past
from tidegate.context.recall import history_of
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.request import Target
from tidegate.engine.router import Way
from tidegate.wire import REQUESTS
from tidegate.wire.cache_marks import control_for, marked
from tidegate.wire.conversation import Conversation, DialectName, Facts, JsonObject, UnreadableBody
from tidegate.wire.jsontext import dumps, loads

ITEM_OVERHEAD = 4
"""Tokens every message costs beside its words."""

ANTHROPIC = "anthropic"
"""The strategy whose block must be announced in every request that carries it."""

DROP_BLOCK_BETA = "thinking-binding-controls-2026-08-01"


class History:
    """A request's items, read: the chain and, for each chained item, its facts and size. Nothing of it changes."""

    __slots__ = ("chain", "conversation", "head", "marks", "overhead", "past")

    def __init__(
        self, conversation: Conversation, chain: Chain, head: bytes, past: Past, overhead: int, marks: int = 0
    ) -> None:
        self.conversation, self.chain, self.head = conversation, chain, head
        self.past = past
        """Of the chained items only."""
        self.overhead = overhead
        """Tokens of all that is never compacted: system, leading system items, tools, schema."""
        self.marks = marks
        """Cache marks on all of that."""

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        return f"History(conversation={self.conversation!r}, chain={self.chain!r}, overhead={self.overhead})"

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What is known of each chained item."""
        return self.past.entries

    @property
    def facts(self) -> list[Facts]:
        """Facts of the chained items; not to be changed."""
        return self.past.facts

    @property
    def opaque(self) -> bool:
        """Whether an item stands for what only its provider can read: an artifact of another's making, a reference."""
        return self.past.odd is not None

    def raw(self, position: int) -> bytes:
        """Raw JSON of the chained item at `position`."""
        return self.conversation.item_raw(self.conversation.lead + position)

    def value(self, position: int) -> JsonObject:
        """The chained item at `position`, parsed."""
        value = loads(self.raw(position))
        if not isinstance(value, dict):
            raise UnreadableBody(f"item {position} is not an object")
        return value


_NO_HEADERS: Mapping[str, str] = {}


class View:
    """What is forwarded: the first `covered` chained items replaced by `checkpoint`, the rest as they are.

    Nothing of it changes.
    """

    __slots__ = ("add_headers", "artifact_tokens", "body", "chain", "checkpoint", "covered", "tokens")

    def __init__(
        self,
        body: bytes,
        covered: int,
        checkpoint: Checkpoint | None,
        tokens: int,
        artifact_tokens: int = 0,
        add_headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        self.body, self.covered, self.checkpoint = body, covered, checkpoint
        self.chain = _name_of(checkpoint)
        """The name of what stands in it, empty for nothing."""
        self.tokens = tokens
        """Estimated, uncalibrated."""
        self.artifact_tokens = artifact_tokens
        """Estimated tokens of the artifact and the items retained with it."""
        self.add_headers = add_headers

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        return f"View(covered={self.covered}, tokens={self.tokens}, artifact_tokens={self.artifact_tokens})"

    def with_checkpoint(self, checkpoint: Checkpoint) -> View:
        """The same view, of a checkpoint that says more of itself."""
        return View(self.body, self.covered, checkpoint, self.tokens, self.artifact_tokens, self.add_headers)


def _name_of(checkpoint: Checkpoint | None) -> bytes:
    """What a view with this checkpoint is known by: the checkpoint's chain, and another one where items are elided,
    since a summary of as many items is not the same view."""
    if checkpoint is None:
        return b""
    chain, elided = checkpoint.chain, checkpoint.artifact.elided
    if not elided:
        return chain
    told = crc32(repr((checkpoint.artifact.base, elided)).encode())
    return chain[:-4] + (told ^ int.from_bytes(chain[-4:], "big")).to_bytes(4, "big")


def read_history(
    conversation: Conversation, tenant: bytes, hasher: Hasher, ledger: Ledger, estimator: Estimator = OWN
) -> History:
    """Reads every item once (or finds it in the ledger) and chains them. Raises `UnreadableBody`."""
    past, top = history_of(conversation, hasher, ledger, estimator)
    chain = past.chain(hasher, tenant, conversation.dialect)
    return History(conversation, chain, top.head, past, top.tokens + past.sums[0], top.marks)


def plain(history: History) -> View:
    """The history as the client sent it."""
    sums = history.past.sums
    return View(history.conversation.raw, 0, None, history.overhead + sums[-1] - sums[0])


def applied(history: History, checkpoint: Checkpoint, target: Target) -> View | None:
    """The view that a matching checkpoint gives of this very history at this target; None where it may not stand for
    its beginning: nothing would be left after it, or the cut would split something here.

    The newest words of the user stay verbatim. Where newer ones have gone since the checkpoint was made (a rewind), the
    newest now may lie inside the span: they are retained although the checkpoint does not say so. Beside an opaque
    artifact stands what did when it was minted: its provider keeps the user's words in it, or hands them back.
    """
    past, k, retained = history.past, checkpoint.length, checkpoint.artifact.retained
    base = checkpoint.artifact.stands_for(k)
    if (retained and max(retained) >= base) or not _may_stand(history, checkpoint, base, target):
        return None
    words = past.words_before(base) if base else ()
    if words and checkpoint.artifact.kind == "text" and not {*words} <= {*retained}:
        artifact = replace(checkpoint.artifact, retained=tuple(sorted({*retained, *words})))
        checkpoint = replace(checkpoint, artifact=artifact)
    return replaced(history, checkpoint, target)


def _may_stand(history: History, checkpoint: Checkpoint, base: int, target: Target) -> bool:
    """Whether the history begins with a checkpoint's items, and may be cut where its artifact ends."""
    k = checkpoint.length
    if not checkpoint.artifact.elided:
        return may_cut(history, k, checkpoint.chain, target)
    if not 0 < k <= len(history.past) or history.chain.link(k) != checkpoint.chain:
        return False
    return not base or may_cut(history, base, history.chain.link(base), target)


def may_cut(history: History, at: int, link: bytes, target: Target) -> bool:
    """Whether the history has that chain at `at`, and may be cut there."""
    past = history.past
    known = 0 < at < len(past) and history.chain.link(at) == link
    return known and past.safe(at) and not _barred(past, at, target)


def _barred(past: Past, at: int, target: Target) -> bool:
    """Whether `at` is among the `barred_cuts`."""
    if not target.merge_user:
        return False
    speaks = past.seam(at).speaks
    return speaks > at and past.entries[speaks].facts.role == "user"


def barred_cuts(history: History, target: Target) -> frozenset[int]:
    """Positions before which a summary, a user message, would bring two user messages in a row, where a target's
    template refuses that.

    Templates don't count tool rounds, so a round that stands between an answer and the next user message does not part
    that from the summary (Mistral's, F60); a user message right after the cut takes the summary into itself.
    """
    if not target.merge_user:
        return frozenset()
    barred = []
    user_next = False
    for i in range(len(history.entries) - 1, -1, -1):
        facts = history.entries[i].facts
        if facts.role == "user":
            user_next = True
            continue
        if facts.role == "assistant" and facts.kind == "message" and not facts.calls:
            user_next = False
        if user_next:
            barred.append(i)
    return frozenset(barred)


class _Made:
    """What was put in the place of the items before a cut. It hangs on them, on the one after it, and on what is told
    here. Nothing of it changes."""

    __slots__ = ("_artifact", "_how", "items", "taken", "tokens")

    def __init__(
        self,
        artifact: Artifact,
        how: tuple[bool, bool, bool, bytes],
        items: tuple[bytes, ...],
        taken: int,
        tokens: int,
    ) -> None:
        """`taken`: how many items after the cut are merged into it."""
        self._artifact, self._how, self.items, self.taken, self.tokens = artifact, how, items, taken, tokens

    def fits(self, artifact: Artifact, how: tuple[bool, bool, bool, bytes]) -> bool:
        """Whether it would be made alike again."""
        return self._how == how and self._artifact == artifact


def replaced(history: History, checkpoint: Checkpoint, target: Target) -> View:
    """The history with the checkpoint's artifact in place of its first items."""
    conversation, covered, past = history.conversation, checkpoint.length, history.past
    fate = _fate_of_thinking(history, checkpoint.artifact, covered, target)
    made = _made(history, checkpoint.artifact, covered, target, leave_out=fate == "leave_out")
    add_headers: dict[str, str] = {}
    betas, fields = _announcement(history, checkpoint.artifact, target)
    if fate == "leave_out":
        rest = range(covered + made.taken, len(past))
        tail = [raw for p in rest if (raw := _without_thinking(history, p)) is not None]
        body = conversation.replace([*made.items, *tail], keep_from=len(conversation.items), fields=fields)
    else:
        keep_from = conversation.lead + covered + made.taken
        if fate == "api_drops":
            fields["thinking"] = _drop_mismatched(conversation)
            betas.append(DROP_BLOCK_BETA)
        body = conversation.replace(made.items, keep_from=keep_from, fields=fields)
    if betas:
        add_headers["anthropic-beta"] = ",".join(betas)
    kept = past.sums[-1] - past.sums[covered]
    return View(body, covered, checkpoint, history.overhead + made.tokens + kept, made.tokens, add_headers)


def way_of(artifact: Artifact, dialect: DialectName) -> Way | None:
    """How Claude's own block that stands in an artifact was made; None where it is no such block."""
    if artifact.kind != "opaque" or dialect != "messages":
        return None
    return "on-demand" if threshold.is_signed(artifact.items[0]) else "threshold"


def _announcement(history: History, artifact: Artifact, target: Target) -> tuple[list[str], dict[str, bytes]]:
    """(betas, fields) without which Claude's own block is refused: a header for either, and an edit beside the one that
    is not signed. Both or neither."""
    conversation, means = history.conversation, target.means
    way = way_of(artifact, conversation.dialect)
    if way == "on-demand":
        return [means.on_demand] if means.on_demand else [], {}
    if way != "threshold" or not means.threshold:
        return [], {}
    managed = threshold.standing(conversation, target.window, means.least_trigger)
    return ([means.threshold], {"context_management": managed}) if managed else ([], {})


def _made(history: History, artifact: Artifact, covered: int, target: Target, *, leave_out: bool) -> _Made:
    """What comes in the place of the first items, as it was made for an earlier turn where there was one."""
    merge_user, past = target.merges, history.past
    lists = merge_user and _lists(history.conversation)
    base = artifact.stands_for(covered)
    control = _control(history, artifact, base) if base else b""
    if covered == len(past):
        return _put_together(history, artifact, covered, target, leave_out=leave_out, control=control)
    seam = past.seam(covered)
    made = seam.made
    how = (merge_user, lists, leave_out, control)
    if isinstance(made, _Made) and made.fits(artifact, how):
        return made
    made = _put_together(history, artifact, covered, target, leave_out=leave_out, control=control, how=how)
    items = made.items
    past.remember(msgspec.structs.replace(seam, made=made, made_bytes=sum(map(len, items)) + len(artifact.text)))
    return made


def _put_together(
    history: History,
    artifact: Artifact,
    covered: int,
    target: Target,
    *,
    leave_out: bool,
    control: bytes,
    how: tuple[bool, bool, bool, bytes] = (False, False, False, b""),
) -> _Made:
    """What comes in the place of the first items, made anew."""
    keep = _without_thinking if leave_out else _as_it_came
    if not artifact.elided:
        items, taken = _artifact_items(history, artifact, covered, target, keep, control)
        return _Made(artifact, how, tuple(items), taken, artifact_size(history, artifact))
    items, taken, tokens = [], 0, 0
    if artifact.base:
        items, taken = _artifact_items(history, artifact, artifact.base, target, keep, control)
        tokens = artifact_size(history, artifact)
    first = artifact.base if artifact.base else artifact.elided[0][0]
    for raw, position, size in _elided_items(history, artifact, covered):
        tokens += size
        if position < artifact.base + taken:
            continue  # merged into the summary already
        thinking = leave_out and position > first and history.entries[position].facts.thinking
        kept = _without_thinking(history, position) if thinking else raw
        items += [kept] if kept is not None else []
    return _Made(artifact, how, tuple(items), 0, tokens)


def _elided_items(history: History, artifact: Artifact, covered: int) -> Iterator[tuple[bytes, int, int]]:
    """(raw JSON, position, estimated tokens) of the items of a span in which some are elided."""
    keeps = dict(artifact.elided)
    for position in range(artifact.base, covered):
        if position in keeps:
            raw, tokens = rewritten_item(history, position, keeps[position])
        else:
            raw, tokens = history.raw(position), history.entries[position].tokens
        yield raw, position, tokens


def rewritten_item(history: History, position: int, keep: int) -> tuple[bytes, int]:
    """(raw JSON, estimated tokens) of an item whose large tool results are left out, or cut to `keep` characters at
    either end."""
    dialect, estimator = history.conversation.dialect, history.past.estimator
    raw = elide.rewritten(dialect, history.raw(position), keep, names_of_calls(history, position))
    value = loads(raw)
    assert isinstance(value, dict)
    return raw, estimator.tokens(estimator.item(dialect, [*REQUESTS[dialect].parts(value)]))


def names_of_calls(history: History, position: int) -> dict[str, str]:
    """The names of the tools whose results stand at a position, by the ids of their calls."""
    wanted = set(history.entries[position].facts.results)
    names: dict[str, str] = {}
    for earlier in range(position - 1, -1, -1):
        if not wanted:
            break
        if made := wanted.intersection(history.entries[earlier].facts.calls):
            found = elide.names_in(history.conversation.dialect, history.value(earlier))
            names.update((call, found[call]) for call in made if call in found)
            wanted -= made
    return names


def _control(history: History, artifact: Artifact, covered: int) -> bytes:
    """The cache mark on a summary of the first items: the end of what stays as it is until the next compaction."""
    marks, total, entries = history.past.marks, history.past.marks[-1], history.past.entries
    after = total - marks[covered]
    # The last mark: found without a look at every item.
    long_after = after > 0 and entries[bisect_left(marks, total) - 1].facts.long_mark
    beside = [entries[p].facts for p in artifact.retained] if marks[covered] else []
    retained = sum(facts.marks for facts in beside)
    return control_for(
        before=history.marks,
        after=after + retained,
        removed=marks[covered] - retained,
        automatic=history.conversation.field("cache_control"),
        long_after=long_after or any(facts.long_mark for facts in beside),
    )


def artifact_size(history: History, artifact: Artifact) -> int:
    """Estimated tokens of an artifact and the items retained with it."""
    estimator = history.past.estimator
    words = estimator.words(mark(artifact.text)) if artifact.text else 0
    requests, left = REQUESTS[history.conversation.dialect], artifact.sealed_tokens
    minted = 0
    for raw in artifact.items:
        value = loads(raw)
        assert isinstance(value, dict)
        if left and requests.facts(value).opaque:
            minted, left = minted + left + ITEM_OVERHEAD, 0
        else:
            minted += estimator.tokens(estimator.item(requests.NAME, [*requests.parts(value)]))
    return words + minted + sum(history.entries[p].tokens for p in artifact.retained)


def _artifact_items(
    history: History,
    artifact: Artifact,
    covered: int,
    target: Target,
    keep: Callable[[History, int], bytes | None],
    control: bytes = b"",
) -> tuple[list[bytes], int]:
    """(the artifact with what is retained beside it, how many items after the cut are merged into it)."""
    requests = REQUESTS[history.conversation.dialect]
    # Instructions from before the retained words stand before everything, those from after them after them.
    words = next(
        (i for i, p in enumerate(artifact.retained) if history.entries[p].facts.role != "system"),
        len(artifact.retained),
    )
    systems = [history.raw(p) for p in artifact.retained[:words]]
    others = artifact.retained[words:]
    after = [raw for p in others if (raw := keep(history, p)) is not None]
    if artifact.kind == "opaque":
        # First of all: Anthropic refuses its block elsewhere, and xAI reads nothing before its item.
        return [*artifact.items, *systems, *after], 0
    text = mark(artifact.text)
    if history.conversation.dialect == "messages" and systems:
        # The API of Messages wants a user message first.
        return [marked(requests.text_item("user", text), control), *systems, *after], 0
    if target.merges or history.conversation.dialect == "messages":
        merged = _merged(history, others[0] if others else covered, text)
        if merged is not None:
            merged = marked(merged, control)
            return ([*systems, merged, *after[1:]], 0) if others else ([*systems, merged], 1)
    return [*systems, marked(requests.text_item("user", text), control), *after], 0


def _merged(history: History, position: int, text: str) -> bytes | None:
    """A user item with the summary before its words, None where it can't take it."""
    dialect = history.conversation.dialect
    if history.entries[position].facts.role != "user":
        return None
    value = history.value(position)
    content = value.get("content")
    if isinstance(content, str) and content and dialect != "responses" and _lists(history.conversation):
        value = {**value, "content": [{"type": "text", "text": content}]}
    return REQUESTS[dialect].prepend_text(value, text)


def _lists(conversation: Conversation) -> bool:
    """Whether a merged message is written as a list, however the client writes it this time: clients turn texts into
    lists and back as they move their cache marks. Servers that know no marks may know no lists either."""
    return conversation.dialect == "messages" or b'"cache_control"' in conversation.raw


def _fate_of_thinking(
    history: History, artifact: Artifact, covered: int, target: Target
) -> Literal["stays", "api_drops", "leave_out"]:
    """What becomes of Anthropic thinking on models that bind it to a past that is now rewritten.

    The API is told to drop what does not match (wire contract of preserved thinking: `thinking.block_binding`):
    thinking from after the compaction still does, and the forwarded beginning keeps its bytes. A request without
    thinking has no place to say so: there the blocks are left out, whole.
    """
    if not target.binds_thinking:
        return "stays"
    past = history.past
    beside = any(past.entries[p].facts.thinking for p in artifact.retained)
    changed = artifact.base or artifact.elided[0][0] if artifact.elided else covered
    if not beside and past.thoughts[-1] == past.thoughts[changed]:
        return "stays"
    return "api_drops" if thinks(history.conversation) else "leave_out"


def _as_it_came(history: History, position: int) -> bytes | None:
    return history.raw(position)


def _without_thinking(history: History, position: int) -> bytes | None:
    """An item without thinking blocks, None where nothing else is in it."""
    if not history.entries[position].facts.thinking:
        return history.raw(position)
    return REQUESTS[history.conversation.dialect].drop_thinking(history.value(position))


def thinks(conversation: Conversation) -> bool:
    """Whether a request to Anthropic asks for thinking."""
    asked = _thinking_field(conversation)
    return asked is not None and asked.get("type") not in (None, "disabled")


def _thinking_field(conversation: Conversation) -> JsonObject | None:
    raw = conversation.field("thinking")
    value = loads(raw) if raw else None
    return value if isinstance(value, dict) else None


def _drop_mismatched(conversation: Conversation) -> bytes:
    """The `thinking` field that asks for it."""
    asked = _thinking_field(conversation) or {}
    binding = asked.get("block_binding")
    merged = {**(binding if isinstance(binding, dict) else {}), "prefix_mismatch_behavior": "drop_block"}
    return dumps({**asked, "block_binding": merged})


def forwarded(history: History, view: View, target: Target, at: int) -> tuple[bytes, ...]:
    """Raw JSON of what is forwarded of the first `at` items: what stands for the covered ones, then the others."""
    checkpoint = view.checkpoint
    if checkpoint is None:
        return tuple(history.raw(p) for p in range(at))
    covered = view.covered
    leave_out = _fate_of_thinking(history, checkpoint.artifact, covered, target) == "leave_out"
    made = _made(history, checkpoint.artifact, covered, target, leave_out=leave_out)
    keep = _without_thinking if leave_out else _as_it_came
    rest = [raw for p in range(covered + made.taken, at) if (raw := keep(history, p)) is not None]
    return (*made.items, *rest)


def asking(history: History, view: View, target: Target) -> Conversation:
    """The client's request for a call that is shown what the view forwards: thinking that does not fit its past is to
    be dropped there too."""
    conversation, checkpoint = history.conversation, view.checkpoint
    if checkpoint is None or _fate_of_thinking(history, checkpoint.artifact, view.covered, target) != "api_drops":
        return conversation
    body = conversation.replace_fields({"thinking": _drop_mismatched(conversation)})
    return REQUESTS[conversation.dialect].read(body)


def same_role_cuts(history: History) -> frozenset[int]:
    """Positions before which Anthropic's own block must not end: the first message kept has to have another role than
    the last one before it, and not `system`, for thinking after it to stay valid (its page on keeping recent turns)."""
    roles = ["user" if item.role == "tool" else item.role for item in history.facts]
    return frozenset(i for i in range(1, len(roles)) if roles[i] in ("system", roles[i - 1]))


def cuts_after_answers(history: History) -> frozenset[int]:
    """Positions before which Anthropic's block from a threshold must not end: what is sent for it must end with a
    user's message, since an answer at the end would be the beginning of another one."""
    roles = [item.role for item in history.facts]
    return frozenset(i for i in range(1, len(roles)) if roles[i - 1] not in ("user", "tool"))


def items_to_summarise(history: History, view: View, cut_at: int, retained: Sequence[int]) -> tuple[JsonObject, ...]:
    """The items a new summary must cover: those retained beside the last artifact and not any more, then those between
    it and the cut."""
    earlier = view.checkpoint.artifact.retained if view.checkpoint else ()
    gone = [p for p in earlier if p not in retained]
    return tuple(history.value(p) for p in [*gone, *range(view.covered, cut_at)])


def whole(history: History, view: View, target: Target) -> View:
    """A view in which nothing is elided: the summary alone that stands in it, or the history as it came."""
    checkpoint = view.checkpoint
    if checkpoint is None or not checkpoint.artifact.elided:
        return view
    base = checkpoint.artifact.base
    if not base:
        return plain(history)
    artifact = replace(checkpoint.artifact, binding=checkpoint.artifact.owner, elided=(), base=0)
    alone = replace(checkpoint, length=base, chain=history.chain.link(base), artifact=artifact)
    return replaced(history, alone, target)
