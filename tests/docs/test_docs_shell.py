"""Every shell block of README.md and docs/, run as it stands against a simulated provider and a gateway in front of it.

Ports are others here, and what is said in a block to be there (a file, an agent) is put there first.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Final

import click
import pytest
from click.testing import CliRunner
from pages import ROOT, Name, blocks

from tidegate.cli import main
from tidegate.simulator import Simulator, SimulatorSettings, serve

SH: Final = blocks("sh")

BY_OTHERS: Final = {
    Name("README.md", "Tidegate", 0): "scripts/demo: tests/packaging/test_packaging_scripts.py, and CI itself",
    Name("README.md", "Tidegate", 1): "scripts/test: the same",
    Name("README.md", "Install and run", 0): "installs: tests/packaging/test_packaging_wheel.py; serve is run below",
    Name("getting-started.md", "1. See it work", 0): "scripts/demo",
    Name("getting-started.md", "1. See it work", 1): "scripts/demo; its options: tests/cli/test_cli_demo.py",
    Name("getting-started.md", "2. Install it", 0): "installs: tests/packaging/test_packaging_wheel.py",
    Name("real-models.md", "The optional group", 0): "the group itself",
    Name("recipes.md", "aider", 0): "needs aider: tests/frameworks/test_frameworks_aider.py",
    Name("benchmarks.md", "Benchmarks", 0): "takes hours; CI runs the short ones",
    Name("development.md", "Dependencies", 0): "needs uv and the package index",
}
"""Blocks that no test here runs, and why."""

RUN: Final = set(BY_OTHERS)


def shown(page: str, heading: str, number: int = 0) -> Name:
    """A block that a test runs."""
    RUN.add(name := Name(page, heading, number))
    return name


def lines(name: Name) -> list[str]:
    """Its commands; one that goes on after a backslash is one."""
    return [line for line in SH[name].replace("\\\n", "").splitlines() if line.strip()]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@dataclass
class Place:
    """A folder with a home of its own, where commands are run."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    gateway: str = ""
    provider: Simulator | None = None

    def sh(self, script: str, **ports: int) -> str:
        """What a script prints. It has to end well."""
        done = subprocess.run(
            ["sh", "-eu", "-c", self.moved(script, ports)],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tidegate(self, line: str) -> str:
        """What one command of ours prints, run in this process. It has to end well."""
        program, *words = shlex.split(line, comments=True)
        assert program == "tidegate"
        given = None
        if "<" in words:
            at = words.index("<")
            given = (self.folder / words[at + 1]).read_text()
            words[at : at + 2] = []
        words = [word.replace("~", self.environ["HOME"], 1) if word.startswith("~/") else word for word in words]
        command = main.get_command(click.Context(main), words[0])
        if command is not None and any("--gateway" in parameter.opts for parameter in command.params):
            words += ["--gateway", self.gateway]
        result = CliRunner().invoke(main, words, input=given, env=self.environ)
        assert result.exit_code == 0, (line, result.output)
        return result.output

    @contextmanager
    def running(self, line: str, **ports: int) -> Iterator[str]:
        """A command that stays: what it says first, up to the address that it listens on."""
        process = subprocess.Popen(
            ["sh", "-c", f"exec {self.moved(line, ports)}"],
            cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        late = Timer(30, process.kill)
        late.start()
        said = ""
        try:
            assert process.stdout is not None
            while "http://127.0.0.1:" not in said:
                read = process.stdout.readline()
                assert read, said
                said += read
            late.cancel()
            yield said
        finally:
            late.cancel()
            process.terminate()
            process.communicate(timeout=20)

    @staticmethod
    def moved(text: str, ports: Mapping[str, int]) -> str:
        for before, after in ports.items():
            assert before[1:] in text, f"the block does not say {before[1:]} any more"
            text = text.replace(before[1:], str(after))
        return text


AGENT = """\
#!/bin/sh
# Says one thing to the API whose base URL it was given.
set -eu
if [ -n "${OPENAI_BASE_URL:-}" ]; then
    url=$OPENAI_BASE_URL/chat/completions key="authorization: Bearer $OPENAI_API_KEY"
else
    url=$ANTHROPIC_BASE_URL/v1/messages key="x-api-key: $ANTHROPIC_API_KEY"
fi
curl -sSf "$url" -H "$key" -H 'content-type: application/json' -H 'anthropic-version: 2023-06-01' \\
    -d '{"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "Say hello."}]}'
"""


def made(folder: Path) -> Place:
    """A place whose programs are `tidegate`, `my-agent`, and the system's own."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "tidegate").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidegate "$@"\n')
    (programs / "my-agent").write_text(AGENT)
    for program in programs.iterdir():
        program.chmod(0o755)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "OPENAI_", "ANTHROPIC_"))
    }
    homes = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"), str(folder))
    ours = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OPENAI_API_KEY": "sk-any"}
    return Place(folder, {**kept, **homes, **ours})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    return made(tmp_path)


FACTS = [f"FACT-{number:02d} {'and so on, as agents do ' * 30}" for number in range(16)]
TURNS = [{"role": role, "content": fact} for fact in FACTS for role in ("user", "assistant")]
CHAT = {"model": "shop-model", "messages": [*TURNS, {"role": "user", "content": "And now?"}]}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with a gateway that has compacted a conversation, and the files that are named in the blocks."""
    there = made(tmp_path_factory.mktemp("quickstart"))
    (there.folder / "request.json").write_text(json.dumps(CHAT))
    refusal = {"error": {"message": "prompt is too long: 215692 tokens > 200000 maximum"}}
    (there.folder / "error.json").write_text(json.dumps(refusal))
    sessions = ROOT / "tests" / "cli" / "sessions"
    (there.folder / "session.jsonl").write_text(json.dumps(CHAT) + "\n")
    (there.folder / ".claude/projects/-work").mkdir(parents=True)
    shutil.copy(sessions / "claude-code.jsonl", there.folder / ".claude/projects/-work/1f0c.jsonl")
    (there.folder / "tidegate.toml").write_text(blocks("toml")[Name("README.md", "Install and run")])
    with serve(SimulatorSettings(window=4000)) as provider:
        port = free_port()
        there.provider, there.gateway = provider, f"http://127.0.0.1:{port}"
        with there.running(f"tidegate serve --port {port} --upstream {provider.url}"):
            request = urllib.request.Request(
                f"{there.gateway}/v1/chat/completions",
                json.dumps(CHAT).encode(),
                {"content-type": "application/json", "authorization": "Bearer sk-any"},
            )
            with urllib.request.urlopen(request) as answer:
                assert answer.headers["x-tidegate-action"] == "recovered"
            before = Path.cwd()
            os.chdir(there.folder)
            try:
                # What is learned is written every few seconds.
                ends = time.monotonic() + 30
                while "4,000" not in there.tidegate("tidegate windows") and time.monotonic() < ends:
                    time.sleep(0.1)
                yield there
            finally:
                os.chdir(before)


# -- commands that end ------------------------------------------------------------------------------------------------


SAYS: Final = {
    "tidegate serve --help": "Usage:",
    "tidegate demo --help": "Usage:",
    "tidegate providers": "openrouter",
    "tidegate compact": "conversation_summary",
    "tidegate status": "shop-model",
    "tidegate replay": "",
    "tidegate checkpoints list": "summary",
    "tidegate windows": "4000",
    "tidegate capabilities": "",
    "tidegate route": "openai",
    "tidegate classify": "",
}
"""What is printed, among other things."""

COMMANDS: Final = [
    shown("README.md", "Commands"),
    shown("classifier.md", "The classifier"),
    shown("getting-started.md", "6. When something is not as you expect"),
    shown("policies.md", "Trying a policy on a recorded session"),
]


LINES: Final = [line for name in COMMANDS for line in lines(name) if " simulate " not in line]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.partition("#")[0].strip())
def test_a_command(running, line):
    said = running.tidegate(line)
    assert said.strip()
    expected = next(words for command, words in SAYS.items() if line.startswith(command))
    assert expected in said.replace(",", "")


DIAGNOSTICS = shown("diagnostics.md", "Diagnostics")


def test_the_state_of_conversations(running):
    overview, one, asked = lines(DIAGNOSTICS)
    said = running.tidegate(overview)
    found = re.search(r"\b[0-9a-f]{16}\b", said)
    assert found is not None, said
    assert "shop-model" in running.tidegate(one.replace("3f9a1c2b44d05e6f", found[0]))
    if shutil.which("curl"):
        told = json.loads(running.sh(asked, _8484=int(running.gateway.rpartition(":")[2])))
        assert [conversation["id"] for conversation in told["conversations"]] == [found[0]]


# -- commands that stay -----------------------------------------------------------------------------------------------


def fetched(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        return error.code


SERVING = [shown("README.md", "Install and run", 1), shown("getting-started.md", "3. Start the gateway")]


@pytest.mark.parametrize("name", SERVING)
def test_serving(place, name):
    place.environ["TIDEGATE_SERVER__PORT"] = str(port := free_port())
    (line,) = lines(name)
    with place.running(line):
        assert fetched(f"http://127.0.0.1:{port}/livez") == 200


FIRST, WITHOUT_A_KEY = [shown("getting-started.md", "4. Send something", number) for number in (0, 1)]


def test_the_first_request(place):
    provider, port = free_port(), free_port()
    place.environ["TIDEGATE_SERVER__PORT"] = str(port)
    simulate, gateway = lines(WITHOUT_A_KEY)
    with place.running(simulate, _9484=provider), place.running(gateway, _9484=provider):
        answer = place.sh(SH[FIRST], _8484=port)
    told = blocks("")[Name("getting-started.md", "4. Send something")].splitlines()
    assert [line for line in told if line not in answer.splitlines()] == []
    assert '"choices"' in answer


SIMULATOR, SCRIPT = shown("simulator.md", "The simulator"), shown("simulator.md", "Scripts")


def test_an_agent_in_front_of_the_simulator(place):
    port = free_port()
    simulate, by_openai, by_anthropic, state = lines(SIMULATOR)
    with place.running(f"{simulate} --port {port}"):
        assert '"choices"' in place.sh(by_openai, _9484=port)
        assert '"stop_reason"' in place.sh(by_anthropic, _9484=port)
        seen = json.loads(place.sh(state, _9484=port))
        assert seen["violations"] == []
        assert len(seen["requests"]) == 2
        # Its next answers as they are scripted.
        place.sh(SH[SCRIPT], _9484=port)
        again = by_openai.replace("my-agent", "my-agent || echo failed")
        assert [place.sh(again, _9484=port).strip()[-6:] for _ in range(2)] == ["failed", "failed"]


def test_the_simulator_of_the_readme(place):
    (line,) = [line for line in lines(Name("README.md", "Commands")) if " simulate " in line]
    with place.running(f"{line.partition('#')[0]} --port 0") as said:
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found is not None
        assert fetched(f"{found[0]}/__sim/state") == 200


# -- all of them ------------------------------------------------------------------------------------------------------


def test_every_block_is_run_by_a_test():
    """A new block needs a test that names it, or a reason why none runs it."""
    assert set(SH) - RUN == set()
    assert RUN - set(SH) == set()
