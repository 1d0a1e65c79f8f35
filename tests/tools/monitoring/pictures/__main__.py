"""Draws ``docs/operations/dashboard*.png`` again: ``python -m tests.tools.monitoring.pictures``.

A node of the testbed has pods with traffic, a misaligned one, and a cable that is pulled. A real Prometheus
scrapes its driver meanwhile and answers the dashboards' queries. The testbed has no RDMA hardware, so this
program writes the counters of its RDMA ports.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dranet.kernel.namespaces.netns import NetworkNamespace
from testbed.cluster import Testbed
from testbed.debian.browser import fetch_browser
from testbed.debian.packages import cache_folder
from testbed.isolation import WORK_DIR, run_isolated
from testbed.node.fabric import FABRIC_NETNS
from testbed.node.hardware import load_hardware
from testbed.node.iproute import run_batch
from testbed.prometheus import Prometheus, fetch_prometheus, find_prometheus, run_prometheus
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.screen import Screen, open_screen
from tests.tools.monitoring.pictures.drawing import Series, draw, read_answer
from tests.tools.monitoring.queries import fill_in
from tools.monitoring import DASHBOARDS, list_panels, read_dashboards, read_rules

JsonObject = dict[str, Any]

DOCUMENTATION = Path(__file__).parents[4] / "docs/operations"
SECONDS = 100
WINDOW = "15s"
QUICK = {"health_raise_seconds": "0.3", "health_clear_seconds": "1", "health_training_seconds": "0"}
PODS = {
    "llama-worker-0": (["0000:1b:00.0", "0000:43:00.0"], ["mlx5_0", "mlx5_3"]),
    "llama-worker-1": (["0000:52:00.0", "0000:61:00.0"], ["mlx5_4", "mlx5_5"]),
    "notebook-0": (["0000:9d:00.0"], ["mlx5_11"]),
}
"""Each with its GPUs and NICs; the last one has a NIC that is not the closest."""
RATES = {"llama-worker-0": 6e6, "llama-worker-1": 4.5e6, "notebook-0": 1.2e6}
"""Bytes per second on each NIC."""


def manifests(name: str, gpus: Sequence[str], nics: Sequence[str]) -> list[JsonObject]:
    address = 'device.attributes["resource.kubernetes.io"].pciBusID in {}'
    rdma = "device.attributes['dra.net'].?rdmaDevice.orValue('') in {}"
    requests = [
        {
            "name": kind,
            "exactly": {
                "deviceClassName": "any",
                "count": len(chosen),
                "selectors": [{"cel": {"expression": expression.format(list(chosen))}}],
            },
        }
        for kind, expression, chosen in (("gpu", address, gpus), ("nic", rdma, nics))
    ]
    claims = f"{name}-devices"
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": claims}}
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "devices"}]}}
    spec = {"resourceClaims": [{"name": "devices", "resourceClaimName": claims}], "containers": [container]}
    return [
        device_class("any", "true"),
        {**claim, "spec": {"devices": {"requests": requests}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
    ]


class Traffic:
    """Each pod sends datagrams to the gateways of its NICs, more and less in turn, and 100 times as much by
    RDMA."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, pod: str) -> None:
        sandbox = self._testbed.sandbox(pod)
        assert sandbox is not None
        path = str(sandbox.netns_path)
        nics = [nic for _, nic in self._testbed.node.nics_in(path)]
        gateways = [str(nic.network.gateway.ip) for nic in nics]
        ports = self._testbed.node.sysfs_root / "class/infiniband"
        counters = [ports / (nic.nic.rdma or "") / "ports/1/counters/port_xmit_data" for nic in nics]
        thread = threading.Thread(target=self._send, args=(path, gateways, counters, RATES[pod]))
        thread.start()
        self._threads.append(thread)

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _send(self, netns: str, gateways: Sequence[str], counters: Sequence[Path], rate: float) -> None:
        with NetworkNamespace.open(netns) as namespace:
            namespace.enter_for_good()
        payload, every, words = bytes(1400), 0.05, 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not self._is_over.wait(every):
                amount = rate * every * (1 + 0.4 * math.sin(time.monotonic() / 9 + rate))
                for gateway in gateways:
                    for _ in range(int(amount / len(payload))):
                        with suppress(OSError):  # a cable is pulled
                            sender.sendto(payload, (gateway, 9))
                words += int(100 * amount / 4)  # the counter has 32-bit words
                for counter in counters:
                    counter.write_text(str(words))


