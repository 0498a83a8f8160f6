"""Other gateways that compact or relay agents' conversations: which package, which command.

Versions are pinned to those that were seen to install and run. `install` puts them into virtual environments under the
benches' cache, headroom into its own, for its many dependencies.
"""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from rig.gateways import Gateway, Launch, Place
from rig.native import KEY, cache

PACKAGES: dict[str, tuple[str, ...]] = {
    "shared": (
        "cliffcompaction==0.1.0",
        "context-guardian==0.12.0",
        "awecompress==0.2.0",
        "kompact==0.4.0",
        "ctxkeeper==1.2.0",
        "litellm[proxy]==1.108.7",
        "aiohttp",
    ),
    "headroom": ("headroom-ai[proxy]==0.42.0",),
}


def folder() -> Path:
    return cache() / "peers"


def _program(name: str, environment: str = "shared") -> Path:
    return folder() / environment / "bin" / name


def _home(place: Place) -> dict[str, str]:
    return {"HOME": str(place.folder)}


def _cliff(place: Place) -> Launch:
    due = str(place.window * 73 // 100)
    to = ("--openai-upstream", place.upstream, "--anthropic-upstream", place.upstream)
    serve = (str(_program("cliff")), "serve", "--port", str(place.port))
    return Launch((*serve, "--threshold", due, "--keep-recent", "3", *to), _home(place))


def _guardian(place: Place) -> Launch:
    settings = {
        "PORT": place.port,
        "UPSTREAM_URL": f"{place.upstream}/v1",
        "NUM_CTX": place.window,
        "RESERVE_OUTPUT": 4096,
        "DETECT_CONTEXT": "off",
        "OLLAMA_CONTEXT": "off",
        "VERSION_CHECK": 0,
        "SPAN_DIR": place.folder / "spans",
    }
    environment = {f"GUARDIAN_{name}": str(value) for name, value in settings.items()}
    return Launch((str(_program("context-guardian")),), {**environment, **_home(place)})


def _awecompress(place: Place) -> Launch:
    settings = {
        "port": place.port,
        "upstream": place.upstream,
        "thresholdTokens": place.window * 61 // 100,
        "keepRecentTurns": 4,
        "minSpanTokens": 4000,
        "summaryMaxTokens": 2048,
    }
    (place.folder / "config.json").write_text(json.dumps(settings))
    environment = {"AWECOMPRESS_CONFIG_DIR": str(place.folder), **_home(place)}
    return Launch((str(_program("awecompress")), "serve"), environment)


def _ctxkeeper(place: Place) -> Launch:
    budget = str(place.window * 73 // 100)
    command = (str(_program("ctxkeeper")), "--upstream", place.upstream, "--recipe", "agent", "--port", str(place.port))
    return Launch((*command, "--budget", budget, "--state-dir", str(place.folder / "state")), _home(place))


def _kompact(place: Place) -> Launch:
    to = ("--openai-base-url", place.upstream, "--anthropic-base-url", place.upstream, "--no-otel")
    command = (str(_program("kompact")), "proxy", "--port", str(place.port), "--host", "127.0.0.1")
    return Launch((*command, *to), _home(place))


def _litellm(place: Place) -> Launch:
    parameters = {"model": "hosted_vllm/bench", "api_base": f"{place.upstream}/v1", "api_key": "sk-x"}
    config = {
        "model_list": [{"model_name": "bench", "litellm_params": parameters}],
        "general_settings": {"context_management_summary_model": "bench"},
    }
    (place.folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = (str(_program("litellm")), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(place.port))
    return Launch(command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY, **_home(place)})


def _headroom(place: Place) -> Launch:
    to = {"OPENAI_TARGET_API_URL": place.upstream, "ANTHROPIC_TARGET_API_URL": place.upstream}
    offline = {"HEADROOM_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    command = (str(_program("headroom", "headroom")), "proxy", "--port", str(place.port), "--host", "127.0.0.1")
    return Launch((*command, "--no-subscription-tracking", "--no-rate-limit"), {**to, **offline, **_home(place)})


Apis = tuple[str, ...]
ALL: Apis = ("chat", "messages", "responses")
TWO: Apis = ("chat", "messages")
_TABLE: tuple[tuple[str, Callable[[Place], Launch], str, Apis, float], ...] = (
    ("litellm", _litellm, "shared/bin/litellm", ALL, 90),
    ("cliffcompaction", _cliff, "shared/bin/cliff", ALL, 20),
    ("context-guardian", _guardian, "shared/bin/context-guardian", TWO, 20),
    ("awecompress", _awecompress, "shared/bin/awecompress", ALL, 20),
    ("ctxkeeper", _ctxkeeper, "shared/bin/ctxkeeper", ("chat",), 20),
    ("kompact", _kompact, "shared/bin/kompact", TWO, 30),
    ("headroom", _headroom, "headroom/bin/headroom", TWO, 90),
)
NAMES = tuple(row[0] for row in _TABLE)


def install() -> None:
    """Installs the peers that are missing; takes minutes, and an environment's failure is only told."""
    for name, packages in PACKAGES.items():
        home = folder() / name
        if (home / "complete").exists():
            continue
        print(f"installing {', '.join(packages)} into {home}", flush=True)
        venv.create(home, with_pip=True, clear=True)
        done = subprocess.run([home / "bin" / "pip", "install", "--quiet", *packages], check=False)
        if done.returncode == 0:
            (home / "complete").touch()
        else:
            print(f"could not install {', '.join(packages)}")


def installed(names: Sequence[str]) -> list[Gateway]:
    """The peers of these names that are installed."""
    return [
        Gateway(name, launch, seconds, apis)
        for name, launch, program, apis, seconds in _TABLE
        if name in names and (folder() / program).exists()
    ]
