"""Where a request goes: by its path, then its model, then the defaults; everything that is no conversation as it is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest
from rawclient import PATHS, Call, Front, body, call, error_of, fronted, post
from rawserver import answer

from tidegate.gateway.routes import Route, route

PROVIDERS = ("openai", "anthropic", "openrouter", "chatgpt")

NAMED = """
[providers.openai]
base_url = "{url}/at-openai/v1"
[providers.anthropic]
base_url = "{url}/at-anthropic"
[providers.openrouter]
base_url = "{url}/at-openrouter/api/v1"
[providers.chatgpt]
base_url = "{url}/backend-api/codex"
[providers.mine]
base_url = "{url}/at-mine/paas/v4"
models = [{ match = "mine-large", window = 1000 }]
"""


@pytest.fixture(scope="module")
def many() -> Iterator[Front]:
    with fronted(single=False, toml=NAMED) as front:
        yield front


@pytest.fixture(scope="module")
def one() -> Iterator[Front]:
    with fronted() as front:
        yield front


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    for name in ("many", "one"):
        if name in request.fixturenames:
            request.getfixturevalue(name).upstream.reset()


# -- paths, without a socket -----------------------------------------------------------------------------------------

CONVERSATIONS = [("/chat/completions", "chat"), ("/responses", "responses"), ("/messages", "messages")]


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("prefix", ["", "/v1", "/v1/v1", "/openai", "/openai/v1", "/openai/v1/v1"])
@pytest.mark.parametrize(("path", "dialect"), CONVERSATIONS)
def test_a_conversation_is_known_with_and_without_version_and_provider(path, dialect, prefix, single):
    provider = "openai" if "openai" in prefix else None
    assert route(prefix + path, PROVIDERS, single=single) == Route("conversation", path, "api", dialect, provider)


OTHERS = [
    ("/v1/messages/count_tokens", Route("count", "/messages/count_tokens", "api", "messages")),
    ("/messages/count_tokens", Route("count", "/messages/count_tokens", "api", "messages")),
    ("/backend-api/codex/responses", Route("conversation", "/responses", "api", "responses", "chatgpt")),
    ("/backend-api/codex/models", Route("other", "/models", "api", None, "chatgpt")),
    ("/backend-api/wham/usage", Route("other", "/backend-api/wham/usage", "origin", None, "chatgpt")),
    ("/v1/models", Route("other", "/models", "api")),
    ("/models", Route("other", "/models", "api")),
    ("/models/gpt-5.1", Route("other", "/models/gpt-5.1", "api")),
    ("/v1/responses/resp_1", Route("other", "/responses/resp_1", "api", "responses")),
    ("/responses/compact", Route("other", "/responses/compact", "api", "responses")),
    ("/v1/messages/batches", Route("other", "/messages/batches", "api", "messages")),
    ("/v1/threads/t_1/messages", Route("other", "/threads/t_1/messages", "api")),
    ("/v1/files", Route("other", "/files", "api")),
    ("/openai/v1/files", Route("other", "/files", "api", None, "openai")),
    ("/openai/api/files", Route("other", "/api/files", "host", None, "openai")),
    ("/api/tags", Route("other", "/api/tags", "host")),
    ("/v1chat", Route("other", "/v1chat", "host")),
    ("/openai", Route("other", "/openai", "host")),
    ("/", Route("other", "/", "host")),
    ("*", Route("other", "*", "host")),
    ("/openia/v1/responses", Route("unknown_provider", "/openia/v1/responses", "host", "responses", "openia")),
    ("/openia/messages", Route("unknown_provider", "/openia/messages", "host", "messages", "openia")),
    ("/openia/messages/count_tokens",
     Route("unknown_provider", "/openia/messages/count_tokens", "host", "messages", "openia")),
    ("/api/paas/v4/chat/completions", Route("other", "/api/paas/v4/chat/completions", "host")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "expected"), OTHERS, ids=[path for path, _ in OTHERS])
def test_every_other_path_is_told_apart(path, expected):
    assert route(path, PROVIDERS) == expected


FOR_ONE = [
    ("/api/paas/v4/chat/completions", Route("conversation", "/api/paas/v4/chat/completions", "host", "chat")),
    ("/team/v1/messages/count_tokens", Route("count", "/team/v1/messages/count_tokens", "host", "messages")),
    ("/openai/deployments/gpt/chat/completions",
     Route("conversation", "/openai/deployments/gpt/chat/completions", "host", "chat")),
    ("/backend-api/wham/usage", Route("other", "/backend-api/wham/usage", "host")),
    ("/openia/v1/files", Route("other", "/openia/v1/files", "host")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "expected"), FOR_ONE, ids=[path for path, _ in FOR_ONE])
def test_with_one_upstream_an_unknown_prefix_is_its_own_affair(path, expected):
    assert route(path, PROVIDERS, single=True) == expected


# -- where requests arrive -------------------------------------------------------------------------------------------

ARRIVALS = [
    ("/v1/chat/completions", "chat", "/at-openai/v1/chat/completions"),
    ("/chat/completions", "chat", "/at-openai/v1/chat/completions"),
    ("/v1/v1/responses", "responses", "/at-openai/v1/responses"),
    ("/v1/messages?beta=true", "messages", "/at-anthropic/v1/messages?beta=true"),
    ("/messages/count_tokens", "messages", "/at-anthropic/v1/messages/count_tokens"),
    ("/anthropic/v1/messages", "messages", "/at-anthropic/v1/messages"),
    ("/openrouter/chat/completions", "chat", "/at-openrouter/api/v1/chat/completions"),
    ("/openrouter/v1/messages", "messages", "/at-openrouter/api/v1/messages"),
    ("/backend-api/codex/responses", "responses", "/backend-api/codex/responses"),
    ("/mine/v1/chat/completions", "chat", "/at-mine/paas/v4/chat/completions"),
]


@pytest.mark.parametrize(("target", "dialect", "arrives"), ARRIVALS, ids=[target for target, _, _ in ARRIVALS])
def test_a_conversation_arrives_at_its_provider(many, target, dialect, arrives):
    got = post(many.base, target, body(dialect))
    assert (got.status, got.json) == (200, {"ok": True})
    assert [(seen.method, seen.target) for seen in many.upstream.seen] == [("POST", arrives)]


MODELS = [
    ("openrouter/qwen/qwen3", "chat", "/at-openrouter/api/v1/chat/completions", "qwen/qwen3"),
    ("anthropic/claude-sonnet-4-5", "messages", "/at-anthropic/v1/messages", "claude-sonnet-4-5"),
    ("anthropic/claude-sonnet-4-5", "chat", "/at-openai/v1/chat/completions", "anthropic/claude-sonnet-4-5"),
    ("mine-large", "chat", "/at-mine/paas/v4/chat/completions", "mine-large"),
    ("nobody/knows", "chat", "/at-openai/v1/chat/completions", "nobody/knows"),
    ("openrouter/", "chat", "/at-openai/v1/chat/completions", "openrouter/"),
    ("", "chat", "/at-openai/v1/chat/completions", ""),
]


@pytest.mark.parametrize(("model", "dialect", "arrives", "named"), MODELS, ids=[f"{m[1]}:{m[0]}" for m in MODELS])
def test_a_model_chooses_its_provider(many, model, dialect, arrives, named):
    post(many.base, PATHS[dialect], body(dialect, model=model))
    (seen,) = many.upstream.seen
    assert (seen.target, json.loads(seen.body)["model"]) == (arrives, named)


def test_the_path_wins_over_the_model(many):
    post(many.base, "/openrouter/v1/chat/completions", body("chat", model="openai/gpt-5.1"))
    (seen,) = many.upstream.seen
    assert seen.target == "/at-openrouter/api/v1/chat/completions"
    assert json.loads(seen.body)["model"] == "openai/gpt-5.1"


def test_taking_a_provider_out_of_the_model_changes_nothing_else(many):
    odd = b'{ "messages" : [ {"role":"user","content":"caf\\u00e9 \xe2\x82\xac 1.0e3"} ] ,\n "model":\t"%b", "x":1.50 }'
    post(many.base, "/v1/chat/completions", odd % b"openrouter/a/b")
    assert bytes(many.upstream.seen[0].body) == odd % b"a/b"


def test_a_compressed_body_that_names_its_provider_goes_on_uncompressed(many):
    raw = json.dumps(body("chat", model="openrouter/a/b")).encode()
    headers = [("Content-Encoding", "gzip"), ("Content-MD5", "x"), ("X-Note", "1")]
    assert post(many.base, "/v1/chat/completions", gzip.compress(raw), *headers).status == 200
    (seen,) = many.upstream.seen
    assert bytes(seen.body) == raw.replace(b"openrouter/a/b", b"a/b")
    assert (seen.one("content-encoding"), seen.one("content-md5"), seen.one("x-note")) == (None, None, "1")


def test_with_one_upstream_everything_goes_there(one):
    for dialect, path in PATHS.items():
        post(one.base, "/openai" + path, body(dialect, model="openrouter/x"))
    assert [seen.target for seen in one.upstream.seen] == list(PATHS.values())
    assert {json.loads(seen.body)["model"] for seen in one.upstream.seen} == {"openrouter/x"}


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_an_upstream_is_given_with_or_without_its_version(suffix):
    with fronted(toml='[upstream]\nurl = "{url}/deep' + suffix + '"\n', single=False) as front:
        post(front.base, "/v1/chat/completions", body("chat"))
        post(front.base, "/chat/completions?a=1&b=%2F", body("chat"))
        call(front.base, "GET", "/v1/models")
        call(front.base, "GET", "/api/tags")
        assert [seen.target for seen in front.upstream.seen] == [
            "/deep/v1/chat/completions", "/deep/v1/chat/completions?a=1&b=%2F", "/deep/v1/models", "/deep/api/tags",
        ]  # fmt: skip


@pytest.mark.parametrize(("path", "dialect"), CONVERSATIONS)
def test_an_unknown_provider_in_the_path_is_told_with_the_known_ones(many, path, dialect):
    got = post(many.base, "/openia/v1" + path, body(dialect))
    message, kind = error_of(dialect, got)
    assert (got.status, kind) == (404, "not_found_error")
    assert "'openia'" in message
    assert all(name in message for name in ("openai", "anthropic", "mine"))
    assert many.upstream.seen == []


def test_a_provider_without_an_address_says_what_to_set(many):
    got = post(many.base, "/generic/v1/chat/completions", body("chat"))
    assert got.status == 404
    assert "providers.generic.base_url" in error_of("chat", got)[0]


def test_a_provider_that_does_not_serve_an_api_is_told_with_those_that_do(many):
    got = post(many.base, "/anthropic/v1/chat/completions", body("chat"))
    assert got.status == 404
    assert "openai" in error_of("chat", got)[0]


# -- everything else -------------------------------------------------------------------------------------------------

RELAYED = [
    ("GET", "/v1/models?client_version=1", [], "/at-openai/v1/models?client_version=1"),
    ("GET", "/models", [("anthropic-version", "2023-06-01")], "/at-anthropic/v1/models"),
    ("GET", "/v1/models", [("x-api-key", "k")], "/at-anthropic/v1/models"),
    ("GET", "/anthropic/v1/models", [], "/at-anthropic/v1/models"),
    ("GET", "/v1/responses/resp_1?include[]=x", [], "/at-openai/v1/responses/resp_1?include[]=x"),
    ("GET", "/v1/responses", [], "/at-openai/v1/responses"),
    ("DELETE", "/v1/responses/resp_1", [], "/at-openai/v1/responses/resp_1"),
    ("GET", "/v1/messages/batches", [], "/at-anthropic/v1/messages/batches"),
    ("OPTIONS", "/v1/files", [], "/at-openai/v1/files"),
    ("HEAD", "/v1/files/f", [], "/at-openai/v1/files/f"),
    ("PROPFIND", "/v1/files", [], "/at-openai/v1/files"),
    ("GET", "/v1/files/a%2Fb%20c%C3%A9", [], "/at-openai/v1/files/a%2Fb%20c%C3%A9"),
    ("GET", "/v1/files/x?q=a%20b+c&empty=&q=2", [], "/at-openai/v1/files/x?q=a%20b+c&empty=&q=2"),
    ("GET", "/openrouter/v1/credits", [], "/at-openrouter/api/v1/credits"),
    ("GET", "/openrouter/status", [], "/at-openrouter/api/status"),
    ("GET", "/backend-api/wham/usage", [], "/backend-api/wham/usage"),
    ("GET", "/api/tags", [], "/at-openai/api/tags"),
    ("GET", "/", [], "/at-openai/"),
    ("GET", "/v1", [], "/at-openai/v1"),
    ("GET", "/v1//files/", [], "/at-openai/v1//files/"),
    ("OPTIONS", "*", [], "/at-openai/*"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "target", "headers", "arrives"), RELAYED, ids=[f"{r[0]} {r[1]}" for r in RELAYED])
def test_every_other_request_is_relayed_as_it_is(many, method, target, headers, arrives):
    many.upstream.default = lambda seen: (
        (
            b"HTTP/1.1 207 Multi-Status\r\nContent-Length: 0\r\n\r\n"
            if method == "HEAD"
            else answer(b"<x/>", status="207 x", kind="text/xml")
        ),
    )
    got = call(many.base, method, target, headers)
    assert (got.status, got.body) == (207, b"" if method == "HEAD" else b"<x/>")
    assert [(seen.method, seen.target) for seen in many.upstream.seen] == [(method, arrives)]
    assert (got.action, got.reason) == ("relayed", "not_a_conversation")


@pytest.mark.parametrize("target", ["/v1/responses", "/responses", "/openai/v1/responses", "/v1/realtime?model=x"])
def test_a_websocket_upgrade_is_refused_at_once_with_426(many, target):
    upgrade = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZQ=="),
        ("Sec-WebSocket-Version", "13"),
    ]
    got = call(many.base, "GET", target, upgrade)
    assert got.status == 426
    assert "POST" in error_of("responses", got)[0]
    assert many.upstream.seen == []


def test_an_offer_of_http_2_is_ignored(one):
    """Java's HttpClient makes it with every request in plain text."""
    offer = [
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA"),
    ]
    got = post(one.base, "/v1/responses", body("responses"), *offer)
    assert got.status == 200
    (seen,) = one.upstream.seen
    assert not {"upgrade", "http2-settings", "connection"} & {name.lower() for name, _ in seen.headers}


def test_a_connection_carries_one_request_after_the_other(one):
    first = Call(one.base, "GET", "/v1/models")
    assert first.head().read() == b'{"ok":true}'
    first.send(b"GET /v1/models/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert first.head().read() == b'{"ok":true}'
    first.close()
    assert [seen.target for seen in one.upstream.seen] == ["/v1/models", "/v1/models/x"]
