"""Count the modules that two walks pass: a NIC to its slice, and a claim to its attached NIC.

``python -m benchmarks.walks [-v]`` boots the stand-in cluster with a driver that counts. A walk passes a
module when it enters one of its functions; a move is each change from one module to another on a thread.
Nothing is timed. With ``-v`` the modules are listed in the order in which the walk first enters them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

POLL_SECONDS = 0.05
SETTLED_SECONDS = 3.0
"""The driver's own start has ended by then."""
MTU = 1400

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "nic"},
    "spec": {
        "devices": {
            "requests": [{"name": "nic", "exactly": {"deviceClassName": "rdma"}}],
            "config": [
                {
                    "opaque": {
                        "driver": "dra.net",
                        "parameters": {
                            "interface": {"name": "net1", "mtu": 8000},
                            "routes": [{"destination": "192.0.2.0/24", "gateway": "10.64.0.254"}],
                        },
                    }
                }
            ],
        }
    },
}
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "rdma"},
    "spec": {"selectors": [{"cel": {"expression": 'device.attributes["dra.net"].ifName == "enp35s0np0"'}}]},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "worker"},
    "spec": {
        "resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}],
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
    },
}


class Counter:
    """In the driver's process: which modules of ``dranet`` are entered, since the last signal."""

    def __init__(self, report: Path) -> None:
        self._report, self._last = report, threading.local()
        self._passed: dict[str, None] = {}
        self._moves = 0

    def start(self) -> None:
        signal.signal(signal.SIGUSR2, self._write)
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if module.startswith("dranet.") and module != getattr(self._last, "module", ""):
            self._last.module = module
            self._passed[module] = None
            self._moves += 1

    def _write(self, *_: object) -> None:
        """Report what was passed, and begin again."""
        text = json.dumps({"modules": list(self._passed), "moves": self._moves})
        self._passed, self._moves = {}, 0
        part = self._report.with_suffix(".part")
        part.write_text(text)
        part.rename(self._report)


def count() -> int:
    """``python -m benchmarks.walks --count FILE dranet-arguments``: the driver, counted."""
    from dranet.cli.main import main as run_dranet

    Counter(Path(sys.argv[2])).start()
    return run_dranet(sys.argv[3:])


async def measure(verbose: bool) -> None:
    """Boot, count the two walks, print them."""
    from testbed.cluster import Testbed
    from testbed.isolation import WORK_DIR
    from testbed.node.hardware import load_hardware
    from testbed.node.iproute import run_ip
    from testbed.runtimes import stand_in

    report = WORK_DIR / "walk.json"
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:

        async def read() -> dict[str, Any]:
            report.unlink(missing_ok=True)
            os.kill(testbed.driver.pid, signal.SIGUSR2)
            await _until(lambda: _is(report.exists()))
            found: dict[str, Any] = json.loads(report.read_text())
            return found

        async def is_published() -> bool:
            text = json.dumps(await testbed.fetch_slices())
            return f'"int": {MTU}' in text

        async def is_attached() -> bool:
            claims = await testbed.fetch_pod_claims("worker")
            return any(
                device.get("networkData") for claim in claims for device in claim["status"].get("devices", ())
            )

        await testbed.driver.start(
            command=(sys.executable, "-m", "benchmarks.walks", "--count", str(report), "run")
        )
        await testbed.driver.wait_ready(60)
        await asyncio.sleep(SETTLED_SECONDS)
        await read()
        await asyncio.to_thread(run_ip, "link", "set", "enp131s0np0", "mtu", str(MTU))
        await _until(is_published)
        walks = {"a NIC to its slice": await read()}
        await testbed.apply([CLASS, CLAIM, POD])
        await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
        await _until(is_attached)
        walks["a claim to its attached NIC, and its status"] = await read()
    for title, walk in walks.items():
        print(f"{title}: {len(walk['modules'])} modules, {walk['moves']} moves")
        if verbose:
            print("".join(f"  {module}\n" for module in walk["modules"]), end="")


async def _is(answer: bool) -> bool:
    return answer


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(POLL_SECONDS)


def main() -> int:
    from testbed.isolation import run_isolated

    def run() -> int:
        asyncio.run(measure("-v" in sys.argv))
        return 0

    return run_isolated(run)


if __name__ == "__main__":
    sys.exit(count() if sys.argv[1:2] == ["--count"] else main())
