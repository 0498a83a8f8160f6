"""What a session came to, by API: counted at the provider's end, where nothing can be claimed.

Knows sessions and the simulator's records. Called by the demo command and by tests.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from tidegate.cli.demo.session import Plan, Session, Shape
from tidegate.simulator import Simulator, SimulatorSettings, SimulatorState

DIALECTS = ("chat", "responses", "messages")
COMPACTED = frozenset({"compacted", "recovered"})
"""Values of `x-tidegate-action` that say a history was made shorter for this very request."""

OUTPUT_LENGTH = 4800
"""Characters of a tool's output; in a small window, no more than a sixth of it."""
NO_END = 1_000_000
"""Tool calls in a row after which the simulated model would answer in words: never."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One API's session. Tokens as the simulator counts them, of input."""

    turns: int
    answered: int
    overflows: int
    """Requests that the provider refused because they did not fit."""
    compactions: int
    """Requests for which the gateway says that it compacted."""
    summary_calls: int
    rule_violations: int
    """Requests that broke a rule of the provider's."""
    facts_planted: int
    facts_alive: int
    """Planted facts in the context of the last request that was answered."""
    tokens_sent: int
    """In every request that was answered, calls for summaries included."""
    tokens_without: int
    """What the agent's own requests hold."""

    @property
    def saved_percent(self) -> float:
        """Part of the tokens that never had to be sent."""
        return 100 * (1 - self.tokens_sent / self.tokens_without) if self.tokens_without else 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """A session that has ended: its figures, and why it ended early, if it did."""

    figures: Figures
    failure: str = ""


def plan_for(window: int, shape: Shape = "steps", *, stream: bool = True) -> Plan:
    """A plan whose turns fit a window of that many tokens."""
    return Plan(
        shape=shape,
        stream=stream,
        output_length=min(OUTPUT_LENGTH, window * 4 // 6),
        max_output=max(64, window // 16),
    )


def provider_for(window: int, shape: Shape = "steps", *, forgetful: bool = False) -> SimulatorSettings:
    """A simulated provider whose model works as an agent of that shape needs it to."""
    return SimulatorSettings(window=window, tool_rounds=1 if shape == "steps" else NO_END, forgetful=forgetful)


def measure(simulator: Simulator, base_url: str, dialect: str, turns: int, plan: Plan) -> Run:
    """Takes a session to `base_url`, which leads to `simulator`, whose records of anything before are dropped.

    Each API has a model of its own, so that none profits from what a gateway learnt through another.
    """
    simulator.reset()
    with closing(Session(base_url, dialect, replace(plan, model=f"{plan.model}-{dialect}"))) as session:
        session.run(turns)
    return Run(count(session, simulator.state, dialect, turns), session.failure)


def count(session: Session, state: SimulatorState, dialect: str, turns: int) -> Figures:
    """The figures of a session that has ended."""
    main, summaries = state.main(dialect), state.summaries(dialect)
    replies = [reply for turn in session.turns for reply in turn.replies]
    alive = main[-1].facts if main else ()
    return Figures(
        turns=turns,
        answered=sum(turn.answered for turn in session.turns),
        overflows=len(state.overflows(dialect)),
        compactions=sum(reply.action in COMPACTED for reply in replies),
        summary_calls=len(summaries),
        rule_violations=sum(violation.dialect == dialect for violation in state.violations),
        facts_planted=len(session.planted),
        facts_alive=len(set(session.planted) & set(alive)),
        tokens_sent=sum(record.input_tokens for record in (*main, *summaries)),
        tokens_without=session.tokens_without,
    )
