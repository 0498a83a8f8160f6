"""Whose key goes where, and who may find whose checkpoints."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from rawclient import PATHS, Front, body, call, fronted, history, post
from rawserver import answer
from running import Running, running

from tidegate.context.fingerprint import Hasher
from tidegate.gateway.credentials import Tenants, identity, with_key
from tidegate.providers import load
from tidegate.simulator import SimulatorSettings

NAMED = """
[routing]
default_chat = "vllm"
[providers.openai]
base_url = "{url}/openai"
[providers.anthropic]
base_url = "{url}/anthropic"
[providers.groq]
base_url = "{url}/groq"
[providers.vllm]
base_url = "{url}/vllm"
[providers.headed]
base_url = "{url}/headed"
auth = { scheme = "header", header = "Api-Key", env = "HEADED_KEY" }
"""


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with fronted(single=False, toml=NAMED) as running:
        yield running


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in (
        ("OPENAI_API_KEY", "env-openai"), ("ANTHROPIC_API_KEY", "env-anthropic"),
        ("GROQ_API_KEY", "env-groq"), ("HEADED_KEY", "env-headed"),
    ):  # fmt: skip
        monkeypatch.setenv(name, key)


def sent(
    front: Front, path: str, dialect: str, *headers: tuple[str, str], status: str = "200 OK"
) -> dict[str, list[str]]:
    """The credential headers that arrive upstream."""
    front.upstream.reset()
    front.upstream.then(answer(status=status))
    post(front.base, path, body(dialect), *headers)
    (seen,) = front.upstream.seen
    return {
        name: found for name in ("authorization", "x-api-key", "api-key", "x-goog-api-key") if (found := seen.all(name))
    }


OWN = [
    ("/anthropic/v1/messages", "messages", [("x-api-key", "mine")], {"x-api-key": ["mine"]}),
    ("/anthropic/v1/messages", "messages", [("Authorization", "Bearer mine")], {"authorization": ["Bearer mine"]}),
    ("/anthropic/v1/messages", "messages", [("x-api-key", "a"), ("Authorization", "Bearer b")],
     {"x-api-key": ["a"], "authorization": ["Bearer b"]}),
    ("/openai/v1/chat/completions", "chat", [("Authorization", "Bearer mine")], {"authorization": ["Bearer mine"]}),
    ("/openai/v1/chat/completions", "chat", [("api-key", "mine")], {"api-key": ["mine"]}),
    ("/openai/v1/responses", "responses", [("Authorization", "Basic bXk6a2V5")], {"authorization": ["Basic bXk6a2V5"]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "dialect", "headers", "arrives"), OWN)
def test_the_clients_own_credential_passes_as_it_is(front, path, dialect, headers, arrives):
    assert sent(front, path, dialect, *headers) == arrives


ADDED = [
    ("/openai/v1/chat/completions", "chat", {"authorization": ["Bearer env-openai"]}),
    ("/v1/responses", "responses", {"authorization": ["Bearer env-openai"]}),
    ("/v1/messages", "messages", {"x-api-key": ["env-anthropic"]}),
    ("/messages/count_tokens", "messages", {"x-api-key": ["env-anthropic"]}),
    ("/groq/v1/chat/completions", "chat", {"authorization": ["Bearer env-groq"]}),
    ("/headed/v1/chat/completions", "chat", {"api-key": ["env-headed"]}),
    ("/vllm/v1/chat/completions", "chat", {}),
    ("/v1/chat/completions", "chat", {}),
    ("/openai/v1/files", "chat", {"authorization": ["Bearer env-openai"]}),
]


@pytest.mark.parametrize(("path", "dialect", "arrives"), ADDED, ids=[a[0] for a in ADDED])
def test_a_key_of_the_environment_goes_to_its_own_provider_and_to_no_other(front, path, dialect, arrives):
    assert sent(front, path, dialect) == arrives


def test_the_one_upstream_has_a_key_of_the_environment_only_where_it_is_told_which():
    told = '[providers.generic]\nauth.env = "OPENAI_API_KEY"\n'
    with fronted(toml=told) as named, fronted() as unnamed:
        for dialect, path in PATHS.items():
            assert sent(named, path, dialect) == {"authorization": ["Bearer env-openai"]}
            assert sent(named, path, dialect, ("x-api-key", "mine")) == {"x-api-key": ["mine"]}
            assert sent(unnamed, path, dialect) == {}


@pytest.mark.parametrize(
    "empty", [("Authorization", "Bearer "), ("Authorization", "Bearer"), ("x-api-key", "")], ids=str
)
def test_a_scheme_without_a_key_is_no_credential(front, empty):
    assert sent(front, "/openai/v1/chat/completions", "chat", empty) == {"authorization": ["Bearer env-openai"]}


@pytest.mark.parametrize(("dialect", "path"), PATHS.items())
def test_without_any_credential_the_client_gets_the_providers_own_401(dialect, path, monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GENERIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with running(SimulatorSettings(keys=frozenset({"sk-right"}))) as gate:
        version = ("anthropic-version", "2023-06-01")
        direct = post(gate.simulator.url, path, body(dialect), version)
        got = post(gate.base, path, body(dialect), version)
        assert (got.status, got.json["error"]["message"]) == (401, direct.json["error"]["message"])
        assert post(gate.base, path, body(dialect), version, ("Authorization", "Bearer sk-right")).status == 200


# -- tenants ---------------------------------------------------------------------------------------------------------

ANY = load().get("generic")

SAME = [
    ([(b"authorization", b"Bearer k")], b"k"),
    ([(b"authorization", b"bearer  k ")], b"k"),
    ([(b"x-api-key", b"k")], b"k"),
    ([(b"api-key", b"k")], b"k"),
    ([(b"x-api-key", b"k"), (b"authorization", b"Bearer k")], b"k"),
    ([(b"authorization", b"Bearer")], b""),
    ([(b"authorization", b"")], b""),
    ([], b""),
]


@pytest.mark.parametrize(("headers", "secret"), SAME)
def test_one_key_is_one_identity_however_it_is_sent(headers, secret):
    assert identity(headers, b"", ANY) == secret


@pytest.mark.parametrize(
    "name",
    [
        b"authorization", b"x-api-key", b"ocp-apim-subscription-key", b"cf-aig-authorization", b"x-auth-token",
        b"helicone-auth", b"x-portkey-api-key", b"x-work-pass", b"cookie",
    ],
)  # fmt: skip
def test_callers_are_told_apart_by_whatever_header_holds_their_key(name):
    own = ANY.model_copy(update={"auth": ANY.auth.model_copy(update={"scheme": "header", "header": "X-Work-Pass"})})
    alice, bob = (identity([(b"accept", b"*/*"), (name, key)], b"", own) for key in (b"alice", b"bob"))
    assert alice != bob
    assert b"" not in (alice, bob)


@pytest.mark.parametrize("query", [b"key=%s", b"beta=true&api_key=%s", b"api-version=1&Code=%s"])
def test_callers_are_told_apart_by_a_key_in_the_query(query):
    assert identity([], query % b"alice", ANY) != identity([], query % b"bob", ANY)


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ([(b"idempotency-key", b"1")], b""),
        ([(b"x-stainless-retry-count", b"1")], b""),
        ([(b"cookie", b"changes=1")], b""),
        ([], b"beta=true"),
    ],
)
def test_what_changes_with_each_request_tells_no_callers_apart(headers, query):
    key = (b"authorization", b"Bearer k")
    assert identity([key, *headers], query, ANY) == identity([key], b"", ANY)


def test_a_providers_own_header_is_a_credential_and_keeps_the_environments_key_out():
    auth = {"scheme": "header", "header": "X-Work-Pass", "env": "WORK"}
    own = ANY.model_copy(update={"auth": ANY.auth.model_copy(update=auth)})
    sent = [(b"x-work-pass", b"alice")]
    assert with_key(sent, own, {"WORK": "secret"}) == sent
    assert with_key([], own, {"WORK": "secret"}) == [(b"x-work-pass", b"secret")]


def test_two_people_of_one_account_are_two_tenants():
    known = tenants()
    one, other = token("team", user="a"), token("team", user="b")
    for secret in (one, other):
        known.accepted(secret, HERE)
    assert known.of(one, HERE) != known.of(other, HERE)


def test_a_placeholder_that_many_share_makes_nobody_a_tenant_of_another():
    shared = (b"authorization", b"Bearer none")
    for name, scheme in ((b"x-api-key", b""), (b"authorization", b"Bearer ")):
        one, other = ([shared, (name, scheme + key)] for key in (b"a", b"b"))
        assert identity(one, b"", ANY) != identity(other, b"", ANY)


def token(account: object, *, nonce: int = 0, user: str = "u") -> bytes:
    """As ChatGPT's logins carry it."""
    named = {"chatgpt_account_id": account, "chatgpt_user_id": user}
    claims = {"exp": 1_800_000_000 + nonce, "https://api.openai.com/auth": named}
    parts = (json.dumps({"alg": "RS256"}).encode(), json.dumps(claims).encode(), b"signature%d" % nonce)
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


