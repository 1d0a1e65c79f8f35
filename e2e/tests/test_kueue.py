"""Kueue and the driver on real programs: quota for claims, and units of the fabric as Kueue's topology.

The recipes of ``docs/guides/quotas-and-autoscaling.md`` and of ``docs/networking/fabric.md``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import pytest_asyncio
import yaml

from dranet.cluster.client import ApiClient
from dranet.kernel.namespaces.netns import NetworkNamespace
from e2e.live_cluster import LiveCluster
from e2e.objects import JsonObject
from e2e.tests.conftest import HEALTH, open_namespace
from e2e.tests.guides import read_block
from e2e.tests.kueue import KUEUE, Kueue, Team, open_kueue
from e2e.tests.pods import (
    NIC_CLASS,
    PodMaker,
    build_pod,
    build_request,
    build_spec,
    fit_pod,
    lower_memlock,
    wait_until,
)
from e2e.tests.shell import REPOSITORY, Shell
from testbed.node.fabric import FABRIC_NETNS
from testbed.node.iproute import NETNS_FOLDER, read_json
from tests.desk.fabric.fabrics import cable
from tests.desk.fabric.slices import make_slices
from tests.support.lldp_switch import build_frame, build_message, send

NIC, GPU = "dra.net/nic", "dra.net/gpu"
"""The resources of the guide's ``deviceClassMappings``."""
_ONE_NIC = build_spec(build_request())
_ONE_GPU = {"devices": {"requests": [build_request(device_class="dranet-gpu")]}}
_DRANET = f"{sys.executable} -m dranet.cli.main"
_UNIT = "fabric.dra.net/unit"
_REQUIRED = {"kueue.x-k8s.io/podset-required-topology": _UNIT}
_EIGHT = [f"gpu-{number}" for number in range(8, 16)]
"""Nodes of the larger unit."""
_RAIL_0 = "pci-0000-10-00-0"
"""Their device on rail 0."""


@pytest_asyncio.fixture(scope="module")
async def kueue(live: LiveCluster, shell: Shell) -> AsyncIterator[Kueue]:
    (configuration,) = read_block("quotas-and-autoscaling.md", "deviceClassMappings")
    async with open_kueue(shell, live.access.pod_image, yaml.safe_dump(configuration)) as opened:
        yield opened


# --- quota ---


@pytest_asyncio.fixture
async def team(kueue: Kueue, pods: PodMaker) -> AsyncIterator[Team]:
    """A namespace with quota for two NICs and one GPU."""
    async with kueue.open_team(pods.namespace, {NIC: 2, GPU: 1}) as opened:
        yield opened


async def test_a_job_waits_for_quota_and_starts_with_its_aligned_nics(team: Team, pods: PodMaker) -> None:
    pair = build_spec(build_request(count=2))
    pair["devices"]["constraints"] = [{"requests": ["nic"], "matchAttribute": "dra.net/numaNode"}]
    await team.submit("first", pair)
    (running,) = await team.wait_ready("first")
    assert len(await pods.list_links(running)) == 2
    await team.submit("second", pair)
    await team.wait_message("second", f"insufficient unused quota for {NIC}")
    await team.delete("first")
    await team.wait_ready("second")


async def test_each_class_and_each_namespace_has_a_quota_of_its_own(
    team: Team, kueue: Kueue, api: ApiClient
) -> None:
    await team.submit("nics", build_spec(build_request(count=2)))
    await team.wait_ready("nics")
    await team.submit("third", _ONE_NIC)
    await team.wait_message("third", f"insufficient unused quota for {NIC}")
    await team.submit("gpu", _ONE_GPU)
    await team.wait_ready("gpu")
    await team.submit("second", _ONE_GPU)
    await team.wait_message("second", f"insufficient unused quota for {GPU}")
    async with open_namespace(api) as namespace, kueue.open_team(namespace, {NIC: 1}) as other:
        await other.submit("nic", _ONE_NIC)
        await other.wait_ready("nic")
        await other.submit("gpu", _ONE_GPU)
        await other.wait_message("gpu", f"resource {GPU} unavailable in ClusterQueue")


async def test_the_example_runs_as_it_is_written(kueue: Kueue, pods: PodMaker) -> None:
    """With an image that is here."""
    example = yaml.safe_load_all((REPOSITORY / "examples/kueue.yaml").read_text())
    items = [item for item in example if item and item["apiVersion"] != KUEUE]
    (job,) = (item for item in items if item["kind"] == "Job")
    job["spec"]["template"] = fit_pod(job["spec"]["template"], pods.image)
    async with kueue.open_team(pods.namespace, {NIC: 64, GPU: 64}) as team:
        await team.apply(*map(lower_memlock, items))
        (running,) = await team.wait_ready("queued")
        assert len(await pods.list_links(running)) == 8


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (build_request(allocationMode="All"), "AllocationMode 'All' is not supported"),
        (build_request(device_class="dranet-nic"), "DeviceClass dranet-nic is not mapped"),
        (
            {"name": "nic", "firstAvailable": [{"name": "any", "deviceClassName": NIC_CLASS}]},
            "FirstAvailable device selection is not supported",
        ),
    ],
    ids=["all", "unmapped-class", "first-available"],
)
async def test_a_claim_that_cannot_be_counted_is_not_admitted(
    team: Team, request_: JsonObject, message: str
) -> None:
    await team.submit("refused", build_spec(request_))
    await team.wait_message("refused", message)


