"""Two pytest processes side by side say what one would have said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"CI", "BUILD_NUMBER"}}
"""Where pytest finds one of those it tells each failure at full length a second time."""

MIXED = """
import os, pytest
def test_fine(request): request.node.user_properties.append(("pid", os.getpid()))
def test_wrong(): assert [1, 2] == [1, {number}]
def test_not_here(): pytest.skip("no such machine")
@pytest.mark.parametrize("n", range(3))
def test_each(n): pass
"""
AT_THE_END = """
import os, pytest
from tests.beside import find_told
@pytest.mark.at_the_end
def test_both_have_run(request):
    pids = set(find_told(request.config, "pid"))
    assert len(pids) == 2 and os.getpid() in pids
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = at_the_end: last\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**ENVIRONMENT, "PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def read_results(output: str) -> tuple[list[str], str]:
    """The lines of failures and skips, and the counts."""
    counts = re.findall(r"=+ (.*) in [\d.]+s", output)
    return sorted(re.findall(r"^(?:FAILED|SKIPPED).*", output, re.MULTILINE)), counts[-1]


def test_failures_skips_and_counts_are_those_of_one_process(tmp_path: Path) -> None:
    for number in range(3, 9):
        (tmp_path / f"test_{number}.py").write_text(MIXED.format(number=number))
    alone = run_pytest(tmp_path, "-rfs")
    beside = run_pytest(tmp_path, "-rfs", "-p", "tests.beside")
    assert alone.returncode == beside.returncode == 1
    assert read_results(beside.stdout) == read_results(alone.stdout)
    assert beside.stdout.count("At index 1 diff") == 6


def test_what_looks_at_the_whole_run_comes_last_and_sees_both(tmp_path: Path) -> None:
    (tmp_path / "test_0_end.py").write_text(AT_THE_END)
    for number in range(4):
        (tmp_path / f"test_{number + 1}.py").write_text(MIXED.format(number=2))
    done = run_pytest(tmp_path, "-p", "tests.beside")
    assert done.returncode == 0, done.stdout
    files = [line for line in done.stdout.splitlines() if line.startswith("test_")]
    assert files[-1].startswith("test_0_end.py .")


def test_the_second_process_does_not_die_unnoticed(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(MIXED.format(number=2))
    (tmp_path / "test_9.py").write_text("import os\ndef test_it(): os._exit(9)\n")
    done = run_pytest(tmp_path, "-p", "tests.beside")
    assert done.returncode == 3
    assert "the second pytest process ended in ['test_9.py::test_it']" in done.stdout


def test_the_first_failure_ends_both_where_one_is_enough(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(MIXED.format(number=2))
    (tmp_path / "test_0.py").write_text("def test_it(): assert False\n")
    done = run_pytest(tmp_path, "-x", "-p", "tests.beside")
    assert done.returncode == 1
    assert "stopping after 1 failures" in done.stdout


def test_a_failure_in_the_second_process_ends_both_where_one_is_enough(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text("def test_it(): pass\n")
    (tmp_path / "test_9.py").write_text("def test_it(): assert False\ndef test_later(): pass\n")
    done = run_pytest(tmp_path, "-x", "-p", "tests.beside")
    assert done.returncode == 1, done.stdout
    assert "FAILED test_9.py::test_it" in done.stdout
    assert "stopping after 1 failures" in done.stdout


def test_where_the_first_ends_the_second_takes_down_what_it_has_set_up(tmp_path: Path) -> None:
    (tmp_path / "test_0.py").write_text(
        "import os, time, pathlib\n"
        "def test_it():\n"
        "    while not pathlib.Path('up').exists(): time.sleep(0.01)\n"
        "    assert False\n"
    )
    (tmp_path / "test_8.py").write_text("def test_it(): pass\n")
    (tmp_path / "test_9.py").write_text(
        "import pathlib, pytest, time\n"
        "@pytest.fixture(scope='module')\n"
        "def up(): pathlib.Path('up').touch(); yield; pathlib.Path('up').unlink()\n"
        "@pytest.mark.parametrize('n', range(200))\n"
        "def test_it(up, n): time.sleep(0.05)\n"
    )
    done = run_pytest(tmp_path, "-x", "-p", "tests.beside")
    assert done.returncode == 1
    assert not (tmp_path / "up").exists()
