"""`tidegate replay`: what it says of a recorded session, under which policy, and what it never says."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import config
from tidegate.cli import main
from tidegate.cli.replay.playing import NAMES, OFF, Ruler, Rules, play
from tidegate.cli.replay.recorded import filler
from tidegate.cli.replay.sessions import read
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.engine.view import plain, read_history
from tidegate.gateway.catalogue import catalogue
from tidegate.wire import REQUESTS

SESSIONS = Path(__file__).parent / "sessions"

Json = dict[str, Any]

SECRET = "pelican"
"""Stands in every message."""

WINDOW = 6_000


def history(turns: int) -> list[Json]:
    """A session: a task, then a call and its result for each turn."""
    messages: list[Json] = [{"role": "system", "content": f"You are an agent. {SECRET}"}]
    messages.append({"role": "user", "content": f"Find the {SECRET} in all files."})
    for turn in range(turns):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "read", "arguments": f'{{"n": {turn}}}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"{SECRET} {turn}\n" * 150})
    return messages


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Requests of a session that outgrows `WINDOW`."""
    file = tmp_path / "session.jsonl"
    whole = history(40)
    bodies = [{"model": "gpt-5.4", "messages": whole[:end]} for end in range(2, len(whole) + 1, 2)]
    file.write_text("\n".join(json.dumps(body) for body in bodies))
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def told(*arguments: object) -> list[Json]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[Json] = json.loads(result.output)
    return found


def test_what_would_have_been_done_turn_by_turn(recorded: Path) -> None:
    (session,) = told(recorded, "--window", WINDOW, "--policy", "default")
    (played,) = session["policies"]
    assert (played["window"], played["threshold"], played["target"]) == (6_000, 5_100, 3_000)
    turns, totals = played["turns"], played["totals"]
    assert [turn["line"] for turn in turns] == [*range(1, 42)]
    compacted = [turn for turn in turns if turn["compactions"]]
    assert len(compacted) == totals["compactions"] > 2
    for turn in compacted:
        assert turn["why"] == ["threshold"]
        assert turn["compactions"][0]["strategy"] == "summary"
        assert turn["compactions"][0]["before"] >= 5_100 > turn["tokens_sent"]
    assert all(turn["answered"] and turn["tokens_sent"] <= WINDOW for turn in turns)
    assert totals["tokens_sent"] == sum(turn["tokens_sent"] for turn in turns)
    assert totals["tokens_asked"] == sum(turn["tokens_asked"] for turn in turns) > totals["tokens_sent"]
    new = totals["tokens_sent"] - totals["tokens_reused"]
    summaries = totals["summary_tokens_read"] - totals["summary_tokens_reused"] + totals["summary_tokens_written"]
    tenth = (totals["tokens_reused"] + totals["summary_tokens_reused"]) / 10
    assert totals["cost_tokens"] == pytest.approx(new + summaries + tenth, abs=1)


def test_between_compactions_the_whole_of_a_request_begins_the_next_one(recorded: Path) -> None:
    ((session,), policies) = told(recorded, "--window", WINDOW, "--policy", "default", "--policy", "rubypi"), 2
    assert len(session["policies"]) == policies
    for played in session["policies"]:
        turns = played["turns"]
        for before, turn in pairwise(turns):
            if not turn["compactions"]:
                assert turn["tokens_reused"] == before["tokens_sent"]


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_can_be_played(recorded: Path, name: str) -> None:
    (session,) = told(recorded, "--window", WINDOW, "--policy", name)
    (played,) = session["policies"]
    totals = played["totals"]
    assert played["policy"] == name
    assert totals["requests"] == 41
    assert (totals["compactions"] == 0) == (name == OFF)
    assert (totals["answered"] == 41) == (name != OFF)


def test_off_shows_what_the_provider_would_have_refused(recorded: Path) -> None:
    (session,) = told(recorded, "--window", WINDOW, "--policy", "off")
    turns = session["policies"][0]["turns"]
    for turn in turns:
        assert turn["answered"] == (turn["tokens_asked"] <= WINDOW)
    assert not turns[-1]["answered"]
    assert turns[-1]["tokens_sent"] is None


