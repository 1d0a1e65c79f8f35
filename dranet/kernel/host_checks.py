"""Facts of the node that only ``dranet doctor`` reads, without judgement, for ``model.findings``."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import re
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import NetlinkSocket, Outcome
from dranet.kernel.netlink.tc import find_flow_control, get_pauses_request
from dranet.kernel.sysfs.files import PseudoFiles, sees_node
from dranet.model.facts import Link, NodeFacts
from dranet.model.findings import (
    SOFT_OPTIONS,
    WITHOUT_CONNECTION,
    FlowFacts,
    GpuStack,
    HostFacts,
    HugePages,
    IdleState,
    KernelFacts,
    Manager,
    PciFacts,
    Process,
    TuningFacts,
    Unseen,
)

_NVIDIA, _NVSWITCH_CLASS = "0x10de", "0x0680"
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/run/secrets/kubernetes.io/serviceaccount")


def read_host_facts(sysfs_root: Path, procfs_root: Path, root: Path | None, node: NodeFacts) -> HostFacts:
    """``root`` is the node's own file system, ``None`` if it is not visible; ``node`` selects what is
    read."""
    warnings: list[str] = []
    sysfs, procfs = PseudoFiles(sysfs_root, warnings), PseudoFiles(procfs_root, warnings)
    files = PseudoFiles(root, []) if root is not None else None
    processes = read_processes(procfs)
    pci = tuple(read_pci(sysfs, address) for address in sorted(_list_functions(node)))
    return HostFacts(
        kernel=read_kernel(sysfs, procfs, files),
        pci=pci,
        tuning=read_tuning(sysfs, procfs),
        processes=processes,
        gpus=_read_gpu_stack(sysfs, procfs),
        flows=read_flows(sysfs, list_roce_links(node)),
        managers=read_managers(files, node.links) if files is not None else (),
        misc_devices=("rdma_cm",) if sysfs.has("class/misc/rdma_cm") else (),
        unseen=tuple(_iter_unseen(pci, processes is not None, files is not None)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def find_root(procfs_root: Path) -> Path | None:
    """Where the node's own file system is: ours, or behind its first process where we may go there."""
    if not sees_node(PseudoFiles(procfs_root, [])):
        return None
    try:
        is_ours = (procfs_root / "1/ns/mnt").stat().st_ino == Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:  # only root may read it
        is_ours = procfs_root == Path("/proc") and not any(Path(mark).exists() for mark in _CONTAINER_MARKS)
    if is_ours:
        return Path("/")
    behind = procfs_root / "1/root"
    return behind if os.access(behind / "etc", os.R_OK | os.X_OK) else None


def _list_functions(node: NodeFacts) -> set[str]:
    wanted = {link.pci_address for link in node.links}
    wanted |= {device.pci_address for device in node.rdma_devices} | {gpu.pci_address for gpu in node.gpus}
    return {step for function in node.pci_functions if function.address in wanted for step in function.path}


def list_roce_links(node: NodeFacts) -> list[str]:
    """Interfaces of Ethernet ports with RDMA, by name; software RDMA has no PCI function and is left out."""
    named = {
        name
        for device in node.rdma_devices
        if device.pci_address
        for port in device.ports
        if port.link_layer == "Ethernet"
        for name in port.netdevs
    }
    return sorted(link.ifname for link in node.links if link.ifname in named)


def _read_gpu_stack(sysfs: PseudoFiles, procfs: PseudoFiles) -> GpuStack:
    return GpuStack(
        nvidia_driver=sysfs.text("module/nvidia/version"),
        nvidia_is_open="Open Kernel Module" in procfs.whole_text("driver/nvidia/version"),
        nvswitches=sum(_is_nvswitch(sysfs, name) for name in sysfs.entries("bus/pci/devices")),
    )


def _is_nvswitch(sysfs: PseudoFiles, name: str) -> bool:
    base = f"bus/pci/devices/{name}"
    return sysfs.text(f"{base}/class").startswith(_NVSWITCH_CLASS) and sysfs.text(f"{base}/vendor") == _NVIDIA