async def test_a_job_that_names_a_claim_is_not_admitted(team: Team, pods: PodMaker) -> None:
    await pods.create_claim("shared", build_spec(build_request()))
    await team.apply(team.build_job("refused", build_pod("", [], pods.image, ["shared"])))
    await team.wait_message("refused", "does not support use of resource claims")


# --- topology ---


@pytest_asyncio.fixture
async def units(kueue: Kueue, pods: PodMaker, shell: Shell) -> AsyncIterator[Team]:
    """A namespace with a queue over the units of the fabric."""
    quota: dict[str, int | str] = {NIC: 16, "cpu": 1000, "memory": "64Mi"}
    async with open_fabric(shell), open_topology(shell):
        (flavor,) = read_block("fabric.md", "kind: ResourceFlavor")
        async with kueue.open_team(pods.namespace, quota, flavor) as team:
            try:
                yield team
            finally:  # no kubelet ends them
                await shell.run(
                    f"kubectl -n {pods.namespace} delete jobs --all --cascade=foreground --wait=false\n"
                    f"kubectl -n {pods.namespace} delete pods --all --force --grace-period=0"
                )


@asynccontextmanager
async def open_fabric(shell: Shell) -> AsyncIterator[None]:
    """Two units, of three nodes and of eight, whose nodes have no kubelet: pods are bound to them and never
    run. They are ready for the 50 s that Kubernetes waits for a kubelet."""
    nodes = ["gpu-0", "gpu-1", "gpu-2", *_EIGHT]
    slices = make_slices(link for (node, _), link in cable(2, 8).items() if node in nodes)
    text = yaml.safe_dump_all([*map(_build_node, nodes), *slices])
    await shell.run("kubectl create -f -", stdin=text)
    try:
        yield
    finally:
        await shell.run("kubectl delete -f -", stdin=text)


def _build_node(name: str) -> JsonObject:
    """It has no memory, so that pods that request some are for real nodes."""
    resources = {"cpu": "100", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "no kubelet"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
    }


@asynccontextmanager
async def open_topology(shell: Shell) -> AsyncIterator[None]:
    """Labels and topology as the guide has them."""
    labels = (await shell.run(f"{_DRANET} fabric -o labels")).splitlines()
    topology = await shell.run(f"{_DRANET} fabric -o kueue")
    await shell.run("\n".join(labels))
    await shell.run("kubectl apply -f -", stdin=topology)
    try:
        yield
    finally:
        await shell.run(labels[-1].removeprefix("# "))
        await shell.run("kubectl delete -f -", stdin=topology)


@pytest_asyncio.fixture
async def cabled(live: LiveCluster) -> AsyncIterator[None]:
    """The real node's rails hear a switch each, and are a unit of their own."""
    await live.driver.start({**HEALTH, "lldp": "listen", "rail_pattern": r"leaf-2-(\d+)"})
    await live.driver.wait_ready(120)

    async def is_published() -> bool:
        await asyncio.to_thread(_announce_switches)
        devices = [device for one in await live.fetch_slices() for device in one["spec"]["devices"]]
        return sum("dra.net/rail" in device["attributes"] for device in devices) == 8

    await wait_until(is_published, "the slices have the rails")
    yield
    await live.driver.start(HEALTH)
    await live.driver.wait_ready(120)


def _announce_switches() -> None:
    """Send a frame from the port of each rail."""
    links = read_json("ip", "-netns", FABRIC_NETNS, "-json", "link")
    with NetworkNamespace.open(NETNS_FOLDER / FABRIC_NETNS) as netns:
        for link in links:
            if (rail := link.get("master", "").removeprefix("br-rail")).isdecimal():
                message = build_message(f"leaf-2-{rail}", chassis=bytes((2, 0, 0, 0, 2, int(rail))))
                netns.run(partial(send, link["ifname"], build_frame(message)))


@pytest.mark.usefixtures("cabled")
async def test_pods_run_in_the_unit_that_kueue_chooses(
    units: Team, live: LiveCluster, pods: PodMaker
) -> None:
    pod = build_pod("", ["pair"], pods.image)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"memory": "1Mi"}
    await units.submit("pair", _ONE_NIC, 2, pod, metadata={"annotations": _REQUIRED})
    for running in await units.wait_ready("pair", 2):
        assert running["spec"]["nodeName"] == live.access.node_name
        assert len(await pods.list_links(running)) == 1


async def test_the_job_of_the_guide_gets_the_unit_that_has_a_node_for_each_pod(
    units: Team, pods: PodMaker
) -> None:
    await units.apply(*read_block("fabric.md", "kind: Job"))
    bound = await wait_until(partial(_list_bound, units, "train", 8), "each pod of the job has a node")
    assert sorted(pod["spec"]["nodeName"] for pod in bound) == sorted(_EIGHT)
    for pod in bound:
        (claim,) = await pods.fetch_claims(pod)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert (result["pool"], result["device"]) == (pod["spec"]["nodeName"], _RAIL_0)


async def _list_bound(team: Team, job: str, count: int) -> list[JsonObject]:
    bound = [pod for pod in await team.fetch_pods(job) if pod["spec"].get("nodeName")]
    return bound if len(bound) == count else []


async def test_a_job_that_no_unit_can_take_is_not_admitted(units: Team) -> None:
    template, job = read_block("fabric.md", "kind: Job")
    job["spec"] |= {"parallelism": 9, "completions": 9}
    await units.apply(template, job)
    await units.wait_message("train", 'topology "dranet-lldp" allows to fit only 8 out of 9 pod(s)')
