"""Servers that can say how large their models' windows are, are asked once; the next turn goes by what they said."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from rawclient import PATHS, Front, fronted, history, post
from rawserver import HOLD, Seen, Steps, answer
from running import settings

from tidegate.engine.effects import UpstreamError
from tidegate.gateway import windows
from tidegate.gateway.catalogue import catalogue
from tidegate.gateway.targets import Choice, Targets
from tidegate.gateway.windows import AGAIN, AT_ONCE, FIRST_WAIT, KEPT, LONGEST_WAIT, Asking
from tidegate.providers import ModelFacts, Provider

MODEL, WINDOW = "shop-model", 8_000
KEY = ("authorization", "Bearer sk-windows-1")
Asked = Callable[[str], Any]


def chat_answer(seen: Seen) -> bytes:
    text = "## Goal\nThe agent goes on step by step, as it was asked to." if b"working memory" in seen.body else "done"
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": len(seen.body) // 4, "completion_tokens": 2}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def server(told: dict[str, Any]) -> Callable[[Seen], Steps]:
    """Answers chats, and questions by their path: JSON with 200, an error's status, or steps; others with 404."""

    def answers(seen: Seen) -> Steps:
        path = seen.target.partition("?")[0]
        if path.endswith(("/chat/completions", "/messages")):
            return (answer(chat_answer(seen)),)
        found = told.get(path, "404 Not Found")
        if isinstance(found, tuple):
            return found
        if isinstance(found, bytes):
            return (answer(found),)
        return (answer(b"{}", status=found) if isinstance(found, str) else answer(json.dumps(found).encode()),)

    return answers


def questions(front: Front) -> list[str]:
    return [seen.target for seen in front.upstream.seen if not seen.target.endswith(("/chat/completions", "/messages"))]


def window(front: Front, provider: str = "generic", model: str = MODEL) -> int | None:
    return front.app.targets.target(Choice(front.app.catalogue.get(provider), model), "chat").window


def settled(front: Front) -> None:
    """Waits until the gateway asks nobody."""
    until = time.monotonic() + 5
    while front.app.conversations.asking._busy:
        assert time.monotonic() < until
        time.sleep(0.002)


SERVERS = {
    "vLLM": ({"/v1/models": {"data": [{"id": MODEL, "max_model_len": WINDOW}]}}, ["/v1/models"]),
    "llama.cpp": (
        {"/props": {"default_generation_settings": {"n_ctx": WINDOW}}, "/v1/models": {"data": [{"id": "q.gguf"}]}},
        ["/v1/models", f"/props?model={MODEL}"],
    ),
    "Ollama": (
        {
            "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "library"}]},
            "/api/ps": {"models": [{"name": f"{MODEL}:latest", "context_length": WINDOW}]},
        },
        ["/v1/models", f"/props?model={MODEL}", "/api/ps"],
    ),
}


@pytest.mark.parametrize(("told", "asked"), SERVERS.values(), ids=SERVERS)
def test_a_server_that_states_its_window_is_asked_once_and_the_next_turn_compacts_ahead_of_it(
    told: dict[str, Any], asked: list[str]
) -> None:
    with fronted(upstream__ask_windows=True) as front:
        front.upstream.default = server(told)
        first = post(front.base, PATHS["chat"], history("chat", 3), KEY)
        settled(front)
        assert (first.status, first.action, window(front)) == (200, "relayed", WINDOW)
        second = post(front.base, PATHS["chat"], history("chat", 40), KEY)
        assert (second.status, second.action, second.reason) == (200, "compacted", None)
        post(front.base, PATHS["chat"], history("chat", 3), KEY)
        settled(front)
        assert questions(front) == asked
        keys = {seen.one("authorization") for seen in front.upstream.seen}
        assert keys == {KEY[1]}


@pytest.mark.parametrize(
    ("provider", "told", "asked"),
    [
        ("llamacpp", {"/props": {"default_generation_settings": {"n_ctx": WINDOW}}}, [f"/props?model={MODEL}"]),
        ("ollama", {"/api/show": {"parameters": f"num_ctx {WINDOW}"}}, ["/api/ps", "/api/show"]),
        ("vllm", {"/v1/models": {"data": [{"id": MODEL, "max_model_len": WINDOW}]}}, ["/v1/models"]),
        ("openrouter", {"/v1/models": {"data": [{"id": MODEL, "context_length": WINDOW}]}}, ["/v1/models"]),
        ("anthropic", {"/v1/models": {"data": [{"id": MODEL, "max_input_tokens": WINDOW}]}}, ["/v1/models?limit=1000"]),
    ],
)
def test_each_provider_is_asked_its_own_way(provider: str, told: dict[str, Any], asked: list[str]) -> None:
    toml = f'[providers.{provider}]\nbase_url = "{{url}}"\ndialects = ["chat"]\n'
    with fronted(toml=toml, single=False, upstream__ask_windows=True) as front:
        front.upstream.default = server(told)
        assert post(front.base, f"/{provider}{PATHS['chat']}", history("chat", 2), KEY).status == 200
        settled(front)
        assert (questions(front), window(front, provider)) == (asked, WINDOW)


