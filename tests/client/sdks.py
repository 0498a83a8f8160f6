"""The agents of the gateway's tests with Tidegate in process, in front of a simulated provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agents import AGENTS, Agent

import tidegate
from tidegate.simulator import Simulator, SimulatorSettings, serve


def settings(window: int | None = None, **tables: Any) -> dict[str, Any]:
    """Settings of a store in memory, for a model of that window; `tables` are shaped like the configuration file."""
    known = {"models": {"*": {"window": window}}} if window else {}
    return {"store": {"kind": "memory"}, **known, **tables}


@dataclass
class Here:
    """A simulated provider, and settings of a house of its own in front of it."""

    simulator: Simulator
    given: Mapping[str, Any]

    @property
    def url(self) -> str:
        return self.simulator.url

    @property
    def records(self) -> list[Any]:
        return list(self.simulator.state.records)

    def of(self, kind: str) -> list[Any]:
        return [record for record in self.records if record.kind == kind]

    @property
    def violations(self) -> list[Any]:
        return [record.violation for record in self.records if record.violation]

    def agent(self, api: str, *, stream: bool, wrapped: bool = True) -> Agent:
        """An agent of the real SDK, whose client has Tidegate in place unless it is not `wrapped`."""
        agent = AGENTS[api](self.url, stream=stream)
        make = agent.client

        def client(kind: type[Any]) -> Any:
            known = agent._clients.get(kind.__name__)
            if known is None:
                known = agent._clients[kind.__name__] = (
                    tidegate.wrap(make(kind), settings=self.given) if wrapped else make(kind)
                )
            return known

        agent.client = client  # type: ignore[method-assign]
        return agent


_numbers = iter(range(1, 10**6))


@contextmanager
def here(simulated: SimulatorSettings | None = None, *, window: int | None = None, **tables: Any) -> Iterator[Here]:
    # Settings that differ make a house of their own: no test knows another's conversations.
    own = {"server": {"port": 20_000 + next(_numbers) % 40_000}}
    with serve(simulated) as simulator:
        yield Here(simulator, {**settings(window, **tables), **own})
