"""Run one job in the machine: script in, results out, nothing left behind.

Starts one QEMU and ends only that; it dies with us, however we end. Everything of a run is in the exchange
folder, which is the caller's; the guest has no disk and no network.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.machine import guest, qemu
from testbed.machine.fetch import Cause, MachineUnavailable, Packages
from testbed.machine.hardware import Hardware
from testbed.machine.image import Image

_POLL_SECONDS = 0.1
_MAX_CONSOLE_LINES_SHOWN = 15


class MachineDied(Exception):
    """The guest handed back no exit status: it crashed, hung or could not boot. The text ends its console."""


@dataclass(frozen=True, slots=True)
class Job:
    """Shell text to run in ``folder`` (a path of the host) with further environment variables."""

    script: str
    folder: Path
    environment: Mapping[str, str]
    timeout_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status`` is the job's exit status; ``marks`` are (guest's uptime in seconds, stage)."""

    status: int
    seconds: float
    marks: tuple[tuple[float, str], ...]


class Machine:
    """A machine that can be booted again and again, one boot a job."""

    def __init__(self, packages: Packages, image: Image, hardware: Hardware) -> None:
        self._packages = packages
        self._image = image
        self._hardware = hardware

    def run(self, job: Job, exchange: Path, show: Callable[[str], None]) -> Outcome:
        """Boot, run ``job`` and wait for the end. ``exchange`` is an empty folder; what the job writes to it
        in the guest (``$MACHINE_LANE_FOLDER``) is there afterwards. ``show`` takes its output as it comes.

        Raises:
            MachineDied: no exit status came back.
            MachineUnavailable: QEMU does not start here.
        """
        script = guest.guest_script(self._hardware, job.script, job.folder, job.environment)
        (exchange / guest.SCRIPT).write_text(script)
        output = exchange / guest.OUTPUT
        output.touch()
        started = time.monotonic()
        with (exchange / "console").open("wb") as console, output.open(errors="replace") as reader:
            process = self._start(exchange, console.fileno())
            try:
                while process.poll() is None and time.monotonic() - started < job.timeout_seconds:
                    show(reader.read())
                    time.sleep(_POLL_SECONDS)
            finally:
                process.kill()
                process.wait()
            show(reader.read())
        return self._outcome(exchange, time.monotonic() - started)

    def _start(self, exchange: Path, console: int) -> subprocess.Popen[bytes]:
        prefix = self._packages.prefix
        program = str(prefix / "usr/bin/qemu-system-x86_64")
        environment = qemu.program_environment(prefix, self._packages.environment())
        _check_runs(program, environment)
        shares = (
            qemu.Share("host", Path("/")),
            qemu.Share("prefix", prefix),
            qemu.Share("layer", self._image.layer),
            qemu.Share("out", exchange, writable=True),
        )
        boot = qemu.Boot(self._image.vmlinux, self._image.initramfs, shares)
        return subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "KILL",
                program,
                *qemu.firmware_arguments(prefix),
                *qemu.build_arguments(self._hardware, boot),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
        )

    def _outcome(self, exchange: Path, seconds: float) -> Outcome:
        status = _read(exchange / guest.STATUS).strip()
        if not status.isdigit():
            lines = _read(exchange / "console").splitlines()[-_MAX_CONSOLE_LINES_SHOWN:]
            text = "\n".join(lines) or "(the console stayed empty)"
            raise MachineDied(
                f"the guest gave no exit status within {seconds:.0f} s; its console ends:\n{text}"
            )
        return Outcome(int(status), seconds, tuple(_read_marks(exchange / guest.MARKS)))


def _check_runs(program: str, environment: Mapping[str, str]) -> None:
    """A QEMU that does not even start (a library of another release) is named; it is no failure of ours."""
    try:
        subprocess.run([program, "--version"], env=environment, capture_output=True, text=True, check=True)
    except OSError as error:
        raise MachineUnavailable(Cause.NOT_RUNNABLE, f"qemu-system-x86_64: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        detail = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise MachineUnavailable(Cause.NOT_RUNNABLE, f"qemu-system-x86_64: {detail[0]}") from error


def _read_marks(path: Path) -> list[tuple[float, str]]:
    fields = (line.partition(" ") for line in _read(path).splitlines())
    return [(float(seconds), stage) for seconds, _, stage in fields]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
