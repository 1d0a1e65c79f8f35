"""Pods of one claim template with addresses from IPAM plugins: host-local, and whereabouts.

The driver is the chart's, with its values ``ipam``: its own mounts, seccomp profile and rights.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from e2e.cluster import build, described_node
from e2e.cluster.local import LocalCluster
from e2e.installation import SYSTEM_NAMESPACE
from e2e.live_cluster import LiveCluster
from e2e.live_driver import is_ready
from e2e.objects import JsonObject, collection
from e2e.tests.conftest import open_pods
from e2e.tests.pods import RESOURCE, PodMaker, build_pod, build_template, wait_until
from e2e.tests.shell import Shell
from tests.support.cni_plugins import read_host_local

SUBNETS = {"local": "10.201.0.0/24", "cluster": "10.202.0.0/24"}
"""By entry of the chart's ``ipam``."""
REPLICAS = 3
_UNINSTALL = f"helm uninstall dranet --namespace {SYSTEM_NAMESPACE} --ignore-not-found"


@pytest.fixture(scope="module")
def plugins(cluster: LocalCluster) -> Path:
    """What was built of whereabouts. The node has both plugins, and whereabouts' files for this cluster."""
    folder = build.find_built(build.WHEREABOUTS)
    if folder is None:
        pytest.skip("`make cluster` has not built whereabouts")
    layout = cluster.node.runtime.layout
    own = _own_folder(layout.volatile)
    (own / "bin").mkdir(parents=True)
    shutil.copy(folder / "cmd", own / "bin/whereabouts")
    shutil.copy(layout.cni_bin_dir / "host-local", own / "bin/host-local")  # a link there
    shutil.copy(cluster.plane.plan.kubeconfig("admin"), own / "whereabouts.kubeconfig")
    (own / "whereabouts.conf").write_text("{}")
    return folder


def _own_folder(volatile: Path) -> Path:
    return volatile / "whereabouts.d"


def build_values(volatile: Path) -> JsonObject:
    own = _own_folder(volatile)
    local = {
        "type": "host-local",
        "dataDir": str(volatile / "networks"),
        "ranges": [[{"subnet": SUBNETS["local"]}]],
        "routes": [{"dst": "10.200.0.0/16"}],
    }
    whereabouts = {
        "type": "whereabouts",
        "range": SUBNETS["cluster"],
        "configuration_path": str(own / "whereabouts.conf"),
        "kubernetes": {"kubeconfig": str(own / "whereabouts.kubeconfig")},
    }
    return {
        "image": {"repository": "registry.example.com/dranet"},
        "settings": {"cni_bin_dirs": [str(own / "bin")], "reconcile_seconds": 2},
        "ipam": {"local": {"cni": {"ipam": local}}, "cluster": {"cni": {"ipam": whereabouts}}},
    }


@pytest_asyncio.fixture(scope="module")
async def bare(cluster: LocalCluster) -> AsyncIterator[LiveCluster]:
    await described_node.add_policies(cluster)
    async with LiveCluster(cluster.build_access()) as opened:
        yield opened
    await described_node.remove_policies(cluster)


@pytest_asyncio.fixture(scope="module")
async def installed(
    cluster: LocalCluster, bare: LiveCluster, shell: Shell, plugins: Path
) -> AsyncIterator[Path]:
    """The folder where host-local keeps who has which address."""
    layout = cluster.node.runtime.layout
    values = build_values(layout.volatile)
    await shell.run(
        f"kubectl apply {' '.join(f'-f {plugins / Path(file).name}' for file in build.WHEREABOUTS.files)}"
    )
    try:
        await shell.run(
            f"helm install dranet ./charts/dranet --namespace {SYSTEM_NAMESPACE} --create-namespace -f -",
            json.dumps(values),
        )
        await shell.run(f"kubectl -n {SYSTEM_NAMESPACE} rollout status daemonset/dranet --timeout=120s")
        yield layout.volatile / "networks"
    finally:
        await shell.run(f"{_UNINSTALL}\nkubectl delete namespace {SYSTEM_NAMESPACE}")
        crds = "ippools overlappingrangeipreservations"
        await shell.run(
            f"kubectl delete crd {' '.join(f'{crd}.whereabouts.cni.cncf.io' for crd in crds.split())}"
        )
        await wait_until(partial(_has_ended, bare), "the driver's end")


async def _has_ended(live: LiveCluster) -> bool:
    return not await live.driver.fetch_pods()


@pytest_asyncio.fixture
async def pods(bare: LiveCluster, installed: Path, namespace: str) -> AsyncIterator[PodMaker]:
    assert installed.name
    async with open_pods(bare, namespace) as maker:
        yield maker


