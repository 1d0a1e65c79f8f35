"""NICs and RDMA devices that really move between namespaces, and what a scan says of them meanwhile."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.inventory.build import build_devices
from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.checks import verify
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.rdma import (
    attach_rdma,
    detach_rdma,
    has_rdma,
    read_cm_defaults,
    read_netns_exclusive,
    restore_cm_defaults,
)
from dranet.model.device import Device, DeviceKind, RdmaIdentity
from dranet.model.facts import Address
from dranet.model.plan import AddAddress, AttachPlan, MoveLink, MoveRdma, SetUp, Step
from testbed.machine.hardware import MACHINE, Function
from tests.machine import kernel_view
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.machine

IGB = MACHINE.function("igb0")
VF = MACHINE.function("igb0/1")
SOFT_LINKS = {
    "dummy": "link add {name} type dummy",
    "vlan": "link add {name} link {parent} type vlan id 7",
    "macvlan": "link add {name} link {parent} type macvlan mode bridge",
    "ipvlan": "link add {name} link {parent} type ipvlan mode l2",
}


def plan_for(function: Function, *more: MoveRdma) -> AttachPlan:
    return plan_for_link(kernel_view.ifname(function.address), *more)


def plan_for_link(ifname: str, *more: MoveRdma) -> AttachPlan:
    steps: tuple[Step, ...] = (
        MoveLink("net1", mtu=1280),
        *more,
        AddAddress(Address("172.16.1.5/24")),
        SetUp(),
    )
    return AttachPlan(f"dev-{ifname}", steps, "net1", read_link_state(ifname))


def shown(ifname: str) -> dict[str, object]:
    """What ``ip`` says of a link, without what follows the carrier."""
    (entry,) = kernel_view.ip("addr", "show", "dev", ifname)
    kept = ("ifindex", "ifname", "mtu", "address", "txqlen", "group", "ifalias")
    addresses = [info["local"] for info in entry["addr_info"] if info["family"] == "inet"]
    return {**{key: entry.get(key) for key in kept}, "up": "UP" in entry["flags"], "addresses": addresses}


def scan_devices(held: dict[str, Device] | None = None) -> dict[str, Device]:
    facts = NodeScanner(Path("/sys"), Path("/proc")).read()
    return {device.name: device for device in build_devices(facts, held or {})}


def name_of(function: Function) -> str:
    return f"pci-{function.address.replace(':', '-').replace('.', '-')}"


@pytest.fixture(autouse=True)
def as_made() -> None:
    """Links are up, whatever the test before left behind. Few tests need their carriers, which come late."""
    kernel_view.raise_links()


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    """A namespace; whatever a failed test left in it goes back to the node with its end."""
    return make_namespace()


@pytest.fixture(params=[IGB, VF], ids=lambda function: function.name)
def nic(request: pytest.FixtureRequest) -> Function:
    function: Function = request.param
    return function


# --- physical NICs --------------------------------------------------------------------------------------


def test_a_physical_nic_reaches_the_pod_and_comes_back_as_it_was(nic: Function, pod: Namespace) -> None:
    ifname = kernel_view.ifname(nic.address)
    kernel_view.run("ip", "link", "set", ifname, "mtu", "1400", "alias", "rack-7", "up")
    before = shown(ifname)
    plan = plan_for(nic)
    (attached,) = attach([plan], pod.netns)
    (inside,) = pod.read("addr", "show", "dev", "net1")
    assert (inside["mtu"], inside["address"]) == (1280, before["address"])
    assert "UP" in inside["flags"]
    assert [info["local"] for info in inside["addr_info"]] == ["172.16.1.5"]
    assert (attached.pod_ifname, attached.mtu) == ("net1", 1280)
    assert kernel_view.ifname(nic.address) == "", "the node does not see it any more"
    assert verify([plan], pod.netns) == ()
    assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
    assert shown(ifname) == before


def test_a_nic_that_comes_back_with_its_dying_namespace_gets_name_mac_and_mtu_again(
    nic: Function, pod: Namespace
) -> None:
    ifname = kernel_view.ifname(nic.address)
    before = shown(ifname)
    plan = plan_for(nic)
    attach([plan], pod.netns)
    pod.ip("link", "set", "net1", "address", "02:00:00:00:66:66")
    pod.delete()
    wait_until(lambda: kernel_view.ifname(nic.address) != "", "the kernel returns it", 30)
    assert kernel_view.ifname(nic.address) == "net1"
    assert detach([plan], None) == DetachReport(restored=(plan.device,))
    assert shown(ifname) == before


def test_a_nic_that_comes_back_under_the_kernels_own_name_is_found(pod: Namespace) -> None:
    ifname = kernel_view.ifname(IGB.address)
    before = shown(ifname)
    plan = plan_for(IGB)
    attach([plan], pod.netns)
    kernel_view.run("ip", "link", "add", "net1", "type", "dummy")
    try:
        pod.delete()
        wait_until(lambda: kernel_view.ifname(IGB.address) != "", "the kernel returns it", 30)
        assert kernel_view.ifname(IGB.address) == f"dev{before['ifindex']}"
        assert detach([plan], None) == DetachReport(restored=(plan.device,))
        assert shown(ifname) == before
    finally:
        kernel_view.run("ip", "link", "del", "net1")


@pytest.mark.parametrize("kind", SOFT_LINKS)
def test_a_software_link_of_a_stock_kernel_reaches_the_pod_and_comes_back(kind: str, pod: Namespace) -> None:
    parent = kernel_view.ifname(MACHINE.function("switched").address)
    kernel_view.run("ip", *SOFT_LINKS[kind].format(name="soft0", parent=parent).split())
    try:
        before = shown("soft0")
        (entry,) = kernel_view.ip("link", "show", "dev", "soft0")
        (device,) = [d for d in scan_devices().values() if d.ifname == "soft0"]
        assert device.attributes["dra.net/type"] == entry["linkinfo"]["info_kind"] == kind
        assert device.attributes["dra.net/virtual"] is True
        plan = plan_for_link("soft0")
        attach([plan], pod.netns)
        assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
        assert shown("soft0") == before
    finally:
        kernel_view.run("ip", "link", "del", "soft0")


def test_a_link_that_is_enslaved_to_a_vrf_or_a_bond_is_refused(pod: Namespace) -> None:
    ifname = kernel_view.ifname(MACHINE.function("switched").address)
    plan = plan_for_link(ifname)
    for make in (("vrf", "table", "10"), ("bond", "mode", "active-backup")):
        kernel_view.run("ip", "link", "add", "master0", "type", *make)
        kernel_view.run("ip", "link", "set", ifname, "down")
        kernel_view.run("ip", "link", "set", ifname, "master", "master0")
        try:
            with pytest.raises(Exception, match="enslaved"):
                attach([plan], pod.netns)
            assert kernel_view.ifname(MACHINE.function("switched").address) == ifname
        finally:
            kernel_view.run("ip", "link", "del", "master0")
            kernel_view.run("ip", "link", "set", ifname, "up")


# --- RDMA devices ---------------------------------------------------------------------------------------


def in_sysfs(name: str) -> bool:
    return Path("/sys/class/infiniband", name).exists()


def test_an_rdma_device_moves_and_comes_back(pod: Namespace) -> None:
    guid = {entry["ifname"]: entry["node_guid"] for entry in kernel_view.rdma("dev", "show")}["mlx5_0"]
    assert attach_rdma(RdmaIdentity("mlx5_0"), pod.netns) is True
    assert not in_sysfs("mlx5_0")
    assert has_rdma(RdmaIdentity("mlx5_0"), pod.netns)
    inside = kernel_view.run("ip", "netns", "exec", pod.name, "ls", "/sys/class/infiniband").split()
    assert inside == ["mlx5_0"], "seen from inside the pod"
    assert attach_rdma(RdmaIdentity("mlx5_0"), pod.netns) is False, "it is there already"
    with NetworkNamespace.current() as home:
        assert detach_rdma(RdmaIdentity("mlx5_0"), home, pod.netns) is True
        assert detach_rdma(RdmaIdentity("mlx5_0"), home, pod.netns) is False
    assert in_sysfs("mlx5_0")
    again = {entry["ifname"]: entry["node_guid"] for entry in kernel_view.rdma("dev", "show")}["mlx5_0"]
    assert again == guid


def test_a_verbs_node_opens_only_in_the_namespace_of_its_device(pod: Namespace) -> None:
    (folder,) = Path("/sys/class/infiniband/mlx5_1/device/infiniband_verbs").iterdir()
    node = Path("/dev/infiniband", folder.name)

    def may_open() -> bool:
        try:
            os.close(os.open(node, os.O_RDWR))
        except PermissionError:
            return False
        return True

    assert may_open()
    attach_rdma(RdmaIdentity("mlx5_1"), pod.netns)
    try:
        assert (may_open(), pod.run(may_open)) == (False, True)
    finally:
        with NetworkNamespace.current() as home:
            detach_rdma(RdmaIdentity("mlx5_1"), home, pod.netns)
    assert may_open()


def test_the_kernel_returns_an_rdma_device_with_its_dying_namespace(pod: Namespace) -> None:
    attach_rdma(RdmaIdentity("mlx5_2"), pod.netns)
    assert not in_sysfs("mlx5_2")
    pod.delete()
    wait_until(lambda: in_sysfs("mlx5_2"), "the RDMA device is back", 60)


def test_a_soft_rdma_device_does_not_move_and_the_kernel_says_why(pod: Namespace) -> None:
    with pytest.raises(KernelError) as caught:
        attach_rdma(RdmaIdentity("rxe0"), pod.netns)
    assert caught.value.errno == errno.EOPNOTSUPP
    assert in_sysfs("rxe0")


def test_a_nic_takes_its_rdma_device_along_and_both_come_back(pod: Namespace) -> None:
    ifname = kernel_view.ifname(IGB.address)
    before = shown(ifname)
    plan = plan_for(IGB, MoveRdma("mlx5_0"))
    attach([plan], pod.netns)
    (link,) = [x for x in _rdma_links(pod) if x["ifname"] == "mlx5_0"]
    assert link["netdev"] == "net1", "paired again inside the pod"
    assert not in_sysfs("mlx5_0")
    assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
    assert shown(ifname) == before
    (link,) = [x for x in kernel_view.rdma("link", "show") if x["ifname"] == "mlx5_0"]
    assert link["netdev"] == ifname


CM_FOLDER = Path("rdma_cm/mlx5_0/ports/1")


@pytest.fixture
def configfs(tmp_path: Path) -> Iterator[Path]:
    """The node's configfs, as an administrator mounts it; the driver mounts its own."""
    kernel_view.run("mount", "-t", "configfs", "configfs", str(tmp_path))
    yield tmp_path
    kernel_view.run("umount", str(tmp_path))


