"""Every shipped scenario on every runtime that this machine can run, and how the commands end.

The counterpart of the driver is the testbed, over sockets; with ``containerd`` it is a real containerd and
runc. Each scenario runs as a user would run it: through the command line, in a private tree of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import dranet
from dranet.testbed.scenario.scenario import RUNTIMES, known_scenarios, load_scenario

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

REPOSITORY = Path(dranet.__file__).parent.parent
CANNOT_RUN_HERE = 3
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("DRANET_")} | {
    "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
}


def dranet_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dranet", *arguments]


def run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=ENVIRONMENT | environment, cwd="/"
    )
    if done.returncode == CANNOT_RUN_HERE:
        pytest.skip(done.stderr.strip())
    return done


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", [path.stem for path in known_scenarios()])
def test_scenario(name: str, runtime: str) -> None:
    scenario = load_scenario(name)
    if runtime not in scenario.runtimes:
        pytest.skip(f"not on {runtime}: {scenario.why_not_everywhere}")
    done = run(dranet_command("testbed", "run", "--runtime", runtime, name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every step was as expected" in done.stdout


class TestDemo:
    def test_it_shows_inventory_devices_interfaces_and_traffic_in_under_a_minute(self) -> None:
        begin = time.monotonic()
        done = run(dranet_command("demo"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert time.monotonic() - begin < 60
        for text in (
            "NUMA 0  pci0000:00",
            "not offered: is the node's uplink",
            "worker-0: gpu-0000-1b-00-0",
            "PIX",
            "net1: up mtu 9000",
            "Gbit/s",
            "round trip of 64 bytes",
            "equal those before",
            "seconds",
        ):
            assert text in done.stdout, text

    def test_an_ordinary_user_can_run_it(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("the other tests run as an ordinary user already")
        python, path = find_interpreter_for_others()
        done = run([*AS_NOBODY, python, "-B", "-m", "dranet", "demo"], PYTHONPATH=path)
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_however_it_ends_nothing_is_left(self, number: signal.Signals) -> None:
        with subprocess.Popen(
            dranet_command("demo"), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as demo:
            assert demo.stdout is not None
            while "From rail to rail" not in (line := demo.stdout.readline()):
                assert line, "the demo ended early"
            tree = descendants(demo.pid)
            assert any("dranet run" in command for command in tree.values()), tree
            demo.send_signal(number)
            demo.wait(20)
        assert demo.returncode == (-number if number == signal.SIGKILL else 128 + number)
        wait_ended(tree)
        assert "dranet-testbed" not in Path("/proc/self/mountinfo").read_text()
        assert not Path("/run/dranet-testbed").exists()


class TestFailures:
    def test_a_step_that_is_not_as_expected_fails_the_command_and_shows_the_drivers_log(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "wrong.yaml"
        path.write_text(
            "name: wrong\ndescription: d\nhardware: two-nic\nsteps:\n"
            "  - start_driver: {}\n  - expect_slices: {devices: 99, within: 0.5}\n  - kill_driver: {}\n"
        )
        done = run(dranet_command("testbed", "run", str(path)))
        assert done.returncode == 1, done.stdout + done.stderr
        assert "4 devices are published, not 99" in done.stdout
        assert "FAILED at: expect slices" in done.stdout
        assert "the driver's last words" in done.stdout
        assert "kill driver" not in done.stdout

    def test_a_driver_that_ends_at_start_is_told_with_its_words(self, tmp_path: Path) -> None:
        path = tmp_path / "early.yaml"
        path.write_text(
            "name: early\ndescription: d\nhardware: two-nic\nsteps:\n"
            "  - kill_driver: {}\n  - start_driver: {}\n"
        )
        done = run(dranet_command("testbed", "run", str(path)))
        assert done.returncode == 1
        assert "the driver does not run" in done.stdout

    def test_a_bad_file_is_refused_with_its_field_path_and_exit_code_2(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.yaml"
        path.write_text("name: bad\ndescription: d\nhardware: two-nic\nsteps: [{dance: {}}]\n")
        done = run(dranet_command("testbed", "run", str(path)))
        assert done.returncode == 2
        assert "steps[0].dance: Extra inputs are not permitted" in done.stderr

    def test_an_unknown_scenario_says_which_exist(self) -> None:
        done = run(dranet_command("testbed", "run", "no-such"))
        assert done.returncode == 2
        assert "aligned-pods" in done.stderr

    def test_the_list_names_scenarios_and_hardware(self) -> None:
        done = run(dranet_command("testbed", "list"))
        assert "eight-nics" in done.stdout
        assert "dgx-h100" in done.stdout


AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def find_interpreter_for_others() -> tuple[str, str]:
    """A Python that an ordinary user may start, with our packages: this one, or the system's."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is missing")
    packages = f"{REPOSITORY}:{sysconfig.get_path('purelib')}"
    probe = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import grpc, pydantic']))"
    )
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [*AS_NOBODY, python, "-B", "-c", probe]
        if shutil.which(python) and run(command, PYTHONPATH=packages).returncode == 0:
            return python, packages
    pytest.skip("no Python interpreter here can be started by another user")


def descendants(pid: int) -> dict[int, str]:
    """Command lines of all processes below ``pid``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended while we looked
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), ()):
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            queue.append(child)
    return found


def wait_ended(processes: dict[int, str]) -> None:
    deadline = time.monotonic() + 10
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, [processes[pid] for pid in left]
        time.sleep(0.02)
