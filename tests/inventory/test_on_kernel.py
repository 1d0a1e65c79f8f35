"""What stays home on a real kernel: real masters, parents, peers and default routes, and nothing made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.inventory.offer import take_inventory, uplink_names
from dranet.inventory.policy import DEFAULT_POLICY, Policy
from dranet.kernel.discovery.scan import NodeScanner
from dranet.model.facts import NodeFacts
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

BRIDGED_AND_STACKED = """
link add br0 type bridge
link set br0 up
link set uplink master br0
addr flush dev uplink
addr add 192.0.2.2/24 dev br0
route add default via 192.0.2.1
link add mv0 link eth2 type macvlan mode bridge
link set mv0 up
route del ::/0
addr add 2001:db8:2::2/64 dev mv0 nodad
route add ::/0 via 2001:db8:2::1
link add mv1 link eth3 type macvlan mode bridge
link add pair0 type veth peer name pair1
"""


@pytest.fixture
def facts(node: Namespace, tmp_path: Path) -> NodeFacts:
    node.ip_lines(BRIDGED_AND_STACKED)
    return node.run(lambda: NodeScanner(tmp_path, Path("/proc")).read())


def reasons(facts: NodeFacts, policy: Policy = DEFAULT_POLICY) -> dict[str, str]:
    found = take_inventory(facts, {}, policy)
    return {decision.device.ifname: "" if decision.published else decision.reason for decision in found}


def test_a_bridged_uplink_and_a_macvlan_uplink_take_their_relatives_home(facts: NodeFacts) -> None:
    own = "is part of the node's own network: of kind veth"

    assert reasons(facts) == {
        "lo": "is the loopback",
        "br0": "is the node's uplink: br0 carries a default route",
        "uplink": "is tied to br0, the node's uplink",
        "mv0": "is the node's uplink: mv0 carries a default route",
        "eth2": "is tied to mv0, the node's uplink",
        "eth3": f"{own}, its other end is in another namespace",
        "mv1": "",
        "eth1": f"{own}, its other end is in another namespace",
        "pair0": own,
        "pair1": own,
    }
    assert uplink_names(facts) == {"br0", "uplink", "mv0", "eth2"}


def test_where_veth_is_offered_a_pair_on_the_node_is_and_a_pods_end_is_not(facts: NodeFacts) -> None:
    found = reasons(facts, Policy(offer_link_kinds=frozenset({"veth"})))

    assert {name for name, why in found.items() if not why} == {"mv1", "pair0", "pair1"}
