"""A live driver is scraped and linted: with pods, a fault, an update and a restart.

Judges are the client library's parser and Prometheus' own ``promtool``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testbed.cluster import Testbed
from testbed.debian.packages import Unavailable, cache_folder
from testbed.isolation import WORK_DIR
from testbed.node.fabric import FABRIC_NETNS
from testbed.node.hardware import load_hardware
from testbed.node.iproute import run_batch
from testbed.prometheus import fetch_promtool, find_promtool
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.probe_port import scrape
from tests.support.waiting import until
from tools.pages.metrics import list_declared

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

READY_SECONDS = 30.0

DRANETS = 'dranet_driver_published_devices_total non-counter metrics should not have "_total" suffix'

QUICK = {"health_raise_seconds": "0.3", "health_clear_seconds": "1", "health_training_seconds": "0"}

Samples = Mapping[str, Mapping[frozenset[tuple[str, str]], float]]


@pytest.fixture(scope="module")
def promtool() -> None:
    """In the cache, from where those find it who have no network."""
    try:
        fetch_promtool(cache_folder("promtool"), print)
    except Unavailable as shortage:
        pytest.skip(f"promtool: {shortage}")


def a_pod(name: str) -> list[dict[str, Any]]:
    """With a claim of the same name, for one NIC."""
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "resourceClaims": [{"name": "nic", "resourceClaimName": name}],
                "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
            },
        },
    ]


async def run_pod(testbed: Testbed, name: str) -> None:
    await testbed.apply([device_class("nic", 'device.attributes["dra.net"].rdma'), *a_pod(name)])
    async with asyncio.timeout(READY_SECONDS):
        await testbed.kubelet.wait_running(testbed.pod_uid(name))


def parse(text: str) -> Samples:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


async def wait_samples(name: str, wanted: int, **labels: str) -> Samples:
    """A scrape with so many series of that name that have those labels."""

    async def look() -> Samples | None:
        samples = parse(await scrape("/metrics"))
        return samples if len(pick(samples, name, **labels)) == wanted else None

    found: Samples = await until(look, f"{wanted} series {name} {labels}")
    return found


def pick(samples: Samples, name: str, **labels: str) -> dict[str, float]:
    """By device."""
    given = labels.items()
    found = samples.get(name, {}).items()
    return {dict(one).get("device", ""): value for one, value in found if given <= dict(one).items()}


SENT, RECEIVED = "dranet_pod_network_transmit_bytes_total", "dranet_device_receive_bytes_total"


def test_series_follow_pods_through_a_fault_an_update_and_a_restart() -> None:
    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, QUICK) as testbed:
            testbed.driver = testbed.add_instance()  # one that another may overlap
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            before = await wait_samples("dranet_device_info", 2)
            assert SENT not in before
            await run_pod(testbed, "one")
            first = await wait_samples(SENT, 1, pod="one", namespace="default", claim="one")
            (device,) = pick(first, SENT, pod="one")
            assert pick(first, "dranet_pod_rdma_transmit_bytes_total", pod="one") == {device: 0}
            assert pick(first, RECEIVED)[device] >= pick(before, RECEIVED)[device]

            await set_cable(testbed, "one", "down")
            cut = await wait_samples("dranet_device_fault", 1, fault="link-down")
            assert pick(cut, "dranet_device_carrier")[device] == 0
            assert pick(cut, "dranet_device_healthy")[device] == 0
            losses = "dranet_device_carrier_losses_total"
            assert pick(cut, losses)[device] > pick(first, losses)[device]
            await set_cable(testbed, "one", "up")
            await wait_samples("dranet_device_fault", 0)

            await testbed.roll_driver()
            rolled = await wait_samples(SENT, 1, pod="one")
            assert pick(rolled, SENT)[device] >= pick(first, SENT)[device]
            await testbed.driver.stop()
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            started = await wait_samples(SENT, 1, pod="one")
            assert pick(started, SENT)[device] >= pick(rolled, SENT)[device]

            uid = testbed.pod_uid("one")
            await testbed.delete_pod("one")
            async with asyncio.timeout(READY_SECONDS):
                await testbed.kubelet.wait_gone(uid)
            ended = await wait_samples("dranet_pod_device_info", 0)
            assert [name for name in ended if name.startswith("dranet_pod_")] == []
            assert pick(ended, "dranet_device_info").keys() == pick(before, "dranet_device_info").keys()
            assert pick(ended, RECEIVED)[device] >= pick(first, RECEIVED)[device], "the device goes on"

    asyncio.run(story())


@pytest.mark.usefixtures("promtool")
def test_what_a_live_driver_exposes_is_declared_and_promtool_has_no_complaint() -> None:
    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, QUICK) as testbed:
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            await run_pod(testbed, "one")
            await run_pod(testbed, "two")
            await wait_samples(SENT, 2)
            await testbed.delete_pod("two")
            await set_cable(testbed, "one", "down")
            await wait_samples("dranet_device_fault", 1)
            text = await scrape("/metrics")
            judge_text(text)
            tool = find_promtool(cache_folder("promtool"))
            assert tool is not None, "the fixture has fetched it"
            assert await asyncio.to_thread(tool.check_metrics, text) == (DRANETS,)

    asyncio.run(story())


def test_the_driver_tells_where_the_time_of_a_pod_went() -> None:
    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, QUICK) as testbed:
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            await run_pod(testbed, "one")
            assert count(parse(await scrape("/metrics")), "dranet_store_size_bytes") > 500
            uid = testbed.pod_uid("one")
            await testbed.delete_pod("one")
            async with asyncio.timeout(READY_SECONDS):
                await testbed.kubelet.wait_gone(uid)
            done = "dranet_claim_unprepare_seconds_count"
            samples = await wait_samples(done, 1, status="success")
            assert count(samples, done) == count(samples, "dranet_claim_prepare_seconds_count") == 1
            phases = count_by(samples, "dranet_claim_prepare_phase_seconds_count", "phase")
            assert phases.keys() == {"wait", "fetch", "decode", "plan", "store", "files"}, (
                "no DHCP was wanted"
            )
            steps = count_by(samples, "dranet_attach_step_seconds_count", "step")
            assert steps["move-link"] == 1
            assert count(samples, "dranet_detach_seconds_count") == 1
            assert count(samples, "dranet_attach_rollbacks_total") == 0
            assert count(samples, "dranet_store_write_seconds_count") >= 2
            assert count(samples, "dranet_store_size_bytes") < 100, "no claim is left"
            assert count(samples, "dranet_nri_connections_total") == 1
            assert count(samples, "dranet_nri_connected") == count(samples, "dranet_kubelet_registered") == 1
            assert 0 < count(samples, "dranet_nri_gap_seconds_total") < READY_SECONDS
            verbs = count_by(samples, "dranet_api_requests_total", "verb")
            assert {"get", "list", "watch", "create", "patch"} <= verbs.keys()
            seconds = count_by(samples, "dranet_api_request_seconds_count", "verb")
            assert seconds == verbs
            assert {"read", "judge"} == count_by(
                samples, "dranet_inventory_scan_phase_seconds_count", "phase"
            ).keys()

    asyncio.run(story())


def count(samples: Samples, name: str) -> float:
    return sum(samples[name].values())


def count_by(samples: Samples, name: str, label: str) -> dict[str, float]:
    counts: dict[str, float] = {}
    for labels, value in samples[name].items():
        key = dict(labels)[label]
        counts[key] = counts.get(key, 0) + value
    return counts


async def set_cable(testbed: Testbed, pod: str, state: str) -> None:
    """Pull the cable of the pod's NIC at the switch, or plug it in."""
    sandbox = testbed.sandbox(pod)
    assert sandbox is not None
    ((link, _),) = await asyncio.to_thread(testbed.node.nics_in, str(sandbox.netns_path))
    port = f"sw-{link['link_index']}"
    await asyncio.to_thread(run_batch, [f"link set {port} {state}"], netns=FABRIC_NETNS)


def judge_text(text: str) -> None:
    """Nothing undeclared, each head once, types and labels as declared."""
    declared = {one.name: one for one in list_declared()}
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    heads = re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)
    assert len(heads) == len(set(heads))
    ours = {name: kind for name, kind in types.items() if name.startswith("dranet_")}
    assert {name: declared[name].kind for name in ours} == ours
    always = {name for name, one in declared.items() if not name.startswith(("dranet_device", "dranet_rdma"))}
    assert {name for name in always if not name.startswith("dranet_pod_")} <= ours.keys()
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if line.startswith("dranet_") and rest:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            labels = set(re.findall(r'(\w+)="', rest)) - {"le"}
            assert labels <= declared[name if name in declared else base].labels.keys(), line
