"""Compactions whose calls the program makes: what is asked, and what comes of whatever it was told."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import openai
import pytest
from sdks import here
from test_client_compactor import DIALECTS, WINDOW, client, compactor, talk, words

import tidegate
from tidegate.engine.checkpoint import StoreError
from tidegate.simulator import SimulatorSettings, Step

FACTS = [f"FACT-{number:02d}" for number in range(20)]
PROSE = "The customer asked for twenty things, which were: " + ", ".join(FACTS)


def asks(sdk: Any, dialect: str, request: dict[str, Any]) -> Any:
    create = {
        "chat": lambda: sdk.chat.completions,
        "responses": lambda: sdk.responses,
        "messages": lambda: sdk.messages,
    }
    return create[dialect]().create(**request)


def taken(plan: tidegate.Plan, reply: object) -> None:
    """Gives every call the same answer."""
    while plan.request is not None:
        plan.take(reply)


@DIALECTS
def test_the_program_s_own_call_makes_what_the_compactor_s_would(dialect):
    with here(SimulatorSettings(window=WINDOW)) as place:
        made, messages = compactor(place, dialect, system="You are a shop."), talk(20)
        before = copy.deepcopy(messages)
        plan = made.plan(messages)
        assert plan is not None
        assert plan.made is None
        assert "stream" not in plan.request
        assert place.records == []
        while plan.request is not None:
            plan.take(asks(client(place, dialect), dialect, plan.request))
        got = plan.made
        assert messages == before
        assert got.tokens_after < WINDOW * 0.6 < got.tokens_before
        assert got.calls == len(place.of("summary"))
        assert got.input_tokens > 0
        assert all(fact in words(got.messages) for fact in FACTS)
        assert place.violations == []
        # It is stored as any other: the same list needs no call, and no plan.
        again = made.compact_sync(messages)
        assert (again.calls, again.messages) == (0, got.messages)
        assert made.plan(messages).request is None
        assert made.plan(messages).made.messages == got.messages


@DIALECTS
def test_what_is_not_due_needs_no_plan(dialect):
    made = tidegate.Compactor(
        model="gpt-5.5",
        dialect=dialect,
        window=100_000,
        settings={"store": {"kind": "memory"}, "server": {"port": 1234}},
    )
    assert made.plan(talk(3)) is None
    assert made.plan(talk(3), force=True).request is not None
    assert made.plan(talk(1)[-1:], force=True) is None


@DIALECTS
def test_a_summary_may_come_as_a_text_and_no_client_is_needed(dialect):
    made = tidegate.Compactor(
        model="gpt-5.5",
        dialect=dialect,
        window=WINDOW,
        settings={"store": {"kind": "memory"}, "server": {"port": 1235}},
    )
    plan = made.plan(talk(20), focus="the prices")
    assert "Additional focus: the prices" in words(plan.request)
    got = None
    while plan.request is not None:
        got = plan.take(PROSE)
    assert got is plan.made
    assert got.summary == PROSE
    assert PROSE in words(got.messages)


@DIALECTS
def test_a_call_that_was_too_long_is_asked_for_in_halves(dialect):
    with here(SimulatorSettings(window=WINDOW)) as place:
        plan = compactor(place, dialect).plan(talk(20))
        first = plan.request
        # The summarizer's window is smaller than anybody knew.
        place.simulator.script(Step(do="overflow"))
        with pytest.raises(Exception, match=r"(?i)too long|context") as refused:
            asks(client(place, dialect), dialect, first)
        assert plan.take(refused.value) is None
        assert len(words(plan.request)) < len(words(first))
        while plan.request is not None:
            plan.take(asks(client(place, dialect), dialect, plan.request))
        assert plan.made is not None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (ConnectionResetError("gone"), "summary_unreachable"),
        ("", "summary_empty"),
        ({"object": "chat.completion", "choices": []}, "summary_cut_off"),
        ("I'm sorry, but I can't help with that.", "summary_refused"),
    ],
)
def test_what_is_no_summary_is_told(reply, reason):
    with here(SimulatorSettings(window=WINDOW)) as place:
        plan = compactor(place, "chat").plan(talk(20))
        with pytest.raises(tidegate.CompactionFailed) as failed:
            taken(plan, reply)
        assert failed.value.reason == reason
        assert plan.request is None
        assert plan.made is None
        with pytest.raises(ValueError, match="no call to be made"):
            plan.take(PROSE)


def test_a_refusal_is_told_by_its_status():
    with here(SimulatorSettings(window=WINDOW)) as place:
        plan = compactor(place, "chat").plan(talk(20))
        place.simulator.script(Step(do="error", status=401))
        with pytest.raises(openai.AuthenticationError) as refused:
            asks(client(place, "chat"), "chat", plan.request)
        with pytest.raises(tidegate.CompactionFailed, match="summary_http_401"):
            plan.take(refused.value)


def test_an_answer_of_another_kind_is_told_so():
    with here(SimulatorSettings(window=WINDOW)) as place:
        plan = compactor(place, "chat").plan(talk(20))
        with pytest.raises(TypeError, match="not a int"):
            plan.take(7)
        assert plan.request is not None


class Broken:
    """A store that is down."""

    def find(self, *asked: object) -> object:
        raise StoreError("down")

    save = report = find


def test_a_store_that_is_down_costs_a_plan_nothing_but_the_memory(monkeypatch):
    with here(SimulatorSettings(window=WINDOW)) as place:
        made = compactor(place, "chat")
        monkeypatch.setattr(made._house, "store", Broken())
        for _ in range(2):
            plan = made.plan(talk(20))
            taken(plan, PROSE)
            assert PROSE in words(plan.made.messages)


def test_a_plan_that_is_dropped_leaves_nothing_locked():
    with here(SimulatorSettings(window=WINDOW)) as place:
        made = compactor(place, "chat")
        plan = made.plan(talk(20))
        del plan
        gc.collect()
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(made.compact_sync(talk(20))), daemon=True)
        thread.start()
        thread.join(20)
        assert got[0] is not None


def test_only_summaries_are_asked_for_where_the_provider_could_compact_by_itself():
    made = tidegate.Compactor(
        openai.OpenAI(api_key="k"), model="gpt-5.5", dialect="responses", window=WINDOW,
        settings={"store": {"kind": "memory"}, "server": {"port": 1236}},
    )  # fmt: skip
    request = made.plan(talk(20)).request
    assert "summary" in words(request["instructions"] if "instructions" in request else request["input"]).lower()
    assert "compaction_trigger" not in words(request)
