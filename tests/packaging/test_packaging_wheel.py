"""The wheel, built from the sdist and installed in a new environment: what `pip install tidegate` would give."""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT_IN = sorted(path.stem for path in (ROOT / "providers").glob("*.toml") if not path.stem.startswith("_"))


def run(*command: object, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIDEGATE_"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment that holds the wheel; its dependencies are those of the environment of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    paths = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    # A folder that a .pth adds has its own .pth files left unread, so the editable install does not shadow the wheel.
    Path(site, "dependencies.pth").write_text("\n".join(paths) + "\n")
    return folder


def test_wheel_holds_the_provider_files_prompts_and_type_marker(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name for name in names if name.startswith("tidegate/_providers/")}
    assert shipped == {f"tidegate/_providers/{path.name}" for path in (ROOT / "providers").glob("*.toml")}
    assert "tidegate/py.typed" in names
    prompts = {name for name in names if name.startswith("tidegate/compactors/prompts/")}
    assert prompts == {
        f"tidegate/compactors/prompts/{path.name}" for path in (ROOT / "src/tidegate/compactors/prompts").iterdir()
    }
    assert not [name for name in names if name.startswith("tests/")]


def test_installed_package_is_the_one_from_the_wheel(installed: Path) -> None:
    found = run(installed / "bin" / "python", "-c", "import tidegate; print(tidegate.__file__)", cwd=installed)
    assert Path(found.strip()).is_relative_to(installed.resolve())


def test_console_script_says_the_projects_version(installed: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(installed / "bin" / "tidegate", "--version", cwd=installed) == f"tidegate {version}\n"


def test_installed_package_finds_its_providers(installed: Path) -> None:
    listed = json.loads(run(installed / "bin" / "tidegate", "providers", "--json", cwd=installed))
    assert sorted(provider["name"] for provider in listed) == BUILT_IN


def test_installed_package_works(installed: Path) -> None:
    figures = json.loads(run(installed / "bin" / "tidegate", "demo", "--turns", "8", "--json", cwd=installed))
    assert {api: (run["answered"], run["compactions"] > 0) for api, run in figures.items()} == {
        "chat": (8, True),
        "responses": (8, True),
        "messages": (8, True),
    }
