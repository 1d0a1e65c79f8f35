"""The whole driver while its API server misbehaves and pods come and go.

Processes, sockets, namespaces and moves are real. Claims cannot always be fetched, so pods may wait for the
kubelet's next try; none runs without its NIC, and what the driver has to say is said in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dranet.cluster.messages import USER_AGENT
from testbed.apiserver.faults import Chaos, ChaosPlan
from testbed.cluster import DRIVER_NAME, NAMESPACE, JsonObject, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from testbed.storm import Storm
from tests.support.waiting import until_in_thread

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(90)]

READY_SECONDS = 20.0
PODS = 16
RATES = {
    Chaos.THROTTLE: 0.02,
    Chaos.ERROR: 0.05,
    Chaos.UNAVAILABLE: 0.03,
    Chaos.CONFLICT: 0.05,
    Chaos.RESET_BEFORE: 0.05,
    Chaos.RESET_AFTER: 0.05,
    Chaos.DELAY: 0.1,
    Chaos.WATCH_GAP: 0.05,
    Chaos.WATCH_RESET: 0.05,
}
SURVIVOR: Sequence[JsonObject] = (
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "survivor"},
        "spec": {
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "storm"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
        },
    },
)
"""A pod that comes in the trouble and stays."""


async def storm_in_chaos() -> None:
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
        await testbed.driver.start()
        await testbed.driver.wait_ready(READY_SECONDS)
        before = await asyncio.to_thread(testbed.node.snapshot)
        slices = await testbed.fetch_slices()
        plan = ChaosPlan(1, RATES, spares=lambda record: record.agent != USER_AGENT, delay_seconds=0.1)
        testbed.server.chaos = plan
        storm = Storm(testbed, workers=1)
        async with storm.raging() as damage:
            plan.switch(on=True)
            await testbed.apply(SURVIVOR)
            await storm.wait_started(PODS)
            plan.switch(on=False)
        assert not damage.lost, damage.lost
        assert not damage.bare, damage.bare
        assert damage.started == damage.gone >= PODS
        assert sum(plan.counts.values()) >= 5, plan.counts
        await check_the_survivor(testbed)
        assert [item["spec"] for item in await testbed.fetch_slices()] == [item["spec"] for item in slices]
        await testbed.delete_pod("survivor")
        async with asyncio.timeout(READY_SECONDS):
            await testbed.kubelet.wait_gone(testbed.pod_uid("survivor"))
            await until_in_thread(lambda: not before.differences(testbed.node.snapshot()))
        assert "Traceback" not in testbed.driver.log_tail(100_000)


async def check_the_survivor(testbed: Testbed) -> None:
    """Its claim says in the end what it has."""
    async with asyncio.timeout(READY_SECONDS):
        await testbed.kubelet.wait_running(testbed.pod_uid("survivor"))
        while True:
            (claim,) = await testbed.fetch_pod_claims("survivor")
            entries = claim["status"].get("devices", ())
            if [read_conditions(entry).get("Ready") for entry in entries] == ["True"]:
                break
            await asyncio.sleep(0.05)
    (entry,) = entries
    assert (entry["driver"], claim["metadata"]["namespace"]) == (DRIVER_NAME, NAMESPACE)
    assert entry["networkData"]["interfaceName"] == "net1"
    assert read_conditions(entry)["Attached"] == "True"


def read_conditions(entry: JsonObject) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in entry.get("conditions", ())}


def test_no_pod_runs_bare_and_every_claim_tells_the_truth_in_the_end() -> None:
    asyncio.run(storm_in_chaos())