_NO_ROOT = "a container sees those of the node with CAP_SYS_PTRACE, or through --host-root"


def _iter_unseen(pci: Iterable[PciFacts], sees_processes: bool, sees_root: bool) -> Iterable[Unseen]:
    if any(not function.is_readable for function in pci):
        yield Unseen("PCI config space (ACS, read requests)", "takes root with CAP_SYS_ADMIN")
    if not sees_processes:
        yield Unseen("the node's processes", "this process namespace is not the node's")
    if not sees_root:
        yield Unseen("the node's files below /etc and /run, and the kubelet's", _NO_ROOT)


# --- managers of links: NetworkManager, systemd-networkd, CNI ------------------------------------------
# ``/run/NetworkManager/devices/<ifindex>`` shows whether NetworkManager manages a link (no file if it ignored
# the link from the start), ``/run/systemd/netif/links/<ifindex>`` the same for systemd-networkd.

_NM = "run/NetworkManager/devices"
_NETWORKD = "run/systemd/netif/links"
_CNI = "etc/cni/net.d"
_CNI_SUFFIXES = (".conf", ".conflist", ".json")
_CNI_BYTES = 1 << 20

_CNI_KEYS: Mapping[str, tuple[str, ...]] = {
    "host-device": ("device", "pciBusID"),
    "sriov": ("deviceID", "master"),
    "ib-sriov": ("deviceID",),
    "macvlan": ("master",),
    "ipvlan": ("master",),
    "vlan": ("master",),
}
"""Plugins that take a link of the node, or put one on top of it -> where they name it."""

_MANAGED = re.compile(r"^managed=(true|1|yes)\s*$", re.MULTILINE)
_CONNECTION = re.compile(r"^connection-uuid=", re.MULTILINE)
_STATE = re.compile(r"^ADMIN_STATE=(\w+)\s*$", re.MULTILINE)
_NETWORK_FILE = re.compile(r"^NETWORK_FILE=(\S+)\s*$", re.MULTILINE)


def read_managers(root: PseudoFiles, links: Collection[Link]) -> tuple[Manager, ...]:
    return (*_read_network_manager(root, links), *_read_networkd(root, links), *_read_cni(root))


def _read_network_manager(root: PseudoFiles, links: Collection[Link]) -> Iterator[Manager]:
    for link in links:
        text = root.whole_text(f"{_NM}/{link.ifindex}")
        if _MANAGED.search(text):
            detail = "with a connection of its own" if _CONNECTION.search(text) else WITHOUT_CONNECTION
            yield Manager("NetworkManager", link.ifname, detail)


def _read_networkd(root: PseudoFiles, links: Collection[Link]) -> Iterator[Manager]:
    for link in links:
        text = root.whole_text(f"{_NETWORKD}/{link.ifindex}")
        state = _STATE.search(text)
        if state and state[1] not in ("unmanaged", "pending", "initialized"):
            file = _NETWORK_FILE.search(text)
            yield Manager("systemd-networkd", link.ifname, f"by {file[1]}" if file else state[1])


def _read_cni(root: PseudoFiles) -> Iterator[Manager]:
    for name in root.entries(_CNI):
        if name.endswith(_CNI_SUFFIXES):
            path = f"{_CNI}/{name}"
            for plugin, link in parse_cni(root.content(path, _CNI_BYTES)):
                yield Manager(f"/{path}", link, plugin)


def parse_cni(text: bytes) -> list[tuple[str, str]]:
    """Plugin and the link it names, of a CNI configuration or a list of them."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, dict):
        return []
    plugins = document.get("plugins")
    candidates = plugins if isinstance(plugins, list) else [document]
    return [found for plugin in candidates if isinstance(plugin, dict) for found in _iter_named(plugin)]


def _iter_named(plugin: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    kind = plugin.get("type")
    for key in _CNI_KEYS.get(kind, ()) if isinstance(kind, str) else ():
        value = plugin.get(key)
        if isinstance(value, str) and value:
            yield str(kind), value


# --- processes ------------------------------------------------------------------------------------------

_COMM_LENGTH = 15
"""The kernel keeps this much of a program's name (``TASK_COMM_LEN``)."""

