"""List the modules that the image holds: those that the daemon and the node's commands import, and no other.

Every import statement counts, also one inside a function. The modules are parsed, not imported: the builder
has no third-party package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "dranet"


def find_reached(repository: Path, roots: Iterable[str]) -> list[Path]:
    """Return the files of the package that ``roots`` (dotted names) import, directly or not, sorted."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        path = _locate(repository, module)
        if module in found or path is None:
            continue
        found[module] = path
        waiting += _list_imported(path)
        waiting += [module.rpartition(".")[0]]
    return sorted(found.values())


def _locate(repository: Path, module: str) -> Path | None:
    """The file of a module or package; None for a name inside a module, and for other packages."""
    if module.partition(".")[0] != PACKAGE:
        return None
    base = repository / module.replace(".", "/")
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _list_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
