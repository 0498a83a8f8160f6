"""What was learned of windows is saved in the background, and a store that fails costs a warning."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest
from agents import AGENTS, hold
from running import running, settings
from stores import Broken

from tidegate.engine.capabilities import Capabilities, Seen
from tidegate.engine.checkpoint import StoreError
from tidegate.gateway.keeper import Keeper
from tidegate.gateway.server import serving
from tidegate.overflow import Windows
from tidegate.overflow.learned import Learned
from tidegate.simulator import SimulatorSettings, serve
from tidegate.store import MemoryStore, SqliteStore, capabilities_in, windows_in
from tidegate.store.null import NullStore
from tidegate.store.seal import Sealer

KNOWN = Learned("http://box:8080/v1", "qwen3", limit=8_192, learned_at=100.0, times=1)


class Fails:
    """A store that can't keep windows, and counts how often it was asked to."""

    def __init__(self, error: Exception, seconds: float = 0.0) -> None:
        self.error, self.seconds, self.saves = error, seconds, 0

    def windows(self) -> list[Learned]:
        time.sleep(self.seconds)
        raise self.error

    def save_windows(self, entries: object) -> list[Learned]:
        self.saves += 1
        time.sleep(self.seconds)
        raise self.error


class FailsCapabilities:
    """The same for what endpoints lack."""

    def __init__(self, error: Exception) -> None:
        self.error, self.asked = error, 0

    def capabilities(self) -> list[Seen]:
        self.asked += 1
        raise self.error

    def save_capabilities(self, entries: object) -> list[Seen]:
        self.asked += 1
        raise self.error


def store_at(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "c.db", Sealer(bytes(32)))


async def test_what_is_kept_is_taken_up_and_what_comes_is_saved(tmp_path: Path) -> None:
    store, windows = store_at(tmp_path), Windows()
    store.save_windows([KNOWN])
    keeper = Keeper(windows, store, every=0.01)
    await keeper.start()
    assert windows.limit(KNOWN.endpoint, "qwen3", now=200) == 8_192
    windows.succeeded(KNOWN.endpoint, "other", 5_000, now=300)
    async with asyncio.timeout(5):
        while len(windows_in(store.path)) < 2:
            await asyncio.sleep(0.01)
    await keeper.stop()


async def test_the_rest_is_saved_at_the_end(tmp_path: Path) -> None:
    store, windows = store_at(tmp_path), Windows()
    keeper = Keeper(windows, store, every=60)
    await keeper.start()
    windows.succeeded("e", "m", 5_000, now=300)
    await keeper.stop()
    assert [known.succeeded for known in windows_in(store.path)] == [5_000]