NAMES = (
    "containerd", "crio", "irqbalance", "NetworkManager", "nv-fabricmanager", "nvidia-persistenced",
    "systemd-networkd",
)  # fmt: skip
_BY_COMM = {name[:_COMM_LENGTH]: name for name in NAMES}
_LIMITED = frozenset({"containerd", "crio"})
"""Whose limits containers inherit."""
_MEMLOCK = re.compile(r"^Max locked memory\s+(unlimited|[0-9]{1,20})\s", re.MULTILINE)


def read_processes(procfs: PseudoFiles) -> tuple[Process, ...] | None:
    """Return the first of each name and limit; None where the node is not visible."""
    if not sees_node(procfs):
        return None
    found: dict[tuple[str, str], Process] = {}
    for pid in procfs.numbered("."):
        name = _BY_COMM.get(procfs.text(f"{pid}/comm"))
        if name is not None:
            memlock = _read_memlock(procfs, pid) if name in _LIMITED else ""
            found.setdefault((name, memlock), Process(pid, name, memlock))
    return tuple(found.values())


def _read_memlock(procfs: PseudoFiles, pid: int) -> str:
    found = _MEMLOCK.search(procfs.whole_text(f"{pid}/limits"))
    return found[1] if found else ""


# --- PCI functions and the bridges above them, from their config space ---------------------------------
# Root reads all 4096 bytes, other users the first 64. Layout and bits are those of ``linux/pci_regs.h``.

_DEVICES = "bus/pci/devices"
_CONFIG_BYTES = 4096
_PLAIN_BYTES = 64
"""Bytes that every user may read."""

_STATUS, _HAS_LIST, _FIRST = 0x06, 0x10, 0x34
_PCIE_ID, _ACS_ID = 0x10, 0x000D
_EXTENDED = 0x100
_PORTS = {0: "endpoint", 1: "endpoint", 4: "root port", 5: "upstream port", 6: "downstream port"}
_RELAXED_ORDERING = 0x0010
_MOST_CAPABILITIES = 64
"""A list that is longer goes in a circle."""


def read_pci(sysfs: PseudoFiles, address: str) -> PciFacts:
    base = f"{_DEVICES}/{address}"
    config = sysfs.content(f"{base}/config", _CONFIG_BYTES)
    express = _find_express(config)
    control = _word(config, express + 8) if express else None
    return PciFacts(
        address=address,
        port=_PORTS.get((_word(config, express + 2) or 0) >> 4 & 0xF, "") if express else "",
        is_readable=len(config) > _PLAIN_BYTES,
        acs_control=_read_acs(config),
        max_read_request=None if control is None else 128 << (control >> 12 & 7),
        relaxed_ordering=None if control is None else bool(control & _RELAXED_ORDERING),
        iommu=sysfs.text(f"{base}/iommu_group/type"),
        speed=sysfs.text(f"{base}/current_link_speed"),
        width=sysfs.integer(f"{base}/current_link_width") or 0,
        max_speed=sysfs.text(f"{base}/max_link_speed"),
        max_width=sysfs.integer(f"{base}/max_link_width") or 0,
    )


def _word(config: bytes, offset: int) -> int | None:
    if offset + 2 > len(config):
        return None
    value: int = struct.unpack_from("<H", config, offset)[0]
    return value


def _find_express(config: bytes) -> int:
    if not (_word(config, _STATUS) or 0) & _HAS_LIST:
        return 0
    offset = (_word(config, _FIRST) or 0) & 0xFC
    for _ in range(_MOST_CAPABILITIES):
        header = _word(config, offset)
        if offset < _PLAIN_BYTES or header is None:
            return 0
        if header & 0xFF == _PCIE_ID:
            return offset
        offset = header >> 8 & 0xFC
    return 0


def _read_acs(config: bytes) -> int | None:
    offset = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if offset < _EXTENDED or offset + 4 > len(config):
            return None
        header: int = struct.unpack_from("<I", config, offset)[0]
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == _ACS_ID:
            return _word(config, offset + 6)
        offset = header >> 20 & 0xFFC
    return None


