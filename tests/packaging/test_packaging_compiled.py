"""The modules that may be compiled against what mypyc can't do, or does otherwise than Python."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tidegate"]["compiled"]["modules"]
SOURCES = {
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts): ast.parse(path.read_text())
    for path in (ROOT / "src/tidegate").rglob("*.py")
}
CLASSES = {
    (module, node.name): node for module in SOURCES for node in SOURCES[module].body if isinstance(node, ast.ClassDef)
}


def home(module: str, base: ast.expr) -> tuple[str, str] | None:
    """The class of this package that a module means by a base, if it is one."""
    if not isinstance(base, ast.Name):
        return None
    for node in SOURCES[module].body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                if (name.asname or name.name) == base.id and (node.module, name.name) in CLASSES:
                    return node.module, name.name
    return (module, base.id) if (module, base.id) in CLASSES else None


def is_struct(module: str, node: ast.ClassDef) -> bool:
    for base in node.bases:
        if ast.unparse(base) in ("msgspec.Struct", "Struct"):
            return True
        if (found := home(module, base)) and is_struct(found[0], CLASSES[found]):
            return True
    return False


def classes(module: str) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(SOURCES[module]) if isinstance(node, ast.ClassDef))


def test_each_module_is_listed_once_and_there() -> None:
    assert [module for module in MODULES if module not in SOURCES] == []
    assert len(set(MODULES)) == len(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_no_struct_is_compiled(module: str) -> None:
    """mypyc drops `frozen=True` and the like, and most annotations, which msgspec goes by."""
    assert [node.name for node in classes(module) if is_struct(module, node)] == []


@pytest.mark.parametrize("module", MODULES)
def test_there_is_nothing_that_mypyc_does_not_know(module: str) -> None:
    for function in ast.walk(SOURCES[module]):
        if isinstance(function, ast.AsyncFunctionDef):
            assert not any(isinstance(node, ast.Yield) for node in ast.walk(function)), (
                f"{function.name}: async generator"
            )
    for node in classes(module):
        assert not any(isinstance(part, ast.Assign) and len(part.targets) > 1 for part in node.body), node.name


def waits(nodes: list[ast.stmt]) -> bool:
    """Whether these statements of a generator or coroutine may stop midway."""
    left: list[ast.AST] = [*nodes]
    while left:
        node = left.pop()
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.AsyncWith | ast.AsyncFor):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
    return False


@pytest.mark.parametrize("module", MODULES)
def test_nothing_waits_while_an_exception_is_handled(module: str) -> None:
    """What a compiled generator or coroutine handles while it stops is handled by its caller too, and one that waits in
    a `finally` raises what its caller handles."""
    found = [
        f"line {node.lineno}: {ast.unparse(node.body[0])[:60]}"
        for node in ast.walk(SOURCES[module])
        if isinstance(node, ast.Try)
        and (waits(node.finalbody) or any(waits(handler.body) for handler in node.handlers))
    ]
    assert found == []


@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_made_past_its_init(module: str) -> None:
    """`__new__` of a compiled class calls its `__init__`."""
    assert not any(isinstance(node, ast.Attribute) and node.attr == "__new__" for node in ast.walk(SOURCES[module]))


@pytest.mark.parametrize("module", sorted(SOURCES.keys() - set(MODULES)))
def test_no_other_class_inherits_from_a_compiled_one(module: str) -> None:
    """Others can't inherit from native classes, which compiled ones are, but for protocols."""
    for node in classes(module):
        for base in node.bases:
            if (found := home(module, base)) and found[0] in MODULES:
                told = {ast.unparse(one).partition("[")[0] for one in CLASSES[found].bases}
                assert "Protocol" in told, f"{node.name} inherits from {'.'.join(found)}"


def test_no_compiled_class_is_matched_by_position() -> None:
    """It has no `__match_args__` that both a compiled `match` and an interpreted one understand."""
    compiled = {name for module, name in CLASSES if module in MODULES}
    dataclasses = {
        name
        for (module, name), node in CLASSES.items()
        if any("dataclass" in ast.unparse(d) for d in node.decorator_list)
    }
    found = [
        f"{module} line {node.lineno}: {ast.unparse(node.cls)}"
        for module, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.MatchClass) and node.patterns and ast.unparse(node.cls) in compiled - dataclasses
    ]
    assert found == []
