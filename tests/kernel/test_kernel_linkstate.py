"""What Prepare records of a link, with iproute2 setting it up."""

from __future__ import annotations

import pytest

from dranet.errors import DeviceError, Reason
from dranet.kernel.attachment.linkstate import read_link_state
from dranet.model.facts import Neighbour
from dranet.model.plan import LinkState
from tests.namespaces import Namespace, wait_settled

pytestmark = pytest.mark.kernel


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
    assert state.neighbours == (Neighbour("10.1.0.9", "02:00:00:00:99:99"),)


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
}


@pytest.mark.parametrize("case", BUSY)
def test_a_link_that_could_not_be_given_back_is_refused(node: Namespace, case: str) -> None:
    lines, words = BUSY[case]
    node.ip_lines(lines)
    with pytest.raises(DeviceError, match=words) as caught:
        state_of(node, "eth1")
    assert caught.value.reason is Reason.DEVICE_BUSY
    assert state_of(node, "eth3").ifname == "eth3", "others are not touched by it"
