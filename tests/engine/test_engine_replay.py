"""A summary stands for nothing but the very items it was made of, and a growing session keeps its forwarded beginning.

Each summary bears a tag; what it replaced is remembered here, and compared with every body that the tag turns up in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Any

import pytest
from engine_world import (
    Exchange,
    Gateway,
    Provider,
    Summarizer,
    artifact_of,
    items_of,
    keeps,
    new_kit,
    plainly,
    ruler,
    same,
    target_of,
)
from histories import Json, Talk, examples, finished, lawful, moves, talk, wild
from hypothesis import event, given
from hypothesis import strategies as st
from stage import HASHER, TENANT

from tidegate.context.fingerprint import Hasher
from tidegate.engine.checkpoint import Checkpoint
from tidegate.engine.exchange import counted
from tidegate.simulator import messages_thinking
from tidegate.store.memory import MemoryStore
from tidegate.store.null import NullStore
from tidegate.wire import read

OTHER = HASHER.tenant(b"sk-other")
WINDOW = 1600

# -- never a wrong history -------------------------------------------------------------------------------------------


@dataclass
class Known:
    """What each summary replaced, when it was first seen."""

    dialect: str
    made: dict[str, tuple[bytes, int, list[Json]]] = field(default_factory=dict)
    """By tag: tenant, how many items, and those items, plainly."""

    def look(self, seen: Exchange, tenant: bytes, body: Sequence[Json]) -> None:
        lead = seen.request.conversation.lead
        items = body[lead:]
        for record in seen.checkpoints:
            past = [plainly(item) for item in items[: record.length]]
            tag = artifact_of([{"role": "user", "content": "<conversation_summary" + record.artifact.text}])
            assert self.made.setdefault(tag, (tenant, record.length, past)) == (tenant, record.length, past)
        for sent, original in zip(seen.sent, seen.originals, strict=True):
            tag = artifact_of(items_of(self.dialect, sent)[lead:])
            assert bool(tag) != original
            if tag in self.made:
                theirs, length, past = self.made[tag]
                assert theirs == tenant
                assert [plainly(item) for item in items[:length]] == past
                new = items_of(self.dialect, sent)
                rest = list(items[length:])
                assert same(new[len(new) - len(rest) + 1 :], rest[1:])


CHANGES = st.one_of(
    st.tuples(st.just("grow"), moves(("human", "say", "round", "round", "again"), 1, 5)),
    st.tuples(st.just("grow"), moves(("human", "say", "round", "round", "odd", "system"), 1, 5)),
    st.tuples(st.sampled_from(["edit", "drop", "swap", "rewind", "older"]), st.floats(0, 0.999)),
    st.tuples(st.sampled_from(["system", "tools", "tenant", "restyle", "model"]), st.integers(0, 63)),
)


@dataclass
class Client:
    """A talk, what it once was, and whose it is."""

    talk: Talk
    tenant: bytes = TENANT
    past: list[list[Json]] = field(default_factory=list)

    def change(self, kind: str, how: Any) -> None:
        items = self.talk.writer.items
        self.past.append(list(items))
        at = int(how * len(items)) if isinstance(how, float) else 0
        match kind:
            case "grow":
                self.talk.writer.write(how)
            case "edit":
                items[at] = json.loads(json.dumps(items[at]).replace("zebra", "Zebra", 1).replace(" no ", " some ", 1))
            case "drop":
                del items[at]
            case "swap":
                items[at], items[-1] = items[-1], items[at]
            case "rewind":
                del items[at + 1 :]
            case "older":
                self.talk.writer.items = list(self.past[int(how * len(self.past))])
            case "system":
                words = f"Other orders {how}."
                if self.talk.dialect == "messages":
                    self.talk.fields["system"] = words
                else:
                    self.talk.lead = [{"role": "system", "content": words}] * (how % 3)
            case "tools":
                self.talk.fields["tools"] = [{"type": "function", "name": f"tool{how}"}]
            case "tenant":
                self.tenant = OTHER if self.tenant == TENANT else TENANT
            case "model":
                self.talk.writer.model = f"m{how % 2}"
            case "restyle":
                self.talk.style = how
                self.talk.moves_marks = self.talk.dialect != "responses" and how % 2 == 1
                self.talk.writer.items = [restyled(item, self.talk.dialect, how) for item in items]
        if not self.talk.writer.items:
            self.talk.writer.human(1)


def restyled(item: Json, dialect: str, form: int) -> Json:
    """The same item as another version of the client might write it: key order, a text or its one part."""
    found = dict(reversed(item.items())) if form % 2 else dict(item)
    content = found.get("content")
    role = found.get("role")
    if role is None or (dialect == "responses" and role == "assistant"):
        return found
    kind = "input_text" if dialect == "responses" else "text"
    if isinstance(content, str) and form % 3 == 1:
        found["content"] = [{"text": content, "type": kind}]
    elif isinstance(content, list) and form % 3 == 2 and len(content) == 1 and set(content[0]) == {"type", "text"}:
        found["content"] = content[0]["text"]
    return found


@examples(100)
@given(wild(), st.lists(CHANGES, min_size=1, max_size=10))
def test_a_summary_stands_for_the_items_it_was_made_of_only(made: Talk, changes: list[tuple[str, Any]]) -> None:
    gateway = Gateway(made.dialect, target_of(made.dialect, WINDOW), Provider(made.dialect, WINDOW), shared={})
    known, client = Known(made.dialect), Client(made)
    for kind, how in [("grow", ()), *changes]:
        client.change(kind, how)
        seen = gateway.serve(made.body(), client.tenant)
        known.look(seen, client.tenant, made.sent_items())
        for sent, original in zip(seen.sent, seen.originals, strict=True):
            if not original:
                keeps(made, sent, gateway.to)
        assert seen.outcome is not None
        if seen.checkpoints:
            again = gateway.serve(made.body(), client.tenant, counted)
            assert again.sent == seen.sent[-1:], "what was just paid for is used at once"
        event(seen.outcome.action)


@examples(60)
@given(lawful(), st.integers(0, 63))
def test_the_same_history_in_other_words_of_json_is_known_again(made: Talk, how: int) -> None:
    window = max(600, ruler(made.dialect, made.body()) * 2 // 3)
    gateway = Gateway(made.dialect, target_of(made.dialect, window), Provider(made.dialect))
    first = gateway.serve(made.body())
    if not first.checkpoints:
        return
    client = Client(made)
    client.change("restyle", how)
    client.change("system", how)
    client.change("grow", [("round", 0, 0)])
    seen = gateway.serve(made.body(), life=counted)
    assert seen.outcome is not None
    assert seen.outcome.checkpoint == first.checkpoints[0].id


def grown(dialect: str, turns: int = 12) -> Talk:
    return finished(talk(dialect, 4), [("human", 1, 0), *[("round", 2, 2)] * turns])


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_each_change_of_the_past_is_a_history_of_its_own(dialect: str) -> None:
    made = grown(dialect)
    gateway = Gateway(dialect, target_of(dialect, WINDOW), Provider(dialect))
    (point,) = gateway.serve(made.body()).checkpoints
    whole = made.writer.items

    def action(items: list[Json], tenant: bytes = TENANT) -> str:
        made.writer.items = items
        seen = gateway.serve(made.body(), tenant, counted)
        assert seen.outcome is not None
        return seen.outcome.action

    assert action(whole) == "replayed"
    for at in range(point.length):
        edited = json.loads(json.dumps(whole[at]).replace("zebra", "Zebra", 1))
        if edited == whole[at]:
            continue
        assert action([*whole[:at], edited, *whole[at + 1 :]]) == "relayed"
        assert action([*whole[:at], *whole[at + 1 :]]) == "relayed"
    assert action(whole, OTHER) == "relayed"
    assert action(whole) == "replayed"


def test_a_rewind_to_an_older_turn_needs_no_second_summary() -> None:
    made = grown("chat")
    gateway = Gateway("chat", target_of("chat", WINDOW), Provider("chat"))
    whole = list(made.writer.items)
    made.writer.human(1)
    assert gateway.serve(made.body()).compactions == 1
    made.writer.items = whole
    seen = gateway.serve(made.body())
    assert seen.outcome is not None
    assert (seen.outcome.action, seen.compactions) == ("replayed", 0)
    keeps(made, seen.sent[0], gateway.to)


def test_one_span_is_summarised_apart_for_other_newest_words() -> None:
    # Two requests at once, the one with a further message of the user: the other must keep the words before it.
    made = grown("chat")
    gateway = Gateway("chat", target_of("chat", WINDOW), Provider("chat"), store=NullStore(), shared={})
    whole = list(made.writer.items)
    for items in ([*whole, {"role": "user", "content": "go on"}], whole):
        made.writer.items = items
        keeps(made, gateway.serve(made.body()).sent[0], gateway.to)


def test_another_api_is_another_history() -> None:
    words = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "all work " * 200} for n in range(9)]
    store = MemoryStore()
    chat, messages = talk("chat", 0), talk("messages", 0, thinking="")
    chat.writer.items = messages.writer.items = words
    first = Gateway("chat", target_of("chat", 4000), Provider("chat"), store=store).serve(chat.body())
    assert first.checkpoints
    other = Gateway("messages", target_of("messages", 40_000), Provider("messages"), store=store)
    assert other.serve(messages.body()).originals == [True]


# -- replay is deterministic -----------------------------------------------------------------------------------------


@examples(60)
@given(lawful())
def test_any_replica_with_key_and_store_sends_the_same_bytes(made: Talk) -> None:
    window = max(600, ruler(made.dialect, made.body()) * 2 // 3)
    store, to = MemoryStore(), target_of(made.dialect, window)
    first = Gateway(made.dialect, to, Provider(made.dialect), store=store).serve(made.body())
    for _ in range(2):
        replica = Gateway(made.dialect, to, Provider(made.dialect), store=store)
        assert replica.serve(made.body(), life=counted).sent == first.sent[-1:]
    another = new_kit(hasher=Hasher(b"another key, thirty-two bytes !!"))
    stranger = Gateway(made.dialect, to, Provider(made.dialect), store=store, kit=another)
    assert stranger.serve(made.body(), life=counted).originals == [True]


@examples(60)
@given(wild())
def test_what_is_not_changed_is_the_clients_bytes(made: Talk) -> None:
    raw = made.body()
    conversation = read(made.dialect, raw)  # type: ignore[arg-type]
    assert conversation.replace_items((), keep_from=conversation.lead) == raw
    assert conversation.replace_fields({}) == raw
    seen = Gateway(made.dialect, target_of(made.dialect, 1_000_000), Provider(made.dialect)).serve(raw)
    assert (seen.originals, seen.sent) == ([True], [raw])


# -- growing sessions ------------------------------------------------------------------------------------------------

THRESHOLD = 0.85
FACT = re.compile(r"FACT-(\d+)")


@dataclass
class Session:
    """An agent at work: each turn sends all there is, and hears what the provider made of what was sent."""

    made: Talk
    gateway: Gateway
    window: int
    sent: list[tuple[bytes, bool]] = field(default_factory=list)
    """Each turn's answered body, and whether a compaction came before it."""
    facts: int = 0

    def turn(self) -> Exchange:
        seen = self.gateway.serve(self.made.body())
        assert seen.answered
        assert seen.violations == []
        self.sent.append((seen.sent[-1], seen.compactions > 0))
        forwarded = seen.sent[-1].decode()
        assert {int(n) for n in FACT.findall(forwarded)} == set(range(self.facts)), "no fact is forgotten"
        if messages_thinking.preserves(self.made.writer.model, self.made.world):
            body = json.loads(forwarded)
            self.made.writer.bound = lambda items: messages_thinking.prefix_hash(body, body["messages"])
        return seen

    def plant(self) -> None:
        """A fact in the newest item that holds words."""
        writer = self.made.writer
        text = json.dumps(writer.items[-1])
        at = text.rindex("zebra")
        writer.items[-1] = json.loads(f"{text[:at]}FACT-{self.facts} {text[at:]}")
        self.facts += 1

    def run(self, steps: Sequence[tuple[str, int, int]]) -> None:
        writer = self.made.writer
        writer.human(1)
        self.plant()
        self.turn()
        for kind, size, form in steps:
            if kind == "round":
                writer.round(size, form)
            else:
                writer.say(size, form)
                writer.human(size, 0)
            self.plant()
            self.turn()

    def check(self) -> None:
        dialect = self.made.dialect
        plain = not self.made.moves_marks
        for (before, _), (after, compacted) in pairwise(self.sent):
            if compacted:
                continue
            old, new = items_of(dialect, before), items_of(dialect, after)
            assert len(new) > len(old)
            if plain:
                assert raws(dialect, after)[: len(old)] == raws(dialect, before), "the beginning keeps its bytes"
            else:
                assert same(new[: len(old)], old), "the beginning stays but for its cache marks"
        summarizer = self.gateway.summarize
        assert isinstance(summarizer, Summarizer)
        for tag, prompt in zip(summarizer.tags, summarizer.prompts[1:], strict=False):
            assert tag in prompt, "the summary before is carried forward"


