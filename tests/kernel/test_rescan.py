"""A rescan of what the watch named equals a full scan, and leaves everything else as it was."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.errors import KernelError
from dranet.kernel.discovery import scan as scan_module
from dranet.kernel.discovery.scan import (
    NodeScanner,
    ProtectedAddress,
    read_default_routes,
)
from dranet.kernel.discovery.watch import EVERYTHING, MANY_LINKS, Changes, ChangeWatch, Patience
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.model.facts import Link, NodeFacts, ProtectedLink, Route
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

QUICK = (Patience(0.02, 1.0),)

OPERATIONS = (
    "link add a1 type veth peer name b1",
    "link add a2 type veth peer name b2",
    "link del a1",
    "link del b2",
    "link add a3 index 900 type veth peer name b3",
    "link del a3",
    "link add br9 index 900 type bridge",
    "link del br9",
    "link set b3 master br9",
    "link set a1 up",
    "link set b1 up",
    "link set a1 down",
    "link set eth1 down",
    "link set eth1 up",
    "link set uplink down",
    "link set uplink up",
    "link set a1 mtu 1400",
    "link set eth2 alias rack-7",
    "link set eth2 txqueuelen 77 group 42",
    "link set eth2 address 02:00:00:00:77:77",
    "link set a2 name c2",
    "link set c2 name a2",
    "link property add dev eth2 altname enp33s0f1np1",
    "link property del dev eth2 altname enp33s0f1np1",
    "link add br0 type bridge",
    "link set br0 up",
    "link del br0",
    "link set eth1 master br0",
    "link set a1 master br0",
    "link set eth1 nomaster",
    "link add mv1 link eth1 type macvlan mode bridge",
    "link del mv1",
    "link set a1 netns POD",
    "link set eth3 netns POD",
    "-n POD link set a1 netns NODE",
    "-n POD link set eth3 netns NODE",
    "addr add 10.1.0.2/24 dev eth1",
    "addr del 10.1.0.2/24 dev eth1",
    "addr add 10.1.0.3/24 brd + dev eth1 label eth1:web",
    "addr add 2001:db8:1::2/64 dev eth1 nodad",
    "addr del 2001:db8:1::2/64 dev eth1",
    "addr flush dev uplink",
    "addr add 192.0.2.2/24 dev uplink",
    "route add default via 10.1.0.1 metric 300 src 10.1.0.2",
    "route add default metric 7 nexthop via 192.0.2.1 nexthop via 10.1.0.1",
    "route del default",
    "route add ::/0 via 2001:db8:1::1 metric 77",
    "route del ::/0 via 2001:db8:ffff::1",
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(operations=st.lists(st.sampled_from(OPERATIONS), min_size=4, max_size=10))
def test_after_any_changes_a_rescan_equals_a_full_scan(
    make_namespace: Callable[..., Namespace], tmp_path: Path, operations: list[str]
) -> None:
    node, pod = make_namespace(), make_namespace()
    for number, name in enumerate(("uplink", "eth1", "eth2", "eth3")):
        node.ip_lines(f"link add {name} address 02:00:00:00:00:{number:02x} type veth peer name p-{name}\n")
        node.ip_lines(f"link set {name} up\nlink set p-{name} up\n")
    node.ip_lines("addr add 192.0.2.2/24 dev uplink\nroute add default via 192.0.2.1\n")
    node.ip_lines("addr add 2001:db8:ffff::2/64 dev uplink nodad\nroute add ::/0 via 2001:db8:ffff::1\n")
    scanner = NodeScanner(tmp_path, tmp_path)

    async def scenario() -> None:
        async with ChangeWatch(QUICK) as watch:
            scanner.read()
            for operation in operations:
                await asyncio.to_thread(perform, operation, node, pod)
                await same_after_rescan(scanner, watch, tmp_path)

    node.run(lambda: asyncio.run(scenario()))
    node.delete()
    pod.delete()


def perform(operation: str, node: Namespace, pod: Namespace) -> None:
    """It may well fail: what it needs was not made, or is gone."""
    text = operation.replace("POD", pod.name).replace("NODE", node.name)
    arguments = text.split() if text.startswith("-n") else ["-n", node.name, *text.split()]
    subprocess.run(["ip", *arguments], capture_output=True)


async def same_after_rescan(scanner: NodeScanner, watch: ChangeWatch, empty: Path) -> None:
    """The kernel tells some things late (a carrier, an operational state), so ask until it has said all."""
    facts = scanner.read(Changes())
    async with asyncio.timeout(60):
        while (fresh := NodeScanner(empty, empty).read()) != facts:
            facts = rescan(scanner, await changes_or_nothing(watch), facts, fresh)


async def changes_or_nothing(watch: ChangeWatch) -> Changes:
    try:
        return await asyncio.wait_for(watch.wait_changed(), 10)
    except TimeoutError:
        return Changes()


def rescan(scanner: NodeScanner, changes: Changes, before: NodeFacts, fresh: NodeFacts) -> NodeFacts:
    assert changes, f"nothing was told, and yet {difference(before, fresh)}"
    return scanner.read(changes)


def difference(before: NodeFacts, fresh: NodeFacts) -> str:
    lost, new = set(before.links) - set(fresh.links), set(fresh.links) - set(before.links)
    if lost or new:
        return f"lost {lost}, new {new}"
    return f"{before.default_routes} became {fresh.default_routes}"


# --- what is read, and what is kept ---------------------------------------------------------------------


def scan(node: Namespace, scanner: NodeScanner, changes: Changes = EVERYTHING) -> NodeFacts:
    return node.run(lambda: scanner.read(changes))


def by_name(facts: NodeFacts) -> dict[str, Link]:
    return {link.ifname: link for link in facts.links}


@pytest.fixture
def scanner(tmp_path: Path) -> NodeScanner:
    return NodeScanner(tmp_path, tmp_path)


def test_links_that_did_not_change_stay_the_same_objects(node: Namespace, scanner: NodeScanner) -> None:
    before = by_name(scan(node, scanner))
    node.ip_lines("addr add 10.1.0.2/24 dev eth1\nlink del eth3\n")
    gone, changed = before["eth3"].ifindex, before["eth1"].ifindex
    after = by_name(scan(node, scanner, Changes(links=frozenset({gone, changed}))))
    assert [address.cidr for address in after["eth1"].addresses] == ["10.1.0.2/24"]
    assert "eth3" not in after
    assert after.keys() == before.keys() - {"eth3"}
    assert all(after[name] is before[name] for name in after.keys() - {"eth1"})


def test_a_full_scan_keeps_the_objects_of_what_reads_the_same(
    make_namespace: Callable[..., Namespace], scanner: NodeScanner
) -> None:
    still = make_namespace()  # its links are down: nothing happens to them by itself
    still.ip_lines("link add a1 type veth peer name b1\nlink add a2 type veth peer name b2\n")
    before = by_name(scan(still, scanner))
    still.ip("link", "set", "a1", "mtu", "1400")
    after = by_name(scan(still, scanner))
    assert {name for name in after if after[name] is not before[name]} == {"a1"}


def test_only_what_was_named_is_read(node: Namespace, scanner: NodeScanner) -> None:
    before = by_name(scan(node, scanner))
    node.ip_lines("link set eth1 mtu 1400\nlink set eth2 mtu 1400\n")
    after = by_name(scan(node, scanner, Changes(links=frozenset({before["eth1"].ifindex}))))
    assert (after["eth1"].mtu, after["eth2"].mtu) == (1400, 1500)


def test_changes_of_more_links_than_are_named_read_them_all(node: Namespace, scanner: NodeScanner) -> None:
    scan(node, scanner)
    node.ip_lines("link set eth1 mtu 1400\nlink del eth3\nroute del default\n")
    after = scan(node, scanner, Changes(all_links=True))
    assert by_name(after)["eth1"].mtu == 1400
    assert "eth3" not in by_name(after)
    assert all(":" in route.destination for route in after.default_routes)


def test_many_named_links_read_the_same_as_each_alone(
    make_namespace: Callable[..., Namespace], scanner: NodeScanner
) -> None:
    still = make_namespace()  # its links are down: nothing happens to them by itself
    still.ip_lines("".join(f"link add a{n} type veth peer name b{n}\n" for n in range(scan_module.FEW_LINKS)))
    before = by_name(scan(still, scanner))
    names = [f"{side}{n}" for side in "ab" for n in range(scan_module.FEW_LINKS)]
    still.ip_lines("".join(f"addr add 10.1.{n}.1/24 dev {name}\n" for n, name in enumerate(names)))
    changed = Changes(links=frozenset(before[name].ifindex for name in names))
    assert scan(still, scanner, changed) == scan(still, scanner)


def test_the_other_end_of_a_link_that_leaves_or_comes_back_is_read_again(
    node: Namespace, pod: Namespace, scanner: NodeScanner
) -> None:
    """Nothing is told of the other end, but its parent reads differently."""
    node.ip("link", "add", "a1", "type", "veth", "peer", "name", "b1")
    a1 = by_name(scan(node, scanner))["a1"].ifindex
    node.ip("link", "set", "a1", "netns", pod.name)
    left = by_name(scan(node, scanner, Changes(links=frozenset({a1}))))
    assert left["b1"].link_netnsid is not None
    assert left["b1"] == by_name(scan(node, scanner))["b1"]
    pod.ip("link", "set", "a1", "netns", node.name)
    back = by_name(scan(node, scanner, Changes(links=frozenset({a1}))))
    assert back["b1"].link_netnsid is None
    assert back["b1"] == by_name(scan(node, scanner))["b1"]


def test_a_default_route_that_went_with_its_link_is_gone_although_nobody_told(
    node: Namespace, scanner: NodeScanner
) -> None:
    """The kernel flushes IPv4 routes of a link that goes down without a notification of each."""
    before = scan(node, scanner)
    uplink = by_name(before)["uplink"].ifindex
    assert {route.ifindex for route in before.default_routes} == {uplink}
    node.ip("link", "set", "uplink", "down")
    assert scan(node, scanner, Changes(links=frozenset({uplink}))).default_routes == ()


def test_a_read_that_failed_is_made_up_for_by_the_next(
    node: Namespace, scanner: NodeScanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = by_name(scan(node, scanner))
    node.ip("link", "set", "eth1", "mtu", "1400")

    def refuse(*_: object) -> NetlinkSocket:
        raise KernelError("no descriptors are left")

    with monkeypatch.context() as broken:
        broken.setattr(NetlinkSocket, "open", refuse)
        with pytest.raises(KernelError, match="no descriptors"):
            scan(node, scanner, Changes(links=frozenset({before["eth1"].ifindex})))
    assert by_name(scan(node, scanner, Changes(routes=True)))["eth1"].mtu == 1400


def test_a_read_that_failed_half_way_does_not_forget_what_a_link_was_called(
    node: Namespace, scanner: NodeScanner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The RDMA device on it is known by the old name, and is read again because of that name."""
    device = tmp_path / "class/infiniband/rxe0"
    (device / "ports/1").mkdir(parents=True)
    (device / "parent").write_text("eth3\n")
    eth3 = by_name(scan(node, scanner))["eth3"].ifindex
    node.ip_lines("link set eth3 down\nlink set eth3 name rail3\n")
    (device / "parent").write_text("rail3\n")

    def refuse(*_: object) -> tuple[ProtectedLink, ...]:
        raise KernelError("no buffer")

    with monkeypatch.context() as broken:
        broken.setattr(scan_module, "read_default_routes", refuse)
        with pytest.raises(KernelError, match="no buffer"):
            scan(node, scanner, Changes(links=frozenset({eth3})))
    facts = scan(node, scanner, Changes(routes=True))
    assert [port.netdevs for device in facts.rdma_devices for port in device.ports] == [("rail3",)]


