"""A wrong key or value is named, with where it was given and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.config import ConfigError, load

SECRET = "hunter2hunter2"


def refused(tmp_path: Path, text: str, environ: dict[str, str] | None = None, flags: dict | None = None) -> str:
    file = tmp_path / "tidegate.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, flags or {}, environ or {})
    assert caught.value.__cause__ is None
    return str(caught.value).replace(str(file), "FILE")


VALUES = [
    ("[server]\nport = 'abc'", "server.port: 'abc' is not allowed; allowed: a whole number from 0 to 65535"),
    ("[server]\nport = 70000", "server.port: 70000 is not allowed; allowed: a whole number from 0 to 65535"),
    ("[server]\nport = true", "server.port: True is not allowed; allowed: a whole number from 0 to 65535"),
    ("[server]\nport = 1.5", "server.port: 1.5 is not allowed; allowed: a whole number from 0 to 65535"),
    ("[server]\nhost = ''", "server.host: '' is not allowed; allowed: a text, not empty"),
    ("[server]\nallowed_hosts = 5", "server.allowed_hosts: 5 is not allowed; allowed: a list of texts"),
    ("[server]\nallowed_hosts = ['a', 5]", "server.allowed_hosts: ['a', 5] is not allowed; allowed: a list of texts"),
    ("[server]\nallowed_hosts = '[a'", "server.allowed_hosts: '[a' is not allowed; allowed: a list of texts"),
    ("[server]\nlog_level = 'loud'", "server.log_level: 'loud' is not allowed; allowed: debug, info, warning or error"),
    ("[server]\nbody_limit_bytes = '9 apples'", 'allowed: bytes, or a text as "64 MiB"'),
    ("[server]\nbody_limit_bytes = 0", "server.body_limit_bytes: 0 is not allowed"),
    (
        "[upstream]\nurl = 'ftp://x'",
        "upstream.url: 'ftp://x' is not allowed: it does not begin with http:// or https://",
    ),
    ("[upstream]\nurl = 'http://'", "upstream.url: 'http://' is not allowed"),
    ("[upstream]\nurl = 'http://x:999999'", "upstream.url: 'http://x:999999' is not allowed"),
    ("[upstream]\nurl = 'http://x/v1?key=1'", "upstream.url: 'http://x/v1?key=1' is not allowed"),
    (
        "[upstream]\nca_file = 'nowhere.pem'",
        "upstream.ca_file: 'nowhere.pem' is not allowed; allowed: the path of a file that is there",
    ),
    (
        "[compaction]\nthreshold_percent = 0",
        "compaction.threshold_percent: 0 is not allowed; allowed: a number from 1 to 100",
    ),
    ("[compaction]\nthreshold_percent = nan", "compaction.threshold_percent: nan is not allowed"),
    (
        "[compaction]\nmax_per_request = 6",
        "compaction.max_per_request: 6 is not allowed; allowed: a whole number from 1 to 5",
    ),
    ("[compaction]\nenabled = 'perhaps'", "compaction.enabled: 'perhaps' is not allowed; allowed: true or false"),
    (
        "[compaction]\nkeep_recent_tokens = 0",
        "compaction.keep_recent_tokens: 0 is not allowed; allowed: a whole number, at least 1",
    ),
    (
        "[summary]\nprompt_file = 'gone.md'",
        "summary.prompt_file: 'gone.md' is not allowed; allowed: the path of a file that is there",
    ),
    (
        "[stream]\nhold_seconds = inf",
        "stream.hold_seconds: inf is not allowed; allowed: a number above 0, at most 86400",
    ),
    ("[store]\nkind = 'redis'", "store.kind: 'redis' is not allowed; allowed: sqlite, memory or none"),
    ("[store]\npath = ''", "store.path: '' is not allowed; allowed: a path"),
    ("[models.m]\nwindow = 'big'", "models.m.window: 'big' is not allowed; allowed: a whole number, at least 1"),
]


@pytest.mark.parametrize(("text", "expected"), VALUES, ids=[text.replace("\n", " ") for text, _ in VALUES])
def test_a_value_that_is_not_allowed(tmp_path: Path, text: str, expected: str) -> None:
    message = refused(tmp_path, text)
    assert expected in message
    assert message.endswith("(given in FILE)")
    assert "\n" not in message


def test_the_place_is_the_variable_or_the_flag_that_gave_it(tmp_path: Path) -> None:
    file = "[server]\nport = 1\n"
    assert refused(tmp_path, file, {"TIDEGATE_PORT": "x"}).endswith("(given in TIDEGATE_PORT)")
    assert refused(tmp_path, file, {"TIDEGATE_PORT": "5"}, {"port": "x"}).endswith("(given in --port)")


def test_every_wrong_value_has_its_line(tmp_path: Path) -> None:
    message = refused(tmp_path, "[server]\nport = -1\n[store]\nkind = 'x'\n", {"TIDEGATE_STREAM__HOLD_BYTES": "x"})
    assert [line.split(":")[0] for line in message.splitlines()] == ["server.port", "stream.hold_bytes", "store.kind"]


BASE_URLS = [
    ("http://ada:secret@host", "a user name or a password"),
    ("http://ada@host", "a user name or a password"),
    ("https://host/v1?api-version=1", "a query or a fragment"),
    ("https://host/v1/chat/completions", "leave /chat/completions out"),
    ("https://host/v1/messages/", "leave /messages out"),
    ("https://host/v1/messages/count_tokens", "leave /messages/count_tokens out"),
    ("https://host/responses", "leave /responses out"),
    ("host:8080", "does not begin with http://"),
    ("http://[::1", "it is no URL"),
    ("http://host:port", "it is no URL"),
]


@pytest.mark.parametrize(("url", "why"), BASE_URLS)
def test_a_base_url_that_can_be_none_says_why(tmp_path: Path, url: str, why: str) -> None:
    provider = f'[providers.work]\nbase_url = "{url}"\n'
    for text, key in ((f'[upstream]\nurl = "{url}"\n', "upstream.url"), (provider, "providers.work.base_url")):
        message = refused(tmp_path, text)
        assert message.startswith(f"{key}: ")
        assert why in message
        assert message.endswith("(given in FILE)")
        assert "secret" not in message


def test_a_base_url_of_one_api_is_looked_at_too(tmp_path: Path) -> None:
    text = '[providers.work.base_urls]\nmessages = "http://ada:x@host"\n'
    assert refused(tmp_path, text).startswith("providers.work.base_urls.messages: the value is not allowed: ")
    message = refused(tmp_path, "", {"TIDEGATE_PROVIDERS__WORK__BASE_URL": "http://h/v1/responses"})
    assert message.endswith("(given in TIDEGATE_PROVIDERS__WORK__BASE_URL)")


@pytest.mark.parametrize(
    "url", ["http://h", "http://h/", "http://h/v1", "http://[::1]:80/api/paas/v4", "https://h/messages-api"]
)
def test_a_base_url(tmp_path: Path, url: str) -> None:
    assert load(None, {"upstream": url}, {"TIDEGATE_CONFIG": ""}).upstream.url == url.rstrip("/")


def test_a_file_that_is_not_there_is_told_with_the_variable_that_named_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^TIDEGATE_CONFIG: .*gone\.toml: there is no such file$"):
        load(None, {}, {"TIDEGATE_CONFIG": str(tmp_path / "gone.toml")})


UNKNOWN = [
    (
        "[compaction]\ntreshold_percent = 5",
        "unknown key compaction.treshold_percent in FILE; did you mean compaction.threshold_percent?",
    ),
    ("[compactoin]\nenabled = true", "unknown key compactoin in FILE; did you mean compaction?"),
    (
        "[server]\nthreshold_percent = 5",
        "unknown key server.threshold_percent in FILE; did you mean compaction.threshold_percent?",
    ),
    ("port = 5", "unknown key port in FILE; did you mean server.port?"),
    ("[store]\nsomething = 5", "unknown key store.something in FILE; allowed in store: kind, path,"),
    ("whatever = 5", "unknown key whatever in FILE; allowed: server, upstream,"),
    ("server = 5", "FILE: server: should be a table: [server]"),
    ("[models]\ngpt = 5", "FILE: models.gpt: should be a table: [models.gpt]"),
    ("[models.m]\nwindows = 5", "unknown key models.m.windows in FILE; did you mean models.m.window?"),
    ("[models.gpt-4.1]\nwindow = 5", 'quote names with dots: [models."gpt-4.1"]'),
    ("# mine\n[models.qwen3*]\nwindow = 5", 'column 14); quote such a name: [models."qwen3*"]'),
    ("[models.openai/gpt-4.1] # ours\nwindow = 5", 'quote such a name: [models."openai/gpt-4.1"]'),
    ("[providers]\nopenai = 5", "FILE: providers.openai: should be a table: [providers.openai]"),
]


@pytest.mark.parametrize(("text", "expected"), UNKNOWN, ids=[text.replace("\n", " ") for text, _ in UNKNOWN])
def test_an_unknown_key_of_the_file(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refused(tmp_path, text)


VARIABLES = [
    ("TIDEGATE_COMPACTION__TRESHOLD_PERCENT", "did you mean TIDEGATE_COMPACTION__THRESHOLD_PERCENT?"),
    ("TIDEGATE_COMPACTION_TRESHOLD_PERCENT", "did you mean TIDEGATE_COMPACTION__THRESHOLD_PERCENT?"),
    ("TIDEGATE_STORE__KEYFILE", "did you mean TIDEGATE_STORE__KEY_FILE?"),
    ("TIDEGATE_PROT", "did you mean TIDEGATE_PORT?"),
    ("TIDEGATE_UPSTRAEM", "did you mean TIDEGATE_UPSTREAM?"),
    ("TIDEGATE_CONFG", "did you mean TIDEGATE_CONFIG?"),
    ("TIDEGATE_MODELS__M__WINDOWS", "did you mean TIDEGATE_MODELS__M__WINDOW?"),
    ("TIDEGATE_MODELS__WINDOW", "allowed: models.NAME with window, input_limit, max_output, strategies"),
    ("TIDEGATE_PROVIDERS__OPENAI", "allowed: "),
    ("TIDEGATE___", "allowed: "),
    ("TIDEGATE_", "allowed: "),
]


@pytest.mark.parametrize(("name", "hint"), VARIABLES)
def test_an_unknown_variable(tmp_path: Path, name: str, hint: str) -> None:
    message = refused(tmp_path, "", {name: SECRET})
    assert name in message
    assert hint in message
    assert SECRET not in message


def test_an_unknown_flag(tmp_path: Path) -> None:
    message = refused(tmp_path, "", flags={"server.prot": 1})
    assert message == "unknown key server.prot in --server.prot; did you mean server.port?"


def test_a_missing_variable_of_a_text(tmp_path: Path) -> None:
    message = refused(tmp_path, "[server]\nhost = 'x${GONE}'\n")
    assert message == "FILE: server.host: the variable GONE is not set (`${GONE:-text}` gives a default)"


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (f"[store]\nkey = ['{SECRET}']", {}),
        ("[server]\nport = '${S}'", {"S": SECRET}),
        (f"[upstream]\nurl = 'https://ada:{SECRET}@llm.example/?x'", {}),
        ("[upstream]\nurl = '${S}'", {"S": f"ftp://ada:{SECRET}@x"}),
        ("", {"TIDEGATE_UPSTREAM": f"ftp://ada:{SECRET}@x"}),
    ],
)
def test_what_may_be_a_secret_is_not_shown(tmp_path: Path, text: str, environ: dict[str, str]) -> None:
    assert SECRET not in refused(tmp_path, text, environ)
