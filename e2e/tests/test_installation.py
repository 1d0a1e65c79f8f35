"""The driver installed as documented, by the real kubectl and the real helm.

Each installation is the administrator's own: the cluster has none before and none afterwards.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from dranet import __version__
from e2e.cluster import described_node
from e2e.cluster.local import LocalCluster
from e2e.cluster.testing import RELEASE
from e2e.installation import SYSTEM_NAMESPACE
from e2e.live_cluster import LiveCluster
from e2e.objects import JsonObject
from e2e.tests.conftest import open_pods
from e2e.tests.pods import PodMaker, wait_until
from e2e.tests.shell import Shell
from tools.image.base import host_architecture
from tools.project import read_project

_ROLLED_OUT = "kubectl -n dranet-system rollout status daemonset/dranet --timeout=120s"
_RELEASED = f"{read_project().image}:{__version__}"
_VALUES = "--namespace dranet-system --set image.repository=registry.example.com/dranet"
_INSTALL = f"helm install dranet ./charts/dranet --create-namespace {_VALUES}\n{_ROLLED_OUT}"
_UPGRADE = (
    "helm upgrade dranet ./charts/dranet --namespace dranet-system "
    "--reset-then-reuse-values --set settings.log_level=debug"
)
_TEST = "helm test dranet --namespace dranet-system --logs"
_UNINSTALL = "helm uninstall dranet --namespace dranet-system"
_EDIT = """
kubectl patch clusterrole dranet --type=json --patch '[{"op": "remove", "path": "/rules/0"}]'
kubectl -n dranet-system patch configmap dranet --patch '{"data": {"settings.yaml": "log_level: error"}}'
"""
_COMPARE = "helm get manifest dranet --namespace dranet-system | kubectl diff -f -"
"""Its exit code is 1 where an object differs from the release."""
_WRONG_VALUES = {
    "settings.log_level=loud": 'settings.log_level: "loud" is not one of debug, info, warning, error',
    "settings.lgo_level=debug": "there is no such value. Did you mean settings.log_level?",
    "image.tag=1": "image.tag: 1 is a whole number, and text is needed; put it in quotes",
    "tolerations=null": "tolerations is empty (null). Write [] for none",
    "updateStrategy.rollingUpdate.maxUnavailable=1": "one of maxSurge and maxUnavailable must be 0",
    "nameOverride=foo": "Helm would delete the running drivers before the new ones are ready",
    "settings.driver_name=nic.example.com": "settings.driver_name: this release runs with dra.net",
    "namespace.create=true": 'Namespace "dranet-system" in namespace "" exists and cannot be imported',
}
"""A value and helm's message about it: by the chart's checks of each value and of what does not fit together,
and by helm's own rules."""
_LABELS_ROLLED_OUT = _ROLLED_OUT.replace("daemonset/dranet", "deployment/dranet-topology-labels")
_AS_LABELS = "--as=system:serviceaccount:dranet-system:dranet-topology-labels"
_FABRIC = f"{sys.executable} -m dranet.cli.main fabric"
_IGNORED = re.compile(r" kube-node-lease | test-[0-9]+\b")
_WITHDRAWN_SECONDS = 90.0
"""The kubelet withdraws the slices of a driver that has been gone for 30 s."""


@pytest_asyncio.fixture(scope="class")
async def bare(cluster: LocalCluster) -> AsyncIterator[LiveCluster]:
    """The cluster without the driver. It takes the published manifests as they are."""
    await described_node.add_policies(cluster)
    async with LiveCluster(cluster.build_access()) as opened:
        yield opened
    await described_node.remove_policies(cluster)


@pytest_asyncio.fixture
async def pods(bare: LiveCluster, namespace: str) -> AsyncIterator[PodMaker]:
    async with open_pods(bare, namespace) as maker:
        yield maker


