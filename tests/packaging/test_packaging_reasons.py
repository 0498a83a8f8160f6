"""`docs/headers.md` explains every reason that the source can give, and none besides."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tidegate.engine.effects import Action
from tidegate.overflow.verdict import Kind

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/tidegate"
ROOMS = ("engine", "drive", "compactors", "gateway")
PAGE = (ROOT / "docs/headers.md").read_text("utf-8")

REASON = re.compile(r"[a-z]+(_[a-z]+)*")
ARGUMENT = {"CompactionFailed": 0, "OutOfTime": 0, "Failure": 1, "relayed": 0, "Reading": 0, "fail": 2, "answer": 2}
"""Calls that are told a reason, and which of their arguments it is."""
ANSWERED_BY = {"_begin", "not_due", "hands_off", "_badly_ended", "_unlike_a_summary"}
"""Functions that return one."""
NO_REASON = {"summary_http_error"}
"""Told as `summary_http_STATUS`."""


def texts(node: ast.AST | None) -> Iterator[str]:
    """The texts that an expression may be, or that are among its parts."""
    match node:
        case ast.Constant(value=str(text)) if REASON.fullmatch(text):
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from texts(one)
            yield from texts(other)
        case ast.Tuple(elts=parts):
            for part in parts:
                yield from texts(part)


def given(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments, keywords=keywords):
                if name in ARGUMENT and len(arguments) > ARGUMENT[name]:
                    yield from texts(arguments[ARGUMENT[name]])
                for keyword in keywords:
                    if keyword.arg == "reason":
                        yield from texts(keyword.value)
            case ast.Assign(targets=targets, value=value):
                if re.search(r"\b(reason|problem)\b", " ".join(map(ast.unparse, targets))):
                    yield from texts(value)
            case ast.AnnAssign(target=ast.Name(id="problem"), value=value):
                yield from texts(value)
            case ast.FunctionDef(name=name) if name in ANSWERED_BY:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Return):
                        yield from texts(inner.value)


def endings() -> set[str]:
    """How an answer may end that is no summary, or no compaction."""
    from tidegate.compactors import accept, anthropic, native, openai

    tables = (accept._ENDINGS, anthropic._ENDINGS, native._REASONS, openai._ENDINGS)
    named = {problem for table in tables for problem in table.values() if problem}
    return {*named, "compact_unfinished"}  # what is in no table


def in_source() -> set[str]:
    found = set(endings()) | set(get_args(Kind))
    for room in ROOMS:
        for path in sorted((SOURCE / room).glob("*.py")):
            found |= set(given(ast.parse(path.read_text("utf-8"))))
    return found - NO_REASON - set(get_args(Action))


def on_page() -> set[str]:
    """Names in the first column of a table, or in the paragraphs, of the chapter about reasons."""
    chapter = PAGE.partition("## Reasons")[2]
    named: set[str] = set()
    for line in chapter.splitlines():
        told = line.split("|")[1] if line.startswith("|") else line
        named |= set(re.findall(r"`([a-z0-9_]+)`", told))
    return named - set(get_args(Action))


def test_every_reason_is_explained_and_every_explained_one_is_given() -> None:
    assert in_source() == on_page()


def test_every_action_is_explained() -> None:
    table = PAGE.partition("| action |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(get_args(Action))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise CompactionFailed('one_more')", {"one_more"}),
        ("self.action, self.reason = 'relayed', 'one_more'", {"relayed", "one_more"}),
        ("yield Deliver(0, Outcome(reason='one_more'))", {"one_more"}),
        ("await client.fail(404, str(error), 'one_more')", {"one_more"}),
        ("def not_due(self):\n return 'one' if self else 'more'", {"one", "more"}),
    ],
)
def test_a_new_reason_would_be_seen(code: str, found: set[str]) -> None:
    assert set(given(ast.parse(code))) == found
