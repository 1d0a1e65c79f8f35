"""Settings of a claim for the programs in its containers: hints for the libraries that use the device, and
memory near it. Decided at Prepare, applied when a container is created.
"""

from __future__ import annotations

from msgspec import Struct, field

AUTO = -1
"""The driver finds the value of :attr:`NcclSettings.gid_index` and :attr:`NcclSettings.cross_nic`."""

FOLDER = "/var/run/dranet/nccl"
"""Where a container sees the files."""
CONFIG_NAME, TOPOLOGY_NAME = "nccl.conf", "topology.xml"
CONFIG_PATH, TOPOLOGY_PATH = f"{FOLDER}/{CONFIG_NAME}", f"{FOLDER}/{TOPOLOGY_NAME}"


class NcclSettings(Struct, frozen=True):
    """Files for NCCL and RCCL."""

    topology_file: bool = False
    config_file: bool = False
    gid_index: int | None = None
    """Or :data:`AUTO`."""
    cross_nic: int | None = None
    """0 to 2, or :data:`AUTO`."""
    socket_interface: str = ""
    """As the pod calls it; empty: that of its default route."""


class WorkloadSettings(Struct, frozen=True):
    """Settings of one device, or of all devices that a container can use."""

    nccl: NcclSettings = field(default=NcclSettings())
    ucx_net_devices: bool = False
    fork_safe: bool = False
    """libibverbs: the program may fork."""
    huge_pages_safe: bool = False
    """libibverbs: the program may use huge pages."""
    memory_policy: str = ""
    """``bind``, ``preferred``, ``interleave`` or empty."""


NO_WORKLOAD_SETTINGS = WorkloadSettings()


class Processor(Struct, frozen=True):
    """The kind of the node's processors, as ``/proc/cpuinfo`` shows it on x86."""

    vendor: str = ""
    """``GenuineIntel``; with its blanks, where it has some."""
    family: int | None = None
    model: int | None = None


class GidSlot(Struct, frozen=True):
    """One entry of the GID table of an RDMA device."""

    port: int
    index: int
    gid: str
    """As the kernel writes it: ``0000:0000:0000:0000:0000:ffff:0a09:0005``."""
    type: str = ""
    """``IB/RoCE v1`` or ``RoCE v2``."""
