"""Which ways of compacting are tried, in which order, and what is said of the others."""

from __future__ import annotations

import pytest

from tidegate.engine.router import DIALECT_OF, NAMES, Means, ordered, route
from tidegate.provider_file import NATIVE

UNARY = ("openai", "openai-trigger", "summary")
CLAUDE = ("anthropic", "summary")
ON_DEMAND = Means(on_demand="compact-2026-09-04", ways=("on-demand", "threshold"))


def test_the_dialects_of_the_strategies_are_those_of_the_provider_files() -> None:
    assert DIALECT_OF == NATIVE


@pytest.mark.parametrize(
    ("listed", "model", "house", "names"),
    [
        (UNARY, None, None, UNARY),
        (UNARY, None, ("summary",), ("summary",)),
        (UNARY, None, ("summary", "openai", "xai"), ("summary", "openai")),
        (("summary",), None, ("openai", "summary"), ("summary",)),
        (("summary",), ("openai", "summary"), None, ("openai", "summary")),
        (UNARY, ("summary",), ("openai",), ("summary",)),
        (UNARY, ("summary", "summary"), None, ("summary",)),
    ],
    ids=[
        "the provider's order",
        "forbidden for all",
        "another order for all, of what the provider has",
        "what a provider does not list is not forced on it for all",
        "but for a model it is",
        "a model's own counts for more",
        "named twice",
    ],
)
def test_whose_order_counts(
    listed: tuple[str, ...], model: tuple[str, ...] | None, house: tuple[str, ...] | None, names: tuple[str, ...]
) -> None:
    assert route("responses", ordered(listed, model=model, house=house), Means()).names == names


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
@pytest.mark.parametrize("listed", [(), ("summary",), UNARY, CLAUDE, (*NAMES, "own"), ("elide", "openai-inband")])
def test_every_strategy_is_told_of_once_and_with_a_reason(dialect: str, listed: tuple[str, ...]) -> None:
    found = route(dialect, ordered(listed), ON_DEMAND)  # type: ignore[arg-type]
    told = found.told()
    everyone = [choice["name"] for choice in (*told["strategies"], *told["excluded"])]
    assert sorted(everyone) == sorted({*NAMES, *listed})
    assert all(len(choice["reason"]) > 10 for choice in (*told["strategies"], *told["excluded"]))
    assert {*told} == {"strategies", "excluded"}


@pytest.mark.parametrize(
    ("name", "dialect", "means", "missing", "words"),
    [
        ("openai", "chat", Means(), {}, "belongs to the responses API"),
        ("anthropic", "responses", ON_DEMAND, {}, "belongs to the messages API"),
        ("anthropic", "messages", Means(ways=("threshold",)), {}, "no compaction on demand"),
        ("anthropic", "messages", Means("compact-2026-09-04", ()), {}, "the model does not compact on demand"),
        ("openai", "responses", Means(), {"openai": "it was not there"}, "it was not there"),
        ("openai-inband", "responses", Means(), {}, "not built yet"),
        ("context-edit", "messages", Means(), {}, "not built yet"),
        ("elide", "chat", Means(), {}, "not built yet"),
        ("magic", "chat", Means(), {}, "no such strategy"),
    ],
)
def test_why_a_strategy_that_is_wanted_is_not_tried(
    name: str, dialect: str, means: Means, missing: dict[str, str], words: str
) -> None:
    found = route(dialect, ordered((name, "summary")), means, missing)  # type: ignore[arg-type]
    assert found.names == ("summary",)
    assert words in next(choice.reason for choice in found.excluded if choice.name == name)


def test_a_model_of_which_nothing_is_known_may_compact() -> None:
    assert route("messages", ordered(CLAUDE), Means(on_demand="compact-2026-09-04")).names == CLAUDE
