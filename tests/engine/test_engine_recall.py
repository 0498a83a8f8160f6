"""What is kept from turn to turn changes no view: a long session is shown as one that was never seen."""

from __future__ import annotations

import json
from typing import Any

from engine_world import new_kit, target_of
from hypothesis import given, settings
from hypothesis import strategies as st
from stage import HASHER, TENANT
from test_engine_view import KEYS, call, result, says, system, user

from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.engine.request import Target
from tidegate.engine.view import History, View, applied, plain, read_history
from tidegate.wire import read

MARK = {"type": "ephemeral"}
TEXT = {"type": "text", "text": "listed"}


ROUNDS: dict[str, list[list[dict[str, Any]]]] = {
    "chat": [
        [user("words")], [user([TEXT])], [user([{**TEXT, "cache_control": MARK}])], [says("an answer")],
        [system("a rule")],
        [call("c1"), result("c1")], [call("c2")], [result("c1")],
    ],
    "messages": [
        [user("words")], [user([{**TEXT, "cache_control": MARK}])], [says("an answer")],
        [says([{"type": "thinking", "thinking": "x", "signature": "s"}, TEXT])],
        [says([{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]),
         user([{"type": "tool_result", "tool_use_id": "t1", "content": "r"}])],
        [user([{"type": "tool_result", "tool_use_id": "t1", "content": "r"}, TEXT])],
    ],
    "responses": [
        [user("words")], [says("an answer")], [{"type": "reasoning", "id": "rs_1", "summary": []}, says("thought")],
        [{"type": "function_call", "call_id": "f1", "name": "read", "arguments": "{}"},
         {"type": "function_call_output", "call_id": "f1", "output": "r"}],
        [{"type": "function_call_output", "call_id": "f1", "output": "again"}],
    ],
}  # fmt: skip


def view(history: History, length: int, artifact: Artifact, to: Target, dialect: str) -> View | None:
    point = Checkpoint(
        tenant=TENANT, bucket=history.chain.bucket, length=length, chain=history.chain.links[length], head=history.head,
        dialect=dialect, artifact=artifact, provider="openai", endpoint="http://up/v1", model="m", strategy="summary",  # type: ignore[arg-type]
        tokens_before=0, tokens_after=0,
    )  # fmt: skip
    return applied(history, point, to)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_session_is_shown_as_if_it_had_never_been_seen(data: st.DataObject) -> None:
    dialect = data.draw(st.sampled_from(sorted(KEYS)))
    kit = new_kit()
    rounds = st.lists(st.sampled_from(ROUNDS[dialect]), min_size=1, max_size=6)
    lead = [system("You are an agent. " * 20)] if dialect == "chat" else [user("Please help. " * 20)]
    items = [*lead, user("begin"), *(item for part in data.draw(rounds) for item in part)]
    for _ in range(data.draw(st.integers(2, 6))):
        fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if data.draw(st.booleans()) else {}
        raw = json.dumps({"model": "m", KEYS[dialect]: items, **fields}).encode()
        known = read_history(kit.recall.read(dialect, raw), TENANT, kit.hasher, kit.ledger)
        fresh = read_history(read(dialect, raw), TENANT, HASHER, Ledger(HASHER))  # type: ignore[arg-type]
        assert plain(known).tokens == plain(fresh).tokens
        to = target_of(dialect, 8000, merge_user=data.draw(st.booleans()), binds_thinking=data.draw(st.booleans()))
        for _ in range(3):
            length = data.draw(st.integers(1, max(1, len(fresh.past) - 1)))
            retained = data.draw(
                st.sets(st.integers(0, length - 1), max_size=2).map(lambda found: tuple(sorted(found)))
            )
            artifact = Artifact("text", text=data.draw(st.sampled_from(["One.", "Two."])), retained=retained)
            one, other = (view(history, length, artifact, to, dialect) for history in (known, fresh))
            assert told(one) == told(other)
        more = [item for part in data.draw(rounds) for item in part]
        items = items[: max(len(lead) + 1, len(items) - data.draw(st.integers(0, 2)))] + more


def told(view: View | None) -> object:
    """All that a view says."""
    return view and (
        view.body,
        view.covered,
        view.tokens,
        view.artifact_tokens,
        dict(view.add_headers),
        view.checkpoint,
    )
