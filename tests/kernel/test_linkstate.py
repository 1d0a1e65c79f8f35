"""What Prepare records of a link, with iproute2 setting it up."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from dranet.errors import DeviceError, Reason
from dranet.kernel.attachment.restore import read_link_state
from dranet.model.facts import Neighbour
from dranet.model.plan import LinkState
from tests.kernel.settings_of_links import set_up
from tests.support.namespaces import Namespace, wait_settled

pytestmark = pytest.mark.kernel

# linux/if_packet.h
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1


def state_of(node: Namespace, ifname: str) -> LinkState:
    return node.run(lambda: read_link_state(ifname))


def test_the_whole_state_is_recorded(node: Namespace) -> None:
    node.ip_lines(
        "link set eth1 alias rack-7\nlink set eth1 mtu 1400\nlink set eth1 txqueuelen 333\n"
        "link set eth1 group 7\naddr add 10.1.0.2/24 brd + dev eth1\n"
        "addr add 2001:db8:1::2/64 dev eth1 nodad\n"
        "route add 10.50.0.0/16 via 10.1.0.1 metric 50 mtu 1300 proto static\n"
        "route add 10.51.0.0/16 dev eth1 table 1000\nroute add 2001:db8:50::/48 via 2001:db8:1::1\n"
        "neigh add 10.1.0.9 lladdr 02:00:00:00:99:99 dev eth1 nud permanent\n"
        "neigh add 10.1.0.8 lladdr 02:00:00:00:99:88 dev eth1 nud stale\n"
        "neigh add proxy 10.1.0.7 dev eth1\n"
        "neigh add 192.0.2.77 lladdr 02:00:00:00:99:77 dev uplink nud permanent\n"
    )
    state = state_of(node, "eth1")
    assert (state.ifname, state.mac, state.mtu, state.up) == ("eth1", "02:00:00:00:00:01", 1400, True)
    assert (state.alias, state.tx_queue_length, state.group) == ("rack-7", 333, 7)
    assert [address.cidr for address in state.addresses] == ["10.1.0.2/24", "2001:db8:1::2/64"]
    assert state.addresses[0].broadcast == "10.1.0.255"
    assert [(r.destination, r.gateway, r.table, r.metric, r.mtu) for r in state.routes] == [
        ("10.51.0.0/16", "", 1000, 0, 0),
        ("10.50.0.0/16", "10.1.0.1", 254, 50, 1300),
        ("2001:db8:50::/48", "2001:db8:1::1", 254, 1024, 0),
    ]
    assert state.neighbours == (
        Neighbour("10.1.0.9", "02:00:00:00:99:99"),
        Neighbour("10.1.0.7", "", proxy=True),
    )


def test_the_settings_of_the_link_itself_are_recorded(node: Namespace) -> None:
    set_up(
        node, "eth1", "alternative names", "promiscuous", "all-multicast", "no multicast", "gso sizes",
        "gro size", "token", "offloads", "channels", "rp_filter", "htb",
    )  # fmt: skip
    state = state_of(node, "eth1")
    assert set(state.altnames) == {"enp33s0f0np0", "a-name-that-is-longer-than-fifteen-bytes"}
    assert (state.promiscuous, state.all_multicast, state.arp, state.multicast) == (True, True, True, False)
    (shown,) = node.read_raw("link", "show", "dev", "eth1")
    sizes = {name: shown[name] for name in ("gso_max_size", "gso_max_segs", "gro_max_size")}
    assert {name: state.offload_sizes[name] for name in sizes} == sizes
    assert (sizes["gso_max_size"], sizes["gso_max_segs"], sizes["gro_max_size"]) == (32768, 100, 40000)
    assert state.token == "::5:6"
    assert state.ethtool.channels == {"rx": 2, "tx": 2}
    assert (state.ethtool.features["tx-generic-segmentation"], state.ethtool.features["rx-gro"]) == (
        False,
        True,
    )
    assert state.sysctls["ipv4/conf/rp_filter"] == "2"
    assert [(item.what, item.kind, item.handle) for item in state.traffic_control] == [
        ("qdisc", "htb", 0x10000), ("class", "htb", 0x10001), ("class", "htb", 0x10010),
        ("class", "htb", 0x10020), ("qdisc", "pfifo", 0x100000),
    ]  # fmt: skip


def test_of_a_link_with_defaults_little_is_recorded(node: Namespace) -> None:
    state = state_of(node, "eth1")
    assert (state.promiscuous, state.all_multicast, state.arp, state.multicast) == (False, False, True, True)
    assert (state.token, state.altnames, state.traffic_control, state.programs) == ("", (), (), ())


def test_who_listens_to_a_link_does_not_make_it_promiscuous(node: Namespace) -> None:
    """An administrator's setting is recorded; a capture or a bridge that listens takes its own back."""
    with node.run(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as listener:
        (shown,) = node.read_raw("link", "show", "dev", "eth1")
        membership = struct.pack("=iHH8x", shown["ifindex"], PACKET_MR_PROMISC, 0)
        listener.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)
        assert node.read_raw("link", "show", "dev", "eth1")[0]["promiscuity"] == 1
        assert state_of(node, "eth1").promiscuous is False


