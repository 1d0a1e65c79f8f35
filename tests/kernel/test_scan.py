"""A scan equals what iproute2 and pyroute2 say of the same namespace."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.netlink.inet import route_contains
from dranet.kernel.netlink.rtnl import parse_link
from dranet.kernel.netlink.socket import attribute, attribute_text, attribute_u8, attribute_u32, nested
from dranet.model.facts import Address, Link, NodeFacts
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

# Lifetimes are compared by hundreds of seconds: each is far from where the next hundred begins.
VARIED = """
link add br0 type bridge
link set br0 up
link set eth1 master br0
link add mv0 link eth2 type macvlan mode bridge
link set mv0 up
link add pair0 type veth peer name pair1
link set pair0 up
link set pair1 alias "two words"
link set eth2 alias rack-7
link set eth2 mtu 9000
link set eth2 txqueuelen 77
link set eth2 group 42
link property add dev eth2 altname enp33s0f1np1 altname a-very-long-alternative-name-of-an-interface
link set eth3 down
addr add 10.1.0.2/24 brd + dev eth2
addr add 10.1.0.3/24 dev eth2 label eth2:web
addr add 10.9.0.1 peer 10.9.0.2/30 dev eth2
addr add 10.1.9.9/24 dev eth2 valid_lft 7250 preferred_lft 3650
addr add 169.254.7.7/16 dev eth2 scope link
addr add 2001:db8:1::2/64 dev eth2 nodad
addr add 2001:db8:1::3/64 dev eth2 nodad valid_lft 7250 preferred_lft 0
addr add fe80::77/64 dev eth2 nodad noprefixroute
addr add 10.5.0.1/32 dev lo
route add default via 10.1.0.1 dev eth2 metric 300 proto dhcp src 10.1.0.3
route add default metric 7 nexthop via 192.0.2.1 dev uplink weight 2 nexthop via 10.1.0.1 dev eth2
route add default dev mv0 metric 900
route add default via 10.1.0.1 table 100
route add unreachable default metric 9999
route add 0.0.0.0/8 via 10.1.0.1
route add ::/8 via 2001:db8:1::1
route add ::/0 via 2001:db8:1::1 metric 77
"""


def scan(namespace: Namespace, sysfs: Path, procfs: Path = Path("/proc")) -> NodeFacts:
    return namespace.run(lambda: NodeScanner(sysfs, procfs).read())


def told_by_ip(entry: dict[str, Any]) -> dict[str, Any]:
    """What ``ip -json -details link`` says, in the words of ``Link``."""
    return {
        "ifindex": entry["ifindex"],
        "ifname": entry["ifname"],
        "kind": entry.get("linkinfo", {}).get("info_kind", ""),
        "mac": entry.get("address", ""),
        "mtu": entry["mtu"],
        "is_up": "UP" in entry["flags"],
        "is_loopback": "LOOPBACK" in entry["flags"],
        "operstate": entry["operstate"].lower(),
        "alias": entry.get("ifalias", ""),
        "altnames": tuple(entry.get("altnames", ())),
        "tx_queue_length": entry.get("txqlen", 0),
        "master": entry.get("master"),
        "group": {"default": "0"}.get(entry["group"], entry["group"]),
    }


def told_by_us(link: Link, names: dict[int, str]) -> dict[str, Any]:
    fields = (
        "ifindex",
        "ifname",
        "kind",
        "mac",
        "mtu",
        "is_up",
        "is_loopback",
        "operstate",
        "alias",
        "altnames",
    )
    told = {name: getattr(link, name) for name in (*fields, "tx_queue_length")}
    master = names[link.master] if link.master else None
    return {**told, "master": master, "group": str(link.group)}


def address_told_by_ip(info: dict[str, Any], ifname: str) -> tuple[Any, ...]:
    peer = f"{info['address']}/{info['prefixlen']}" if "address" in info else ""
    length = (32 if info["family"] == "inet" else 128) if peer else info["prefixlen"]
    label = info.get("label", "")
    scope = {"global": 0, "link": 253, "host": 254}[info["scope"]]
    for_ever = 0xFFFFFFFF
    return (
        f"{info['local']}/{length}",
        peer,
        "" if label == ifname else label,
        scope,
        info.get("broadcast", ""),
        None if info["valid_life_time"] == for_ever else info["valid_life_time"] // 100,
        None if info["preferred_life_time"] == for_ever else info["preferred_life_time"] // 100,
        bool(info.get("secondary")) or bool(info.get("temporary")),
        bool(info.get("noprefixroute")),
        bool(info.get("deprecated")),
    )


def address_told_by_us(address: Address) -> tuple[Any, ...]:
    valid, preferred = address.valid_seconds, address.preferred_seconds
    return (
        address.cidr,
        address.peer,
        address.label,
        address.scope,
        address.broadcast,
        None if valid is None else valid // 100,
        None if preferred is None else preferred // 100,
        bool(address.flags & 0x01),
        bool(address.flags & 0x200),
        bool(address.flags & 0x20),
    )


def test_links_and_addresses_equal_what_iproute2_says(node: Namespace, tmp_path: Path) -> None:
    node.ip_lines(VARIED)
    facts = scan_at_rest(node, tmp_path)
    raw = node.read_raw("addr")
    names = {link.ifindex: link.ifname for link in facts.links}
    assert [told_by_us(link, names) for link in facts.links] == [told_by_ip(entry) for entry in raw]
    for link, entry in zip(facts.links, raw, strict=True):
        told = [address_told_by_ip(info, link.ifname) for info in entry["addr_info"]]
        assert [address_told_by_us(address) for address in link.addresses] == told
    assert facts.warnings == ()


def scan_at_rest(node: Namespace, tmp_path: Path) -> NodeFacts:
    """The kernel reports carriers, and the states that follow from them, some time after a change."""
    found: list[NodeFacts] = []

    def look() -> bool:
        before = _read_states(node)
        found.append(scan(node, tmp_path))
        is_late = any("NO-CARRIER" in flags and "LOWER_UP" in flags for flags, _ in before)
        return not is_late and _read_states(node) == before

    wait_until(look, "the links are as the kernel leaves them")
    return found[-1]


def _read_states(node: Namespace) -> list[tuple[tuple[str, ...], str]]:
    return [(tuple(link["flags"]), link["operstate"]) for link in node.read_raw("link")]


def test_lower_links_and_foreign_namespaces_are_told_apart(node: Namespace, tmp_path: Path) -> None:
    node.ip_lines(VARIED)
    links = {link.ifname: link for link in scan(node, tmp_path).links}
    assert links["mv0"].lower == links["eth2"].ifindex
    assert links["mv0"].link_netnsid is None
    assert links["eth2"].link_netnsid is not None, "the far end is in the fabric"
    assert links["lo"].lower is None


def test_default_routes_are_those_of_the_main_table_with_every_metric_and_next_hop(
    node: Namespace, tmp_path: Path
) -> None:
    node.ip_lines(VARIED)
    facts = scan(node, tmp_path)
    index = {link.ifname: link.ifindex for link in facts.links}
    told = {
        (r.destination, r.gateway, r.ifindex, r.next_hops, r.metric, r.protocol, r.source)
        for r in facts.default_routes
    }
    assert told == {
        ("0.0.0.0/0", "192.0.2.1", index["uplink"], (), 0, 3, ""),
        ("0.0.0.0/0", "10.1.0.1", index["eth2"], (), 300, 16, "10.1.0.3"),
        ("0.0.0.0/0", "", 0, (index["uplink"], index["eth2"]), 7, 3, ""),
        ("0.0.0.0/0", "", index["mv0"], (), 900, 3, ""),
        ("::/0", "2001:db8:ffff::1", index["uplink"], (), 1024, 3, ""),
        ("::/0", "2001:db8:1::1", index["eth2"], (), 77, 3, ""),
    }


def test_links_and_addresses_equal_what_pyroute2_says(node: Namespace, tmp_path: Path) -> None:
    pyroute2 = pytest.importorskip("pyroute2")
    node.ip_lines(VARIED)
    ours = {link.ifindex: link for link in scan_at_rest(node, tmp_path).links}

    def read() -> tuple[list[Any], list[Any]]:
        with pyroute2.IPRoute() as ipr:
            return list(ipr.get_links()), list(ipr.get_addr())

    links, addresses = node.run(read)
    assert {message["index"] for message in links} == set(ours)
    for message in links:
        link = ours[message["index"]]
        assert link.ifname == message.get_attr("IFLA_IFNAME")
        assert link.mac == (message.get_attr("IFLA_ADDRESS") or "")
        assert (link.flags, link.arp_type) == (message["flags"], message["ifi_type"])
        assert (link.master, link.lower) == (message.get_attr("IFLA_MASTER"), message.get_attr("IFLA_LINK"))
        assert link.carrier == bool(message.get_attr("IFLA_CARRIER"))
        assert link.permanent_mac == (message.get_attr("IFLA_PERM_ADDRESS") or "")
    theirs = {
        (m["index"], m.get_attr("IFA_LOCAL") or m.get_attr("IFA_ADDRESS"), m.get_attr("IFA_FLAGS"))
        for m in addresses
    }
    assert {(i, a.cidr.split("/")[0], a.flags) for i, link in ours.items() for a in link.addresses} == theirs


def test_a_thousand_links_with_addresses_are_all_there(node: Namespace, tmp_path: Path) -> None:
    lines = []
    for n in range(500):
        lines.append(f"link add v{n} type veth peer name w{n}")
        lines += [
            f"addr add 10.{80 + side}.{n // 250}.{n % 250 + 1}/32 dev {'vw'[side]}{n}" for side in (0, 1)
        ]
    node.ip_lines("\n".join(lines))
    facts = scan(node, tmp_path)
    assert facts.warnings == ()
    told = {entry["ifname"]: [info["local"] for info in entry["addr_info"]] for entry in node.read("addr")}
    assert {x.ifname: [a.cidr.split("/")[0] for a in x.addresses] for x in facts.links} == told
    assert len(told) > 1000


# --- where a link lives ---------------------------------------------------------------------------------


def test_a_veth_is_virtual_even_where_sysfs_does_not_show_it(node: Namespace, tmp_path: Path) -> None:
    links = {link.ifname: link for link in scan(node, tmp_path).links}
    assert links["eth1"].virtual
    assert links["eth1"].pci_address == ""


@pytest.mark.parametrize(
    ("entry", "device", "expected"),
    [
        ("../../devices/pci0000:20/0000:20:00.0/0000:21:00.0/net/eth1", "", "0000:21:00.0"),
        ("../../devices/pci0000:c0/0000:c0:00.0/0000:c1:00.0/virtio6/net/eth1", "", "0000:c1:00.0"),
        (
            "../../devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0/net/eth1", "",
            "10000:e1:00.0",
        ),
        ("../../devices/pci0000:20/0000:21:00.0/mlx5_core.sf.4/net/eth1", "", "0000:21:00.0"),
        ("", "../../../devices/pci0000:20/0000:20:00.0/0000:21:00.0", "0000:21:00.0"),
        ("", "../../../0000:21:00.0", "0000:21:00.0"),
    ],
)  # fmt: skip
def test_the_pci_function_is_found_through_sysfs(
    node: Namespace, tmp_path: Path, entry: str, device: str, expected: str
) -> None:
    place = tmp_path / "class/net/eth1"
    place.parent.mkdir(parents=True)
    if entry:
        place.symlink_to(entry)
    else:
        place.mkdir()
        (place / "device").symlink_to(device)
    links = {link.ifname: link for link in scan(node, tmp_path).links}
    assert (links["eth1"].pci_address, links["eth1"].virtual) == (expected, False)
    assert (links["eth2"].pci_address, links["eth2"].virtual) == ("", True)


def test_a_device_link_to_a_bus_above_pci_is_followed(node: Namespace, tmp_path: Path) -> None:
    home = tmp_path / "devices/pci0000:c0/0000:c1:00.0/virtio6"
    home.mkdir(parents=True)
    place = tmp_path / "class/net/eth1"
    place.mkdir(parents=True)
    (tmp_path / "bus/virtio").mkdir(parents=True)
    (tmp_path / "bus/virtio/virtio6").symlink_to("../../devices/pci0000:c0/0000:c1:00.0/virtio6")
    (place / "device").symlink_to("../../../bus/virtio/virtio6")
    (link,) = [link for link in scan(node, tmp_path).links if link.ifname == "eth1"]
    assert link.pci_address == "0000:c1:00.0"


def test_entries_of_links_that_are_not_in_the_namespace_cost_nothing(node: Namespace, tmp_path: Path) -> None:
    folder = tmp_path / "class/net"
    folder.mkdir(parents=True)
    (folder / "bonding_masters").write_text("")
    (folder / "other0").symlink_to("other0")  # a loop: following it would warn
    assert scan(node, tmp_path).warnings == ()


def test_an_entry_without_a_device_link_hides_no_link(node: Namespace, tmp_path: Path) -> None:
    folder = tmp_path / "class/net/eth1"
    folder.mkdir(parents=True)
    (tmp_path / "class/net/eth2").symlink_to("../../devices/virtual/net/eth2")
    (folder / "device").mkdir()  # not a link
    facts = scan(node, tmp_path)
    assert {"eth1", "eth2", "eth3"} <= {link.ifname for link in facts.links}
    assert facts.warnings == ()


def test_the_real_sysfs_of_this_machine_reads_without_a_warning(node: Namespace) -> None:
    facts = scan(node, Path("/sys"))
    assert facts.warnings == ()
    assert all(function.path[-1] == function.address for function in facts.pci_functions)


def test_a_namespace_that_never_had_a_route_has_no_default_routes(
    make_namespace: Callable[..., Namespace], tmp_path: Path
) -> None:
    bare = make_namespace()
    bare.ip("link", "set", "lo", "down")
    facts = bare.run(lambda: NodeScanner(tmp_path, tmp_path).read())
    assert facts.default_routes == ()
    assert [link.ifname for link in facts.links] == ["lo"]


# --- the link message -----------------------------------------------------------------------------------


def link_message(*attributes: bytes) -> bytes:
    """RTM_NEWLINK of eth0, layouts as in ``linux/if_link.h``."""
    return struct.pack("=BxHiII", 0, 1, 7, 1, 0) + attribute_text(3, "eth0") + b"".join(attributes)


def test_a_vlan_has_its_id_and_another_kind_has_none() -> None:
    def info(kind: str) -> bytes:
        return nested(18, attribute_text(1, kind), nested(2, attribute(1, struct.pack("=H", 4094))))

    assert parse_link(link_message(info("vlan"))).vlan_id == 4094
    assert parse_link(link_message(info("vxlan"))).vlan_id is None
    assert parse_link(link_message(nested(18, attribute_text(1, "vlan")))).vlan_id is None


def test_a_port_of_an_embedded_switch_tells_the_switch_and_its_own_name() -> None:
    link = parse_link(
        link_message(attribute(36, bytes.fromhex("0c42a1b20000")), attribute_text(38, "pf0vf3"))
    )
    assert (link.phys_switch_id, link.phys_port_name) == ("0c42a1b20000", "pf0vf3")


def test_odd_bytes_in_a_port_name_lose_no_link() -> None:
    assert parse_link(link_message(attribute(38, b"p\xff\0"))).phys_port_name == "p\ufffd"


@pytest.mark.parametrize(
    ("modes", "attached"),
    [
        ((attribute_u8(2, 0),), False),
        ((attribute_u8(2, 2),), True),
        ((attribute_u32(4, 77), attribute_u8(2, 1), attribute_u32(3, 77)), True),
    ],
    ids=["none", "generic", "with program id first"],
)
def test_an_xdp_program_is_seen(modes: tuple[bytes, ...], attached: bool) -> None:
    assert parse_link(link_message(nested(43, *modes))).xdp is attached


def test_links_of_this_kernel_have_no_xdp_program(node: Namespace, tmp_path: Path) -> None:
    node.ip_lines(VARIED)
    assert [link.ifname for link in scan(node, tmp_path).links if link.xdp] == []


ADDRESSES = st.ip_addresses()


@given(network=ADDRESSES, length=st.integers(0, 128), address=ADDRESSES)
def test_a_route_contains_what_its_prefix_contains(network: Any, length: int, address: Any) -> None:
    length = min(length, network.max_prefixlen)
    prefix = ip_network(f"{network}/{length}", strict=False)
    family = socket.AF_INET if network.version == 4 else socket.AF_INET6
    body = struct.pack("=BBBBBBBBI", family, length, 0, 0, 254, 0, 0, 1, 0)
    body += attribute(1, prefix.network_address.packed) if length else b""
    for probe in (address, network):
        assert route_contains(body, probe.packed) == (probe.version == prefix.version and probe in prefix)