def cm_defaults(configfs: Path) -> dict[str, str]:
    return {file.name: file.read_text().strip() for file in (configfs / CM_FOLDER).iterdir()}


@pytest.mark.parametrize("keeps_folder", [True, False])
def test_the_defaults_of_rdma_cm_are_those_of_the_node_in_the_pod_and_after_it(
    pod: Namespace, configfs: Path, keeps_folder: bool
) -> None:
    folder = configfs / "rdma_cm" / "mlx5_0"
    folder.mkdir()
    plain = cm_defaults(configfs)
    (configfs / CM_FOLDER / "default_roce_tos").write_text("106")
    before = cm_defaults(configfs)
    assert before != plain
    if not keeps_folder:
        folder.rmdir()
    defaults = read_cm_defaults("mlx5_0")
    assert folder.exists() == keeps_folder, "looked at without a trace"
    plan = replace(plan_for(IGB, MoveRdma("mlx5_0")), rdma_cm=defaults)
    folder.mkdir(exist_ok=True)
    attach([plan], pod.netns)
    assert cm_defaults(configfs) == before, "in the pod"
    (configfs / CM_FOLDER / "default_roce_tos").write_text("9")
    assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
    assert cm_defaults(configfs) == before
    assert {f"1/{name}": value for name, value in before.items()} == defaults
    for name, value in plain.items():
        (configfs / CM_FOLDER / name).write_text(value)
    folder.rmdir()


