"""Rules for virtual functions: what is done, what waits, and one device in parts. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.inventory.build import build_devices
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.inventory.slices import plan_slices
from dranet.inventory.virtual_functions import PfTarget, VfRules, parse_vf_rules, plan_virtual_functions
from dranet.model.facts import Address, Link, NodeFacts, PciFunction, Route
from dranet.model.virtual_functions import VfSettings

PF = "0000:1a:00.0"
TOTAL = 8


def vf_address(index: int) -> str:
    return f"0000:1a:01.{index}"


def a_link(ifname: str, ifindex: int, address: str, **more: Any) -> Link:
    return Link(
        ifindex, ifname, flags=1, carrier=True, mac=f"aa:00:00:00:00:{ifindex:02x}", parent_bus="pci",
        parent_device=address, pci_address=address, **more,
    )  # fmt: skip


def a_node(count: int, *, away: frozenset[int] = frozenset(), uplink: bool = False) -> NodeFacts:
    """``away``: functions whose links are not on the node."""
    pf = PciFunction(
        PF, 0x020000, 0x8086, 0x1572, driver="i40e", root="pci0000:00", path=(PF,),
        sriov_total_vfs=TOTAL, sriov_num_vfs=count,
    )  # fmt: skip
    virtual = [
        replace(pf, address=vf_address(i), path=(vf_address(i),), physical_function=PF,
                virtual_function_index=i, sriov_total_vfs=0, sriov_num_vfs=0)
        for i in range(count)
    ]  # fmt: skip
    links = [a_link("pf0", 2, PF)]
    links += [a_link(f"pf0v{i}", 3 + i, vf_address(i)) for i in range(count) if i not in away]
    routes = (Route("0.0.0.0/0", gateway="10.0.0.1", ifindex=2),) if uplink else ()
    return NodeFacts(links=tuple(links), pci_functions=(pf, *virtual), default_routes=routes)


def some_rules(*entries: dict[str, Any]) -> VfRules:
    found, problems = parse_vf_rules({"virtualFunctions": list(entries)}, "dra.net")
    assert problems == ()
    return found


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
        replace(x, addresses=(Address("10.1.0.5/24"),)) if x.ifname == "pf0v1" else x for x in facts.links
    ]
    target = plan(replace(facts, links=tuple(links)), some_rules({"count": 3}))[0]
    assert "pf0v1" in target.waits_for
    assert [f.index for f in target.functions] == [0]


@given(st.integers(1, TOTAL), st.sampled_from(["02", "02:5a", "06:5a:10", "0a:5a:10:00"]))
def test_addresses_differ_and_are_the_same_after_a_restart(count: int, prefix: str) -> None:
    rules = some_rules({"count": count, "macPrefix": prefix})
    first, second = (plan(a_node(count), rules)[0].functions for _ in range(2))
    assert first == second
    macs = [f.settings.mac for f in first]
    assert len(set(macs)) == count
    assert all(mac is not None and mac.startswith(prefix) and len(mac) == 17 for mac in macs)


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
    assert amounts == {"pf0": 3, "pf0v0": 1, "pf0v1": 1, "pf0v2": 1}
    assert len({d.counters.counter_set for d in offered if d.counters}) == 1
    assert plan_slices(offered, policy).pages


@pytest.mark.parametrize("policy", [Policy(), Policy(virtual_functions=some_rules())], ids=["off", "no rule"])
def test_without_a_rule_devices_have_no_counters(policy: Policy) -> None:
    assert not any(d.device.counters for d in take_inventory(a_node(2), {}, policy))


def test_functions_of_an_uplink_share_nothing() -> None:
    policy = Policy(virtual_functions=some_rules({"count": 2}))
    assert not any(d.device.counters for d in take_inventory(a_node(2, uplink=True), {}, policy))


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
