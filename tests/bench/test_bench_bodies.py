"""The conversations that the benches send."""

import itertools
import json

import pytest

from rig.agent import Agent, seen, tool_result
from rig.bodies import PATHS, Api, write
from rig.window_upstream import OWN

APIS = list(PATHS)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("size", [1_000, 100_000])
def test_a_body_has_about_the_size_asked_for(api: Api, size: int) -> None:
    body = write(api, size).whole()
    assert size * 0.8 < len(body) < size * 1.3
    assert body == write(api, size).whole()


@pytest.mark.parametrize("api", APIS)
def test_a_growing_conversation_begins_with_its_earlier_turns(api: Api) -> None:
    written = write(api, 50_000)
    head, rest = written.sessions(3).split(b"\n", 1)
    number, *ends = (int(word) for word in head.split())
    turns, end = rest[: ends[-1]], rest[ends[-1] + 1 :]
    assert turns[number : number + 8] == b"00000000"
    assert len(ends) == len(written.turns) - 2
    assert turns + end == written.whole()
    items = [json.loads(turns[:length] + end)["input" if api == "responses" else "messages"] for length in ends]
    assert all(longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(items))


def requests(api: Api, turns: int, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What an agent sends, answered by nobody."""
    sent: list[bytes] = []
    monkeypatch.setattr(Agent, "_post", lambda self, body: (sent.append(body), (200, "", "", b"{}"))[1])
    agent = Agent(api, "steps", "", 500)
    for _ in range(turns):
        agent.act()
    return sent


def note(body: bytes, status: int = 200) -> dict[str, object]:
    return {"own": OWN.search(body) is not None, "status": status, "body": body.decode()}


RESULTS = {tool_result(number, 500) for number in range(9)}


@pytest.mark.parametrize("api", APIS)
def test_a_session_that_passes_as_it_is_keeps_everything(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = requests(api, 4, monkeypatch)
    came = seen([note(body) for body in sent], RESULTS)
    assert (came.requests, came.whole, came.orphans, came.kept, came.kept_of) == (4, 4, 0, 3, 3)
    assert (came.summaries, came.refused) == (0, 0)
    assert came.new < len(sent[-1]) // 4 + 10  # each part of the longest request was new once
    assert came.cost == came.new + came.reused // 10


@pytest.mark.parametrize("api", APIS)
def test_what_a_gateway_does_to_a_session_shows(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (json.loads(body) for body in requests(api, 3, monkeypatch))
    items = "input" if api == "responses" else "messages"
    shorter = {**third, items: third[items][-1:]}  # the result, its call gone
    summary = {key: value for key, value in third.items() if not key.startswith("max_")}
    edited = {**second, items: [{**second[items][0], "content": "something else, and longer"}, *second[items][1:]]}
    notes = [note(json.dumps(body).encode()) for body in (first, edited, summary, shorter)]
    notes.append(note(json.dumps(third).encode(), status=400))
    came = seen(notes, RESULTS)
    assert (came.orphans, came.summaries, came.refused) == (1, 1, 1)
    assert (came.kept, came.kept_of) == (0, 1)  # the edited request; the shorter one was compacted
    assert came.whole == came.requests == 3
    assert seen(notes, set()).whole == 0
