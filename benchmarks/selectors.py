"""Device selectors: 1,000 devices, the first use in a process, and `dranet validate` of a file.

The bound: one selector over 1,000 devices in less than a second. What a scheduler does is less: devices
are converted once and asked about by many selectors.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from benchmarks.measure import Result, Series, time_ms
from dranet.cel import Version
from dranet.desk.cel import DeviceSelector, DeviceValues

DEVICES = 1000
RUNS = 15
BOUND_MS = 1000.0
PLAIN = 'device.driver == "dra.net" && device.attributes["dra.net"].rdma'
RICH = """
device.driver == "dra.net" && cel.bind(d, device.attributes["dra.net"],
    d.?linkSpeedMbps.orValue(0) >= 100000 && d.ifName.matches("^eth[0-9]+$")
    && has(d.ipv4) && isCIDR(d.ipv4) && cidr("10.0.0.0/8").containsCIDR(d.ipv4)
    && d.firmwareVersion.isGreaterThan(semver("1.0.0")))
"""
FILE = Path("deploy/deviceclasses.yaml")


def run() -> Iterator[Result]:
    """Each with the time for all devices."""
    devices = [_describe(number) for number in range(DEVICES)]
    for name, expression in (("plain", PLAIN), ("rich", RICH)):
        selector = DeviceSelector.compile(expression)
        assert all(selector.matches("dra.net", attributes) for attributes in devices)
        yield _measure(f"{name} selector, {DEVICES} devices", _ask_each(selector, devices))
        prepared = [DeviceValues("dra.net", attributes) for attributes in devices]
        yield _measure(f"{name} selector, {DEVICES} prepared", _ask_prepared(selector, prepared))
    yield _measure(f"{DEVICES} devices prepared", lambda: [DeviceValues("dra.net", one) for one in devices])
    numbers = count()
    yield _measure("rich selector compiled", lambda: DeviceSelector.compile(f"{RICH} // {next(numbers)}"))
    yield _measure("first selector in a process", _first_use, runs=5, bound=None)
    yield _measure("dranet validate of an example", _validate, runs=5, bound=None)


def _describe(number: int) -> dict[str, bool | int | str | Version]:
    named = {f"dra.net/a{place}": f"value {place}" for place in range(20)}
    return {
        **named,
        "dra.net/ifName": f"eth{number}",
        "dra.net/rdma": True,
        "dra.net/ipv4": f"10.0.{number % 250}.1/24",
        "dra.net/linkSpeedMbps": 400_000,
        "dra.net/firmwareVersion": Version("28.39.1002"),
        "resource.kubernetes.io/numaNode": number % 2,
    }


def _measure(
    title: str, action: Callable[[], object], runs: int = RUNS, bound: float | None = BOUND_MS
) -> Result:
    action()
    return Result(title, Series(title, tuple(time_ms(action) for _ in range(runs))), bound=bound)


def _ask_each(
    selector: DeviceSelector, devices: list[dict[str, bool | int | str | Version]]
) -> Callable[[], object]:
    return lambda: [selector.matches("dra.net", attributes) for attributes in devices]


def _ask_prepared(selector: DeviceSelector, devices: list[DeviceValues]) -> Callable[[], object]:
    return lambda: [selector.accepts(device) for device in devices]


def _first_use() -> None:
    """A new interpreter that imports, compiles and judges one device."""
    program = f"from dranet.desk.cel import *; DeviceSelector.compile({PLAIN!r}).matches('x', {{}})"
    subprocess.run((sys.executable, "-c", program), check=True)


def _validate() -> None:
    program = ("from dranet.cli.main import main", f"raise SystemExit(main(['validate', {str(FILE)!r}]))")
    subprocess.run((sys.executable, "-c", "; ".join(program)), check=True, stdout=subprocess.DEVNULL)
