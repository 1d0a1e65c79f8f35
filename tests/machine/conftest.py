"""Tests that run inside the virtual machine of ``make test-machine``; elsewhere they are skipped by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranet.inventory.build import build_devices
from dranet.kernel.discovery.scan import NodeScanner
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from testbed.machine.guest import IN_MACHINE

HERE = Path(__file__).parent

OUTSIDE = "runs inside the virtual machine of `make test-machine`"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(IN_MACHINE):
        return
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("machine"):
            item.add_marker(pytest.mark.skip(reason=OUTSIDE))


@pytest.fixture(scope="module")
def facts() -> NodeFacts:
    """One scan of the machine; for modules that change nothing."""
    return NodeScanner(Path("/sys"), Path("/proc")).read()


@pytest.fixture(scope="module")
def devices(facts: NodeFacts) -> dict[str, Device]:
    """The devices of that scan, by name."""
    return {device.name: device for device in build_devices(facts, {})}


NOT_OURS = "igbvf_close+"
"""igbvf warns of itself: it was closed while it reset, which it does without the lock of who closes."""


@pytest.fixture(autouse=True)
def kernel_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that makes the kernel warn or oops fails, whatever it asserts."""
    if not os.environ.get(IN_MACHINE):
        yield
        return
    with Path("/dev/kmsg").open("rb", buffering=0) as log:
        os.set_blocking(log.fileno(), False)
        log.seek(0, os.SEEK_END)
        yield
        new = [line for line in _records(log.fileno()) if "WARNING:" in line or "BUG:" in line]
        assert [line for line in new if NOT_OURS not in line] == [], (
            f"the kernel's log after {request.node.name}"
        )


def _records(descriptor: int) -> Iterator[str]:
    while True:
        try:
            yield os.read(descriptor, 8192).decode(errors="replace")
        except BlockingIOError:
            return
        except BrokenPipeError:  # the oldest were overwritten while we read
            continue