@pytest_asyncio.fixture
async def emptied(bare: LiveCluster, shell: Shell) -> AsyncIterator[None]:
    """Removes an installation that a failed test leaves."""
    yield
    await shell.run(f"{_UNINSTALL} --ignore-not-found\nkubectl delete -k deploy --ignore-not-found")
    await wait_until(partial(has_ended, bare), "the driver's end")


@pytest.mark.usefixtures("emptied")
class TestManifests:
    async def test_deploy_makes_a_driver_and_takes_all_of_it_away(
        self, bare: LiveCluster, shell: Shell
    ) -> None:
        objects, host = await list_objects(shell), await bare.read_host_state()
        await shell.run(f"kubectl apply -k deploy\n{_ROLLED_OUT}")
        (slice_,) = await wait_until(bare.fetch_slices, "the node's slices")
        assert len(slice_["spec"]["devices"]) == 18
        await shell.run("kubectl delete -k deploy --ignore-not-found")
        await wait_until(partial(has_no_slices, bare), "the slices are withdrawn", _WITHDRAWN_SECONDS)
        assert await list_objects(shell) - objects == set()
        assert not host.differences(await bare.read_host_state())

    async def test_helm_takes_over_what_kubectl_applied(
        self, bare: LiveCluster, shell: Shell, pods: PodMaker
    ) -> None:
        await shell.run(f"kubectl apply -k deploy\n{_ROLLED_OUT}")
        await pods.run("keeps")
        before = await observe(pods, "keeps")
        await shell.run(f"helm install dranet ./charts/dranet --take-ownership {_VALUES}\n{_ROLLED_OUT}")
        assert await observe(pods, "keeps") == before
        driver = await wait_driver(bare)
        assert get_image(driver).startswith("registry.example.com/")
        await pods.delete("keeps")
        await shell.run(_UNINSTALL)
        left = await shell.run("kubectl get -k deploy --ignore-not-found --no-headers -o name")
        assert left.split() == [f"namespace/{SYSTEM_NAMESPACE}"]
        await shell.run(f"kubectl delete namespace {SYSTEM_NAMESPACE}")


@pytest_asyncio.fixture(scope="class")
async def published(cluster: LocalCluster, pytestconfig: pytest.Config) -> Path:
    """The folder of a release. The node has its image, under the name that the release gives it."""
    folder = pytestconfig.stash[RELEASE]
    assert f"{_RELEASED} " in await cluster.node.runtime.import_archive(find_archive(folder))
    return folder


def find_archive(release: Path) -> Path:
    return release / f"dranet-image-{__version__}-{host_architecture()}.tar"


@pytest.mark.usefixtures("emptied")
class TestRelease:
    """Without a checkout and without a value, from the files of ``make release-dry-run``."""

    async def test_the_packaged_chart_gives_a_pod_its_nic(
        self, bare: LiveCluster, shell: Shell, pods: PodMaker, published: Path, tmp_path: Path
    ) -> None:
        namespace = f"--namespace {SYSTEM_NAMESPACE}"
        await shell.run(
            f"helm install dranet {published}/dranet-*.tgz {namespace} --create-namespace\n{_ROLLED_OUT}"
        )
        driver = await wait_driver(bare)
        assert get_image(driver) == _RELEASED
        assert get_image_id(driver) == read_image_id(find_archive(published))
        await pods.run("has-a-nic")
        assert (await observe(pods, "has-a-nic")).links
        await self.see_by_the_plugin(shell, published, tmp_path)
        await pods.delete("has-a-nic")
        await shell.run(f"{_UNINSTALL}\nkubectl delete namespace {SYSTEM_NAMESPACE}")

    async def see_by_the_plugin(self, shell: Shell, published: Path, folder: Path) -> None:
        """What the command line of the release, one file, shows of this cluster."""
        unpack = f"tar -xf {published}/kubectl-dranet-*.tar.gz -C {folder}"
        plugin = f"{unpack}; PATH={folder}:$PATH; kubectl dranet"
        (node,) = json.loads(await shell.run(f"{plugin} nodes -o json"))["nodes"]
        assert node["nics"] == {"allocated": 1, "offered": 10}
        versions = json.loads(await shell.run(f"{plugin} version -o json"))
        assert [one["version"] for one in versions["drivers"]] == [__version__]

    async def test_install_yaml_gives_a_pod_its_nic_and_takes_all_of_it_away(
        self, shell: Shell, pods: PodMaker, published: Path
    ) -> None:
        objects = await list_objects(shell)
        await shell.run(f"kubectl apply -f {published}/install.yaml\n{_ROLLED_OUT}")
        await pods.run("has-a-nic")
        assert (await observe(pods, "has-a-nic")).links
        await pods.delete("has-a-nic")
        await shell.run(f"kubectl delete -f {published}/install.yaml")
        left = await list_objects(shell) - objects
        assert {item for item in left if not item.startswith("ResourceSlice ")} == set()


