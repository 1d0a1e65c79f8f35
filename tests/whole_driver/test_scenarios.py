"""Every shipped scenario on every runtime that this machine can run, and how the commands end.

The counterpart of the driver is the testbed, over sockets; with ``containerd`` it is a real containerd and
runc. Each scenario runs as a user would run it: through the command line, in a private tree of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import dranet
from testbed.scenario.scenario import RUNTIMES, known_scenarios, load_scenario

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

REPOSITORY = Path(dranet.__file__).parent.parent
CANNOT_RUN_HERE = 3
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("DRANET_")} | {
    "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
}


AS_IN_A_TERMINAL = ("env", "--default-signal=HUP,INT")
"""A test run started in the background ignores these signals, and so would everything it starts."""


def dranet_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dranet", *arguments]


def run_without_skip(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=ENVIRONMENT | environment, cwd="/"
    )


def run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    done = run_without_skip(command, **environment)
    if done.returncode == CANNOT_RUN_HERE:
        pytest.skip(done.stderr.strip())
    return done


def without_numbers(line: str) -> str:
    """Nor the spaces that align them."""
    return " ".join(re.sub(r"\d[\d.,]*", "#", line).split())


def assert_prints(shown: Sequence[str], printed: str) -> None:
    """The lines that a page shows, in order, whatever the numbers of that run were; ``[...]`` stands for
    others."""
    lines = map(without_numbers, printed.splitlines())
    for line in shown:
        assert line.strip() == "[...]" or without_numbers(line) in lines, line


def shown_of(scenario: str) -> list[str]:
    """What the pages show of it, in blocks of the command that runs it."""
    block = re.compile(
        rf"^```\n\$ dranet testbed run {re.escape(scenario)}\n(.*?)^```$", re.MULTILINE | re.DOTALL
    )
    pages = sorted((REPOSITORY / "docs").rglob("*.md"))
    return [line for page in pages for body in block.findall(page.read_text()) for line in body.splitlines()]


@pytest.mark.parametrize(
    "runtime", [pytest.param(n, marks=[pytest.mark.runtime] if n != "stand-in" else []) for n in RUNTIMES]
)
@pytest.mark.parametrize("name", [path.stem for path in known_scenarios()])
def test_scenario(name: str, runtime: str) -> None:
    scenario = load_scenario(name)
    if runtime not in scenario.runtimes:
        pytest.skip(f"not on {runtime}: {scenario.why_not_everywhere}")
    done = run(dranet_command("testbed", "run", "--runtime", runtime, name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every step was as expected" in done.stdout
    if runtime == "stand-in":
        assert not done.stderr  # a killed driver is the story, not a warning
        assert_prints(shown_of(name), done.stdout)


def test_the_page_about_verdicts_shows_a_scenario() -> None:
    assert len(shown_of("wrong-pairing")) > 4


@pytest.fixture(scope="module")
def demo() -> str:
    """What the demo prints."""
    done = run(dranet_command("demo"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class TestDemo:
    def test_it_shows_inventory_devices_interfaces_and_traffic(self, demo: str) -> None:
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
            assert text in demo, text

    def test_the_readme_shows_what_it_prints(self, demo: str) -> None:
        readme = (REPOSITORY / "README.md").read_text()
        shown = readme.partition("<!-- demo output begins -->\n```text\n")[2]
        lines = shown.partition("\n```\n<!-- demo output ends -->")[0].splitlines()
        assert len(lines) > 10
        assert_prints(lines, demo)

    def test_a_reader_that_went_away_ends_it_quietly(self) -> None:
        """``dranet demo | head``."""
        command = [*AS_IN_A_TERMINAL, *dranet_command("demo")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as demo:
            assert demo.stdout is not None
            assert demo.stderr is not None
            assert demo.stdout.readline().startswith("aligned-pods: ")
            demo.stdout.close()
            assert (demo.stderr.read(), demo.wait(240)) == ("", 128 + signal.SIGPIPE)

    def test_an_ordinary_user_can_run_it(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("the other tests run as an ordinary user already")
        python, path = find_interpreter_for_others()
        done = run([*AS_NOBODY, python, "-B", "-m", "dranet", "demo"], PYTHONPATH=path)
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_however_it_ends_nothing_is_left(self, number: signal.Signals) -> None:
        with subprocess.Popen(
            [*AS_IN_A_TERMINAL, *dranet_command("demo")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        ) as demo:
            assert demo.stdout is not None
            assert demo.stderr is not None
            while "From rail to rail" not in (line := demo.stdout.readline()):
                assert line, "the demo ended early"
            tree = descendants(demo.pid)
            assert any("dranet run" in command for command in tree.values()), tree
            demo.send_signal(number)
            demo.wait(60)
            said = demo.stderr.read()
        assert (said == "interrupted; the testbed is gone\n") == (number == signal.SIGINT), said
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
            "  - start_driver: {}\n  - expect_slices: {devices: 99, within: 2}\n  - kill_driver: {}\n"
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
        assert "steps[0].dance: unknown field; known are summary, apply, " in done.stderr

    @pytest.mark.parametrize("hardware", ["no-such", "./no-such.yaml"])
    def test_unknown_hardware_is_refused_in_one_line_before_anything_starts(
        self, tmp_path: Path, hardware: str
    ) -> None:
        path = tmp_path / "lost.yaml"
        path.write_text(f"name: lost\ndescription: d\nhardware: {hardware}\nsteps: [start_driver: {{}}]\n")
        done = run(dranet_command("testbed", "run", str(path)))
        assert done.returncode == 2
        assert done.stderr.startswith("dranet: scenario lost: hardware: ")
        assert "dgx-h100, gb200, two-nic" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not done.stdout

    @pytest.mark.parametrize(
        "step",
        [
            "wait_pod_running: {pods: [ghost]}",
            "wait_pod_failing: {pod: ghost, texts: [x]}",
            "delete_pods: {pods: [ghost]}",
            "expect_interfaces: {pod: ghost, interfaces: [{name: net1}]}",
            "expect_claim_condition: {pod: ghost, type: Ready, status: 'True'}",
        ],
    )
    def test_a_pod_that_was_never_applied_fails_its_step(self, tmp_path: Path, step: str) -> None:
        path = tmp_path / "ghost.yaml"
        path.write_text(
            "name: ghost\ndescription: d\nhardware: two-nic\nsteps:\n"
            "  - apply: {objects: [{apiVersion: v1, kind: Pod, metadata: {name: real},"
            " spec: {containers: [{name: a, image: b}]}}]}\n"
            f"  - {step}\n"
        )
        done = run(dranet_command("testbed", "run", str(path)))
        assert done.returncode == 1
        assert "pod ghost was not applied; known are real\n" in done.stdout
        assert "Traceback" not in done.stderr

    def test_an_unknown_scenario_says_which_exist(self) -> None:
        done = run(dranet_command("testbed", "run", "no-such"))
        assert done.returncode == 2
        assert "aligned-pods" in done.stderr

    def test_the_list_names_scenarios_and_hardware(self) -> None:
        done = run(dranet_command("testbed", "list"))
        assert "eight-nics" in done.stdout
        assert "dgx-h100" in done.stdout


class TestWhatThisMachineLacks:
    def test_without_iproute2_nothing_is_begun(self, tmp_path: Path) -> None:
        done = run_without_skip(dranet_command("demo"), PATH=str(tmp_path))
        assert done.returncode == CANNOT_RUN_HERE
        assert done.stderr == "dranet: ip, tc, nsenter are not installed (install iproute2 and util-linux)\n"
        assert not done.stdout

    def test_an_ordinary_user_is_told_at_once_that_containerd_needs_root(self) -> None:
        python, path = find_interpreter_for_others()
        command = [python, "-B", "-m", "dranet", "demo", "--runtime", "containerd"]
        before = AS_NOBODY if os.geteuid() == 0 else ()
        home = {"HOME": "/nonexistent", "XDG_CACHE_HOME": ""}
        done = run_without_skip([*before, *command], PYTHONPATH=path, **home)
        assert done.returncode == CANNOT_RUN_HERE
        assert done.stderr.startswith("dranet: NotRoot: a real containerd needs root")
        assert done.stderr.count("\n") == 1

    @pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is refused earlier")
    def test_a_cache_that_cannot_be_made_is_named_with_its_mend(self) -> None:
        done = run_without_skip(dranet_command("demo", "--runtime", "containerd"), XDG_CACHE_HOME="/proc")
        assert done.returncode == CANNOT_RUN_HERE
        assert "Traceback" not in done.stderr
        if shutil.which("dpkg-deb"):
            assert "/proc/dranet/containerd" in done.stderr
            assert "XDG_CACHE_HOME" in done.stderr


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
            queue.append(child)
            with suppress(OSError):  # it ended while we looked
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def wait_ended(processes: dict[int, str]) -> None:
    deadline = time.monotonic() + 30
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, [processes[pid] for pid in left]
        time.sleep(0.02)
