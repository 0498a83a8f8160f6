"""What `tidegate windows` shows of a store."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate.cli import main
from tidegate.overflow.learned import Learned
from tidegate.store import SqliteStore
from tidegate.store.seal import Sealer

NOW = time.time()
ENDPOINT = "http://box:8080/v1"


def run(folder: Path, *arguments: str, store: str = "") -> Result:
    (folder / "tidegate.toml").write_text(f'[store]\npath = "c.db"\n{store}')
    return CliRunner().invoke(main, ["windows", "--config", str(folder / "tidegate.toml"), *arguments])


def keep(folder: Path, *entries: Learned) -> None:
    store = SqliteStore(folder / "c.db", Sealer(bytes(32)))
    store.save_windows(entries)
    store.close()


def test_nothing_learned_and_nothing_made(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert (result.exit_code, result.output) == (0, "Nothing has been learned yet.\n")
    assert [file.name for file in tmp_path.iterdir()] == ["tidegate.toml"]
    assert run(tmp_path, "--json").output == "[]\n"


def test_what_is_known_of_each_model(tmp_path: Path) -> None:
    keep(
        tmp_path,
        Learned(ENDPOINT, "qwen3", limit=8_192, learned_at=NOW - 60, times=2, succeeded=6_000, succeeded_at=NOW - 5),
        Learned(ENDPOINT, "gpt-x", limit=272_000, of_input=True, learned_at=NOW - 60, times=1),
        Learned(ENDPOINT, "old", limit=4_096, source="refused", learned_at=NOW - 90_000, times=1),
        Learned(ENDPOINT, "fine", succeeded=70_000, succeeded_at=NOW),
    )
    head, *rows = run(tmp_path).output.splitlines()
    assert head.split("  ")[0] == "endpoint"
    shown = {row.split()[1]: row for row in rows}
    assert list(shown) == ["fine", "gpt-x", "old", "qwen3"]
    assert all(row.startswith(ENDPOINT) for row in rows)
    assert "8,192" in shown["qwen3"]
    assert "a refusal stated it" in shown["qwen3"]
    assert shown["qwen3"].endswith("6,000")
    assert "272,000 of the input" in shown["gpt-x"]
    assert "so much was refused (old)" in shown["old"]
    assert shown["fine"].endswith("70,000")


def test_the_same_as_json(tmp_path: Path) -> None:
    keep(tmp_path, Learned(ENDPOINT, "m", limit=8_192, learned_at=0, times=2, succeeded=6_000, succeeded_at=1.6))
    assert json.loads(run(tmp_path, "--json").output) == [
        {
            "endpoint": ENDPOINT,
            "model": "m",
            "limit": 8_192,
            "of": "window",
            "source": "stated",
            "learned_at": "1970-01-01T00:00:00Z",
            "times": 2,
            "counts": False,
            "largest_success": 6_000,
            "succeeded_at": "1970-01-01T00:00:01Z",
        }
    ]


def test_a_name_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    keep(tmp_path, Learned(ENDPOINT, "m\x1b[2J\n", limit=8_192, learned_at=NOW, times=1))
    shown = run(tmp_path).output
    assert "m?[2J?" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("kind", ["memory", "none"])
def test_a_store_that_keeps_nothing(tmp_path: Path, kind: str) -> None:
    result = run(tmp_path, store=f'kind = "{kind}"\n')
    assert result.exit_code == 1
    assert f"store.kind is {kind}" in result.output


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"no database, and never was one " * 40)
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "no SQLite database" in result.output


def test_wrong_settings(tmp_path: Path) -> None:
    result = run(tmp_path, store="nonsense = 1\n")
    assert result.exit_code == 2
    assert "nonsense" in result.output
