"""What is read back of ``sriov_numvfs``, over files. Real functions are in ``tests/machine``."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel import virtual_functions
from dranet.kernel.netlink.socket import NetlinkSocket, iter_attributes
from dranet.kernel.netlink.vf import VfAdmin
from dranet.kernel.virtual_functions import VfWriter
from dranet.model.virtual_functions import VfSettings
from tests.inventory.sriov import PF, vf_address

NEW = VfSettings(
    trust=False, spoof_check=True, vlan=0, qos=0, min_tx_rate=0, max_tx_rate=0, link_state="auto",
    mac="aa:00:00:00:00:01",
)  # fmt: skip
"""As functions are after they were made."""


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


class Card(VfWriter):
    """Functions with drivers, whose settings are as a driver of the physical function has them. ``refused``:
    names of settings that this one does not take."""

    def __init__(self, root: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, cast("NetlinkSocket", None))
        self.settings = dict.fromkeys(range(count), NEW)
        self.refused: set[str] = set()
        self.written: list[str] = []
        """To sysfs."""
        self.set: list[str] = []
        """Settings that it was asked for."""
        self.devices = root / "bus/pci/devices"
        (self.devices / PF).mkdir(parents=True)
        (self.devices / PF / "sriov_drivers_autoprobe").write_text("1\n")
        for index in range(count):
            (self.devices / vf_address(index) / "driver").mkdir(parents=True)
            (self.devices / vf_address(index) / "net" / f"vf{index}").mkdir(parents=True)
        admin = Admin(cast("NetlinkSocket", None), 2, "pf0", self)
        monkeypatch.setattr(virtual_functions, "iter_physical_links", lambda *_: [admin])

    def wanting(self, **settings: Any) -> dict[str, tuple[int, VfSettings]]:
        return {vf_address(index): (index, VfSettings(**settings)) for index in self.settings}

    def _write(self, path: str, text: str) -> None:
        self.written.append(f"{Path(path).name} {text}")
        if path.endswith("/unbind"):
            (self.devices / text / "driver").rmdir()
        elif path.endswith("/drivers_probe"):
            (self.devices / text / "driver").mkdir()


class Admin(VfAdmin, frozen=True):
    """The link of the physical function of a card."""

    card: Any = None

    def read(self) -> dict[int, VfSettings]:
        return dict(self.card.settings)

    def _set(self, index: int, name: str, change: bytes) -> None:
        (attribute,) = (payload for _, payload in iter_attributes(change))
        self.card.set.append(name)
        if name in self.card.refused:
            raise self._refusal(index, name, "EINVAL")
        if name == "mac":
            values: dict[str, Any] = {"mac": attribute[4:10].hex(":")}
        else:
            fields = {"vlan": ("vlan", "qos"), "minTxRate and maxTxRate": ("min_tx_rate", "max_tx_rate")}
            numbers = struct.unpack(f"={len(attribute) // 4}I", attribute)[1:]
            values = dict(zip(fields[name], numbers, strict=True))
        self.card.settings[index] = replace(self.card.settings[index], **values)


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


def test_a_driver_that_stops_leaves_the_next_functions_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another instance may soon have them."""
    card = Card(tmp_path, 3, monkeypatch)
    stops = iter([False, True])
    wanted = card.wanting(vlan=7)
    assert card.complete(PF, wanted, autoprobe=True, is_stopping=lambda: next(stops)) == (1, [])
    assert [settings.vlan for settings in card.settings.values()] == [7, 0, 0]


def test_a_function_that_a_pod_has_just_taken_is_not_unbound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound function without an interface on the node: whoever has it set what it has."""
    card = Card(tmp_path, 2, monkeypatch)
    (card.devices / vf_address(0) / "net/vf0").rmdir()
    changed, problems = card.complete(PF, card.wanting(mac="02:5a:10:00:00:01", vlan=7), autoprobe=True)
    assert card.settings[0] == NEW
    assert card.settings[1].vlan == 7
    assert card.written == [f"unbind {vf_address(1)}", f"drivers_probe {vf_address(1)}"]
    assert changed == 2
    (problem,) = problems
    assert f"{vf_address(0)} has a driver and no interface on the node" in problem


def test_a_setting_that_the_nic_refuses_keeps_no_other_from_being_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And takes no interface away, neither now nor with the next try."""
    card = Card(tmp_path, 1, monkeypatch)
    card.refused = {"minTxRate and maxTxRate"}
    wanted = card.wanting(mac="02:5a:10:00:00:01", vlan=7, max_tx_rate=10_000)
    for unbound in ([f"unbind {vf_address(0)}", f"drivers_probe {vf_address(0)}"], []):
        card.written.clear()
        _, problems = card.complete(PF, wanted, autoprobe=True)
        assert card.settings[0] == replace(NEW, mac="02:5a:10:00:00:01", vlan=7)
        assert card.written == unbound
        (problem,) = problems
        assert "does not take minTxRate and maxTxRate" in problem


def test_the_mac_address_is_set_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function is without its driver for that."""
    card = Card(tmp_path, 1, monkeypatch)
    wanted = card.wanting(mac="02:5a:10:00:00:01", vlan=7, qos=3, max_tx_rate=10_000)
    assert card.complete(PF, wanted, autoprobe=True) == (2, [])
    assert card.set == ["vlan", "minTxRate and maxTxRate", "mac"]


@pytest.mark.parametrize("before", [(100, 3), (0, 3)], ids=["a VLAN", "a priority alone"])
def test_no_vlan_is_no_priority_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[int, int]
) -> None:
    """A driver (igb) takes a priority without a VLAN for the priority VLAN."""
    card = Card(tmp_path, 1, monkeypatch)
    card.settings[0] = replace(NEW, vlan=before[0], qos=before[1])
    assert card.complete(PF, card.wanting(vlan=0), autoprobe=True) == (1, [])
    assert (card.settings[0].vlan, card.settings[0].qos) == (0, 0)
    assert card.complete(PF, card.wanting(vlan=0, qos=3), autoprobe=True) == (1, [])
    assert card.settings[0].qos == 3, "where it is asked for"
