"""Interrupts of the node's NICs, as files: which ones a function has, and the CPUs that they may go to.

What is written to a file stays there, as in a kernel that takes it. The hints say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dranet.model.cpus import format_cpu_list, format_cpu_mask, parse_cpu_list
from testbed.node.hardware import Hardware, PlacedNic

VECTORS = 3
"""Of each NIC: one for its events, one for each of two queues."""
_FIRST = 200


def write_interrupts(sysfs_root: Path, procfs_root: Path, hardware: Hardware) -> None:
    """Those of every NIC, and what tells who else might place them."""
    cpus = format_cpu_list(cpu for socket in hardware.sockets for cpu in parse_cpu_list(socket.cpus))
    _write(sysfs_root / "devices/system/cpu/online", cpus)
    _write(procfs_root / "irq/default_smp_affinity", format_cpu_mask(parse_cpu_list(cpus)))
    _write(procfs_root / "2/comm", "kthreadd")
    for nic, irq, name in _iter_interrupts(hardware):
        _write(sysfs_root / "bus/pci/devices" / nic.placed.address / "msi_irqs" / str(irq), "msix")
        folder = procfs_root / "irq" / str(irq)
        values = ("smp_affinity_list", cpus), ("affinity_hint", "0"), ("node", str(nic.placed.numa_node))
        for file, text in values:
            _write(folder / file, text)
        (folder / name).mkdir()


def read_interrupts(procfs_root: Path, hardware: Hardware) -> Iterator[str]:
    """Where each one may go, a line for each."""
    for nic, irq, _ in _iter_interrupts(hardware):
        cpus = (procfs_root / "irq" / str(irq) / "smp_affinity_list").read_text().strip()
        yield f"interrupt {irq} of {nic.nic.ifname}: cpus {cpus}"


def _iter_interrupts(hardware: Hardware) -> Iterator[tuple[PlacedNic, int, str]]:
    for place, nic in enumerate(hardware.nics()):
        for vector in range(VECTORS):
            name = f"{nic.nic.ifname}-TxRx-{vector - 1}" if vector else nic.nic.ifname
            yield nic, _FIRST + place * VECTORS + vector, name


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
