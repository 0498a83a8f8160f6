"""Where one model gives no summary, the next of the user's list is asked: in turn, within one bound of calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_world import Exchange, Gateway, Provider, Summarizer, new_kit, reply_of, ruler, target_of

from tidegate.compactors.strategy import Call, Reply

DIALECTS = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
WINDOW = 3000


def body(dialect: str, turns: int = 16) -> bytes:
    items: list[dict[str, Any]] = []
    for number in range(turns):
        items += [
            {"role": "user", "content": f"Question {number}: " + "what of it? " * 40},
            {"role": "assistant", "content": f"Answer {number}: FACT-{number} " + "this of it. " * 40},
        ]
    items.append({"role": "user", "content": "And now?"})
    key = "input" if dialect == "responses" else "messages"
    return json.dumps({"model": "m", key: items, "max_tokens": 100}).encode()


def refusal(status: int, message: str, code: str = "x") -> Reply:
    return Reply(status, json.dumps({"error": {"message": message, "code": code}}).encode())


VAIN = {
    "a filter's refusal": lambda path: refusal(400, "The response was filtered.", "content_filter"),
    "a refusal in words": lambda path: reply_of(path, "I'm sorry, but I can't help with that."),
    "nothing": lambda path: reply_of(path, ""),
    "no such model": lambda path: refusal(404, "The model does not exist.", "model_not_found"),
    "a limit of its own": lambda path: refusal(429, "Slow down."),
    "a server in trouble": lambda path: refusal(500, "Oops."),
    "no answer": lambda path: Reply(0, error="no answer within 180 seconds"),
}
KEY = {"a refused key": lambda path: refusal(401, "No such key.")}


class Some:
    """Answers in vain for the models named, and sums up for any other."""

    def __init__(self, what: str, *models: str) -> None:
        self.what, self.models, self.good = what, models, Summarizer()
        self.asked: list[str] = []

    def __call__(self, call: Call) -> Reply:
        self.asked.append(json.loads(call.body)["model"])
        return {**VAIN, **KEY}[self.what](call.path) if self.asked[-1] in self.models else self.good(call)


def served(dialect: str, some: Some, models: dict[str, int | None], **kit: Any) -> Exchange:
    to = target_of(dialect, WINDOW, summarizers=tuple(models.items()))
    return Gateway(dialect, to, Provider(dialect, 100_000), some, kit=new_kit(**kit)).serve(body(dialect))


@DIALECTS
@pytest.mark.parametrize("what", list(VAIN))
def test_the_next_model_sums_up(dialect: str, what: str) -> None:
    some = Some(what, "m")
    seen = served(dialect, some, {"second": None, "third": None})
    assert some.asked == ["m", "second"]
    assert seen.outcome is not None
    assert (seen.outcome.action, seen.outcome.reason) == ("compacted", "")
    assert json.loads(seen.sent[0])["model"] == "m"
    failed = [dict(notice.detail) for notice in seen.notices if notice.event == "compaction_failed"]
    assert [(one["strategy"], one["calls"]) for one in failed] == [("summary", 1)]


def test_one_after_the_other_and_then_the_clients_own_request_goes() -> None:
    some = Some("nothing", "m", "second", "third")
    seen = served("chat", some, {"second": None, "third": None})
    assert some.asked == ["m", "second", "third"]
    assert seen.originals == [True]
    assert seen.outcome is not None
    assert (seen.outcome.action, seen.outcome.reason, seen.outcome.summary_calls) == ("relayed", "summary_empty", 3)


def test_all_of_them_share_one_bound_of_calls() -> None:
    some = Some("nothing", "m", "second", "third")
    served("chat", some, {"second": None, "third": None}, summary_max_calls=2)
    assert some.asked == ["m", "second"]


def test_a_refused_credential_is_refused_for_every_model() -> None:
    some = Some("a refused key", "m")
    served("chat", some, {"second": None})
    assert some.asked == ["m"]


def test_each_is_asked_within_its_own_window() -> None:
    some = Some("nothing", "m")
    seen = served("chat", some, {"small": 2000})
    assert some.asked[0] == "m"
    assert len(some.asked) > 2
    assert all(ruler("chat", call.body) < 2000 for call in seen.calls[1:])
    assert seen.outcome is not None
    assert seen.outcome.action == "compacted"
