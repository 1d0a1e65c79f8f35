"""Hardware that comes and goes: it is noticed, and a rescan of what was noticed equals a full read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dranet.inventory.build import build_devices
from dranet.inventory.offer import take_inventory
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.discovery.watch import Changes, ChangeWatch
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from testbed.machine.hardware import MACHINE
from tests.machine import kernel_view

pytestmark = [pytest.mark.machine, pytest.mark.timeout(300)]

SYSFS, PROCFS = Path("/sys"), Path("/proc")

HCA = Path("/sys/kernel/vnode_hca")

NOTICE_SECONDS = 60.0

IGB1 = MACHINE.function("igb1")
SWITCHED = MACHINE.function("switched")
VIRTIO1 = MACHINE.function("virtio1")


@pytest.fixture(autouse=True)
def as_made() -> None:
    """Links are up and have their carriers; a device that came back is down."""
    kernel_view.settle()


@dataclass(frozen=True)
class Noticed:
    """What a watch told after an action, and the rescan of it."""

    changes: Changes
    before: NodeFacts
    after: NodeFacts


async def notice(act: Callable[[], None], is_done: Callable[[NodeFacts], bool]) -> Noticed:
    """Act, and rescan what the watch tells until the facts show it and equal a full read.

    A rescan lags behind the kernel (a carrier comes seconds after its link), so equality is waited for.
    """
    scanner = NodeScanner(SYSFS, PROCFS)
    async with ChangeWatch() as watch:
        before = facts = scanner.read()
        act()
        told, full = Changes(), NodeFacts()
        deadline = time.monotonic() + NOTICE_SECONDS
        while not is_done(facts) or facts != full:
            if time.monotonic() > deadline:
                pytest.fail("\n".join(_differences(facts, full)) or "the change was not noticed")
            with contextlib.suppress(TimeoutError):
                changes = await asyncio.wait_for(watch.wait_changed(), 2.0)
                told |= changes
                facts = scanner.read(changes)
            full = NodeScanner(SYSFS, PROCFS).read()
    return Noticed(told, before, facts)


def _differences(ours: NodeFacts, full: NodeFacts) -> Iterator[str]:
    """One line for each entry of the facts that only one of the two has."""
    for name in NodeFacts.__struct_fields__:
        mine, theirs = getattr(ours, name), getattr(full, name)
        if mine != theirs:
            yield f"{name}: rescanned {_only(mine, theirs)}; in full {_only(theirs, mine)}"


def _only(entries: object, others: object) -> object:
    if isinstance(entries, tuple) and isinstance(others, tuple):
        return [entry for entry in entries if entry not in others]
    return entries


def names(facts: NodeFacts) -> dict[str, Device]:
    return {device.name: device for device in build_devices(facts, {})}


def addresses(facts: NodeFacts) -> set[str]:
    return {function.address for function in facts.pci_functions}


def offered_on(facts: NodeFacts, address: str) -> list[str]:
    """Names of the interfaces of the devices that are offered on a function."""
    decisions = take_inventory(facts, {})
    return [d.device.ifname for d in decisions if d.published and d.device.pci_address == address]


def set_vfs(count: int) -> None:
    (kernel_view.SYS_PCI / IGB1.address / "sriov_numvfs").write_text(str(count))


def write(path: str) -> None:
    Path(path).write_text("1")


async def test_a_link_that_changes_is_the_only_thing_read_again() -> None:
    ifname = kernel_view.ifname(VIRTIO1.address)
    (index,) = [entry["ifindex"] for entry in kernel_view.ip("link", "show", "dev", ifname)]

    def is_renamed(facts: NodeFacts) -> bool:
        return any(link.mtu == 1444 for link in facts.links)

    seen = await notice(lambda: _set_mtu(ifname, 1444), is_renamed)
    assert index in seen.changes.links
    assert not seen.changes.everything
    assert seen.changes.hardware == frozenset()
    _set_mtu(ifname, 1500)


def _set_mtu(ifname: str, mtu: int) -> None:
    kernel_view.run("ip", "link", "set", ifname, "mtu", str(mtu))


async def test_virtual_functions_that_go_and_come_are_noticed() -> None:
    vfs = {f.address for f in MACHINE.functions() if f.physical_function == IGB1.address}
    _write(HCA / "del", "mlx5_2")
    gone = await notice(lambda: set_vfs(0), lambda facts: not vfs & addresses(facts))
    assert vfs <= gone.changes.hardware
    assert not any(rdma.name == "mlx5_2" for rdma in gone.after.rdma_devices)
    (igb1,) = [f for f in gone.after.pci_functions if f.address == IGB1.address]
    assert igb1.sriov_num_vfs == 0, "the physical function tells it, though it sent no event of its own"

    back = await notice(lambda: set_vfs(IGB1.num_vfs), lambda facts: _has_links(facts, vfs))
    assert vfs <= back.changes.hardware
    (igb1,) = [f for f in back.after.pci_functions if f.address == IGB1.address]
    assert igb1.sriov_num_vfs == IGB1.num_vfs == int(kernel_view.attribute(IGB1.address, "sriov_numvfs"))
    published = names(back.after)
    for vf in vfs:
        device = published[f"pci-{vf.replace(':', '-').replace('.', '-')}"]
        assert (device.physical_function, device.ifname) == (IGB1.address, kernel_view.ifname(vf))
    _make_rdma_only("mlx5_2", MACHINE.function("igb1/0").address)


def _make_rdma_only(name: str, address: str) -> None:
    """As the machine's script does."""
    _write(kernel_view.SYS_PCI / address / "driver/unbind", address)
    _write(HCA / "add", f"{name} {address} ib")


