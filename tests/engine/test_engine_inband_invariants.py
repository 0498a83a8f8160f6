"""Whatever a history is: a request that asks for a compaction within it differs by the field alone, what the client
brought is never rewritten, nothing goes out more than twice; and a chat history maps to a lawful one or not at all."""

from __future__ import annotations

import json
from typing import Any

from engine_world import Exchange, Gateway, breaks, new_kit, target_of
from histories import Json, Talk, examples, lawful, talk
from hypothesis import event, given
from hypothesis import strategies as st

from tidegate.compactors.openai_inband import FIELD, pruned
from tidegate.engine.effects import Head, UpstreamError
from tidegate.engine.router import Means, Wanted
from tidegate.wire import read
from tidegate.wire.bridge import Unmapped, responses_body

WAYS = ("openai-inband", "summary")
TO = target_of("responses", 4000, wanted=Wanted(WAYS, listed=WAYS), means=Means(inband=True))
REFUSALS: list[Any] = [
    (400, {"error": {"message": f"Unknown parameter: '{FIELD}'.", "code": "unknown_parameter", "param": FIELD}}),
    (500, {"error": {"message": "Sorry.", "type": "server_error"}}),
    (429, {"error": {"message": "Too fast.", "code": "rate_limit_exceeded"}}),
    (400, {"error": {"message": "Invalid value.", "param": "tools[0].name", "code": "invalid_value"}}),
    None,
]


class Provider:
    """Refuses what asks for a compaction, as it is told to; answers all else."""

    def __init__(self, refusal: Any) -> None:
        self.refusal = refusal

    def __call__(self, seen: Exchange, raw: bytes) -> Head:
        number = len(seen.heads)
        if FIELD.encode() not in raw or self.refusal == "answered":
            return Head(number, 200, {"x-size": "100"})
        if self.refusal is None:
            raise UpstreamError("gone")
        status, body = self.refusal
        return Head(number, status, {}, json.dumps(body).encode())


def served(made: Talk, refusal: Any, *extra: Json, **fields: Any) -> tuple[bytes, Exchange]:
    made.fields.update(fields)
    raw = made.body([*made.writer.items[:1], *extra, *made.writer.items[1:]])
    house = Gateway("responses", TO, Provider(refusal), kit=new_kit(inband_for_all=True))
    return raw, house.serve(raw)


@examples(60)
@given(lawful("responses"), st.sampled_from([*REFUSALS, "answered"]))
def test_nothing_but_the_field_is_added(made: Talk, refusal: Any) -> None:
    raw, seen = served(made, refusal)
    asked = [body for body in seen.sent if FIELD.encode() in body]
    event(f"asked {len(asked)} times")
    assert len(asked) <= 1
    for body in asked:
        given_, sent = json.loads(raw), json.loads(body)
        assert sent.pop(FIELD)[0]["type"] == "compaction"
        assert sent == given_
    if asked:
        assert len(seen.sent) <= 2
        assert seen.answered or refusal in (REFUSALS[2], None)


SEALED: Json = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA\\u0042"}


@examples(60)
@given(lawful("responses"), st.sampled_from([*REFUSALS, "answered"]), st.integers(0, 12))
def test_what_the_client_brought_is_never_rewritten(made: Talk, refusal: Any, place: int) -> None:
    items = list(made.writer.items)
    items.insert(min(place, len(items)), SEALED)
    raw = made.body(items)
    house = Gateway("responses", TO, Provider(refusal), kit=new_kit())
    seen = house.serve(raw)
    sealed = next(item.raw for item in read("responses", raw).items if b'"cmp_1"' in item.raw)
    kept = [item.raw for item in read("responses", raw).items]
    for body in seen.sent:
        sent = [item.raw for item in read("responses", body).items]
        assert sealed in sent
        assert [one for one in kept if one in sent] == sent  # left out or as it was, in order
        after = kept[kept.index(sealed) :]
        assert sent[len(sent) - len(after) :] == after
    assert len(seen.sent) <= 2


@examples(60)
@given(lawful("responses"), st.integers(0, 12))
def test_behind_a_compaction_every_call_has_its_result(made: Talk, place: int) -> None:
    items = list(made.writer.items)
    items.insert(min(place, len(items)), SEALED)
    left = [json.loads(item.raw) for item in read("responses", pruned(read("responses", made.body(items)))).items]
    calls = {item["call_id"] for item in left if str(item.get("type")).endswith("_call") and "call_id" in item}
    whole = {item["call_id"] for item in items if str(item.get("type")).endswith("_call") and "call_id" in item}
    for item in left:
        if str(item.get("type")).endswith("_call_output") and item.get("call_id") in whole:
            assert item["call_id"] in calls
    assert [item for item in left if item.get("role") == "user"] == [
        item for item in made.sent_items(items) if item.get("role") == "user"
    ]


HELD = [{"previous_response_id": "resp_1"}, {"conversation": {"id": "conv_1"}}, {"conversation": "conv_1"}]


@examples(40)
@given(lawful("responses"), st.sampled_from([*REFUSALS, "answered"]), st.sampled_from(HELD))
def test_a_conversation_is_never_added_to_twice(made: Talk, refusal: Any, held: Json) -> None:
    raw, seen = served(made, refusal, **held)
    assert [json.loads(body)["input"] for body in seen.sent] == [json.loads(raw)["input"]] * len(seen.sent)
    again = len(seen.sent) == 2
    if "conversation" in held and (refusal is None or (isinstance(refusal, tuple) and refusal[0] >= 500)):
        assert not again
    assert len(seen.sent) in (1, 2)


# -- the bridge ------------------------------------------------------------------------------------------------------


def bridged(made: Talk) -> list[Json] | None:
    try:
        found = json.loads(responses_body(read("chat", made.body())))["input"]
    except Unmapped as why:
        event(f"not mapped: {why.what.partition('[')[0]}")
        return None
    return list(found)


@examples(120)
@given(lawful("chat"))
def test_a_lawful_chat_becomes_lawful_items(made: Talk) -> None:
    made.fields.pop("tools", None)
    if breaks("chat", made.body(), made.world):
        return
    items = bridged(made)
    if items is None:
        return
    body = json.dumps({"model": "gpt-5.1", "input": items, "store": False}).encode()
    assert breaks("responses", body, talk("responses").world) == ""


@examples(80)
@given(lawful("chat"), st.integers(1, 30))
def test_a_longer_chat_begins_with_the_same_items(made: Talk, length: int) -> None:
    whole = bridged(made)
    items = made.writer.items
    made.writer.items = items[:length]
    short = bridged(made)
    if whole is not None and short is not None:
        assert whole[: len(short)] == short
