"""Whatever a session does: what was sealed goes to its owner and to nobody else, byte for byte; what the client brought
along is never touched."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from engine_world import Exchange, Gateway, Summarizer, items_of, new_kit, ruler, target_of
from histories import Json, examples, finished, lawful, talk
from hypothesis import event, given
from hypothesis import strategies as st

from tidegate.compactors.strategy import Call, Reply
from tidegate.engine.effects import Head
from tidegate.engine.native import binding_of
from tidegate.engine.request import Target
from tidegate.engine.router import Means, Wanted

NATIVE = {"responses": ("openai", "openai-trigger", "summary"), "messages": ("anthropic", "summary")}
MEANS = Means(on_demand="compact-2026-09-04", ways=("on-demand",))
AT_A_THRESHOLD = Means(threshold="compact-2026-01-12", ways=("threshold",), least_trigger=1)
EDIT = b'"compact_20260112"'
FIRST = [("human", 1, 0), *[("round", 2, 2)] * 20]


def targets(dialect: str, window: int, means: Means = MEANS, *, elides: bool = False) -> list[Target]:
    """Owners that differ by one thing each."""
    names = ("elide", *NATIVE[dialect]) if elides else NATIVE[dialect]
    one = target_of(dialect, window, wanted=Wanted(names, listed=NATIVE[dialect]), means=means)
    return [one, replace(one, model="n"), replace(one, endpoint="http://else/v1"), replace(one, provider="azure")]


@dataclass
class Minter:
    """Providers that compact: each item names its owner. Fails as often as it is told to."""

    dialect: str
    to: Target
    fails: list[bool] = field(default_factory=list)
    minted: dict[bytes, str] = field(default_factory=dict)
    """Raw JSON of each sealed item, by whom it may be read."""
    text: Summarizer = field(default_factory=Summarizer)

    def __call__(self, call: Call) -> Reply:
        body = json.loads(call.body)
        self.read_by_its_owner(call.body)
        trigger = call.path == "/responses" and "compaction_trigger" in json.dumps(body["input"][-1])
        alone = b'"pause_after_compaction"' in call.body
        if not (trigger or call.path == "/responses/compact" or "compaction" in body or alone):
            return self.text(call)
        if self.fails and self.fails.pop(0):
            return Reply(500, b'{"error": {"message": "no"}}')
        return self._answer(call, trigger)

    def _answer(self, call: Call, trigger: bool) -> Reply:
        number = len(self.minted)
        if self.dialect == "messages":
            block = {"type": "compaction", "content": f"Sealed {number}.", "signature": f"EuYB{number}"}
            if self.to.means.threshold:
                block = {"type": "compaction", "content": f"Sealed at a threshold, {number}."}
            answer: Json = {"type": "message", "content": [block], "stop_reason": "compaction"}
            self.minted[json.dumps(block).encode()] = binding_of(self.to, "messages")
            return Reply(200, json.dumps(answer).encode())
        item = {"type": "compaction", "id": f"cmp_{number}", "encrypted_content": f"gAAA-{number}-{self.to.model}"}
        self.minted[json.dumps(item).encode()] = binding_of(self.to, "responses")
        if not trigger:
            return Reply(200, json.dumps({"object": "response.compaction", "output": [item]}).encode())
        done = {"type": "response.output_item.done", "item": item}
        end = {"type": "response.completed", "response": {"status": "completed", "output": []}}
        return Reply(200, b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in (done, end)))

    def read_by_its_owner(self, raw: bytes) -> None:
        """What is sealed in a body is whole, and readable where it goes."""
        marks = (b"gAAA-", b"EuYB", b"Sealed at a threshold")
        expected = sum(raw.count(mark) for mark in marks)
        assert (marks[2] in raw) <= (raw.count(EDIT) == 1), "neither of header and edit goes without the other"
        here = binding_of(self.to, self.dialect)  # type: ignore[arg-type]
        found = sum(raw.count(item) for item, owner in self.minted.items() if owner == here)
        assert found == expected, "a sealed item was changed, or is another's"
        assert expected <= 1


@examples(60)
@given(
    st.sampled_from([("responses", MEANS), ("messages", MEANS), ("messages", AT_A_THRESHOLD)]),
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from(["", "stale", "rule"])), min_size=4, max_size=12
    ),
    st.lists(st.booleans(), max_size=12),
    st.integers(0, 60),
    st.booleans(),
)
def test_what_is_sealed_goes_to_its_owner_whole_or_not_at_all(
    kind: tuple[str, Means], turns: list[tuple[int, bool, str]], fails: list[bool], form: int, elides: bool
) -> None:
    dialect, means = kind
    made = finished(talk(dialect, form), FIRST)
    window = max(900, ruler(dialect, made.body()))
    choices = targets(dialect, window, means, elides=elides)
    minter = Minter(dialect, choices[0], fails)
    moods: list[str] = []

    def answer(seen: Exchange, raw: bytes) -> Head:
        minter.read_by_its_owner(raw)
        assert (EDIT in raw) == (b"Sealed at a threshold" in raw)
        number = len(seen.sent) - 1
        if any(item in raw for item in minter.minted) and moods and (mood := moods.pop()):
            code = "invalid_encrypted_content" if mood == "stale" else None
            told: Json = {"message": "The item is not what it should be.", "code": code}
            return Head(number, 400, {}, json.dumps({"error": told}).encode())
        return Head(number, 200, {"x-size": str(ruler(dialect, raw))})

    gateway = Gateway(dialect, choices[0], answer, minter, kit=new_kit())
    for which, goes_on, mood in turns:
        gateway.to = minter.to = choices[which]
        moods[:] = [mood]
        seen = gateway.serve(made.body())
        assert seen.answered
        assert len(seen.sent) <= 3
        assert seen.compactions <= 2
        for checkpoint in seen.checkpoints:
            assert (checkpoint.artifact.kind == "opaque") == bool(checkpoint.artifact.binding)
        event(seen.outcome.strategy if seen.outcome and seen.outcome.strategy else "as it came")
        made.writer.round(2, 0)
        if goes_on:
            made.writer.round(2, 2)


CARRIED = {
    "responses": {"type": "compaction", "id": "cmp_own", "encrypted_content": "gAAAown"},
    "messages": {"role": "assistant", "content": [{"type": "compaction", "content": "Mine.", "signature": "EuYBown"}]},
}


@examples(60)
@given(st.sampled_from([*NATIVE]), st.data(), st.integers(0, 8))
def test_what_the_client_brought_along_is_never_touched(dialect: str, data: st.DataObject, place: int) -> None:
    made = data.draw(lawful(dialect))
    body: dict[str, Any] = json.loads(made.body())
    key = "input" if dialect == "responses" else "messages"
    items = items_of(dialect, made.body())
    body[key] = [*items[:place], CARRIED[dialect], *items[place:]]
    raw = json.dumps(body).encode()
    window = max(300, ruler(dialect, raw) // 2)
    minter = Minter(dialect, targets(dialect, window)[0])
    gateway = Gateway(dialect, minter.to, lambda seen, sent: Head(len(seen.sent) - 1, 200, {"x-size": "9"}), minter)
    seen = gateway.serve(raw)
    assert (seen.sent, seen.originals) == ([raw], [True])
    assert not minter.minted