HERE, THERE = "https://chatgpt.com/backend-api/codex", "http://127.0.0.1:11434/v1"


def tenants() -> Tenants:
    return Tenants(Hasher(b"k" * 32))


def test_tokens_of_one_account_are_one_tenant_once_both_are_accepted():
    known = tenants()
    first, second = token("acc_1"), token("acc_1", nonce=1)
    assert known.of(first, HERE) != known.of(second, HERE)
    known.accepted(first, HERE)
    assert known.of(first, HERE) != known.of(second, HERE)
    known.accepted(second, HERE)
    assert known.of(first, HERE) == known.of(second, HERE)
    assert known.of(token("acc_2"), HERE) != known.of(first, HERE)


def test_what_one_endpoint_accepts_proves_nothing_at_another():
    """A local server takes any token, so a forged one that it served must not open the account elsewhere."""
    known = tenants()
    real, forged = token("victim"), token("victim", nonce=666)
    known.accepted(real, HERE)
    known.accepted(forged, THERE)
    assert known.of(forged, HERE) == tenants().of(forged, HERE)
    assert len({known.of(forged, HERE), known.of(forged, THERE), known.of(real, HERE)}) == 3


ODD = [
    b"a.b.c",
    b"..",
    b"a.!!!!.c",
    b"x." + base64.urlsafe_b64encode(b"[1]") + b".y",
    token(7),
    token(None),
    b"\xff.\xff.\xff",
]


