"""Which ways of compacting are tried, in which order, and what is said of the others."""

from __future__ import annotations

import pytest

from tidegate.engine.router import CLAUDE as CLAUDE_WAYS
from tidegate.engine.router import DIALECT_OF, NAMES, Means, Wanted, Way, ordered, route, watched
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
        (("summary",), None, ("openai-inband", "context-edit", "summary"), ("summary",)),
        (("summary",), ("openai", "summary"), None, ("openai", "summary")),
        (UNARY, ("summary",), ("openai",), ("summary",)),
        (UNARY, ("summary", "summary"), None, ("summary",)),
    ],
    ids=[
        "the provider's order",
        "forbidden for all",
        "another order for all, of what the provider has",
        "what a provider does not list is not forced on it for all",
        "nor what is optional elsewhere",
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
        ("anthropic", "messages", Means(ways=("threshold",)), {}, "no compaction of Claude's"),
        ("anthropic", "messages", Means("compact-2026-09-04", ways=()), {}, "the model does not compact by itself"),
        (
            "anthropic",
            "messages",
            Means("compact-2026-09-04", ways=("threshold",)),
            {},
            "the model does not compact by itself in a way that the platform has",
        ),
        ("openai", "responses", Means(), {"openai": "it was not there"}, "it was not there"),
        ("openai-inband", "responses", Means(), {}, "does not say that it honours context_management"),
        ("openai-inband", "responses", Means(inband=True), {"openai-inband": "it was not there"}, "it was not there"),
        ("openai-inband", "chat", Means(inband=True), {}, "belongs to the responses API"),
        ("context-edit", "messages", Means(), {}, "the platform has no context editing"),
        ("context-edit", "messages", Means(context_edit="ce", clears=False), {}, "the model has no context editing"),
        ("context-edit", "messages", Means(context_edit="ce"), {"context-edit": "it was not there"}, "it was not"),
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


BOTH = Means("on", "at")


@pytest.mark.parametrize(
    ("means", "missing", "ways"),
    [
        (Means(), (), ()),
        (BOTH, (), ("on-demand", "threshold")),
        (Means(threshold="at"), (), ("threshold",)),
        (Means("on", "at", ways=("threshold",)), (), ("threshold",)),
        (Means("on", ways=("threshold",)), (), ()),
        (Means("on", "at", ways=()), (), ()),
        (BOTH, (CLAUDE_WAYS["on-demand"],), ("threshold",)),
        (BOTH, tuple(CLAUDE_WAYS.values()), ()),
    ],
)
def test_how_claude_compacts(means: Means, missing: tuple[str, ...], ways: tuple[str, ...]) -> None:
    assert means.claude(missing) == ways


@pytest.mark.parametrize(
    ("missing", "names", "words"),
    [
        ((), CLAUDE, "on demand (on) or at a threshold (at)"),
        (("on-demand",), CLAUDE, "may compact at a threshold (at); "),
        (("threshold",), CLAUDE, "may compact on demand (on); "),
        (("on-demand", "threshold"), ("summary",), "gone"),
    ],
)
def test_a_way_that_was_refused_is_told_of_no_more(
    missing: tuple[Way, ...], names: tuple[str, ...], words: str
) -> None:
    found = route("messages", ordered(CLAUDE), BOTH, {CLAUDE_WAYS[way]: "gone" for way in missing})
    assert found.names == names
    assert words in next(choice.reason for choice in (*found.strategies, *found.excluded) if choice.name == "anthropic")
    assert set(watched(CLAUDE)) == {*CLAUDE, *CLAUDE_WAYS.values()}
    assert watched(UNARY) == UNARY


@pytest.mark.parametrize(
    ("means", "words"),
    [
        (
            Means("on", "at", ways=("on-demand", "threshold")),
            "is known to compact on demand (on) or at a threshold (at)",
        ),
        (Means(threshold="at", ways=("threshold",)), "is known to compact at a threshold (at)"),
        (Means(threshold="at"), "nothing is known against it: the model may compact at a threshold (at)"),
    ],
)
def test_how_is_told(means: Means, words: str) -> None:
    assert words in route("messages", ordered(CLAUDE), means).strategies[0].reason


INBAND = Means(inband=True)


@pytest.mark.parametrize(
    ("wanted", "learned", "names"),
    [
        (ordered(("summary",)), ("openai",), ("openai", "summary")),
        (ordered(("summary",)), ("openai-trigger", "openai-inband"), ("openai-trigger", "openai-inband", "summary")),
        (ordered(("openai", "summary")), ("openai",), ("openai", "summary")),
        (ordered(()), ("openai",), ("openai",)),
        (ordered(("summary",), model=("summary",)), ("openai",), ("summary",)),
        (ordered(("summary",), house=("summary",)), ("openai",), ("summary",)),
        (ordered(("summary",), own=True), ("openai",), ("summary",)),
    ],
    ids=["before the summary", "several", "known already", "alone", "a model's", "everybody's", "the provider's own"],
)  # fmt: skip
def test_what_an_endpoint_has_shown_to_have(wanted: Wanted, learned: tuple[str, ...], names: tuple[str, ...]) -> None:
    found = route("responses", wanted.with_learned(learned), Means())
    assert found.names == names
    told = {choice.name: choice.reason for choice in found.strategies}
    assert all("shown to have it" in told[name] for name in found.names if name in learned and name not in wanted.names)


def test_within_the_request_after_what_has_calls_of_its_own() -> None:
    names = ("openai", "openai-trigger", "openai-inband", "summary")
    assert route("responses", ordered(names), INBAND).names == names


# -- where nothing is left ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "model", "house", "own", "missing", "names"),
    [
        (("openai",), None, None, False, {"openai": "it is not there"}, ("summary",)),
        (("openai-inband",), None, None, False, {}, ("summary",)),
        (("openai",), None, None, False, {}, ("openai",)),
        (("openai",), None, None, True, {"openai": "it is not there"}, ()),
        (("openai", "summary"), ("openai",), None, False, {"openai": "it is not there"}, ()),
        (("summary",), None, ("openai",), False, {}, ()),
    ],
    ids=[
        "a file's only way is missing: a summary",
        "a file's only way can't be asked for by itself: a summary",
        "a file's only way is there",
        "the user's own table for the provider is kept to",
        "so is a model's own list",
        "and a list for all providers, of which this one has nothing",
    ],
)
def test_a_summary_where_nothing_else_is_left_and_nobody_forbade_it(
    listed: tuple[str, ...],
    model: tuple[str, ...] | None,
    house: tuple[str, ...] | None,
    own: bool,
    missing: dict[str, str],
    names: tuple[str, ...],
) -> None:
    found = route("responses", ordered(listed, model=model, house=house, own=own), Means(), missing)
    assert found.names == names
    told = found.told()
    assert len({*names, *(choice["name"] for choice in told["excluded"])}) == len(names) + len(told["excluded"])
    if names == ("summary",):
        assert "leaves nothing else" in told["strategies"][0]["reason"]
    assert bool(found.nothing) is not bool(names)


def test_why_nothing_is_tried_names_whose_list_it_was() -> None:
    found = route("chat", ordered(("summary",), house=("openai",)), Means())
    assert found.nothing == "compaction.strategies leaves nothing that can be tried here, and does not name summary"