@pytest_asyncio.fixture(scope="class")
async def release(shell: Shell) -> AsyncIterator[None]:
    """The driver by helm, until the last test of the class."""
    objects = await list_objects(shell)
    await shell.run(_INSTALL)
    yield
    await shell.run(f"{_UNINSTALL}\nkubectl delete namespace {SYSTEM_NAMESPACE}")
    left = await list_objects(shell) - objects
    assert {item for item in left if not item.startswith("ResourceSlice ")} == set()


@pytest.mark.usefixtures("bare", "release")
class TestHelm:
    async def test_a_wrong_value_is_refused_before_anything_is_changed(self, shell: Shell) -> None:
        before = await list_versions(shell)
        for wrong, complaint in _WRONG_VALUES.items():
            output = await shell.fail(f"helm upgrade dranet ./charts/dranet {_VALUES} --set {wrong}")
            assert complaint in output, output
        assert await list_versions(shell) == before

    async def test_helm_test_passes_and_prints_what_it_found(self, bare: LiveCluster, shell: Shell) -> None:
        (slice_,) = await wait_until(bare.fetch_slices, "the node's slices")
        output = await shell.run(_TEST)
        assert "ok: DaemonSet dranet is ready on 1 node" in output
        assert f"ok: {len(slice_['spec']['devices'])} devices of dra.net on 1 node" in output

    async def test_helm_test_fails_with_the_reason_where_the_driver_is_not_ready(self, shell: Shell) -> None:
        """A second release whose init container has an image that the node does not have."""
        init = {"name": "seccomp", "image": "registry.example.com/none", "imagePullPolicy": "Never"}
        patch = json.dumps({"spec": {"template": {"spec": {"initContainers": [init]}}}})
        values = "--set settings.driver_name=nic.example.com --set tests.timeoutSeconds=10"
        await shell.run(
            f"helm install nics ./charts/dranet --namespace nics --create-namespace {values} "
            "--set image.registry=registry.example.com\n"
            f"kubectl -n nics patch daemonset nics-dranet --patch '{patch}'"
        )
        try:
            output = await shell.fail("helm test nics --namespace nics --logs")
        finally:
            await shell.run("helm uninstall nics --namespace nics\nkubectl delete namespace nics")
        assert "problem: DaemonSet nics-dranet is ready on 0 of 1 node" in output
        assert re.search(r"pod nics-dranet-\w+ on node \S+: seccomp: ErrImageNeverPull: ", output), output

    async def test_nodes_are_labelled_with_their_place_until_a_command_removes_the_labels(
        self, shell: Shell
    ) -> None:
        """The placement comes from the operator's rules, and by the node's real slices from there."""
        place = {"match": "true", "set": {"gce.dra.net/block": "b1", "gce.dra.net/subBlock": "s/1"}}
        await shell.run(
            "helm upgrade dranet ./charts/dranet --namespace dranet-system --reset-then-reuse-values "
            f"--set topologyLabels.enabled=true --set-json 'attributes={json.dumps([place])}'\n"
            f"{_ROLLED_OUT}\n{_LABELS_ROLLED_OUT}"
        )
        await wait_until(partial(has_labels, shell, {"block", "subBlock"}), "the node's labels", 60)
        topology = await shell.run(f"{_FABRIC} -o kueue")
        assert "nodeLabel: fabric.dra.net/subBlock" in topology
        commands = (await shell.run(f"{_FABRIC} -o labels")).splitlines()
        assert "not labeled" in await shell.run("\n".join(commands[:-1]))  # they are there already
        refused = await shell.fail(f"kubectl {_AS_LABELS} label nodes --all pool=other")
        assert "this account changes only labels that begin with fabric.dra.net/" in refused
        refused = await shell.fail(f"kubectl {_AS_LABELS} taint nodes --all a=b:NoSchedule")
        assert "this account changes nothing of a node but labels" in refused
        await shell.run(f"helm rollback dranet --namespace dranet-system\n{_ROLLED_OUT}")
        assert await has_labels(shell, {"block", "subBlock"})
        await shell.run(commands[-1].removeprefix("# "))
        assert await has_labels(shell, set())

    async def test_pods_keep_their_nics_through_an_upgrade_and_the_way_back(
        self, bare: LiveCluster, shell: Shell, pods: PodMaker
    ) -> None:
        pod = await pods.run("keeps")
        before, slices = await observe(pods, "keeps"), await list_uids(bare)
        first = await wait_driver(bare)
        async with shell.ping(pods.namespace, "keeps", await find_gateway(bare, pod)):
            await shell.run(_EDIT)
            assert "ClusterRole..dranet" in await shell.fail(_COMPARE)
            await shell.run(_UPGRADE)
            await shell.run(_ROLLED_OUT)
            second = await wait_driver(bare)
            assert second["metadata"]["uid"] != first["metadata"]["uid"]
            assert get_image(second) == get_image(first)
            assert " DEBUG " in await shell.run("kubectl -n dranet-system logs daemonset/dranet")
            await shell.run(_COMPARE)
            assert await observe(pods, "keeps") == before
            assert await list_uids(bare) == slices
            await shell.run(f"helm rollback dranet --namespace dranet-system\n{_ROLLED_OUT}")
        third = await wait_driver(bare)
        assert third["metadata"]["uid"] != second["metadata"]["uid"]
        assert " DEBUG " not in await shell.run("kubectl -n dranet-system logs daemonset/dranet")
        assert await observe(pods, "keeps") == before
        assert await list_uids(bare) == slices

    async def test_pods_outlive_the_driver_and_the_next_one_restores_their_nics(
        self, bare: LiveCluster, shell: Shell, pods: PodMaker
    ) -> None:
        """A pod whose NIC stays on the node ends meanwhile: a NIC that moved would end with the pod here."""
        pod = await pods.run("keeps")
        ended = await pods.run("ends", parameters={"interface": {"type": "macvlan"}})
        before = await observe(pods, "keeps")
        async with shell.ping(pods.namespace, "keeps", await find_gateway(bare, pod)):
            await shell.run(_UNINSTALL)
            await wait_until(partial(has_ended, bare), "the driver's end")
            await shell.run(f"kubectl delete pod ends --namespace {pods.namespace} --wait=false")
            await wait_until(partial(has_no_processes, bare, ended), "the pod's processes end")
            assert (await pods.get("ends"))["metadata"]["deletionTimestamp"]
            assert await observe(pods, "keeps") == before
            await shell.run(_INSTALL)
            await pods.wait_gone("ends")
        assert await observe(pods, "keeps") == before


