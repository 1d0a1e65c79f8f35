"""Interrupts of a PCI function, and the CPUs that they may go to
(``Documentation/core-api/irq/irq-affinity.rst``). A function may get other numbers at any time (``ethtool
-L``), so they are never taken from a record."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from dranet.errors import KernelError, Reason
from dranet.kernel.discovery.hardware import read_numa_nodes
from dranet.kernel.sysfs.files import PseudoFiles, sees_node
from dranet.model.cpus import CpuLayout, format_cpu_list, mask_to_cpus, parse_cpu_list, parse_cpu_mask

# --- CPUs of the node -----------------------------------------------------------------------------------
# ``Documentation/admin-guide/cputopology.rst``, ``Documentation/ABI/testing/sysfs-devices-system-cpu``,
# ``Documentation/core-api/irq/irq-affinity.rst``. ``nohz_full`` reads ``(null)`` without any.

_CPUS = "devices/system/cpu"
_KEPT_FREE = (f"{_CPUS}/isolated", f"{_CPUS}/nohz_full", "fs/cgroup/cpuset.cpus.isolated")
"""Boot parameters, and isolated partitions of cpusets where the node's own cgroups are in sight."""


def read_cpu_layout(sysfs: PseudoFiles, procfs: PseudoFiles) -> CpuLayout:
    """Read the CPUs of the node as they are now. CPUs that are kept free of interrupts are missing from the
    kernel's default: by ``irqaffinity=``, tuned, or a runtime for a pod that requests it."""
    online = parse_cpu_list(sysfs.text(f"{_CPUS}/online"))
    kept_free = {cpu for path in _KEPT_FREE for cpu in parse_cpu_list(sysfs.text(path))}
    if serving := read_default_cpus(procfs):
        kept_free.update(set(online).difference(serving))
    return CpuLayout(
        online=online,
        kept_free=tuple(sorted(kept_free)),
        numa_nodes=tuple(read_numa_nodes(sysfs)),
    )


def read_default_cpus(procfs: PseudoFiles) -> tuple[int, ...]:
    return mask_to_cpus(parse_cpu_mask(procfs.text("irq/default_smp_affinity")) or 0)


_SENDS = re.compile(r"(?:^|[-_.])(?:txrx|tx-rx|tx|comp|output)[-_.]?([0-9]{1,4})(?:@|$)", re.IGNORECASE)
"""What drivers call the interrupt of a send queue: ``eth0-TxRx-3``, ``eth0-tx-0``, ``mlx5_comp7@pci:...``,
``virtio2-output.0``. Where none matches, queues take CPUs by their own numbers."""

_OPERATION = "place interrupts"


class InterruptFiles:
    def __init__(self, sysfs_root: Path = Path("/sys"), procfs_root: Path = Path("/proc")) -> None:
        self.sysfs_root = sysfs_root
        self._sysfs = PseudoFiles(sysfs_root, [])
        self._procfs = PseudoFiles(procfs_root, [])
        self._folder = procfs_root / "irq"

    def read(self, pci_address: str) -> dict[int, tuple[int, ...]]:
        """The CPUs that each of the function's own interrupts may go to, by ascending number: without shared
        ones (INTx), and those that its driver has not requested yet."""
        folder = f"bus/pci/devices/{pci_address}/msi_irqs"
        found = ((irq, self.read_one(irq)) for irq in self._sysfs.numbered(folder)) if pci_address else ()
        return {irq: cpus for irq, cpus in found if cpus}

    def read_one(self, irq: int) -> tuple[int, ...]:
        return parse_cpu_list(self._procfs.text(f"irq/{irq}/smp_affinity_list"))

    def read_usual(self, irqs: Collection[int]) -> dict[int, tuple[tuple[int, ...], ...]]:
        """The places of each interrupt that no program has placed: by its driver's hint, or by the kernel's
        default, or on all CPUs after its own went offline. The first is where to put one of which nothing
        else is known."""
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
        """Those of ``cpus`` that are online, in order: some may have gone since Prepare. None is an error."""
        online = set(self._read_layout().online)
        chosen = tuple(cpu for cpu in cpus if cpu in online)
        if not chosen:
            raise KernelError(
                f"CPUs {format_cpu_list(cpus)} are no longer online",
                operation=_OPERATION,
                hint="set one online, or prepare the claim again",
            )
        return chosen

    def find_send_queues(self, irqs: tuple[int, ...]) -> dict[int, int]:
        queues: dict[int, int] = {}
        for irq in irqs:
            for name in self._procfs.entries(f"irq/{irq}"):
                if match := _SENDS.search(name):
                    queues.setdefault(int(match[1]), irq)
        return queues

    def place(self, irq: int, cpu_list: str) -> None:
        """Let an interrupt go to these CPUs alone; ``MissingFeature`` if this one cannot be placed."""
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


# --- irqbalance, which would undo a placement -----------------------------------------------------------
# It is recognised by its name in the process table; its socket is in a network namespace of its own. A
# container sees the node's processes with ``hostPID: true`` or with the node's ``/proc`` at ``--procfs-
# root``; without either the answer is unknown. What irqbalance leaves alone is in its command line
# (``--banirq``, ``--banmod``).

_NAME = "irqbalance"
_BAN_IRQ, _BAN_MODULE = ("-i", "--banirq"), ("-m", "--banmod")


def find_balancer(procfs: PseudoFiles, sysfs: PseudoFiles, pci_address: str, irqs: Collection[int]) -> str:
    """Why the interrupts of a function are not ours to place; empty where they are."""
    if not sees_node(procfs):
        return (
            "the driver does not see the node's processes, so whether irqbalance runs is unknown; give "
            "it hostPID: true, or the node's /proc by --procfs-root"
        )
    module = sysfs.link(f"bus/pci/devices/{pci_address}/driver/module").rpartition("/")[2]
    for process in procfs.numbered("."):
        if procfs.text(f"{process}/comm") != _NAME:
            continue
        arguments = procfs.whole_text(f"{process}/cmdline").split("\0")
        banned = set(_values(arguments, _BAN_IRQ))
        are_banned = bool(irqs) and {str(irq) for irq in irqs} <= banned
        if not are_banned and module not in _values(arguments, _BAN_MODULE):
            option = f"--banmod={module}" if module else "--banirq for each of the device's"
            reason = f"irqbalance (process {process}) places the node's interrupts"
            return f"{reason}; start it with {option}, or stop it"
    return ""


def _values(arguments: Sequence[str], names: tuple[str, str]) -> Iterator[str]:
    """Yield the values of a repeatable option: ``-i 30``, ``-i30``, ``--banirq 30``, ``--banirq=30``."""
    short, long = names
    for place, argument in enumerate(arguments):
        if argument in names:
            yield from arguments[place + 1 : place + 2]
        elif argument.startswith(f"{long}="):
            yield argument.removeprefix(f"{long}=")
        elif argument.startswith(short) and not argument.startswith("--"):
            yield argument.removeprefix(short)
