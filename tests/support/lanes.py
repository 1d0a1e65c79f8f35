"""``--lane`` chooses tests: ``fast`` (``make test``), ``documents`` (``make test-docs``) or ``all``.

The fast lane has the tests that need neither process nor socket nor namespace (:mod:`tests.support.needs`)
and do not compute for long (``slow``), and a few of each other kind (``smoke``). It does not import files
without such a test. It has the tests of documents, chart and examples while one of those has changed.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.needs import MARKERS, find_markers, get_markers

FAST, DOCUMENTS, ALL = "fast", "documents", "all"

DOCUMENT_TESTS = ("tests/documents", "tests/examples", "tests/tools/manifests", "tests/tools/monitoring")
_DOCUMENTED = (
    "docs/",
    "examples/",
    "charts/",
    "deploy/",
    "tools/",
    *(f"{folder}/" for folder in DOCUMENT_TESTS),
)
"""What such tests read, besides the pages at the top of the repository."""

PRODUCT = ("dranet", "testbed", "tools")

_SMOKE = "mark.smoke"
_REPOSITORY = Path(__file__).resolve().parents[2]
_CHANGED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane", choices=[FAST, DOCUMENTS, ALL], help="run the tests of a lane (CONTRIBUTING.md)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: stands for its kind of tests in `make test`")
    config.addinivalue_line("markers", "slow: needs nothing but seconds of a processor; not in `make test`")
    config.stash[_CHANGED] = (
        config.getoption("--lane") == FAST and find_documented(list_changed(_REPOSITORY)) != []
    )


def list_changed(repository: Path) -> Sequence[str] | None:
    """Return the paths that differ from the main branch, committed or not; None where git cannot tell."""
    git = ["git", "-C", str(repository)]
    for main in ("origin/main", "main"):
        base = subprocess.run([*git, "merge-base", "HEAD", main], capture_output=True, text=True)
        if base.returncode == 0:
            break
    else:
        return None
    changed = subprocess.run(
        [*git, "diff", "--name-only", base.stdout.strip()], capture_output=True, text=True
    )
    new = subprocess.run([*git, "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True)
    return [*changed.stdout.splitlines(), *new.stdout.splitlines()]


def find_documented(changed: Iterable[str] | None) -> list[str]:
    """Return those of the paths that tests of documents read. None stands for any paths."""
    if changed is None:
        return ["."]
    return [
        path for path in changed if path.startswith(_DOCUMENTED) or ("/" not in path and path.endswith(".md"))
    ]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of which the lane runs nothing."""
    lane = config.getoption("--lane")
    if lane in (None, ALL) or not collection_path.is_relative_to(_REPOSITORY / "tests"):
        return None
    documents = _is_of_documents(collection_path)
    if lane == DOCUMENTS:
        above = any((_REPOSITORY / folder).is_relative_to(collection_path) for folder in DOCUMENT_TESTS)
        return None if documents or above else True
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    source = collection_path.read_text()
    if _SMOKE in source:
        return None
    return True if find_markers(source) or (documents and not config.stash[_CHANGED]) else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load the whole product before the first property test of a lane: words and numbers of the modules that
    are loaded get into its examples, and which ones tests have loaded by then differs from run to run."""
    if session.config.getoption("--lane") is None:
        return
    if any(item.get_closest_marker("hypothesis") for item in session.items):
        load_product()


def load_product() -> None:
    for package in PRODUCT:
        for module in pkgutil.walk_packages([str(_REPOSITORY / package)], f"{package}."):
            if not module.name.endswith(".__main__"):
                with suppress(ImportError):  # what is installed only by those who want it
                    importlib.import_module(module.name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of the lane, and put the slowest files first: processes get them in this order."""
    if config.getoption("--lane") == FAST:
        fast = [item for item in items if _is_fast(item, documents=config.stash[_CHANGED])]
        config.hook.pytest_deselected(items=list(set(items).difference(fast)))
        items[:] = fast
    if not config.getoption("--lane"):
        return  # the order of the command line counts: the virtual machine's tests rely on it
    ranks: dict[Path, int] = {}
    for item in items:
        rank = max((_RANKS[name] for name in get_markers(item)), default=0)
        ranks[item.path] = max(rank, ranks.get(item.path, 0))
    items.sort(key=lambda item: -ranks[item.path])


_RANKS = {name: number for number, name in enumerate(MARKERS, start=1)}


def _is_fast(item: pytest.Item, *, documents: bool) -> bool:
    if item.get_closest_marker("smoke"):
        return True
    if item.get_closest_marker("slow"):
        return False
    return not get_markers(item) and (documents or not _is_of_documents(item.path))


def _is_of_documents(path: Path) -> bool:
    return any(path.is_relative_to(_REPOSITORY / folder) for folder in DOCUMENT_TESTS)
