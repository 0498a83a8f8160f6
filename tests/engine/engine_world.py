"""A gateway, a provider and a summarizer in one process, without a socket: performs what an exchange asks for.

The provider counts and judges with the simulator's own ruler and rules; what was sent is kept to be looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from histories import ITEMS_KEY, Json, Talk
from stage import CATALOGUE, HASHER, TENANT, target

from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.compactors.summary import Options
from tidegate.context.budget import Policy
from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Checkpoint, Report, Store, StoreError
from tidegate.engine.effects import (
    Compact,
    Deliver,
    Effect,
    Find,
    Finish,
    Head,
    Made,
    Notify,
    Outcome,
    Prepare,
    Save,
    Send,
    UpstreamError,
    Work,
)
from tidegate.engine.exchange import Life, exchange
from tidegate.engine.request import Kit, Request, Target
from tidegate.overflow.classify import classify
from tidegate.overflow.window import Windows
from tidegate.simulator import chat, messages, responses, summarizer, tokens
from tidegate.simulator.context_settings import BINDING
from tidegate.simulator.profiles import PROFILES, Size, error_body
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.turn import Turn
from tidegate.simulator.world import Desk, World
from tidegate.store.memory import MemoryStore
from tidegate.wire import read
from tidegate.wire.conversation import Usage

READERS: Mapping[str, Callable[[Json, Desk], Turn]] = {
    "chat": chat.read,
    "responses": responses.read,
    "messages": messages.read,
}
PROVIDERS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}
SHORT = Options(
    prompt="Sum up in {words} words.", update_prompt="Bring the summary up to date in {words} words.", system="Sum up."
)
"""Prompts of a few tokens, so that windows of a thousand can be tested."""
TAG = re.compile(r"ART-\d+-")


def judge(dialect: str, raw: bytes, world: World, profile: str = "") -> Turn:
    """Raises `Refusal` with the first rule that the body breaks."""
    desk = Desk(world, PROFILES[profile or PROVIDERS[dialect]], betas=frozenset({BINDING}))
    return READERS[dialect](json.loads(raw), desk)


def breaks(dialect: str, raw: bytes, world: World, profile: str = "") -> str:
    """The first rule that the body breaks, empty for none."""
    try:
        judge(dialect, raw, world, profile)
    except Refusal as refusal:
        return f"{refusal.rule}: {refusal.message}"
    return ""


def ruler(dialect: str, raw: bytes) -> int:
    """Tokens of any body, lawful or not."""
    body = json.loads(raw)
    key = ITEMS_KEY[dialect]
    beside = [body.get("tools"), body.get("system"), body.get("instructions")]
    items = body[key] if isinstance(body[key], list) else [body[key]]
    return tokens.items(items) + sum(tokens.item(part) for part in beside if part)


# -- the provider ----------------------------------------------------------------------------------------------------

Answering = Callable[["Exchange", bytes], Head]


@dataclass
class Provider:
    """Refuses what is over its window, and what breaks a rule where it is strict."""

    dialect: str
    window: int | None = None
    world: World | None = None
    """Whose rules are enforced; None: a lax provider."""
    profile: str = ""
    factor: float = 1.0
    """Real tokens per token of the ruler."""

    def __call__(self, seen: Exchange, raw: bytes) -> Head:
        number = len(seen.sent) - 1
        profile = PROFILES[self.profile or PROVIDERS[self.dialect]]
        size = int(ruler(self.dialect, raw) * self.factor)
        try:
            if self.world is not None:
                judge(self.dialect, raw, self.world, self.profile)
            if self.window is not None and size > self.window:
                raise profile.overflow(Size(size, self.window), self.dialect)  # type: ignore[arg-type]
        except Refusal as refusal:
            seen.violations += [f"{refusal.rule}: {refusal.message}"] if refusal.kind != "overflow" else []
            shaped = error_body(profile, self.dialect, refusal, "req_1")  # type: ignore[arg-type]
            return Head(number, refusal.status, {}, json.dumps(shaped).encode())
        return Head(number, 200, {"x-size": str(size)})


# -- the summarizer --------------------------------------------------------------------------------------------------


@dataclass
class Summarizer:
    """Keeps facts; each summary bears a tag of its own, `ART-n-`."""

    prompts: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    words: str = ""
    """More to say in every summary."""

    def __call__(self, call: Call) -> Reply:
        body = json.loads(call.body)
        prompt, cap = _prompt(body)
        fence = summarizer.fence_in(prompt)
        assert fence is not None, "a summary call without a fence"
        self.prompts.append(prompt)
        tag = f"ART-{len(self.prompts)}-"
        self.tags.append(tag)
        facts = dict.fromkeys(re.findall(r"FACT-\d+", fence.previous + fence.transcript))
        text = f"## Goal\n{tag} Go on with the work.{self.words}\n## Critical context\n{' '.join(facts) or '(none)'}"
        assert tokens.words(text) <= cap, "this summarizer must not be cut"
        return reply_of(call.path, text)


def reply_of(path: str, text: str) -> Reply:
    bodies: dict[str, Json] = {
        "/chat/completions": {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                              "usage": {"prompt_tokens": 9, "completion_tokens": 9}},
        "/responses": {"object": "response", "status": "completed", "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]},
        "/messages": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}],
                      "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 9}},
    }  # fmt: skip
    return Reply(200, json.dumps(bodies[path]).encode(), {"content-type": "application/json"})


def _prompt(body: Json) -> tuple[str, int]:
    if "input" in body:
        return body["input"][-1]["content"][0]["text"], body["max_output_tokens"]
    return body["messages"][-1]["content"], body["max_tokens"]


# -- one exchange ----------------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    """What happened in one exchange."""

    request: Request
    sent: list[bytes] = field(default_factory=list)
    originals: list[bool] = field(default_factory=list)
    """Of each send: whether the client's own bytes were asked for."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    notices: list[Notify] = field(default_factory=list)
    saved: list[Checkpoint | Report] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    compactions: int = 0
    calls: list[Call] = field(default_factory=list)
    delivered: Head | None = None
    outcome: Outcome | None = None
    violations: list[str] = field(default_factory=list)
    error: Exception | None = None

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return [record for record in self.saved if isinstance(record, Checkpoint)]

    @property
    def answered(self) -> bool:
        return self.delivered is not None and self.delivered.refusal is None


