"""What ``dranet doctor`` reads of a node besides its devices: its tuning, and other managers of its links.

Unjudged: filled by ``dranet.kernel.host_checks``, judged by ``dranet.desk.doctor``. As in ``model.facts`` a
fact that is not known is ``None`` or empty, never a guess. What could not be read from here is in
:attr:`HostFacts.unseen`, so that unknown and absent differ.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

SOFT_OPTIONS: Mapping[str, str] = {
    "BPF_SYSCALL": "programs on a link are not seen",
    "IFB": "rate limits on what a pod receives",
    "IPVLAN": "ipvlan",
    "MACVLAN": "macvlan",
    "NET_CLS_U32": "rate limits on what a pod receives",
    "NET_SCH_TBF": "rate limits",
    "NET_VRF": "VRFs",
    "VLAN_8021Q": "VLANs",
}
"""What a claim may ask for -> by which option it comes."""


class Unseen(Struct, frozen=True):
    """Something that could not be looked at from here."""

    what: str
    """Reads after "not visible from here": ``the runtime's configuration``."""
    why: str
    """``no such file``, ``Permission denied``, ``another process namespace``."""


class KernelFacts(Struct, frozen=True):
    """The running kernel."""

    release: str = ""
    config: tuple[tuple[str, str], ...] | None = None
    """The options of interest that are on, with ``y`` or ``m``; ``None``: not readable."""
    command_line: str = ""
    """Its parameters that concern us."""
    modules: tuple[str, ...] = ()
    """Those of the ones we ask for that are loaded or built in."""


class PciFacts(Struct, frozen=True):
    """One function, or one bridge on the way to it, from its config space and sysfs."""

    address: str
    port: str = ""
    """``endpoint``, ``root port``, ``upstream port``, ``downstream port``; empty: none, or not readable."""
    is_readable: bool = False
    """The whole config space could be read, which takes root with CAP_SYS_ADMIN."""
    acs_control: int | None = None
    """The ACS control register; ``None``: it does not exist, or could not be read."""
    max_read_request: int | None = None
    """Bytes that one read may ask for."""
    relaxed_ordering: bool | None = None
    iommu: str = ""
    """Kind of the IOMMU domain (``identity``, ``DMA``, ``DMA-FQ``); empty: no IOMMU translates for it."""
    speed: str = ""
    """``current_link_speed`` text, as ``32.0 GT/s PCIe``."""
    width: int = 0
    max_speed: str = ""
    max_width: int = 0


class IdleState(Struct, frozen=True):
    """One state that a CPU may sleep in (``cpuidle``)."""

    name: str
    latency_us: int
    enabled: bool


class HugePages(Struct, frozen=True):
    """Pages of one size that one NUMA node keeps."""

    node: int
    size_kib: int
    count: int


class TuningFacts(Struct, frozen=True):
    """What decides how fast the node answers."""

    governors: tuple[str, ...] = ()
    """Each once, of all CPUs; empty: the kernel does not scale the clock (a virtual machine, often)."""
    governor_driver: str = ""
    """``intel_pstate``, ``amd-pstate-epp``, ``acpi-cpufreq`` ..."""
    energy_preferences: tuple[str, ...] = ()
    """``energy_performance_preference``, each once."""
    idle_states: tuple[IdleState, ...] = ()
    thp: str = ""
    """The word that is chosen in ``transparent_hugepage/enabled``: always, madvise or never."""
    thp_defrag: str = ""
    huge_pages: tuple[HugePages, ...] = ()
    numa_balancing: int | None = None
    swappiness: int | None = None
    swaps: tuple[str, ...] = ()
    clock_is_synchronised: bool | None = None
    """According to ``adjtimex(2)``; ``None``: unknown."""


class Process(Struct, frozen=True):
    """A program of the node that we ask for by its name."""

    pid: int
    name: str
    memlock: str = ""
    """The soft limit of "Max locked memory" in ``/proc/<pid>/limits``: bytes or ``unlimited``."""


class GpuStack(Struct, frozen=True):
    """What the vendors' drivers of GPUs show."""

    nvidia_driver: str = ""
    """``575.57.08``; empty: not loaded."""
    nvidia_is_open: bool = False
    """The open kernel modules, which give memory of a GPU as dma-buf."""
    nvswitches: int = 0


class FlowFacts(Struct, frozen=True):
    """How one Ethernet link with RDMA keeps from losing packets."""

    ifname: str
    pfc_priorities: int | None = None
    """Bits of the priorities that PFC pauses (IEEE 802.1Qbb), by DCB netlink; ``None``: unknown."""
    ecn_np: tuple[int, ...] | None = None
    """Priorities for which the adapter marks (notification point); ``None``: its driver has no such files."""
    ecn_rp: tuple[int, ...] | None = None
    """Priorities for which it slows down (reaction point)."""


WITHOUT_CONNECTION = "without a connection"
"""Detail of a link that NetworkManager manages without a connection."""


class Manager(Struct, frozen=True):
    """Another program that manages a link of the node."""

    name: str
    """``NetworkManager``, ``systemd-networkd``, or the file of a CNI configuration."""
    link: str
    """Interface name, or PCI address where that is what it names."""
    detail: str = ""


class RuntimeConfig(Struct, frozen=True):
    """The configuration of containerd or CRI-O, as far as it concerns us. ``None`` where it is not set."""

    path: str
    runtime: str
    """``containerd`` or ``CRI-O``."""
    nri: bool | None = None
    nri_socket: str = ""
    nri_timeout_seconds: float | None = None
    cdi: bool | None = None
    cdi_dirs: tuple[str, ...] | None = None
    version: int = 0
    """Version of the format of containerd's file."""


class KubeletConfig(Struct, frozen=True):
    """How the kubelet was set up, from its file or from what it keeps on disk."""

    path: str
    topology_policy: str = ""
    topology_scope: str = ""
    cpu_policy: str = ""
    memory_policy: str = ""
    feature_gates: tuple[tuple[str, bool], ...] = ()


class HostFacts(Struct, frozen=True):
    """All of it."""

    kernel: KernelFacts = KernelFacts()
    pci: tuple[PciFacts, ...] = ()
    tuning: TuningFacts = TuningFacts()
    processes: tuple[Process, ...] | None = None
    """Those whose names we know; ``None``: the node's processes are not visible."""
    gpus: GpuStack = GpuStack()
    flows: tuple[FlowFacts, ...] = ()
    managers: tuple[Manager, ...] = ()
    runtime: RuntimeConfig | None = None
    kubelet: KubeletConfig | None = None
    misc_devices: tuple[str, ...] = ()
    """The character devices of interest (``rdma_cm``) that exist."""
    unseen: tuple[Unseen, ...] = ()
    warnings: tuple[str, ...] = ()