async def test_what_another_process_saved_is_learned_with_the_saving(tmp_path: Path) -> None:
    store, windows = store_at(tmp_path), Windows()
    keeper = Keeper(windows, store, every=60)
    await keeper.start()
    windows.succeeded(KNOWN.endpoint, "qwen3", 5_000, now=300)
    store.save_windows([replace(KNOWN, learned_at=200)])
    await keeper.stop()
    assert windows.limit(KNOWN.endpoint, "qwen3", now=300) == 8_192


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StoreError("store c.db: is read-only"), "store c.db: is read-only: learned windows can't be kept"),
        (RuntimeError("words of a model's name"), "store: RuntimeError: learned windows can't be kept"),
    ],
)
async def test_a_store_that_fails_costs_one_warning_and_is_not_pressed(
    error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, windows = Fails(error), Windows()
    with caplog.at_level(logging.WARNING):
        keeper = Keeper(windows, store, every=0.005)  # type: ignore[arg-type]
        await keeper.start()
        for size in range(5_000, 5_010):
            windows.succeeded("e", "m", size)
            await asyncio.sleep(0.01)
        assert store.saves == 1
        await keeper.stop()
    assert store.saves == 2  # the end is another try
    assert caplog.messages == [told]
    assert len(windows.changed()) == 1  # and nothing is forgotten


async def test_a_slow_store_does_not_hold_up_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper(windows := Windows(), Fails(StoreError("slow"), seconds=0.3), every=0.005)  # type: ignore[arg-type]
    starting = asyncio.create_task(keeper.start())
    windows.succeeded("e", "m", 5_000)
    longest, last = 0.0, time.monotonic()
    for _ in range(100):
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    await starting
    assert longest < 0.2
    await keeper.stop()


@pytest.mark.parametrize("store", [MemoryStore(), NullStore(), Broken(RuntimeError())])
async def test_a_store_that_keeps_no_windows_is_left_alone(store: object, caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper(windows := Windows(), store)  # type: ignore[arg-type]
    await keeper.start()
    windows.succeeded("e", "m", 5_000)
    await keeper.stop()
    assert caplog.messages == []


async def test_what_another_process_saw_of_an_endpoint_is_taken_up_within_seconds(tmp_path: Path) -> None:
    store, here = store_at(tmp_path), Capabilities()
    keeper = Keeper(Windows(), store, here, every=0.005, look_every=0.01)
    await keeper.start()
    now = time.time()
    here.lacks("e", "mine", "openai", now=now)
    store.save_capabilities([Seen("e", "theirs", "openai", "lacks", now)])
    async with asyncio.timeout(5):
        while len(capabilities_in(store.path)) < 2 or not here.missing("e", "theirs", ("openai",), now=now):
            await asyncio.sleep(0.005)
    await keeper.stop()


async def test_a_store_that_fails_changes_nothing_of_what_was_seen(caplog: pytest.LogCaptureFixture) -> None:
    here, store = Capabilities(), FailsCapabilities(StoreError("store c.db: is read-only"))
    keeper = Keeper(Windows(), store, here, every=0.005, look_every=0.005)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        await keeper.start()
        here.lacks("e", "m", "openai", now=100.0)
        await asyncio.sleep(0.05)
        await keeper.stop()
    assert caplog.messages == ["store c.db: is read-only: learned capabilities can't be kept"]
    assert store.asked <= 3  # at the start, once after, and at the end
    assert here.missing("e", "m", ("openai",), now=101.0)
    assert len(here.changed()) == 1


# -- through the gateway -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "messages"])
def test_a_learned_window_survives_a_restart(api: str, tmp_path: Path) -> None:
    """Another session of the next gateway compacts ahead, where the first one met a refusal."""
    kept = {"store__kind": "sqlite", "store__path": str(tmp_path / "c.db"), "store__key_file": str(tmp_path / "key")}
    # One provider for both gateways: what was learned belongs to its address.
    with serve(SimulatorSettings(window=8_000, tool_rounds=10**6)) as simulator:
        with serving(settings(upstream=simulator.url, **kept)) as (base, _):
            hold(AGENTS[api](base, stream=False), "steps", 10)
        refused = [record.outcome for record in simulator.state.records].count("overflow")
        assert refused == 1
        [known] = windows_in(tmp_path / "c.db")
        assert (known.limit, known.source, known.model) == (8_000, "stated", "shop-model")
        assert known.endpoint.startswith(simulator.url)
        with serving(settings(upstream=simulator.url, **kept)) as (base, _):
            second = AGENTS[api](base, stream=False, key="sk-another")
            hold(second, "steps", 10)
        assert [record.outcome for record in simulator.state.records].count("overflow") == refused
        assert "compacted" in [turn.headers["x-tidegate-action"] for turn in second.turns]


def test_a_store_that_is_no_database_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "c.db").write_bytes(b"no database, and never was one " * 40)
    kept = {"store__kind": "sqlite", "store__path": str(tmp_path / "c.db"), "store__key_file": str(tmp_path / "key")}
    with running(SimulatorSettings(window=8_000, tool_rounds=10**6), **kept) as gate:
        agent = AGENTS["chat"](gate.base, stream=False)
        hold(agent, "steps", 8)
        assert len(agent.turns) == 8
    said = [message for message in caplog.messages if "learned windows" in message]
    assert len(said) == 1
