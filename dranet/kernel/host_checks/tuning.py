"""How the node is tuned: its kernel, clock and sleep of its CPUs, memory, swap, flow control of its links.

Sources: ``Documentation/admin-guide/pm/{cpufreq,cpuidle}.rst``, ``mm/transhuge.rst``,
``sysctl/{kernel,vm}.rst`` and ``adjtimex(2)``.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO

from dranet.errors import KernelError
from dranet.kernel.netlink.dcb import find_flow_control, get_pauses_request
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.host_facts import SOFT_OPTIONS, FlowFacts, HugePages, IdleState, KernelFacts, TuningFacts

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
        swaps=_read_swaps(procfs.whole_text("swaps")),
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


def _read_swaps(table: str) -> tuple[str, ...]:
    """The first column of ``/proc/swaps`` below its head."""
    return tuple(line.split()[0] for line in table.splitlines()[1:] if line.split())


def ask_clock() -> bool | None:
    """Whether the clock is synchronised, from the kernel: the answer is the same in a container."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


# --- the running kernel: release, build options, command line and modules -------------------------------

MODULES = (
    "amdgpu",
    "ib_core",
    "ib_uverbs",
    "mlx5_ib",
    "nv_peer_mem",
    "nvidia",
    "nvidia_peermem",
    "rdma_cm",
    "rdma_ucm",
)
"""A built-in module is also found here if it has a parameter or a version."""

_OPTIONS = frozenset({"NET_NS", *SOFT_OPTIONS})

_PARAMETER = re.compile(
    r"(?:iommu|(?:intel|amd)_iommu|pci|pcie\w*|isolcpus|nohz_full|irqaffinity|(?:default_)?hugepagesz?|numa\w*|mitigations|"
    r"(?:intel_idle|processor)\.max_cstate|intel_pstate|amd_pstate|transparent_hugepage|ib_core\.\w+|mlx5_core\.\w+|"
    r"modprobe\.blacklist|module_blacklist|swiotlb|idle)(?:=[\w,.:;@/+-]*)?$"
)
"""What of the command line concerns us. The rest may name servers, disks and keys."""

_CONFIG_BYTES = 4 << 20
"""A distribution's configuration has 300 kB."""

_OPTION = re.compile(r"CONFIG_(\w+)=([ym])")


def read_kernel(sysfs: PseudoFiles, procfs: PseudoFiles, root: PseudoFiles | None) -> KernelFacts:
    """``root`` is the node's own file system, where it can be seen."""
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
        root.content(f"boot/config-{release}", _CONFIG_BYTES) if root is not None else b""
    )
    if not text:
        return None
    found = _OPTION.findall(text.decode(errors="replace"))
    return tuple(sorted((name, value) for name, value in found if name in _OPTIONS))


def _unpack(packed: bytes) -> bytes:
    """Bounded, whatever it claims to be."""
    try:
        with gzip.GzipFile(fileobj=BytesIO(packed)) as stream:
            return stream.read(_CONFIG_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


# --- flow control, which keeps an Ethernet fabric with RDMA lossless ------------------------------------
# PFC from DCB netlink (``netlink.dcb``), which every user may read. ECN from the files that the mlx5 of
# NVIDIA's own driver package has below the interface (``ecn/roce_np``, ``ecn/roce_rp``); the kernel's mlx5
# has them in debugfs, which is not read.

_PFC_ENABLED = 1
"""``pfc_en``, the second byte of ``struct ieee_pfc``."""
_PRIORITIES = 8


def read_flows(sysfs: PseudoFiles, ifnames: Iterable[str]) -> tuple[FlowFacts, ...]:
    """One for each interface, in their order."""
    names = tuple(ifnames)
    pfc = read_pfc(names)
    return tuple(
        FlowFacts(name, pfc.get(name), _read_ecn(sysfs, name, "roce_np"), _read_ecn(sysfs, name, "roce_rp"))
        for name in names
    )


def read_pfc(ifnames: Iterable[str]) -> dict[str, int]:
    """Bits of the priorities with PFC; interfaces whose driver does not report them are left out."""
    found: dict[str, int] = {}
    try:
        with NetlinkSocket.open() as rtnl:
            for name in ifnames:
                mask = _ask_pfc(rtnl, name)
                if mask is not None:
                    found[name] = mask
    except KernelError:
        return found
    return found


def _ask_pfc(rtnl: NetlinkSocket, ifname: str) -> int | None:
    try:
        answers = rtnl.request(get_pauses_request(ifname))
        return next((mask for answer in answers if (mask := parse_pfc(answer.payload)) is not None), None)
    except KernelError:  # no DCB in the kernel, or none in the driver
        return None


def parse_pfc(payload: bytes) -> int | None:
    """Parse the answer; ``None`` if it does not contain PFC."""
    pfc = find_flow_control(payload)
    return pfc[_PFC_ENABLED] if len(pfc) > _PFC_ENABLED else None


def _read_ecn(sysfs: PseudoFiles, ifname: str, side: str) -> tuple[int, ...] | None:
    folder = f"class/net/{ifname}/ecn/{side}/enable"
    if not sysfs.has(folder):
        return None
    return tuple(_iter_enabled(sysfs, folder))


def _iter_enabled(sysfs: PseudoFiles, folder: str) -> Iterator[int]:
    for priority in range(_PRIORITIES):
        if sysfs.text(f"{folder}/{priority}") == "1":
            yield priority