def raws(dialect: str, body: bytes) -> list[bytes]:
    return [item.raw for item in read(dialect, body).items]  # type: ignore[arg-type]


def calls_allowed(session: Session, factor: float) -> int:
    points = [record for record in session.gateway.kept if isinstance(record, Checkpoint)]
    new = ruler(session.made.dialect, session.made.body()) * factor
    after = max((point.tokens_after for point in points), default=0)
    return ceil(new / (session.window * THRESHOLD - after)) + 1


STEP = st.tuples(st.sampled_from(["round", "round", "say"]), st.integers(0, 2), st.sampled_from([0, 1, 2, 3, 5, 8, 9]))
SHAPES = st.one_of(
    st.lists(STEP, min_size=25, max_size=45),
    st.lists(STEP.map(lambda step: ("round", *step[1:])), min_size=25, max_size=45),
)
"""A human message per step, or one and then only tool calls."""


@pytest.mark.parametrize(
    ("dialect", "model", "to"),
    [
        ("chat", None, {}),
        ("chat", None, {"merge_user": True}),
        ("responses", None, {}),
        ("messages", None, {}),
        ("messages", "claude-opus-5-5", {"binds_thinking": True}),
    ],
    ids=["chat", "strict template", "responses", "messages", "bound thinking"],
)
def test_growing_sessions(dialect: str, model: str | None, to: dict[str, bool]) -> None:
    @examples(12)
    @given(SHAPES, st.integers(0, 200), st.sampled_from([0.8, 1.0, 1.5]))
    def holds(steps: list[tuple[str, int, int]], form: int, factor: float) -> None:
        made = talk(dialect, form, model=model)
        profile = ""
        if "merge_user" in to:
            made.lead, profile = made.lead[:1], "llamacpp"
        window = 2400
        provider = Provider(dialect, window, made.world, profile, factor)
        session = Session(made, Gateway(dialect, target_of(dialect, window, **to), provider), window)
        session.run(steps)
        session.check()
        assert isinstance(session.gateway.summarize, Summarizer)
        assert len(session.gateway.summarize.prompts) <= calls_allowed(session, factor)

    holds()
