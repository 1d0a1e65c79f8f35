"""GPUDirect RDMA: may a NIC read and write memory of a GPU, and does it take the short way?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dranet.desk.doctor.checks import Surroundings, Told, check, fine, join, note, warning
from dranet.desk.doctor.kernel import parse_version

GPUDIRECT = "gpudirect"

DMA_BUF_KERNEL = (5, 12)
"""RDMA takes memory of others as dma-buf."""

REDIRECT = 0x0C
"""P2P Request Redirect and P2P Completion Redirect of the ACS control register (``linux/pci_regs.h``)."""

_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


@check(
    "gpudirect-no-path",
    GPUDIRECT,
    "how NVIDIA GPUs let NICs at their memory: nvidia_peermem, or dma-buf (Linux 5.12 and the open modules)",
    matters="Without it all that a GPU sends goes through memory of the host: NCCL says `GDR 0`, and "
    "each byte crosses the CPU's memory twice.",
    mend="The open kernel modules on Linux 5.12 and later (GPU Operator: `driver.kernelModuleType=open`); or "
    "`modprobe nvidia-peermem` (GPU Operator: `driver.rdma.enabled=true`), which takes the RDMA drivers of "
    "NVIDIA's package (DOCA-OFED, MLNX_OFED) or a kernel with the same interface.",
)
def path(seen: Surroundings) -> Iterator[Told]:
    vendors = {gpu.vendor for gpu in seen.gpus} if seen.rdma else set()
    if "amd" in vendors and "amdgpu" in seen.host.kernel.modules:
        yield fine("amdgpu gives its memory as dma-buf")
    if "nvidia" not in vendors:
        return
    peer = next((name for name in _PEER_MODULES if name in seen.host.kernel.modules), "")
    stack, version = seen.host.gpus, parse_version(seen.host.kernel.release)
    dma_buf = stack.nvidia_is_open and (version or (0, 0)) >= DMA_BUF_KERNEL
    if not stack.nvidia_driver:
        yield note(
            "the NVIDIA driver is not loaded",
            matters="Nobody can use the GPUs, and how NICs reach their memory cannot be told.",
            mend="Install the driver (GPU Operator); nothing to do where GPUs are passed to virtual "
            "machines.",
        )
    elif peer or dma_buf:
        yield fine(
            " and ".join(filter(None, (f"{peer} loaded" if peer else "", "dma-buf" if dma_buf else "")))
        )
    else:
        kind = "open" if stack.nvidia_is_open else "proprietary"
        yield warning(
            f"no nvidia_peermem, and no dma-buf ({kind} modules {stack.nvidia_driver} on "
            f"Linux {seen.host.kernel.release})"
        )


def find_redirecting(seen: Surroundings) -> tuple[list[str], bool]:
    """Bridges that send a NIC's traffic with a GPU on the same switch up to the CPU, and whether all of them
    could be looked at.

    Only ports below the last common bridge decide: those above are on the way to the CPU anyway.
    """
    redirecting: dict[str, None] = {}
    is_sure = True
    for address in _iter_ports(seen):
        bridge = seen.pci.get(address)
        if bridge is None or not bridge.is_readable:
            is_sure = False
        elif (bridge.acs_control or 0) & REDIRECT:
            redirecting[address] = None
    return sorted(redirecting), is_sure


def _iter_ports(seen: Surroundings) -> Iterator[str]:
    """Between each NIC and each GPU that share a switch."""
    for nic in seen.rdma:
        for gpu in seen.gpus:
            ways = (seen.paths.get(address, ()) for address in (nic.pci_address, gpu.pci_address))
            yield from find_ports_between(*ways)


def find_ports_between(a: Sequence[str], b: Sequence[str]) -> tuple[str, ...]:
    """The bridges below the last common one, of both paths; none where only the CPU is common."""
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return (*a[common:-1], *b[common:-1]) if common else ()


@check(
    "acs-redirect",
    GPUDIRECT,
    "ACS redirection on the switch ports between a GPU and its NIC",
    matters="Traffic between two devices of one PCIe switch goes up to the CPU and back: GPUDirect RDMA "
    "drops to a fraction of the line rate (NCCL's manual: a significant loss, or even a hang).",
    mend="`setpci -s PORT ECAP_ACS+0x6.w=0000` for each port, after each boot; or for good "
    "`pci=disable_acs_redir=PORT` on the kernel's command line; or switch ACS off in the firmware. "
    "Leave it on where virtual machines get these devices: it keeps them apart.",
)
def acs(seen: Surroundings) -> Iterator[Told]:
    redirecting, is_sure = find_redirecting(seen)
    if redirecting:
        commands = "; ".join(f"setpci -s {port} ECAP_ACS+0x6.w=0000" for port in redirecting[:16])
        yield warning(
            f"ACS redirects between GPU and NIC at {join(redirecting, 6)}",
            mend=f"After each boot: {commands}. For good: "
            f"pci=disable_acs_redir={';'.join(redirecting[:16])} on the kernel's command line, or ACS off "
            "in the firmware. Leave it on where virtual machines get these devices: it keeps them apart.",
        )
    elif is_sure and any(_iter_ports(seen)):
        yield fine("no ACS redirection between GPUs and NICs of one switch")


@check(
    "iommu-translates",
    GPUDIRECT,
    "whether an IOMMU translates what RDMA NICs and GPUs address",
    matters="Each access is looked up in the IOMMU's tables and goes by the CPU, also between devices of "
    "one switch.",
    mend="`iommu=pt` on the kernel's command line (on Arm: `iommu.passthrough=1`), then boot; or switch the "
    "IOMMU off in the firmware. Leave it as it is where virtual machines get these devices.",
)
def iommu(seen: Surroundings) -> Iterator[Told]:
    addresses = [device.pci_address for device in seen.rdma] + [gpu.pci_address for gpu in seen.gpus]
    kinds = {address: seen.pci[address].iommu for address in addresses if address in seen.pci}
    translated = sorted({address for address, kind in kinds.items() if kind.startswith("DMA")})
    if not seen.rdma or not kinds:
        return
    if translated:
        tell = warning if seen.gpus else note
        yield tell(f"an IOMMU translates for {join(translated)}")
    else:
        passed = any(kind == "identity" for kind in kinds.values())
        yield fine("the IOMMU passes through" if passed else "no IOMMU in the way")


@check(
    "fabric-manager-missing",
    GPUDIRECT,
    "NVIDIA's Fabric Manager, where there are NVSwitches",
    matters="Until it runs, the GPUs behind NVSwitches do not initialise: CUDA fails with error 802 "
    "(system not yet initialised).",
    mend="Start nvidia-fabricmanager, in the version of the GPU driver.",
)
def fabric_manager(seen: Surroundings) -> Iterator[Told]:
    if seen.host.gpus.nvswitches:
        runs = seen.process("nv-fabricmanager")
        if runs is not None:
            count = f"{seen.host.gpus.nvswitches} NVSwitches"
            fits = f"{count} and no Fabric Manager that runs"
            yield fine(f"{count} and Fabric Manager") if runs else warning(fits)


@check(
    "gpu-persistence",
    GPUDIRECT,
    "nvidia-persistenced, where there are NVIDIA GPUs",
    matters="A GPU that nobody uses is put down, and brought up with the next program: that takes "
    "seconds, and forgets settings.",
    mend="`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1`.",
)
def persistence(seen: Surroundings) -> Iterator[Told]:
    if seen.host.gpus.nvidia_driver:
        runs = seen.process("nvidia-persistenced")
        if runs is not None:
            name = "nvidia-persistenced"
            yield fine(f"{name} runs") if runs else note(f"{name} does not run")


CHECKS = (path, acs, iommu, fabric_manager, persistence)
