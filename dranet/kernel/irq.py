"""Interrupts of a PCI function, and the CPUs that they may go to.

``Documentation/core-api/irq/irq-affinity.rst``; numbers are in ``msi_irqs`` of the function
(``Documentation/ABI/testing/sysfs-bus-pci``). Both are of the whole node, whatever the network namespace. A
function may get other numbers at any time (``ethtool -L``, a driver that asks when a link comes up), so they
are looked up at each use and never taken from a record.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection
from pathlib import Path

from dranet.errors import KernelError, Reason
from dranet.kernel.cpus import read_cpu_layout, read_default_cpus
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.cpus import CpuLayout, format_cpu_list, mask_to_cpus, parse_cpu_list, parse_cpu_mask

_SENDS = re.compile(r"(?:^|[-_.])(?:txrx|tx-rx|tx|comp|output)[-_.]?([0-9]{1,4})(?:@|$)", re.IGNORECASE)
"""What drivers call the interrupt of a send queue: ``eth0-TxRx-3``, ``eth0-tx-0``, ``mlx5_comp7@pci:...``,
``virtio2-output.0``. Where none matches, queues take CPUs by their own numbers."""

_OPERATION = "place interrupts"


class InterruptFiles:
    """Reads below ``sysfs_root`` which interrupts a function has, and places them below ``procfs_root``."""

    def __init__(self, sysfs_root: Path = Path("/sys"), procfs_root: Path = Path("/proc")) -> None:
        self._sysfs = PseudoFiles(sysfs_root, [])
        self._procfs = PseudoFiles(procfs_root, [])
        self._folder = procfs_root / "irq"

    def read(self, pci_address: str) -> dict[int, tuple[int, ...]]:
        """The CPUs that each of the function's own interrupts may go to, by ascending number.

        A line that it shares with others (INTx) is not its own. One that nobody has asked for yet has no
        file, and is left out.
        """
        folder = f"bus/pci/devices/{pci_address}/msi_irqs"
        found = ((irq, self.read_one(irq)) for irq in self._sysfs.numbered(folder)) if pci_address else ()
        return {irq: cpus for irq, cpus in found if cpus}

    def read_one(self, irq: int) -> tuple[int, ...]:
        """Where one interrupt may go; nothing where it is gone."""
        return parse_cpu_list(self._procfs.text(f"irq/{irq}/smp_affinity_list"))

    def read_usual(self, irqs: Collection[int]) -> dict[int, tuple[tuple[int, ...], ...]]:
        """Where each is when nobody has placed it: by its driver's wish, by the kernel's default, perhaps on
        the near node alone. An interrupt is there when its driver has just asked for it anew. On all CPUs the
        kernel puts one whose own have gone offline.

        The first is where to put one of which nothing else is known.
        """
        layout = self._read_layout()
        online = set(layout.online)
        default = online.intersection(read_default_cpus(self._procfs))
        on_node: dict[int | None, set[int]] = {
            known.node: set(parse_cpu_list(known.cpus)) for known in layout.numa_nodes
        }
        usual = {}
        for irq in irqs:
            near = on_node.get(self._procfs.integer(f"irq/{irq}/node", least=-1), set())
            hint = mask_to_cpus(parse_cpu_mask(self._procfs.text(f"irq/{irq}/affinity_hint")) or 0)
            places = (hint, default, default & near, online)
            usual[irq] = tuple(dict.fromkeys(tuple(sorted(cpus)) for cpus in places if cpus))
        return usual

    def choose_online(self, cpus: tuple[int, ...]) -> tuple[int, ...]:
        """Those of ``cpus`` that are online, in order: some may have gone since Prepare.

        Raises:
            KernelError: none is.
        """
        online = set(self._read_layout().online)
        chosen = tuple(cpu for cpu in cpus if cpu in online)
        if not chosen:
            told = f"CPUs {format_cpu_list(cpus)} are not online any more"
            raise KernelError(told, operation=_OPERATION, hint="set one online, or prepare the claim anew")
        return chosen

    def find_send_queues(self, irqs: tuple[int, ...]) -> dict[int, int]:
        """The interrupt of each send queue, as far as the driver's names tell."""
        queues: dict[int, int] = {}
        for irq in irqs:
            for name in self._procfs.entries(f"irq/{irq}"):
                if match := _SENDS.search(name):
                    queues.setdefault(int(match[1]), irq)
        return queues

    def place(self, irq: int, cpu_list: str) -> None:
        """Let an interrupt go to these CPUs alone.

        Raises:
            KernelError: the kernel refused; ``MissingFeature`` where nobody can place this one.
        """
        try:
            (self._folder / str(irq) / "smp_affinity_list").write_text(cpu_list)
        except OSError as error:
            raise _explain(irq, cpu_list, error) from error
        found = self.read_one(irq)
        if found != parse_cpu_list(cpu_list):
            raise KernelError(f"interrupt {irq} did not go to CPU {cpu_list}: {found}", operation=_OPERATION)

    def _read_layout(self) -> CpuLayout:
        return read_cpu_layout(self._sysfs, self._procfs)


def _explain(irq: int, cpu_list: str, error: OSError) -> KernelError:
    refusal = KernelError(
        f"interrupt {irq} to CPU {cpu_list}: {error.strerror}", errno=error.errno or 0, operation=_OPERATION
    )
    if error.errno in (errno.EIO, errno.EPERM):
        refusal.message += ": the kernel places it by itself"
        refusal.hint = "leave cpuLocality.irq out for this device: the kernel spreads its interrupts"
        refusal.reason = Reason.MISSING_FEATURE
    elif error.errno in (errno.EROFS, errno.EACCES):
        refusal.hint = (
            "mount the node's /proc/irq into the driver's container, writable, at irq below --procfs-root"
        )
    elif error.errno == errno.ENOSPC:
        refusal.message += ": the CPU has no interrupt vector left"
        refusal.hint = "leave cpuLocality.irq out, or give the device fewer queues (ethtool.channels)"
    return refusal
