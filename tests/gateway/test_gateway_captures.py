"""The requests of real agents through the gateway: what must be left alone is, and nobody gets another's past."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from rawclient import PATHS, Answer, Front, call, fronted, history, post
from rawserver import answer
from running import Running, running
from stores import recorded

from tidegate.simulator import SimulatorSettings

FOLDER = Path(__file__).parent.parent / "captures"
CAPTURES = {file.stem: json.loads(file.read_text("utf-8")) for file in sorted(FOLDER.glob("*.json"))}
POSTED = [name for name, told in CAPTURES.items() if told["method"] == "POST"]
OWN = ["claude-code-compact-2", "codex-3", "codex-local-compact-2", "opencode-chat-4", "pi-chat-3"]
HELD = ["langchain-responses-prev-2", "openai-agents-prev-2", "openai-agents-prev-3"]
THREADS = ["anthropic-sdk-thread-1", "anthropic-sdk-thread-2"]
"""Both: the provider holds the thread, and is asked to compact it."""
VERSION = ("anthropic-version", "2023-06-01")
DIALECTS = pytest.mark.parametrize(("dialect", "path"), PATHS.items(), ids=list(PATHS))
HOP = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding")

OVERFLOW = answer(
    b'{"error":{"message":"prompt is too long: 300 tokens > 150 maximum","type":"invalid_request_error"}}',
    status="400 Bad Request",
)


@pytest.fixture(scope="module")
def roomy() -> Iterator[Front]:
    with fronted() as front:
        yield front


@pytest.fixture(scope="module")
def tight() -> Iterator[Front]:
    """Every request is far over what it takes for the window."""
    with fronted(toml='[models."*"]\nwindow = 150\n') as front:
        yield front


def replay(front: Front, name: str, *more: tuple[str, str]) -> tuple[Answer, bytes, str]:
    """Sends a captured request: (the answer, the body sent, the target)."""
    front.upstream.seen.clear()
    told = CAPTURES[name]
    raw = json.dumps(told["body"], ensure_ascii=False, separators=(",", ":")).encode()
    if ["content-encoding", "zstd"] in told["headers"]:
        raw = zstandard.compress(raw)
    headers = [(key, value) for key, value in told["headers"] if key.lower() not in HOP]
    target = told["path"] + (f"?{told['query']}" if told["query"] else "")
    return call(front.base, "POST", target, [*headers, *more], raw), raw, target


@pytest.mark.parametrize("name", POSTED)
def test_a_request_arrives_as_the_agent_sent_it(roomy, name):
    got, raw, target = replay(roomy, name)
    assert got.status == 200
    (seen,) = roomy.upstream.seen
    assert (bytes(seen.body), seen.target) == (raw, target)
    arrived = [(key.lower(), value) for key, value in seen.headers if key.lower() not in HOP]
    assert arrived == [(k.lower(), v) for k, v in CAPTURES[name]["headers"] if k.lower() not in HOP]


LEFT_ALONE = [*((name, "own_compaction") for name in OWN + THREADS), *((name, "server_held") for name in HELD)]


@pytest.mark.parametrize(("name", "reason"), LEFT_ALONE)
def test_an_agents_own_compaction_and_a_history_the_provider_holds_are_left_alone(tight, name, reason):
    """Though they are over the window, and also where the provider then refuses them for it."""
    for step in (answer(), OVERFLOW):
        tight.upstream.default = lambda seen, step=step: (step,)
        with recorded(tight.app) as store:
            got, raw, _ = replay(tight, name)
        assert (got.action, got.reason) == ("relayed", reason)
        assert [bytes(seen.body) for seen in tight.upstream.seen] == [raw]
        assert step.endswith(got.body)
        assert store.empty


def test_a_turn_of_the_same_agents_is_not_left_alone(tight):
    tight.upstream.default = lambda seen: (answer(),)
    for name in ("claude-code-compact-1", "codex-2", "opencode-chat-3", "pi-chat-2"):
        got, raw, _ = replay(tight, name)
        assert got.reason not in ("own_compaction", "server_held"), name
        assert bytes(tight.upstream.seen[-1].body) == raw  # `{"ok":true}` is no summary


# -- one session id, several conversations -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_gate() -> Iterator[Running]:
    with running(SimulatorSettings(window=4000), window=4000) as found:
        yield found


@pytest.fixture
def gate(shared_gate: Running) -> Running:
    shared_gate.simulator.reset()
    return shared_gate


SESSION = [
    ("x-session-id", "ses_1"), ("session-id", "ses_1"), ("X-Claude-Code-Session-Id", "ses_1"),
    ("x-session-affinity", "ses_1"), VERSION,
]  # fmt: skip
SHARED_FIELDS = {
    "chat": {"user": "u1"},
    "responses": {"prompt_cache_key": "ses_1"},
    "messages": {"metadata": {"user_id": "ses_1"}},
}


@DIALECTS
def test_a_title_request_or_a_sub_agent_under_the_same_session_has_no_part_in_its_past(gate, dialect, path):
    key = ("Authorization", f"Bearer sk-session-{dialect}")
    common = SHARED_FIELDS[dialect]
    items = "input" if dialect == "responses" else "messages"
    parent = history(dialect, 14, **common)
    assert post(gate.base, path, parent, *SESSION, key).action == "compacted"
    assert post(gate.base, path, parent, *SESSION, key).action == "replayed"
    others = {
        "title": parent[items][:1],
        "sub-agent": [{"role": "user", "content": "look for the parser"}, *parent[items][1:4], parent[items][-1]],
        "edited": [{"role": "user", "content": "step 0, in other words"}, *parent[items][1:8], parent[items][-1]],
        "shortened": parent[items][:5],
        "fork": [*parent[items][:3], {"role": "user", "content": "rather something else"}],
        # As many items, so that not even their number tells them apart.
        "sub-agent as long": [
            {**item, "content": f"another job, step {n}" + " and so on" * 40} for n, item in enumerate(parent[items])
        ],
    }
    for name, theirs in others.items():
        sent = json.dumps({**parent, items: theirs}).encode()
        got = post(gate.base, path, sent, *SESSION, key)
        assert got.action == "relayed", name
        assert gate.of("main")[-1].body == sent, name
    assert gate.violations == []


@DIALECTS
def test_a_history_edited_after_the_cut_keeps_its_replay_and_one_edited_before_it_does_not(gate, dialect, path):
    key = ("Authorization", f"Bearer sk-edited-{dialect}")
    items = "input" if dialect == "responses" else "messages"
    parent = history(dialect, 14)
    assert post(gate.base, path, parent, VERSION, key).action == "compacted"
    later = {**parent, items: [*parent[items][:-1], {"role": "user", "content": "another question"}]}
    assert post(gate.base, path, later, VERSION, key).action == "replayed"
    earlier = {**parent, items: [{"role": "user", "content": "a new beginning"}, *parent[items][1:]]}
    assert post(gate.base, path, earlier, VERSION, key).action == "compacted"


# -- counting ----------------------------------------------------------------------------------------------------------

COUNT = "/v1/messages/count_tokens"


def counted(base: str, sent: dict[str, object], key: tuple[str, str]) -> Answer:
    return post(base, COUNT, {name: value for name, value in sent.items() if name != "max_tokens"}, VERSION, key)


def test_counting_counts_what_would_be_sent(gate):
    key, long = ("x-api-key", "sk-count"), history("messages", 14)
    before = counted(gate.base, long, key)
    direct = counted(gate.simulator.url, long, key)
    assert (before.json, before.action) == (direct.json, "relayed")
    assert direct.json["input_tokens"] > 4000

    sent = post(gate.base, PATHS["messages"], long, VERSION, key)
    assert sent.action == "compacted"
    after = counted(gate.base, long, key)
    assert after.action == "replayed"
    assert after.json["input_tokens"] == gate.of("main")[-1].input_tokens == sent.json["usage"]["input_tokens"]
    assert len(gate.of("summary")) == 1


def test_counting_never_compacts(gate):
    with recorded(gate.app) as store:
        got = counted(gate.base, history("messages", 20), ("x-api-key", "sk-count-2"))
    assert got.json["input_tokens"] > 4000
    assert gate.of("summary") == []
    assert store.empty
