"""Claims as far as the driver reads them (``resource.k8s.io/v1``), and the pods and containers that use them.

That is what the container runtime reports about these, the changes that it accepts, and settings for
programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.model.facts import CharDevice


class _ObjectRef(Struct, frozen=True):
    """A name can be reused, ``uid`` cannot."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimRef(_ObjectRef, frozen=True):
    """Which claim."""


class PodRef(_ObjectRef, frozen=True):
    """A pod that a claim is reserved for."""


class ConfigSource(StrEnum):
    """The author of an opaque config."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


class OpaqueConfig(Struct, frozen=True):
    """One entry of ``status.allocation.devices.config``; ``requests`` empty means all."""

    source: ConfigSource
    driver: str
    parameters: Mapping[str, Any]
    requests: tuple[str, ...] = ()


class AllocationResult(Struct, frozen=True):
    """One entry of ``status.allocation.devices.results``. ``request`` may be ``req`` or ``req/sub``."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    bandwidth: int | None = None
    """Bits per second that it took of a shared device; ``None`` where they are not counted."""

    @property
    def main_request(self) -> str:
        """The request's own name without the alternative that won (KEP-4816)."""
        return self.request.partition("/")[0]


class Consumer(Struct, frozen=True):
    """One entry of ``status.reservedFor``."""

    resource: str
    name: str
    uid: str
    api_group: str = ""

    @property
    def is_pod(self) -> bool:
        return self.resource == "pods" and not self.api_group

    @property
    def is_pod_group(self) -> bool:
        """A PodGroup, in whose name all its pods use the claim (KEP-5729)."""
        return self.resource == "podgroups" and self.api_group == "scheduling.k8s.io"


class Claim(Struct, frozen=True):
    """A claim as fetched. ``allocated`` is false while ``status.allocation`` is absent."""

    ref: ClaimRef
    allocated: bool = False
    results: tuple[AllocationResult, ...] = ()
    configs: tuple[OpaqueConfig, ...] = ()
    reserved_for: tuple[Consumer, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    request_classes: Mapping[str, str] = field(default_factory=dict)
    """DeviceClass by request, or by ``request/alternative`` (KEP-4816), as ``results`` call it."""
    node_name: str = ""
    """The one node of which the allocation is; empty where its node selector has another form."""


UNLIMITED = -1
"""``RLIM_INFINITY``."""

MEMLOCK = "RLIMIT_MEMLOCK"
"""The OCI runtime spec's name; in bytes."""


class PodSandbox(Struct, frozen=True):
    """A pod sandbox. ``netns_path`` is empty on host networking and, at Stop, on older runtimes."""

    id: str
    name: str
    namespace: str
    uid: str
    netns_path: str = ""
    pid: int = 0
    """0 once the sandbox has stopped."""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_on_host_network(self) -> bool:
        """Whether it has no network namespace of its own; not to be asked at Stop."""
        return not self.netns_path

    @property
    def place(self) -> str:
        """A path that leads to its network namespace while the sandbox lives.

        That of a sandbox on the host's network ends with its process. Where the runtime runs none (CRI-O) it
        is that of the node, and ends with the node.
        """
        return self.netns_path or f"/proc/{self.pid or 1}/ns/net"

    @property
    def running(self) -> bool:
        """Whether the sandbox lives (only from Synchronize on: stopped ones are listed with pid 0)."""
        return self.pid > 0


class Mount(Struct, frozen=True):
    source: str
    destination: str
    type: str = "bind"
    options: tuple[str, ...] = ("ro", "bind")


class Rlimit(Struct, frozen=True):
    """A resource limit of a container's processes (``getrlimit(2)``); -1 is unlimited."""

    type: str
    soft: int
    hard: int

    def permits(self, amount: int) -> bool:
        """Whether a process may take so much (-1: any amount) without asking for more."""
        return self.soft == UNLIMITED or (amount != UNLIMITED and amount <= self.soft)


class Container(Struct, frozen=True):
    """A container about to be created in a pod, with what plugins before us add to it, or one that exists.
    ``mounts`` include those of its CDI devices; ``rlimits`` are those that its image or an earlier plugin
    set, not the ones that it inherits; the last one of a type counts."""

    id: str
    name: str
    pod_sandbox_id: str
    mounts: tuple[Mount, ...] = ()
    rlimits: tuple[Rlimit, ...] = ()
    devices: tuple[CharDevice, ...] = ()
    running: bool = False
    """Its processes live, perhaps frozen; false for one that is only created (known from Synchronize
    alone)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of its image and those that the pod or a device plugin sets. For containers that exist
    already (known from Synchronize) only what may name GPUs; likewise ``devices`` and ``cdi_devices``."""
    memory_nodes: str = ""
    """NUMA nodes that its memory may come from (cpuset), where the kubelet or an earlier plugin set them."""
    cdi_devices: tuple[str, ...] = ()
    """Qualified names (``vendor.com/class=device``), as far as the runtime reports them."""


class MemoryPolicy(Struct, frozen=True):
    """Where the memory of a container's processes comes from (``set_mempolicy(2)``)."""

    mode: str
    """``MPOL_PREFERRED_MANY``, ``MPOL_INTERLEAVE``."""
    nodes: str


class ContainerAdjustment(Struct, frozen=True):
    """What the driver adds to a container."""

    devices: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    rlimits: tuple[Rlimit, ...] = ()
    memory_nodes: str = ""
    """NUMA nodes alone that its memory may come from (cpuset); empty leaves it alone."""
    memory_policy: MemoryPolicy | None = None

    def without(self, container: Container) -> ContainerAdjustment:
        """What of it the container does not have yet. A runtime fails a container to which two plugins add
        the same, be they two instances of one."""
        nodes = {(node.path, node.major, node.minor) for node in container.devices}
        targets = {(mount.source, mount.destination) for mount in container.mounts}
        return replace(
            self,
            devices=tuple(n for n in self.devices if (n.path, n.major, n.minor) not in nodes),
            mounts=tuple(m for m in self.mounts if (m.source, m.destination) not in targets),
            rlimits=tuple(limit for limit in self.rlimits if limit not in container.rlimits),
            env=tuple((name, value) for name, value in self.env if name not in container.env),
            memory_nodes="" if container.memory_nodes else self.memory_nodes,
        )


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
