"""What a test needs of the machine, by markers that are checked: processes, sockets, namespaces.

An audit hook (:func:`sys.addaudithook`) watches each test. A test that starts a process, connects or binds a
socket or opens a namespace, and has no marker that allows it, fails, so that a test of ``make test`` cannot
become slow unnoticed. A file with such a marker of which no test used anything fails the run of all tests, so
that the fast lane does not lose tests unnoticed.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import pytest

PROCESS, SOCKET, NAMESPACE = "process", "socket", "namespace"

MARKERS: Mapping[str, frozenset[str]] = {
    "socket": frozenset({SOCKET}),
    "process": frozenset({PROCESS, SOCKET}),
    "kernel": frozenset({PROCESS, SOCKET, NAMESPACE}),
    "testbed": frozenset({PROCESS, SOCKET, NAMESPACE}),
    "runtime": frozenset({PROCESS, SOCKET, NAMESPACE}),
    "cluster": frozenset({PROCESS, SOCKET, NAMESPACE}),
    "machine": frozenset({PROCESS, SOCKET, NAMESPACE}),
}
"""What the tests with a marker may do, by marker: the quickest lane first."""

_EVENTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"), PROCESS
    ),
    **dict.fromkeys(("socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg"), SOCKET),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname"), SOCKET),
}
"""Audit events (the table in Python's documentation). An event loop's own pair of sockets raises none."""
_NAMESPACE_FILE = re.compile(r"^/(var/)?run/netns/|^/proc/.*/ns/\w+$")
"""``setns`` has no event; it needs a descriptor of one of these files."""

USED = "used"
"""The user property of a test with the kinds that it used."""
_MARKED = "needs"
"""The user property with the markers that it has."""

_PYTESTMARK = re.compile(r"^pytestmark = (?:\[.*?^\]|.*?$)", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(rf"\bmark\.({'|'.join(MARKERS)})\b")


def find_markers(source: str) -> frozenset[str]:
    """Return the markers of :data:`MARKERS` that all tests of a file have, without importing it."""
    return frozenset(name for mark in _PYTESTMARK.findall(source) for name in _MARKER.findall(mark))


class Watch:
    """Kinds of things that the running test did, each with the first call that did it."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self._older: set[int | None] = set()

    def begin(self) -> None:
        """Forget what was seen. Threads that earlier tests have left behind are not counted."""
        mine = threading.get_ident()
        self._older = {thread.ident for thread in threading.enumerate()} - {mine}
        self.seen = {}

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        kind = _EVENTS.get(event)
        if kind is None and event == "open" and isinstance(arguments[0], str):
            kind = NAMESPACE if _NAMESPACE_FILE.search(arguments[0]) else None
        if kind is not None and kind not in self.seen and threading.get_ident() not in self._older:
            self.seen[kind] = f"{event} {str(arguments)[:200]}"


_WATCH = Watch()
sys.addaudithook(_WATCH.hear)

_GRPC = (
    ("grpc.aio._server", "Server"),
    ("grpc.aio._channel", "Channel"),
    ("grpc._server", "_Server"),
    ("grpc._channel", "Channel"),
)
"""Module and class of what opens sockets in C, where Python hears nothing of it."""


def _announce_grpc() -> None:
    """Let gRPC's servers and channels raise the event of a socket."""
    for module, name in _GRPC:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and kind not in _ANNOUNCED:
            _ANNOUNCED.add(kind)
            kind.__init__ = _announce(kind.__init__, f"{module}.{name}")


def _announce(make: Callable[..., None], name: str) -> Callable[..., None]:
    @functools.wraps(make)
    def announced(*arguments: Any, **named: Any) -> None:
        sys.audit("socket.connect", name)
        make(*arguments, **named)

    return announced


_ANNOUNCED: set[type] = set()

_SHARED: dict[pytest.FixtureDef[Any], dict[str, str]] = {}
"""What fixtures used that serve more than one test: it counts for each of those tests."""


def get_markers(item: pytest.Item) -> frozenset[str]:
    return frozenset(MARKERS.keys() & {mark.name for mark in item.iter_markers()})


def _find_certain(item: pytest.Item, marked: frozenset[str]) -> frozenset[str]:
    """Leave out markers with ``unless``: what another file left behind may spare the test what it allows."""
    return marked - {mark.name for mark in item.iter_markers() if "unless" in mark.kwargs}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    _announce_grpc()
    _WATCH.begin()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    before, _WATCH.seen = _WATCH.seen, {}
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _SHARED[fixturedef] = _WATCH.seen
        _WATCH.seen = {**_WATCH.seen, **before}


def _get_shared(item: pytest.Item) -> Iterator[dict[str, str]]:
    if isinstance(item, pytest.Function):
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                yield _SHARED.get(definition, {})


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Look at what was seen once the fixtures of the test are down."""
    yield
    seen = dict(_WATCH.seen)
    for shared in _get_shared(item):
        seen.update(shared)
    marked = get_markers(item)
    allowed = frozenset().union(*(MARKERS[name] for name in marked))
    item.user_properties += [(USED, sorted(seen)), (_MARKED, sorted(_find_certain(item, marked)))]
    forbidden = {kind: call for kind, call in seen.items() if kind not in allowed}
    if forbidden:
        calls = "\n".join(f"  {kind}: {call}" for kind, call in forbidden.items())
        names = [name for name, kinds in MARKERS.items() if kinds >= forbidden.keys() | allowed]
        pytest.fail(
            f"this test needs pytest.mark.{' or '.join(names)}: it used\n{calls}",
            pytrace=False,
        )


def find_needless(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return the files with markers of which no test used anything; not those with skipped tests."""
    used: dict[str, set[str]] = {}
    skipped: set[str] = set()
    for report in reports:
        file = report.nodeid.partition("::")[0]
        properties: dict[str, Any] = dict(report.user_properties)
        if report.skipped:
            skipped.add(file)
        elif report.when == "teardown" and properties.get(_MARKED):
            used.setdefault(file, set()).update(properties[USED])
    return sorted(file for file, kinds in used.items() if not kinds and file not in skipped)
