"""What a container gets for the libraries in it: wishes of several devices as one, variables, memory.

What the container's environment has already, from its image or from the pod, stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from dranet.claims.nccl.config import CONF_FILE, TOPO_FILE, is_plain
from dranet.claims.nccl.devices import PodNic
from dranet.errors import ClaimError, Reason
from dranet.model.device import Device
from dranet.model.plan import PreparedClaim
from dranet.model.workload import (
    AUTO,
    CONFIG_NAME,
    CONFIG_PATH,
    NO_WISHES,
    TOPOLOGY_NAME,
    TOPOLOGY_PATH,
    NcclWishes,
    WorkloadWishes,
)

T = TypeVar("T")


UCX_NET_DEVICES = "UCX_NET_DEVICES"
FORK_SAFE, HUGE_PAGES_SAFE = "RDMAV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"
_SAME_MEANING = {FORK_SAFE: "IBV_FORK_SAFE"}
"""Another name by which libibverbs takes the same."""


def merge_wishes(records: Iterable[PreparedClaim]) -> WorkloadWishes:
    """The wishes of all devices of some claims of one pod.

    Raises:
        ClaimError: InvalidConfig: two devices ask for different things of which there is one.
    """
    wishes = [
        device.workload for record in records for device in record.devices if device.workload != NO_WISHES
    ]
    if not wishes:
        return NO_WISHES
    nccl = [wish.nccl for wish in wishes]
    return WorkloadWishes(
        NcclWishes(
            any(wish.topology_file for wish in nccl),
            any(wish.config_file for wish in nccl),
            _one("nccl.gidIndex", [wish.gid_index for wish in nccl], None),
            _one("nccl.crossNic", [wish.cross_nic for wish in nccl], None),
            _one("nccl.socketInterface", [wish.socket_interface for wish in nccl], ""),
        ),
        any(wish.ucx_net_devices for wish in wishes),
        any(wish.fork_safe for wish in wishes),
        any(wish.huge_pages_safe for wish in wishes),
        _one("memory.policy", [wish.memory_policy for wish in wishes], ""),
    )


def _one(path: str, values: Iterable[T], nothing: T) -> T:
    asked = [value for value in dict.fromkeys(values) if value != nothing]
    if len(asked) > 1:
        told = " and ".join("auto" if value == AUTO else str(value) for value in asked)
        raise ClaimError(
            f"{path}: devices of the pod ask for {told}, and its containers can have one",
            hint="say the same for all devices of the pod, or say it once",
            reason=Reason.INVALID_CONFIG,
        )
    return asked[0] if asked else nothing


def build_environment(
    wishes: WorkloadWishes, nics: Sequence[PodNic], files: Collection[str], given: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """Variables to add.

    Args:
        wishes: of the container.
        nics: of the pod, those that are for UCX, in the order of its GPUs.
        files: names of those that the container gets.
        given: names of the variables that it has.
    """
    wanted = [*_name_files(files, given), *_name_devices(wishes, nics)]
    wanted += [(FORK_SAFE, "1")] * wishes.fork_safe + [(HUGE_PAGES_SAFE, "1")] * wishes.huge_pages_safe
    return tuple(
        (name, value) for name, value in wanted if name not in given and _SAME_MEANING.get(name) not in given
    )


def _name_files(files: Collection[str], given: Collection[str]) -> Iterator[tuple[str, str]]:
    """A config file of the container's own may name a topology, over which a variable would win."""
    if CONFIG_NAME in files:
        yield CONF_FILE, CONFIG_PATH
    elif TOPOLOGY_NAME in files and CONF_FILE not in given:
        yield TOPO_FILE, TOPOLOGY_PATH


def _name_devices(wishes: WorkloadWishes, nics: Sequence[PodNic]) -> Iterator[tuple[str, str]]:
    """UCX counts ports; a device without RDMA goes by the name of its interface."""
    if wishes.ucx_net_devices:
        names = [name for nic in nics for name in _ucx_names(nic)]
        if names:
            yield UCX_NET_DEVICES, ",".join(dict.fromkeys(names))


def _ucx_names(nic: PodNic) -> Iterator[str]:
    if nic.rdma_device and is_plain(nic.rdma_device):
        yield from (f"{nic.rdma_device}:{port}" for port in nic.ports)
    elif is_plain(nic.ifname):
        yield nic.ifname


def list_memory_nodes(
    nics: Iterable[PodNic], gpus: Iterable[Device], with_memory: Collection[int] | None
) -> tuple[int, ...]:
    """NUMA nodes of a pod's devices, as far as the node says.

    Args:
        nics: those that ask for memory near them.
        gpus: of the pod.
        with_memory: the NUMA nodes that have memory; ``None``: not known. The kernel refuses others.

    Raises:
        ClaimError: MissingFeature: none of them has memory.
    """
    devices = [*(nic.device for nic in nics), *gpus]
    near = sorted({device.numa_node for device in devices if device.numa_node is not None})
    usable = tuple(node for node in near if with_memory is None or node in with_memory)
    if near and not usable:
        raise ClaimError(
            f"memory.policy: the pod's devices are on NUMA nodes without memory: {', '.join(map(str, near))}",
            hint="leave it out for this device",
            reason=Reason.MISSING_FEATURE,
        )
    return usable