def test_rho_is_played_at_work_and_said_so(recorded: Path) -> None:
    result = run(recorded, "--window", WINDOW, "--policy", "rho", "--brief")
    assert "rho compacts by itself only with `enabled = true`" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "threshold", "target"),
    [
        (("--policy", "default", "--threshold", 50, "--target", 30), 3_000, 1_800),
        (("--policy", "default", "--threshold", 40, "--target", 90), 2_400, 2_340),
        (("--threshold", 50), 3_000, 2_940),
        ((), 5_100, 3_000),
    ],
)
def test_threshold_and_target_lie_over_the_policy(
    recorded: Path, arguments: tuple[object, ...], threshold: int, target: int
) -> None:
    (session,) = told(recorded, "--window", WINDOW, *arguments)
    played = session["policies"][0]
    assert (played["threshold"], played["target"]) == (threshold, target)


def test_without_a_policy_the_settings_count(recorded: Path, tmp_path: Path) -> None:
    toml = tmp_path / "tidegate.toml"
    toml.write_text(
        '[compaction]\nstrategies = ["elide", "summary"]\n'
        '[models."gpt-5.4"]\nwindow = 7000\npolicy = "rubypi"\nmax_tokens = 4000\n'
    )
    (session,) = told(recorded, "--config", toml)
    played = session["policies"][0]
    assert played["policy"] == "as configured (rubypi)"
    assert (played["window"], played["threshold"]) == (7_000, 4_001)
    assert "elide" in {turn["strategy"] for turn in played["turns"]}


def test_a_providers_own_compaction_is_stood_in_for_by_a_summary(recorded: Path) -> None:
    (session,) = told(recorded, "--window", WINDOW, "--dialect", "chat", "--provider", "openai")
    assert {turn["strategy"] for turn in session["policies"][0]["turns"]} == {"", "summary"}


def test_for_people_it_is_a_table_and_a_sum(recorded: Path) -> None:
    result = run(recorded, "--window", WINDOW, "--policy", "default", "--policy", "off", "--brief")
    assert result.exit_code == 0
    output = " ".join(result.output.split())
    for words in ("prepared before:", "refused as too long, and not recovered", "tokens sent", "reused", "cost"):
        assert words in output
    assert "Summaries are simulated" in output
    assert "there are no dollars" in output
    assert "nothing was done" not in output
    assert len(run(recorded, "--window", WINDOW, "--policy", "default").output) > len(result.output) / 2


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--brief", "--policy", "rho-elixir", "--policy", "off")])
def test_no_word_of_the_conversation_is_shown(recorded: Path, arguments: tuple[str, ...]) -> None:
    result = run(recorded, "--window", WINDOW, *arguments)
    assert result.exit_code == 0
    assert SECRET not in result.output


@pytest.mark.parametrize(("file", "requests", "fixed"), [("claude-code.jsonl", 7, 904), ("codex.jsonl", 6, 6_000)])
def test_what_an_agents_file_lacks_is_stood_in_for_by_what_was_counted(file: str, requests: int, fixed: int) -> None:
    (session,) = told(SESSIONS / file, "--policy", "default")
    played = session["policies"][0]
    assert played["totals"]["requests"] == requests
    assert played["turns"][0]["tokens_asked"] == pytest.approx(fixed, rel=0.02)
    assert any("stand in for them" in note for note in played["notes"])


def test_the_window_that_codex_noted_counts_where_no_other_is_known(tmp_path: Path) -> None:
    file = tmp_path / "rollout.jsonl"
    file.write_text((SESSIONS / "codex.jsonl").read_text().replace("gpt-5.4", "some-model"))
    (session,) = told(file, "--policy", "default")
    assert session["policies"][0]["window"] == 272_000


def test_an_unknown_window_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"model": "some-model", "messages": history(2)}))
    (session,) = told(file, "--policy", "default")
    played = session["policies"][0]
    assert played["window"] is None
    assert "no window is known of the model some-model: give --window" in played["notes"]
    assert told(file, "--policy", "rubypi")[0]["policies"][0]["notes"] == []


