"""The bandwidth of shared devices: published, kept while the link is down, within the limits of a slice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from dranet.cluster.slice_plan import Feature, build_pages, withhold
from dranet.desk.kubeapi.validation_slice import _validate_capacities
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import DeviceFilter, Policy
from dranet.inventory.slices import build_slices
from dranet.model.device import AttributeValue, Bandwidth, Device
from dranet.model.facts import Link, NodeFacts, PciFunction

GIGABIT = 10**9


class Everything:
    def matches(self, _: object) -> bool:
        return True


def port(speed_mbps: int | None = 100_000) -> NodeFacts:
    is_up = speed_mbps is not None
    link = Link(
        2,
        "eth1",
        mac="02:00:00:00:00:01",
        mtu=1500,
        flags=0x1043 if is_up else 0x1003,
        operstate="up" if is_up else "down",
        speed_mbps=speed_mbps,
        arp_type=1,
        kind="dummy",
    )
    return NodeFacts(links=(link,))


def offer(facts: NodeFacts, policy: Policy) -> Device:
    (device,) = (decision.device for decision in take_inventory(facts, {}, policy) if decision.published)
    return device


def test_the_speed_of_the_port_is_its_capacity() -> None:
    policy = Policy(shared=Everything(), default_bandwidth=GIGABIT)
    assert offer(port(), policy).bandwidth == Bandwidth(100 * GIGABIT, GIGABIT)


def test_a_pulled_cable_takes_no_capacity_away() -> None:
    policy = Policy(shared=Everything(), default_bandwidth=GIGABIT)
    offer(port(), policy)
    assert offer(port(None), policy).bandwidth == Bandwidth(100 * GIGABIT, GIGABIT)


def test_a_port_whose_speed_was_never_known_is_not_offered_because_its_shares_would_not_be_counted() -> None:
    policy = Policy(shared=Everything(), default_bandwidth=GIGABIT)
    (decision,) = take_inventory(port(None), {}, policy)
    assert not decision.published
    assert "assumed_bandwidth" in decision.reason
    assert offer(port(), policy).bandwidth, "once it is up, it is offered"


@pytest.mark.parametrize("speed_mbps", [1, 2, 10, 100_000, 4_294_967])
def test_the_slice_of_a_port_of_any_speed_is_valid(speed_mbps: int) -> None:
    policy = Policy(shared=Everything(), default_bandwidth=GIGABIT)
    (page,) = build_pages(build_slices([offer(port(speed_mbps), policy)], policy))
    (causes,) = [list(_validate_capacities("capacity", body["capacity"], shared=True)) for body in page]
    assert not causes


def test_a_port_without_a_speed_has_the_one_that_the_operator_assumes() -> None:
    policy = Policy(shared=Everything(), default_bandwidth=GIGABIT, assumed_bandwidth=10 * GIGABIT)
    assert offer(port(None), policy).bandwidth == Bandwidth(10 * GIGABIT, GIGABIT)
    assert offer(port(), policy).bandwidth == Bandwidth(100 * GIGABIT, GIGABIT)


def test_the_default_is_never_more_than_the_port() -> None:
    policy = Policy(shared=Everything(), default_bandwidth=GIGABIT)
    assert offer(port(100), policy).bandwidth == Bandwidth(GIGABIT // 10, GIGABIT // 10)


def test_nothing_is_counted_without_the_setting_or_on_a_device_that_is_not_shared() -> None:
    assert offer(port(), Policy(shared=Everything())).bandwidth is None
    assert offer(port(), Policy(default_bandwidth=GIGABIT)).bandwidth is None


def test_the_slice_has_the_capacity_with_its_policy_and_31_attributes_beside_it() -> None:
    policy = Policy(shared=Everything(), default_bandwidth=GIGABIT)
    device = offer(port(), policy)
    crowded = replace(device, attributes={**device.attributes, **{f"example.com/a{n}": n for n in range(40)}})
    (page,) = build_pages(build_slices([crowded], policy))
    (body,) = page
    assert body["allowMultipleAllocations"] is True
    assert body["capacity"] == {
        "dra.net/bandwidth": {
            "value": "100000000000",
            "requestPolicy": {
                "default": "1000000000",
                "validRange": {"min": "1000000", "step": "1000000"},
            },
        }
    }
    assert len(body["attributes"]) == 31


def test_a_server_without_the_gate_gets_neither_field() -> None:
    policy = Policy(shared=Everything(), default_bandwidth=GIGABIT)
    (page,) = build_pages(build_slices([offer(port(), policy)], policy))
    ((body,),) = (withhold(page, [Feature.SHARED_DEVICES]),)
    assert "capacity" not in body
    assert "allowMultipleAllocations" not in body


PORT = "0000:1a:00.0"


class Named:
    def __init__(self, *names: str) -> None:
        self._names = names

    def matches(self, attributes: Mapping[str, AttributeValue]) -> bool:
        return attributes.get("dra.net/ifName") in self._names


def with_links_on_top() -> NodeFacts:
    """A NIC, two VLANs, and a macvlan on one of them; each reports the speed of the port."""
    (base,) = port().links
    eth1 = replace(base, kind="", pci_address=PORT, parent_bus="pci", parent_device=PORT)
    vlan5 = replace(base, ifindex=3, ifname="eth1.5", kind="vlan", lower=2, vlan_id=5, virtual=True)
    vlan6 = replace(vlan5, ifindex=4, ifname="eth1.6", vlan_id=6)
    macvlan = replace(vlan5, ifindex=5, ifname="mv0", kind="macvlan", lower=3, vlan_id=None)
    function = PciFunction(PORT, 0x020000, 0x8086, 0x1572, driver="i40e", root="pci0000:00", path=(PORT,))
    return NodeFacts(links=(eth1, vlan5, vlan6, macvlan), pci_functions=(function,))


def offered(policy: Policy, held: Mapping[str, Device] | None = None) -> dict[str, str]:
    """Reason by interface; empty for what is offered."""
    decisions = take_inventory(with_links_on_top(), held or {}, policy)
    return {d.device.ifname or d.device.name: "" if d.published else d.reason for d in decisions}


def counted(shared: DeviceFilter) -> Policy:
    kinds = frozenset({"vlan", "macvlan"})
    return Policy(shared=shared, default_bandwidth=GIGABIT, offer_link_kinds=kinds)


def test_a_port_is_counted_once_and_no_link_on_top_of_it_is_offered_beside_it() -> None:
    found = offered(counted(Everything()))
    assert found.pop("eth1") == ""
    assert found.keys() == {"eth1.5", "eth1.6", "mv0"}
    assert {reason.partition(":")[0] for reason in found.values()} == {
        "sends through eth1, a shared device whose bandwidth is counted"
    }


def test_a_link_that_no_one_shares_would_have_the_counted_port_without_a_limit() -> None:
    names = [name for name, reason in offered(counted(Named("eth1"))).items() if not reason]
    assert names == ["eth1"]


def test_links_on_top_are_offered_where_nothing_below_them_is_counted() -> None:
    uncounted = replace(counted(Everything()), default_bandwidth=None)
    assert not any(offered(uncounted).values())
    assert offered(counted(Named("eth1.6", "mv0")))["eth1.6"] == ""


def test_a_link_that_a_pod_has_keeps_its_place_above_a_counted_port() -> None:
    policy = counted(Everything())
    (mine,) = (
        one.device for one in take_inventory(with_links_on_top(), {}, policy) if one.device.ifname == "eth1.6"
    )
    found = offered(policy, {mine.name: mine})
    assert found[mine.name] == ""
    assert found["eth1.5"]