@pytest.mark.parametrize("secret", ODD)
def test_an_odd_token_is_a_credential_like_any_other(secret):
    known = tenants()
    before = known.of(secret, HERE)
    known.accepted(secret, HERE)
    assert known.of(secret, HERE) == before


def test_requests_without_a_credential_are_apart_from_those_with_one():
    known = tenants()
    assert len({known.of(b"", HERE), known.of(b"", THERE), known.of(HERE.encode(), HERE)}) == 3


@pytest.fixture(scope="module")
def gate() -> Iterator[Running]:
    with running(SimulatorSettings(window=4000), window=4000) as found:
        yield found


def as_bearer(secret: str | bytes) -> tuple[str, str]:
    return "Authorization", f"Bearer {secret if isinstance(secret, str) else secret.decode()}"


@pytest.mark.parametrize(("dialect", "path"), PATHS.items())
def test_the_same_history_under_another_key_finds_nothing(gate, dialect, path):
    version, long = ("anthropic-version", "2023-06-01"), history(dialect, 14)
    actions = [
        post(gate.base, path, long, version, as_bearer(key)).action for key in ("sk-a", "sk-a", "sk-b", "sk-a", "sk-b")
    ]
    assert actions == ["compacted", "replayed", "compacted", "replayed", "replayed"]
    assert gate.violations == []


def test_a_rotated_token_keeps_its_tenant_and_a_forged_one_never_gets_in(gate):
    path, long = PATHS["responses"], history("responses", 14)

    def ask(secret: bytes, body: object = long) -> str | None:
        return post(gate.base, path, body, as_bearer(secret)).action

    first, second, forged = (token("rotating", nonce=n) for n in range(3))
    ask(first, body("responses"))  # accepted
    assert ask(first) == "compacted"
    ask(second, body("responses"))  # rotated, and accepted
    assert ask(second) == "replayed"
    assert ask(forged) == "compacted"  # never served before: nothing is read with what it claims


def test_an_answer_to_a_path_that_may_be_public_accepts_no_token(gate):
    path, long = PATHS["responses"], history("responses", 14)
    real, forged = token("public"), token("public", nonce=1)
    post(gate.base, path, body("responses"), as_bearer(real))
    assert post(gate.base, path, long, as_bearer(real)).action == "compacted"
    assert call(gate.base, "GET", "/v1/models", [as_bearer(forged)]).status == 200
    assert post(gate.base, path, long, as_bearer(forged)).action == "compacted"


def test_a_refused_token_is_not_accepted(gate):
    path, long = PATHS["responses"], history("responses", 14)
    real, forged = token("refused"), token("refused", nonce=1)
    gate.simulator.configure(keys=frozenset({real.decode()}))
    post(gate.base, path, body("responses"), as_bearer(real))
    assert post(gate.base, path, long, as_bearer(real)).action == "compacted"
    before = len(gate.records)
    for _ in range(2):
        got = post(gate.base, path, long, as_bearer(forged))
        assert got.status == 401
        assert got.action == "relayed"
    sent = [record.body for record in gate.records[before:]]
    assert len(sent) == 3  # a call for a summary, which then rests, and the request itself twice
    assert all(b"step 0" in raw for raw in sent)  # never the account's summary in its place
    gate.simulator.configure(keys=frozenset())
