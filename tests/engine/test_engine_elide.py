"""Old tool results give way to a line, in steps and without a call; the largest are cut where nothing else helps."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from engine_world import Exchange, Gateway, Provider, items_of, new_kit, reply_of, ruler, target_of
from histories import Talk, alternating, examples, lawful, wild
from hypothesis import given
from hypothesis import strategies as st
from stage import HASHER, TENANT
from test_engine_rules import PRESERVING, SHARES, obeys, squeezed

from tidegate.compactors import elide
from tidegate.compactors.strategy import Call, Reply
from tidegate.context.budget import Policy
from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Artifact, Checkpoint, Report
from tidegate.engine.native import binding_of
from tidegate.engine.router import ELIDE, SUMMARY, Means, Wanted, ordered, route
from tidegate.engine.view import read_history
from tidegate.wire import read

DIALECTS = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
WINDOW = 4000
FIRST = Wanted((ELIDE, SUMMARY), "the test")


def tool_round(dialect: str, number: int, words: int) -> list[dict[str, Any]]:
    output = f"FACT-{number} " + f"line {number} " * words
    if dialect == "chat":
        function = {"name": "read_file", "arguments": json.dumps({"path": f"{number}.py"})}
        return [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": output},
        ]
    if dialect == "responses":
        return [
            {"type": "function_call", "call_id": f"c{number}", "name": "read_file", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": output},
        ]
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": f"c{number}", "name": "read_file", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{number}", "content": output}]},
    ]


def body(dialect: str, rounds: int, words: int = 150, *, said: str = "Read them all.", more: int = 0) -> bytes:
    items: list[dict[str, Any]] = [{"role": "user", "content": said}]
    for number in range(rounds):
        items += tool_round(dialect, number, words)
    if more:
        items += tool_round(dialect, rounds, more)
    key = "input" if dialect == "responses" else "messages"
    return json.dumps({"model": "m", key: items, "max_tokens": 100}).encode()


def gateway(dialect: str, window: int | None = WINDOW, *, wanted: Wanted = FIRST, **changes: Any) -> Gateway:
    provider = Provider(dialect, WINDOW)
    return Gateway(
        dialect, target_of(dialect, window, wanted=wanted), provider, kit=new_kit(**{"last_resort": True, **changes})
    )


def told(seen: Exchange) -> tuple[str, str]:
    assert seen.outcome is not None
    return seen.outcome.action, seen.outcome.strategy


@DIALECTS
def test_old_results_give_way_to_a_line_that_names_the_tool(dialect):
    raw = body(dialect, 12)
    seen = gateway(dialect).serve(raw)
    assert told(seen) == ("compacted", "elide")
    assert seen.calls == []
    sent = seen.sent[0].decode()
    assert "Left out to save room: the output of read_file, about" in sent
    assert "FACT-0 " not in sent
    assert "FACT-11 " in sent
    assert "Read them all." in sent
    assert ruler(dialect, seen.sent[0]) <= WINDOW // 2
    assert len(items_of(dialect, seen.sent[0])) == len(items_of(dialect, raw))


@DIALECTS
def test_it_goes_in_steps_and_what_is_forwarded_begins_alike_between_them(dialect):
    world = gateway(dialect)
    sent, actions = [], []
    for rounds in range(1, 40):
        seen = world.serve(body(dialect, rounds))
        assert seen.answered
        sent.append(items_of(dialect, seen.sent[-1]))
        actions.append(told(seen)[0])
    steps = actions.count("compacted")
    assert 2 <= steps <= 39 // 3
    broken = sum(later[: len(before)] != before for before, later in pairwise(sent))
    assert broken == steps
    assert world.kept
    assert {action for action in actions if action != "compacted"} == {"relayed", "replayed"}


@DIALECTS
def test_it_comes_before_anything_is_due_since_it_costs_no_call(dialect):
    raw = body(dialect, 8)
    size = ruler(dialect, raw)
    assert WINDOW // 2 < size < WINDOW * 0.85
    seen = gateway(dialect).serve(raw)
    assert told(seen) == ("compacted", "elide")
    assert seen.outcome is not None
    assert seen.outcome.reason == ""
    assert seen.calls == []
    assert gateway(dialect, elide_percent=80).serve(raw).sent == [raw]


@pytest.mark.parametrize(
    ("raw", "changes"),
    [
        (body("chat", 5), {}),
        (body("chat", 3, said="word " * 1500), {}),
        (body("chat", 8), {"wanted": Wanted((SUMMARY, ELIDE), "the test")}),
        (body("chat", 8), {"policy": Policy(enabled=False)}),
    ],
    ids=["below half the window", "less than half would go", "not the first way", "not automatic"],
)
def test_it_does_not_where(raw: bytes, changes: dict[str, Any]):
    assert gateway("chat", **changes).serve(raw).sent == [raw]


def test_what_came_early_leaves_a_refused_request_its_recoveries():
    world = gateway("chat")
    world.answer = Provider("chat", 900)
    seen = world.serve(body("chat", 8))
    assert seen.answered
    assert [told(seen)[0], seen.outcome and seen.outcome.compactions] == ["recovered", 2]


@DIALECTS
def test_where_it_is_not_enough_the_results_themselves_are_summed_up(dialect):
    world = gateway(dialect)
    world.serve(body(dialect, 12))
    seen = world.serve(body(dialect, 12, said="FACT-900 " + "and so on " * 1200))
    assert told(seen) == ("compacted", "summary")
    grown = gateway(dialect)
    for rounds in range(1, 120):
        last = grown.serve(body(dialect, rounds, 60))
        if told(last)[1] == "summary":
            break
    assert told(last)[1] == "summary"
    assert "FACT-0" in last.sent[-1].decode()
    assert "Left out to save room" not in json.dumps([call.body.decode() for call in last.calls])


@DIALECTS
def test_a_summary_stays_before_what_is_elided_after_it(dialect):
    world = gateway(dialect, wanted=Wanted((SUMMARY,), "the test"))
    first = world.serve(body(dialect, 12))
    assert told(first) == ("compacted", "summary")
    world.to = target_of(dialect, WINDOW, wanted=FIRST)
    seen = first
    for rounds in range(13, 40):
        seen = world.serve(body(dialect, rounds))
        if told(seen)[1] == "elide":
            break
    assert told(seen) == ("compacted", "elide")
    assert "ART-1-" in seen.sent[-1].decode()
    assert "Left out to save room" in seen.sent[-1].decode()
    again = world.serve(body(dialect, rounds))
    assert told(again)[0] == "replayed"
    assert again.sent[-1] == seen.sent[-1]


def test_a_small_result_and_an_error_of_a_few_words_stay():
    raw = json.loads(body("chat", 12))
    raw["messages"][2]["content"] = "No such file: 0.py"
    seen = gateway("chat").serve(json.dumps(raw).encode())
    assert "No such file: 0.py" in seen.sent[0].decode()


@DIALECTS
@pytest.mark.parametrize("words", ["Traceback (most recent call last):\n", "Error: no such file.\n", "exit code 2\n"])
def test_what_a_tool_says_went_wrong_stays(dialect, words):
    raw = body(dialect, 12).replace(b"FACT-3 ", json.dumps(words)[1:-1].encode() + b"FACT-3 ")
    sent = gateway(dialect).serve(raw).sent[0].decode()
    assert "FACT-3 " in sent
    assert "FACT-2 " not in sent


def test_a_result_that_is_marked_as_an_error_stays():
    raw = json.loads(body("messages", 12))
    raw["messages"][8]["content"][0]["is_error"] = True
    sent = gateway("messages").serve(json.dumps(raw).encode()).sent[0].decode()
    assert "FACT-3 " in sent
    assert "FACT-2 " not in sent


def test_what_frees_little_is_not_worth_a_broken_prefix():
    """One old result among words that fill the window: without it the history is not a tenth smaller."""
    raw = body("chat", 0, said="word " * 2700, more=60)
    raw = json.dumps(
        {**json.loads(raw), "messages": [*json.loads(raw)["messages"], *tool_round("chat", 7, 5)]}
    ).encode()
    seen = gateway("chat", wanted=Wanted((ELIDE,), "the test")).serve(raw)
    assert seen.sent == [raw]
    assert not seen.checkpoints


def test_what_was_tried_before_in_vain_is_paid_for():
    def refuses(call: Call) -> Reply:
        return reply_of(call.path, "")

    world = gateway("chat", wanted=Wanted((SUMMARY, ELIDE), "the test"))
    world.summarize = refuses
    seen = world.serve(body("chat", 12))
    assert told(seen) == ("compacted", "elide")
    assert seen.outcome is not None
    assert seen.outcome.summary_calls == len(seen.calls) == 1
    assert seen.outcome.compaction_input_tokens > 0


def test_the_size_of_one_view_is_not_taken_for_that_of_another_with_as_many_items():
    world = gateway("chat")
    world.serve(body("chat", 12))
    kept = [record for record in world.kept if isinstance(record, Checkpoint)]
    told_of = {record.checkpoint for record in world.kept if isinstance(record, Report)}
    assert kept[0].chain not in told_of
    assert len(told_of) == 1


def test_it_is_only_done_where_it_is_asked_for():
    assert told(gateway("chat", wanted=Wanted()).serve(body("chat", 12))) == ("compacted", "summary")


def test_a_rewound_history_is_read_by_the_checkpoint_that_fits_it():
    world = gateway("chat")
    world.serve(body("chat", 12))
    seen = world.serve(body("chat", 4))
    assert seen.sent[0] == body("chat", 4)


@DIALECTS
def test_the_store_keeps_positions_and_no_words(dialect):
    world = gateway(dialect)
    world.serve(body(dialect, 12))
    (checkpoint,) = [record for record in world.kept if hasattr(record, "artifact")]
    assert checkpoint.artifact.text == ""
    assert checkpoint.artifact.items == ()
    assert len(checkpoint.artifact.elided) >= 8


@pytest.mark.parametrize("house", [None, (ELIDE, SUMMARY), (SUMMARY,)])
def test_settings_for_all_put_it_anywhere_though_no_file_lists_it(house):
    found = route("chat", ordered((SUMMARY,), house=house), means=Means())
    assert found.names == (house or (SUMMARY,))


@pytest.mark.parametrize(
    ("histories", "changes"),
    [
        (lawful("chat"), {}),
        (lawful("responses"), {}),
        (lawful("messages"), {}),
        (lawful("messages", thinking="enabled"), {}),
        (lawful("messages", model=PRESERVING, thinking="adaptive"), {"binds_thinking": True}),
        (lawful("messages", model=PRESERVING, thinking=""), {"binds_thinking": True}),
        (alternating(), {"merge_user": True}),
    ],
    ids=["chat", "responses", "messages", "thinking", "bound thinking", "bound, not asked for", "roles in turns"],
)
def test_whatever_the_history_what_is_sent_keeps_the_rules(histories, changes):
    @examples(40)
    @given(histories, SHARES, st.sampled_from([(ELIDE, SUMMARY), (ELIDE,), (SUMMARY, ELIDE)]))
    def holds(talk: Talk, share: tuple[float, bool], names: tuple[str, ...]) -> None:
        obeys(talk, share, wanted=Wanted(names, "the test"), **changes)

    holds()


@examples(60)
@given(wild(), SHARES)
def test_nothing_is_lost_and_no_user_s_word_is_changed(talk: Talk, share: tuple[float, bool]) -> None:
    seen, _ = squeezed(talk, share, wanted=Wanted((ELIDE,), "the test"))
    before = items_of(talk.dialect, talk.body())

    def spoken(items: list[Any]) -> list[Any]:
        return [item for item in items if item.get("role") == "user" and isinstance(item.get("content"), str)]

    for sent in seen.sent:
        after = items_of(talk.dialect, sent)
        assert [item.get("role") for item in after] == [item.get("role") for item in before]
        assert spoken(after) == spoken(before)


# -- the last resort -------------------------------------------------------------------------------------------------


@DIALECTS
@pytest.mark.parametrize("window", [WINDOW, None], ids=["window known", "window unknown"])
def test_one_huge_newest_result_is_cut_in_its_middle_and_answered(dialect, window):
    raw = body(dialect, 1, 20, more=4000)
    seen = gateway(dialect, window, wanted=Wanted()).serve(raw)
    assert seen.answered
    assert told(seen)[0] == "recovered"
    assert seen.outcome is not None
    assert seen.outcome.reason == "shortened"
    sent = seen.sent[-1].decode()
    assert "characters left out: too long for the window" in sent
    assert "FACT-1 " in sent
    assert len(seen.sent) <= 4


@DIALECTS
@pytest.mark.parametrize("factor", [1.4, 2.6])
def test_so_it_is_where_estimates_are_far_too_low(dialect, factor):
    world = gateway(dialect, wanted=Wanted())
    world.answer = Provider(dialect, WINDOW, factor=factor)
    seen = world.serve(body(dialect, 1, 20, more=4000))
    assert seen.answered
    assert seen.outcome is not None
    assert seen.outcome.reason == "shortened"
    assert len(seen.sent) <= 4


def test_the_users_own_words_are_never_cut():
    raw = body("chat", 0, said="word " * 20_000)
    seen = gateway("chat", wanted=Wanted()).serve(raw)
    assert not seen.answered
    assert all("characters left out" not in sent.decode() for sent in seen.sent)


def test_it_can_be_turned_off():
    raw = body("chat", 1, 20, more=4000)
    seen = gateway("chat", wanted=Wanted(), last_resort=False).serve(raw)
    assert not seen.answered


@DIALECTS
def test_what_was_cut_stays_cut_on_later_turns(dialect):
    world = gateway(dialect, wanted=Wanted())
    first = world.serve(body(dialect, 1, 20, more=4000))
    longer = json.loads(body(dialect, 1, 20, more=4000))
    key = "input" if dialect == "responses" else "messages"
    longer[key] += tool_round(dialect, 7, 5)
    later = world.serve(json.dumps(longer).encode())
    assert later.answered
    assert len(later.sent) == 1
    before = items_of(dialect, first.sent[-1])
    assert items_of(dialect, later.sent[0])[: len(before)] == before


@pytest.mark.parametrize("names", [("openai", "summary"), (ELIDE, "openai", "summary")])
def test_behind_what_is_sealed_results_are_elided_and_cut_too(names):
    """The sealed item stays first and whole; what stands after it is the client's own, and readable."""
    item = b'{"type":"compaction","id":"cmp_1","encrypted_content":"gAAA-1"}'
    raw = body("responses", 2, 20, more=4000)
    world = gateway("responses", wanted=Wanted(names, "the test"))
    history = read_history(read("responses", raw), TENANT, HASHER, Ledger(HASHER))
    artifact = Artifact("opaque", items=(item,), retained=(0,), binding=binding_of(world.to, "responses"))
    world.store.save(
        Checkpoint(TENANT, history.chain.bucket, 3, history.chain.link(3), history.head, "responses", artifact,
                   world.to.provider, world.to.endpoint, world.to.model, "openai", 100, 50)
    )  # fmt: skip
    world.summarize = lambda call: Reply(500, b"{}")
    first = world.serve(raw)
    assert first.answered
    again = world.serve(raw)
    assert again.sent == [first.sent[-1]]
    sent = items_of("responses", again.sent[0])
    assert sent[0] == json.loads(item)
    assert "characters left out: too long for the window" in json.dumps(sent[-1])


