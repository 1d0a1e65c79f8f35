"""Whether irqbalance moves the node's interrupts about, and so would undo what we place.

It is known by its name in the process table. Its socket tells less: its unit gives it a network namespace and
a folder of its own. A container sees the node's processes with ``hostPID: true``, or where ``--procfs-root``
leads to the node's ``/proc``; without that nobody can tell, which is said. What it is to leave alone
stands in its command line (``--banirq``, ``--banmod``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dranet.kernel.sysfs import PseudoFiles

_NAME = "irqbalance"
_KERNEL_THREADS = "kthreadd"
"""Process 2 of the node, and of no container."""
_BAN_IRQ, _BAN_MODULE = ("-i", "--banirq"), ("-m", "--banmod")


def find_balancer(procfs: PseudoFiles, sysfs: PseudoFiles, pci_address: str, irqs: Collection[int]) -> str:
    """Why the interrupts of a function are not ours to place; empty where they are."""
    if procfs.text("2/comm") != _KERNEL_THREADS:
        return (
            "the driver does not see the node's processes, so it cannot tell whether irqbalance runs; give "
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
            who = f"irqbalance (process {process}) places the node's interrupts"
            return f"{who}; start it with {option}, or stop it"
    return ""


def _values(arguments: Sequence[str], names: tuple[str, str]) -> Iterator[str]:
    """Of an option that may come often: ``-i 30``, ``-i30``, ``--banirq 30``, ``--banirq=30``."""
    short, long = names
    for place, argument in enumerate(arguments):
        if argument in names:
            yield from arguments[place + 1 : place + 2]
        elif argument.startswith(f"{long}="):
            yield argument.removeprefix(f"{long}=")
        elif argument.startswith(short) and not argument.startswith("--"):
            yield argument.removeprefix(short)