@dataclass
class Gateway:
    """Performs effects. `shared` keeps every summary ever made by its flight key, as if all requests came at once."""

    dialect: str
    to: Target
    answer: Answering
    summarize: Callable[[Call], Reply] = field(default_factory=Summarizer)
    store: Store = field(default_factory=MemoryStore)
    kit: Kit = field(default_factory=lambda: new_kit())
    shared: dict[bytes, Made] | None = None
    find: Callable[[Find], object] | None = None
    kept: list[Checkpoint | Report] = field(default_factory=list)
    """All that was saved, in order."""
    background: bool = False
    """Compactions are prepared."""
    prepared: dict[bytes, Made] = field(default_factory=dict)
    kept_back: list[Notify] = field(default_factory=list)
    """What was told of them."""

    def serve(self, raw: bytes, tenant: bytes = TENANT, life: Callable[[Request, Kit], Life] = exchange) -> Exchange:
        conversation = self.kit.recall.read(self.dialect, raw)  # type: ignore[arg-type]
        assert conversation == read(self.dialect, raw)  # type: ignore[arg-type]
        request = Request("r1", conversation, tenant, self.to, 1000.0)
        seen = Exchange(request)
        running = life(request, self.kit)
        try:
            effect = next(running)
            while True:
                seen.effects.append(effect)
                try:
                    result = self._perform(effect, seen)
                except (StoreError, CompactionFailed, UpstreamError) as error:
                    effect = running.throw(error)
                else:
                    effect = running.send(result)
        except StopIteration:
            return seen
        except UpstreamError as error:
            seen.error = error
            return seen

    def _perform(self, effect: Effect, seen: Exchange) -> object:
        match effect:
            case Find():
                if self.find is not None:
                    return self.find(effect)
                return self.store.find(effect.tenant, effect.bucket, effect.chains)
            case Save(tenant=tenant, record=record):
                seen.saved.append(record)
                self.kept.append(record)
                if isinstance(record, Checkpoint):
                    self.store.save(record)
                else:
                    self.store.report(tenant, record)
                return None
            case Compact():
                return self._compact(effect, seen)
            case Prepare():
                return self._prepare(effect)
            case Send(body=body, add_headers=added):
                seen.sent.append(seen.request.conversation.raw if body is None else body)
                seen.originals.append(body is None)
                seen.headers.append(added)
                head = self.answer(seen, seen.sent[-1])
                seen.heads.append(head)
                return head
            case Deliver(number=number, outcome=outcome):
                assert seen.delivered is None, "two answers for one request"
                seen.delivered, seen.outcome = seen.heads[number], outcome
                if seen.delivered.refusal is not None:
                    return Finish()
                return Finish(Usage(int(seen.delivered.headers.get("x-size", 0))), "stop")
            case Notify():
                seen.notices.append(effect)
                return None

    def _prepare(self, effect: Prepare) -> bool:
        """In no time, or not at all."""
        if not self.background:
            return False
        try:
            self.prepared[effect.key] = self._run(effect.work(), [])
        except CompactionFailed as error:
            self.kept_back.append(effect.ended(error))
        else:
            self.kept_back.append(effect.ended(self.prepared[effect.key]))
        return True

    def _compact(self, effect: Compact, seen: Exchange) -> Made:
        seen.compactions += 1
        if effect.key in self.prepared:
            return self.prepared[effect.key]
        if self.shared is not None and effect.key in self.shared:
            return self.shared[effect.key]
        made = self._run(effect.work(), seen.calls)
        if self.shared is not None:
            self.shared[effect.key] = made
        return made

    def _run(self, work: Work, calls: list[Call]) -> Made:
        try:
            call = next(work)
            while True:
                calls.append(call)
                call = work.send(self.summarize(call))
        except StopIteration as end:
            made: Made = end.value
            return made


