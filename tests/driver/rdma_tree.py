"""RDMA devices in a sysfs tree made by hand, numbered as the kernel numbers them: by the lowest free one."""

from __future__ import annotations

import shutil
from pathlib import Path

from dranet.model.facts import CharDevice
from tests.kernel.trees import Tree

RDMA_CM = CharDevice("/dev/infiniband/rdma_cm", 10, 122, 0o666)


def uverbs(number: int) -> CharDevice:
    return CharDevice(f"/dev/infiniband/uverbs{number}", 231, 192 + number, 0o666)


def umad(number: int) -> CharDevice:
    return CharDevice(f"/dev/infiniband/umad{number}", 231, number, 0o600)


class RdmaTree(Tree):
    """Software devices: without a PCI function, which real ones have."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.write_all("class/misc/rdma_cm", dev="10:122", uevent="DEVMODE=0666")

    def add(self, name: str, number: int, guid: str = "0000:0000:0000:0000") -> None:
        """Its node is ``uverbs<number>``."""
        self.write(f"class/infiniband/{name}/node_guid", guid)
        self.write_all(
            f"class/infiniband_verbs/uverbs{number}",
            ibdev=name,
            dev=f"231:{192 + number}",
            uevent="DEVMODE=0666",
        )

    def add_management(self, name: str, number: int) -> None:
        self.write_all(f"class/infiniband_mad/umad{number}", ibdev=name, dev=f"231:{number}", uevent="X=1")

    def remove(self, name: str) -> None:
        shutil.rmtree(self.root / "class/infiniband" / name)
        for ibdev in (self.root / "class").glob("infiniband_*/*/ibdev"):
            if ibdev.read_text().strip() == name:
                shutil.rmtree(ibdev.parent)
