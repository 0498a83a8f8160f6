"""Compactors of the user's own: used where they give something, passed over where they don't; no client notices."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from running import Running, running, settings

import tidegate
from tidegate.config import ConfigError
from tidegate.gateway.server import CannotServe, build
from tidegate.gateway.targets import Targets
from tidegate.providers import load
from tidegate.simulator import SimulatorSettings

WINDOW = 3000
SIDECAR = Path(__file__).with_name("sidecar.py")


@contextmanager
def sidecar(mood: str) -> Iterator[tuple[str, list[Any]]]:
    """(its URL, what it was shown)."""
    process = subprocess.Popen([sys.executable, str(SIDECAR), mood], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port, shown = process.stdout.readline().strip(), []

    def read() -> None:
        assert process.stdout is not None
        shown.extend(json.loads(line) for line in process.stdout)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield f"http://127.0.0.1:{port}", shown
    finally:
        process.kill()
        process.wait()
        reader.join(5)
        process.stdout.close()


@contextmanager
def gate(use: str, *, timeout: float = 0.5) -> Iterator[Running]:
    toml = (
        f'[compactors.notes]\nuse = "{use}"\ntimeout_seconds = {timeout}\n'
        f'[models."*"]\nwindow = {WINDOW}\nstrategies = ["notes", "summary"]\n'
    )
    with running(SimulatorSettings(window=WINDOW), toml=toml, compaction__prepare="off") as served:
        yield served


def messages(count: int = 16) -> list[Any]:
    said: list[Any] = []
    for number in range(count):
        said += [
            {"role": "user", "content": f"FACT-{number:02d} question " + "and more " * 60},
            {"role": "assistant", "content": f"answer {number} " + "and more " * 40},
        ]
    return [*said, {"role": "user", "content": "And now?"}]


def ask(served: Running, count: int = 16) -> Any:
    client = openai.OpenAI(base_url=f"{served.base}/v1", api_key="sk-secret", max_retries=0)
    return client.chat.completions.with_raw_response.create(model="m", messages=messages(count), max_tokens=50)


def test_a_sidecar_writes_what_replaces_the_past():
    with sidecar("notes") as (url, shown), gate(url) as served:
        got = ask(served)
        assert got.headers["x-tidegate-strategy"] == "notes"
        assert served.of("summary") == []
        sent = served.of("main")[-1].body.decode()
        assert "NOTES" in sent
        assert "FACT-00" in sent
        assert (got.headers["x-tidegate-compaction-input-tokens"], served.violations) == ("7", [])
        assert ask(served).headers["x-tidegate-action"] == "replayed"
    assert [one["path"] for one in shown] == ["/wants", "/compact"]
    view = shown[1]["view"]
    assert (view["dialect"], view["model"], view["window"], view["trigger"]) == ("chat", "m", WINDOW, "threshold")
    assert view["items"] == messages()
    assert 0 == view["since"] < view["until"] < len(view["items"])
    assert view["previous"] == ""
    assert len(view["item_tokens"]) == len(view["items"])
    assert 0 < sum(view["item_tokens"]) <= view["tokens"]
    assert view["target"] < view["threshold"] <= view["tokens"]
    assert "sk-secret" not in json.dumps(shown)
    assert not any(name.lower() == "authorization" for one in shown for name in one["headers"])


@pytest.mark.parametrize(
    "mood", ["unwilling", "slow", "crash", "error", "redirect", "nonsense", "empty", "huge", "no json"]
)
def test_where_it_gives_nothing_of_use_the_next_way_answers(mood):
    with sidecar(mood) as (url, _), gate(url) as served:
        got = ask(served)
        assert (got.status_code, got.headers["x-tidegate-strategy"]) == (200, "summary")
        assert served.of("summary")
        assert served.violations == []


def test_a_call_that_it_plans_is_made_with_the_clients_credential_which_it_never_sees():
    with sidecar("plans") as (url, shown), gate(url, timeout=3) as served:
        got = ask(served)
        assert got.headers["x-tidegate-strategy"] == "notes"
        assert int(got.headers["x-tidegate-compaction-input-tokens"]) > 0
        (planned,) = [seen for seen in served.records if b"Sum it up." in seen.body]
        assert "authorization" in planned.headers
        assert json.loads(planned.body)["model"] == "m"
        assert "NOTES kept stop" in served.of("main")[-1].body.decode()
        assert served.violations == []
    assert [one["path"] for one in shown] == ["/wants", "/plan", "/finish"]
    assert "sk-secret" not in json.dumps(shown)


@pytest.mark.parametrize(("name", "rests"), [("PlansWhatIsRefused", False), ("Gives", False), ("Raises", True)])
def test_only_a_failure_of_its_own_makes_it_rest(name, rests):
    with gate(f"{__name__}:{name}") as served:
        assert ask(served).headers["x-tidegate-strategy"] == "summary"
        seen = served.app.kit.capabilities.missing(f"{served.simulator.url}/v1", "m", ("notes",), now=time.time())
        assert bool(seen) == rests


def test_where_it_is_not_there_the_next_way_answers_and_later_turns_do_not_ask():
    with gate("http://127.0.0.1:9") as served:
        assert ask(served).headers["x-tidegate-strategy"] == "summary"
        seen = served.app.kit.capabilities.missing(f"{served.simulator.url}/v1", "m", ("notes",), now=time.time())
        assert "it failed a few minutes ago" in seen["notes"]


def test_a_failure_is_told_in_the_log_without_a_word_of_the_conversation(caplog):
    with sidecar("crash") as (url, _), gate(url) as served:
        ask(served)
        ask(served, 30)
    told = [record.getMessage() for record in caplog.records if "compactor notes failed" in record.getMessage()]
    assert len(told) == 1
    assert "FACT" not in told[0]


# -- in this process -------------------------------------------------------------------------------------------------


class Whole:
    """The short form, asynchronous."""

    async def should_compact(self, view: Any) -> bool:
        return bool(view["tokens"] > 0)

    async def compact(self, view: Any) -> str:
        return f"NOTES of {view['until'] - view['since']} items"


class Plans:
    """The long form."""

    def wants(self, view: Any) -> bool:
        return view["recent"] == view["items"][view["since"] :]

    async def plan(self, view: Any) -> Any:
        shown = json.dumps(view["items"][: view["until"]])
        prompt = [{"role": "user", "content": f"<transcript>{shown}</transcript> Sum it up."}]
        return {"body": {"messages": prompt, "max_tokens": view["room"]}, "keep": view["target"]}

    def finish(self, reply: Any) -> str | None:
        kept = f"{reply['keep']} {reply['body']['usage']['prompt_tokens'] > 0}"
        return f"NOTES {kept} {reply['text'][:400]}" if reply["finish"] in ("stop", "length") else None


class PlansNothing(Plans):
    def plan(self, view: Any) -> None:  # type: ignore[override]
        return None


class PlansNonsense(Plans):
    def plan(self, view: Any) -> Any:  # type: ignore[override]
        return {"messages": []}


class PlansWhatIsRefused(Plans):
    def plan(self, view: Any) -> Any:  # type: ignore[override]
        return {"body": {"messages": []}}


class MakesNothing(Plans):
    def finish(self, reply: Any) -> None:
        return None


class Unwilling(Whole):
    async def should_compact(self, view: Any) -> bool:
        return False


class Raises:
    def compact(self, view: Any) -> str:
        raise RuntimeError(view["items"][0]["content"])


class Hangs:
    def compact(self, view: Any) -> str:
        threading.Event().wait(5)
        return "late"


class Gives:
    def compact(self, view: Any) -> Any:
        return None


half = SimpleNamespace(compact=lambda view: "NOTES \ud800")

plain = SimpleNamespace(compact=lambda view: "NOTES of a function")


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("Whole", "notes"),
        ("plain", "notes"),
        ("Plans", "notes"),
        ("PlansNothing", "summary"),
        ("PlansNonsense", "summary"),
        ("PlansWhatIsRefused", "summary"),
        ("MakesNothing", "summary"),
        ("Unwilling", "summary"),
        ("Raises", "summary"),
        ("Hangs", "summary"),
        ("Gives", "summary"),
        ("half", "summary"),
    ],
)
def test_so_does_an_object_of_this_process(name, strategy, caplog):
    with gate(f"{__name__}:{name}") as served:
        got = ask(served)
        assert got.headers["x-tidegate-strategy"] == strategy
        assert ("NOTES" in served.of("main")[-1].body.decode()) == (strategy == "notes")
    assert "FACT" not in caplog.text


def test_the_library_uses_it_as_the_gateway_does():
    with sidecar("notes") as (url, _), running(SimulatorSettings(window=WINDOW)) as served:
        client = openai.OpenAI(base_url=f"{served.simulator.url}/v1", api_key="k")
        wrapped = tidegate.wrap(
            client,
            settings={
                "store": {"kind": "memory"},
                "models": {"*": {"window": WINDOW}},
                "compactors": {"notes": {"use": url}},
                "compaction": {"strategies": ["notes", "summary"], "prepare": "off"},
            },
        )
        got = wrapped.chat.completions.with_raw_response.create(model="m", messages=messages(), max_tokens=50)
        assert got.headers["x-tidegate-strategy"] == "notes"


# -- how it is named -------------------------------------------------------------------------------------------------


def test_the_route_tells_of_it():
    from tidegate.engine.router import route

    made = settings('[compactors.notes]\nuse = "http://x"\n[compaction]\nstrategies = ["notes", "summary"]\n')
    targets = Targets(made, load())
    provider = load().get("groq")
    found = route("chat", targets.wanted(provider, "m", "chat"), targets.means(provider, "m"))
    assert found.names == ("notes", "summary")
    assert "a compactor of your own ([compactors.notes])" in found.strategies[0].reason


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[compaction]\nstrategies = ["notes"]\n', "there is no strategy notes; known: openai"),
        (
            '[models.m]\nstrategies = ["nots"]\n[compactors.notes]\nuse = "http://x"\n',
            "no strategy nots; known: .*notes",
        ),
        ('[compactors.summary]\nuse = "http://x"\n', "built-in strategy's name"),
        ('[compactors.notes]\nurl = "http://x"\n', "allowed: compactors.NAME with use, timeout_seconds"),
        ("[compactors.notes]\ntimeout_seconds = 3\n", "compactors.notes.use"),
    ],
)
def test_what_is_named_wrongly_is_told_with_what_is_there(toml, words):
    with pytest.raises(ConfigError, match=words):
        settings(toml)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("no_such_module:Thing", "can't be loaded .ModuleNotFoundError"),
        (f"{__name__}:Nothing", "can't be loaded .AttributeError"),
        (f"{__name__}:WINDOW", "has no function compact"),
        ("http://", "no URL with a host"),
    ],
)
def test_what_can_not_be_had_is_told_at_the_start(use, words):
    with pytest.raises(CannotServe, match=rf"compactors\.notes\.use .*{words}"):
        build(settings(f'[compactors.notes]\nuse = "{use}"\n'))