def test_the_defaults_of_rdma_cm_of_a_soft_device_are_read_and_written(configfs: Path) -> None:
    before = read_cm_defaults("rxe0")
    assert set(before) == {"1/default_roce_mode", "1/default_roce_tos"}
    assert not (configfs / "rdma_cm" / "rxe0").exists(), "looked at without a trace"
    assert restore_cm_defaults("rxe0", {"1/default_roce_tos": "104"}) == []
    folder = configfs / "rdma_cm" / "rxe0"
    folder.mkdir()
    assert (folder / "ports/1/default_roce_tos").read_text().strip() == "104"
    (refusal,) = restore_cm_defaults("rxe0", {**before, "1/default_roce_mode": "RoCE v9"})
    assert "default_roce_mode of rxe0: wanted RoCE v9" in refusal
    assert read_cm_defaults("rxe0") == before
    folder.rmdir()
    assert read_cm_defaults("none0") == {}


def _rdma_links(pod: Namespace) -> list[dict[str, object]]:
    return pod.run(lambda: kernel_view.rdma("link", "show"))


# --- what a scan says of a device that a pod has --------------------------------------------------------


def test_a_held_nic_keeps_all_it_published_and_is_never_taken_for_rdma_only(pod: Namespace) -> None:
    name = name_of(MACHINE.function("igb0/0"))
    kernel_view.settle()
    before = scan_devices()[name]
    assert (before.kind, before.rdma_device) == (DeviceKind.NIC, "mlx5_1")
    plan = plan_for(MACHINE.function("igb0/0"))
    attach([plan], pod.netns)
    try:
        assert in_sysfs("mlx5_1"), "only the link is in the pod; the RDMA device is still here"
        held = scan_devices({name: before})[name]
        assert (held.kind, held.ifname) == (DeviceKind.NIC, "")
        assert (held.attributes, held.rdma_device) == (before.attributes, "mlx5_1")
        forgotten = scan_devices()[name]
        assert forgotten.kind is DeviceKind.NIC, "even who forgot the pod takes it for no RDMA-only device"
        assert forgotten.ifname == ""
    finally:
        assert detach([plan], pod.netns) == DetachReport(restored=(plan.device,))
    kernel_view.settle()
    after = scan_devices()[name]
    assert dict(after.attributes) == dict(before.attributes)
    assert after == before


