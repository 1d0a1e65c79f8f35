"""The machine lane: boot once, run the tests and the commands of dranet inside, bring the results out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import dranet
from testbed.containerd.fetch import ContainerdUnavailable, fetch_newer_toolchain, fetch_toolchain
from testbed.machine.fetch import Cause, MachineUnavailable, Packages, default_cache_dir, fetch_packages
from testbed.machine.guest import CONTAINERDS, EXCHANGE
from testbed.machine.hardware import MACHINE
from testbed.machine.image import make_image
from testbed.machine.machine import Job, Machine, Outcome

TESTS = (
    "tests/machine/test_inventory.py",  # first: the machine as it was made
    "tests/machine/test_recording.py",
    # The software RDMA device ends with the first move of its NIC.
    "tests/machine/test_rdma.py",
    "tests/machine/test_health.py",
    "tests/machine/test_metrics.py",
    "tests/machine/test_doctor.py",
    "tests/kernel/test_parameter_effects.py::test_management_devices_are_the_files_that_the_kernel_has",
    "tests/machine/test_uplink.py",
    "tests/machine/test_virtual_functions.py",
    "tests/machine/test_pinned_links.py",
    "tests/machine/test_moves.py",
    "tests/machine/test_metadata.py",
    "tests/machine/test_changes.py",
    "tests/machine/test_attach.py",
    "tests/machine/test_ethtool.py",
    "tests/machine/test_locality.py",
    "tests/machine/test_restore.py",
    "tests/machine/test_traffic.py",
    "tests/machine/test_slow.py",
    "tests/machine/test_rdma_moves.py",
    "tests/kernel/test_attach.py::test_round_trip_gives_the_host_back_exactly_what_it_had",
    "tests/kernel/test_ethtool.py::test_speed_duplex_and_queues_are_those_that_ethtool_prints",
    "tests/kernel/test_ethtool.py::test_the_driver_is_the_one_that_ethtool_prints",
    "tests/kernel/test_programs.py::test_the_filters_are_those_that_tc_prints",
    "tests/kernel/test_programs.py::test_tcx_programs_of_both_hooks_are_named_sorted_and_once",
    "tests/kernel/test_rdmanl.py::test_the_mode_agrees_with_the_rdma_tool",
    "tests/kernel/test_scan.py::test_lower_links_and_foreign_namespaces_are_told_apart",
    "tests/kernel/test_parameter_effects.py::test_a_stock_kernel_has_what_the_parameter_says",
    "tests/examples/test_run.py::test_the_example_with_an_ipvlan",
)
"""pytest's arguments: the machine's own tests, and kernel tests worth repeating on a stock kernel."""

_PARTS = ("dranet", "testbed", "tools", "tests", "deploy", "examples", "pyproject.toml")
"""Parts of the checkout that the guest sees."""

_COLLECT_TIMEOUT_SECONDS = 120.0
_TEST_TIMEOUT_SECONDS = 300
"""Time limit of one test in the guest, against a hang: its time runs on while the emulated processors wait
for the host's."""

REPOSITORY = Path(dranet.__file__).parent.parent
_CONTAINERD_CACHE = REPOSITORY / ".cache" / "containerd"
"""As for the tests on this machine; the guest sees it at the same place."""

JUNIT, DEVICES, CAPTURE = "junit.xml", "devices.json", "capture.json"
"""What a whole run leaves in the exchange folder."""


@dataclass(frozen=True, slots=True)
class Options:
    """``script``: shell text instead of the tests. ``keep``: a folder that gets everything of the run."""

    tests: Sequence[str] = TESTS
    script: str = ""
    capture: Path | None = None
    keep: Path | None = None
    timeout_seconds: float = 3600.0


