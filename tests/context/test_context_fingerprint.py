"""What makes two histories the same, and what makes them different."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.context.chain import Chain
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import Conversation, DialectName, Item, UnreadableBody

KEY = bytes(range(32))
HASHER = Hasher(KEY)
MARK = {"type": "ephemeral"}
CHAT, RESPONSES, MESSAGES = "chat", "responses", "messages"


def item(dialect: DialectName, value: object) -> bytes:
    return Ledger(HASHER).entry(dialect, json.dumps(value).encode()).fingerprint


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def parts(*blocks: object, **more: object) -> dict[str, object]:
    return {"role": "user", "content": list(blocks), **more}


def text(words: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": words, **more}


def tool_result(content: object, **more: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def tool_use(arguments: object) -> dict[str, object]:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "put", "input": arguments}],
    }


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    "raw",
    [
        b'{"role":"user","content":"High water"}',
        b'{ "role" : "user",\n "content" : "High water" }',
        b'{"content":"High water","role":"user"}',
        rb'{"role":"user","content":"High \u0077ater"}',
    ],
)
def test_spacing_key_order_and_escapes_make_no_difference(dialect: DialectName, raw: bytes) -> None:
    assert Ledger(HASHER).entry(dialect, raw).fingerprint == item(dialect, user("High water"))


@pytest.mark.parametrize(
    ("dialect", "one", "other"),
    [
        (CHAT, user("hi"), parts(text("hi"))),
        (MESSAGES, user("hi"), parts(text("hi"))),
        (RESPONSES, user("hi"), parts({"type": "input_text", "text": "hi"})),
        (CHAT, user("hi"), parts(text("hi", cache_control=MARK))),
        (MESSAGES, user("hi"), parts(text("hi", cache_control=MARK))),
        (MESSAGES, parts(tool_result("ok")), parts(tool_result("ok", cache_control=MARK))),
        (
            MESSAGES,
            parts(tool_result([text("ok")])),
            parts(tool_result([text("ok", cache_control=MARK)])),
        ),
    ],
)
def test_the_same_item_written_otherwise(dialect: DialectName, one: object, other: object) -> None:
    assert item(dialect, one) == item(dialect, other)


@pytest.mark.parametrize(
    ("dialect", "one", "other"),
    [
        (CHAT, user("hi"), user("hi ")),
        (CHAT, user("hi"), {"role": "assistant", "content": "hi"}),
        (CHAT, user("hi"), {**user("hi"), "name": "ann"}),
        (CHAT, parts(text("a"), text("b")), parts(text("b"), text("a"))),
        (CHAT, parts(text("a"), text("b")), parts(text("ab"))),
        (CHAT, user("hi"), {**user("hi"), "id": "msg_1"}),
        (MESSAGES, parts(text("hi")), parts(text("hi"), text(""))),
        (MESSAGES, parts(tool_result("ok")), parts(tool_result("ok", is_error=True))),
        (MESSAGES, tool_use({"n": 1}), tool_use({"n": 2})),
        (MESSAGES, tool_use({"n": [1, 2]}), tool_use({"n": [2, 1]})),
        # What a tool is told is not a cache mark, whatever its name.
        (MESSAGES, tool_use({}), tool_use({"cache_control": "no-store"})),
        (RESPONSES, {"type": "function_call", "call_id": "a"}, {"type": "function_call", "call_id": "b"}),
        (RESPONSES, {"type": "novelty", "a": 1}, {"type": "novelty", "a": 1, "b": None}),
    ],
)
def test_any_other_change_is_another_item(dialect: DialectName, one: object, other: object) -> None:
    assert item(dialect, one) != item(dialect, other)


def test_dialects_and_keys_share_no_fingerprints() -> None:
    raw = json.dumps(user("hi")).encode()
    made = {Ledger(Hasher(key)).entry(d, raw).fingerprint for d in REQUESTS for key in (KEY, KEY[::-1])}
    assert len(made) == 2 * len(REQUESTS)


@pytest.mark.parametrize("key", [b"", KEY[:31], KEY + b"x"])
def test_the_key_is_32_bytes(key: bytes) -> None:
    with pytest.raises(ValueError, match=f"{len(key)} bytes"):
        Hasher(key)


def test_purposes_share_no_hashes() -> None:
    made = {HASHER.raw(b"x"), HASHER.mix(b"x"), HASHER.item(CHAT, b"x"), HASHER.item(MESSAGES, b"x")}
    assert len(made) == 4
    assert {len(value) for value in made} == {32}
    assert len(HASHER.tenant(b"sk-1")) == 16
    assert HASHER.tenant(b"sk-1") != HASHER.tenant(b"sk-2")
    assert HASHER.tenant(b"sk-1") not in HASHER.raw(b"sk-1")


@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.binary(max_size=6), max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_mix_knows_where_its_parts_end(one: list[bytes], other: list[bytes]) -> None:
    assert (HASHER.mix(*one) == HASHER.mix(*other)) == (one == other)


prints = st.lists(st.sampled_from([bytes([n]) * 32 for n in range(4)]), max_size=8)


def chain(fingerprints: list[bytes], tenant: bytes = b"t" * 16, dialect: DialectName = CHAT) -> Chain:
    return HASHER.chain(tenant, dialect, fingerprints)


@given(prints, prints)
@settings(max_examples=100, deadline=None)
def test_two_chains_agree_as_far_as_their_histories_do(one: list[bytes], other: list[bytes]) -> None:
    a, b = chain(one), chain(other)
    same = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    assert a.links[: same + 1] == b.links[: same + 1]
    assert set(a.links[same + 1 :]).isdisjoint(b.links)
    assert chain(one[:same]).links == a.links[: same + 1]


@given(prints)
@settings(max_examples=50, deadline=None)
def test_no_two_tenants_or_dialects_share_a_link(fingerprints: list[bytes]) -> None:
    made = [chain(fingerprints, t, d).links for t in (b"", b"a" * 16, b"b" * 16) for d in (CHAT, MESSAGES)]
    links = [link for links in made for link in links]
    assert len(set(links)) == len(links)


def test_a_chain_names_every_beginning() -> None:
    made = chain([b"a" * 32, b"b" * 32])
    assert made.bucket == made.links[1]
    assert dict(made.prefixes()) == {1: made.links[1], 2: made.links[2]}
    assert chain([]).bucket == b""
    assert not chain([]).prefixes()


# -- the head ------------------------------------------------------------------------------------------------


def head(system: object = None, tools: object = None, lead: list[object] | None = None, **more: object) -> bytes:
    items = tuple(Item(json.dumps(value).encode(), 0, 0) for value in lead or [])
    parts = {"system": system, "tools": tools}
    raws = {key: json.dumps(part, **more.get("json", {})).encode() for key, part in parts.items() if part is not None}  # type: ignore[call-overload]
    return HASHER.head(
        bare(
            more.get("dialect", CHAT),
            raws,
            items=(*items, Item(json.dumps(user("hi")).encode(), 0, 0)),
            lead=len(items),
        )  # type: ignore[arg-type]
    )


def bare(dialect: DialectName, fields: dict[str, bytes], items: tuple[Item, ...] = (), lead: int = 0) -> Conversation:
    """A conversation with nothing but these fields and items."""
    ends = list(accumulate(map(len, fields.values())))
    return Conversation(
        dialect=dialect, raw=b"".join(fields.values()), model="m", stream=False, output_limit=None, items=items,
        lead=lead, server_held=False, system_key="system" if "system" in fields else "",
        tools_key="tools" if "tools" in fields else "",
        field_spans={key: (end - len(raw), end) for (key, raw), end in zip(fields.items(), ends, strict=True)},
    )  # fmt: skip


TOOL = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.%s; cc_entrypoint=cli;"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"system": "Be brief"}, {"system": [text("Be brief", cache_control=MARK)]}),
        ({"system": ""}, {"system": [text("")]}),
        ({"tools": [TOOL]}, {"tools": [{**TOOL, "cache_control": MARK}]}),
        ({"tools": [TOOL]}, {"tools": [dict(reversed(TOOL.items()))], "json": {"indent": 2}}),
        (
            {"system": [text(BILLING % "a1b"), text("Be brief", cache_control=MARK)]},
            {"system": [text(BILLING % "c2d"), text("Be brief")]},
        ),
        ({"system": [text(BILLING % "a1b"), text("Be brief")]}, {"system": "Be brief"}),
        ({"system": (BILLING % "a1b") + "\nBe brief"}, {"system": "Be brief"}),
        (
            {"lead": [{"role": "system", "content": "Be brief"}]},
            {"lead": [{"content": [text("Be brief", cache_control=MARK)], "role": "system"}]},
        ),
        (
            {"lead": [{"role": "system", "content": [text(BILLING % "a1b"), text("Be brief")]}]},
            {"lead": [{"role": "system", "content": "Be brief"}]},
        ),
    ],
)
def test_the_same_head_written_otherwise(one: dict[str, object], other: dict[str, object]) -> None:
    assert head(**one) == head(**other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"system": "Be brief"}),
        ({"system": "Be brief"}, {"system": "Be long"}),
        ({"system": [text("a"), text("b")]}, {"system": [text("ab")]}),
        ({"tools": [TOOL]}, {"tools": []}),
        ({"tools": [TOOL]}, {"tools": [{**TOOL, "description": "reads"}]}),
        (
            {"tools": [TOOL]},
            {"tools": [{**TOOL, "input_schema": {"type": "object", "properties": {"cache_control": {}}}}]},
        ),
        ({"system": "Be brief"}, {"lead": [{"role": "system", "content": "Be brief"}]}),
        (
            {"lead": [{"role": "system", "content": "Be brief"}]},
            {"lead": [{"role": "developer", "content": "Be brief"}]},
        ),
        ({"system": "See x-anthropic-billing-header: 1"}, {"system": "See x-anthropic-billing-header: 2"}),
    ],
)
def test_any_other_change_is_another_head(one: dict[str, object], other: dict[str, object]) -> None:
    assert head(**one) != head(**other)


def test_what_comes_after_the_lead_is_no_part_of_the_head() -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": "Be brief"}, user("one")]}
    more = {**body, "messages": [*body["messages"], {"role": "assistant", "content": "two"}]}
    read = REQUESTS[CHAT].read
    assert HASHER.head(read(json.dumps(body).encode())) == HASHER.head(read(json.dumps(more).encode()))


def test_a_head_that_is_no_json_is_unreadable() -> None:
    with pytest.raises(UnreadableBody):
        HASHER.head(bare(CHAT, {"system": b"{"}))
