"""The scripts, run by a stand-in for Python that notes what it was asked to do."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ("scripts/demo", "scripts/test", "scripts/check", "scripts/compile", ".ci/run")

STAND_IN = """\
#!/bin/sh
# Makes an environment by copying itself there; says yes to everything; notes modules that were run.
case "$1 $2" in
    '-m venv')
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python"
        printf 'venv\\n' >>"$CALLS"
        ;;
    '-m '*)
        shift
        printf '%s\\n' "$*" >>"$CALLS"
        case "$*" in *"${FAILING:-nothing}"*) exit 1 ;; esac
        ;;
    *bench/gateway.py*) case "$*" in *"${FAILING:-nothing}"*) exit 1 ;; esac ;;
    '-c '*'sys.version)'*) echo 3.11 ;;
    '--version '*) echo 'Python 3.11' ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the scripts touch, in a folder with a space in its name, with a stand-in interpreter beside it."""
    folder = tmp_path / "a project"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    for name in ("pyproject.toml", "requirements-dev.lock", "requirements-real.txt", "requirements-litellm.txt"):
        shutil.copy(ROOT / name, folder / name)
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    return folder


def run(project: Path, *command: str, **environ: str) -> tuple[int, list[str], str]:
    """(status, modules run with their arguments, what was said)"""
    calls = project.parent / "calls"
    calls.write_text("")
    variables = {"PATH": os.environ["PATH"], "PYTHON": str(project.parent / "python"), "CALLS": str(calls)} | environ
    done = subprocess.run(
        [str(project / command[0]), *command[1:]],
        cwd="/",
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, calls.read_text().splitlines(), done.stdout


def installs(calls: list[str]) -> list[str]:
    return [call for call in calls if call.startswith("pip")]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_and_read_by_a_plain_shell(script: str) -> None:
    assert (ROOT / script).stat().st_mode & stat.S_IXUSR
    assert (ROOT / script).read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(ROOT / script)], check=True)


def test_first_demo_makes_an_environment_with_what_runs_and_no_more(project: Path) -> None:
    status, calls, _ = run(project, "scripts/demo", "--turns", "3")
    assert status == 0
    assert calls[0] == "venv"
    assert calls[1].startswith("pip install --quiet --constraint ")
    assert calls[2:] == ["tidegate demo --turns 3"]


def test_second_run_installs_nothing(project: Path) -> None:
    run(project, "scripts/demo")
    assert run(project, "scripts/demo")[1] == ["tidegate demo"]


@pytest.mark.parametrize("file", ["pyproject.toml", "requirements-dev.lock"])
def test_changed_dependencies_are_installed_again(project: Path, file: str) -> None:
    run(project, "scripts/demo")
    (project / file).write_text((project / file).read_text() + "# changed\n")
    assert len(installs(run(project, "scripts/demo")[1])) == 1
    assert installs(run(project, "scripts/demo")[1]) == []


def test_moved_project_is_installed_again(project: Path) -> None:
    run(project, "scripts/demo")
    moved = project.rename(project.with_name("moved"))
    assert len(installs(run(moved, "scripts/demo")[1])) == 1


def test_failed_installation_is_tried_again(project: Path) -> None:
    status, calls, _ = run(project, "scripts/demo", FAILING="pip install")
    assert status != 0
    assert "tidegate demo" not in calls
    assert len(installs(run(project, "scripts/demo")[1])) == 1


def test_environment_without_its_interpreter_is_made_anew(project: Path) -> None:
    run(project, "scripts/demo")
    (project / ".venv/bin/python").unlink()
    assert run(project, "scripts/demo")[1][0] == "venv"


def test_tests_installation_serves_the_demo_too(project: Path) -> None:
    run(project, "scripts/test")
    assert run(project, "scripts/demo")[1] == ["tidegate demo"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "pytest -m not real and not slow and not frameworks and not litellm -n 2"),
        (("default", "-x"), "pytest -m not real and not slow and not frameworks and not litellm -n 2 -x"),
        (("tests/wire",), "pytest -m not real and not slow and not frameworks and not litellm -n 2 tests/wire"),
        (("slow",), "pytest -m slow -n 2"),
        (("real",), "pytest -m real"),
        (("litellm", "-x"), "pytest -m litellm tests/with_litellm -x"),
        (("all", "-q"), "pytest -m not frameworks and not litellm -q"),
        (
            ("compiled", "tests/wire"),
            "pytest -m not real and not slow and not frameworks and not litellm -n 2 tests/wire",
        ),
    ],
)
def test_groups_of_tests(project: Path, arguments: tuple[str, ...], expected: str) -> None:
    assert run(project, "scripts/test", *arguments)[1][-1] == expected


@pytest.mark.parametrize(("group", "wanted"), [("real", True), ("all", True), ("default", False)])
def test_only_groups_with_the_real_model_install_it(project: Path, group: str, wanted: bool) -> None:
    assert any("requirements-real.txt" in call for call in run(project, "scripts/test", group)[1]) is wanted


def test_unknown_group_is_refused_before_anything_is_installed(project: Path) -> None:
    status, calls, said = run(project, "scripts/test", "nonsense")
    assert (status, calls) == (2, [])
    assert "choose default, slow, compiled, frameworks, real, litellm or all" in said


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("script", ["scripts/test", "scripts/check", "scripts/compile"])
def test_help_is_the_scripts_own_and_installs_nothing(project: Path, script: str, option: str) -> None:
    status, calls, said = run(project, script, option)
    assert (status, calls) == (0, [])
    comment = (project / script).read_text().split("\nset -eu")[0].splitlines()[1:]
    assert said.splitlines() == [line.removeprefix("#").removeprefix(" ") for line in comment]


def test_unknown_argument_of_the_checks_is_refused(project: Path) -> None:
    status, calls, said = run(project, "scripts/check", "--fixx")
    assert (status, calls) == (2, [])
    assert "--fix" in said


def test_a_chosen_python_that_does_not_fit_is_named(project: Path) -> None:
    assert "PYTHON=no-such-python" in run(project, "scripts/demo", PYTHON="no-such-python")[2]


def test_missing_python_is_explained(project: Path) -> None:
    status, calls, said = run(project, "scripts/demo", PYTHON="no-such-python")
    assert (status != 0, calls) == (True, [])
    assert "Tidegate needs Python 3.11 or later" in said


@pytest.mark.parametrize("failing", ["pytest -m", "mypy", "tidegate demo", "bench/gateway.py --short"])
def test_ci_fails_with_each_of_its_stages(project: Path, failing: str) -> None:
    with_lint(project)
    status, _, said = run(project, ".ci/run", FAILING=failing)
    assert status != 0
    assert "CI failed:" in said
    assert "CI passed" not in said


def test_ci_passes_where_every_stage_does(project: Path) -> None:
    with_lint(project)
    status, _, said = run(project, ".ci/run")
    assert status == 0
    compiled = " compiled" if shutil.which("cc") else ""
    assert said.rstrip().endswith(f"CI passed: tests{compiled} checks demo bench policies")


def with_lint(project: Path) -> None:
    """An environment whose import linter is content."""
    run(project, "scripts/test")
    lint = project / ".venv/bin/lint-imports"
    lint.write_text("#!/bin/sh\n")
    lint.chmod(0o755)
