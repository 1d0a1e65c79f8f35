"""What users expect of a cluster before the driver is there: a node that is ready, logs, exec."""

from __future__ import annotations

from dranet.cluster.client import ApiClient
from e2e.cluster.local import LocalCluster
from e2e.live_cluster import LiveCluster
from e2e.live_driver import is_ready


async def test_the_node_is_ready_and_has_the_version_of_the_programs(
    cluster: LocalCluster, api: ApiClient
) -> None:
    node = await api.get(f"/api/v1/nodes/{cluster.kubelet.node}")
    assert is_ready(node)
    wanted = cluster.plane.kit.kubernetes.version
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{wanted}"


async def test_the_driver_publishes_the_devices_of_the_described_hardware(live: LiveCluster) -> None:
    (slice_,) = await live.fetch_slices()
    assert len(slice_["spec"]["devices"]) == 18
