"""What `tidegate capabilities` shows of a store, and that `tidegate route` goes by it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from click.testing import CliRunner, Result

from tidegate.cli import main
from tidegate.engine.capabilities import Seen
from tidegate.store import SqliteStore
from tidegate.store.seal import Sealer

NOW = time.time()
OPENAI = "https://api.openai.com/v1"


def run(folder: Path, *arguments: str, store: str = "") -> Result:
    (folder / "tidegate.toml").write_text(f'[store]\npath = "c.db"\n{store}')
    return CliRunner().invoke(main, [*arguments, "--config", str(folder / "tidegate.toml")])


def keep(folder: Path, *entries: Seen) -> None:
    store = SqliteStore(folder / "c.db", Sealer(bytes(32)))
    store.save_capabilities(entries)
    store.close()


def test_nothing_seen_and_nothing_made(tmp_path: Path) -> None:
    result = run(tmp_path, "capabilities")
    assert (result.exit_code, result.output) == (0, "Nothing has been seen yet.\n")
    assert [file.name for file in tmp_path.iterdir()] == ["tidegate.toml"]
    assert run(tmp_path, "capabilities", "--json").output == "[]\n"


def test_what_was_seen_of_each_endpoint(tmp_path: Path) -> None:
    keep(
        tmp_path,
        Seen(OPENAI, "gpt-x", "openai", "lacks", NOW - 60),
        Seen(OPENAI, "gpt-x", "openai-trigger", "troubled", NOW - 1_000),
        Seen(OPENAI, "a\x1b[2J", "xai", "troubled", NOW - 10),
    )
    head, *rows = run(tmp_path, "capabilities").output.splitlines()
    assert head.split("  ")[0] == "endpoint"
    assert [row.split()[1] for row in rows] == ["a?[2J", "gpt-x", "gpt-x"]
    assert "was in trouble  " in rows[0]
    assert "does not have it  " in rows[1]
    assert "was in trouble (old)" in rows[2]


def test_what_an_endpoint_has_done_counts_for_all_its_models(tmp_path: Path) -> None:
    keep(
        tmp_path,
        Seen(OPENAI, "", "openai", "has", NOW - 20 * 86_400),
        Seen(OPENAI, "", "xai", "has", NOW - 30.5 * 86_400),
    )
    _head, *rows = run(tmp_path, "capabilities").output.splitlines()
    assert "(any)" in rows[0]
    assert "has done it  " in rows[0]
    assert "has done it (old)" in rows[1]


def test_the_same_as_json(tmp_path: Path) -> None:
    at = int(NOW)
    keep(tmp_path, Seen(OPENAI, "gpt-x", "openai", "lacks", float(at)))
    [told] = json.loads(run(tmp_path, "capabilities", "--json").output)
    assert told == {
        "endpoint": OPENAI,
        "model": "gpt-x",
        "strategy": "openai",
        "seen": "lacks",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
        "until": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at + 86_400)),
        "counts": True,
    }


def test_a_store_in_memory_tells_nobody(tmp_path: Path) -> None:
    result = run(tmp_path, "capabilities", store='kind = "memory"\n')
    assert result.exit_code == 1
    assert "stays in the gateway's process" in result.output


def test_the_route_goes_by_it(tmp_path: Path) -> None:
    keep(tmp_path, Seen(OPENAI, "gpt-x", "openai", "lacks", NOW - 60))
    told = json.loads(run(tmp_path, "route", "openai/gpt-x", "--dialect", "responses", "--json").output)
    assert [choice["name"] for choice in told["strategies"]] == ["openai-trigger", "openai-inband", "summary"]
    [why] = [choice["reason"] for choice in told["excluded"] if choice["name"] == "openai"]
    assert "asked again after a day" in why


def test_the_route_is_told_without_a_store_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"no database " * 100)
    told = json.loads(run(tmp_path, "route", "openai/gpt-x", "--dialect", "responses", "--json").output)
    assert [choice["name"] for choice in told["strategies"]] == ["openai", "openai-trigger", "openai-inband", "summary"]
