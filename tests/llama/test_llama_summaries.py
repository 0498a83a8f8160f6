"""The summary strategy with a real server: the calls it makes fit, and their answers are taken."""

from __future__ import annotations

import json

import pytest
from llama_process import PATHS, post, said, turn
from tiny_models import RECITED

from tidegate.compactors.strategy import Reply, Span, Summary
from tidegate.compactors.summary import default_options, planned_calls, work
from tidegate.context.estimate import text_tokens
from tidegate.overflow import Refusal, classify
from tidegate.providers import load
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName

WINDOW = 2_048
RATIO = 1.6
"""The model's own tokens for one estimated token, as calibration would find out."""


def span_of(dialect: DialectName, turns: int, window: int | None, ratio: float = 1.0) -> Span:
    items = [
        said(dialect, "assistant" if n % 2 else "user", f"Turn {n}: " + "read the files of the cart again; " * 12)
        for n in range(turns)
    ]
    conversation = REQUESTS[dialect].read(json.dumps(turn(dialect, items)).encode())
    size = text_tokens(json.dumps(items))
    return Span(conversation, tuple(items), (), model="local", window=window, room=256, size=size, ratio=ratio)


def summarised(url: str, span: Span) -> tuple[Summary, list[int]]:
    """Runs `work` against a server; the summary, and the status of every reply."""
    rules, statuses = load().rules("llamacpp"), []

    def overflows(reply: Reply) -> bool:
        return classify(Refusal(reply.status, reply.body), rules).action == "compact"

    steps = work(span, default_options(), overflows)
    call = next(steps)
    while True:
        answer = post(url + "/v1" + call.path, call.body, call.add_headers)
        statuses.append(answer.status)
        try:
            call = steps.send(Reply(answer.status, answer.body, answer.headers))
        except StopIteration as end:
            return end.value, statuses


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("turns", [8, 60])
def test_a_history_is_summarised_within_the_known_window(reciting: str, dialect: DialectName, turns: int) -> None:
    span = span_of(dialect, turns, WINDOW, RATIO)
    summary, statuses = summarised(reciting, span)
    assert summary.text == "".join(RECITED).strip()
    assert statuses == [200] * len(statuses)
    assert len(statuses) <= planned_calls(span, default_options())
    assert summary.output_tokens == len(statuses) * (len(RECITED) + 1)


@pytest.mark.parametrize("dialect", PATHS)
def test_an_unknown_window_is_found_by_real_refusals(reciting: str, dialect: DialectName) -> None:
    summary, statuses = summarised(reciting, span_of(dialect, 60, None))
    assert summary.text == "".join(RECITED).strip()
    assert statuses[0] == 400
    assert statuses.count(400) <= 3
    assert statuses[-1] == 200