@dataclass(frozen=True, slots=True)
class Observed:
    """What of a pod changes with a restart, or with the loss of its NIC."""

    uid: str
    containers: list[str]
    restarts: list[int]
    links: list[str]


async def observe(pods: PodMaker, name: str) -> Observed:
    pod = await pods.get(name)
    statuses = pod["status"]["containerStatuses"]
    links = await pods.list_links(pod)
    assert links
    return Observed(
        pod["metadata"]["uid"],
        [status["containerID"] for status in statuses],
        [status["restartCount"] for status in statuses],
        links,
    )


async def find_gateway(bare: LiveCluster, pod: JsonObject) -> str:
    """The address at the other end of the pod's NIC."""
    assert bare.access.layout is not None
    assert bare.access.hands is not None
    netns = await bare.access.hands.find_netns(pod["metadata"]["uid"])
    ((_, nic),) = await asyncio.to_thread(bare.access.layout.nics_in, netns)
    return str(nic.network.gateway.ip)


async def wait_driver(bare: LiveCluster) -> JsonObject:
    """Wait until there is one instance, and return its pod."""

    async def fetch_only() -> list[JsonObject]:
        pods = await bare.driver.fetch_pods()
        return pods if len(pods) == 1 else []

    found: list[JsonObject] = await wait_until(fetch_only, "one driver")
    return found[0]


