"""The kubelet: its version beside the API server's, its gates, and who chooses a pod's CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dranet.desk.doctor.checks import Surroundings, Told, check, fine, note, problem, warning

KUBELET = "kubelet"

LEAST = (1, 34)
"""resource.k8s.io/v1 is on from here."""
MOST_SKEW = 3
"""Minor versions that a kubelet may be behind the API server (Kubernetes' version skew policy)."""

_VERSION = re.compile(r"v?([0-9]{1,2})\.([0-9]{1,3})")
_GATE = "DynamicResourceAllocation"


def parse_version(text: str) -> tuple[int, int] | None:
    """``v1.35.2-eks-1`` -> (1, 35)."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


@check(
    "kubelet-old",
    KUBELET,
    "the kubelet's version",
    matters="Before 1.34 dynamic resource allocation is behind a feature gate, and its API is not the "
    "one that the driver writes.",
    mend="Update the node to Kubernetes 1.34 or later.",
)
def version(seen: Surroundings) -> Iterator[Told]:
    found = parse_version(seen.cluster.kubelet_version)
    if found is not None:
        text = f"kubelet {seen.cluster.kubelet_version}"
        yield fine(text) if found >= LEAST else problem(text)


@check(
    "kubelet-skew",
    KUBELET,
    "the kubelet's version beside the API server's",
    matters="Kubernetes supports a kubelet that is up to three minor versions behind the API server, and "
    "none that is ahead: fields that one of them does not know get lost.",
    mend="Update the control plane first, then the nodes.",
)
def skew(seen: Surroundings) -> Iterator[Told]:
    ours, theirs = parse_version(seen.cluster.kubelet_version), parse_version(seen.cluster.server_version)
    if ours is None or theirs is None:
        return
    if ours > theirs or theirs[1] - ours[1] > MOST_SKEW:
        yield warning(f"kubelet {seen.cluster.kubelet_version}, API server {seen.cluster.server_version}")


@check(
    "kubelet-gate-off",
    KUBELET,
    "the feature gate DynamicResourceAllocation of the kubelet",
    matters="The kubelet prepares no claims, so no pod with one starts here.",
    mend="Take `DynamicResourceAllocation: false` out of featureGates in the kubelet's configuration.",
)
def gate(seen: Surroundings) -> Iterator[Told]:
    config = seen.host.kubelet
    if config is not None and dict(config.feature_gates).get(_GATE) is False:
        yield problem(f"{_GATE} is off in {config.path}")


@check(
    "topology-manager",
    KUBELET,
    "who chooses the CPUs and the memory of a pod (CPU, memory and Topology Manager)",
    matters="Without the static CPU manager a pod's threads wander over all sockets, whatever NUMA node "
    "its NIC and GPU are on. The Topology Manager does not know devices of DRA drivers: it does not help "
    "a claim, and single-numa-node can refuse a pod whose device plugins and CPUs lie apart.",
    mend="`cpuManagerPolicy: static` (whole CPUs, Guaranteed pods), `memoryManagerPolicy: Static` where "
    "memory is to be near; NICs and GPUs stay aligned by the claim (docs/user/alignment.md). Before a "
    "change of policy: drain the node, remove cpu_manager_state.",
)
def managers(seen: Surroundings) -> Iterator[Told]:
    config = seen.host.kubelet
    if config is None or not seen.is_fast or len(seen.node.numa_nodes) < 2:
        return
    told = f"CPU manager {config.cpu_policy or 'unknown'}, memory manager {config.memory_policy or 'unknown'}"
    topology = f", topology manager {config.topology_policy}" if config.topology_policy else ""
    tell = fine if config.cpu_policy == "static" else note
    yield tell(f"{told}{topology} ({config.path})")


CHECKS = (version, skew, gate, managers)
