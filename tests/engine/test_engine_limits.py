"""Which window a request goes by: what was learned, then the user's figures, then the tables."""

from __future__ import annotations

import pytest
from stage import body, history, kit, request, target

from tidegate.context.budget import Budget
from tidegate.engine.request import Target
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import read_history
from tidegate.overflow import Evidence, Sent, Verdict

BODY = body(history(2), max_tokens=2_000)


def limits(to: Target, *, stated: int | None = None, input_limit: int | None = None, succeeded: int = 0) -> Budget:
    """The sizes for a request with an output limit of 2,000 tokens, after a refusal that states one and a success."""
    tools, asked = kit(), request(BODY, to=to)
    if stated or input_limit:
        refused = Verdict("overflow", "compact", True, Evidence("r", "f"), window=stated, input_limit=input_limit)
        assert tools.windows.learn(to.endpoint, to.model, refused, Sent(tokens=500_000), now=asked.now)
    if succeeded:
        tools.windows.succeeded(to.endpoint, to.model, succeeded, now=asked.now)
    past = read_history(asked.conversation, asked.tenant, tools.hasher, tools.ledger)
    return Sizing(asked, tools, past).limits()


@pytest.mark.parametrize(
    ("to", "learned", "window", "limit"),
    [
        (target(8_000), {}, 8_000, 8_000),
        (target(8_000), {"stated": 4_000}, 4_000, 4_000),
        (target(8_000), {"stated": 32_000}, 32_000, 32_000),
        (target(8_000, own_window=True), {"stated": 32_000}, 8_000, 8_000),
        (target(8_000, own_window=True), {"stated": 4_000}, 4_000, 4_000),
        (target(8_000), {"succeeded": 9_000}, 9_000, 9_000),
        (target(8_000, own_window=True), {"succeeded": 9_000}, 8_000, 8_000),
        (target(8_000, told_at=2_000.0), {"succeeded": 9_000}, 8_000, 8_000),
        (target(None), {"stated": 32_000}, 32_000, 32_000),
        # Room for the answer is taken from a window, not from a limit of the input.
        (target(8_000, counts_output=True), {}, 8_000, 6_000),
        (target(None, counts_output=True), {"stated": 8_000}, 8_000, 6_000),
        (target(None, counts_output=True), {"input_limit": 8_000}, 8_000, 8_000),
        (target(None, counts_output=True, input_limit=8_000), {}, 8_000, 8_000),
        (target(32_000, counts_output=True), {"input_limit": 8_000}, 32_000, 8_000),
    ],
)
def test_the_window_to_go_by(to: Target, learned: dict[str, int], window: int, limit: int) -> None:
    made = limits(to, **learned)
    assert (made.window, made.limit) == (window, limit)


def test_where_nobody_knows_there_is_none() -> None:
    assert limits(target(None)) == Budget()
    assert limits(target(None), succeeded=9_000) == Budget()