def get_image(driver: JsonObject) -> str:
    return str(driver["spec"]["containers"][0]["image"])


def get_image_id(driver: JsonObject) -> str:
    """The digest of the config of the image that runs, as the kubelet reports an image of no registry."""
    return str(driver["status"]["containerStatuses"][0]["imageID"])


def read_image_id(archive: Path) -> str:
    """The digest of the config of the only image of an OCI archive."""
    with tarfile.open(archive) as tar:

        def read(name: str) -> JsonObject:
            member = tar.extractfile(name)
            assert member is not None
            found: JsonObject = json.load(member)
            return found

        (entry,) = read("index.json")["manifests"]
        manifest = read(f"blobs/{entry['digest'].replace(':', '/')}")
    return str(manifest["config"]["digest"])


async def has_ended(bare: LiveCluster) -> bool:
    return not await bare.driver.fetch_pods()


async def has_no_processes(bare: LiveCluster, pod: JsonObject) -> bool:
    assert bare.access.hands is not None
    return not await bare.access.hands.find_netns(pod["metadata"]["uid"])


async def has_labels(shell: Shell, names: set[str]) -> bool:
    """Whether each node has these of our labels and no others."""
    nodes = json.loads(await shell.run("kubectl get nodes -o json"))["items"]
    prefix = "fabric.dra.net/"
    return all(
        {key.removeprefix(prefix) for key in node["metadata"]["labels"] if key.startswith(prefix)} == names
        for node in nodes
    )


async def has_no_slices(bare: LiveCluster) -> bool:
    return not await bare.fetch_slices()


async def list_uids(bare: LiveCluster) -> list[str]:
    """UIDs of the node's slices. One that is deleted and made again has another."""
    return [item["metadata"]["uid"] for item in await bare.fetch_slices()]


async def list_versions(shell: Shell) -> str:
    """What every write to the release's objects changes."""
    columns = "KIND:.kind,NAME:.metadata.name,GENERATION:.metadata.generation,UID:.metadata.uid"
    kinds = "daemonsets,configmaps,secrets,serviceaccounts"
    return await shell.run(f"kubectl -n dranet-system get {kinds} -o custom-columns={columns}")


async def list_objects(shell: Shell) -> set[str]:
    """Return kind, namespace and name of every object but Events, the node's Lease, and what tests make."""
    names = (await shell.run("kubectl api-resources --verbs=list -o name")).split()
    kinds = ",".join(name for name in names if not name.startswith("events"))
    columns = "KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
    output = await shell.run(f"kubectl get {kinds} -A --no-headers -o custom-columns={columns}")
    found = {" ".join(line.split()) for line in output.splitlines()}
    return {item for item in found if not _IGNORED.search(item)}