SILENT = {
    "404": {},
    "500": {"/v1/models": "500 Internal Server Error"},
    "garbage": {"/v1/models": b"\xff<html>", "/props": b"[[[", "/api/ps": b"3", "/api/show": b'{"parameters": 3}'},
    "absurd sizes": {"/v1/models": {"data": [{"id": MODEL, "max_model_len": -1}]}},
    "another model": {"/v1/models": {"data": [{"id": "other", "max_model_len": WINDOW}]}},
}


@pytest.mark.parametrize("told", SILENT.values(), ids=SILENT)
def test_a_server_that_does_not_tell_is_not_asked_in_a_loop(told: dict[str, Any]) -> None:
    with fronted(upstream__ask_windows=True) as front:
        front.upstream.default = server(told)
        for _ in range(5):
            assert post(front.base, PATHS["chat"], history("chat", 2), KEY).status == 200
            settled(front)
        assert len(questions(front)) == len(set(questions(front))) <= 4
        assert window(front) is None


def test_a_server_that_hangs_on_a_question_costs_the_requests_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "PATIENCE", 1.0)
    # Even where the gateway may have but one connection to it.
    with fronted(upstream__ask_windows=True, upstream__max_connections=1) as front:
        front.upstream.default = server({"/v1/models": (HOLD,)})
        began = time.monotonic()
        for _ in range(5):
            assert post(front.base, PATHS["chat"], history("chat", 2), KEY).status == 200
        assert time.monotonic() - began < 0.9
        settled(front)
        post(front.base, PATHS["chat"], history("chat", 2), KEY)
        settled(front)
        assert questions(front) == ["/v1/models"]  # who does not answer is asked no other question


def test_an_endless_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "LIMIT", 10_000)
    with fronted(upstream__ask_windows=True) as front:
        front.upstream.default = server({"/v1/models": b" " * 20_000 + b'{"data":[]}'})
        post(front.base, PATHS["chat"], history("chat", 2), KEY)
        settled(front)
        assert (questions(front), window(front)) == (["/v1/models"], None)


@pytest.mark.parametrize(
    ("toml", "flags", "headers"),
    [
        ("", {"upstream__ask_windows": False}, ()),
        (f'[models."{MODEL}"]\nwindow = 9000\n', {"upstream__ask_windows": True}, ()),
        (f'[models."{MODEL}"]\ninput_limit = 9000\n', {"upstream__ask_windows": True}, ()),
        ("", {"upstream__ask_windows": True}, (("x-tidegate-bypass", "1"),)),
        (
            f'[[providers.generic.models]]\nmatch = "{MODEL}"\nwindow = 9000\n',
            {"upstream__ask_windows": True},
            (),
        ),
    ],
)
def test_nobody_is_asked_what_is_known_or_not_wanted(toml: str, flags: dict[str, Any], headers: Any) -> None:
    with fronted(toml=toml, **flags) as front:
        front.upstream.default = server(SERVERS["vLLM"][0])
        assert post(front.base, PATHS["chat"], history("chat", 2), KEY, *headers).status == 200
        settled(front)
        assert questions(front) == []


def test_a_refused_credential_asks_nothing() -> None:
    with fronted(upstream__ask_windows=True) as front:
        front.upstream.default = lambda seen: (answer(b'{"error":{"message":"bad key"}}', status="401 Unauthorized"),)
        assert post(front.base, PATHS["chat"], history("chat", 2), KEY).status == 401
        settled(front)
        assert questions(front) == []


def test_what_the_server_says_comes_before_another_providers_file() -> None:
    """A local server may serve a model that is called as a provider's own."""
    with fronted(upstream__ask_windows=True) as front:
        assert window(front, model="claude-sonnet-4-5") == 200_000
        front.upstream.default = server(
            {"/v1/models": {"data": [{"id": "claude-sonnet-4-5", "max_model_len": WINDOW}]}}
        )
        post(front.base, PATHS["chat"], history("chat", 2, model="claude-sonnet-4-5"), KEY)
        settled(front)
        assert window(front, model="claude-sonnet-4-5") == WINDOW


def test_the_summarys_model_is_asked_about_too() -> None:
    with fronted(upstream__ask_windows=True, summary__model="small") as front:
        sizes = [{"id": MODEL, "max_model_len": WINDOW}, {"id": "small", "max_model_len": 4_000}]
        front.upstream.default = server({"/v1/models": {"data": sizes}})
        post(front.base, PATHS["chat"], history("chat", 2), KEY)
        settled(front)
        target = front.app.targets.target(Choice(front.app.catalogue.get("generic"), MODEL), "chat")
        assert (target.window, target.summary_window) == (WINDOW, 4_000)


