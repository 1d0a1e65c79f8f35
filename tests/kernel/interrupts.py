"""Interrupts of a function as sysfs and procfs show them, as files of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dranet.kernel.sysfs.irq import InterruptFiles

FUNCTION = "0000:81:00.0"
CPUS = 8


class InterruptTree:
    """``sys`` and ``proc`` below a folder: 8 CPUs in two NUMA nodes, and one function."""

    def __init__(self, folder: Path) -> None:
        self.sys, self.proc = folder / "sys", folder / "proc"
        cpus = self.sys / "devices/system/cpu"
        write(cpus / "online", f"0-{CPUS - 1}")
        write(cpus / "isolated", "")
        write(cpus / "nohz_full", "  (null)")
        for node, of_node in enumerate(("0-3", "4-7")):
            write(self.sys / f"devices/system/node/node{node}/cpulist", of_node)
            write(self.sys / f"devices/system/node/node{node}/distance", "10 21" if node == 0 else "21 10")
        (self.function / "msi_irqs").mkdir(parents=True)
        (self.sys / "module/mlx5_core").mkdir(parents=True)
        (self.sys / "drivers/mlx5_core").mkdir(parents=True)
        (self.sys / "drivers/mlx5_core/module").symlink_to("../../module/mlx5_core")
        (self.function / "driver").symlink_to("../../../../drivers/mlx5_core")
        write(self.proc / "irq/default_smp_affinity", "ff")
        write(self.proc / "2/comm", "kthreadd")

    @property
    def files(self) -> InterruptFiles:
        return InterruptFiles(self.sys, self.proc)

    @property
    def function(self) -> Path:
        return self.sys / "bus/pci/devices" / FUNCTION

    def add(self, irq: int, cpus: str = "0-7", name: str = "", hint: str = "00") -> None:
        """An interrupt of the function."""
        write(self.function / f"msi_irqs/{irq}", "msix")
        folder = self.proc / f"irq/{irq}"
        for file, text in (("smp_affinity_list", cpus), ("affinity_hint", hint), ("node", "1")):
            write(folder / file, text)
        if name:
            (folder / name).mkdir()

    def take(self, irq: int) -> None:
        """The function has it no more; the number may be somebody else's."""
        (self.function / f"msi_irqs/{irq}").unlink()

    def put(self, irq: int, cpus: str) -> None:
        """Somebody places an interrupt."""
        write(self.proc / f"irq/{irq}/smp_affinity_list", cpus)

    def places(self) -> Mapping[int, str]:
        """Where each interrupt is, of the function or not."""
        found = (folder for folder in (self.proc / "irq").iterdir() if folder.is_dir())
        return {int(folder.name): (folder / "smp_affinity_list").read_text().strip() for folder in found}

    def start(self, process: int, name: str, *arguments: str) -> None:
        """A process of the node."""
        write(self.proc / f"{process}/comm", name)
        write(self.proc / f"{process}/cmdline", "\0".join((f"/usr/sbin/{name}", *arguments, "")))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n" if "\0" not in text else text)
