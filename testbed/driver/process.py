"""The driver under test: the ordinary program in a child process, met over its sockets and signals alone."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dranet.errors import DranetError, Reason
from dranet.settings import flag_name

COMMAND = (sys.executable, "-m", "dranet", "run")
"""The ordinary driver; settings are added as options."""

_POLL_SECONDS = 0.02
_CRASH = "Fatal Python error: "
"""The first words of faulthandler."""
_LOG_TAIL_LINES = 30


class DriverFailed(DranetError):
    """The driver ended, or is not ready in time; its log has the details."""

    default_reason = Reason.DRAINING


@dataclass(frozen=True, slots=True)
class DriverExit:
    """How a driver ended. ``exit_code`` is -n when signal n ended it."""

    exit_code: int
    log: str


class DriverProcess:
    """Starts, kills and stops ``dranet run``, over and over, with the same settings and one log file.

    ``settings`` are names and values of ``dranet.settings.Settings``; ``bind_address`` must be among them.
    With a ``pod_uid`` there may be several at once, which answer probes at one address: this one is ready
    when it reports so itself. ``command`` is another build of the driver, which takes the same options.
    """

    def __init__(self, settings: Mapping[str, str], log_file: Path, command: Sequence[str] = COMMAND) -> None:
        self._settings = dict(settings)
        self._command = tuple(command)
        self._probe_address = settings["bind_address"]
        self._tls = _trust_any_certificate() if "metrics_tls_cert" in settings else None
        self._pod_uid = ""
        self._process: asyncio.subprocess.Process | None = None
        self.log_file = log_file

    @property
    def _was_started(self) -> bool:
        return self._process is not None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return self._process.pid if self._process and self.is_running else 0

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last run, -n when signal n ended it; ``None`` while it runs, and before the first
        start."""
        return self._process.returncode if self._process else None

    async def start(self, settings: Mapping[str, str] | None = None, *, command: Sequence[str] = ()) -> None:
        """Start it, this time also with ``settings``, and as the build ``command``; does not wait.

        Raises:
            DriverFailed: it runs already.
        """
        if self.is_running:
            raise DriverFailed("the driver runs already")
        all_settings = {**self._settings, **(settings or {})}
        self._pod_uid = all_settings.get("pod_uid", "")
        flags = [part for name, value in all_settings.items() for part in (flag_name(name), value)]
        await self._launch(command or self._command, flags)

    async def _launch(self, command: Sequence[str], flags: Sequence[str]) -> None:
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_build_environment(),
            )

    async def check_ready(self) -> str:
        """What is not ready yet according to ``/readyz``; empty when all is.

        Raises:
            DriverFailed: the driver ended.
        """
        if not self.is_running:
            raise DriverFailed(
                f"the driver ended by itself, exit code {self.exit_code}"
                if self._was_started
                else "the driver was not started"
            )
        ready, answer = await _fetch_readiness(self._probe_address, self._tls)
        if not ready:
            return f"the driver is not ready: {answer}"
        if self._pod_uid and f"pod {self._pod_uid} is on-duty" not in answer:
            return f"another instance answers: {answer}"
        return ""

    async def wait_ready(self, timeout_seconds: float) -> None:
        """Wait until ``/readyz`` reports it.

        Raises:
            DriverFailed: it ended, or the time is over; names what is not ready.
        """
        complaint = ""
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    complaint = await self.check_ready()
                    if not complaint:
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise DriverFailed(complaint or "the driver does not answer") from error

    async def kill(self) -> None:
        """SIGKILL: the driver gets no chance to tidy up."""
        await self._end(signal.SIGKILL, timeout_seconds=10)

    async def stop(self, timeout_seconds: float = 20.0) -> DriverExit:
        """SIGTERM, and wait for it to drain.

        Raises:
            DriverFailed: it did not end in time; it is killed then.
        """
        return await self._end(signal.SIGTERM, timeout_seconds)

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """Return the last lines of the log; if native code crashed, also all lines since then: the first of
        them name the signal and the thread."""
        if not self.log_file.exists():
            return ""
        written = self.log_file.read_text(errors="replace").splitlines()
        crashes = [number for number, line in enumerate(written) if line.startswith(_CRASH)]
        begin = min([max(len(written) - lines, 0), *crashes[-1:]])
        return "\n".join(written[begin:])

    async def _end(self, number: signal.Signals, timeout_seconds: float) -> DriverExit:
        process = self._process
        if process is None or not self.is_running:
            raise DriverFailed("the driver does not run")
        process.send_signal(number)
        try:
            async with asyncio.timeout(timeout_seconds):
                code = await process.wait()
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise DriverFailed(
                f"the driver did not end within {timeout_seconds:g} s of {number.name}"
            ) from error
        return DriverExit(code, self.log_file.read_text(errors="replace"))


def _build_environment() -> dict[str, str]:
    """Without settings of the driver; a crash of native code leaves its stack in the log."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("DRANET_")}
    return {**inherited, "PYTHONFAULTHANDLER": "1"}


def _trust_any_certificate() -> ssl.SSLContext:
    """As the kubelet's probes do."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _fetch_readiness(address: str, tls: ssl.SSLContext | None) -> tuple[bool, str]:
    """Whether ``/readyz`` answers 200, and the body."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    except OSError as error:
        return False, f"no answer on {address}: {error.strerror or error}"
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: driver\r\nConnection: close\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    except OSError as error:
        return False, f"{address} broke off: {error}"
    finally:
        writer.close()
    return b" 200 " in head.partition(b"\r\n")[0], body.decode(errors="replace").strip()
