"""`tidegate checkpoints`: what is kept, its text for whoever has the key, and forgetting it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidegate.cli import main
from tidegate.engine.checkpoint import Artifact, Checkpoint
from tidegate.store import SqliteStore, load_or_create, open_store

WORDS = "## Goal\nFACT-00 the shop's port is 8000."


@dataclass
class Here:
    config: Path
    store: SqliteStore

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["checkpoints", *arguments, "--config", str(self.config)])


def checkpoint(number: int, artifact: Artifact, tenant: bytes = b"t" * 32, strategy: str = "summary") -> Checkpoint:
    return Checkpoint(
        tenant=tenant, bucket=b"b" * 32, length=number, chain=bytes([number]) * 32, head=b"h" * 32, dialect="chat",
        artifact=artifact, provider="openai", endpoint="https://x/v1", model="m\x1b[2J", strategy=strategy,
        tokens_before=9000, tokens_after=4000,
    )  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    config = tmp_path / "tidegate.toml"
    config.write_text('[store]\npath = "store.db"\nkey_file = "key"\n')
    keys = load_or_create(tmp_path / "key", None)
    store = open_store("sqlite", path=tmp_path / "store.db", keys=keys)
    assert isinstance(store, SqliteStore)
    yield Here(config, store)
    store.close()


def filled(here: Here) -> None:
    here.store.save(checkpoint(3, Artifact("text", text=WORDS)))
    here.store.save(checkpoint(5, Artifact("opaque", items=(b"{}",), binding="b"), b"u" * 32, "openai"))
    here.store.save(checkpoint(9, Artifact("text", elided=((2, 0),), binding="elided"), strategy="elide"))


def test_a_list_tells_sizes_and_names_and_no_word(here):
    filled(here)
    run = here.run("list")
    assert run.exit_code == 0
    assert "0909090909090909" in run.output
    assert "9,000 -> 4,000" in run.output
    assert "3 checkpoints" in run.output
    assert "FACT-00" not in run.output
    assert "\x1b" not in run.output
    told: list[dict[str, Any]] = json.loads(here.run("list", "--json").output)
    assert [one["strategy"] for one in told] == ["elide", "openai", "summary"]
    assert len({one["caller"] for one in told}) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("0303", WORDS), ("0505", "only its provider can read it"), ("0909", "tool results are left out")],
)
def test_the_text_is_shown_where_it_is_asked_for(here, name, words):
    filled(here)
    assert WORDS not in here.run("show", name).output
    assert words in here.run("show", name, "--text").output


def test_another_key_opens_nothing(here, tmp_path):
    filled(here)
    (tmp_path / "key").unlink()
    load_or_create(tmp_path / "key", None)
    run = here.run("show", "0303", "--text")
    assert run.exit_code == 1
    assert "sealed with another key" in run.output
    assert "FACT-00" not in run.output


def test_what_is_forgotten_is_gone(here):
    filled(here)
    assert "1 forgotten" in here.run("forget", "0303").output
    assert [one.items for one in here.store.kept()] == [9, 5]
    caller = here.store.kept()[1].caller
    assert "1 forgotten" in here.run("forget", "--caller", caller).output
    assert "1 forgotten" in here.run("forget", "--all").output
    assert here.store.kept() == []
    assert "Nothing has been compacted yet" in here.run("list").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "ffff"), "there is no checkpoint ffff"),
        (("show", "03"), "there is no checkpoint 03"),
        (("forget",), "say which"),
    ],
)
def test_what_is_named_wrongly_is_told(here, arguments, words):
    filled(here)
    run = here.run(*arguments)
    assert run.exit_code != 0
    assert words in run.output


def test_where_there_is_no_store_that_is_said(tmp_path):
    config = tmp_path / "tidegate.toml"
    config.write_text('[store]\npath = "none.db"\nkey_file = "key"\n')
    run = CliRunner().invoke(main, ["checkpoints", "list", "--config", str(config)])
    assert "there is no store" in run.output
    config.write_text('[store]\nkind = "memory"\n')
    run = CliRunner().invoke(main, ["checkpoints", "list", "--config", str(config)])
    assert "stay in the gateway's process" in run.output