def test_an_rdma_only_device_that_a_pod_has_stays_published_as_it_was(pod: Namespace) -> None:
    name = name_of(MACHINE.function("igb1/0"))
    before = scan_devices()[name]
    assert (before.kind, before.rdma_device, before.ifname) == (DeviceKind.RDMA, "mlx5_2", "")
    attach_rdma(RdmaIdentity("mlx5_2"), pod.netns)
    try:
        assert scan_devices({name: before})[name] == before
    finally:
        with NetworkNamespace.current() as home:
            detach_rdma(RdmaIdentity("mlx5_2"), home, pod.netns)


# --- last, because every test after it would see another mode -------------------------------------------


def set_rdma_mode(mode: str) -> bool:
    """``False`` while another network namespace exists, if only because it is still dying (EBUSY)."""
    return subprocess.run(["rdma", "system", "set", "netns", mode], capture_output=True).returncode == 0


def test_in_shared_mode_nothing_moves_and_the_mode_is_told(make_namespace: Callable[..., Namespace]) -> None:
    wait_until(lambda: set_rdma_mode("shared"), "earlier namespaces are gone", 30)
    try:
        assert read_netns_exclusive([]) is False
        pod = make_namespace()
        with pytest.raises(KernelError) as caught:
            attach_rdma(RdmaIdentity("mlx5_0"), pod.netns)
        assert caught.value.errno == errno.EOPNOTSUPP
        assert pod.run(lambda: in_sysfs("mlx5_0")), "every namespace sees it"
        pod.delete()
    finally:
        wait_until(lambda: set_rdma_mode("exclusive"), "the mode is as before", 30)
    assert read_netns_exclusive([]) is True
