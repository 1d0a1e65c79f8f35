"""The driver as a whole, as a child process in the testbed, where no scenario asks for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.messages import USER_AGENT
from dranet.model.capture import Capture, encode_capture
from dranet.model.facts import Link, NodeFacts, PciFunction
from testbed.cluster import Testbed
from testbed.driver.process import DriverFailed, DriverProcess
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.probe_port import scrape

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

SCANS = "dranet_inventory_scan_seconds_count"
OTHER_NAME = "nic.example.com"


@asynccontextmanager
async def running_driver(**settings: str) -> AsyncIterator[Testbed]:
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, settings) as testbed:
        await testbed.driver.start()
        await testbed.driver.wait_ready(30)
        yield testbed


def a_pod_with_a_nic(class_name: str = "any") -> list[dict[str, Any]]:
    return [
        device_class(class_name, 'device.attributes["dra.net"].rdma'),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "nic"},
            "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": class_name}}]}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "worker"},
            "spec": {
                "resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}],
                "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
            },
        },
    ]


def test_a_driver_under_another_name_registers_publishes_and_serves_under_it() -> None:
    async def scenario() -> None:
        async with running_driver(driver_name=OTHER_NAME) as testbed:
            async with asyncio.timeout(20):
                await testbed.kubelet.wait_driver(
                    OTHER_NAME
                )  # connected, which it may be after the word to us
            assert testbed.kubelet.registered_drivers == (OTHER_NAME,)
            slices = (await testbed.api.list(paths.RESOURCE_SLICES))["items"]
            assert {item["spec"]["driver"] for item in slices} == {OTHER_NAME}
            await testbed.apply(a_pod_with_a_nic())
            async with asyncio.timeout(20):
                await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
            (claim,) = await testbed.fetch_pod_claims("worker")
            (result,) = claim["status"]["allocation"]["devices"]["results"]
            assert result["driver"] == OTHER_NAME

    asyncio.run(scenario())


@pytest.mark.smoke
def test_probes_and_metrics_tell_of_a_pod_that_came_and_went() -> None:
    async def scenario() -> None:
        ready = WORK_DIR / "ready"
        async with running_driver(ready_file=str(ready)) as testbed:
            await _wait_file(ready, there=True)
            assert await scrape("/healthz") == "ok\n"
            assert "[+] runtime\n[+] kubelet\n[+] slices\n" in await scrape("/readyz")
            await testbed.apply(a_pod_with_a_nic())
            uid = testbed.pod_uid("worker")
            async with asyncio.timeout(30):
                await testbed.kubelet.wait_running(uid)
                assert "dranet_prepared_claims 1.0" in await scrape("/metrics")
                await testbed.delete_pod("worker")
                await testbed.kubelet.wait_gone(uid)
            metrics = await scrape("/metrics")
            for method in ("PrepareResourceClaims", "UnprepareResourceClaims"):
                name = "dranet_driver_dra_plugin_requests_total"
                assert f'{name}{{method="{method}",status="success"}} 1.0' in metrics
            for method in ("RunPodSandbox", "CreateContainer", "StopPodSandbox"):
                name = "dranet_driver_nri_plugin_requests_total"
                assert f'{name}{{method="{method}",status="success"}} 1.0' in metrics
            assert 'dranet_driver_published_devices_total{feature="total"} 4.0' in metrics
            assert 'dranet_ready{part="runtime"} 1.0' in metrics
            assert "dranet_prepared_claims 0.0" in metrics
            assert abs(time.time() - _read_metric(metrics, "dranet_driver_last_published_time_seconds")) < 300
            await testbed.driver.stop()
            await _wait_file(ready, there=False)

    asyncio.run(scenario())


def test_a_second_driver_is_refused_before_it_touches_what_the_first_one_uses() -> None:
    async def scenario() -> None:
        async with running_driver() as testbed:
            settings = {**testbed._settings(), "bind_address": "127.0.0.1:9178"}
            fresh = Path(settings["state_dir"]) / "ready" / "a-claim-that-is-being-attached"
            await asyncio.to_thread(fresh.parent.mkdir, exist_ok=True)
            await asyncio.to_thread(fresh.write_text, "attached")
            second = DriverProcess(settings, WORK_DIR / "second.log")
            await second.start()
            with pytest.raises(DriverFailed, match="ended by itself"):
                await second.wait_ready(20)
            assert "another driver (pid" in second.log_tail()
            assert await asyncio.to_thread(fresh.exists)
            assert "[-]" not in await scrape("/readyz")

    asyncio.run(scenario())


def test_an_idle_driver_asks_nothing_and_says_nothing_and_holds_two_watches() -> None:
    """Of its own slices, and on a node with GPUs of those of other drivers."""

    async def scenario() -> None:
        async with running_driver(rescan_seconds="1") as testbed:
            scans = _read_metric(await scrape("/metrics"), SCANS)
            await _wait_scans(scans + 1)  # the watch has told of our own slice by then
            before = await testbed.fetch_slices()
            asked = testbed.server.traffic()[USER_AGENT]
            log = testbed.driver.log_file.read_text()
            await _wait_scans(scans + 4)
            assert await testbed.fetch_slices() == before
            assert testbed.driver.log_file.read_text() == log
            requests = [r for r in testbed.server.requests if r.agent == USER_AGENT]
            assert testbed.server.traffic()[USER_AGENT] == asked
            assert [r.path for r in requests if r.method == "WATCH"] == [paths.RESOURCE_SLICES] * 2

    asyncio.run(scenario())


def test_a_driver_on_a_capture_offers_the_devices_of_that_machine() -> None:
    nic = PciFunction("0000:21:00.0", 0x020000, 0x15B3, 0x1021, driver="mlx5_core", path=("0000:21:00.0",))
    link = Link(7, "rail0", flags=1, carrier=True, parent_bus="pci", pci_address=nic.address)
    capture = encode_capture(Capture(NodeFacts(links=(link,), pci_functions=(nic,))))

    async def scenario() -> None:
        file = WORK_DIR / "node.json"
        await asyncio.to_thread(file.write_text, capture)
        async with running_driver(facts_file=str(file)) as testbed:
            slices = (await testbed.api.list(paths.RESOURCE_SLICES))["items"]
            assert [d["name"] for s in slices for d in s["spec"]["devices"]] == ["pci-0000-21-00-0"]

    asyncio.run(scenario())


def test_a_second_pod_that_shares_a_claim_does_not_start_bare_and_gets_its_turn() -> None:
    """The kubelet prepares a claim once: nobody asks about the second pod, when it comes or later."""

    async def scenario() -> None:
        async with running_driver() as testbed:
            manifests = a_pod_with_a_nic()
            await testbed.apply(manifests)
            async with asyncio.timeout(30):
                await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
                await testbed.apply([{**manifests[-1], "metadata": {"name": "second"}}])
                await _wait_failure(testbed, "second")
            failure = testbed.kubelet.failure(testbed.pod_uid("second"))
            assert "prepared for pod default/worker" in failure
            assert not testbed.kubelet.containers(testbed.pod_uid("second"))
            async with asyncio.timeout(60):
                await testbed.delete_pod("worker")
                await testbed.kubelet.wait_running(testbed.pod_uid("second"))
            sandbox = testbed.sandbox("second")
            assert sandbox is not None
            ((link, _),) = await asyncio.to_thread(testbed.node.nics_in, str(sandbox.netns_path))
            assert link["ifname"] == await _wait_interface(testbed, "nic")

    asyncio.run(scenario())


async def _wait_failure(testbed: Testbed, pod: str) -> None:
    uid = testbed.pod_uid(pod)
    while True:
        if testbed.kubelet.failure(uid) or testbed.kubelet.containers(uid):
            return
        await asyncio.sleep(0.1)


async def _wait_interface(testbed: Testbed, claim: str) -> str:
    """Name of the claim's interface in its pod, as its status has it when it is ready."""
    async with asyncio.timeout(20):
        while True:
            devices = (await testbed.fetch_claim(claim))["status"].get("devices", ())
            ready = [{c["type"]: c["status"] for c in one["conditions"]}.get("Ready") for one in devices]
            if ready == ["True"]:
                return str(devices[0]["networkData"]["interfaceName"])
            await asyncio.sleep(0.1)


async def _wait_file(path: Path, *, there: bool) -> None:
    async with asyncio.timeout(20):
        while True:
            if await asyncio.to_thread(path.exists) is there:
                return
            await asyncio.sleep(0.05)


async def _wait_scans(count: float) -> None:
    async with asyncio.timeout(20):
        while True:
            if _read_metric(await scrape("/metrics"), SCANS) >= count:
                return
            await asyncio.sleep(0.1)


def _read_metric(metrics: str, name: str) -> float:
    line = next(line for line in metrics.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])