async def ask(server: Prometheus, panel: JsonObject, begin: float) -> list[Series]:
    """What each target of a panel shows, as Grafana would ask for it."""
    found: list[Series] = []
    for target in panel["targets"]:
        expr = (
            fill_in(target["expr"], WINDOW).replace("[1h]", f"[{SECONDS}s]").replace("[5m]", f"[{SECONDS}s]")
        )
        if panel["type"] == "timeseries":
            bounds = {"start": f"{begin}", "end": f"{time.time()}", "step": "1"}
            answer = (await server.get("query_range", query=expr, **bounds))["result"]
        else:
            answer = await server.query(expr)
        legend = target["legendFormat"].replace("__auto", panel["title"])
        found += read_answer(answer, legend)
    return found


def scrape_configs() -> list[JsonObject]:
    labels = {"node": "gpu-node-1", "job": "dranet"}
    return [
        {
            "job_name": "dranet",
            "honor_labels": True,
            "static_configs": [{"targets": ["localhost:9177"], "labels": labels}],
            # The kernel of the machine that draws tells readers nothing.
            "metric_relabel_configs": [{"action": "labeldrop", "regex": "kernel"}],
        }
    ]


async def gather(folder: Path) -> dict[str, list[Series]]:
    """By title of the panel."""
    program = find_prometheus(cache_folder("prometheus"))
    assert program is not None
    rules = read_rules()
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    async with Testbed(load_hardware("dgx-h100"), stand_in, WORK_DIR, QUICK) as testbed:
        await testbed.driver.start()
        await testbed.driver.wait_ready(30)
        async with run_prometheus(program, folder, scrape_configs(), rules) as server:
            begin, traffic = time.time() + 5, Traffic(testbed)
            try:
                for name, (gpus, nics) in PODS.items():
                    await asyncio.sleep(SECONDS / 12)
                    await testbed.apply(manifests(name, gpus, nics))
                    async with asyncio.timeout(30):
                        await testbed.kubelet.wait_running(testbed.pod_uid(name))
                    traffic.begin(name)
                await asyncio.sleep(SECONDS / 2)
                await pull_cable(testbed, "llama-worker-1")
                await asyncio.sleep(SECONDS / 4)
                return {panel["title"]: await ask(server, panel, begin) for panel in list_panels()}
            finally:
                await asyncio.to_thread(traffic.end)


async def pull_cable(testbed: Testbed, pod: str) -> None:
    sandbox = testbed.sandbox(pod)
    assert sandbox is not None
    link, _ = testbed.node.nics_in(str(sandbox.netns_path))[0]
    await asyncio.to_thread(run_batch, [f"link set sw-{link['link_index']} down"], netns=FABRIC_NETNS)


def shoot(screen: Screen, html: str, folder: Path, picture: Path) -> None:
    page = folder / "dashboard.html"
    page.write_text(html)
    with screen.look(page.as_uri(), 1206) as sight:
        sight.page.set_viewport_size({"width": 1206, "height": 100})
        sight.page.screenshot(path=picture, full_page=True)


def main() -> int:
    browser = fetch_browser(cache_folder("browser"), print)
    with tempfile.TemporaryDirectory() as name:
        answers = asyncio.run(gather(Path(name)))
        with open_screen(browser) as screen:
            for file, dashboard in zip(DASHBOARDS, read_dashboards(), strict=True):
                shoot(screen, draw(dashboard, answers), Path(name), DOCUMENTATION / f"{file.stem}.png")
    return 0


if __name__ == "__main__":
    fetch_prometheus(cache_folder("prometheus"), print)
    fetch_browser(cache_folder("browser"), print)
    sys.exit(run_isolated(main))