class Replicas:
    """A Deployment whose pods have a claim each, from one template."""

    def __init__(self, pods: PodMaker, shell: Shell, entry: str) -> None:
        self._pods = pods
        self._shell = shell
        self._entry = entry
        self._list = collection("v1", "Pod", pods.namespace)

    async def start(self) -> list[JsonObject]:
        """Its pods, once they all run."""
        parameters = {"interface": {"name": "net1", "ipam": self._entry}}
        templates = collection(RESOURCE, "ResourceClaimTemplate", self._pods.namespace)
        await self._pods.live.api.create(templates, build_template("storage", parameters=parameters))
        pod = build_pod("worker", ["storage"], self._pods.image)
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "worker"},
            "spec": {
                "replicas": REPLICAS,
                "selector": {"matchLabels": {"app": "worker"}},
                "template": {"metadata": {"labels": {"app": "worker"}}, "spec": pod["spec"]},
            },
        }
        await self._shell.run(f"kubectl -n {self._pods.namespace} create -f -", json.dumps(deployment))
        found: list[JsonObject] = await wait_until(self.list_ready, "every replica is ready", 120)
        return found

    async def list_ready(self) -> list[JsonObject] | str:
        found = await self.fetch()
        ready = [pod for pod in found if is_ready(pod)]
        if len(ready) == REPLICAS == len(found):
            return ready
        return "; ".join([await self._pods.explain(pod["metadata"]["name"]) for pod in found]) or "no pod yet"

    async def fetch(self) -> list[JsonObject]:
        items: list[JsonObject] = (await self._pods.live.api.list(self._list))["items"]
        return items

    async def read_addresses(self, pods: list[JsonObject]) -> dict[str, str]:
        """The address of each pod's NIC by the pod's name; pod and status of the claim agree about it."""
        found = {}
        for pod in pods:
            name = pod["metadata"]["name"]
            (claim,) = await self._pods.fetch_claims(pod)
            (device,) = claim["status"]["devices"]
            command = f"kubectl -n {self._pods.namespace} exec {name} -- ip -o -4 address show dev net1"
            address = (await self._shell.run(command)).split()[3]
            assert device["networkData"]["ips"] == [address]
            found[name] = address
        return found

    async def end(self) -> None:
        await self._shell.run(
            f"kubectl -n {self._pods.namespace} delete deployment worker --cascade=foreground"
        )
        await wait_until(self._is_gone, "the replicas are gone")

    async def _is_gone(self) -> bool:
        return not await self.fetch()


def _check_distinct(addresses: dict[str, str], entry: str) -> None:
    assert len(set(addresses.values())) == REPLICAS, addresses
    assert all(ip_interface(address).ip in ip_network(SUBNETS[entry]) for address in addresses.values())


async def test_replicas_of_one_template_have_distinct_addresses_of_host_local(
    installed: Path, pods: PodMaker, shell: Shell
) -> None:
    replicas = Replicas(pods, shell, "local")
    running = await replicas.start()
    addresses = await replicas.read_addresses(running)
    _check_distinct(addresses, "local")
    held = await asyncio.to_thread(read_host_local, installed, "local")
    assert sorted(held) == sorted(address.partition("/")[0] for address in addresses.values())
    assert {owner[0].rpartition(".")[2] for owner in held.values()} == {
        pod["metadata"]["uid"] for pod in running
    }
    name = running[0]["metadata"]["name"]
    route = await shell.run(f"kubectl -n {pods.namespace} exec {name} -- ip route show 10.200.0.0/16")
    assert "via 10.201.0.1 dev net1" in route

    await pods.delete(name)
    again = await wait_until(replicas.list_ready, "another replica is there", 120)
    _check_distinct(await replicas.read_addresses(again), "local")
    await replicas.end()
    await wait_until(lambda: _has_none(installed), "host-local has released every address")


async def _has_none(data: Path) -> bool:
    return not await asyncio.to_thread(read_host_local, data, "local")


async def test_replicas_of_one_template_have_distinct_addresses_of_whereabouts(
    pods: PodMaker, shell: Shell
) -> None:
    replicas = Replicas(pods, shell, "cluster")
    running = await replicas.start()
    addresses = await replicas.read_addresses(running)
    _check_distinct(addresses, "cluster")
    assert await _read_allocations(shell) == {f"{pods.namespace}/{name}" for name in addresses}
    await replicas.end()

    async def has_none() -> bool:
        return not await _read_allocations(shell)

    await wait_until(has_none, "whereabouts has released every address")


async def _read_allocations(shell: Shell) -> set[str]:
    """The pods that have addresses, as whereabouts records them."""
    pools: list[Any] = json.loads(await shell.run("kubectl get ippools.whereabouts.cni.cncf.io -A -o json"))[
        "items"
    ]
    return {entry["podref"] for pool in pools for entry in pool["spec"]["allocations"].values()}
