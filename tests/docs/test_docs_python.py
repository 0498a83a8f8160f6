"""Every Python block of README.md and docs/, run as it stands, with the SDKs that it names, in front of a simulated
provider.

What a block takes for granted (a client, a list of messages) is given to it; what it is shown for is checked after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final, TypeAlias

import anthropic
import httpx2
import openai
import pytest
from pages import Name, blocks

import tidegate
from tidegate import testing
from tidegate.cli.demo.gateway_process import gateway
from tidegate.client.blocking import Blocking
from tidegate.client.waiting import Waiting
from tidegate.simulator import Simulator

WINDOW = 30_000
FACTS = [f"FACT-{number:02d}" for number in range(24)]
WORDS = "and so on, as agents do " * 80
MESSAGES = [{"role": role, "content": f"{fact} {WORDS}"} for fact in FACTS for role in ("user", "assistant")]
MESSAGES.append({"role": "user", "content": "And now?"})
"""About a thousand tokens for each fact."""
WHOLE = [*MESSAGES[:-1], *MESSAGES]
"""More than the window."""

Space: TypeAlias = dict[str, Any]
"""The names of a block: those it is given, then its own too."""

PYTHON: Final = blocks("python")
ELSEWHERE: Final = {
    **{name: "tests/frameworks" for name in PYTHON if name.page == "recipes.md" and "own shapes" not in name.heading},
    Name("in-process.md", "LiteLLM", 0): "tests/with_litellm",
    Name("in-process.md", "LiteLLM", 1): "tests/with_litellm",
}
"""Blocks that need packages of groups of their own, and the tests that run them."""


NAMED: Final = set(ELSEWHERE)


def shown(page: str, heading: str, number: int = 0) -> Name:
    """A block that a test runs."""
    name = Name(page, heading, number)
    NAMED.add(name)
    return name


def of(page: str, heading: str, *numbers: int) -> pytest.MarkDecorator:
    """Runs a test with the names of these blocks of a heading, the first of it where none is said."""
    names = [shown(page, heading, number) for number in numbers or (0,)]
    return pytest.mark.parametrize("name", names, ids=lambda name: f"{name.heading} {name.number}")


class Here(SimpleNamespace):
    """What a block finds: a provider, and what is needed to ask it."""

    provider: Simulator
    space: Space
    monkeypatch: pytest.MonkeyPatch

    def named(self, kind: str) -> int:
        """How many requests of that kind the provider has had."""
        return sum(record.kind == kind for record in self.provider.state.records)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Here]:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TIDEGATE_STORE__KIND", "memory")
    # A house of its own for each test.
    monkeypatch.setenv("TIDEGATE_SERVER__PORT", str(20_000 + hash(tmp_path) % 40_000))
    with testing.simulator(WINDOW) as provider:
        for package, root in (("OPENAI", "/v1"), ("ANTHROPIC", "")):
            monkeypatch.setenv(f"{package}_BASE_URL", provider.url + root)
            monkeypatch.setenv(f"{package}_API_KEY", "sk-any")
        space: Space = {
            "openai": openai,
            "anthropic": anthropic,
            "tidegate": tidegate,
            "json": json,
            "messages": MESSAGES,
        }
        yield Here(provider=provider, space=space, monkeypatch=monkeypatch)


def run(name: Name, space: Space, **changed: str) -> Space:
    """Runs a block with the names of `space`. `changed` are words of it that are others here."""
    text = PYTHON[name]
    for before, after in changed.items():
        assert before in text, f"the block does not say {before} any more"
        text = text.replace(before, after)
    exec(compile(text, f"{name.page}: {name.heading}", "exec"), space)
    return space


def asked(client: openai.OpenAI, messages: Any, model: str = "gpt-5.5") -> httpx2.Headers:
    """Headers of an answer of the chat API."""
    headers: httpx2.Headers = client.chat.completions.with_raw_response.create(
        model="gpt-5.5", messages=messages
    ).headers
    return headers


def recovers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        asked(openai.OpenAI(), WHOLE)
    assert asked(client, WHOLE)["x-tidegate-action"] == "recovered"


# -- README, Getting started -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [shown("README.md", "Without a gateway"), shown("in-process.md", "One line")])
def test_one_line(here, name):
    recovers(run(name, here.space)["client"])


@pytest.fixture(scope="module")
def through() -> Iterator[str]:
    """Base URL of a gateway in front of a simulated provider."""
    with testing.simulator(WINDOW) as provider, gateway(provider.url) as url:
        yield url


@of("getting-started.md", "5. Point your agent at it", 0, 1)
def test_a_gateway_s_base_url(here, through, name):
    client = run(name, here.space, **{"http://127.0.0.1:8484": through})["client"]
    said: Any = [{"role": "user", "content": "Say hello."}]
    ask = client.messages if name.number else client.chat.completions
    answer = ask.with_raw_response.create(model="m", messages=said, max_tokens=50)
    assert answer.headers["x-tidegate-action"] == "relayed"


# -- In process ------------------------------------------------------------------------------------------------------


@of("in-process.md", "One line", 1)
def test_http_clients_with_options_of_their_own(here, name):
    space = run(name, here.space)
    http, ahttp = space["client"]._client, space["aclient"]._client
    assert isinstance(http._transport, Blocking)
    assert isinstance(ahttp._transport, Waiting)
    proxied = [mount for mount in http._mounts.values() if isinstance(mount, Blocking)]
    assert proxied
    assert "proxy.example" in repr(vars(proxied[0].below._pool))


@of("in-process.md", "One line", 2)
def test_settings_in_code(here, name):
    space = run(name, here.space)
    settings = space["client"]._client._transport.house.settings
    assert settings.compaction.threshold_percent == 70
    assert settings.models["my-model"].window == 32_000


@of("in-process.md", "Rules for a block, for a request")
def test_rules_for_a_block_and_for_a_request(here, name):
    # A window of 24,000 tokens and no compaction before the newest turn: the rules alone say what is due.
    here.space["client"] = tidegate.wrap(openai.OpenAI(), settings={"models": {"*": {"window": WINDOW}}})
    run(name, here.space)
    mains = [record for record in here.provider.state.records if record.kind == "main"]
    assert [len(record.body) < len(json.dumps(MESSAGES)) // 2 for record in mains] == [True, True, False]
    assert here.named("summary") >= 1


@of("in-process.md", "For whoever keeps the messages")
def test_the_compactor_makes_a_shorter_list(here, name):
    space = run(name, here.space)
    assert len(space["messages"]) < len(MESSAGES)
    assert space["messages"] == space["made"].messages


@of("in-process.md", "For whoever keeps the messages", 1)
def test_a_plan_leaves_the_calls_to_the_program(here, name):
    here.space["client"] = openai.OpenAI()
    space = run(name, here.space)
    assert len(space["plan"].made.messages) < len(MESSAGES)
    assert here.named("summary") == len(here.provider.state.records) == space["plan"].made.calls


@of("in-process.md", "For whoever keeps the messages", 2)
def test_a_call_that_is_made_again(here, name):
    client = openai.OpenAI()
    here.space |= {"client": client, "compactor": tidegate.Compactor(client, model="gpt-5.5")}
    ask = run(name, here.space)["ask"]
    assert ask(WHOLE).choices
    assert [record.outcome for record in here.provider.state.records if record.kind == "main"] == [
        "overflow",
        "answered",
    ]


@of("in-process.md", "Listeners")
def test_listeners(here, capsys, name):
    before = [list(listeners) for listeners in _listeners()]
    try:
        run(name, here.space)
        asked(tidegate.wrap(openai.OpenAI()), WHOLE)
    finally:
        for listeners, kept in zip(_listeners(), before, strict=True):
            listeners[:] = kept
    began, ended = capsys.readouterr().out.splitlines()[:2]
    assert began.startswith("compacting ")
    assert ended.startswith("compacted ")


def _listeners() -> tuple[list[Any], list[Any]]:
    from tidegate.client import events

    return events._begins, events._ends


@of("in-process.md", "In tests")
def test_in_tests(here, capsys, name):
    run(name, here.space)
    assert here.space["client"]._client._transport.house
    assert "overflow" in capsys.readouterr().out
    assert not testing.is_testing()


# -- Recipes ---------------------------------------------------------------------------------------------------------


OWN_SHAPES = [shown("recipes.md", "RubyPi's and Rho's own shapes", number) for number in range(3)]


def test_rubypis_and_rhos_own_shapes(here):
    here.space["client"] = client = openai.OpenAI()
    space = run(OWN_SHAPES[0], here.space)
    assert len(space["smaller"].messages) <= 5
    assert space["smaller"].dropped_count >= len(MESSAGES) - 5
    assert b'"gpt-5.4-mini"' in here.provider.state.records[0].body
    assert space["rubypi"].compact_sync(MESSAGES[:4]) is None

    # Rho's table says 128,000 tokens for such a model, of which a sixth is kept free.
    here.space["messages"] = five = MESSAGES[:-1] * 5
    before = len(here.provider.state.records)
    run(OWN_SHAPES[1], space)
    assert space["context_tokens"] > space["threshold"] == 128_000 - 19_200 + 1
    assert space["rho"].check(five).due
    assert space["rho"].plan(MESSAGES) is None
    assert len(here.provider.state.records) == before
    # The simulated provider takes less than the summarizer is believed to: what is refused is asked for in halves.
    space["client"] = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=_or_the_refusal(client))))
    run(OWN_SHAPES[2], space)
    assert space["rho"].estimate(space["messages"]) < space["threshold"]
    assert all(fact in space["prepared"].made.summary for fact in FACTS)


def _or_the_refusal(client: openai.OpenAI) -> Callable[..., object]:
    def create(**request: Any) -> object:
        try:
            return client.chat.completions.create(**request)
        except openai.BadRequestError as error:
            return error

    return create


# -- Other pages -----------------------------------------------------------------------------------------------------


@of("classifier.md", "The classifier")
def test_the_classifier(here, name):
    with pytest.raises(openai.BadRequestError) as refused:
        asked(openai.OpenAI(), WHOLE)
    verdicts: list[Any] = []
    heard = SimpleNamespace(
        Refusal=tidegate.Refusal,
        Sent=tidegate.Sent,
        classify=lambda *args, **kwargs: verdicts.append(tidegate.classify(*args, **kwargs)) or verdicts[-1],
    )
    here.monkeypatch.setitem(sys.modules, "tidegate", heard)
    here.space |= {"error": refused.value, "body": b""}
    run(name, here.space)
    assert [verdict.kind for verdict in verdicts] == ["overflow", "overflow"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (shown("custom-compactors.md", "In Python"), "These are the notes of"),
        (shown("custom-compactors.md", "With the model in use"), "Minutes:\n"),
    ],
    ids=["compact", "plan"],
)
def test_a_compactor_of_ones_own(here, name, words):
    async def my_notes_of(items: list[Any]) -> str:
        return f"These are the notes of {len(items)} items, " + "which say what it was all about. " * 20

    here.space["my_notes_of"] = my_notes_of
    space = run(name, here.space)
    module = ModuleType("my_package")
    kind = next(value for key, value in space.items() if isinstance(value, type) and key[0].isupper())
    module.Mine = kind  # type: ignore[attr-defined]
    here.monkeypatch.setitem(sys.modules, "my_package", module)
    settings = {"compactors": {"mine": {"use": "my_package:Mine"}}, "compaction": {"strategies": ["mine"]}}
    client = tidegate.wrap(openai.OpenAI(), settings={**settings, "models": {"*": {"window": 26_000}}})
    headers = asked(client, MESSAGES, "shop-model")
    assert (headers["x-tidegate-action"], headers["x-tidegate-strategy"]) == ("compacted", "mine")
    sent = json.loads(here.provider.state.main("chat")[-1].body)
    assert words in sent["messages"][0]["content"]


@of("simulator.md", "In tests")
def test_the_simulator_in_a_program_s_tests(here, capsys, name):
    run(name, here.space)
    assert "tea is green" in capsys.readouterr().out


@of("development.md", "Tests")
def test_the_demo_as_a_measure(here, name):
    changed = {"60": "4"}  # turns
    space = run(name, here.space, **changed)
    assert space["run"].figures.answered == 4


# -- All of them -----------------------------------------------------------------------------------------------------


def test_every_block_is_run_by_a_test():
    """A new block needs a test that names it: here, or in the group whose packages it needs."""
    assert set(PYTHON) - NAMED == set()
    assert NAMED - set(PYTHON) == set()
