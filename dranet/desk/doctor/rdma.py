"""Checks of RDMA and GPUDirect RDMA.

Which process sees which RDMA device, whether programs find what they open, and whether a NIC can read and
write the memory of a GPU by the shortest path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dranet.desk.doctor.checks import Evaluation, Surroundings, check, fine, join, note, warning
from dranet.desk.doctor.system import parse_kernel_version
from dranet.inventory.build import is_ipoib
from dranet.inventory.offer import find_immobility, find_loss

RDMA = "rdma"


@check(
    "rdma-shared-mode",
    RDMA,
    "the namespace mode of the RDMA subsystem",
    matters="In shared mode each pod sees the RDMA devices of the whole node in sysfs, and counters and "
    "state of them; what it can open is bounded by its device nodes alone. In exclusive mode a device is "
    "in one pod, as its interface is.",
    fix="For exclusive mode: `echo options ib_core netns_mode=0 > /etc/modprobe.d/ib_core.conf`, then reboot "
    "(`rdma system set netns exclusive` works only while no other network namespace exists). Shared "
    "mode is right where other device plugins give out RDMA, or pods share one device.",
)
def mode(seen: Surroundings) -> Iterator[Evaluation]:
    if seen.rdma:
        exclusive = seen.node.rdma_netns_exclusive
        yield fine("exclusive namespace mode") if exclusive else note("shared namespace mode")


@check(
    "rdma-verbs-missing",
    RDMA,
    "device nodes for verbs (uverbs) of each RDMA device",
    matters="Programs in pods open /dev/infiniband/uverbsN: without it there is no RDMA, and NCCL falls "
    "back to TCP in silence.",
    fix="`modprobe ib_uverbs`, and for good `echo ib_uverbs > /etc/modules-load.d/rdma.conf`.",
)
def verbs(seen: Surroundings) -> Iterator[Evaluation]:
    bare = [d.name for d in seen.rdma if not any("uverbs" in node.path for node in d.char_devices)]
    if bare:
        yield warning(f"no verbs node of {join(bare)}")
    elif seen.rdma:
        yield fine(f"verbs nodes of {join(device.name for device in seen.rdma)}")


@check(
    "rdma-cm-missing",
    RDMA,
    "the device node of the RDMA connection manager (/dev/infiniband/rdma_cm)",
    matters="Programs that connect by address (rdma_cm: perftest -R, NVMe-oF, MPI, UCX) fail; NCCL does "
    "not need it.",
    fix="`modprobe rdma_ucm`, and for good `echo rdma_ucm > /etc/modules-load.d/rdma.conf`.",
)
def connection_manager(seen: Surroundings) -> Iterator[Evaluation]:
    if seen.rdma:
        there = "rdma_cm" in seen.host.misc_devices
        yield fine("rdma_cm is there") if there else note("there is no rdma_cm")


@check(
    "rdma-lost-with-link",
    RDMA,
    "RDMA devices that end when their interface moves",
    matters="bnxt_re before Linux 6.3, and software RDMA (rxe, siw), unregister the RDMA device when the "
    "interface leaves the node, and it does not come back. Such an interface is offered only as a shared "
    "one, with links on top of it.",
    fix="Update the kernel to 6.3 or later; or offer the interface by `shared_devices`; or remove the "
    "software RDMA device: `rdma link delete NAME`.",
)
def lost_with_link(seen: Surroundings) -> Iterator[Evaluation]:
    functions = {function.address: function for function in seen.node.pci_functions}
    for device in seen.node.rdma_devices:
        why = find_loss(device, functions.get(device.pci_address), seen.node.host.kernel)
        if why and device.pci_address:
            yield warning(f"{device.name} ends when its interface moves: {why}")
        elif why:
            yield note(f"{device.name} ends when its interface moves: {why}")


@check(
    "rdma-immobile",
    RDMA,
    "RDMA devices that exclusive mode would move, and whose driver cannot",
    matters="In exclusive mode an RDMA device works only in the network namespace that has it. EFA and "
    "software RDMA cannot change theirs, so these devices are not offered.",
    fix="Use shared mode: remove `netns_mode=0` of ib_core from /etc/modprobe.d, and boot.",
)
def immobile(seen: Surroundings) -> Iterator[Evaluation]:
    if seen.node.rdma_netns_exclusive:
        functions = {function.address: function for function in seen.node.pci_functions}
        for device in seen.node.rdma_devices:
            if why := find_immobility(device, functions.get(device.pci_address)):
                yield (warning if device.pci_address else note)(f"{device.name} cannot move: {why}")


@check(
    "rdma-ipoib-exclusive",
    RDMA,
    "IPoIB interfaces in exclusive mode",
    matters="The kernel destroys an IPoIB interface when its RDMA device moves, and makes another one. So in "
    "exclusive mode the adapter is offered as an RDMA device alone. When the pod ends the interface is "
    "restored with its addresses, routes, mode and MTU; programs that use it until then (Lustre, NFS) lose "
    "it. "
    "An adapter whose interface is used by others (a bond, a partition) is not offered.",
    fix="Use shared mode where pods need IPoIB interfaces; or exclude adapters whose IPoIB the node needs "
    "by the setting `filter`.",
)
def ipoib(seen: Surroundings) -> Iterator[Evaluation]:
    names = sorted(link.ifname for link in seen.node.links if is_ipoib(link))
    if seen.node.rdma_netns_exclusive and names:
        yield note(f"exclusive mode, and IPoIB interfaces {join(names)}")


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
    matters="Without it all that a GPU sends goes through memory of the host: NCCL logs `GDR 0`, and "
    "each byte crosses the CPU's memory twice.",
    fix="The open kernel modules on Linux 5.12 and later (GPU Operator: `driver.kernelModuleType=open`); or "
    "`modprobe nvidia-peermem` (GPU Operator: `driver.rdma.enabled=true`), which takes the RDMA drivers of "
    "NVIDIA's package (DOCA-OFED, MLNX_OFED) or a kernel with the same interface.",
)
def path(seen: Surroundings) -> Iterator[Evaluation]:
    vendors = {gpu.vendor for gpu in seen.gpus} if seen.rdma else set()
    if "amd" in vendors and "amdgpu" in seen.host.kernel.modules:
        yield fine("amdgpu gives its memory as dma-buf")
    if "nvidia" not in vendors:
        return
    peer = next((name for name in _PEER_MODULES if name in seen.host.kernel.modules), "")
    stack, version = seen.host.gpus, parse_kernel_version(seen.host.kernel.release)
    dma_buf = stack.nvidia_is_open and (version or (0, 0)) >= DMA_BUF_KERNEL
    if not stack.nvidia_driver:
        yield note(
            "the NVIDIA driver is not loaded",
            matters="The GPUs cannot be used, and how NICs reach their memory is unknown.",
            fix="Install the driver (GPU Operator); nothing to do where GPUs are passed to virtual machines.",
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
    fix="`setpci -s PORT ECAP_ACS+0x6.w=0000` for each port, after each boot; or for good "
    "`pci=disable_acs_redir=PORT` on the kernel's command line; or switch ACS off in the firmware. "
    "Leave it on where virtual machines get these devices: it keeps them apart.",
)
def acs(seen: Surroundings) -> Iterator[Evaluation]:
    redirecting, is_sure = find_redirecting(seen)
    if redirecting:
        commands = "; ".join(f"setpci -s {port} ECAP_ACS+0x6.w=0000" for port in redirecting[:16])
        yield warning(
            f"ACS redirects between GPU and NIC at {join(redirecting, 6)}",
            fix=f"After each boot: {commands}. For good: "
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
    fix="`iommu=pt` on the kernel's command line (on Arm: `iommu.passthrough=1`), then reboot; or switch the "
    "IOMMU off in the firmware. Leave it as it is where virtual machines get these devices.",
)
def iommu(seen: Surroundings) -> Iterator[Evaluation]:
    addresses = [device.pci_address for device in seen.rdma] + [gpu.pci_address for gpu in seen.gpus]
    kinds = {address: seen.pci[address].iommu for address in addresses if address in seen.pci}
    translated = sorted({address for address, kind in kinds.items() if kind.startswith("DMA")})
    if not seen.rdma or not kinds:
        return
    if translated:
        severity = warning if seen.gpus else note
        yield severity(f"an IOMMU translates for {join(translated)}")
    else:
        passed = any(kind == "identity" for kind in kinds.values())
        yield fine("the IOMMU passes through" if passed else "no IOMMU in the way")


@check(
    "fabric-manager-missing",
    GPUDIRECT,
    "NVIDIA's Fabric Manager, where there are NVSwitches",
    matters="Until it runs, the GPUs behind NVSwitches do not initialise: CUDA fails with error 802 "
    "(system not yet initialised).",
    fix="Start nvidia-fabricmanager, in the version of the GPU driver.",
)
def fabric_manager(seen: Surroundings) -> Iterator[Evaluation]:
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
    matters="A GPU without a user is powered down, and brought up with the next program: that takes "
    "seconds, and forgets settings.",
    fix="`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1`.",
)
def persistence(seen: Surroundings) -> Iterator[Evaluation]:
    if seen.host.gpus.nvidia_driver:
        runs = seen.process("nvidia-persistenced")
        if runs is not None:
            name = "nvidia-persistenced"
            yield fine(f"{name} runs") if runs else note(f"{name} does not run")


CHECKS = (
    mode,
    verbs,
    connection_manager,
    lost_with_link,
    immobile,
    ipoib,
    path,
    acs,
    iommu,
    fabric_manager,
    persistence,
)