def _has_links(facts: NodeFacts, wanted: set[str]) -> bool:
    """Whether each has a link with a carrier. Brings them up, as a node's network service would."""
    links = [link for link in facts.links if link.pci_address in wanted]
    for link in links:
        if not link.is_up:
            kernel_view.run("ip", "link", "set", link.ifname, "up")
    return wanted == {link.pci_address for link in links if link.carrier}


@pytest.mark.parametrize("function", [SWITCHED, VIRTIO1], ids=lambda function: function.name)
async def test_a_nic_that_is_removed_and_found_again_is_noticed(function: object) -> None:
    nic = next(f for f in (SWITCHED, VIRTIO1) if f is function)
    remove, rescan = f"/sys/bus/pci/devices/{nic.address}/remove", "/sys/bus/pci/rescan"
    gone = await notice(lambda: write(remove), lambda facts: nic.address not in addresses(facts))
    assert nic.address in gone.changes.hardware
    assert not any(link.pci_address == nic.address for link in gone.after.links)

    back = await notice(lambda: write(rescan), lambda facts: _has_links(facts, {nic.address}))
    assert nic.address in back.changes.hardware
    (link,) = [link for link in back.after.links if link.pci_address == nic.address]
    assert (link.mac, link.ifname) == (nic.mac, kernel_view.ifname(nic.address))


async def test_an_rdma_device_that_comes_is_renamed_and_goes_is_noticed() -> None:
    def has(name: str) -> Callable[[NodeFacts], bool]:
        return lambda facts: any(rdma.name == name for rdma in facts.rdma_devices)

    came = await notice(lambda: _add("mlx5_9", IGB1.address), has("mlx5_9"))
    assert "mlx5_9" in came.changes.hardware
    (device,) = [d for d in names(came.after).values() if d.pci_address == IGB1.address]
    assert (device.rdma_device, device.ifname) == ("mlx5_9", kernel_view.ifname(IGB1.address))

    renamed = await notice(lambda: _rename("mlx5_9", "mlx5_8"), has("mlx5_8"))
    assert "mlx5_8" in renamed.changes.hardware, "by an event of the hardware: Linux 6.12 has no other"
    assert not has("mlx5_9")(renamed.after)

    went = await notice(lambda: _write(HCA / "del", "mlx5_8"), lambda facts: not has("mlx5_8")(facts))
    assert "mlx5_8" in went.changes.hardware


