"""A chat longer than the window of a real server, through the gateway: real refusals, real summaries, and replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_process import PATHS, Chat, gateway, post, said, turn
from tiny_models import RECITED

from tidegate.wire.conversation import DialectName

each_dialect = pytest.mark.parametrize("dialect", PATHS)
ASK = "Please read the files of the cart again and keep every price; " * 10


@pytest.fixture
def served(reciting: str, tmp_path: Path) -> Iterator[str]:
    """A gateway that knows nothing yet, before the reciting server; its URL."""
    with gateway(reciting, tmp_path) as url:
        yield url


@each_dialect
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_a_chat_outgrows_the_window_and_every_turn_is_answered(
    served: str, reciting: str, dialect: DialectName, stream: bool
) -> None:
    chat = Chat(served, dialect, stream)
    for n in range(16):
        answered = chat.ask(f"Turn {n}. {ASK}")
        assert answered.status == 200, answered.body
        assert chat.read(answered).text.strip() == "".join(RECITED).strip()
        assert chat.read(answered).finish == "stop"
    first = chat.actions.index("recovered")
    assert set(chat.actions[:first]) == {"relayed"}, "nothing is changed before the server refuses"
    assert chat.actions[first + 1] == "replayed"
    assert set(chat.actions[first:]) <= {"recovered", "replayed", "compacted"}
    assert chat.actions.count("replayed") >= 6
    # Most compactions after the first come before the server has to refuse: the window was in its refusal.
    assert chat.actions.count("recovered") <= 3

    direct = post(reciting + PATHS[dialect], turn(dialect, chat.history))
    assert direct.status == 400
    assert direct.json()["error"]["n_prompt_tokens"] > 2 * 2_048


def test_what_was_compacted_is_replayed_after_a_restart(reciting: str, tmp_path: Path) -> None:
    with gateway(reciting, tmp_path) as url:
        chat = Chat(url, "chat")
        while "recovered" not in chat.actions:
            assert chat.ask(f"Turn {len(chat.actions)}. {ASK}").status == 200
    with gateway(reciting, tmp_path) as url:
        again = Chat(url, "chat", history=chat.history)
        assert again.ask("And now?").status == 200
    assert again.actions == ["replayed"]


@each_dialect
def test_a_first_request_of_ten_windows_is_answered(served: str, dialect: DialectName) -> None:
    history = [said(dialect, "assistant" if n % 2 else "user", f"Turn {n}. {ASK}") for n in range(100)]
    chat = Chat(served, dialect, history=history)
    answered = chat.ask("Where do we stand?")
    assert answered.status == 200, answered.body
    assert chat.actions == ["recovered"]
    assert int(answered.headers["x-tidegate-tokens-before"]) > 10 * 2_048
    assert int(answered.headers["x-tidegate-tokens-after"]) < 2_048


@each_dialect
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_what_nothing_can_help_gets_the_servers_own_refusal(
    served: str, reciting: str, dialect: DialectName, stream: bool
) -> None:
    chat = Chat(served, dialect, stream)
    refused = chat.ask("one message " * 2_000)
    direct = post(reciting + PATHS[dialect], turn(dialect, chat.history, stream=stream))
    assert (refused.status, refused.body) == (direct.status, direct.body)
    assert chat.actions == ["unrecovered"]
