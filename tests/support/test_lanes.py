"""A test that is in the wrong lane fails, and the quick lane imports no more than it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lanes import find_documented, list_changed
from tests.support.needs import MARKERS, find_markers

REPOSITORY = Path(__file__).parents[2]

OFFENDERS = {
    "process": "import subprocess, sys\ndef test_it(): subprocess.run([sys.executable, '-c', ''])\n",
    "socket": "import socket\ndef test_it():\n    with socket.socket() as s: s.bind(('127.0.0.1', 0))\n",
    "namespace": "def test_it(): open('/proc/self/ns/net').close()\n",
}
HARMLESS = """
import asyncio, threading
def test_a_loop_and_a_thread():
    asyncio.run(asyncio.to_thread(threading.active_count))
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder with a file ``test_it.py``, with the plugin of needs alone."""
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n" + "".join(f"  {name}: x\n" for name in MARKERS)
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.needs", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize("kind", OFFENDERS)
def test_what_a_test_uses_needs_a_marker_that_allows_it(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(OFFENDERS[kind])
    done = run_pytest(tmp_path)
    assert done.returncode == 1, done.stdout
    assert f"  {kind}: " in done.stdout
    for name, allowed in MARKERS.items():
        file.write_text(f"import pytest\npytestmark = pytest.mark.{name}\n{OFFENDERS[kind]}")
        assert run_pytest(tmp_path).returncode == (0 if kind in allowed else 1), name


@pytest.mark.process
def test_an_event_loop_and_a_thread_need_no_marker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HARMLESS)
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.process
def test_a_fixture_counts_for_the_tests_that_it_serves(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import socket, pytest\n"
        "@pytest.fixture\n"
        "def port():\n    with socket.socket() as s:\n        s.bind(('127.0.0.1', 0))\n        yield s\n"
        "def test_it(port): pass\ndef test_other(): pass\n"
    )
    done = run_pytest(tmp_path, "-rA")
    assert "ERROR test_it.py::test_it" in done.stdout
    assert "PASSED test_it.py::test_other" in done.stdout


@pytest.mark.parametrize(
    ("source", "markers"),
    [
        ("pytestmark = pytest.mark.kernel\n", {"kernel"}),
        ("pytestmark = [\n    pytest.mark.testbed,\n    pytest.mark.timeout(3),\n]\nx = 1\n", {"testbed"}),
        ("pytestmark = [pytest.mark.process, pytest.mark.timeout(3)]  # long\n", {"process"}),
        ('pytestmark = pytest.mark.process(unless="it is kept")\n', {"process"}),
        ("@pytest.mark.kernel\ndef test_it(): ...\n", set()),
        ("pytestmark = pytest.mark.timeout(3)\n@pytest.mark.kernel\ndef test_it(): ...\n", set()),
    ],
)
def test_the_markers_of_a_whole_file_are_read_without_importing_it(source: str, markers: set[str]) -> None:
    assert find_markers(source) == markers


@pytest.mark.parametrize(
    ("changed", "documented"),
    [
        (["docs/guides/install.md", "dranet/errors.py"], ["docs/guides/install.md"]),
        (["README.md"], ["README.md"]),
        (["dranet/desk/README.md", "tests/kernel/test_rtnl.py"], []),
        (None, ["."]),
    ],
)
def test_documents_that_changed_are_found_among_all_that_changed(
    changed: list[str] | None, documented: list[str]
) -> None:
    assert find_documented(changed) == documented


@pytest.mark.process
def test_what_differs_from_the_main_branch_is_what_git_says(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@x")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert list_changed(tmp_path) is None, "no repository"
    git("init", "-b", "main")
    for name in ("kept", "edited"):
        (tmp_path / name).write_text("x")
    git("add", ".")
    git("commit", "-m", "first")
    assert list_changed(tmp_path) == []
    git("switch", "-c", "topic")
    (tmp_path / "committed").write_text("x")
    git("add", ".")
    git("commit", "-m", "second")
    (tmp_path / "edited").write_text("y")
    (tmp_path / "new").write_text("x")
    assert list_changed(tmp_path) == ["committed", "edited", "new"]


@pytest.mark.process
@pytest.mark.parametrize(("mark", "is_certain"), [("process", True), ("process(unless='it is kept')", False)])
def test_a_marker_that_may_not_be_needed_says_so(tmp_path: Path, mark: str, is_certain: bool) -> None:
    """The plugin's properties of a test that used nothing, as the check of a whole run reads them."""
    test = f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n"
    (tmp_path / "test_it.py").write_text(test)
    done = run_pytest(tmp_path, "--junit-xml=report.xml")

    assert done.returncode == 0, done.stdout
    report = (tmp_path / "report.xml").read_text()
    assert ('name="needs" value="[\'process\']"' in report.replace("&#x27;", "'")) is is_certain