def test_a_cut_text_keeps_its_beginning_and_its_end():
    said = elide.cut("a" * 500 + "b" * 500, 10)
    assert said.startswith("a" * 10 + "\n")
    assert said.endswith("\n" + "b" * 10)
    assert "980 characters left out" in said


def test_where_people_only_watch_it_is_told_and_not_done():
    raw = body("chat", 8)
    seen = gateway("chat", shadow=True).serve(raw)
    assert seen.sent == [raw]
    assert seen.outcome is not None
    assert (seen.outcome.action, seen.outcome.reason) == ("relayed", "shadow_due")
    assert (seen.outcome.tokens_after or 0) < (seen.outcome.tokens_before or 0) // 2


@DIALECTS
@examples(30)
@given(data=st.data())
def test_a_history_that_went_elsewhere_is_given_nothing_of_it(dialect, data):
    """An edit before the end of what was elided: the checkpoint is not used, and nothing of the old text comes back."""
    raw = body(dialect, 12)
    world = gateway(dialect)
    world.serve(raw)
    (kept,) = [record for record in world.kept if isinstance(record, Checkpoint)]
    key = "input" if dialect == "responses" else "messages"
    items = json.loads(raw)[key]
    at = data.draw(st.integers(1, len(items) - 1))
    items[at] = json.loads(json.dumps(items[at]).replace("line", "row").replace("read_file", "cat"))
    edited = json.dumps({**json.loads(raw), key: items}).encode()
    seen = world.serve(edited)
    assert (told(seen)[0] == "replayed") == (at >= kept.length)
    assert seen.answered
    assert all(len(sent) <= len(edited) for sent in seen.sent)
    fresh = gateway(dialect).serve(edited)
    if at < kept.length:
        assert seen.sent == fresh.sent
