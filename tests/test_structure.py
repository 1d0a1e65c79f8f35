"""The shape of the package: modules of bounded length, small constructors, and no import circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import dranet

PRODUCT = Path(dranet.__file__).parent
MOST_PARAMETERS = 7
MOST_LINES = 600


@cache
def read_modules() -> Mapping[str, ast.Module]:
    """The tree of each module by its dotted name; what is generated (``pb``) is left out."""
    trees = {}
    for path in PRODUCT.rglob("*.py"):
        parts = path.relative_to(PRODUCT.parent).with_suffix("").parts
        if "pb" not in parts:
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            trees[name] = ast.parse(path.read_text())
    return trees


def find_imports(module: str) -> frozenset[str]:
    """The modules of ours that a module imports, also inside functions and for type checking alone."""
    trees, found = read_modules(), set[str]()
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {_resolve(node.module, alias.name) for alias in node.names}
    return frozenset(found & trees.keys()) - {module}


def _resolve(module: str, name: str) -> str:
    """``from package import module`` imports the module; any other name is of the module itself."""
    inner = f"{module}.{name}"
    return inner if inner in read_modules() else module


def find_circles() -> list[list[str]]:
    """Modules that import each other, directly or through others: Tarjan's strongly connected components."""
    graph = {module: find_imports(module) for module in read_modules()}
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            circle = [stack.pop()]
            while circle[-1] != module:
                circle.append(stack.pop())
            if len(circle) > 1:
                circles.append(sorted(circle))

    for module in graph:
        if module not in order:
            visit(module)
    return circles


def iter_constructors() -> Iterator[tuple[str, int]]:
    """Each class that writes its own constructor, with the number of its parameters except ``self``."""
    for module, tree in read_modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                        given = member.args
                        every = (*given.posonlyargs, *given.args, *given.kwonlyargs)
                        yield f"{module}.{node.name}", len(every) - 1


def test_no_modules_import_each_other_not_even_for_type_checking() -> None:
    assert find_circles() == []


def test_constructors_have_seven_parameters_at_most() -> None:
    """More are grouped by their meaning, in a record that says what they are."""
    assert {name: count for name, count in iter_constructors() if count > MOST_PARAMETERS} == {}


def test_modules_have_six_hundred_lines_at_most() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in PRODUCT.rglob("*.py")}
    assert len(lengths) > 200
    assert {str(path): length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_the_search_for_circles_sees_the_whole_package() -> None:
    assert "dranet.driver.publish" in find_imports("dranet.driver.assembly")
    assert len(read_modules()) > 200