def test_details_are_asked_for_links_that_may_be_offered_and_not_for_veths(
    node: Namespace, scanner: NodeScanner
) -> None:
    node.ip_lines("link add br0 type bridge\nlink add mv0 link eth1 type macvlan\n")
    links = by_name(scan(node, scanner))
    assert (links["br0"].driver, links["mv0"].driver) == ("bridge", "macvlan")
    assert (links["eth1"].driver, links["lo"].driver) == ("", "")
    assert links["eth1"].tc_filters is None


def test_details_of_a_link_that_changed_are_read_again(
    node: Namespace, scanner: NodeScanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.ip_lines("link add mv0 link eth1 type macvlan\nlink add mv1 link eth1 type macvlan\n")
    links = by_name(scan(node, scanner))
    asked: list[list[str]] = []

    def note(names: list[str], _: list[str]) -> dict[str, object]:
        asked.append(names)
        return {}

    monkeypatch.setattr(scan_module, "read_driver_infos", note)
    after = by_name(scan(node, scanner, Changes(links=frozenset({links["mv0"].ifindex}))))
    assert asked == [["mv0"]]
    assert (after["mv0"].driver, after["mv1"].driver) == ("", "macvlan")


def test_warnings_stay_until_the_next_full_scan(
    node: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanner = NodeScanner(tmp_path, tmp_path)
    node.ip("link", "add", "mv0", "link", "eth1", "type", "macvlan")

    def warn(_: list[str], warnings: list[str]) -> dict[str, object]:
        warnings.append("odd")
        return {}

    with monkeypatch.context() as odd:
        odd.setattr(scan_module, "read_driver_infos", warn)
        assert scan(node, scanner).warnings == ("odd",)
        mv0 = by_name(scan(node, scanner))["mv0"].ifindex
        assert scan(node, scanner, Changes(links=frozenset({mv0}))).warnings == ("odd",)
    assert scan(node, scanner, Changes(routes=True)).warnings == ("odd",)
    assert scan(node, scanner).warnings == ()


# --- routes and protected links -------------------------------------------------------------------------


def test_ipv4_default_routes_are_found_before_all_others(node: Namespace) -> None:
    """However many routes there are: the dump is left where the default routes end."""
    node.ip_lines("".join(f"route add 20.{n // 250}.{n % 250}.0/24 via 192.0.2.9\n" for n in range(2000)))
    node.ip_lines("route add 0.0.0.0/1 via 192.0.2.9\nroute add default via 192.0.2.7 metric 900\n")
    read: list[int] = []
    receive = NetlinkSocket._receive

    def counting(self: NetlinkSocket) -> bytes:
        chunk = receive(self)
        read.append(len(chunk))
        return chunk

    def read_defaults() -> tuple[Route, ...]:
        with NetlinkSocket.open() as rtnl:
            return read_default_routes(rtnl, [], [4])

    with pytest.MonkeyPatch.context() as counted:
        counted.setattr(NetlinkSocket, "_receive", counting)
        routes = node.run(read_defaults)
    assert [(route.gateway, route.metric) for route in routes] == [("192.0.2.1", 0), ("192.0.2.7", 900)]
    assert len(read) == 1


PROTECTED = (
    ProtectedAddress("the node's address", "192.0.2.2", is_own=True),
    ProtectedAddress("the node's address", "2001:0db8:ffff:0::2", is_own=True),
    ProtectedAddress("the node's address", "203.0.113.99", is_own=True),
    ProtectedAddress("the route to the API server", "10.9.0.1", is_own=False),
    ProtectedAddress("the route to the API server", "not an address", is_own=False),
)


def test_protected_links_are_the_links_of_own_addresses_and_of_the_way_to_others(
    node: Namespace, scanner: NodeScanner
) -> None:
    node.ip_lines("addr add 10.1.0.2/24 dev eth1\nroute add 10.9.0.0/16 via 10.1.0.1\n")
    scanner.set_protected_addresses(PROTECTED)
    facts = scan(node, scanner)
    index = {name: link.ifindex for name, link in by_name(facts).items()}
    assert facts.protected_links == (
        ProtectedLink("the node's address", "192.0.2.2", index["uplink"]),
        ProtectedLink("the node's address", "2001:0db8:ffff:0::2", index["uplink"]),
        ProtectedLink("the route to the API server", "10.9.0.1", index["eth1"]),
    )


def test_every_next_hop_of_the_way_to_the_api_server_is_a_protected_link(
    node: Namespace, scanner: NodeScanner
) -> None:
    node.ip_lines(
        "addr add 10.1.0.2/24 dev eth1\naddr add 10.2.0.2/24 dev eth2\n"
        "route add 10.9.0.0/16 nexthop via 10.1.0.1 nexthop via 10.2.0.1\n"
    )
    scanner.set_protected_addresses(PROTECTED[3:])
    facts = scan(node, scanner)
    index = {name: link.ifindex for name, link in by_name(facts).items()}
    assert {line.ifindex for line in facts.protected_links} == {index["eth1"], index["eth2"]}


def test_an_ipv6_address_is_reached_by_its_route_too(node: Namespace, scanner: NodeScanner) -> None:
    scanner.set_protected_addresses(
        [ProtectedAddress("the route to the API server", "2001:db8:9::1", is_own=False)]
    )
    facts = scan(node, scanner)
    assert [line.ifindex for line in facts.protected_links] == [by_name(facts)["uplink"].ifindex]


@pytest.mark.parametrize("kind", ["unreachable", "blackhole", "prohibit"])
def test_an_address_without_a_way_has_no_protected_link(
    node: Namespace, scanner: NodeScanner, kind: str
) -> None:
    node.ip("route", "add", kind, "10.9.0.0/16")
    node.ip("route", "del", "::/0", "via", "2001:db8:ffff::1")
    scanner.set_protected_addresses([*PROTECTED[3:], ProtectedAddress("x", "2001:db8:9::1", is_own=False)])
    assert scan(node, scanner).protected_links == ()


def test_protected_links_follow_a_change_of_their_route(node: Namespace, scanner: NodeScanner) -> None:
    scanner.set_protected_addresses(PROTECTED[3:])
    index = {name: link.ifindex for name, link in by_name(scan(node, scanner)).items()}
    node.ip_lines("addr add 10.1.0.2/24 dev eth1\nroute add 10.9.0.1/32 via 10.1.0.1\n")
    after = scan(node, scanner, Changes(links=frozenset({index["eth1"]}), routes=True))
    assert [line.ifindex for line in after.protected_links] == [index["eth1"]]


# --- changes --------------------------------------------------------------------------------------------


def test_changes_of_many_links_are_folded_into_all_of_them() -> None:
    few = Changes(links=frozenset(range(MANY_LINKS)))
    assert (few | Changes(links=frozenset({0}))).links == few.links
    folded = few | Changes(links=frozenset({MANY_LINKS}), routes=True)
    assert folded == Changes(routes=True, all_links=True)
    assert folded | few == folded


def test_no_changes_are_false_and_any_are_true() -> None:
    assert not Changes()
    assert Changes(all_links=True)
    assert Changes(routes=True)
    assert EVERYTHING
