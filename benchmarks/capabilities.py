"""What clouds, webhook, IPAM, LLDP, bandwidth and VF rules cost the driver: all of them on, against all off.

Both run in turn on one testbed of two NICs, with 1,000 more links on the node for scan, memory and
processor time. The metadata service and the webhook provider are those of the testbed; LLDP listens, and no
switch sends.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.driver import LINKS, add_links, get, read_rss_mb
from benchmarks.measure import Result, Series
from dranet.cluster import paths
from testbed.cloud import serve_metadata
from testbed.cluster import NODE_NAME, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.node.iproute import run_ip
from testbed.provider import Provider, ProviderServer
from testbed.runtimes import stand_in
from tests.providers.cloud.machines import read_machine

STARTS = 10
ROUNDS = 3
IDLE_SECONDS = 20.0
START_BOUND_MS = 500.0
"""What all of them may add to a start."""
SCAN_BOUND = 1.5
_METADATA_ADDRESS = "169.254.169.254"
_MACHINE = "oke-bm-gpu-h100-8"
_PROVIDER_SOCKET = WORK_DIR / "provider.sock"
ALL_OFF = {"cloud_provider": "off", "lldp": "off"}
_READY_SECONDS = 30.0


def run() -> Iterator[Result]:
    yield from asyncio.run(_measure())


async def _measure() -> list[Result]:
    machine = read_machine(_MACHINE)
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
        run_ip("address", "add", f"{_METADATA_ADDRESS}/32", "dev", "lo")
        spec = {"spec": {"providerID": machine.node["providerID"]}}
        await testbed.api.patch(paths.node(NODE_NAME), spec)
        with ExitStack() as stack:
            stack.enter_context(serve_metadata(machine.provider, machine.answers, _METADATA_ADDRESS, 80))
            stack.enter_context(ProviderServer(Provider(), socket_path=_PROVIDER_SOCKET))
            settings = _build_settings(WORK_DIR)
            starts = await _measure_starts(testbed, settings)
            await asyncio.to_thread(add_links)
            return [*starts, *await _measure_idle(testbed, settings)]


def _build_settings(folder: Path) -> Mapping[str, str]:
    """Everything at once, each with a rule that concerns this node."""
    pool = {"rails": 8, "subnets": ["10.{rail}.0.0/16"], "nodes": {"names": [NODE_NAME]}, "gateway": "last"}
    ipam, functions = folder / "ipam.json", folder / "functions.json"
    ipam.write_text(json.dumps({"compute": {"pool": pool}}))
    functions.write_text(json.dumps({"virtualFunctions": [{"count": 0}]}))
    return {
        "cloud_provider": "auto",
        "node_label_attributes": "kubernetes.io/hostname=example.com/host",
        "profile_provider": "webhook",
        "webhook_url": f"unix://{_PROVIDER_SOCKET}",
        "ipam_file": str(ipam),
        "address_conflicts": "warn",
        "virtual_functions_file": str(functions),
        "lldp": "listen",
        "rail_pattern": r"^leaf-(\d+)",
        "shared_devices": "true",
        "default_bandwidth": "1G",
        "assumed_bandwidth": "100G",
    }


async def _measure_starts(testbed: Testbed, settings: Mapping[str, str]) -> list[Result]:
    took: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(STARTS + 1):
        for name, chosen in (("off", ALL_OFF), ("on", settings)):
            begin = time.perf_counter()
            await testbed.driver.start(chosen)
            await testbed.driver.wait_ready(_READY_SECONDS)
            took[name].append((time.perf_counter() - begin) * 1000)
            await testbed.driver.stop()
    off, on = (tuple(took[name][1:]) for name in ("off", "on"))
    added = tuple(ours - floor for ours, floor in zip(on, off, strict=True))
    return [
        Result("start to ready, all capabilities on", Series("on", on), Series("off", off)),
        Result("what they add to a start", Series("added", added), bound=START_BOUND_MS),
    ]


async def _measure_idle(testbed: Testbed, settings: Mapping[str, str]) -> list[Result]:
    """Scan, memory and processor time with many links, which a full scan reads once a second."""
    scans: dict[str, list[float]] = {"off": [], "on": []}
    memory: dict[str, list[float]] = {"off": [], "on": []}
    busy: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(ROUNDS):
        for name, chosen in (("off", ALL_OFF), ("on", settings)):
            await testbed.driver.start({**chosen, "rescan_seconds": "1"})
            await testbed.driver.wait_ready(_READY_SECONDS)
            await asyncio.sleep(2)
            before, worked = await read_scans(), read_processor_ms(testbed.driver.pid)
            await asyncio.sleep(IDLE_SECONDS)
            seconds, count = (b - a for a, b in zip(before, await read_scans(), strict=True))
            scans[name].append(seconds / count * 1000)
            busy[name].append(read_processor_ms(testbed.driver.pid) - worked)
            memory[name].append(read_rss_mb(testbed.driver.pid))
            await testbed.driver.stop()
    return [
        Result(
            f"full scan with decisions, {LINKS} links, all on",
            Series("on", tuple(scans["on"])),
            Series("off", tuple(scans["off"])),
            SCAN_BOUND,
        ),
        Result(
            f"CPU time of {IDLE_SECONDS:g} s with a full scan each second, all on",
            Series("on", tuple(busy["on"])),
            Series("off", tuple(busy["off"])),
            SCAN_BOUND,
        ),
        Result(
            f"memory, {LINKS} links, all on",
            Series("VmRSS", tuple(memory["on"]), unit="MB"),
            Series("VmRSS, off", tuple(memory["off"]), unit="MB"),
        ),
    ]


async def read_scans() -> tuple[float, float]:
    """Seconds in scans, and their number, since the driver started."""
    text = await get("/metrics")
    name = "dranet_inventory_scan_seconds"
    found = [re.search(rf"^{name}_{part} (\S+)$", text, re.MULTILINE) for part in ("sum", "count")]
    if None in found:
        raise RuntimeError(f"the driver has no metric {name}")
    seconds, count = (float(one[1]) for one in found if one is not None)
    return seconds, count


def read_processor_ms(pid: int) -> float:
    """User and system time of a process (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1000
