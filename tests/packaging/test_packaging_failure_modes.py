"""`docs/failure-modes.md` against the tests: every failure mode is proven by a test that exists and runs, or has its
reason why not."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/failure-modes.md").read_text("utf-8")
KNOWN = range(1, 139)

ROW = re.compile(r"^\| F(\d+)(?:–F(\d+))? \|(.+)\|$", re.MULTILINE)
NODE = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
LEFT_OUT = re.compile(r"\bmark\.(slow|real|skip|skipif|xfail)\b")


@cache
def named_in(path: str) -> dict[str, str]:
    """A file's tests, named as pytest has them, with the decorators that stand on all of each."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    for_all = "".join(
        ast.unparse(it) for it in tree.body if isinstance(it, ast.Assign) and "pytestmark" in ast.unparse(it)
    )
    found: dict[str, str] = {}
    for scope, before in [(tree, ""), *((it, f"{it.name}::") for it in tree.body if isinstance(it, ast.ClassDef))]:
        around = for_all + " ".join(map(ast.unparse, getattr(scope, "decorator_list", ())))
        for it in scope.body:
            if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef) and it.name.startswith("test_"):
                own = [ast.unparse(one) for one in it.decorator_list if "parametrize" not in ast.unparse(one)]
                found[before + it.name] = " ".join([around, *own])
    return found


def rows() -> list[tuple[int, int, list[str]]]:
    """First and last mode of a line, and its cells."""
    return [
        (int(first), int(last or first), [cell.strip() for cell in rest.split("|")])
        for first, last, rest in ROW.findall(PAGE)
    ]


PROVEN = [(number, path, name) for number, _, cells in rows() for path, name in NODE.findall(cells[-1])]


def why_not(path: str, name: str) -> str:
    """What is wrong with a proof; empty where nothing is."""
    if not (ROOT / path).is_file():
        return "no such file"
    if name not in named_in(path):
        return "no such test"
    return f"left out by default: {told[0]}" if (told := LEFT_OUT.search(named_in(path)[name])) else ""


def test_every_proof_is_a_test_that_runs() -> None:
    assert {
        f"F{number:02d} {path}::{name}": why_not(path, name) for number, path, name in PROVEN if why_not(path, name)
    } == {}


def test_every_mode_is_on_the_page_once() -> None:
    assert sorted(number for first, last, _ in rows() for number in range(first, last + 1)) == list(KNOWN)


def test_every_line_has_words_and_a_proof_or_a_reason() -> None:
    for first, last, cells in rows():
        assert all(len(cell) > 10 for cell in cells), f"F{first:02d}"
        proven = bool(NODE.search(cells[-1]))
        assert len(cells) == (3 if proven else 1), f"F{first:02d}"
        assert first == last or not proven
        if proven:  # nothing else than tests in the last cell, each spelled as it can be run
            assert NODE.sub("", cells[-1]).strip(", ") == "", f"F{first:02d}"


@pytest.mark.parametrize(
    ("path", "name", "problem"),
    [
        ("tests/packaging/test_packaging_no_such.py", "test_x", "no such file"),
        ("tests/packaging/test_packaging_failure_modes.py", "test_x", "no such test"),
        ("tests/gateway/test_gateway_riding.py", "test_sixty_turns", "left out by default: mark.slow"),
        ("tests/compactors/test_native_openai.py", "TestCall::test_the_whole_of_it", ""),
    ],
)
def test_a_proof_that_is_none_would_be_seen(path: str, name: str, problem: str) -> None:
    assert why_not(path, name) == problem