# --- how the node is tuned: clock, sleep of its CPUs, memory, swap -------------------------------------
# ``Documentation/admin-guide/pm/{cpufreq,cpuidle}.rst``, ``mm/transhuge.rst``, ``sysctl/{kernel,vm}.rst`` and
# ``adjtimex(2)``.

_CPUS = "devices/system/cpu"
_NODES = "devices/system/node"
_THP = "kernel/mm/transparent_hugepage"
_CHOSEN = re.compile(r"\[(\w+(?:\+\w+)?)\]")
_HUGE = re.compile(r"hugepages-([0-9]{1,9})kB")
_TIME_ERROR = 5
"""The result of ``adjtimex(2)`` while the clock is not synchronised."""
_TIMEX_BYTES = 512
"""``struct timex`` has 208 on 64-bit machines."""


def read_tuning(sysfs: PseudoFiles, procfs: PseudoFiles) -> TuningFacts:
    scaling = [f"{_CPUS}/cpufreq/{name}" for name in sysfs.entries(f"{_CPUS}/cpufreq")]
    scaling = [folder for folder in scaling if folder.rpartition("/")[2].startswith("policy")]
    return TuningFacts(
        governors=_distinct(sysfs, scaling, "scaling_governor"),
        governor_driver=sysfs.text(f"{scaling[0]}/scaling_driver") if scaling else "",
        energy_preferences=_distinct(sysfs, scaling, "energy_performance_preference"),
        idle_states=tuple(_read_idle_states(sysfs)),
        thp=_chosen(sysfs.text(f"{_THP}/enabled")),
        thp_defrag=_chosen(sysfs.text(f"{_THP}/defrag")),
        huge_pages=tuple(_read_huge_pages(sysfs)),
        numa_balancing=procfs.integer("sys/kernel/numa_balancing"),
        swappiness=procfs.integer("sys/vm/swappiness"),
        swaps=tuple(line.split()[0] for line in procfs.whole_text("swaps").splitlines()[1:] if line.split()),
        clock_is_synchronised=ask_clock(),
    )


