"""The check at attach: the node's protected links and their relatives stay, and asking costs little."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.errors import DeviceError, Reason
from dranet.inventory.topology import find_link_dependencies
from dranet.kernel.attachment.checks import UplinkGuard, UplinkRules
from dranet.kernel.attachment.links import read_link
from dranet.kernel.discovery.scan import NodeScanner, ProtectedAddress
from dranet.kernel.netlink.socket import NetlinkSocket, Request
from dranet.model.facts import Link
from tests.support.executed_lines import count_steps
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

NO_UPLINK = "route del default\nroute del ::/0 via 2001:db8:ffff::1\n"
OWN = ProtectedAddress("the node's address", "10.1.0.2", is_own=True)
API = ProtectedAddress("the route to the API server", "10.9.0.1", is_own=False)


def refusal(node: Namespace, ifname: str, rules: UplinkRules) -> str:
    """Why the guard refuses the link; empty when it does not."""

    def check() -> str:
        with NetlinkSocket.open() as rtnl:
            link = read_link(rtnl, ifname=ifname)
            assert link is not None
            try:
                UplinkGuard(rtnl, rules).check(link)
            except DeviceError as error:
                return f"{error.reason}: {error.message}"
        return ""

    return node.run(check)


LAYOUTS = {
    "own address": "addr add 10.1.0.2/24 dev eth1\n",
    "own address that is routed elsewhere, as that of a VRF is": (
        "addr add 10.1.0.2/24 dev eth1\nroute add 10.1.0.2/32 via 192.0.2.9 table 100\n"
        "rule add pref 100 lookup local\nrule del pref 0\nrule add pref 50 to 10.1.0.2 table 100\n"
    ),
    "own address on a macvlan above it": (
        "link add up1 link eth1 type macvlan\nlink set up1 up\naddr add 10.1.0.2/24 dev up1\n"
    ),
    "own address on its bridge": (
        "link add br0 type bridge\nlink set eth1 master br0\nlink set br0 up\naddr add 10.1.0.2/24 dev br0\n"
    ),
    "route to the API server": "addr add 10.1.0.7/24 dev eth1\nroute add 10.9.0.0/16 via 10.1.0.1\n",
    "next hop of the route to the API server": (
        "addr add 10.1.0.7/24 dev eth1\naddr add 10.2.0.7/24 dev eth2\n"
        "route add 10.9.0.0/16 nexthop via 10.2.0.1 nexthop via 10.1.0.1\n"
    ),
    "policy route to the API server": (
        "addr add 10.1.0.7/24 dev eth1\nroute add default via 10.1.0.1 table 100\n"
        "rule add to 10.9.0.0/16 table 100\n"
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_link_that_a_protected_link_stands_on_stays_and_others_are_free(
    node: Namespace, tmp_path: Path, layout: str
) -> None:
    node.ip_lines(NO_UPLINK + LAYOUTS[layout])
    rules = UplinkRules((OWN, API), tmp_path)
    told = f"{Reason.DEVICE_IS_UPLINK}: link eth1 is the node's uplink or tied to it"
    assert refusal(node, "eth1", rules).startswith(told)
    assert refusal(node, "eth3", rules) == ""
    assert refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path)) == ""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_guard_and_the_inventory_agree(node: Namespace, tmp_path: Path, layout: str) -> None:
    node.ip_lines(NO_UPLINK + LAYOUTS[layout])
    scanner = NodeScanner(tmp_path, tmp_path)
    scanner.set_protected_addresses((OWN, API))
    facts = node.run(scanner.read)
    refused = {
        link.ifname for link in facts.links if refusal(node, link.ifname, UplinkRules((OWN, API), tmp_path))
    }
    assert refused == find_link_dependencies(facts).links.keys()


PIECES = (
    "link add br0 type bridge",
    "link add br1 type bridge",
    "link add mv0 link eth1 type macvlan mode bridge",
    "link add mv1 link eth2 type macvlan mode bridge",
    "link add mv2 link br0 type macvlan mode bridge",
    "link set eth1 master br0",
    "link set eth2 master br0",
    "link set mv0 master br1",
    "link set mv1 master br1",
    "link set uplink master br1",
    "link set br0 up",
    "link set mv0 up",
    "link set uplink down",
    "addr add 10.1.0.2/24 dev br0",
    "addr add 10.1.0.2/24 dev mv1",
    "addr add 10.3.0.7/24 dev mv0",
    "route add default via 10.3.0.1 dev mv0 metric 9",
    "route add 10.9.0.0/16 dev eth3",
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(pieces=st.lists(st.sampled_from(PIECES), unique=True, min_size=4))
def test_the_guard_and_the_inventory_agree_on_any_layout(
    make_namespace: Callable[..., Namespace], tmp_path: Path, pieces: list[str]
) -> None:
    node = make_namespace()
    for name in ("uplink", "eth1", "eth2", "eth3"):
        node.ip_lines(f"link add {name} type veth peer name p-{name}\nlink set {name} up\n")
    node.ip_lines("addr add 192.0.2.2/24 dev uplink\nroute add default via 192.0.2.1 metric 9\n")
    for piece in pieces:  # it may well fail: what it needs was not made
        subprocess.run(["ip", "-n", node.name, *piece.split()], capture_output=True)
    scanner = NodeScanner(tmp_path, tmp_path)
    scanner.set_protected_addresses((OWN, API))
    facts = node.run(scanner.read)
    rules = UplinkRules((OWN, API), tmp_path)
    assert {link.ifname for link in facts.links if refusal(node, link.ifname, rules)} == set(
        find_link_dependencies(facts).links
    )
    node.delete()


def test_the_reason_names_the_protected_link(node: Namespace, tmp_path: Path) -> None:
    node.ip_lines(NO_UPLINK + LAYOUTS["own address"])
    assert "(the node's address)" in refusal(node, "eth1", UplinkRules((OWN,), tmp_path))


def test_an_own_address_that_is_elsewhere_ties_nothing(node: Namespace, tmp_path: Path) -> None:
    """Its route leads somewhere, but that is not where the node answers at it."""
    node.ip_lines(NO_UPLINK + "addr add 10.1.0.7/24 dev eth1\n")
    assert refusal(node, "eth1", UplinkRules((OWN,), tmp_path)) == ""


# --- hardware behind a link -----------------------------------------------------------------------------

PF, VF, OTHER = "0000:21:00.0", "0000:21:10.0", "0000:22:00.0"


def place(sysfs: Path, address: str, ifname: str) -> None:
    home = sysfs / "devices/pci0000:20" / address / "net" / ifname
    home.mkdir(parents=True)
    bus, net = sysfs / "bus/pci/devices", sysfs / "class/net"
    for folder in (bus, net):
        folder.mkdir(parents=True, exist_ok=True)
    if not (bus / address).exists():
        (bus / address).symlink_to(f"../../../devices/pci0000:20/{address}")
    (net / ifname).symlink_to(f"../../devices/pci0000:20/{address}/net/{ifname}")


class HardwareGuard(UplinkGuard):
    """The test's links are veths; here they pass for hardware, which has no kind."""

    def check(self, link: Link) -> None:
        super().check(replace(link, kind="", virtual=False))

    def _read(self, ifindex: int) -> Link | None:
        link = super()._read(ifindex)
        return replace(link, kind="", virtual=False) if link else None


