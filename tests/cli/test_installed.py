"""``dranet installed``, which `helm test` runs, against an API server."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dranet.cli.installed import Driver, Found, judge, wait_until_installed
from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from dranet.errors import ClusterError
from dranet.health import TAINT_KEYS
from testbed.apiserver.server import ApiServer
from tests.tools.manifests.chart.cluster import extend_server

JsonObject = dict[str, Any]

LABELS = {"app.kubernetes.io/component": "driver"}
OPTIONS = argparse.Namespace(daemonsets=["dranet"], namespace="default", driver_name="dra.net", timeout=0.0)


def make_daemonset(
    wanted: int = 2, ready: int = 2, updated: int = 2, strategy: str = "RollingUpdate"
) -> JsonObject:
    return {
        "metadata": {"name": "dranet", "namespace": "default", "generation": 1},
        "spec": {"selector": {"matchLabels": LABELS}, "updateStrategy": {"type": strategy}},
        "status": {
            "observedGeneration": 1,
            "desiredNumberScheduled": wanted,
            "numberReady": ready,
            "updatedNumberScheduled": updated,
        },
    }


def make_pod(node: str, **status: Any) -> JsonObject:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "metadata": {"name": f"dranet-{node}", "namespace": "default", "labels": LABELS},
        "spec": {"nodeName": node, "containers": [{"name": "dranet", "image": "dranet"}]},
        "status": {"phase": "Running", **(status or ready)},
    }


def make_slice(node: str, *devices: JsonObject) -> JsonObject:
    return {
        "metadata": {"name": f"{node}-dra.net"},
        "spec": {
            "driver": "dra.net",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def look(daemonset: JsonObject, pods: list[JsonObject], slices: list[JsonObject]) -> Found:
    return judge("dra.net", [Driver(daemonset, pods)], slices)


PODS = [make_pod("a"), make_pod("b")]
SLICES = [make_slice("a", {"name": "eth0"}, {"name": "eth1"}), make_slice("b", {"name": "eth0"})]


def test_an_installation_that_works_has_no_problem() -> None:
    assert look(make_daemonset(), PODS, SLICES) == Found(
        ("ok: DaemonSet dranet is ready on 2 nodes", "ok: 3 devices of dra.net on 2 nodes"), (), ()
    )


def test_a_pod_that_is_not_ready_has_the_reason_of_the_kubelet() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "r.example/dranet"'}
    ended = {"reason": "Error", "exitCode": 2, "message": "dranet: settings.yaml: unknown key\n"}
    pods = [
        make_pod("a", containerStatuses=[{"name": "dranet", "state": {"waiting": waiting}}]),
        make_pod(
            "b", containerStatuses=[{"name": "dranet", "state": {}, "lastState": {"terminated": ended}}]
        ),
        make_pod("", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]),
        make_pod("c", phase="Pending"),
    ]
    assert look(make_daemonset(wanted=4, ready=0), pods, []).problems == (
        "problem: DaemonSet dranet is ready on 0 of 4 nodes",
        '  pod dranet-a on node a: dranet: ImagePullBackOff: Back-off pulling image "r.example/dranet"',
        "  pod dranet-b on node b: dranet ended with exit code 2: Error: dranet: settings.yaml: unknown key",
        "  pod dranet- on node none yet: not scheduled: Unschedulable",
        "  pod dranet-c on node c: not ready (Pending)",
        "  fix: read `kubectl -n default describe pod POD`, and the log of the pod",
    )


def test_pods_of_the_version_before_do_not_count_unless_they_are_replaced_by_hand() -> None:
    problem = look(make_daemonset(updated=1), PODS, SLICES).problems[0]
    assert problem == "problem: the new version of DaemonSet dranet is ready on 1 of 2 nodes"
    assert not look(make_daemonset(updated=1, strategy="OnDelete"), PODS, SLICES).problems


def test_a_daemonset_that_the_controller_has_not_seen_is_not_ready_and_one_without_nodes_never_is() -> None:
    unseen = make_daemonset(wanted=0, ready=0)
    del unseen["status"]
    assert look(unseen, [], []).problems[0] == "problem: DaemonSet dranet is ready on 0 of 0 nodes"
    assert look(make_daemonset(wanted=0, ready=0), [], []).problems == (
        "problem: DaemonSet dranet selects no node",
        "  fix: compare nodeSelector, affinity and tolerations with `kubectl get nodes --show-labels`",
    )


def test_a_node_without_a_slice_is_a_problem_and_one_without_a_device_is_noted() -> None:
    found = look(make_daemonset(), PODS, [make_slice("a")])
    assert found.problems == (
        "problem: node b has a ready driver and no ResourceSlice of dra.net",
        "  fix: look for a refusal of the API server in the log of the node's driver",
    )
    assert found.notes == ("note: node a publishes no device; `dranet devices` in its pod has the reasons",)


def test_a_fault_of_a_device_is_noted_and_a_taint_of_others_is_not() -> None:
    taints = [
        {"key": TAINT_KEYS[0], "value": "link-down", "effect": "NoSchedule"},
        {"key": "example.com/reserved", "value": "x", "effect": "NoSchedule"},
    ]
    slices = [make_slice("a", {"name": "eth0", "taints": taints}), SLICES[1]]
    found = look(make_daemonset(), PODS, slices)
    assert found.notes == ("note: node a: device eth0 has a fault: link-down",)
    assert not found.problems


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiClient]:
    extend_server(monkeypatch)
    async with ApiServer() as server:
        yield ApiClient(access_from_url(server.url))


@pytest.mark.socket
async def test_it_asks_the_api_server(client: ApiClient) -> None:
    with pytest.raises(ClusterError, match="daemonsets"):
        await wait_until_installed(client, OPTIONS)
    made = make_daemonset(wanted=1)
    await client.create(
        "/apis/apps/v1/namespaces/default/daemonsets", {key: made[key] for key in ("metadata", "spec")}
    )
    found = await wait_until_installed(client, OPTIONS)
    assert found.problems[0] == "problem: DaemonSet dranet is ready on 0 of 0 nodes"
    await client.patch(f"{paths.daemon_set('default', 'dranet')}/status", {"status": made["status"]})
    await client.create(paths.pods("default"), make_pod("a"))
    await client.patch(paths.pod_status("default", "dranet-a"), {"status": make_pod("a")["status"]})
    await client.create(paths.RESOURCE_SLICES, make_slice("a", {"name": "eth0"}))
    assert (await wait_until_installed(client, OPTIONS)).good == (
        "ok: DaemonSet dranet is ready on 1 node",
        "ok: 1 device of dra.net on 1 node",
    )