def test_an_agents_own_compaction_passes_as_it_came(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    trigger = {"model": "gpt-5.4", "input": [{"role": "user", "content": "x"}, {"type": "compaction_trigger"}]}
    server_held = {"model": "gpt-5.4", "input": [], "previous_response_id": "r"}
    file.write_text(f"{json.dumps(trigger)}\n{json.dumps(server_held)}")
    (session,) = told(file)
    assert [turn["action"] for turn in session["policies"][0]["turns"]] == ["relayed", "relayed"]
    assert session["policies"][0]["turns"][1]["reason"] == "server_held"


def test_several_files_are_told_one_after_the_other(recorded: Path) -> None:
    assert [it["format"] for it in told(recorded, SESSIONS / "codex.jsonl")] == ["requests", "a rollout of Codex"]


def test_standard_input() -> None:
    result = CliRunner().invoke(main, ["replay", "-", "--json"], input=(SESSIONS / "codex.jsonl").read_bytes())
    assert json.loads(result.output)[0]["format"] == "a rollout of Codex"


@pytest.mark.parametrize(
    ("content", "arguments", "status", "said"),
    [
        ("{}", ("--policy", "nobody"), 2, "'nobody' is not one of 'default', 'rho', 'rho-elixir', 'rubypi', 'planck'"),
        ("{}", (), 1, "no line is of a format that is known"),
        ("{}\nnonsense\n", (), 1, "line 2: no JSON"),
        ('{"model":"m","messages":[{"role":"user","content":"x"},"x"]}', (), 1, "line 1: no request of the chat API"),
        ('{"model":"m","messages":[{"role":"user","content":"x"}]}', ("--provider", "nobody"), 1, "unknown provider"),
        (
            '{"model":"m","messages":[{"role":"user","content":"x"}]}', ("--provider", "anthropic"), 1,
            "does not serve the chat API",
        ),
        (
            '{"type":"assistant","uuid":"a","message":{"role":"assistant","content":"x"}}', (), 1,
            "no answer of a model is in it, so there was no request",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(
    tmp_path: Path, content: str, arguments: tuple[str, ...], status: int, said: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    result = run(file, *arguments)
    assert result.exit_code == status
    assert said in " ".join(result.output.split())


SETTINGS = config.load(None, {}, {})
CATALOGUE = catalogue(SETTINGS)
WORDS = st.text(st.characters(codec="utf-8"), max_size=60)
CHAT = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), WORDS), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(CHAT, WORDS, st.sampled_from(["chat", "messages", "responses"]))
def test_with_policy_off_sizes_are_the_estimates_of_the_bodies(
    said: list[tuple[str, str]], system: str, dialect: Any
) -> None:
    fields: Json = {"model": "m", "messages": {"system": system}, "responses": {"instructions": system}}.get(
        dialect, {}
    )  # type: ignore[assignment]
    items = [{"role": role, "content": words} for role, words in said]
    raw = json.dumps({"model": "m", **fields, REQUESTS[dialect].ITEMS_KEY: items}).encode()
    session = read("a.jsonl", raw + b"\n" + raw, dialect)
    playing = play(session, Rules(OFF, window=10**6), SETTINGS, CATALOGUE)
    hasher = Hasher(b"k" * 32)
    own = read_history(REQUESTS[dialect].read(raw), b"t" * 16, hasher, Ledger(hasher))
    assert [it.turn.before for it in playing.turns] == [plain(own).tokens] * 2
    assert [it.turn.sent for it in playing.turns] == [plain(own).tokens] * 2
    assert [it.turn.reused for it in playing.turns] == [0, plain(own).tokens]


@pytest.mark.parametrize("tokens", [1, 100, 12_345])
def test_what_stands_in_takes_so_many_tokens(tokens: int) -> None:
    ruler = Ruler()

    def size(system: str) -> int:
        body = {"model": "m", "system": system, "messages": [{"role": "user", "content": "x"}]}
        return ruler("messages", "m", json.dumps(body).encode()).tokens

    assert size(json.loads(filler(tokens))) - size("") == pytest.approx(tokens, abs=2)
