"""One reading of the node: everything that ``dranet doctor`` checks besides its devices."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dranet.kernel.host_checks.managers import read_managers, read_processes, sees_node
from dranet.kernel.host_checks.pcie import read_pci
from dranet.kernel.host_checks.tuning import read_flows, read_kernel, read_tuning
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import NodeFacts
from dranet.model.host_facts import GpuStack, HostFacts, Manager, PciFacts, Unseen

MISC_DEVICES = ("rdma_cm",)
_NVIDIA, _NVSWITCH_CLASS = "0x10de", "0x0680"
_OPEN = "Open Kernel Module"
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/run/secrets/kubernetes.io/serviceaccount")


def read_host_facts(sysfs_root: Path, procfs_root: Path, root: Path | None, node: NodeFacts) -> HostFacts:
    """All that can be read from here.

    Args:
        root: the node's own file system; ``None`` if it is not visible (:func:`find_root`).
        node: a scan of its devices, which selects what is read.
    """
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
        managers=_read_managers(files, node),
        misc_devices=tuple(name for name in MISC_DEVICES if sysfs.has(f"class/misc/{name}")),
        unseen=tuple(_iter_unseen(pci, processes is not None, files is not None)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def find_root(procfs_root: Path) -> Path | None:
    """Where the node's own file system is: ours, or behind its first process where we may go there."""
    if not sees_node(PseudoFiles(procfs_root, [])):
        return None
    is_ours = _shares_mounts(procfs_root)
    if is_ours is None:  # only root may read it
        is_ours = procfs_root == Path("/proc") and not any(Path(mark).exists() for mark in _CONTAINER_MARKS)
    if is_ours:
        return Path("/")
    behind = procfs_root / "1/root"
    return behind if os.access(behind / "etc", os.R_OK | os.X_OK) else None


def _shares_mounts(procfs_root: Path) -> bool | None:
    """Whether we have the mount namespace of the node's first process."""
    try:
        return (procfs_root / "1/ns/mnt").stat().st_ino == Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return None


def _list_functions(node: NodeFacts) -> set[str]:
    """Functions that carry links, RDMA or GPUs, with all bridges above them."""
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
        nvidia_is_open=_OPEN in procfs.whole_text("driver/nvidia/version"),
        nvswitches=sum(_is_nvswitch(sysfs, name) for name in sysfs.entries("bus/pci/devices")),
    )


def _is_nvswitch(sysfs: PseudoFiles, name: str) -> bool:
    base = f"bus/pci/devices/{name}"
    return sysfs.text(f"{base}/class").startswith(_NVSWITCH_CLASS) and sysfs.text(f"{base}/vendor") == _NVIDIA


def _read_managers(files: PseudoFiles | None, node: NodeFacts) -> tuple[Manager, ...]:
    return read_managers(files, node.links) if files is not None else ()


def _iter_unseen(pci: Iterable[PciFacts], sees_processes: bool, sees_root: bool) -> Iterable[Unseen]:
    if any(not function.is_readable for function in pci):
        yield Unseen("PCI config space (ACS, read requests)", "takes root with CAP_SYS_ADMIN")
    if not sees_processes:
        yield Unseen("the node's processes", "another process namespace")
    if not sees_root:
        yield Unseen("the node's files below /etc and /run, and the kubelet's", "another file system")
