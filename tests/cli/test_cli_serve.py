"""`tidegate serve`: what it says, and how it ends."""

import http.client
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Timer

import pytest
from click.testing import CliRunner, Result

from tidegate.cli import main
from tidegate.cli.demo.gateway_process import MEMORY_ONLY, GatewayDown, gateway
from tidegate.cli.serve_command import announcement
from tidegate.config import load
from tidegate.gateway.catalogue import catalogue


def invoke(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments], env=environ)


@contextmanager
def serving(folder: Path) -> Iterator[subprocess.Popen[str]]:
    config = folder / "settings.toml"
    config.write_text(MEMORY_ONLY)
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--config", str(config)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> str:
    """What is printed up to the last line of the announcement."""
    assert process.stdout is not None
    lines: list[str] = []
    late = Timer(20, process.kill)
    late.start()
    while not lines or "Ctrl-C" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], f"ended before it had said where it listens: {lines}"
    late.cancel()
    return "".join(lines)


def test_says_where_it_listens_and_where_to_point_clients(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        said = told(process)
        listening = re.match(r"Tidegate listening on (http://127\.0\.0\.1:(\d+))\n", said)
        assert listening is not None
        url, port = listening.groups()
        assert f"OPENAI_BASE_URL={url}/v1\n" in said
        assert f"ANTHROPIC_BASE_URL={url}\n" in said
        with closing(http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)) as connection:
            connection.request("GET", "/livez")
            assert connection.getresponse().status == 200


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_stops_when_told_without_a_trace(tmp_path: Path, stop: signal.Signals, status: int) -> None:
    with serving(tmp_path) as process:
        told(process)
        process.send_signal(stop)
        assert process.wait(15) == status
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_port_in_use_names_it_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(MEMORY_ONLY)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("--port", str(port), "--config", str(tmp_path / "settings.toml"))
    assert result.exit_code == 1
    assert f"127.0.0.1:{port}" in result.output
    assert "--port" in result.output


@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        (["--upstream", "example.com"], {}, ["upstream", "--upstream", "http"]),
        ([], {"TIDEGATE_SERVER__PORT": "many"}, ["server.port", "TIDEGATE_SERVER__PORT", "many"]),
        ([], {"TIDEGATE_STORE__KIN": "memory"}, ["TIDEGATE_STORE__KIN", "TIDEGATE_STORE__KIND"]),
        (
            [],
            {"TIDEGATE_STORE__KEY": "short", "TIDEGATE_STORE__KIND": "memory"},
            ["store.key: ", "(given in TIDEGATE_STORE__KEY)", "at least 32"],
        ),
        (["--upstream", "http://ada:secret@localhost"], {}, ["upstream.url", "user name", "--upstream"]),
        (["--config", "no-such-file.toml"], {}, ["no-such-file.toml"]),
    ],
)
def test_wrong_settings_end_with_2_and_say_which(
    arguments: list[str], environ: dict[str, str], named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments, **environ)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert [word for word in named if word not in result.output] == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[server]\nport = 70000\n", ["server.port", "70000", "65535"]),
        ("[compaction]\nthreshhold_percent = 80\n", ["threshhold_percent", "threshold_percent"]),
        ("[server\n", ["not TOML"]),
        ('[providers.work]\nbase_url = "ftp://example.com"\n', ["providers.work.base_url", "mine.toml"]),
        ('[providers.half]\nauth.env = "KEY"\n', ["providers.half.base_url is missing", "mine.toml"]),
        ('[providers.groq]\nauth.evn = "KEY"\n', ["providers.groq.auth.evn: unknown key", "env", "mine.toml"]),
        ("[providers.openai]\ndialects = 5\n", ["providers.openai.dialects: ", "mine.toml"]),
    ],
)
def test_wrong_file_ends_with_2_and_names_key_and_file(text: str, named: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    result = invoke(
        "--config", str(file), TIDEGATE_STORE__KIND="memory", TIDEGATE_STORE__KEY_FILE=str(tmp_path / "key")
    )
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert [word for word in named if word not in result.output] == []


def test_what_lies_over_a_built_in_provider_needs_no_base_url(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[providers.openai]\nauth.env = "MY_KEY"\n[providers.generic]\nauth.env = "MY_KEY"\n')
    known = catalogue(load(file, {}, {}))
    assert known.get("openai").auth.env == known.get("generic").auth.env == "MY_KEY"


def test_a_host_that_is_none_asks_for_another_host(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(MEMORY_ONLY)
    result = invoke("--host", "no-such-host.invalid", "--port", "0", "--config", str(tmp_path / "settings.toml"))
    assert result.exit_code == 1
    assert "no-such-host.invalid" in result.output
    assert "Choose another with --host" in result.output


def test_announces_where_clients_go_and_what_it_goes_by() -> None:
    plain = announcement("http://127.0.0.1:8484", None, None)
    assert "No settings file." in plain
    assert "OPENAI_BASE_URL=http://127.0.0.1:8484/v1\n" in plain
    assert "/PROVIDER/v1" in plain
    single = announcement("http://127.0.0.1:8484", Path("/etc/tidegate.toml"), "http://127.0.0.1:9484")
    assert "Settings from /etc/tidegate.toml.\nEverything goes to http://127.0.0.1:9484.\n" in single
    assert "PROVIDER" not in single


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_announces_an_address_that_clients_can_have(host: str) -> None:
    said = announcement(f"http://{host}:8484", None, None)
    assert host not in said
    assert "ANTHROPIC_BASE_URL=http://127.0.0.1:8484\n" in said
    assert "From other machines" in said


def test_gateway_process_reaches_nothing_of_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_SERVER__PORT", "no port")
    with gateway("http://127.0.0.1:9") as url:
        assert url.startswith("http://127.0.0.1:")


def test_gateway_process_that_does_not_start_says_why() -> None:
    with pytest.raises(GatewayDown, match=r"server\.host"), gateway("http://127.0.0.1:9", "[server]\nhost = 3\n"):
        pass


def test_gateway_process_ends_with_its_block() -> None:
    with gateway("http://127.0.0.1:9") as url:
        port = int(url.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
