"""The running kernel: its release, what it was built with, its command line and modules."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from io import BytesIO

from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.host_facts import SOFT_OPTIONS, KernelFacts

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
"""A module is here also where it is built in, as long as it has a parameter or a version."""

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