def test_so_are_those_that_are_asked_where_it_gives_none() -> None:
    with fronted(upstream__ask_windows=True, summary__models=("small", MODEL, "large")) as front:
        sizes = [{"id": MODEL, "max_model_len": WINDOW}, {"id": "small", "max_model_len": 4_000}]
        front.upstream.default = server({"/v1/models": {"data": sizes}})
        post(front.base, PATHS["chat"], history("chat", 2), KEY)
        settled(front)
        target = front.app.targets.target(Choice(front.app.catalogue.get("generic"), MODEL), "chat")
        assert (target.summary_model, target.summarizers) == ("", (("small", 4_000), ("large", None)))


def test_litellms_table_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def facts(model: str, provider: str) -> ModelFacts:
        asked.append((model, provider))
        return ModelFacts(None, 30_000)

    monkeypatch.setattr(windows, "litellm_facts", facts)
    with fronted(upstream__ask_windows=True) as front:
        front.upstream.default = server({})
        for model in (MODEL, "claude-sonnet-4-5", MODEL):
            post(front.base, PATHS["chat"], history("chat", 2, model=model), KEY)
            settled(front)
        target = front.app.targets.target(Choice(front.app.catalogue.get("generic"), MODEL), "chat")
        assert (target.window, target.input_limit, target.told_at) == (None, 30_000, 0.0)
        assert asked == [(MODEL, "generic")]


@pytest.mark.parametrize(
    ("named", "asked"),
    [(None, "compact-2026-09-04"), ("oauth-2025-04-20", "oauth-2025-04-20,compact-2026-09-04")],
    ids=["alone", "beside the caller's own"],
)
def test_anthropic_is_asked_what_its_models_can_do_though_their_sizes_are_known(named: str | None, asked: str) -> None:
    """Of compaction on demand it tells only those who name its beta."""
    told = {
        "compaction": {"summarize": {"supported": False}},
        "context_management": {"compact_20260112": {"supported": True}},
    }
    model = "claude-opus-5-5"
    toml = '[providers.anthropic]\nbase_url = "{url}"\n'
    with fronted(toml=toml, single=False, upstream__ask_windows=True) as front:
        front.upstream.default = server({"/v1/models": {"data": [{"id": model, "capabilities": told}]}})
        headers = (KEY, ("anthropic-version", "2023-06-01"), *((("anthropic-beta", named),) if named else ()))
        assert post(front.base, "/v1/messages", history("messages", 2, model=model), *headers).status == 200
        settled(front)
        target = front.app.targets.target(Choice(front.app.catalogue.get("anthropic"), model), "messages")
        assert (target.window, target.means.ways) == (1_000_000, ("threshold",))
        (seen,) = [seen for seen in front.upstream.seen if seen.target.startswith("/v1/models")]
        assert (seen.one("anthropic-beta"), seen.one("anthropic-version")) == (asked, "2023-06-01")
        assert seen.one("authorization") == KEY[1]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"/v1/models": "403 Forbidden"},
        {"/v1/models": "500 Internal Server Error"},
        {"/v1/models": b"<html>"},
        {"/v1/models": {"data": [{"id": "claude-opus-5-5", "capabilities": "many"}]}},
        {
            "/v1/models": {
                "data": [{"id": "another", "capabilities": {"compaction": {"summarize": {"supported": False}}}}]
            }
        },
    ],
    ids=["404", "403", "500", "a page", "nonsense", "another model"],
)
def test_where_anthropics_list_tells_nothing_the_file_holds_and_it_is_let_be(told: dict[str, Any]) -> None:
    model = "claude-opus-5-5"
    with fronted(toml='[providers.anthropic]\nbase_url = "{url}"\n', single=False, upstream__ask_windows=True) as front:
        front.upstream.default = server(told)
        for _ in range(4):
            body = history("messages", 2, model=model)
            assert post(front.base, "/v1/messages", body, KEY, ("anthropic-version", "2023-06-01")).status == 200
            settled(front)
        target = front.app.targets.target(Choice(front.app.catalogue.get("anthropic"), model), "messages")
        assert (target.window, target.means.ways) == (1_000_000, ("on-demand", "threshold"))
        assert questions(front) == ["/v1/models?limit=1000"]


# -- when, without a network -------------------------------------------------------------------------------------------


