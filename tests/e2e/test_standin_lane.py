"""The suite itself, on the lane that every machine has: stand-ins, reached by a kubeconfig alone.

Each part runs as a user would run it, through the command line; what it says and its exit code are judged.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from e2e.basics import NAME
from e2e.table import Reach, find_blocker
from testbed.scenario.scenario import known_scenarios, load_scenario
from tests.e2e.running import AS_IN_A_TERMINAL, REPOSITORY, without_own_variables

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

LANE = Reach(has_hands=True, has_layout=True)
ALL = [path.stem for path in known_scenarios()]
RUN = [NAME, *(name for name in ALL if not find_blocker(load_scenario(name), LANE))]


def run_e2e(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "e2e", *arguments],
        cwd=REPOSITORY,
        env=without_own_variables(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode == 3 and done.stderr:
        pytest.skip(done.stderr.strip())
    return done


@pytest.mark.parametrize("name", RUN)
def test_a_part_of_the_suite_passes_on_the_stand_in(name: str) -> None:
    done = run_e2e("--lane", "stand-in", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name} on stand-in: every step was as expected" in done.stdout
    assert done.stdout.endswith("1 passed, 0 failed, 0 skipped\n")


def test_what_cannot_be_walked_is_skipped_by_name_with_the_step_that_needs_more() -> None:
    done = run_e2e("--lane", "stand-in", *(name for name in ALL if name not in RUN))
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.endswith(f"0 passed, 0 failed, {len(ALL) + 1 - len(RUN)} skipped\n")
    for name in set(ALL) - set(RUN):
        (line,) = (line for line in done.stdout.splitlines() if line.split()[:1] == [name])
        assert "skipped" in line
        assert find_blocker(load_scenario(name), LANE) in line


def test_an_unknown_scenario_is_refused_with_the_names_that_there_are() -> None:
    done = run_e2e("--lane", "stand-in", "nonsense")
    assert done.returncode == 1
    assert "aligned-pods" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_the_middle_ends_it_in_order_and_soon(number: signal.Signals, code: int) -> None:
    command = [*AS_IN_A_TERMINAL, sys.executable, "-u", "-m", "e2e", "--lane", "stand-in", NAME]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not any(b"The interface inside the pod" in line for line in process.stdout):
            pytest.skip("it did not come so far")
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors.decode()
    assert b"Traceback" not in errors
    assert b"not everything was taken away" not in errors