def _distinct(sysfs: PseudoFiles, folders: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(sorted({text for folder in folders if (text := sysfs.text(f"{folder}/{name}"))}))


def _chosen(text: str) -> str:
    """``always [madvise] never`` -> ``madvise``."""
    found = _CHOSEN.search(text)
    return found[1] if found else ""


def _read_idle_states(sysfs: PseudoFiles) -> Iterable[IdleState]:
    """Read the idle states of the first CPU: the others have the same ones."""
    folder = f"{_CPUS}/cpu0/cpuidle"
    for number in sysfs.numbered(folder, "state"):
        state = f"{folder}/state{number}"
        yield IdleState(
            name=sysfs.text(f"{state}/name"),
            latency_us=sysfs.integer(f"{state}/latency") or 0,
            enabled=sysfs.text(f"{state}/disable") != "1",
        )


def _read_huge_pages(sysfs: PseudoFiles) -> Iterable[HugePages]:
    for node in sysfs.numbered(_NODES, "node"):
        folder = f"{_NODES}/node{node}/hugepages"
        for name in sysfs.entries(folder):
            found = _HUGE.fullmatch(name)
            if found:
                yield HugePages(node, int(found[1]), sysfs.integer(f"{folder}/{name}/nr_hugepages") or 0)


def ask_clock() -> bool | None:
    """Whether the clock is synchronised, from the kernel: the answer is the same in a container."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


# --- the running kernel: release, build options, command line and modules -------------------------------

MODULES = (
    "amdgpu", "ib_core", "ib_uverbs", "mlx5_ib", "nv_peer_mem", "nvidia", "nvidia_peermem", "rdma_cm",
    "rdma_ucm",
)  # fmt: skip
"""A built-in module is also found here if it has a parameter or a version."""

_OPTIONS = frozenset({"NET_NS", *SOFT_OPTIONS})

_PARAMETER = re.compile(
    r"(?:iommu|(?:intel|amd)_iommu|pci|pcie\w*|isolcpus|nohz_full|irqaffinity|(?:default_)?hugepagesz?|numa\w*|mitigations|"
    r"(?:intel_idle|processor)\.max_cstate|intel_pstate|amd_pstate|transparent_hugepage|ib_core\.\w+|mlx5_core\.\w+|"
    r"modprobe\.blacklist|module_blacklist|swiotlb|idle)(?:=[\w,.:;@/+-]*)?$"
)
"""What of the command line concerns us. The rest may name servers, disks and keys."""

_BUILD_CONFIG_BYTES = 4 << 20
"""A distribution's configuration has 300 kB."""

_OPTION = re.compile(r"CONFIG_(\w+)=([ym])")


def read_kernel(sysfs: PseudoFiles, procfs: PseudoFiles, root: PseudoFiles | None) -> KernelFacts:
    release = os.uname().release
    return KernelFacts(
        release=release,
        config=_read_config(procfs, root, release),
        command_line=" ".join(filter(_PARAMETER.match, procfs.whole_text("cmdline").split())),
        modules=tuple(name for name in MODULES if sysfs.has(f"module/{name}")),
    )


def _read_config(
    procfs: PseudoFiles, root: PseudoFiles | None, release: str
) -> tuple[tuple[str, str], ...] | None:
    text = _unpack(procfs.content("config.gz")) or (
        root.content(f"boot/config-{release}", _BUILD_CONFIG_BYTES) if root is not None else b""
    )
    if not text:
        return None
    found = _OPTION.findall(text.decode(errors="replace"))
    return tuple(sorted((name, value) for name, value in found if name in _OPTIONS))


def _unpack(packed: bytes) -> bytes:
    """Bounded, whatever it claims to be."""
    try:
        with gzip.GzipFile(fileobj=BytesIO(packed)) as stream:
            return stream.read(_BUILD_CONFIG_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


# --- flow control, which keeps an Ethernet fabric with RDMA lossless ------------------------------------
# PFC from DCB netlink (``netlink.tc``), which every user may read. ECN from the files that the mlx5 of
# NVIDIA's own driver package has below the interface (``ecn/roce_np``, ``ecn/roce_rp``); the kernel's mlx5
# has them in debugfs, which is not read.

_PFC_ENABLED = 1
"""``pfc_en``, the second byte of ``struct ieee_pfc``."""
_PRIORITIES = 8


def read_flows(sysfs: PseudoFiles, ifnames: Iterable[str]) -> tuple[FlowFacts, ...]:
    names = tuple(ifnames)
    pfc = read_pfc(names)
    return tuple(
        FlowFacts(name, pfc.get(name), _read_ecn(sysfs, name, "roce_np"), _read_ecn(sysfs, name, "roce_rp"))
        for name in names
    )


def read_pfc(ifnames: Iterable[str]) -> dict[str, int]:
    """Bits of the priorities with PFC; interfaces whose driver does not report them are left out."""
    names = tuple(ifnames)
    try:
        with NetlinkSocket.open() as rtnl:
            outcomes = rtnl.batch([get_pauses_request(name) for name in names])
    except KernelError:
        return {}
    masks = ((name, _find_mask(outcome)) for name, outcome in zip(names, outcomes, strict=True))
    return {name: mask for name, mask in masks if mask is not None}


def _find_mask(outcome: Outcome) -> int | None:
    if isinstance(outcome, KernelError):  # no DCB in the kernel, or none in the driver
        return None
    try:
        return next((mask for answer in outcome if (mask := parse_pfc(answer.payload)) is not None), None)
    except KernelError:
        return None


def parse_pfc(payload: bytes) -> int | None:
    pfc = find_flow_control(payload)
    return pfc[_PFC_ENABLED] if len(pfc) > _PFC_ENABLED else None


def _read_ecn(sysfs: PseudoFiles, ifname: str, side: str) -> tuple[int, ...] | None:
    folder = f"class/net/{ifname}/ecn/{side}/enable"
    if not sysfs.has(folder):
        return None
    return tuple(priority for priority in range(_PRIORITIES) if sysfs.text(f"{folder}/{priority}") == "1")