def new_kit(policy: Policy | None = None, hasher: Any = HASHER, **changes: Any) -> Kit:
    return Kit(
        hasher=hasher,
        ledger=Ledger(hasher),
        windows=Windows(),
        classify=lambda provider, refusal, sent: classify(refusal, CATALOGUE.rules(provider), sent=sent),
        policy=policy or Policy(),
        **{"options": lambda target, dialect: SHORT, **changes},
    )


def target_of(dialect: str, window: int | None, **changes: Any) -> Target:
    return target(window, **{"provider": PROVIDERS[dialect], **changes})


# -- what was sent, read back ----------------------------------------------------------------------------------------


def items_of(dialect: str, raw: bytes) -> list[Json]:
    found = json.loads(raw)[ITEMS_KEY[dialect]]
    return found if isinstance(found, list) else [{"role": "user", "content": found}]


def fields_of(dialect: str, raw: bytes) -> Json:
    return {name: value for name, value in json.loads(raw).items() if name != ITEMS_KEY[dialect]}


def plainly(item: Json) -> Json:
    """An item without cache marks, a string content as one text part: another reading of what makes items equal."""

    def bare(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found = {key: part for key, part in value.items() if key != "cache_control"}
        if str(found.get("type")).endswith("tool_result") and "content" in found:
            found["content"] = listed(found["content"], "text")
        return found

    def listed(content: Any, kind: str) -> Any:
        if isinstance(content, str):
            return [{"type": kind, "text": content}]
        return [bare(part) for part in content] if isinstance(content, list) else content

    found = bare(item)
    if "content" in found:
        kind = "text"
        if item.get("type") == "message" or "type" not in item:
            kind = {"assistant": "output_text"}.get(str(item.get("role")), "input_text")
        found["content"] = (
            [_one_name(part, kind) for part in parts]
            if isinstance(parts := listed(found["content"], "text"), list)
            else parts
        )
    return found


def _one_name(part: Any, kind: str) -> Any:
    return {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in ("text", kind) else part


def same(one: Sequence[Json], other: Sequence[Json]) -> bool:
    return [plainly(item) for item in one] == [plainly(item) for item in other]


def artifact_of(items: Sequence[Json]) -> str:
    """The tag of the first summary that stands in a sent body, empty for none."""
    for item in items:
        if item.get("role") == "user":
            text = json.dumps(item, ensure_ascii=False)
            if "<conversation_summary" in text:
                found = TAG.search(text)
                assert found is not None
                return found[0]
    return ""


def without_summary(item: Json) -> Json | None:
    """A user item that a summary was merged into, as it was; None where the summary is all of it."""
    content = item["content"]
    close = "</conversation_summary>"
    if isinstance(content, str):
        _, _, rest = content.partition(close)
        return {**item, "content": rest.removeprefix("\n\n")} if rest else None
    first = content[0]["text"]
    assert first.startswith("<conversation_summary"), "the summary stands first"
    _, _, rest = first.partition(close)
    if rest:
        first_part = {**content[0], "text": rest.removeprefix("\n\n")}
        return {**item, "content": [first_part, *content[1:]]}
    return {**item, "content": content[1:]} if content[1:] else None


def has_summary(item: Json) -> bool:
    return item.get("role") == "user" and "<conversation_summary by=" in json.dumps(item.get("content"))[:200].replace(
        '\\"', '"'
    )


def human(dialect: str, item: Json) -> bool:
    """Whether an item holds words or media of the user's own."""
    if item.get("role") != "user" or not item.get("content"):
        return False
    if dialect != "messages" or isinstance(item["content"], str):
        return True
    return any(not block["type"].endswith("tool_result") for block in item["content"])


def bare(item: Json) -> Json | None:
    """A message without thinking, None where nothing else is in it."""
    if not isinstance(item.get("content"), list):
        return item
    kept = [block for block in item["content"] if block.get("type") not in ("thinking", "redacted_thinking")]
    return {**item, "content": kept} if kept else None


def keeps(talk: Talk, sent: bytes, to: Target) -> None:
    """Looks at a rewritten body with the eyes of somebody who has read the promises only."""
    dialect, raw = talk.dialect, talk.body()
    assert fields_of(dialect, sent) == fields_of(dialect, raw) or to.binds_thinking
    before, after = read(dialect, raw), read(dialect, sent)  # type: ignore[arg-type]
    for name, value in before.fields.items():
        if name != before.items_key and not (name == "thinking" and to.binds_thinking):
            assert after.fields[name] == value, "fields keep their bytes"
    lead = before.lead
    assert [item.raw for item in after.items[:lead]] == [item.raw for item in before.items[:lead]]
    old = [item.raw for item in before.items[lead:]]
    new = [item.raw for item in after.items[lead:]]
    assert new, "a request needs at least one item"

    summaries = [i for i, one in enumerate(new) if has_summary(json.loads(one))]
    assert len(summaries) == 1, "one summary stands for the past"
    kept: list[tuple[bytes, bool]] = [(one, False) for one in new]
    unmerged = without_summary(json.loads(new[summaries[0]]))
    kept[summaries[0] : summaries[0] + 1] = [(json.dumps(unmerged).encode(), True)] if unmerged else []

    # In the order they had, each the same bytes but for the one that the summary was merged into.
    at = len(old)
    for one, merged in reversed(kept):
        at -= 1
        while at >= 0 and not equal(old[at], one, merged=merged, binds=to.binds_thinking):
            at -= 1
        assert at >= 0, f"not the client's, or out of order: {one[:200]!r}"
    last = json.loads(kept[-1][0])
    assert equal(old[-1], kept[-1][0], merged=True, binds=to.binds_thinking) or bare(json.loads(old[-1])) is None, last
    words = [one for one in old if human(dialect, json.loads(one))]
    if words:
        assert any(equal(words[-1], one, merged=True, binds=False) for one, _ in kept), "the newest words are there"
    assert len(kept) < len(old)


def equal(old: bytes, new: bytes, *, merged: bool, binds: bool) -> bool:
    if old == new:
        return True
    one, other = json.loads(old), json.loads(new)
    if binds and bare(one) == other:
        return True
    return merged and plainly(one) == plainly(other)