@pytest.fixture
def _veths_are_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(refusal.__globals__, "UplinkGuard", HardwareGuard)


@pytest.mark.usefixtures("_veths_are_hardware")
def test_the_physical_function_of_an_uplink_that_is_a_virtual_one_stays(
    node: Namespace, tmp_path: Path
) -> None:
    place(tmp_path, PF, "eth1")
    place(tmp_path, VF, "uplink")
    place(tmp_path, OTHER, "eth2")
    (tmp_path / "bus/pci/devices" / PF / "virtfn0").symlink_to(f"../{VF}")
    rules = UplinkRules(sysfs_root=tmp_path)
    assert "tied to it (default route)" in refusal(node, "eth1", rules)
    assert refusal(node, "eth2", rules) == ""


@pytest.mark.usefixtures("_veths_are_hardware")
def test_the_virtual_functions_of_an_uplink_are_free(node: Namespace, tmp_path: Path) -> None:
    place(tmp_path, PF, "uplink")
    place(tmp_path, VF, "eth1")
    (tmp_path / "bus/pci/devices" / PF / "virtfn0").symlink_to(f"../{VF}")
    assert refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path)) == ""


@pytest.mark.usefixtures("_veths_are_hardware")
def test_the_other_link_of_the_uplinks_function_stays(node: Namespace, tmp_path: Path) -> None:
    place(tmp_path, PF, "uplink")
    place(tmp_path, PF, "eth1")
    assert refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path))


@pytest.mark.usefixtures("_veths_are_hardware")
def test_a_virtual_function_behind_virtio_is_found(node: Namespace, tmp_path: Path) -> None:
    place(tmp_path, PF, "eth1")
    place(tmp_path, VF, "eth3")
    (tmp_path / "devices/pci0000:20" / VF / "virtio7/net/uplink").mkdir(parents=True)
    (tmp_path / "bus/pci/devices" / PF / "virtfn0").symlink_to(f"../{VF}")
    assert refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path))