class Endpoint:
    """Answers in a pool's place, once it may."""

    def __init__(self, body: bytes = b"{}", *, fails: bool = False) -> None:
        self.body, self.fails = body, fails
        self.urls: list[str] = []
        self.free = asyncio.Event()
        self.free.set()
        self.status, self.headers = 200, []

    async def send(self, request: Any, timeouts: Any) -> Endpoint:
        self.urls.append(request.url)
        await self.free.wait()
        if self.fails:
            raise UpstreamError("gone")
        return self

    async def read_all(self, limit: int) -> bytes:
        return self.body

    async def close(self) -> None: ...


class Bench:
    """An `Asking` whose time a test moves."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.now = 1_000.0
        self.endpoint = endpoint
        given = settings()
        self.targets = Targets(given, catalogue(given))
        self.asking = Asking(self.targets, endpoint, clock=lambda: self.now)  # type: ignore[arg-type]

    def provider(self, name: str = "vllm") -> Provider:
        return self.targets.catalogue.get(name)

    async def hear(self, root: str = "http://box:8000/v1", model: str = "m", name: str = "vllm") -> int:
        """A request was answered; how many questions that caused."""
        before = len(self.endpoint.urls)
        self.asking.heard(self.provider(name), model, root, [])
        await self.rest()
        return len(self.endpoint.urls) - before

    async def rest(self) -> None:
        while self.asking._busy and self.endpoint.free.is_set():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("fails", [True, False])
async def test_who_tells_nothing_is_asked_again_after_longer_and_longer(fails: bool) -> None:
    bench, wait = Bench(Endpoint(fails=fails)), FIRST_WAIT
    assert await bench.hear() == 1
    for _ in range(8):
        bench.now += wait - 1
        assert await bench.hear() == 0
        bench.now += 1
        assert await bench.hear() == 1
        wait = min(LONGEST_WAIT, wait * 4)
    assert wait == LONGEST_WAIT


async def test_who_told_is_asked_again_after_an_hour() -> None:
    endpoint = Endpoint(json.dumps({"data": [{"id": "m", "max_model_len": WINDOW}]}).encode())
    bench = Bench(endpoint)
    assert await bench.hear() == 1
    bench.now += AGAIN - 1
    assert await bench.hear() == 0
    bench.now += 1
    endpoint.body = json.dumps({"data": [{"id": "m", "max_model_len": 2 * WINDOW}]}).encode()
    assert await bench.hear() == 1
    told = bench.targets._known(bench.provider(), "http://box:8000/v1", "m")
    assert told.facts.window == 2 * WINDOW


async def test_an_endpoint_is_asked_one_thing_at_a_time_and_only_so_many_at_once() -> None:
    bench = Bench(Endpoint())
    bench.endpoint.free.clear()
    for model in ("a", "b"):
        bench.asking.heard(bench.provider(), model, "http://one:1/v1", [])
    for number in range(10):
        bench.asking.heard(bench.provider(), "m", f"http://n{number}:1/v1", [])
    await asyncio.sleep(0.01)
    assert len(bench.endpoint.urls) == AT_ONCE
    assert len({url for url in bench.endpoint.urls if "one:1" in url}) == 1
    bench.endpoint.free.set()
    await bench.rest()
    assert await bench.hear("http://one:1/v1", "b") == 1  # the next request does it


async def test_only_so_much_is_remembered() -> None:
    bench = Bench(Endpoint())
    for number in range(KEPT + 50):
        await bench.hear(model=f"m{number}")
    assert len(bench.asking._due) == KEPT
    assert len(bench.asking._silent) == KEPT


async def test_a_credential_goes_to_no_other_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Endpoint())
    elsewhere = bench.provider().questions("m", "http://elsewhere:8000")
    monkeypatch.setattr(Provider, "questions", lambda self, model, base: elsewhere)
    assert await bench.hear() == 0


async def test_a_provider_that_can_not_be_asked_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Endpoint())
    assert await bench.hear("https://api.openai.com/v1", "no-such-model", "openai") == 0
    assert bench.asking._due["https://api.openai.com/v1", "no-such-model"] == float("inf")


async def test_the_end_leaves_questions_unanswered() -> None:
    bench = Bench(Endpoint())
    bench.endpoint.free.clear()
    bench.asking.heard(bench.provider(), "m", "http://box:8000/v1", [])
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await bench.asking.close()
        while bench.asking._busy:
            await asyncio.sleep(0)
    assert await bench.hear(model="other") == 0


def test_what_was_asked_is_in_the_log_without_the_key(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("DEBUG", logger="tidegate"),
        fronted(upstream__ask_windows=True, server__log_level="debug") as front,
    ):
        front.upstream.default = server(SERVERS["vLLM"][0])
        post(front.base, PATHS["chat"], history("chat", 2), KEY)
        settled(front)
    assert [text for text in caplog.messages if f"model='{MODEL}' api=models window={WINDOW}" in text]
    assert not [text for text in caplog.messages if "sk-windows" in text]
