"""Settings read anew while the gateway serves: what goes by them, what ends as it began, what is not forgotten."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rawclient import Answer, Call, history, post
from running import Running, running, settings

from tidegate.config import ConfigError
from tidegate.engine.request import REMEMBERED, Kit
from tidegate.gateway.catalogue import catalogue
from tidegate.gateway.diagnostics import CONVERSATIONS
from tidegate.gateway.kit import make_kit
from tidegate.gateway.reloading import _FIXED, as_running, changed
from tidegate.simulator import SimulatorSettings, Step, serve

CHAT = "/v1/chat/completions"
ONE = ("authorization", "Bearer sk-one")
WINDOW = '[models."*"]\nwindow = {}\n'


def gate(window: int = 4000, **flags: Any) -> Any:
    return running(SimulatorSettings(window=window), window=window, compaction__prepare="off", **flags)


def follow(served: Running, toml: str, **flags: Any) -> None:
    """As a signal does it, once the file is read."""
    app = served.app
    anew = as_running(settings(toml, upstream=served.simulator.url, **flags), app.settings)
    known = catalogue(anew)
    app.follow(anew, known, make_kit(anew, known, app.keys))


def current(base: str) -> dict[str, Any]:
    [one] = json.loads(Call(base, "GET", CONVERSATIONS, [ONE]).rest().body)["conversations"]
    return dict(one["current"])


def test_the_next_request_goes_by_them():
    with gate(100_000) as served:
        post(served.base, CHAT, history("chat", 4), ONE)
        assert current(served.base)["threshold"] == 85_000
        follow(served, WINDOW.format(100_000) + "[compaction]\nthreshold_percent = 60\n", compaction__prepare="off")
        post(served.base, CHAT, history("chat", 5), ONE)
        assert current(served.base)["threshold"] == 60_000


def test_a_compaction_that_goes_on_ends_as_it_began_and_the_next_request_uses_it():
    with gate() as served:
        served.simulator.script(Step(do="answer", on="summary", delay=0.5))
        answers: list[Answer] = []
        asking = threading.Thread(
            target=lambda: answers.append(post(served.base, CHAT, history("chat", 20, size=200), ONE))
        )
        asking.start()
        while not served.of("summary"):
            time.sleep(0.01)
        follow(served, WINDOW.format(4000) + "[compaction]\nenabled = false\n")
        asking.join()
        assert answers[0].action == "compacted"
        again = post(served.base, CHAT, history("chat", 20, size=200, last="and now?"), ONE)
        assert (again.action, len(served.of("summary"))) == ("replayed", 1)


def test_two_who_wait_for_the_same_compaction_share_it_over_a_change():
    with gate() as served:
        served.simulator.script(Step(do="answer", on="summary", delay=0.5))
        body, answers = history("chat", 20, size=200), []
        threads = [
            threading.Thread(target=lambda: answers.append(post(served.base, CHAT, body, ONE))) for _ in range(2)
        ]
        threads[0].start()
        while not served.of("summary"):
            time.sleep(0.01)
        follow(served, WINDOW.format(4000), compaction__prepare="off")
        threads[1].start()
        for thread in threads:
            thread.join()
        assert [answer.action for answer in answers] == ["compacted", "compacted"]
        assert len(served.of("summary")) == 1


def test_a_providers_count_is_kept():
    with gate(100_000) as served:
        served.simulator.script(Step(do="answer", usage={"input": 2_000}), Step(do="error", status=500, times=3))
        first, second = history("chat", 4), history("chat", 4)
        second["messages"] += [{"role": "assistant", "content": "this"}, {"role": "user", "content": "and then?"}]
        post(served.base, CHAT, first, ONE)
        before = post(served.base, CHAT, second, ONE)
        follow(served, WINDOW.format(90_000), compaction__prepare="off")
        after = post(served.base, CHAT, second, ONE)
        assert (before.status, after.status) == (500, 500)  # what fails counts for nothing
        assert before.one("x-tidegate-tokens-before") == after.one("x-tidegate-tokens-before")
        assert int(after.one("x-tidegate-tokens-before") or 0) > 2_000


def test_a_learned_window_is_kept():
    with running(SimulatorSettings(window=4000), compaction__prepare="off") as served:
        post(served.base, CHAT, history("chat", 60), ONE)
        follow(served, "[compaction]\nthreshold_percent = 70\n", compaction__prepare="off")
        post(served.base, CHAT, history("chat", 61), ONE)
        known = current(served.base)
        assert (known["window"], known["window_source"], known["threshold"]) == (4000, "learned", 2800)


def test_a_compactor_that_cant_be_had_changes_nothing():
    with gate() as served:
        before = {name: getattr(served.app, name) for name in ("settings", "kit", "conversations", "targets")}
        with pytest.raises(ConfigError, match=r"compactors\.mine\.use"):
            follow(served, '[compactors.mine]\nuse = "no_such_module:Mine"\n')
        assert {name: getattr(served.app, name) for name in before} == before
        assert served.app.conversations.asking._targets is before["targets"]


def test_a_kit_is_what_was_set_or_what_was_seen():
    """A new part of it has to be one or the other."""
    set_ = {"classify", "policy", "options", "inband_for_all", "max_compactions", "summary_max_calls", "custom"}
    set_ |= {"shadow", "last_resort", "elide_percent", "shrink_on_admission"}
    both = {"breaker", "portable", "recall"}
    assert {field.name for field in dataclasses.fields(Kit)} == set_ | both | set(REMEMBERED)


def test_every_key_of_server_upstream_and_store_is_fixed_or_followed():
    """A new key has to be one or the other."""
    followed = {
        "server": {"allowed_hosts", "allowed_origins", "admin_key", "log_level"},
        "upstream": {"url", "ask_windows"},
        "store": set(),
    }
    for section, keys in _FIXED.items():
        assert set(type(getattr(settings(), section)).model_fields) == keys | followed[section]


def test_what_a_process_is_built_with_stays_and_is_told():
    running, anew = settings(), settings("[store]\nretention_days = 7\n[compaction]\nthreshold_percent = 60\n", port=1)
    assert changed(anew, running) == ["server.port", "store.retention_days"]
    used = as_running(anew, running)
    assert (used.server.port, used.store.retention_days, used.compaction.threshold_percent) == (0, 30, 60)


# As a process


@dataclasses.dataclass
class Gateway:
    base: str
    file: Path
    process: subprocess.Popen[str]
    log: Path

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def hang_up(self, told: str) -> str:
        """Sends the signal, and returns the log once it tells that."""
        self.process.send_signal(signal.SIGHUP)
        return self.until(told)

    def until(self, told: str) -> str:
        deadline = time.monotonic() + 10
        while not re.search(told, self.log.read_text()):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return self.log.read_text()


@contextmanager
def started(folder: Path, upstream: str, text: str, *arguments: str) -> Iterator[Gateway]:
    file, log = folder / "tidegate.toml", folder / "log"
    file.write_text(text)
    env = {**os.environ, "TIDEGATE_STORE__KIND": "none", "TIDEGATE_UPSTREAM": upstream, "PYTHONUNBUFFERED": "1"}
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, text=True, env=env, cwd=folder,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())):
            assert process.poll() is None, log.read_text()
        yield Gateway(found[0], file, process, log)
    finally:
        process.terminate()
        process.communicate(timeout=15)


hangs_up = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no such signal here")


@hangs_up
@pytest.mark.parametrize("server", ["own", "uvicorn"])
def test_a_hangup_reads_the_file_anew(tmp_path, server):
    with (
        serve(SimulatorSettings(window=100_000)) as simulator,
        started(tmp_path, simulator.url, WINDOW.format(100_000) + f'[server]\nhttp = "{server}"\n') as gateway,
    ):
        post(gateway.base, CHAT, history("chat", 4), ONE)
        assert current(gateway.base)["window"] == 100_000
        gateway.write(WINDOW.format(50_000) + f'[server]\nhttp = "{server}"\nport = 1\n[store]\nmax_bytes = "1 MiB"\n')
        told = gateway.hang_up(r"store\.max_bytes")
        assert "settings read anew from" in told
        assert re.search(r"store\.max_bytes \(.*tidegate\.toml\): holds only once the gateway is started anew", told)
        assert "server.port" not in told  # the flag wins, then as now
        post(gateway.base, CHAT, history("chat", 5), ONE)
        assert current(gateway.base)["window"] == 50_000


@hangs_up
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[compaction]\nthreshold = 3\n", "unknown key compaction.threshold"),
        ("[compaction\n", "is not TOML"),
        ('[routing]\ndefault_chat = "nobody"\n', "there is no such provider"),
        ("[providers.openai]\nbase_url = 3\n", "providers.openai.base_url"),
        ('[compactors.mine]\nuse = "no_such_module:Mine"\n', "compactors.mine.use"),
        ('[compactors.mine]\nuse = "ends_itself:Mine"\n', "compactors.mine.use"),
        (None, "tidegate.toml is not there any more"),
    ],
)
def test_a_wrong_file_is_told_and_the_gateway_goes_on(tmp_path, text, why):
    (tmp_path / "ends_itself.py").write_text("raise SystemExit(3)\n")
    with (
        serve(SimulatorSettings(window=100_000)) as simulator,
        started(tmp_path, simulator.url, WINDOW.format(100_000)) as gateway,
    ):
        if text is None:
            gateway.file.unlink()
        else:
            gateway.write(text)
        told = gateway.hang_up("those before still hold")
        assert why in told
        assert "Traceback" not in told
        post(gateway.base, CHAT, history("chat", 4), ONE)
        assert current(gateway.base)["window"] == 100_000


@hangs_up
def test_what_nobody_has_thought_of_ends_no_workers(tmp_path):
    with (
        serve(SimulatorSettings(window=100_000)) as simulator,
        started(tmp_path, simulator.url, WINDOW.format(100_000), "--workers", "2") as gateway,
    ):
        gateway.write("a = " + "[" * 5000)
        assert "RecursionError" in gateway.hang_up("those before still hold")
        assert post(gateway.base, CHAT, history("chat", 4), ONE).status == 200
        assert gateway.process.poll() is None


@hangs_up
def test_all_workers_and_those_that_come_later_go_by_it(tmp_path):
    with (
        serve(SimulatorSettings(window=100_000)) as simulator,
        started(tmp_path, simulator.url, WINDOW.format(100_000), "--workers", "2") as gateway,
    ):
        post(gateway.base, CHAT, history("chat", 4), ONE)
        gateway.write(WINDOW.format(50_000))
        gateway.hang_up(r"(?s)(settings read anew.*){3}")  # the supervisor and two workers
        children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children")
        if children.exists():
            os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
            gateway.until("another takes its place")
        seen = set()
        for number in range(12):
            post(gateway.base, CHAT, history("chat", 4 + number % 3), ("authorization", f"Bearer sk-{number}"))
            told = Call(gateway.base, "GET", CONVERSATIONS, [("authorization", f"Bearer sk-{number}")]).rest()
            seen |= {one["current"]["window"] for one in json.loads(told.body)["conversations"]}
        assert seen == {50_000}


@hangs_up
def test_a_terminal_that_is_closed_still_ends_the_gateway(tmp_path):
    """A shell's child would otherwise live on, and hold the port."""
    import fcntl
    import pty
    import termios

    master, slave = pty.openpty()
    env = {**os.environ, "TIDEGATE_STORE__KIND": "none", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "serve", "--port", "0"],
        stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env, cwd=tmp_path,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Tidegate listening")
        os.close(slave)
        os.close(master)
        process.communicate(timeout=15)
        assert process.returncode == -signal.SIGTERM
    finally:
        process.kill()
