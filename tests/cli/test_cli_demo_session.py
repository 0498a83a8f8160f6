"""The demo's agent, straight against the simulated provider: it must be a fair witness before it is believed."""

from contextlib import closing
from dataclasses import replace

import pytest

from tidegate.cli.demo.figures import DIALECTS, measure, plan_for, provider_for
from tidegate.cli.demo.session import REPEATS_MOST, SHAPES, Plan, Session, Shape
from tidegate.simulator import Simulator, Step, serve

WIDE = 1_000_000
TURNS = 12


def held(simulator: Simulator, dialect: str, plan: Plan, turns: int) -> Session:
    with closing(Session(simulator.url, dialect, plan)) as session:
        session.run(turns)
    return session


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stream", [True, False])
def test_provider_without_a_limit_answers_every_turn_and_agrees_on_every_figure(
    dialect: str, shape: Shape, stream: bool
) -> None:
    with serve(provider_for(WIDE, shape)) as simulator:
        session = held(simulator, dialect, plan_for(8000, shape, stream=stream), TURNS)
        main = simulator.state.main(dialect)
    assert [turn.answered for turn in session.turns] == [True] * TURNS
    assert simulator.state.violations == []
    assert {record.stream for record in main} == {stream}
    assert sum(record.input_tokens for record in main) == session.tokens_without
    assert session.planted == ["FACT-01", "FACT-02", "FACT-03"]
    assert list(main[-1].facts) == session.planted


@pytest.mark.parametrize("dialect", DIALECTS)
def test_steps_have_a_human_message_each_and_a_tool_call(dialect: str) -> None:
    with serve(provider_for(WIDE)) as simulator:
        session = held(simulator, dialect, plan_for(8000), 3)
    humans = [item for item in session.items if item.get("role") == "user" and "Step" in str(item["content"])]
    assert len(humans) == 3
    assert [len(turn.replies) for turn in session.turns] == [2, 2, 2]
    assert all(turn.replies[0].answer.calls and turn.replies[1].answer.text for turn in session.turns)  # type: ignore[union-attr]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_single_has_one_human_message_and_then_only_tool_calls(dialect: str) -> None:
    with serve(provider_for(WIDE, "single")) as simulator:
        session = held(simulator, dialect, plan_for(8000, "single"), 3)
    humans = [item for item in session.items if item.get("role") == "user" and "file by file" in str(item["content"])]
    assert session.items[0] is humans[0]
    assert len(humans) == 1
    assert all(reply.answer is not None and reply.answer.calls for turn in session.turns for reply in turn.replies)


def test_sixty_turns_of_the_default_plan_are_ten_windows() -> None:
    with serve(provider_for(WIDE)) as simulator:
        held(simulator, "chat", plan_for(8000), 60)
        assert simulator.state.main()[-1].input_tokens > 10 * 8000


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_window_that_is_full_ends_the_session(dialect: str, shape: Shape) -> None:
    with serve(provider_for(8000, shape)) as simulator:
        run = measure(simulator, simulator.url, dialect, 30, plan_for(8000, shape))
    assert 2 <= run.figures.answered < 10
    assert run.figures.turns == 30
    assert run.failure.startswith(f"turn {run.figures.answered + 1} was not answered")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Step(do="error", status=500), "(status 500)"),
        (Step(do="error", status=500, in_stream=True), "(status 200)"),
        (Step(do="cut"), "was not answered"),
        (Step(do="drop"), "(status 0)"),
        (Step(do="garbage"), "was not answered"),
        (Step(do="empty"), "was not answered"),
    ],
)
def test_turn_that_got_no_answer_is_not_counted_as_answered(dialect: str, step: Step, why: str) -> None:
    with serve(provider_for(WIDE)) as simulator:
        simulator.script(Step(do="answer", times=2), step)
        session = held(simulator, dialect, plan_for(8000), 5)
    assert [turn.answered for turn in session.turns] == [True, False]
    assert session.failure.startswith("turn 2 was not answered")
    assert why in session.failure


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("times", "answered"), [(REPEATS_MOST, True), (REPEATS_MOST + 1, False)])
def test_answer_that_was_cut_short_is_asked_for_again(dialect: str, times: int, answered: bool) -> None:
    with serve(provider_for(WIDE)) as simulator:
        simulator.script(Step(do="length", times=times))
        session = held(simulator, dialect, plan_for(8000), 1)
    assert session.turns[0].answered is answered
    assert [reply.cut for reply in session.turns[0].replies[:times]] == [True] * times


@pytest.mark.parametrize("dialect", DIALECTS)
def test_parallel_calls_are_all_answered(dialect: str) -> None:
    with serve(replace(provider_for(WIDE), parallel_calls=3)) as simulator:
        session = held(simulator, dialect, plan_for(8000), 2)
        assert simulator.state.violations == []
    assert len(session.turns[0].replies[0].answer.calls) == 3  # type: ignore[union-attr]
    assert session.turns[1].answered


def test_session_carries_the_plans_headers_and_fields() -> None:
    plan = replace(plan_for(8000), headers={"x-trace": "1"}, extra={"temperature": 0.5})
    with serve(provider_for(WIDE)) as simulator:
        held(simulator, "chat", plan, 1)
        record = simulator.state.main()[0]
    assert "x-trace" in record.headers
    assert record.json()["temperature"] == 0.5
