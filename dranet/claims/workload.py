"""What a container gets for its libraries: the merged settings of several devices, variables, memory.

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
    NO_WORKLOAD_SETTINGS,
    TOPOLOGY_NAME,
    TOPOLOGY_PATH,
    NcclSettings,
    WorkloadSettings,
)

T = TypeVar("T")


UCX_NET_DEVICES = "UCX_NET_DEVICES"
FORK_SAFE, HUGE_PAGES_SAFE = "RDMAV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"
_SAME_MEANING = {FORK_SAFE: "IBV_FORK_SAFE"}
"""Another name of libibverbs for the same setting."""


def merge_settings(records: Iterable[PreparedClaim]) -> WorkloadSettings:
    """Merge the settings of all devices of some claims of one pod.

    Raises:
        ClaimError: InvalidConfig: two devices ask for different things of which there is one.
    """
    settings = [
        device.workload
        for record in records
        for device in record.devices
        if device.workload != NO_WORKLOAD_SETTINGS
    ]
    if not settings:
        return NO_WORKLOAD_SETTINGS
    nccl = [one.nccl for one in settings]
    return WorkloadSettings(
        NcclSettings(
            any(one.topology_file for one in nccl),
            any(one.config_file for one in nccl),
            _one("nccl.gidIndex", [one.gid_index for one in nccl], None),
            _one("nccl.crossNic", [one.cross_nic for one in nccl], None),
            _one("nccl.socketInterface", [one.socket_interface for one in nccl], ""),
        ),
        any(one.ucx_net_devices for one in settings),
        any(one.fork_safe for one in settings),
        any(one.huge_pages_safe for one in settings),
        _one("memory.policy", [one.memory_policy for one in settings], ""),
    )


def _one(path: str, values: Iterable[T], nothing: T) -> T:
    asked = [value for value in dict.fromkeys(values) if value != nothing]
    if len(asked) > 1:
        listed = " and ".join("auto" if value == AUTO else str(value) for value in asked)
        raise ClaimError(
            f"{path}: devices of the pod ask for {listed}, and its containers can have one",
            hint="set the same for all devices of the pod, or set it once",
            reason=Reason.INVALID_CONFIG,
        )
    return asked[0] if asked else nothing


def build_environment(
    settings: WorkloadSettings, nics: Sequence[PodNic], files: Collection[str], present: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables to add.

    Args:
        settings: the container's.
        nics: the pod's devices for UCX, in the order of its GPUs.
        files: names of the files that the container gets.
        present: names of the variables that it has.
    """
    wanted = [*_name_files(files, present), *_name_devices(settings, nics)]
    wanted += [(FORK_SAFE, "1")] * settings.fork_safe + [(HUGE_PAGES_SAFE, "1")] * settings.huge_pages_safe
    return tuple(
        (name, value)
        for name, value in wanted
        if name not in present and _SAME_MEANING.get(name) not in present
    )


def _name_files(files: Collection[str], present: Collection[str]) -> Iterator[tuple[str, str]]:
    """A config file of the container's own may name a topology, over which a variable would win."""
    if CONFIG_NAME in files:
        yield CONF_FILE, CONFIG_PATH
    elif TOPOLOGY_NAME in files and CONF_FILE not in present:
        yield TOPO_FILE, TOPOLOGY_PATH


def _name_devices(settings: WorkloadSettings, nics: Sequence[PodNic]) -> Iterator[tuple[str, str]]:
    """UCX counts ports; a device without RDMA goes by the name of its interface."""
    if settings.ucx_net_devices:
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
    """Return the NUMA nodes of a pod's devices, as far as the node reports them.

    Args:
        nics: those that ask for memory near them.
        gpus: the pod's.
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
