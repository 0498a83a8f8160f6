"""Values come from a file, variables and flags, in rising order, and know where they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.config import ConfigError, Settings, find_file, load

FILE = "tidegate.toml"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr("platformdirs.user_config_path", lambda *a, **k: tmp_path / "user")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / FILE


def read(file: Path, text: str, environ: dict[str, str] | None = None, **flags: object) -> Settings:
    file.write_text(text, encoding="utf-8")
    return load(file, flags, environ or {})


def value(settings: Settings, key: str) -> object:
    section, name = key.split(".")
    return getattr(getattr(settings, section), name)


def test_nothing_has_to_be_given() -> None:
    settings = load(environ={})
    assert settings == Settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8484)
    assert (settings.compaction.threshold_percent, settings.compaction.target_percent) == (85, 50)
    assert (settings.store.kind, settings.store.retention_days, settings.store.max_bytes) == ("sqlite", 30, 1 << 30)
    assert settings.warnings == ()
    assert settings.origin("server.port") == "default"


# --- order


def test_flags_win_over_variables_over_the_file_key_by_key(file: Path) -> None:
    settings = read(
        file,
        "[server]\nport = 1\nhost = '::1'\nlog_level = 'error'\n",
        {"TIDEGATE_SERVER__PORT": "2", "TIDEGATE_SERVER__LOG_LEVEL": "debug"},
        port=3,
    )
    assert (settings.server.port, settings.server.log_level, settings.server.host) == (3, "debug", "::1")
    assert settings.origin("server.port") == "--port"
    assert settings.origin("server.log_level") == "TIDEGATE_SERVER__LOG_LEVEL"
    assert settings.origin("server.host") == str(file)
    assert settings.origin("server.drain_seconds") == "default"


def test_a_flag_that_was_not_given_changes_nothing(file: Path) -> None:
    settings = read(file, "[server]\nport = 1\n", port=None, upstream=None)
    assert settings.server.port == 1
    assert settings.upstream.url is None


def test_an_empty_variable_is_no_variable(file: Path) -> None:
    settings = read(file, "[server]\nport = 1\n", {"TIDEGATE_SERVER__PORT": " ", "TIDEGATE_UPSTREAM": ""})
    assert (settings.server.port, settings.upstream.url) == (1, None)


@pytest.mark.parametrize("key", ["server", "server.prot", "nothing.at", ""])
def test_an_unknown_key_has_no_origin(key: str) -> None:
    with pytest.raises(KeyError):
        Settings().origin(key)


# --- which file


def test_the_file_is_the_chosen_one_or_the_first_that_is_there(tmp_path: Path, file: Path) -> None:
    assert find_file(environ={}) is None
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / FILE).touch()
    assert find_file(environ={}) == tmp_path / "user" / FILE
    Path(FILE).touch()
    assert find_file(environ={}) == Path(FILE)
    assert find_file(environ={"TIDEGATE_CONFIG": "/named"}) == Path("/named")
    assert find_file(file, {"TIDEGATE_CONFIG": "/named"}) == file


def test_the_file_of_the_working_directory_is_read() -> None:
    Path(FILE).write_text("[server]\nport = 7\n")
    settings = load(environ={})
    assert settings.server.port == 7
    assert settings.origin("server.port") == FILE


# --- spellings

VARIABLES = [
    ("TIDEGATE_SERVER__PORT", "9", "server.port", 9),
    ("TIDEGATE_SERVER_PORT", "9", "server.port", 9),
    ("TIDEGATE_PORT", "9", "server.port", 9),
    ("tidegate_port", "9", "server.port", 9),
    ("TIDEGATE_HOST", "0.0.0.0", "server.host", "0.0.0.0"),
    ("TIDEGATE_LOG_LEVEL", "debug", "server.log_level", "debug"),
    ("TIDEGATE_UPSTREAM", "http://localhost:9484/v1/", "upstream.url", "http://localhost:9484/v1"),
    ("TIDEGATE_COMPACTION__THRESHOLD_PERCENT", "72.5", "compaction.threshold_percent", 72.5),
    ("TIDEGATE_COMPACTION_THRESHOLD_PERCENT", "72.5", "compaction.threshold_percent", 72.5),
    ("TIDEGATE_COMPACTION__ENABLED", "false", "compaction.enabled", False),
    ("TIDEGATE_COMPACTION__KEEP_RECENT_TOKENS", "2000", "compaction.keep_recent_tokens", 2000),
    ("TIDEGATE_SERVER__ALLOWED_HOSTS", "a.example, b.example", "server.allowed_hosts", ("a.example", "b.example")),
    ("TIDEGATE_SERVER__ALLOWED_HOSTS", '["a.example"]', "server.allowed_hosts", ("a.example",)),
    ("TIDEGATE_SERVER__BODY_LIMIT_BYTES", "2 MiB", "server.body_limit_bytes", 2 << 20),
    ("TIDEGATE_STORE__MAX_BYTES", "1.5kb", "store.max_bytes", 1500),
    ("TIDEGATE_STORE__PATH", "data/c.db", "store.path", Path("data/c.db")),
]


@pytest.mark.parametrize(("name", "text", "key", "expected"), VARIABLES)
def test_variables(name: str, text: str, key: str, expected: object) -> None:
    settings = load(environ={name: text, "PATH": "/bin"})
    assert value(settings, key) == expected
    assert settings.origin(key) == name


def test_the_exact_spelling_wins_over_the_short_one() -> None:
    environ = {"TIDEGATE_SERVER__PORT": "1", "TIDEGATE_PORT": "2", "TIDEGATE_SERVER_PORT": "3"}
    assert load(environ=environ).server.port == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TIDEGATE_PORT", "tcp://10.0.0.7:8484"),
        ("TIDEGATE_PORT_8484_TCP", "tcp://10.0.0.7:8484"),
        ("TIDEGATE_PORT_8484_TCP_ADDR", "10.0.0.7"),
        ("TIDEGATE_SERVICE_HOST", "10.0.0.7"),
        ("TIDEGATE_SERVICE_PORT_HTTP", "8484"),
    ],
)
def test_variables_that_kubernetes_makes_for_a_service_of_this_name_mean_nothing(name: str, text: str) -> None:
    assert load(environ={name: text}) == Settings()


FLAGS = [
    ("host", "::1", "server.host", "::1", "--host"),
    ("port", 0, "server.port", 0, "--port"),
    ("upstream", "https://llm.example", "upstream.url", "https://llm.example", "--upstream"),
    ("log_level", "error", "server.log_level", "error", "--log-level"),
    ("server.port", 5, "server.port", 5, "--port"),
    ("store.kind", "memory", "store.kind", "memory", "--store.kind"),
]


@pytest.mark.parametrize(("name", "given", "key", "expected", "origin"), FLAGS)
def test_flags(name: str, given: object, key: str, expected: object, origin: str) -> None:
    settings = load(None, {name: given}, {})
    assert value(settings, key) == expected
    assert settings.origin(key) == origin


def test_paths_of_the_file_start_at_the_file_others_at_the_working_directory(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    settings = read(file, "[store]\npath = 'c.db'\nkey_file = '~/key'\n")
    assert settings.store.path == file.parent / "c.db"
    assert settings.store.key_file == Path("/home/ada/key")
    assert load(environ={"TIDEGATE_STORE__PATH": "~/c.db"}).store.path == Path("/home/ada/c.db")


def test_files_that_must_be_there(file: Path) -> None:
    (file.parent / "prompt.md").write_text("Be brief.")
    assert read(file, "[summary]\nprompt_file = 'prompt.md'\n").summary.prompt_file == file.parent / "prompt.md"


# --- models and providers


def test_models_by_name_and_by_pattern(file: Path) -> None:
    settings = read(
        file,
        '[models."gpt-5.1*"]\nwindow = 1000\n[models.llama]\nwindow = 10\nmax_output = 5\n',
        {"TIDEGATE_MODELS__llama__WINDOW": "20", "TIDEGATE_MODELS__QWEN__INPUT_LIMIT": "30"},
    )
    assert settings.models["gpt-5.1*"].window == 1000
    assert (settings.models["llama"].window, settings.models["llama"].max_output) == (20, 5)
    assert settings.models["qwen"].input_limit == 30
    assert settings.origin("models.llama.window") == "TIDEGATE_MODELS__llama__WINDOW"
    assert settings.origin("models.gpt-5.1*.window") == str(file)


def test_providers_are_laid_over_key_by_key(file: Path) -> None:
    settings = read(
        file,
        "[providers.work]\nbase_url = 'http://a'\nauth.env = 'A'\nauth.scheme = 'bearer'\ndialects = ['chat']\n",
        {
            "TIDEGATE_PROVIDERS__WORK__BASE_URL": "http://b",
            "TIDEGATE_PROVIDERS__WORK__AUTH__ENV": "B",
            "TIDEGATE_PROVIDERS__WORK__COUNTS_OUTPUT": "false",
        },
    )
    assert settings.providers == {
        "work": {
            "base_url": "http://b",
            "auth": {"env": "B", "scheme": "bearer"},
            "dialects": ["chat"],
            "counts_output": False,
        }
    }


def test_a_table_replaces_a_value_and_a_value_a_table(file: Path) -> None:
    settings = read(
        file,
        "[providers.a]\nauth = 'x'\n[providers.b]\nquirks.merge_user = true\n",
        {"TIDEGATE_PROVIDERS__A__AUTH__ENV": "K", "TIDEGATE_PROVIDERS__B__QUIRKS": '{"versioned": false}'},
    )
    assert settings.providers == {"a": {"auth": {"env": "K"}}, "b": {"quirks": {"versioned": False}}}


def test_an_empty_table_makes_a_provider(file: Path) -> None:
    assert read(file, "[providers.work]\n").providers == {"work": {}}


# --- ${…}

EXPANSIONS = [
    ("${HOST}", "h.example"),
    ("http://${HOST}/${HOST}", "http://h.example/h.example"),
    ("${MISSING:-d.example}", "d.example"),
    ("${EMPTY:-d.example}", "d.example"),
    ("${HOST:-d.example}", "h.example"),
    ("a${MISSING:-}b", "ab"),
    ("$${HOST}", "${HOST}"),
    ("$HOST", "$HOST"),
    ("${not a name}", "${not a name}"),
    ("${NESTED}", "${HOST}"),
]


@pytest.mark.parametrize(("text", "expected"), EXPANSIONS)
def test_variables_in_texts_of_the_file(file: Path, text: str, expected: str) -> None:
    environ = {"HOST": "h.example", "EMPTY": "", "NESTED": "${HOST}"}
    settings = read(
        file, f"[server]\nhost = '{text}'\nallowed_hosts = ['{text}']\n[providers.p]\nx = ['{text}']", environ
    )
    assert settings.server.host == expected
    assert settings.server.allowed_hosts == (expected,)
    assert settings.providers["p"]["x"] == [expected]


def test_a_number_may_come_from_a_variable_too(file: Path) -> None:
    assert read(file, "[server]\nport = '${P}'\n", {"P": "77"}).server.port == 77


def test_only_texts_of_the_file_are_expanded() -> None:
    assert load(environ={"TIDEGATE_HOST": "${X}", "X": "y"}).server.host == "${X}"


# --- clamped


@pytest.mark.parametrize(
    ("threshold", "target", "used"),
    [(85, 50, 50), (80, 80, 79), (85, 99, 84), (60, 90, 59), (40, None, 39), (51, None, 50), (1, 1, 1)],
)
def test_a_target_that_is_not_below_the_threshold_is_lowered_with_a_warning(
    threshold: float, target: float | None, used: float
) -> None:
    flags = {"compaction.threshold_percent": threshold, "compaction.target_percent": target}
    settings = load(None, flags, {})
    assert settings.compaction.threshold_percent == threshold
    assert settings.compaction.target_percent == used
    if used == (target or 50) and threshold > 1:
        assert settings.warnings == ()
    else:
        (warning,) = settings.warnings
        assert f"compaction.target_percent {target or 50} is not below threshold_percent {threshold}" in warning
        assert f"{used} is used, one below it" in warning


# --- values


def test_settings_do_not_change() -> None:
    settings = load(environ={})
    with pytest.raises(ValueError, match="frozen"):
        settings.server.port = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        settings.compaction.target_percent = 1  # type: ignore[misc]


def test_a_key_is_never_shown(file: Path) -> None:
    key = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldCE="
    settings = read(file, "[store]\nkey = '${K}'\n", {"K": key})
    assert settings.store.key is not None
    assert settings.store.key.get_secret_value() == key
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert key not in text


def test_unreadable_files_are_named(file: Path) -> None:
    cases = (None, "No such file"), (b"[server\n", r"is not TOML: .*line 1[^)]*\)$"), (b"\xff", "is not UTF-8")
    for content, cause in cases:
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=f"{file}: {cause}"):
            load(file, {}, {})
    with pytest.raises(ConfigError, match="Is a directory"):
        load(file.parent, {}, {})
