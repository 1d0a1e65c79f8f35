"""What the node lives by stays with it: the inventory holds it back, and an attach refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dranet.errors import DeviceError, Reason
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Decision
from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.checks import UplinkGuard, UplinkRules
from dranet.kernel.attachment.detach import detach
from dranet.kernel.attachment.links import read_link
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.discovery.scan import NodeScanner, ProtectedAddress
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.model.plan import AttachPlan, MoveLink
from testbed.machine.hardware import MACHINE
from tests.machine import kernel_view
from tests.machine.openvswitch import open_vswitch
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.machine

BARE = {MACHINE.function(f"{r.card}/{r.vf}").address for r in MACHINE.rdma if r.bare}
BELOW_SOFTWARE_RDMA = {MACHINE.function(r.card).address for r in MACHINE.rdma if r.soft}
"""Never offered: the RDMA device would end with a move of its card."""
NIC_ADDRESSES = {f.address for f in MACHINE.functions() if f.model.is_nic} - BARE - BELOW_SOFTWARE_RDMA

FAR_AWAY = "198.51.100.9"
"""Only a default route leads there."""


@pytest.fixture(autouse=True)
def as_made() -> None:
    kernel_view.raise_links()


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    return make_namespace()


def ifname(function: str) -> str:
    return kernel_view.ifname(MACHINE.function(function).address)


@contextmanager
def node_with(lines: str, undo: str) -> Iterator[None]:
    """The node after these lines for ``ip -batch``; the machine as it was after those."""
    kernel_view.ip_lines(lines)
    try:
        yield
    finally:
        kernel_view.ip_lines(undo)


def uplink(name: str) -> str:
    return (
        f"addr add 192.0.2.10/24 dev {name}\nlink set {name} up\n"
        f"route add default via 192.0.2.1 dev {name} onlink\n"
    )


def way_out() -> str:
    """The link that the kernel would send a packet to the Internet by."""
    (route,) = kernel_view.ip("route", "get", FAR_AWAY)
    return str(route["dev"])


def take(rules: UplinkRules) -> Mapping[str, Decision]:
    scanner = NodeScanner(Path("/sys"), Path("/proc"))
    scanner.set_protected_addresses(rules.protected_addresses)
    return {decision.device.ifname: decision for decision in take_inventory(scanner.read(), {})}


def refused(rules: UplinkRules) -> set[str]:
    """The links of the node that an attach would not give away for the node's sake."""
    with NetlinkSocket.open() as rtnl:
        guard = UplinkGuard(rtnl, rules)
        return {
            entry["ifname"] for entry in kernel_view.ip("link", "show") if _is_refused(rtnl, guard, entry)
        }


def _is_refused(rtnl: NetlinkSocket, guard: UplinkGuard, entry: Mapping[str, Any]) -> bool:
    link = read_link(rtnl, entry["ifindex"])
    assert link is not None
    try:
        guard.check(link)
    except DeviceError as error:
        return error.reason is Reason.DEVICE_IS_UPLINK
    return False


def assert_stays(tied: set[str], reason: str, rules: UplinkRules) -> None:
    """Exactly these are held back for that reason and would be refused; all other NICs are offered."""
    decisions = take(rules)
    assert {name for name, d in decisions.items() if not d.published and reason in d.reason} == tied
    nics = {kernel_view.ifname(address) for address in NIC_ADDRESSES}
    assert {name for name in nics if decisions[name].published} == nics - tied
    assert refused(rules) == tied


def move(name: str) -> AttachPlan:
    return AttachPlan(f"dev-{name}", (MoveLink("net1"),), "net1", read_link_state(name))


def test_a_bond_below_the_vlan_of_the_default_route_stays_with_all_that_belongs_to_it() -> None:
    slaves = ifname("switched"), ifname("virtio1")
    enslave = "".join(f"link set {name} down\nlink set {name} master up0\n" for name in slaves)
    lines = (
        f"link add up0 type bond mode active-backup\n{enslave}link set up0 up\n"
        "link add link up0 name up0.100 type vlan id 100\nlink add link up0 name up0.200 type vlan id 200\n"
    )
    with node_with(lines + uplink("up0.100"), "link del up0\n"):
        assert way_out() == "up0.100"
        shown = Path("/sys/class/net/up0/bonding/slaves").read_text().split()
        assert sorted(shown) == sorted(slaves)
        assert {"up0.100", "up0.200"} == {path.name for path in Path("/proc/net/vlan").glob("up0.*")}
        tied = {"up0", "up0.100", "up0.200", *shown}
        assert_stays(tied, "the node's uplink", UplinkRules())


def test_an_uplink_on_a_virtual_function_keeps_the_physical_one_and_no_other(pod: Namespace) -> None:
    vf, pf, sibling = ifname("igb0/1"), ifname("igb0"), ifname("igb0/2")
    prepared = move(pf)
    with node_with(uplink(vf), f"addr flush dev {vf}\n"):
        assert way_out() == vf
        physical = kernel_view.link_name(MACHINE.function("igb0/1").address, "physfn")
        assert kernel_view.ifname(physical) == pf
        assert_stays({vf, pf}, "the node's uplink", UplinkRules())
        with pytest.raises(DeviceError) as caught:
            attach([prepared], pod.netns)
        assert caught.value.reason is Reason.DEVICE_IS_UPLINK
        plan = move(sibling)
        attach([plan], pod.netns)
        try:
            assert [entry["ifname"] for entry in pod.read("link", "show", "dev", "net1")] == ["net1"]
        finally:
            detach([plan], pod.netns)
        assert ifname("igb0/2") == sibling


def test_a_nic_with_the_nodes_own_address_and_no_default_route_stays() -> None:
    name, address = ifname("chipset"), "192.0.2.30"
    rules = UplinkRules((ProtectedAddress("the node's address", address, is_own=True),))
    with node_with(f"addr add {address}/24 dev {name}\n", f"addr flush dev {name}\n"):
        assert [entry["ifname"] for entry in kernel_view.ip("addr", "show", "to", address)] == [name]
        assert kernel_view.ip("route", "show", "default") == []
        assert_stays({name}, f"carries the node's address {address}", rules)
        assert take(UplinkRules())[name].published, "it is only the address that holds it"


def test_a_port_of_the_open_vswitch_that_has_the_default_route_stays() -> None:
    port = ifname("virtio1")
    with open_vswitch("br-ex", port):
        kernel_view.ip_lines(uplink("br-ex"))
        assert way_out() == "br-ex"
        (entry,) = kernel_view.ip("link", "show", "dev", port)
        assert entry["master"] == "ovs-system"
        assert_stays({"br-ex", "ovs-system", port}, "the node's uplink", UplinkRules())
