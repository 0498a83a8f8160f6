"""What is sent passes the provider's own rules wherever the client's history does, and keeps what it keeps as it came.

The judge is the simulator, which shares no code with the engine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from engine_world import Exchange, Gateway, Provider, breaks, items_of, keeps, ruler, target_of
from histories import Json, Talk, alternating, examples, lawful, wild
from hypothesis import event, given
from hypothesis import strategies as st

from tidegate.engine.request import Target

PRESERVING = "claude-opus-5-5"
SHARES = st.sampled_from([(1.0, True), (1.3, True), (2.0, True), (4.0, True), (1.2, False), (3.0, False)])
"""How many windows a history takes, and whether the window is known before the provider refuses."""
QUICK = examples(100)


def squeezed(talk: Talk, share: tuple[float, bool], **changes: Any) -> tuple[Exchange, Target]:
    """The history sent to a window that is too small for it."""
    raw = talk.body()
    times, known = share
    window = max(400, int(ruler(talk.dialect, raw) / times))
    to = target_of(talk.dialect, window if known else None, **changes)
    seen = Gateway(talk.dialect, to, Provider(talk.dialect, None if known else window)).serve(raw)
    assert seen.error is None
    event("as it came" if all(seen.originals) else "compacted")
    return seen, to


# -- the provider's rules --------------------------------------------------------------------------------------------


def obeys(talk: Talk, share: tuple[float, bool], profile: str = "", **changes: Any) -> None:
    raw = talk.body()
    if breaks(talk.dialect, raw, talk.world, profile):
        return
    seen, _ = squeezed(talk, share, **changes)
    for sent in seen.sent:
        assert breaks(talk.dialect, sent, talk.world, profile) == ""


@QUICK
@given(lawful("chat"), SHARES)
def test_chat_histories_stay_lawful(talk: Talk, share: tuple[float, bool]) -> None:
    obeys(talk, share)


@QUICK
@given(lawful("responses"), SHARES)
def test_responses_histories_stay_lawful(talk: Talk, share: tuple[float, bool]) -> None:
    obeys(talk, share)


@QUICK
@given(lawful("messages"), SHARES)
def test_messages_histories_stay_lawful(talk: Talk, share: tuple[float, bool]) -> None:
    obeys(talk, share)


@QUICK
@given(lawful("messages", thinking="enabled"), SHARES)
def test_models_that_must_begin_with_thinking_find_it_first(talk: Talk, share: tuple[float, bool]) -> None:
    obeys(talk, share)


@pytest.mark.parametrize("thinking", ["adaptive", "disabled", ""])
def test_thinking_bound_to_its_past_is_never_refused(thinking: str) -> None:
    @QUICK
    @given(lawful("messages", model=PRESERVING, thinking=thinking), SHARES)
    def holds(talk: Talk, share: tuple[float, bool]) -> None:
        obeys(talk, share, binds_thinking=True)

    holds()


@pytest.mark.parametrize("profile", ["mistral", "llamacpp"])
def test_roles_take_turns_where_templates_demand_it(profile: str) -> None:
    @QUICK
    @given(alternating(), SHARES)
    def holds(talk: Talk, share: tuple[float, bool]) -> None:
        obeys(talk, share, profile, merge_user=True)

    holds()


# -- lost calls and results of the client's own ----------------------------------------------------------------------


def lost(dialect: str, items: list[Json]) -> tuple[Counter[str], Counter[str]]:
    """(results without a call before them, calls without a result after them), by id."""
    orphans: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for item in items:
        for kind, name in _ends(dialect, item):
            if kind == "call":
                waiting[name] += 1
            elif waiting[name]:
                waiting[name] -= 1
            else:
                orphans[name] += 1
    return orphans, +waiting


def _ends(dialect: str, item: Json) -> Iterator[tuple[str, str]]:
    if dialect == "chat":
        for call in item.get("tool_calls") or ():
            yield "call", call["id"]
        if item.get("function_call"):
            yield "call", item["function_call"]["name"]
        if item.get("role") == "tool":
            yield "result", item["tool_call_id"]
        if item.get("role") == "function":
            yield "result", item["name"]
    elif dialect == "responses":
        if str(item.get("type")).endswith("_call") and "call_id" in item:
            yield "call", item["call_id"]
        if str(item.get("type")).endswith("_output"):
            yield "result", item["call_id"]
    elif isinstance(item.get("content"), list):
        for block in item["content"]:
            if block["type"] in ("tool_use", "server_tool_use"):
                yield "call", block["id"]
            if block["type"].endswith("tool_result"):
                yield "result", block["tool_use_id"]


@QUICK
@given(wild(), SHARES)
def test_nothing_is_lost_that_the_client_had_not_lost(talk: Talk, share: tuple[float, bool]) -> None:
    seen, _ = squeezed(talk, share)
    orphans, waiting = lost(talk.dialect, talk.writer.items)
    for sent in seen.sent:
        found = lost(talk.dialect, items_of(talk.dialect, sent))
        assert found[0] <= orphans
        assert found[1] <= waiting


@QUICK
@given(wild("responses"), SHARES)
def test_unknown_items_stay_with_those_they_name(talk: Talk, share: tuple[float, bool]) -> None:
    seen, _ = squeezed(talk, share)
    before = json.dumps(talk.writer.items)
    for sent in seen.sent:
        items = items_of(talk.dialect, sent)
        text = json.dumps(items)
        for item in items:
            named = [item["about"]] if "about" in item else item.get("of", [])
            if item.get("role") == "user" and isinstance(item["content"], list):
                named = [part["of"] for part in item["content"] if "of" in part]
            for name in named:
                assert text.count(f'"{name}"') == before.count(f'"{name}"')


# -- what is kept ----------------------------------------------------------------------------------------------------


@QUICK
@given(lawful(), SHARES)
def test_kept_items_keep_order_and_bytes(talk: Talk, share: tuple[float, bool]) -> None:
    seen, to = squeezed(talk, share)
    for sent, original in zip(seen.sent, seen.originals, strict=True):
        if not original:
            keeps(talk, sent, to)


@QUICK
@given(wild(), SHARES, st.booleans())
def test_so_do_those_of_a_broken_history(talk: Talk, share: tuple[float, bool], merge_user: bool) -> None:
    seen, to = squeezed(talk, share, merge_user=merge_user)
    for sent, original in zip(seen.sent, seen.originals, strict=True):
        if not original:
            keeps(talk, sent, to)


@QUICK
@given(lawful("messages", model=PRESERVING), SHARES)
def test_bound_thinking_is_there_whole_or_not_at_all(talk: Talk, share: tuple[float, bool]) -> None:
    seen, to = squeezed(talk, share, binds_thinking=True)
    for sent, original in zip(seen.sent, seen.originals, strict=True):
        if not original:
            keeps(talk, sent, to)


@QUICK
@given(lawful("messages"), SHARES)
def test_one_cache_mark_more_than_the_client_set_and_four_at_most(talk: Talk, share: tuple[float, bool]) -> None:
    own = talk.body().count(b"cache_control")
    seen, _ = squeezed(talk, share)
    for sent in seen.sent:
        assert sent.count(b"cache_control") <= (min(own + 1, 4) if own else 0)
