"""Findings about the driver's surroundings, and what ``dranet doctor`` reads of a node besides its devices.

``/readyz?verbose`` prints findings in one line each, ``dranet doctor`` with why they matter and how to fix
them. The facts are filled by ``dranet.kernel.host_checks`` and judged by ``dranet.desk.doctor``. A fact that
is not known is ``None`` or empty, never a guess; :attr:`HostFacts.unseen` has what could not be read from
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

API, KUBELET, RUNTIME, GPUS, IPAM = "api", "kubelet", "runtime", "gpus", "ipam"
CLOUD, WEBHOOK = "cloud", "webhook"
VIRTUAL_FUNCTIONS = "virtual functions"

API_FIELD, GPU_OFFER = "api-field", "gpu-offer"
REGISTRATION, DRA_SERVICE, KUBELET_HEALTH = "kubelet-registration", "kubelet-dra-service", "kubelet-health"
RUNTIME_NRI, PATIENCE, RUNTIME_CDI = "runtime-nri", "runtime-patience", "runtime-cdi"
VF_COUNT = "virtual-functions"
IPAM_SOURCE, IPAM_RELEASE, IPAM_CHECK = "ipam-source", "ipam-release", "ipam-check"
CLOUD_FACTS, WEBHOOK_PROVIDER = "cloud-facts", "webhook-provider"
"""Ids of findings; the docs know them from ``desk/doctor/catalogue.py``."""

DEFAULT_REQUEST_TIMEOUT_SECONDS = 2.0
"""Seconds that a runtime waits for a hook by default (``plugin_request_timeout``)."""


class Severity(StrEnum):
    """How much a finding asks for."""

    OK = "ok"
    NOTE = "note"
    """Not there, or not known, and nothing that is wanted fails for it."""
    WARNING = "warning"
    """Something that the settings ask for, or that people count on, does not work."""
    PROBLEM = "problem"
    """Pods do not get their NICs."""


WORST_FIRST = tuple(reversed(Severity))


class Finding(Struct, frozen=True):
    """One thing that was looked at. ``matters`` and ``fix`` are empty where there is nothing to do."""

    part: str
    """Whom it is about: ``api``, ``kubelet``, ``runtime``, ``permissions``, ``places``, ..."""
    severity: Severity
    seen: str
    matters: str = ""
    fix: str = ""
    id: str = ""
    """What was looked at, by a name that never changes: ``acs-redirect``; docs/commands/doctor.md has all."""

    @property
    def line(self) -> str:
        """``[+] api: device taints kept``, as ``/readyz`` lists its parts."""
        return f"[{'+' if self.severity is Severity.OK else '-'}] {self.part}: {self.seen}"

    def to_json(self) -> dict[str, str]:
        return structs.asdict(self)


def ok(part: str, seen: str, id_: str = "") -> Finding:
    return Finding(part, Severity.OK, seen, id=id_)


def find_worst(findings: Iterable[Finding]) -> Severity:
    return min((finding.severity for finding in findings), key=WORST_FIRST.index, default=Severity.OK)


def parse_finding(data: Mapping[str, Any]) -> Finding:
    """The inverse of :meth:`Finding.to_json`, for one that came from another process.

    Raises:
        ValueError: it is no finding.
    """
    texts = [data.get(name, "") for name in ("part", "seen", "matters", "fix", "id")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"no finding: {data!r}")
    part, seen, matters, fix, id_ = texts
    return Finding(part, Severity(str(data.get("severity"))), seen, matters, fix, id_)


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
    """``no such file``, ``Permission denied``, ``takes root with CAP_SYS_ADMIN``."""


class KernelFacts(Struct, frozen=True):
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
