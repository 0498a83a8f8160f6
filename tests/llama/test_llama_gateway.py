"""A chat longer than the window of a real server, through the gateway: real refusals, real summaries, and replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_process import PATHS, Chat, gateway, post, recording, said, turn, words
from tiny_models import RECITED

from tidegate.wire.conversation import DialectName

each_dialect = pytest.mark.parametrize("dialect", PATHS)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
ASK = "Please read the files of the cart again and keep every price; " * 10
SUMMARY = "".join(RECITED).strip()


@pytest.fixture(scope="module")
def served(reciting: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway before the reciting server; its URL."""
    with gateway(reciting, tmp_path_factory.mktemp("served")) as url:
        yield url


@pytest.fixture
def unknown(request: pytest.FixtureRequest) -> str:
    """A model of which the gateway has heard nothing, and a topic nobody has talked about."""
    return str(request.node.name)


@each_dialect
@streamed_or_not
def test_a_chat_outgrows_the_window_and_every_turn_is_answered(
    served: str, reciting: str, unknown: str, dialect: DialectName, stream: bool
) -> None:
    chat = Chat(served, dialect, stream, model=unknown)
    for n in range(16):
        answered = chat.ask(f"{unknown}, turn {n}. {ASK}")
        assert answered.status == 200, answered.body
        assert chat.read(answered).text.strip() == SUMMARY
        assert chat.read(answered).finish == "stop"
    first = chat.actions.index("recovered")
    assert set(chat.actions[:first]) == {"relayed"}, "nothing is changed before the server refuses"
    assert chat.actions[first + 1] == "replayed"
    assert set(chat.actions[first:]) <= {"recovered", "replayed", "compacted"}
    # Each compaction makes room for some turns.
    assert chat.actions.count("recovered") + chat.actions.count("compacted") <= 6

    direct = post(reciting + PATHS[dialect], turn(dialect, chat.history))
    assert direct.status == 400
    assert direct.json()["error"]["n_prompt_tokens"] > 2 * 2_048


@each_dialect
def test_a_server_that_tells_its_window_never_has_to_refuse(
    reciting: str, tmp_path: Path, dialect: DialectName
) -> None:
    with gateway(reciting, tmp_path, asks=True) as url:
        chat = Chat(url, dialect)
        for n in range(16):
            assert chat.ask(f"Turn {n}. {ASK}").status == 200
    assert set(chat.actions) == {"relayed", "compacted", "replayed"}


def test_what_was_compacted_is_replayed_after_a_restart(reciting: str, tmp_path: Path) -> None:
    with gateway(reciting, tmp_path) as url:
        chat = Chat(url, "chat")
        while "recovered" not in chat.actions:
            assert chat.ask(f"Turn {len(chat.actions)}. {ASK}").status == 200
    with gateway(reciting, tmp_path) as url:
        again = Chat(url, "chat", history=chat.history)
        assert again.ask("And now?").status == 200
    assert again.actions == ["replayed"]


def test_the_server_sees_a_plain_summary_call_and_then_the_summary_in_place_of_the_history(
    reciting: str, tmp_path: Path
) -> None:
    with recording(reciting) as (relay, asked), gateway(relay, tmp_path) as url:
        for dialect in ("chat", "responses", "messages"):
            asked.clear()
            chat = Chat(url, dialect, model=dialect)
            while "recovered" not in chat.actions:
                assert chat.ask(f"{dialect}, turn {len(chat.actions)}. {ASK}").status == 200
            chat.ask("One more thing.")
            items = "input" if dialect == "responses" else "messages"
            summary_calls = [body for body in asked if "<transcript>" in words(body[items][-1])]
            assert summary_calls
            assert all(body["stream"] is True and "tools" not in body for body in summary_calls)
            recovered, replayed = asked[-2][items], asked[-1][items]
            assert SUMMARY in words(recovered[0])
            assert "Written by a machine, not by the user" in words(recovered[0])
            assert replayed[: len(recovered)] == recovered, "the prefix is stable between two compactions"
            assert replayed[-1] == chat.history[-2], "the newest user turn is verbatim"


@each_dialect
def test_a_first_request_of_ten_windows_is_answered(served: str, unknown: str, dialect: DialectName) -> None:
    history = [said(dialect, "assistant" if n % 2 else "user", f"{unknown} {n}. {ASK}") for n in range(100)]
    chat = Chat(served, dialect, model=unknown, history=history)
    answered = chat.ask("Where do we stand?")
    assert answered.status == 200, answered.body
    assert chat.actions == ["recovered"]
    assert int(answered.headers["x-tidegate-tokens-before"]) > 10 * 2_048
    assert int(answered.headers["x-tidegate-tokens-after"]) < 2_048


@each_dialect
@streamed_or_not
def test_what_nothing_can_help_gets_the_servers_own_refusal(
    served: str, reciting: str, unknown: str, dialect: DialectName, stream: bool
) -> None:
    chat = Chat(served, dialect, stream, model=unknown)
    refused = chat.ask("one message " * 2_000)
    direct = post(reciting + PATHS[dialect], turn(dialect, chat.history, stream=stream))
    assert (refused.status, refused.body) == (direct.status, direct.body)
    assert chat.actions == ["unrecovered"]
