"""The private tree against the running kernel: it starts, reports, forwards signals and leaves nothing.

Each test runs a small program in an interpreter of its own, because ``run_isolated`` forks.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import dranet
from testbed.cluster import Testbed
from testbed.isolation import (
    Confinement,
    IsolationRefused,
    explain_refusal,
    read_confinement,
    require_isolation,
)
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in

REPOSITORY = Path(dranet.__file__).parent.parent

UNCONFINED = Confinement(
    user_id=1000,
    has_user_namespaces=True,
    unprivileged_userns_clone=None,
    max_user_namespaces=1000,
    apparmor_restricts=None,
    seccomp_mode=0,
    capabilities=0,
)

LONG_RUNNING = """
import os, subprocess, sys, time
def main():
    child = subprocess.Popen(["sleep", "1000"])
    print(os.readlink("/proc/self/ns/net"), flush=True)
    {body}
    child.wait()
    return 0
"""


AS_IN_A_TERMINAL = ("env", "--default-signal=HUP,INT")
"""A test run started in the background ignores these signals, and so would everything it starts."""


def program(body: str) -> str:
    return f"import sys\nfrom testbed.isolation import run_isolated\n{body}\nsys.exit(run_isolated(main))"


def command(body: str, *, as_user: int | None = None) -> list[str]:
    python = [sys.executable, "-B", "-c", program(body)]
    if as_user is None:
        return [*AS_IN_A_TERMINAL, *python]
    return ["setpriv", f"--reuid={as_user}", f"--regid={as_user}", "--clear-groups", *python]


def run(body: str, *, as_user: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(body, as_user=as_user),
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env=dict(os.environ, PYTHONPATH=str(REPOSITORY)),
    )


@pytest.fixture
def long_running() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(body: str = "pass") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(LONG_RUNNING.format(body=body)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, PYTHONPATH=str(REPOSITORY)),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_namespace_is_empty(netns: str) -> None:
    deadline = time.monotonic() + 30
    while holders := processes_in(netns):
        assert time.monotonic() < deadline, f"still in {netns}: {holders}"
        os.sched_yield()


def processes_in(netns: str) -> dict[str, str]:
    """Command by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str((entry / "ns/net").readlink()) == netns:
                found[entry.name] = (entry / "comm").read_text().strip()
        except OSError:
            continue  # it ended while we looked
    return found


@contextmanager
def announced_namespace(process: subprocess.Popen[str]) -> Iterator[str]:
    """Within the block its number stays its own: of one that is gone, the kernel gives it to the next, which
    may be that of a test beside us."""
    assert process.stdout is not None
    netns = process.stdout.readline().strip()
    assert netns.startswith("net:["), "the isolated program did not start"
    holder = next(iter(processes_in(netns)))
    with Path("/proc", holder, "ns/net").open("rb"):
        yield netns


def ordinary_user() -> int | None:
    """A uid to drop to when the tests run as root; ``None`` when they are an ordinary user's already."""
    if os.geteuid() != 0:
        return None
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is missing")
    probe = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        sys.executable,
        "-c",
        "import dranet",
    ]
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY))
    if subprocess.run(probe, env=environment, capture_output=True, cwd="/").returncode != 0:
        pytest.skip("the interpreter or the checkout is not readable by other users")
    return 65534


@pytest.mark.kernel
class TestPrivateTree:
    def test_it_returns_the_programs_exit_code(self) -> None:
        assert run("main = lambda: 7").returncode == 7

    def test_it_reports_the_signal_that_ended_the_program(self) -> None:
        assert run("import os, signal\nmain = lambda: os.kill(os.getpid(), signal.SIGKILL)").returncode == 137

    def test_an_exception_is_printed_and_exits_1(self) -> None:
        result = run("def main():\n    raise ValueError('boom')")
        assert result.returncode == 1
        assert "boom" in result.stderr

    def test_the_program_sees_only_its_own_processes_links_and_mounts(self) -> None:
        result = run(
            "import os, socket\n"
            "def main():\n"
            "    print(os.getpid(), socket.if_nameindex(), os.listdir('/run'), socket.gethostname())\n"
            "    print([p for p in os.listdir('/proc') if p.isdigit()])\n"
            "    return 0"
        )
        assert result.stdout.splitlines() == [
            "2 [(1, 'lo')] ['dranet-testbed'] testbed-node",
            "['1', '2']",
        ], result.stderr

    def test_a_mount_of_the_tree_is_not_seen_outside(self) -> None:
        result = run(
            "import subprocess\n"
            "main = lambda: subprocess.call(['sh', '-c', 'ip netns add inside && test -e /run/netns/inside'])"
        )
        assert result.returncode == 0, result.stderr
        assert "/run/netns/inside" not in Path("/proc/self/mountinfo").read_text()

    def test_an_ordinary_user_becomes_root_of_a_user_namespace(self) -> None:
        body = (
            "import os, subprocess\n"
            "def main():\n"
            "    print(os.getuid(), flush=True)\n"
            "    return subprocess.call(['ip', 'link', 'add', 'v0', 'type', 'veth', 'peer', 'name', 'v1'])"
        )
        user = ordinary_user()
        result = run(body, as_user=user)
        assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


