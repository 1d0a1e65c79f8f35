"""Rules for virtual functions: what is done, what waits, and one device in parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.cluster.slice_plan import device_to_json
from dranet.desk.kubeapi.validation_slice import _validate_capacities
from dranet.inventory.build import build_devices
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.inventory.slices import plan_slices
from dranet.inventory.virtual_functions import PfTarget, VfRules, parse_vf_rules, plan_virtual_functions
from dranet.model.attributes import IFNAME
from dranet.model.device import Bandwidth
from dranet.model.facts import Address, NodeFacts
from dranet.model.virtual_functions import VfSettings
from tests.inventory.sriov import PF, TOTAL, a_link, a_node, a_pf, some_rules, vf_address


def plan(facts: NodeFacts, rules: VfRules, prepared: dict[str, str] | None = None) -> tuple[PfTarget, ...]:
    return plan_virtual_functions(facts, build_devices(facts, {}), rules, prepared or {}, "node")[0]


@given(
    observed=st.integers(0, TOTAL),
    wanted=st.integers(0, TOTAL + 2),
    away=st.frozensets(st.integers(0, TOTAL - 1)),
    held=st.frozensets(st.integers(0, TOTAL - 1)),
    pf_held=st.booleans(),
)
def test_the_number_changes_only_while_nothing_uses_a_function(
    observed: int, wanted: int, away: frozenset[int], held: frozenset[int], pf_held: bool
) -> None:
    facts = a_node(observed, away=away)
    names = {d.pci_address: d.name for d in build_devices(facts, {})}
    prepared = {names[vf_address(i)]: "ns/pod" for i in held if i < observed and i not in away}
    if pf_held:
        prepared[names[PF]] = "ns/pod"
    (target,) = plan(facts, some_rules({"count": wanted}), prepared)
    used = pf_held or any(i < observed for i in away | held)
    assert target.changes_count == (wanted != observed and wanted <= TOTAL and not used)
    assert bool(target.waits_for) == (wanted > TOTAL or (wanted != observed and used))
    in_use = {i for i in away | held if i < observed}
    assert {f.index for f in target.functions} == set(range(observed)) - in_use


def test_an_uplink_gets_functions_only_where_the_rule_says_so() -> None:
    facts = a_node(0, uplink=True)
    assert "uplink" in plan(facts, some_rules({"count": 4}))[0].waits_for
    assert plan(facts, some_rules({"count": 4, "nodeInterfaces": True}))[0].changes_count


def test_a_function_with_an_address_is_the_nodes() -> None:
    facts = a_node(2)
    links = [
        replace(x, addresses=(Address("10.1.0.5/24"),)) if x.ifname == "pf2v1" else x for x in facts.links
    ]
    target = plan(replace(facts, links=tuple(links)), some_rules({"count": 3}))[0]
    assert "pf2v1" in target.waits_for
    assert [f.index for f in target.functions] == [0]


def a_range(start: str, end: str) -> dict[str, str]:
    return {"start": start, "end": end}


POOLS = st.sampled_from(["02", "02:5a", "06:5a:10", "0a:5a:10:00"]).map(lambda text: {"macPrefix": text})
FIRST = st.builds(
    lambda byte, low: (byte << 40) + low, st.sampled_from([2, 0x0A, 0x3C]), st.integers(0, 2**40 - 99)
)
OTHER_PF = "0000:3b:00.0"


def write_mac(number: int) -> str:
    return number.to_bytes(6).hex(":")


def macs_of(targets: tuple[PfTarget, ...]) -> dict[str, str]:
    return {f.address: f.settings.mac or "" for target in targets for f in target.functions}


def join(*nodes: NodeFacts) -> NodeFacts:
    links = tuple(link for node in nodes for link in node.links)
    return NodeFacts(links=links, pci_functions=tuple(f for node in nodes for f in node.pci_functions))


@given(st.integers(1, TOTAL), POOLS)
def test_addresses_differ_and_are_the_same_after_a_restart(count: int, pool: dict[str, str]) -> None:
    rules = some_rules({"count": count, **pool})
    first, second = (macs_of(plan(a_node(count), rules)) for _ in range(2))
    assert first == second
    assert len(set(first.values())) == count
    assert all(mac.startswith(pool["macPrefix"]) and len(mac) == 17 for mac in first.values())


@given(FIRST, st.integers(1, TOTAL), st.integers(0, 9))
def test_addresses_of_a_range_are_in_it_and_each_is_once_on_the_node(
    first: int, count: int, spare: int
) -> None:
    """Two physical functions take all of it, or nearly."""
    last = first + 2 * count - 1 + spare
    rules = some_rules({"count": count, "macRange": a_range(write_mac(first), write_mac(last))})
    macs = macs_of(plan(join(a_pf(count), a_pf(count, pf=OTHER_PF, ifindex=20)), rules))
    numbers = {int(mac.replace(":", ""), 16) for mac in macs.values()}
    assert len(numbers) == 2 * count
    assert all(first <= number <= last for number in numbers)
    assert not any(number >> 40 & 1 for number in numbers), "none is a multicast address"


def test_an_address_does_not_depend_on_which_functions_exist() -> None:
    rules = some_rules({"count": 4, "macRange": a_range("02:00:00:00:00:00", "02:00:00:00:00:09")})
    both = join(a_pf(4), a_pf(4, pf=OTHER_PF, ifindex=20))
    alone = join(a_pf(0), a_pf(4, pf=OTHER_PF, ifindex=20))
    macs = macs_of(plan(both, rules))
    assert {address: macs[address] for address in macs_of(plan(alone, rules))} == macs_of(plan(alone, rules))


def test_a_function_in_use_keeps_its_address_and_no_other_gets_it() -> None:
    """It has another one than it would get now: the range was another one when it was made."""
    rules = some_rules({"count": 2, "macRange": a_range("02:00:00:00:00:00", "02:00:00:00:00:01")})
    for mac, other in (
        ("02:00:00:00:00:00", "02:00:00:00:00:01"),
        ("02:00:00:00:00:01", "02:00:00:00:00:00"),
    ):
        facts = a_pf(2, macs=[mac])
        held = next(d.name for d in build_devices(facts, {}) if d.pci_address == vf_address(0))
        (target,) = plan(facts, rules, {held: "ns/pod"})
        assert macs_of((target,)) == {vf_address(1): other}


def test_a_range_that_two_physical_functions_exhaust_makes_no_functions() -> None:
    rules = some_rules({"count": 2, "macRange": a_range("02:00:00:00:00:00", "02:00:00:00:00:02")})
    first, second = plan(join(a_pf(0), a_pf(0, pf=OTHER_PF, ifindex=20)), rules)
    assert first.changes_count
    assert second.waits_for == (
        "the MAC addresses of virtualFunctions[0] are all taken on this node: extend macRange"
    )


def test_an_address_that_another_link_has_is_passed_over() -> None:
    rules = some_rules({"count": 1, "macPrefix": "02"})
    facts = a_node(1)
    taken = plan(facts, rules)[0].functions[0].settings.mac
    other = replace(a_link("other", 40, ""), mac=taken or "", parent_bus="")
    again = plan(replace(facts, links=(*facts.links, other)), rules)[0].functions[0].settings.mac
    assert again != taken


def test_the_first_rule_that_matches_counts_and_without_one_nothing_is_touched() -> None:
    driver = 'device.attributes["dra.net"].?driver.orValue("") == "{}"'
    none = some_rules({"match": driver.format("mlx5_core"), "count": 4})
    assert plan(a_node(2), none) == ()
    first = some_rules({"match": driver.format("i40e"), "count": 1}, {"count": 5})
    assert plan(a_node(0), first)[0].count == 1


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({}, "count"),
        ({"count": -1}, "at least 0"),
        ({"count": 1, "macPrefix": "03"}, "locally administered"),
        ({"count": 1, "macPrefix": "02:zz"}, "bytes of a MAC"),
        ({"count": 1, "macRange": {"start": "02:00:00:00:00:01"}}, "end"),
        ({"count": 1, "macRange": a_range("02:00:00:00:00:02", "02:00:00:00:00:01")}, "not be below start"),
        ({"count": 1, "macRange": a_range("03:00:00:00:00:00", "03:00:00:00:00:01")}, "unicast"),
        ({"count": 1, "macRange": a_range("02:00:00:00:00:00", "04:00:00:00:00:00")}, "first byte of start"),
        ({"count": 1, "macRange": a_range("00:00:00:00:00:00", "00:00:00:00:00:01")}, "unicast"),
        ({"count": 1, "macRange": a_range("02" + ":00" * 19, "02" + ":01" * 19)}, "6 bytes"),
        ({"count": 3, "macRange": a_range("02:00:00:00:00:01", "02:00:00:00:00:02")}, "2 addresses for 3"),
        (
            {"count": 1, "macPrefix": "02", "macRange": a_range("02:00:00:00:00:01", "02:00:00:00:00:02")},
            "absent with macPrefix",
        ),
        ({"count": 1, "match": "device."}, ""),
        ({"count": 1, "defaults": {"qos": 3}}, "vlan"),
        ({"count": 1, "defaults": {"vlan": 5000}}, "4094"),
        ({"count": 1, "trust": True}, "unknown field"),
    ],
)
def test_a_mistake_is_named(entry: dict[str, Any], text: str) -> None:
    _, problems = parse_vf_rules({"virtualFunctions": [entry]}, "dra.net")
    assert problems
    assert problems[0].path[0] == "virtualFunctions"
    assert text in f"{problems[0].path} {problems[0].text}"


VF_KEYS = ["match", "count", "defaults", "macPrefix", "driversAutoprobe", "nodeInterfaces"]
VF_KEYS += ["trust", "spoofCheck", "vlan", "qos", "minTxRate", "maxTxRate", "linkState", "x"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["02:5a", "auto", "100M", "device.attributes"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(VF_KEYS), inner, max_size=4),
)


@given(JSON | st.fixed_dictionaries({"virtualFunctions": st.lists(JSON, max_size=3) | JSON}))
def test_any_document_is_taken_or_its_problems_are_named(document: object) -> None:
    rules, problems = parse_vf_rules(document, "dra.net")
    assert isinstance(rules, VfRules)
    assert all(problem.text for problem in problems)


def test_a_physical_function_takes_all_of_what_its_functions_share() -> None:
    policy = Policy(virtual_functions=some_rules({"count": 3}))
    offered = [d.device for d in take_inventory(a_node(3), {}, policy) if d.published]
    amounts = {d.ifname: d.counters.amount for d in offered if d.counters}
    assert amounts == {"pf2": 3, "pf2v0": 1, "pf2v1": 1, "pf2v2": 1}
    assert len({d.counters.counter_set for d in offered if d.counters}) == 1
    assert plan_slices(offered, policy).pages


@pytest.mark.parametrize("policy", [Policy(), Policy(virtual_functions=some_rules())], ids=["off", "no rule"])
def test_without_a_rule_devices_have_no_counters(policy: Policy) -> None:
    assert not any(d.device.counters for d in take_inventory(a_node(2), {}, policy))


class Named:
    """``shared_devices`` with these links."""

    def __init__(self, *ifnames: str) -> None:
        self._ifnames = ifnames

    def matches(self, attributes: Mapping[str, Any]) -> bool:
        return attributes.get(IFNAME.qualified) in self._ifnames


def counters_of(policy: Policy) -> dict[str, int]:
    decisions = take_inventory(with_speed(a_node(2), 100_000), {}, policy)
    return {d.device.ifname: d.device.counters.amount for d in decisions if d.device.counters}


def test_a_shared_physical_function_takes_nothing_of_its_functions() -> None:
    """It stays on the node. The scheduler would take all of the counter with each share, where it knows no
    capacity of it, and so give out one."""
    policy = Policy(virtual_functions=some_rules({"count": 2}), shared=Named("pf2"))
    assert counters_of(policy) == {}
    assert counters_of(replace(policy, default_bandwidth=GIGABIT)) == {"pf2": 2, "pf2v0": 1, "pf2v1": 1}
    assert counters_of(replace(policy, shared=Named("pf2v0"))) == {"pf2": 1, "pf2v1": 1}


def test_functions_of_an_uplink_share_nothing() -> None:
    policy = Policy(virtual_functions=some_rules({"count": 2}))
    assert not any(d.device.counters for d in take_inventory(a_node(2, uplink=True), {}, policy))


GIGABIT = 1_000_000_000


def offered_bandwidth(facts: NodeFacts, policy: Policy) -> dict[str, Bandwidth | None]:
    """By link, of the offered devices."""
    return {d.device.ifname: d.device.bandwidth for d in take_inventory(facts, {}, policy) if d.published}


def with_speed(facts: NodeFacts, mbps: int | None) -> NodeFacts:
    links = [replace(link, speed_mbps=mbps) if link.ifname == "pf2" else link for link in facts.links]
    return replace(facts, links=tuple(links))


def counting(count: int, rate: int) -> Policy:
    rules = some_rules({"count": count, "defaults": {"maxTxRate": rate}})
    return Policy(virtual_functions=rules, default_bandwidth=GIGABIT)


def test_functions_have_the_rate_of_their_rule_as_capacity_and_keep_it_without_a_cable() -> None:
    policy = counting(3, 25_000)
    for speed in (100_000, None):
        found = offered_bandwidth(with_speed(a_node(3), speed), policy)
        assert found == {"pf2": None} | dict.fromkeys(
            ("pf2v0", "pf2v1", "pf2v2"), Bandwidth(25 * GIGABIT, None)
        )


@given(
    count=st.integers(1, TOTAL), wanted=st.integers(1, TOTAL), rate=st.integers(0, 200_000),
    speed=st.none() | st.integers(1, 400_000),
)  # fmt: skip
def test_the_functions_of_a_port_never_have_more_than_it(
    count: int, wanted: int, rate: int, speed: int | None
) -> None:
    policy = counting(wanted, rate)
    found = offered_bandwidth(with_speed(a_node(count), speed), policy)
    known = [one.total for one in found.values() if one is not None]
    assert sum(known) <= (speed or 0) * 10**6
    assert len(known) in (0, count)
    if speed and 0 < rate * max(count, wanted) <= speed:
        assert len(known) == count


def test_a_rule_that_promises_more_than_the_port_is_named_and_promises_nothing() -> None:
    decisions = take_inventory(with_speed(a_node(4), 100_000), {}, counting(4, 50_000))
    assert not any(d.device.bandwidth for d in decisions)
    ((warning,),) = (d.warnings for d in decisions if d.warnings)
    assert "4 virtual functions with a maxTxRate of 50000 are more than its port of 100000 Mbit/s" in warning


def test_a_shared_function_is_counted_by_its_rate_and_not_by_the_speed_of_the_port() -> None:
    policy = replace(counting(2, 500), shared=Everything())
    found = offered_bandwidth(with_speed(a_node(2), 100_000), replace(policy, assumed_bandwidth=GIGABIT))
    assert found["pf2v0"] == Bandwidth(GIGABIT // 2, GIGABIT // 2)
    assert found["pf2"] == Bandwidth(100 * GIGABIT, GIGABIT)


class Everything:
    def matches(self, _: object) -> bool:
        return True


def test_the_capacity_of_a_function_has_no_policy_and_is_valid() -> None:
    policy = counting(1, 25_000)
    decisions = take_inventory(with_speed(a_node(1), 100_000), {}, policy)
    bodies = [device_to_json(d.device) for d in decisions if d.device.bandwidth]
    assert [body["capacity"] for body in bodies] == [{"dra.net/bandwidth": {"value": "25000000000"}}]
    assert not list(_validate_capacities("capacity", bodies[0]["capacity"], shared=False))


@pytest.mark.parametrize(
    "policy",
    [replace(counting(2, 10_000), default_bandwidth=None), counting(2, 0), Policy(default_bandwidth=GIGABIT)],
    ids=["not counted", "not limited", "no rule"],
)
def test_nothing_is_promised_where_nothing_is_counted_or_limited(policy: Policy) -> None:
    assert not any(offered_bandwidth(with_speed(a_node(2), 100_000), policy).values())


SETTINGS = st.builds(
    VfSettings,
    trust=st.none() | st.booleans(),
    vlan=st.none() | st.integers(0, 4094),
    qos=st.none() | st.integers(0, 7),
    max_tx_rate=st.none() | st.integers(0, 9),
)


@given(SETTINGS, SETTINGS)
def test_what_is_recorded_restores_what_a_claim_changes(before: VfSettings, wanted: VfSettings) -> None:
    recorded = before.restricted_to(wanted)
    changed = {**before.named, **wanted.named}
    restored = {**changed, **recorded.named}
    assert all(restored[name] == value for name, value in before.named.items())
