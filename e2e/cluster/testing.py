"""Runs the tests of ``e2e/tests`` inside a private tree, so that one cluster serves them all.

The tests of ``e2e/tests/upgrade`` have a run, a tree and a cluster of their own, whose version changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlaneKit
from e2e.cluster.local import ClusterKit
from e2e.release import make_release
from testbed.isolation import run_isolated

# TLS connections to a server that is ended with the run are still closing when the event loop ends.
_QUIET = (
    *("-p", "no:hypothesispytest", "--timeout=400"),
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
_ONE_LOOP = (
    *("-o", "asyncio_default_test_loop_scope=session"),
    *("-o", "asyncio_default_fixture_loop_scope=session"),
)
FOLDER = Path(__file__).parents[1] / "tests"
UPGRADE_FOLDER = FOLDER / "upgrade"

KIT = pytest.StashKey[ClusterKit]()
"""The programs, which are found before the tree, in pytest's configuration."""
NEWER = pytest.StashKey[tuple[ControlPlaneKit, ...]]()
"""The programs of newer versions, in order, for an upgrade."""
RELEASE = pytest.StashKey[Path]()
"""The folder of a release. It is made before the tree, from which no registry of packages is reached."""
_NEEDS_RELEASE = "test_installation"


class _Plugin:
    def __init__(self, kit: ClusterKit, newer: tuple[ControlPlaneKit, ...], release: Path | None) -> None:
        self._kit = kit
        self._newer = newer
        self._release = release

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[KIT] = self._kit
        config.stash[NEWER] = self._newer
        if self._release is not None:
            config.stash[RELEASE] = self._release


def run_tests(kit: ClusterKit, arguments: Sequence[str]) -> int:
    """The exit code of pytest. ``arguments`` are pytest's; without a file among them all tests run."""
    named = [argument for argument in arguments if not argument.startswith("-")]
    needs_release = not named or any(_NEEDS_RELEASE in name for name in named)
    release = make_release(Path(".cache/e2e-release")) if needs_release else None
    words = [*arguments, *([] if named else [str(FOLDER), f"--ignore={UPGRADE_FOLDER}"])]
    return _run(kit, (), words, release)


def run_upgrade(kit: ClusterKit, newer: tuple[ControlPlaneKit, ...], arguments: Sequence[str]) -> int:
    """The exit code of pytest for the tests of an upgrade from ``kit`` over all of ``newer``."""
    return _run(kit, newer, [*arguments, str(UPGRADE_FOLDER)])


def _run(
    kit: ClusterKit,
    newer: tuple[ControlPlaneKit, ...],
    arguments: Sequence[str],
    release: Path | None = None,
) -> int:
    words = [*arguments, *_QUIET, *_ONE_LOOP]
    return run_isolated(lambda: int(pytest.main(words, plugins=[_Plugin(kit, newer, release)])))