@pytest.mark.kernel
class TestEnding:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_reaches_the_program_and_takes_the_tree_along(
        self, number: signal.Signals, long_running: Callable[[str], subprocess.Popen[str]]
    ) -> None:
        process = long_running("pass")
        with announced_namespace(process) as netns:
            process.send_signal(number)
            assert process.wait(30) == 128 + number
            wait_namespace_is_empty(netns)

    def test_killing_the_caller_takes_the_tree_along(
        self, long_running: Callable[[str], subprocess.Popen[str]]
    ) -> None:
        process = long_running("pass")
        with announced_namespace(process) as netns:
            process.kill()
            process.wait(30)
            wait_namespace_is_empty(netns)

    def test_a_second_interrupt_ends_a_program_that_ignores_the_first(
        self, long_running: Callable[[str], subprocess.Popen[str]]
    ) -> None:
        process = long_running(
            "import signal; signal.signal(signal.SIGINT, lambda *_: print('ignored', flush=True)); "
            "print('ready', flush=True)"
        )
        with announced_namespace(process) as netns:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "ignored\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 137
            wait_namespace_is_empty(netns)

    def test_a_process_left_behind_by_the_program_ends_with_it(
        self, long_running: Callable[[str], subprocess.Popen[str]]
    ) -> None:
        process = long_running(
            "subprocess.Popen(['sh', '-c', 'sleep 1000 & sleep 1000'], stdout=subprocess.DEVNULL); "
            "sys.stdin.readline(); return 0"
        )
        with announced_namespace(process) as netns:
            assert process.stdin is not None
            process.stdin.write("end\n")
            process.stdin.flush()
            assert process.wait(30) == 0
            wait_namespace_is_empty(netns)


class TestRefusal:
    @pytest.mark.parametrize(
        ("state", "number", "cause", "hint"),
        [
            (
                replace(UNCONFINED, max_user_namespaces=0),
                errno.ENOSPC,
                "max_user_namespaces is 0",
                "sysctl -w user",
            ),
            (
                replace(UNCONFINED, unprivileged_userns_clone=0),
                errno.EPERM,
                "userns_clone is 0",
                "=1, or run it as",
            ),
            (
                replace(UNCONFINED, apparmor_restricts=1),
                errno.EACCES,
                "apparmor_restrict",
                "sysctl -w kernel.app",
            ),
            (replace(UNCONFINED, has_user_namespaces=False), errno.EINVAL, "no user namespaces", "as root"),
            (replace(UNCONFINED, seccomp_mode=2), errno.EPERM, "seccomp filter", "outside the container"),
            (UNCONFINED, errno.ENOSPC, "a limit on namespaces", "/proc/sys/user"),
            (UNCONFINED, errno.EPERM, "security module", "as root"),
        ],
    )
    def test_it_names_what_is_missing_and_the_mend(
        self, state: Confinement, number: int, cause: str, hint: str
    ) -> None:
        refusal = explain_refusal("unshare", number, state)
        assert cause in refusal.message
        assert hint in refusal.hint
        assert refusal.errno == number

    def test_a_masked_proc_is_told_apart(self) -> None:
        refusal = explain_refusal("mount proc on /proc", errno.EPERM, UNCONFINED)
        assert "parts of /proc are hidden" in refusal.message

    @pytest.mark.process
    def test_an_interpreter_that_the_tree_would_cover_is_told(self) -> None:
        result = run("sys.prefix = '/run/python'\nmain = lambda: 0")
        assert result.returncode == 1
        assert "/run/python is below /run" in result.stderr

    def test_the_state_is_read_from_the_running_kernel(self) -> None:
        state = read_confinement()
        assert state.user_id == os.geteuid()
        assert state.capabilities >= 0

    def test_absent_settings_are_none(self, tmp_path: Path) -> None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self/status").write_text("Name:\tx\nCapEff:\t0000000000201000\nSeccomp:\t2\n")
        state = read_confinement(tmp_path)
        assert (state.max_user_namespaces, state.apparmor_restricts) == (None, None)
        assert state.seccomp_mode == 2
        assert not state.needs_user_namespace

    @pytest.mark.kernel
    def test_a_kernel_that_refuses_raises_in_the_caller(self) -> None:
        """An ordinary user's tree forbids itself network namespaces (the limit is its own), then tries."""
        body = (
            "import os, pathlib\n"
            "from testbed.isolation import IsolationRefused\n"
            "def inner():\n"
            "    return 0\n"
            "def main():\n"
            "    pathlib.Path('/proc/sys/user/max_net_namespaces').write_text('0')\n"
            "    try:\n"
            "        run_isolated(inner)\n"
            "    except IsolationRefused as refused:\n"
            "        print(refused)\n"
            "        return 3\n"
            "    return 0"
        )
        result = run(body, as_user=ordinary_user())
        assert result.returncode == 3, result.stderr
        assert "a limit on namespaces is reached" in result.stdout


@pytest.mark.process
def test_what_changes_links_refuses_outside_of_the_tree_and_not_within() -> None:
    with pytest.raises(IsolationRefused, match="not in a private tree"):
        require_isolation()
    inside = run(
        "from testbed.isolation import require_isolation\ndef main():\n    require_isolation()\n    return 7"
    )
    assert inside.returncode == 7, inside.stderr


async def test_a_testbed_outside_of_the_tree_makes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "testbed"
    with pytest.raises(IsolationRefused):
        await Testbed(load_hardware("two-nic"), stand_in, folder).__aenter__()
    assert not folder.exists()
