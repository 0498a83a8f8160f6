"""A store or a summary that fails costs memory at most: the client gets what a direct call would have given it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rawclient import PATHS, Answer, body, call, history, post
from running import Running, running
from stores import Broken, recorded
from tenacity import wait_none

import tidegate.gateway.calls
from tidegate.engine.checkpoint import Found, StoreError
from tidegate.simulator import SimulatorSettings
from tidegate.simulator import Step as Scripted

DIALECTS = pytest.mark.parametrize(("dialect", "path"), PATHS.items(), ids=list(PATHS))
VERSION = ("anthropic-version", "2023-06-01")

# -- a failing store ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_gate() -> Iterator[Running]:
    with running(SimulatorSettings(window=4000), window=4000) as found:
        yield found


@pytest.fixture
def gate(shared_gate: Running) -> Iterator[Running]:
    shared_gate.simulator.reset()
    yield shared_gate
    shared_gate.simulator.reset()


def through(gate: Running, path: str, sent: object, key: str) -> Answer:
    return post(gate.base, path, sent, VERSION, ("Authorization", f"Bearer {key}"))


def directly(gate: Running, path: str, sent: object) -> Answer:
    return post(gate.simulator.url, path, sent, VERSION, ("Authorization", "Bearer direct"))


def alike(first: Answer, second: Answer) -> bool:
    """The same but for ids and times."""
    told = [(got.status, _without_ids(got.json)) for got in (first, second)]
    return told[0] == told[1]


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        skipped = ("id", "created", "created_at", "request_id", "item_id")
        return {key: _without_ids(inner) for key, inner in value.items() if key not in skipped}
    return [_without_ids(inner) for inner in value] if isinstance(value, list) else value


ERRORS = [
    StoreError("store: down"),
    RuntimeError("a bug"),
    OSError("disk"),
    KeyError("x"),
    AssertionError(),
    MemoryError(),
]


@DIALECTS
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_store_that_raises_anything_costs_memory_at_most(gate, dialect, path, error, monkeypatch):
    monkeypatch.setattr(gate.app.conversations, "store", Broken(error))
    key = f"sk-{dialect}-{type(error).__name__}"
    assert alike(through(gate, path, body(dialect), key), directly(gate, path, body(dialect)))
    long = history(dialect, 14)
    got = through(gate, path, long, key)
    assert got.status == 200 or alike(got, directly(gate, path, long))
    if isinstance(error, StoreError):
        assert (got.status, got.action) == (200, "compacted")
    assert gate.violations == []


class Late(Broken):
    """Finds nothing, and cannot save."""

    def find(self, tenant: bytes, bucket: bytes, chains: Any) -> Any:
        return Found()


@DIALECTS
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_store_that_cannot_save_costs_the_answer_nothing(gate, dialect, path, error, monkeypatch):
    monkeypatch.setattr(gate.app.conversations, "store", Late(error))
    got = through(gate, path, history(dialect, 14), f"sk-late-{dialect}-{type(error).__name__}")
    assert got.status == 200
    assert len(gate.of("main")) == 1


def locked(file: Path) -> Any:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("PRAGMA journal_mode=DELETE")
    other.execute("BEGIN EXCLUSIVE")
    return other


def garbage(file: Path) -> None:
    file.write_bytes(b"no database at all " * 1000)


def foreign(file: Path) -> None:
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE checkpoints (something TEXT)")
    other.close()


def a_folder(file: Path) -> None:
    file.mkdir()


def below_a_file(file: Path) -> None:
    file.parent.rmdir()
    file.parent.write_text("in the way")


def gone(file: Path) -> None:
    file.parent.rmdir()


FILES: dict[str, Callable[[Path], Any]] = {
    "locked by another": locked,
    "garbage": garbage,
    "another program's": foreign,
    "a folder": a_folder,
    "below a file": below_a_file,
}


@pytest.mark.parametrize("kind", FILES)
def test_a_store_file_that_cannot_be_used_costs_nothing_but_memory(kind, tmp_path):
    file = tmp_path / "data" / "checkpoints.db"
    file.parent.mkdir()
    held = FILES[kind](file)
    before = file.read_bytes() if file.is_file() else None
    flags = {"store__kind": "sqlite", "store__path": str(file), "store__key_file": str(tmp_path / "key")}
    with running(SimulatorSettings(window=4000), window=4000, **flags) as gate:
        ready = call(gate.base, "GET", "/readyz")
        assert (ready.status, ready.json["status"]) == (503, "unready")
        assert "sqlite" in ready.json["store"]
        assert str(tmp_path) not in ready.body.decode()
        assert call(gate.base, "GET", "/livez").status == 200
        for dialect, path in PATHS.items():
            assert alike(through(gate, path, body(dialect), "k"), directly(gate, path, body(dialect)))
            assert through(gate, path, history(dialect, 14), "k").action == "compacted"
    if before is not None and kind != "locked by another":
        assert file.read_bytes() == before  # a person may want to look at it
    if held is not None:
        held.close()


def test_a_store_that_works_again_is_used_again(tmp_path):
    file = tmp_path / "checkpoints.db"
    flags = {"store__kind": "sqlite", "store__path": str(file), "store__key_file": str(tmp_path / "key")}
    with running(SimulatorSettings(window=4000), window=4000, **flags) as gate:
        long, path = history("chat", 14), PATHS["chat"]
        assert through(gate, path, long, "k").action == "compacted"
        assert call(gate.base, "GET", "/readyz").json["status"] == "ok"
        held = sqlite3.connect(file, isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        assert call(gate.base, "GET", "/readyz").status == 503
        assert through(gate, path, long, "k").status == 200  # reads need no lock
        held.execute("ROLLBACK")
        held.close()
        assert call(gate.base, "GET", "/readyz").status == 200
        deadline = time.monotonic() + 5
        while through(gate, path, long, "k").action != "replayed":  # a locked store is left in peace for a second
            assert time.monotonic() < deadline
            time.sleep(0.05)


# -- a failing summary -------------------------------------------------------------------------------------------------

SUMMARIES: dict[str, dict[str, Any]] = {
    "500": {"do": "error", "status": 500},
    "400": {"do": "error", "status": 400},
    "401": {"do": "error", "status": 401},
    "429": {"do": "error", "status": 429},
    "an error in the stream": {"do": "error", "status": 529, "in_stream": True},
    "a page": {"do": "html"},
    "garbage": {"do": "garbage"},
    "no answer": {"do": "drop"},
    "silence": {"do": "hang", "seconds": 30},
    "a cut": {"do": "cut"},
    "nothing": {"do": "empty"},
    "a refusal": {"do": "refusal"},
    "a refusal in words": {"do": "refusal_text"},
    "an error in words": {"do": "error_text"},
    "a tool call": {"do": "tool_call", "name": "read"},
    "cut by length": {"do": "length"},
    "longer than the history": {"do": "long", "tokens": 6000},
}


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    toml = "[compaction]\nsummary_timeout_seconds = 0.1\n"
    with running(SimulatorSettings(window=4000), window=4000, toml=toml) as found:
        yield found


@DIALECTS
@pytest.mark.parametrize("kind", SUMMARIES)
def test_a_summary_that_fails_leaves_the_request_as_it_was(hasty, dialect, path, kind, monkeypatch):
    monkeypatch.setattr(tidegate.gateway.calls, "CALL_WAIT", wait_none())
    hasty.simulator.reset()
    key = f"sk-{dialect}-{kind}"
    fits, over = history(dialect, 10, size=360), history(dialect, 14)
    expected = directly(hasty, path, fits), directly(hasty, path, over)
    assert [direct.status for direct in expected] == [200, 400]
    for sent, direct in zip((fits, over), expected, strict=True):
        hasty.simulator.reset()
        hasty.simulator.script(Scripted(on="summary", times=50, **SUMMARIES[kind]))
        with recorded(hasty.app) as store:
            got = through(hasty, path, sent, key)
        assert hasty.of("summary") or kind == "401"
        assert alike(got, direct)
        assert hasty.of("main")[-1].body == json.dumps(sent).encode()
        assert store.saved == []
        assert got.action == ("relayed" if direct.status == 200 else "unrecovered")
        assert got.reason


@pytest.mark.parametrize("status", [500, 503, 529, 429])
def test_a_call_lost_to_a_server_in_trouble_is_made_once_more_and_one_that_was_limited_is_not(
    gate, status, monkeypatch
):
    """A rate limit is the client's to wait for: the request goes out as it is."""
    monkeypatch.setattr(tidegate.gateway.calls, "CALL_WAIT", wait_none())
    gate.simulator.script(Scripted(do="error", status=status, on="summary"))
    assert through(gate, PATHS["chat"], history("chat", 14), f"sk-trouble-{status}").status == 200
    assert [record.kind for record in gate.records][:2] == ["summary", "main" if status == 429 else "summary"]