def _add(name: str, address: str) -> None:
    _write(HCA / "add", f"{name} {address} eth")


def _rename(name: str, new: str) -> None:
    kernel_view.run("rdma", "dev", "set", name, "name", new)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_physical_function_whose_driver_is_unbound_and_bound_again_is_noticed() -> None:
    address, vfs = (
        IGB1.address,
        {f.address for f in MACHINE.functions() if f.physical_function == IGB1.address},
    )
    driver = Path("/sys/bus/pci/drivers/igb")
    _write(HCA / "del", "mlx5_2")

    unbound = await notice(
        lambda: _write(driver / "unbind", address), lambda facts: not vfs & addresses(facts)
    )
    assert {address, *vfs} <= unbound.changes.hardware
    assert offered_on(unbound.after, address) == []
    assert address in addresses(unbound.after), "only its driver is gone"

    bound = await notice(lambda: _write(driver / "bind", address), lambda facts: _has_links(facts, {address}))
    assert address in bound.changes.hardware
    assert offered_on(bound.after, address) == [kernel_view.ifname(address)] != [""]

    set_vfs(IGB1.num_vfs)
    _make_rdma_only("mlx5_2", MACHINE.function("igb1/0").address)


# --- RDMA netlink alone ---------------------------------------------------------------------------------


@pytest.fixture
def _without_libudev(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel events of hardware are not read, so that only netlink can tell."""
    monkeypatch.setitem(sys.modules, "pyudev", None)


@contextlib.contextmanager
def rdma_monitor() -> Iterator[Callable[[], str]]:
    """The distribution's own listener to the same notifications. Gives what it said so far."""
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(["rdma", "monitor"], stdout=said) as monitor:
        try:
            yield lambda: os.pread(said.fileno(), 65536, 0).decode()
        finally:
            monitor.terminate()


@pytest.mark.usefixtures("_without_libudev")
async def test_rdma_netlink_tells_of_devices_and_of_the_links_below_them() -> None:
    ifname = kernel_view.ifname(SWITCHED.address)
    (index,) = [entry["ifindex"] for entry in kernel_view.ip("link", "show", "dev", ifname)]

    def netdevs(facts: NodeFacts) -> tuple[str, ...] | None:
        return next((r.ports[0].netdevs for r in facts.rdma_devices if r.name == "rxe9"), None)

    def add() -> None:
        kernel_view.run("rdma", "link", "add", "rxe9", "type", "rxe", "netdev", ifname)

    def rename(old: str, new: str) -> None:
        kernel_view.run("ip", "link", "set", old, "name", new)

    with rdma_monitor() as said:
        came = await notice(add, lambda facts: netdevs(facts) is not None)
        assert came.changes.hardware == {"rxe9"}
        assert index in came.changes.links
        assert not came.changes.everything
        assert netdevs(came.after) == (ifname,)

        renamed = await notice(lambda: rename(ifname, "renamed0"), lambda f: netdevs(f) == ("renamed0",))
        assert index in renamed.changes.links
        (shown,) = [link for link in kernel_view.rdma("link", "show") if link["ifname"] == "rxe9"]
        assert shown["netdev"] == "renamed0"
        rename("renamed0", ifname)

        went = await notice(lambda: _delete("rxe9"), lambda facts: netdevs(facts) is None)
        assert went.changes.hardware == {"rxe9"}
        told = [line.split() for line in said().splitlines()]
    assert [words[0] for words in told] == ["[REGISTER]", "[NETDEV_ATTACH]", "[UNREGISTER]"]
    assert all("rxe9" in words for words in told)


def _delete(name: str) -> None:
    kernel_view.run("rdma", "link", "del", name)