def test_the_sysctls_are_those_that_may_be_written(node: Namespace) -> None:
    folders = ("ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh")
    state = state_of(node, "eth1")
    assert {key.rpartition("/")[0] for key in state.sysctls} == set(folders)
    left_out = {"base_reachable_time", "retrans_time", "unres_qlen"}

    def settable() -> dict[str, str]:
        files = (path for folder in folders for path in Path("/proc/sys/net", folder, "eth1").iterdir())
        writable = [path for path in files if path.stat().st_mode & 0o200 and path.name not in left_out]
        told = {path: path.read_text().strip() for path in writable if path.name != "stable_secret"}
        return {f"{path.parts[4]}/{path.parts[5]}/{path.name}": value for path, value in told.items()}

    assert state.sysctls == node.run(settable)


def test_a_link_may_have_dots_in_its_name(node: Namespace) -> None:
    node.ip("link", "set", "eth1", "name", "eth1.5")
    node.run(lambda: Path("/proc/sys/net/ipv4/conf/eth1.5/rp_filter").write_text("2"))
    assert state_of(node, "eth1.5").sysctls["ipv4/conf/rp_filter"] == "2"


def test_a_link_without_ipv6_has_no_sysctls_of_it(node: Namespace) -> None:
    node.ip("link", "set", "eth1", "mtu", "1000")
    assert {key.partition("/")[0] for key in state_of(node, "eth1").sysctls} == {"ipv4"}


def test_an_alternative_name_leads_to_the_same_record(node: Namespace) -> None:
    set_up(node, "eth1", "alternative names", "rp_filter")
    assert state_of(node, "enp33s0f0np0") == state_of(node, "eth1")


def test_what_the_kernel_makes_by_itself_is_left_out(lively_node: Namespace) -> None:
    lively_node.ip("addr", "add", "10.1.0.2/24", "dev", "eth1")
    wait_settled(lively_node)
    state = state_of(lively_node, "eth1")
    assert [address.cidr for address in state.addresses] == ["10.1.0.2/24"]
    assert state.routes == ()
    assert state.neighbours == ()


def test_a_link_local_address_of_the_operator_is_recorded(node: Namespace) -> None:
    node.ip("addr", "add", "fe80::77/64", "dev", "eth1", "nodad")
    assert [address.cidr for address in state_of(node, "eth1").addresses] == ["fe80::77/64"]


@pytest.mark.parametrize("name", ["nope", "a-name-that-is-far-too-long", "", "with space"])
def test_a_missing_link_is_a_device_error(node: Namespace, name: str) -> None:
    with pytest.raises(DeviceError) as caught:
        state_of(node, name)
    assert caught.value.reason is Reason.DEVICE_NOT_FOUND


BUSY = {
    "a bridge port": ("link add br0 type bridge\nlink set eth1 master br0\n", "enslaved to br0"),
    "below a macvlan": ("link add mv0 link eth1 type macvlan\n", "carries mv0 \\(macvlan\\)"),
    "next hop of a multipath route": (
        "addr add 10.1.0.2/24 dev eth1\nroute add 10.50.0.0/16 nexthop via 10.1.0.1 nexthop via 192.0.2.1\n",
        "carries the route 10.50.0.0/16",
    ),
    "a route by type of service": ("route add 10.50.0.0/16 dev eth1 tos 0x10\n", "carries the route"),
    "a route with a window": ("route add 10.50.0.0/16 dev eth1 initcwnd 30\n", "carries the route"),
    "a route with a locked MTU": ("route add 10.50.0.0/16 dev eth1 mtu lock 1300\n", "carries the route"),
    "a route with realms": ("route add 10.50.0.0/16 dev eth1 realms 5\n", "carries the route"),
    "a preferred router": (
        "addr add 2001:db8:1::2/64 dev eth1 nodad\nroute add 2001:db8:5::/48 via 2001:db8:1::1 pref high\n",
        "carries the route",
    ),
    "a nexthop object": (
        "addr add 10.1.0.2/24 dev eth1\nnexthop add id 7 dev eth1\nroute add 10.50.0.0/16 nhid 7\n",
        "carries the route",
    ),
    "waiting for an authenticator": ("link set eth1 mode dormant\n", "link mode 1"),
    "an odd flag": ("link set eth1 dynamic on\n", "flags 0x8000"),
    "an odd broadcast address": ("link set eth1 broadcast ff:ff:ff:ff:ff:00\n", "broadcast address ff:"),
}


@pytest.mark.parametrize("case", BUSY)
def test_a_link_that_could_not_be_given_back_is_refused(node: Namespace, case: str) -> None:
    lines, words = BUSY[case]
    node.ip_lines(lines)
    with pytest.raises(DeviceError, match=words) as caught:
        state_of(node, "eth1")
    assert caught.value.reason is Reason.DEVICE_BUSY
    assert state_of(node, "eth3").ifname == "eth3", "others are not touched by it"