@pytest.mark.usefixtures("_veths_are_hardware")
def test_a_card_with_the_hardware_address_of_the_uplink_stays(node: Namespace, tmp_path: Path) -> None:
    """On Azure: the function that has come back and is not yet enslaved to its synthetic card."""
    node.ip("link", "set", "eth1", "address", "02:00:00:00:00:00")  # that of the uplink
    assert "tied to it (default route)" in refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path))
    assert refusal(node, "eth2", UplinkRules(sysfs_root=tmp_path)) == ""


class RdmaGuard(UplinkGuard):
    """As if the RDMA device of the function were asked for, whatever the link."""

    def check(self, link: Link) -> None:
        if link.ifname == "eth1":
            self.check_rdma("ibp33s0")
        else:
            super().check(link)


def test_an_rdma_device_whose_interface_is_the_uplink_stays(
    node: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the device the IPoIB interface on it would leave the node."""
    monkeypatch.setitem(refusal.__globals__, "UplinkGuard", RdmaGuard)
    (tmp_path / "class/infiniband").mkdir(parents=True)
    device = tmp_path / "class/infiniband/ibp33s0"
    device.symlink_to(f"../../devices/pci0000:20/{PF}/infiniband/ibp33s0")
    place(tmp_path, PF, "eth2")
    assert refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path)) == ""
    place(tmp_path, PF, "uplink")
    assert "link uplink is the node's uplink" in refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path))


class TunnelGuard(HardwareGuard):
    """As if the uplink were a tunnel, and all other links hardware."""

    def _read(self, ifindex: int) -> Link | None:
        link = super()._read(ifindex)
        return replace(link, kind="ppp") if link and link.ifname == "uplink" else link


def test_while_the_uplink_is_a_tunnel_any_card_that_is_up_may_carry_it(
    node: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(refusal.__globals__, "UplinkGuard", TunnelGuard)
    node.ip("link", "set", "eth2", "down")
    assert "tied to it (default route)" in refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path))
    assert refusal(node, "eth2", UplinkRules(sysfs_root=tmp_path)) == ""


def test_where_another_uplink_is_a_card_a_tunnel_goes_through_that(
    node: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(refusal.__globals__, "UplinkGuard", TunnelGuard)
    node.ip_lines("addr add 10.1.0.7/24 dev eth3\nroute add default via 10.1.0.1 dev eth3 metric 9\n")
    assert refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path)) == ""
    assert refusal(node, "eth3", UplinkRules(sysfs_root=tmp_path))


# --- Open vSwitch ---------------------------------------------------------------------------------------


class SwitchGuard(UplinkGuard):
    """As if the node had an Open vSwitch: br-ex has the default route, eth1 is a port, eth2 is not."""

    def __init__(self, rtnl: NetlinkSocket, rules: UplinkRules) -> None:
        super().__init__(rtnl, rules)
        by_name = {name: read_link(rtnl, ifname=name) for name in ("uplink", "eth1", "eth3")}
        index = {name: link.ifindex for name, link in by_name.items() if link}
        system, bridge = index["eth3"], index["uplink"]
        self._links = {
            system: Link(system, "ovs-system", kind="openvswitch"),
            bridge: Link(bridge, "br-ex", kind="openvswitch", flags=1, carrier=True),
        }
        self.port = Link(index["eth1"], "eth1", master=system)

    def check(self, link: Link) -> None:
        super().check(self.port if link.ifname == "eth1" else link)

    def _dump(self, _: Request) -> Iterable[Link]:
        return [link for link in (*self._links.values(), self.port) if link]


def test_a_port_of_the_open_vswitch_that_has_the_uplink_stays(
    node: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its internal port has no master and nothing below it: only the kind tells."""
    monkeypatch.setitem(refusal.__globals__, "UplinkGuard", SwitchGuard)
    assert refusal(node, "eth1", UplinkRules(sysfs_root=tmp_path))
    assert refusal(node, "eth2", UplinkRules(sysfs_root=tmp_path)) == ""


# --- cost -----------------------------------------------------------------------------------------------


def test_the_check_costs_little_on_a_router_with_twenty_thousand_routes(
    node: Namespace, tmp_path: Path
) -> None:
    prefixes = (f"20.{n // 250}.{n % 250}.0/24" for n in range(20_000))
    node.ip_lines("".join(f"route add {prefix} via 192.0.2.9\n" for prefix in prefixes))
    rules = UplinkRules((API,), tmp_path)
    refusal(node, "eth1", rules)
    steps = count_steps(lambda: refusal(node, "eth1", rules))
    assert refusal(node, "eth1", rules) == ""
    assert steps < 20_000, "a dump of that table is a line for each route at least"
