"""Figures of a run, their medians and ratios, and what they say: bars that are met or not, ratios that have worsened.

Pure: takes and gives values; `bench/gateway.py` measures and prints.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Rounds = Sequence[Mapping[str, float]]
Figures = Mapping[str, Mapping[str, Rounds]]
"""Of each scenario and each gateway, what each round found, by metric."""

SLACK = 2.0
"""How many times its stored ratio a ratio may be before it counts as worsened."""


def median(figures: Figures, scenario: str, gateway: str, metric: str) -> float | None:
    """The metric's median over the rounds that have it."""
    found = [one[metric] for one in figures.get(scenario, {}).get(gateway, ()) if metric in one]
    return statistics.median(found) if found else None


def total(figures: Figures, scenario: str, gateway: str, metric: str) -> float | None:
    """The metric's sum over all rounds."""
    found = [one[metric] for one in figures.get(scenario, {}).get(gateway, ()) if metric in one]
    return sum(found) if found else None


def ratio(figures: Figures, scenario: str, metric: str, gateway: str, base: str) -> float | None:
    """How many times the base's figure the gateway's is: the median of the rounds' ratios.

    The two of a round are taken one right after the other, so what slows the machine for a while slows both.
    """
    pairs = _pairs(figures, scenario, metric, gateway, base)
    found = [mine / theirs for mine, theirs in pairs if theirs > 0]
    return statistics.median(found) if found else None


def added(figures: Figures, scenario: str, metric: str, gateway: str, base: str = "direct") -> float | None:
    """What the gateway's figure is above the base's: the median of the rounds' differences."""
    found = [mine - theirs for mine, theirs in _pairs(figures, scenario, metric, gateway, base)]
    return statistics.median(found) if found else None


def _pairs(figures: Figures, scenario: str, metric: str, gateway: str, base: str) -> list[tuple[float, float]]:
    by_gateway = figures.get(scenario, {})
    rounds = zip(by_gateway.get(gateway, ()), by_gateway.get(base, ()), strict=False)
    return [(mine[metric], theirs[metric]) for mine, theirs in rounds if metric in mine and metric in theirs]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure of Tidegate has to be: at most `limit`, or at least, if `least`; `stretch` would be better.

    `beside` is a figure shown beside it, which is held to nothing.
    """

    point: int
    what: str
    value: Callable[[Figures, str], float | None]  # of the figures and the gateway's name
    limit: float
    unit: str = "×"
    stretch: float | None = None
    least: bool = False
    beside: Callable[[Figures, str], float | None] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar, what was measured, and whether it is met; None: not measured in this run."""

    bar: Bar
    value: float | None
    beside: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.value is None else self._within(self.bar.limit)

    @property
    def stretched(self) -> bool:
        """Whether the better bar is met too."""
        return self.value is not None and self.bar.stretch is not None and self._within(self.bar.stretch)

    def _within(self, limit: float) -> bool:
        assert self.value is not None
        return self.value >= limit if self.bar.least else self.value <= limit


def judge(bars: Sequence[Bar], figures: Figures, gateway: str = "tidegate") -> list[Verdict]:
    """Every bar with the figure that it is held to."""
    return [
        Verdict(bar, bar.value(figures, gateway), bar.beside(figures, gateway) if bar.beside else None) for bar in bars
    ]


@dataclass(frozen=True, slots=True)
class Worse:
    """A ratio that is far above the stored one, or that could not be measured any more."""

    check: str
    stored: float
    found: float | None


def worsened(stored: Mapping[str, float], found: Mapping[str, float | None], slack: float = SLACK) -> list[Worse]:
    """The checks whose ratio is at least `slack` times the stored one, or is missing; only stored ones are judged."""
    return [
        Worse(check, ratio, found.get(check))
        for check, ratio in stored.items()
        if (value := found.get(check)) is None or value >= ratio * slack
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned so that it reads as text too; numbers to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def number(value: float | None) -> str:
    """A figure with three digits that count."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"
