"""A provider's own compaction in the life of a request: each path told as a script without a socket."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from playbook import Playbook, ok, refused
from stage import HASHER, TENANT, kit, target

from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.context.budget import Policy
from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Artifact, Checkpoint, Found, Report
from tidegate.engine.compaction import compaction_of
from tidegate.engine.effects import Compact, Deliver, Find, Finish, NothingHelped, Prepare, Save, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.native import STRATEGIES, binding_of, readable
from tidegate.engine.planning import Plan, plan
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.router import Means, Wanted
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import plain, read_history, same_role_cuts
from tidegate.wire import read
from tidegate.wire.conversation import Usage

Json = dict[str, Any]
UNARY = ("openai", "openai-trigger", "summary")
BLOB = "gAAAAsealed-by-the-provider-itself-and-by-nobody-else"
ITEM = json.dumps({"type": "compaction", "id": "cmp_1", "encrypted_content": BLOB}).encode()
WORDS = "## Goal\nMend the failing tests of the shop, file by file, and keep what was found."
ON_DEMAND = Means(on_demand="compact-2026-09-04", ways=("on-demand",))


def responses(turns: int, size: int = 400, *, lead: str = "You are a coding agent.", **fields: Any) -> bytes:
    items: list[Json] = [{"role": "developer", "content": lead}] if lead else []
    for n in range(turns):
        items += [
            {"role": "user", "content": f"step {n}: please go on"},
            {"type": "function_call", "call_id": f"call_{n}", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"call_{n}", "output": f"line {n} " + "abcdefg " * (size // 2)},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"done {n}"}]},
        ]
    return json.dumps({"model": "m", "input": [*items, {"role": "user", "content": "what next?"}], **fields}).encode()


def messages(turns: int, size: int = 400, **fields: Any) -> bytes:
    items: list[Json] = []
    for n in range(turns):
        call = {"type": "tool_use", "id": f"toolu_{n}", "name": "read", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": "abcdefg " * (size // 2)}
        items += [
            {"role": "user", "content": f"step {n}: please go on"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": f"done {n}"},
        ]
    body = {"model": "m", "max_tokens": 500, "messages": [*items, {"role": "user", "content": "what next?"}]}
    return json.dumps({**body, **fields}).encode()


FULL = responses(18)
"""About 7,400 tokens: over the threshold of 6,800, under the window of 8,000."""
SMALL = responses(4)


def at(*names: str, **changes: Any) -> Target:
    return target(**{"wanted": Wanted(names or UNARY, listed=names or UNARY), **changes})


def asked(raw: bytes, to: Target, dialect: Any = "responses", now: float = 1000.0) -> Request:
    return Request("r1", read(dialect, raw), TENANT, to, now)


def start(
    raw: bytes = FULL,
    to: Target | None = None,
    found: Found | None = None,
    tools: Kit | None = None,
    dialect: Any = "responses",
) -> Playbook:
    play = Playbook(exchange(asked(raw, to or at(), dialect), tools or kit()))
    play.expect(Find)
    return play.reply(found or Found())


def compacted(items: list[Json] | None = None, **usage: int) -> Reply:
    """What `/responses/compact` answers."""
    output = (
        items if items is not None else [{"type": "message", "role": "user", "content": "what now?"}, json.loads(ITEM)]
    )
    body = {"id": "resp_1", "object": "response.compaction", "output": output,
            "usage": {"input_tokens": 500, "output_tokens": 80, **usage}}  # fmt: skip
    return Reply(200, json.dumps(body).encode(), {"content-type": "application/json"})


def said(text: str = WORDS) -> Reply:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    usage = {"input_tokens": 700, "output_tokens": 30}
    body = {"object": "response", "status": "completed", "usage": usage, "output": [message]}
    return Reply(200, json.dumps(body).encode(), {"content-type": "application/json"})


def error(status: int, message: str = "no", code: str | None = None) -> Reply:
    return Reply(status, json.dumps({"error": {"message": message, "code": code}}).encode())


def carried_out(play: Playbook, *replies: Reply, then: Reply | None = None) -> list[Call]:
    """Answers a `Compact` by running its work against these replies, all of which are wanted, and the last one to all
    calls that come `then`. Gives the calls."""
    work, calls, left = play.expect(Compact).work(), [], list(replies)
    try:
        calls.append(next(work))
        while True:
            calls.append(work.send(left.pop(0) if left or then is None else then))
    except StopIteration as end:
        play.reply(end.value)
    except CompactionFailed as failed:
        play.fail(failed)
    assert not left, "fewer calls than replies"
    return calls


def sent(play: Playbook, dialect: str = "responses") -> list[Json]:
    body = play.expect(Send).body
    assert body is not None
    found: list[Json] = json.loads(body)["messages" if dialect == "messages" else "input"]
    return found


def kept(
    raw: bytes, length: int, artifact: Artifact, to: Target, dialect: Any = "responses", **changes: Any
) -> Checkpoint:
    past = read_history(read(dialect, raw), TENANT, HASHER, Ledger(HASHER))
    made = Checkpoint(
        tenant=TENANT, bucket=past.chain.bucket, length=length, chain=past.chain.links[length], head=past.head,
        dialect=dialect, artifact=artifact, provider=to.provider, endpoint=to.endpoint, model=to.model,
        strategy="openai" if artifact.kind == "opaque" else "summary", tokens_before=6000, tokens_after=3000,
    )  # fmt: skip
    return replace(made, **changes)


def sealed(to: Target, dialect: Any = "responses", raw: bytes = ITEM) -> Artifact:
    return Artifact("opaque", items=(raw,), binding=binding_of(to, dialect))


TEXT = Artifact("text", text="## Goal\nEarlier work.")

# -- minted ----------------------------------------------------------------------------------------------------------


def test_the_provider_compacts_and_its_items_go_first():
    play = start()
    effect = play.expect(Compact)
    assert effect.strategy == "openai"
    (call,) = carried_out(play, compacted())
    assert call.path == "/responses/compact"
    assert call.timeout == 180.0
    items = sent(play)
    assert [item.get("type", item.get("role")) for item in items[:3]] == ["developer", "message", "compaction"]
    assert ITEM in (play.expect(Send).body or b"")
    assert items[-1] == {"role": "user", "content": "what next?"}
    play.reply(ok())
    saved = play.expect(Save).record
    assert isinstance(saved, Checkpoint)
    assert (saved.strategy, saved.artifact.kind) == ("openai", "opaque")
    assert saved.artifact.items[-1] == ITEM
    assert saved.artifact.binding == "openai http://up/v1 responses m"
    outcome = play.reply().expect(Deliver).outcome
    assert (outcome.action, outcome.strategy, outcome.reason) == ("compacted", "openai", "")
    assert (outcome.compaction_input_tokens, outcome.compaction_output_tokens) == (500, 80)
    told = play.detail("compacted")
    assert (told["strategy"], told["input_tokens"], told["output_tokens"], told["calls"]) == ("openai", 500, 80, 1)


def test_what_a_compaction_cost_is_no_size_of_the_history():
    play = start()
    carried_out(play, compacted(input_tokens=7900))
    play.reply(ok()).reply()
    play.reply(Finish(Usage(3100), "stop"))
    report = play.expect(Save).record
    assert isinstance(report, Report)
    assert report.input_tokens == 3100


def test_the_passage_is_what_stands_before_the_cut_with_the_pairs_whole():
    play = start()
    (call,) = carried_out(play, compacted())
    given = json.loads(call.body)["input"]
    items = sent(play)
    assert given[0]["role"] == "developer"
    assert len(given) - 1 + len(items) - 3 == len(json.loads(FULL)["input"]) - 1
    assert [x["call_id"] for x in given if x.get("type") == "function_call"] == [
        x["call_id"] for x in given if x.get("type") == "function_call_output"
    ]


def test_messages_get_the_block_first_and_the_beta_on_every_request():
    to = at("anthropic", "summary", provider="anthropic", means=ON_DEMAND)
    raw = messages(18)
    play = start(raw, to, dialect="messages")
    block = {"type": "compaction", "content": "Summary of all.", "signature": "EuYB-abc"}
    answer = {"type": "message", "role": "assistant", "content": [block], "stop_reason": "compaction",
              "usage": {"input_tokens": 0, "output_tokens": 0,
                        "iterations": [{"type": "compaction", "input_tokens": 900, "output_tokens": 70}]}}  # fmt: skip
    (call,) = carried_out(play, Reply(200, json.dumps(answer).encode()))
    assert call.add_headers["anthropic-beta"] == "compact-2026-09-04"
    send = play.expect(Send)
    assert send.add_headers == {"anthropic-beta": "compact-2026-09-04"}
    assert json.dumps(block).encode() in (send.body or b"")
    assert sent(play, "messages")[0] == {"role": "assistant", "content": [block]}
    play.reply(ok())
    made = play.expect(Save).record
    assert isinstance(made, Checkpoint)
    again = start(raw, to, Found((made,)), dialect="messages")
    assert again.expect(Send).add_headers == {"anthropic-beta": "compact-2026-09-04"}


# -- tiers -----------------------------------------------------------------------------------------------------------


def test_the_next_way_is_tried_and_every_failure_is_told():
    tools = kit()
    play = start(tools=tools)
    paths = [call.path for call in carried_out(play, error(500), error(400), said())]
    assert paths == ["/responses/compact", "/responses", "/responses"]
    assert [
        (notice.detail["strategy"], notice.detail["reason"])
        for notice in play.notices
        if notice.event == "compaction_failed"
    ] == [("openai", "compact_http_500"), ("openai-trigger", "compact_http_400")]
    assert play.reply(ok()).expect(Save).record.artifact.kind == "text"  # type: ignore[union-attr]
    outcome = play.reply().expect(Deliver).outcome
    assert (outcome.action, outcome.strategy, outcome.compactions) == ("compacted", "summary", 1)


def test_what_is_missing_is_not_asked_for_again_that_day():
    tools = kit()
    play = start(tools=tools)
    carried_out(play, error(404), error(400, "Invalid value: 'compaction_trigger'."), said())
    play.reply(ok()).reply().reply(Finish())
    other = responses(18, lead="Another agent.")
    assert start(other, tools=tools).expect(Compact).strategy == "summary"
    later = Request("r2", read("responses", other), TENANT, at(), 1000.0 + 86_401)
    play = Playbook(exchange(later, tools))
    assert play.reply(Found()).expect(Compact).strategy == "openai"
    assert start(other, at(endpoint="http://other/v1"), tools=tools).expect(Compact).strategy == "openai"


@pytest.mark.parametrize("trouble", [Reply(0, error="no answer within 180 seconds"), error(503), error(529)])
def test_a_provider_in_trouble_is_not_waited_for_with_every_compaction(trouble):
    tools = kit()
    play = start(to=at("openai", "summary"), tools=tools)
    carried_out(play, trouble, said())
    play.reply(ok()).reply().reply(Finish())
    other = responses(18, lead="Another agent.")
    assert start(other, at("openai", "summary"), tools=tools).expect(Compact).strategy == "summary"
    later = Request("r2", read("responses", other), TENANT, at(), 1000.0 + 301)
    assert Playbook(exchange(later, tools)).reply(Found()).expect(Compact).strategy == "openai"


def test_no_item_in_a_200_did_not_happen_and_says_nothing_of_the_endpoint():
    tools = kit()
    play = start(tools=tools)
    carried_out(play, compacted([]), said("## An answer"), said())
    assert play.reply(ok()).reply().expect(Deliver).outcome.strategy == "summary"
    assert start(responses(18, lead="Another."), tools=tools).expect(Compact).strategy == "openai"


def test_a_strategy_that_breaks_is_a_strategy_that_failed(monkeypatch):
    def broken(*_: object) -> Any:
        raise KeyError("output")
        yield

    monkeypatch.setitem(STRATEGIES, "openai", broken)  # type: ignore[arg-type]
    play = start()
    carried_out(play, error(403), said())
    told = [notice.detail["reason"] for notice in play.notices if notice.event == "compaction_failed"]
    assert told == ["strategy_fault", "compact_http_403"]
    assert play.reply(ok()).reply().expect(Deliver).outcome.strategy == "summary"


def test_what_is_hardly_smaller_is_of_no_use():
    users = [{"type": "message", "role": "user", "content": "all of it again " * 1500}]
    play = start(to=at("openai", "summary"))
    carried_out(play, compacted([*users, json.loads(ITEM)]), said())
    told = play.detail("compaction_failed")
    assert (told["reason"], told["strategy"]) == ("compact_not_smaller", "openai")


def test_where_everything_fails_the_clients_own_request_goes_and_the_breaker_knows():
    tools = kit()
    play = start(tools=tools)
    carried_out(play, error(500), error(500), error(400))
    assert play.expect(Send).body is None
    outcome = play.reply(ok()).expect(Deliver).outcome
    assert (outcome.action, outcome.reason, outcome.compactions) == ("relayed", "summary_http_400", 1)
    play.reply(Finish())
    assert start(tools=tools).expect(Send).body is None
    assert start(tools=tools).reply(ok()).expect(Deliver).outcome.reason == "breaker_open"


def test_where_the_settings_leave_no_way_nothing_is_compacted():
    play = start(to=at(wanted=Wanted(("xai-of-old",), "compaction.strategies", own=True)))
    assert play.expect(Send).body is None
    told = play.detail("compaction_failed")
    assert (told["reason"], told["named_by"]) == ("no_strategy", "compaction.strategies")
    assert play.reply(ok()).expect(Deliver).outcome.reason == "no_strategy"


def test_where_a_providers_file_leaves_no_way_a_summary_is_made():
    play = start(to=at("xai-of-old"))
    carried_out(play, said())
    assert play.reply(ok()).reply().expect(Deliver).outcome.strategy == "summary"


@pytest.mark.parametrize(
    ("refusals", "reason"),
    [((error(400),), "compact_http_400"), ((error(401),), "compact_http_401")],
)
def test_a_user_who_wants_no_summary_gets_none(refusals, reason):
    play = start(to=at("openai"))
    carried_out(play, *refusals)
    assert play.expect(Send).body is None
    assert play.reply(ok()).expect(Deliver).outcome.reason == reason


def test_a_passage_over_the_window_is_made_to_fit_first():
    play = start(responses(40), at("openai", "summary"))
    (call,) = carried_out(play, compacted())
    assert b"left out: it did not fit" in call.body
    fitting = read_history(read("responses", call.body), TENANT, HASHER, Ledger(HASHER))
    assert fitting.overhead + fitting.past.sums[-1] <= 7000


def test_one_that_can_not_be_made_to_fit_goes_to_the_next_way():
    raw = json.loads(responses(2))
    raw["input"] = [{"role": "user", "content": "words " * 1500} for _ in range(12)]
    play = start(json.dumps(raw).encode(), at("openai", "summary"))
    calls = carried_out(play, then=said())
    assert all(call.path == "/responses" for call in calls)
    told = play.detail("compaction_failed")
    assert (told["reason"], told["strategy"]) == ("compact_no_room", "openai")


# -- replayed, or not ------------------------------------------------------------------------------------------------

OWNER = at(model="gpt-5.1-2026-09-01")


@pytest.mark.parametrize(
    ("other", "reads"),
    [
        (OWNER, True),
        (replace(OWNER, model="gpt-5.1"), True),
        (replace(OWNER, model="GPT-5.1-latest"), True),
        (replace(OWNER, model="gpt-5.2"), False),
        (replace(OWNER, model="gpt-5.1-mini"), False),
        (replace(OWNER, endpoint="http://up.eu/v1"), False),
        (replace(OWNER, provider="azure"), False),
    ],
    ids=["its owner", "undated", "latest", "another model", "a smaller model", "elsewhere", "another provider"],
)
def test_what_is_sealed_goes_to_its_owner_only(other: Target, reads: bool):
    raw = responses(8)
    play = start(raw, other, Found((kept(raw, 20, sealed(OWNER), OWNER),)))
    assert (BLOB.encode() in (play.expect(Send).body or raw)) is reads
    assert (play.events()[0] == "replayed") is reads


@pytest.mark.parametrize(
    "changes", [{"lead": "Other instructions."}, {"instructions": "Be brief."}, {"tools": [{"type": "web_search"}]}]
)
def test_nor_beside_other_instructions_or_tools(changes):
    raw = responses(8)
    made = kept(raw, 20, sealed(OWNER), OWNER)
    assert start(responses(8, **changes), OWNER, Found((made,))).expect(Send).body is None


def test_nor_in_another_dialect():
    assert binding_of(OWNER, "responses") != binding_of(OWNER, "messages")


def test_the_longest_that_can_be_read_counts_sealed_or_text():
    raw = responses(8)
    text, opaque = kept(raw, 16, TEXT, OWNER), kept(raw, 24, sealed(OWNER), OWNER)
    assert start(raw, OWNER, Found((opaque, text))).detail("replayed")["items"] == 24
    other = replace(OWNER, model="gpt-5.2")
    play = start(raw, other, Found((opaque, text)))
    assert play.detail("replayed")["items"] == 16
    assert BLOB.encode() not in (play.expect(Send).body or b"")


def test_a_summary_after_something_sealed_sums_up_the_items_themselves():
    """Nobody but the provider knows what is in it."""
    raw = responses(36)
    play = start(raw, at("openai", "summary"), Found((kept(raw, 60, sealed(at()), at()), kept(raw, 40, TEXT, at()))))
    calls = carried_out(play, error(400), then=said())
    shown = b"".join(call.body for call in calls[1:])
    assert BLOB.encode() not in shown
    assert b"Earlier work." in shown
    assert b"line 10 " in shown
    assert b"line 9 " not in shown


# -- refused by its own maker ----------------------------------------------------------------------------------------

STALE = {
    "openai": ("The encrypted content for item cmp_1 could not be verified.", "invalid_encrypted_content"),
    "xai": ("Could not decode the compaction blob. Ensure it is unmodified from the compact response.", None),
    "anthropic": ("messages.0.content.0: Invalid `signature` in `compaction` block", "compaction_signature_invalid"),
    "header": ("messages.0.content.0: `compaction` is not one of the expected content block types", None),
}


@pytest.mark.parametrize("words", list(STALE))
def test_a_refused_artifact_counts_as_absent_from_then_on(words):
    tools, raw, to = kit(), responses(8), at()
    found = Found((kept(raw, 20, sealed(to), to),))
    play = start(raw, to, found, tools)
    message, code = STALE[words]
    play.reply(refused(0, 400, message, code=code))
    assert play.expect(Send).body is None, "the whole history fits"
    outcome = play.reply(ok(1)).expect(Deliver).outcome
    assert (outcome.action, outcome.reason, outcome.compactions) == ("recovered", "artifact_unreadable", 0)
    play.reply(Finish())
    assert start(raw, to, found, tools).expect(Send).body is None
    assert not tools.capabilities.missing(to.endpoint, to.model, UNARY, now=1001.0)


def test_a_history_that_is_too_long_without_it_is_summed_up():
    raw, to = responses(18), at()
    play = start(raw, to, Found((kept(raw, 40, sealed(to), to),)))
    play.reply(refused(0, 400, *STALE["openai"][:1], code="invalid_encrypted_content"))
    assert play.expect(Compact).strategy == "summary"
    carried_out(play, said())
    assert BLOB.encode() not in (play.expect(Send).body or b"")
    play.reply(ok(1))
    assert isinstance(play.expect(Save).record, Checkpoint)
    outcome = play.reply().expect(Deliver).outcome
    assert (outcome.action, outcome.reason, outcome.strategy) == ("recovered", "artifact_unreadable", "summary")


def test_a_summary_of_the_same_past_takes_its_place():
    raw, to = responses(18), at()
    play = start(raw, to, Found((kept(raw, 60, sealed(to), to), kept(raw, 40, TEXT, to))))
    play.reply(refused(0, 400, "x", code="invalid_encrypted_content"))
    assert b"Earlier work." in (play.expect(Send).body or b"")
    assert play.reply(ok(1)).expect(Deliver).outcome.reason == "artifact_unreadable"


def test_it_is_dropped_once_and_a_second_refusal_is_the_answer():
    raw, to = responses(8), at()
    play = start(raw, to, Found((kept(raw, 20, sealed(to), to),)))
    for number in range(2):
        play.reply(refused(number, 400, "x", code="invalid_encrypted_content"))
    assert play.expect(Deliver).number == 0


def test_one_that_was_minted_a_moment_ago_says_that_its_strategy_is_of_no_use():
    tools = kit()
    play = start(tools=tools)
    carried_out(play, compacted())
    play.reply(refused(0, 400, "x", code="invalid_encrypted_content"))
    carried_out(play, said())
    outcome = play.reply(ok(1)).reply().expect(Deliver).outcome
    assert (outcome.strategy, outcome.reason, outcome.compactions) == ("summary", "artifact_unreadable", 2)
    play.reply(Finish())
    assert start(responses(18, lead="Another."), tools=tools).expect(Compact).strategy == "openai-trigger"


@pytest.mark.parametrize("second", ["answered", "overflow"])
def test_a_refusal_in_unknown_words_gives_the_clients_own_bytes_their_chance(second):
    tools, raw, to = kit(), responses(8), at()
    found = Found((kept(raw, 20, sealed(to), to),))
    play = start(raw, to, found, tools)
    play.reply(refused(0, 400, "Something is wrong with input[1]."))
    assert play.expect(Send).body is None
    if second == "answered":
        outcome = play.reply(ok(1)).expect(Deliver).outcome
        assert (outcome.action, outcome.reason) == ("relayed", "rewritten_history_refused")
    else:
        too_long = "This model's maximum context length is 8000 tokens. However, your messages resulted in 9000 tokens."
        deliver = play.reply(refused(1, 400, too_long, code="context_length_exceeded")).expect(Deliver)
        assert deliver.number == 0
    play.reply(Finish())
    assert start(raw, to, found, tools).expect(Send).body is None, "it is not tried again"


def test_the_clients_own_mistake_is_not_the_artifacts():
    tools, raw, to = kit(), responses(8), at()
    found = Found((kept(raw, 20, sealed(to), to),))
    play = start(raw, to, found, tools)
    for number in range(2):
        play.reply(refused(number, 400, "Unknown parameter: 'foo'.", code="unknown_parameter"))
    assert play.expect(Deliver).number == 1
    play.reply(Finish())
    assert start(raw, to, found, tools).detail("replayed")["items"] == 20


# -- keys, plans, places ---------------------------------------------------------------------------------------------


def planned(raw: bytes, to: Target, tenant: bytes = TENANT) -> tuple[Sizing, Plan, bytes]:
    request = Request("r1", read("responses", raw), tenant, to, 1000.0)
    tools = kit()
    history = read_history(request.conversation, tenant, HASHER, Ledger(HASHER))
    sizing = Sizing(request, tools, history)
    found = plan(sizing, plain(history), 4000, "threshold")
    assert found is not None
    return sizing, found, compaction_of(sizing, plain(history), found).key


CLAUDE = at("anthropic", "summary", provider="anthropic", means=ON_DEMAND)


DUE = responses(16)


def plan_at(
    raw: bytes, to: Target, percent: float = 50, aim: int | None = None, dialect: Any = "responses", **policy: Any
) -> tuple[Sizing, Plan]:
    request = Request("r1", read(dialect, raw), TENANT, to, 1000.0)
    tools = kit(Policy(prepare_percent=None, target_percent=percent, **policy))
    sizing = Sizing(request, tools, read_history(request.conversation, TENANT, HASHER, Ledger(HASHER)))
    found = plan(sizing, plain(sizing.history), aim or sizing.limits().target or 0, "threshold")
    assert found is not None
    return sizing, found


@pytest.mark.parametrize("percent", [5, 20, 50, 84])
def test_a_provider_is_given_all_but_the_newest_group_whatever_is_aimed_for(percent: float):
    _sizing, found = plan_at(DUE, at(), percent)
    assert found.own is not None
    assert found.own.at == found.first.at == 16 * 4  # all before "what next?"
    assert found.cut.at < found.own.at  # a text leaves what its aim has room for
    assert found.cut == plan_at(DUE, at("summary"), percent)[1].cut


def test_the_newest_calls_and_results_are_such_a_group():
    body = json.loads(DUE)
    call = {"type": "function_call", "call_id": "call_x", "name": "read", "arguments": "{}"}
    body["input"] += [call, {"type": "function_call_output", "call_id": "call_x", "output": "found"}]
    _sizing, found = plan_at(json.dumps(body).encode(), at())
    assert found.first.at == 16 * 4 + 1
    assert found.first.retained == (16 * 4,)  # the user's newest words


@pytest.mark.parametrize("percent", [5, 20, 50, 84])
def test_claude_keeps_the_newest_turns_whatever_is_aimed_for(percent: float):
    """A tenth of the window of 8,000, two turns of some 400 tokens at most."""
    sizing, found = plan_at(messages(16), CLAUDE, percent, dialect="messages")
    kept = sizing.history.past.sums[-1] - sizing.history.past.sums[found.first.at]
    assert 400 < kept <= 800


@pytest.mark.parametrize(("tokens", "least", "most"), [(1300, 900, 1300), (200, 1, 200), (9000, 1500, 2000)])
def test_or_as_many_as_the_settings_say_and_a_quarter_of_the_history_at_most(tokens: int, least: int, most: int):
    sizing, found = plan_at(messages(16), CLAUDE, dialect="messages", keep_recent_tokens=tokens)
    kept = sizing.history.past.sums[-1] - sizing.history.past.sums[found.first.at]
    assert least <= kept <= most


@pytest.mark.parametrize("turns", [9, 11, 13])
def test_no_provider_is_given_more_than_its_window_where_the_rest_can_stay(turns: int):
    """Words only: nothing could be stubbed to make it fit."""
    words = [
        {"role": "user" if n % 2 else "assistant", "content": f"{n} " + "abcdefg " * 200} for n in range(2 * turns)
    ]
    raw = json.dumps({"model": "m", "input": [*words, {"role": "user", "content": "what next?"}]}).encode()
    sizing, found = plan_at(raw, at("openai", "summary"))
    sums = sizing.history.past.sums
    assert 6000 < sizing.history.overhead + sums[found.first.at] <= 8000 - 8000 // 16 - 256
    assert sums[-1] - sums[found.first.at] <= 4000


def test_where_a_provider_gives_nothing_the_text_has_its_own_cut():
    play = start(to=at("openai", "summary"))
    carried_out(play, error(500), said())
    _sizing, found = plan_at(FULL, at())
    saved = play.reply(ok()).expect(Save).record
    assert isinstance(saved, Checkpoint)
    assert (saved.artifact.kind, saved.length) == ("text", found.cut.at)


@pytest.mark.parametrize(
    ("case", "used"), [("goes on", True), ("edited between them", False), ("ends between them", False)]
)
def test_what_is_prepared_stands_for_both_cuts(case: str, used: bool):
    """A history that went elsewhere between them has no use for what the provider was given."""
    tools = kit(Policy())
    play = start(responses(14), at("openai", "summary"), tools=tools)
    play.reply(ok()).expect(Deliver)
    prepared = play.reply(Finish()).expect(Prepare)
    play.reply(True).done()
    assert b"line 13 " in next(prepared.work()).body
    body = json.loads(FULL)
    if case == "edited between them":
        assert body["input"][51]["output"].startswith("line 12 ")
        body["input"][51]["output"] = "line 12 was another"
    if case == "ends between them":
        body["input"][49:] = [{"role": "user", "content": "abcdefg " * 1000}]
    due = start(json.dumps(body).encode(), at("openai", "summary"), tools=tools).expect(Compact)
    assert (due.key == prepared.key) is used


def test_what_a_provider_made_is_of_use_where_it_frees_a_quarter_of_the_request():
    for words, counts in ((1100, True), (1900, False)):
        users = [{"type": "message", "role": "user", "content": "abcdefg " * (2 * words)}]
        play = start(to=at("openai"))
        carried_out(play, compacted([*users, json.loads(ITEM)]))
        assert ("compacted" in play.events()) is counts


@pytest.mark.parametrize(
    ("raw", "to", "tenant"),
    [
        (responses(18, lead="Other instructions."), at(), TENANT),
        (FULL, at("summary"), TENANT),
        (FULL, at("openai-trigger", "summary"), TENANT),
        (FULL, at(model="n"), TENANT),
        (FULL, at(endpoint="http://other/v1"), TENANT),
        (FULL, at(provider="azure"), TENANT),
        (FULL, at(), HASHER.tenant(b"sk-other")),
    ],
    ids=["head", "text only", "another way", "model", "endpoint", "provider", "tenant"],
)
def test_a_flight_is_shared_only_by_those_who_can_use_what_comes_of_it(raw: bytes, to: Target, tenant: bytes):
    assert planned(FULL, at())[2] == planned(FULL, at())[2]
    assert planned(raw, to, tenant)[2] != planned(FULL, at())[2]


def test_a_cut_for_anthropics_block_parts_messages_of_different_roles():
    rounds: list[Json] = []
    for n in range(3):
        rounds += [{"role": "user", "content": f"a{n}"}, {"role": "user", "content": f"b{n}"},
                   {"role": "assistant", "content": f"c{n}"}]  # fmt: skip
    raw = json.dumps(
        {"model": "m", "max_tokens": 9, "messages": [*rounds, {"role": "system", "content": "s"}]}
    ).encode()
    history = read_history(read("messages", raw), TENANT, HASHER, Ledger(HASHER))
    assert same_role_cuts(history) == {1, 4, 7, 9}


def test_readable_asks_nothing_of_text():
    raw = responses(4)
    history = read_history(read("responses", raw), TENANT, HASHER, Ledger(HASHER))
    text = kept(raw, 4, TEXT, at(), head=b"another")
    assert readable(text, history, at(provider="elsewhere"), kit().unreadable, now=0.0)


def test_a_compaction_that_ends_in_nothing_names_the_last_reason():
    assert NothingHelped(()).reason == "no_strategy"


def test_prepared_ahead_by_the_provider_too():
    """Behind the answer in the soft band, by the same effect; the turn that needs it finds it made."""
    tools = kit(Policy(prepare_percent=50))
    raw = responses(14)
    play = start(raw, tools=tools)
    play.reply(ok()).reply(Finish(Usage(5700, 100), "stop"))
    play.reply()
    effect = play.effect
    assert type(effect).__name__ == "Prepare"
    work = effect.work()  # type: ignore[union-attr]
    assert next(work).path == "/responses/compact"
    with pytest.raises(StopIteration) as ended:
        work.send(compacted())
    made = ended.value.value
    told = effect.ended(made)  # type: ignore[union-attr]
    cost = {"calls": 1, "input_tokens": 500, "output_tokens": 80}
    assert told.detail == {"strategy": "openai", "failed": "", **cost}
    play.reply(True).done()
    again = start(FULL, tools=tools)
    assert again.expect(Compact).key == effect.key  # type: ignore[union-attr]
    outcome = again.reply(made).reply(ok()).reply().expect(Deliver).outcome
    assert (outcome.action, outcome.reason, outcome.strategy) == ("compacted", "prepared", "openai")
