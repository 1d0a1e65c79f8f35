"""What is read back of ``sriov_numvfs``, over files. Real functions are in ``tests/machine``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.virtual_functions import VfWriter

PF = "0000:1a:00.0"


class Driver(VfWriter):
    """Files, behind which a driver makes at most ``most`` functions and keeps at least ``least``."""

    def __init__(self, root: Path, *, least: int = 0, most: int = 8) -> None:
        super().__init__(root, cast("NetlinkSocket", None))
        self.folder = root / "bus/pci/devices" / PF
        self.folder.mkdir(parents=True)
        (self.folder / "sriov_numvfs").write_text(f"{least}\n")
        (self.folder / "sriov_drivers_autoprobe").write_text("1\n")
        self._least, self._most = least, most

    def _write(self, path: str, text: str) -> None:
        name = Path(path).name
        made = str(min(max(int(text), self._least), self._most)) if name == "sriov_numvfs" else text
        (self.folder / name).write_text(f"{made}\n")

    @property
    def autoprobe(self) -> str:
        return (self.folder / "sriov_drivers_autoprobe").read_text().strip()


def test_the_number_that_a_driver_made_is_returned(tmp_path: Path) -> None:
    driver = Driver(tmp_path, most=3)
    assert driver.write_count(PF, 2, autoprobe=True) == 2
    assert driver.write_count(PF, 8, autoprobe=True) == 3
    assert driver.autoprobe == "0", "they have no drivers before they have their defaults"
    assert driver.write_count(PF, 0, autoprobe=True) == 0


def test_a_driver_that_refuses_without_an_error_is_told(tmp_path: Path) -> None:
    """As bnxt while its link is down: the kernel calls it a success."""
    driver = Driver(tmp_path / "none", most=0)
    with pytest.raises(KernelError, match=r"write 4 to .*sriov_numvfs: it is 0 afterwards"):
        driver.write_count(PF, 4, autoprobe=True)
    assert driver.autoprobe == "1"
    with pytest.raises(KernelError, match=r"write 0 to .*sriov_numvfs: it is 2 afterwards"):
        Driver(tmp_path / "some", least=2).write_count(PF, 0, autoprobe=True)
