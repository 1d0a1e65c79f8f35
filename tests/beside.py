"""``pytest -p tests.beside``: two pytest processes side by side, told as one.

Most tests wait: for a driver to start, for a lease to end, for the kernel. A second pytest takes the files
from the end of the list while this one takes them from the front, until they meet; the second one's reports
come back and count here as if the tests had run here. So there is one list of failures, one of
skips and one table at the end. Tests that look at the whole run (``at_the_end``) come last, in this process.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

AT_THE_END = "at_the_end"

SOCKET_OPTION = "--beside-socket"
"""Tells a pytest that it is the second, and which descriptor leads to the first."""

AHEAD = 2
"""Files that the second process has been given, and not reported yet: it must not wait for us between two."""

JsonObject = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(SOCKET_OPTION, type=int, help="used by the first process when it starts the second")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.collectonly:
        return
    number = config.getoption(SOCKET_OPTION)
    config.pluginmanager.register(First(config) if number is None else Second(config, number))


class First:
    """What the user sees. The second process is started before we collect, as it collects, too."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._second = SecondProcess(config.invocation_params.args)

    def pytest_unconfigure(self) -> None:
        self._second.end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # it could not collect everything, and pytest says so
        last = [item for item in session.items if item.get_closest_marker(AT_THE_END)]
        files = deque(group_by_file(item for item in session.items if item not in last))
        while files:
            self._feed(files)
            if files:
                for _ in run(session, files.popleft()):
                    self._feed(files)
            self._tell(session)
        while self._second.is_busy:
            self._second.listen(wait=True)
            self._tell(session)
        for _ in run(session, last):
            pass
        return True

    def _feed(self, files: deque[list[pytest.Item]]) -> None:
        """Hear what the second process has to say, and give it something to do."""
        self._second.listen(wait=False)
        while files and self._second.is_hungry:
            self._second.give(files.pop())

    def _tell(self, session: pytest.Session) -> None:
        """A file at a time, and none in the middle of ours, so that the output can be read."""
        hook = self._config.hook
        for told in self._second.take_told():
            if "started" in told:
                hook.pytest_runtest_logstart(nodeid=told["started"], location=tuple(told["location"]))
            elif "ended" in told:
                hook.pytest_runtest_logfinish(nodeid=told["ended"], location=tuple(told["location"]))
            else:
                report = hook.pytest_report_from_serializable(config=self._config, data=told["report"])
                if isinstance(report.longrepr, list):  # JSON has no tuples, and that of a skip is one
                    report.longrepr = tuple(report.longrepr)
                hook.pytest_runtest_logreport(report=report)
                check_whether_to_go_on(session)


class SecondProcess:
    """One socket carries lines of JSON both ways: lists of tests there, what became of them back."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._socket, far = socket.socketpair()
        self._given = 0
        self._heard: SimpleQueue[bytes] = SimpleQueue()
        """Lines; an empty one when it has ended."""
        self._of_this_file: list[JsonObject] = []
        self._of_whole_files: list[JsonObject] = []
        self._folder = tempfile.TemporaryDirectory(prefix="dranet-beside-")
        with far, self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *arguments, f"{SOCKET_OPTION}={far.fileno()}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[far.fileno()],
                env=dict(os.environ),  # without what readline has put into that of the C library (COLUMNS)
            )
        self._reader = threading.Thread(target=self._read, name="beside", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """On a thread of its own: who tells must not wait while we are in a long test."""
        with self._socket.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                self._heard.put(line)
        self._heard.put(b"")

    @property
    def _output(self) -> Path:
        return Path(self._folder.name, "output")

    @property
    def is_busy(self) -> bool:
        return self._given > 0

    @property
    def is_hungry(self) -> bool:
        return self._given < AHEAD

    def give(self, items: Sequence[pytest.Item]) -> None:
        self._given += 1
        send_line(self._socket, [item.nodeid for item in items])

    def listen(self, *, wait: bool) -> None:
        """To what it has told since the last call; with ``wait`` until there is something."""
        while wait or not self._heard.empty():
            line = self._heard.get()
            if not line:
                self._process.wait()
                output = self._output.read_text(errors="replace")[-5000:]
                at = [told["started"] for told in self._of_this_file if "started" in told]
                pytest.exit(f"the second pytest process ended in {at[-1:]}:\n{output}", returncode=3)
            self._note(json.loads(line))
            wait = False

    def _note(self, told: JsonObject) -> None:
        if "done" not in told:
            self._of_this_file.append(told)
            return
        self._given -= 1
        self._of_whole_files += self._of_this_file
        self._of_this_file = []

    def take_told(self) -> list[JsonObject]:
        """What it told of files that it is through with."""
        told, self._of_whole_files = self._of_whole_files, []
        return told

    def end(self) -> None:
        """It ends when there is nobody to report to: at once, or after the test that it is in, and takes down
        what that has set up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait()
        self._reader.join()
        self._socket.close()
        self._folder.cleanup()


class Second:
    """Runs what it is told to run, and reports it."""

    def __init__(self, config: pytest.Config, number: int) -> None:
        self._config = config
        self._socket = socket.socket(fileno=number)

    def pytest_unconfigure(self) -> None:
        self._socket.close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        with self._socket.makefile() as lines, suppress(ConnectionResetError):
            for line in lines:
                try:
                    for _ in run(session, [items[nodeid] for nodeid in json.loads(line)]):
                        pass
                except session.Failed:  # enough of them (``-x``), which the first has to hear
                    self._tell({"done": True})
                    for _ in lines:
                        pass  # until it hangs up: what it has given us meanwhile is not run
                    break
                self._tell({"done": True})
        return True

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell({"started": nodeid, "location": location})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._tell({"report": hook.pytest_report_to_serializable(config=self._config, report=report)})

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell({"ended": nodeid, "location": location})

    def _tell(self, message: JsonObject) -> None:
        try:
            send_line(self._socket, message)
        except BrokenPipeError:
            pytest.exit("the first process has ended")


def send_line(to: socket.socket, message: object) -> None:
    to.sendall(json.dumps(message).encode() + b"\n")


def find_told(config: pytest.Config, name: str) -> Iterator[Any]:
    """What tests said of themselves by ``item.user_properties``, in whichever process; JSON's kinds of
    values."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)
    for report in itertools.chain.from_iterable(reporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            yield from (value for key, value in report.user_properties if key == name)


def group_by_file(items: Iterable[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """In their order: what a file sets up for itself is set up once."""
    for _, group in itertools.groupby(items, lambda item: item.path):
        yield list(group)


def run(session: pytest.Session, items: Sequence[pytest.Item]) -> Iterator[None]:
    """One after the other, and a pause after each; everything that they set up is down at the end."""
    for item, following in itertools.zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        check_whether_to_go_on(session)
        yield


def check_whether_to_go_on(session: pytest.Session) -> None:
    """
    Raises:
        Failed, Interrupted: there are failures enough (``-x``), or somebody wants an end.
    """
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
