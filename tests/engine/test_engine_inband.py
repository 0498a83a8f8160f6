"""Asking the provider to compact within the request: what is spliced, what its item makes needless, what is learned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playbook import Playbook
from stage import kit, request, target

from tidegate.compactors.openai_inband import asking, pruned
from tidegate.engine.carried import DAY, Given
from tidegate.engine.checkpoint import Found
from tidegate.engine.effects import Deliver, Find, Finish, Head, Save, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.router import Means, Wanted
from tidegate.wire import read
from tidegate.wire.conversation import Usage

INBAND = target(wanted=Wanted(("openai-inband", "summary")), means=Means(inband=True))
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}


@pytest.mark.parametrize("body", [b'{"model":"m","input":[]}', b'{"input": "hi" }\n ', b'{"a":{"b":"}"}}'])
def test_all_other_bytes_stay(body: bytes) -> None:
    made = asking(body, 1234)
    assert json.loads(made) == {
        **json.loads(body),
        "context_management": [{"type": "compaction", "compact_threshold": 1234}],
    }
    end = body.rindex(b"}")
    assert made.startswith(body[:end])
    assert made.endswith(body[end:])


def said(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def result(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "x"}


CMP = {"type": "compaction", "id": "cmp_1", "encrypted_content": "A"}
CMP2 = {"type": "compaction", "id": "cmp_2", "encrypted_content": "B"}


@pytest.mark.parametrize(
    ("items", "kept"),
    [
        ([said("a"), call("1"), result("1"), CMP, said("b")], [0, 3, 4]),
        ([said("s", "developer"), said("a"), call("1"), result("1"), said("t", "system"), CMP], [0, 1, 4, 5]),
        ([said("a"), THOUGHT, said("b", "assistant"), CMP, said("c")], [0, 3, 4]),
        ([said("a"), call("1"), result("1"), CMP, call("2"), result("2"), CMP2, said("b")], [0, 6, 7]),
        ([said("a"), said("b", "assistant", id="msg_1"), said("c"), CMP, said("d")], [0, 1, 2, 3, 4]),
        ([said("a"), CMP, said("b")], [0, 1, 2]),
        ([said("a"), call("1"), CMP, result("1")], [0, 1, 2, 3]),
        ([said("a"), call("1"), result("1"), said("b")], [0, 1, 2, 3]),
    ],
    ids=[
        "a tool round",
        "instructions stay",
        "thoughts",
        "the newest item counts",
        "what a compact call gave",
        "nothing to leave out",
        "an output after it",
        "no item",
    ],
)  # fmt: skip
def test_what_stands_before_a_compaction(items: list[dict[str, Any]], kept: list[int]) -> None:
    body = json.dumps({"model": "m", "input": items}).encode()
    made = pruned(read("responses", body))
    assert json.loads(made)["input"] == [items[n] for n in kept]
    assert json.dumps(CMP).encode() in made or CMP not in [items[n] for n in kept]
    if len(kept) == len(items):
        assert made is body or made == body


def long(tokens: int = 5000, *items: dict[str, Any]) -> bytes:
    history = [said("do it"), THOUGHT, said("done", "assistant"), said("abcdefg " * (tokens // 2)), *items]
    return json.dumps({"model": "m", "input": history}).encode()


def run(book: Playbook, finish: Finish, head: Head | None = None) -> Deliver:
    if isinstance(book.effect, Find):
        book.reply(Found())
    book.expect(Send)
    book.reply(head or Head(0, 200, {}))
    deliver = book.expect(Deliver)
    book.reply(finish)
    return deliver


@pytest.mark.parametrize(("compacts", "reports"), [(False, 1), (True, 0)])
def test_usage_with_a_compaction_in_it_is_no_size(compacts: bool, reports: int) -> None:
    book = Playbook(exchange(request(long(), dialect="responses", to=INBAND), kit()))
    deliver = run(book, Finish(Usage(5100, 900), "stop", compacts=compacts))
    assert deliver.outcome.reason == "asked_in_band"
    saved = 0
    while book.effect is not None:
        book.expect(Save)
        saved += 1
        book.reply()
    assert saved == reports


def test_a_client_that_came_back_without_its_item_is_not_asked_for_again() -> None:
    tools = kit()
    run(
        Playbook(exchange(request(long(), dialect="responses", to=INBAND), tools)),
        Finish(Usage(5100, 900), "stop", compacts=True),
    )
    same = Playbook(exchange(request(long(), dialect="responses", to=INBAND), tools))
    assert run(same, Finish()).outcome.reason == "asked_in_band"  # the same again: nothing was left out
    more = long(5000, said("done", "assistant"), said("and now?"))
    later = Playbook(exchange(request(more, dialect="responses", to=INBAND), tools))
    assert run(later, Finish()).outcome.reason != "asked_in_band"


def test_what_was_given_is_remembered_for_a_day_and_not_without_bound() -> None:
    given = Given(size=2)
    given.add(b"a", 4, now=0.0)
    assert given.in_vain(b"a", 5, now=DAY - 1)
    assert not given.in_vain(b"a", 4, now=1.0)
    assert not given.in_vain(b"b", 5, now=1.0)
    assert not given.in_vain(b"a", 5, now=DAY)
    for name in (b"a", b"b", b"c"):
        given.add(name, 4, now=0.0)
    assert [given.in_vain(name, 5, now=1.0) for name in (b"a", b"b", b"c")] == [False, True, True]


GENERIC = target(provider="generic", endpoint="http://local/v1", wanted=Wanted(("summary",), listed=("summary",)))


def test_an_endpoint_that_takes_a_compaction_back_may_make_another() -> None:
    tools = kit()
    run(Playbook(exchange(request(long(100, CMP, said("x")), dialect="responses", to=GENERIC), tools)), Finish())
    assert tools.capabilities.learned("http://local/v1", ("openai", "openai-trigger"), now=1001.0) == ("openai",)
    known = target(wanted=Wanted(("openai-trigger", "summary"), listed=("openai-trigger", "summary")))
    run(Playbook(exchange(request(long(100, CMP, said("x")), dialect="responses", to=known), tools)), Finish())
    assert tools.capabilities.learned("http://up/v1", ("openai", "openai-trigger"), now=1001.0) == ()


@pytest.mark.parametrize(
    ("body", "way"),
    [
        ({"input": [said("a"), {"type": "compaction_trigger"}]}, "openai-trigger"),
        ({"input": [said("a")], "context_management": [{"type": "compaction"}]}, "openai-inband"),
    ],
)
@pytest.mark.parametrize("compacts", [True, False])
def test_what_a_client_asked_for_itself_shows_what_there_is(body: dict[str, Any], way: str, compacts: bool) -> None:
    tools = kit()
    raw = json.dumps({"model": "m", **body}).encode()
    book = Playbook(exchange(request(raw, dialect="responses", to=GENERIC, hands_off="own_compaction"), tools))
    assert book.expect(Send).body is None
    run(book, Finish(compacts=compacts))
    assert tools.capabilities.learned("http://local/v1", (way,), now=1001.0) == ((way,) if compacts else ())