def run_lane(options: Options, show: Callable[[str], None]) -> Outcome:
    """One run. Blocks; ``show`` takes progress and the guest's output as they come.

    Raises:
        MachineUnavailable: there is no such machine here.
        MachineDied: the guest crashed or hung.
    """
    report = _Reporter(show)
    packages = fetch_packages(default_cache_dir(), report)
    image = make_image(packages, report)
    environment = _environment(_fetch_containerds(report))
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dranet-machine-")))
        exchange = work / "exchange"
        exchange.mkdir()
        stack.callback(_keep, exchange, options)
        report("freezing the checkout")
        checkout = freeze_checkout(work / "checkout", options.tests)
        report(f"booting Linux {packages.kernel}")
        script = options.script or _test_script(options.tests, _describe(packages))
        job = Job(script, checkout, environment, options.timeout_seconds)
        outcome = Machine(packages, image, MACHINE).run(job, exchange, show)
        report(f"the machine is off; exit status {outcome.status}; {_stages(outcome)}")
        return outcome


def _fetch_containerds(report: Callable[[str], None]) -> list[Path]:
    """The folders of those that tests inside run; without one these are skipped by name."""
    folders = []
    for fetch in (fetch_toolchain, fetch_newer_toolchain):
        try:
            folders.append(fetch(_CONTAINERD_CACHE, report).folder)
        except ContainerdUnavailable as unavailable:
            report(f"no containerd for the machine: {unavailable}")
    return folders


class _Reporter:
    """Progress lines with the seconds since the start."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        self._show(f"[{time.monotonic() - self._started:5.1f} s] {line}\n")


def _stages(outcome: Outcome) -> str:
    return ", ".join(f"{stage} at {seconds:.0f} s" for seconds, stage in outcome.marks)


def _environment(containerds: Sequence[Path]) -> dict[str, str]:
    """The same interpreter and virtualenv as ours; the tools of the guest's root come after it."""
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    return {
        "PATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        CONTAINERDS: os.pathsep.join(map(str, containerds)),
    }


def _describe(packages: Packages) -> str:
    """The origin that the capture names."""
    qemu = packages.versions["qemu-system-x86"].rpartition(":")[2].partition("+")[0]
    return (
        f"captured in the virtual machine of make test-machine: Linux {packages.kernel}, QEMU {qemu}; "
        "its GPUs are display adapters, its mlx5_* are stand-ins without a data path; redacted"
    )


def _test_script(tests: Sequence[str], source: str) -> str:
    """First what an operator would run, while the machine is as it was made; then pytest."""
    pytest = (
        "python -m pytest -vv -p no:cacheprovider "
        f"--timeout={_TEST_TIMEOUT_SECONDS} --junitxml={EXCHANGE}/{JUNIT} {shlex.join(tests)}"
    )
    dranet = "python -m dranet.cli.main"
    lines = (
        "status=0",
        f"{dranet} capture --redact --source {shlex.quote(source)} > {EXCHANGE}/{CAPTURE} || status=1",
        f"{dranet} devices -o json --all > {EXCHANGE}/{DEVICES} || status=1",
        f"{pytest} || status=1",
        "exit $status",
    )
    return "\n".join(lines)


def _keep(exchange: Path, options: Options) -> None:
    if options.keep is not None:
        shutil.copytree(exchange, options.keep, dirs_exist_ok=True)
    capture = exchange / CAPTURE
    if options.capture is not None and capture.exists():
        shutil.copy(capture, options.capture)


def freeze_checkout(target: Path, tests: Sequence[str]) -> Path:
    """Copy what the tests need to ``target`` and compile it; returns ``target``.

    Raises:
        MachineUnavailable: dranet was installed without its tests.
    """
    if not (REPOSITORY / "tests" / "machine").is_dir():
        raise MachineUnavailable(
            Cause.NO_CHECKOUT, f"{REPOSITORY} has no tests/machine; run it from a checkout"
        )
    target.mkdir()
    for name in _PARTS:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    _compile(target, "-m", "compileall", "-q", "-j", "0", "dranet", "testbed", "tests")
    # What does not collect here is reported by the guest's pytest, with its reason.
    _compile(target, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests)
    return target


def _compile(folder: Path, *arguments: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_COLLECT_TIMEOUT_SECONDS,
    )
