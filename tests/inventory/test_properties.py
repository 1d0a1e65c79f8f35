"""Whatever a scan reads, the API server takes the slices, and only what the facts say decides them.

Facts here are hostile on purpose: odd bytes, numbers beyond reason, the same address or index twice, links
that are each other's master. The limits are those of ``resource.k8s.io/v1``, written down once more, so that
the code and its test cannot be wrong together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.cluster.client import JsonObject
from dranet.cluster.slice_plan import CreateSlice, DesiredPool, build_pages, plan_sync
from dranet.desk.kubeapi.kinds import RESOURCE_SLICES
from dranet.desk.kubeapi.validation import validate
from dranet.inventory.build import build_devices
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy, RuleResult
from dranet.inventory.slices import build_slices, plan_slices
from dranet.model.device import AttributeValue, Device, DeviceKind
from dranet.model.facts import (
    Address,
    CharDevice,
    Gpu,
    Link,
    NodeFacts,
    NumaNode,
    PciFunction,
    ProtectedLink,
    RdmaDevice,
    RdmaPort,
    Route,
    RoutingRule,
)
from dranet.settings import PublishGpus

# The API's limits

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
QUALIFIED_NAME = re.compile(r"(?=.{1,63}/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]{0,31}")
DEVICES_PER_SLICE, DEVICES_PER_SLICE_WITH_LISTS = 128, 64
ATTRIBUTES_PER_DEVICE, VALUES_PER_DEVICE = 32, 48
BYTES_PER_STRING = 64
INT64 = range(-(2**63), 2**63)


def is_int64(value: Any) -> bool:
    return type(value) is int and value in INT64


def is_string(value: Any) -> bool:
    return isinstance(value, str) and len(value.encode()) <= BYTES_PER_STRING  # raises on what is no text


def is_list(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(is_int64, value))


VALUE_RULES = {
    "int": is_int64,
    "bool": lambda value: type(value) is bool,
    "string": is_string,
    "ints": is_list,
}


def check_device(device: JsonObject, *, lists: bool) -> None:
    assert device.keys() <= {"name", "attributes"}
    assert DNS_LABEL.fullmatch(device["name"])
    attributes = device.get("attributes", {})
    assert len(attributes) <= ATTRIBUTES_PER_DEVICE
    assert sum(len(value.get("ints", [0])) for value in attributes.values()) <= VALUES_PER_DEVICE
    for name, value in attributes.items():
        assert QUALIFIED_NAME.fullmatch(name), name
        ((kind, plain),) = value.items()
        assert VALUE_RULES[kind](plain), (name, value)
        assert lists or kind != "ints"


def check_pool(bodies: Sequence[JsonObject], *, lists: bool) -> None:
    pages = [body["spec"]["devices"] for body in bodies]
    names = [device["name"] for page in pages for device in page]
    assert len(set(names)) == len(names)
    assert max(map(len, pages)) <= (DEVICES_PER_SLICE_WITH_LISTS if lists else DEVICES_PER_SLICE)
    for device in (device for page in pages for device in page):
        check_device(device, lists=lists)


# Hostile facts

ODD_TEXTS = ["", "a", "x" * 64, "ü" * 40, "bad\udcff", "\ud800", "a,b", "N/A", "\x00\n\x1b[31m", "x" * 300]
TEXT = st.sampled_from(ODD_TEXTS)
ANY_TEXT = TEXT | st.text(st.characters(), max_size=70)
NUMBER = st.sampled_from([0, 1, 8, -1, 2**63 - 1, 2**63, -(2**63) - 1, 10**40])
SMALL = st.integers(0, 5)
BDF = st.sampled_from(
    ["", "0000:1a:00.0", "0000:1A:00.0", "0000:1a:00.1", "0000:9b:00.0", "10000:01:00.0", "../x", "y" * 80]
)
IFNAME = (
    st.sampled_from(["eth0", "eth1", "ib0", "lo", "Eth.1", "docker0", "net-mv2gqxzq", "eth_0"]) | ANY_TEXT
)
KIND = st.sampled_from(["", "dummy", "vlan", "veth", "bond", "bridge", "ipoib", "vrf", "new"])
DRIVER = st.sampled_from(["", "mlx5_core", "erdma", "vfio-pci", "nvidia"]) | TEXT
SPEED = st.sampled_from(["32.0 GT/s PCIe", "Unknown", "9" * 5000 + " GT/s"]) | TEXT
RATE = st.sampled_from(["400 Gb/sec (4X NDR)", "9" * 5000 + " Gb/sec"]) | TEXT
CIDR = st.sampled_from(["10.0.0.5/24", "fd00::5/64", "10.0.0.6/24", "::/0"]) | TEXT


def tuples(items: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=size).map(tuple)


PROGRAMS = st.none() | tuples(TEXT)
CHAR_DEVICES = tuples(st.builds(CharDevice, TEXT, NUMBER, NUMBER), 2)
LINK = st.builds(
    Link,
    ifindex=SMALL,
    ifname=IFNAME,
    kind=KIND,
    mac=st.sampled_from(["02:00:00:00:00:01", ":".join(["80"] * 20)]) | TEXT,
    permanent_mac=TEXT,
    mtu=NUMBER,
    flags=NUMBER,
    operstate=TEXT,
    carrier=st.booleans(),
    arp_type=st.sampled_from([1, 32, 772]) | NUMBER,
    alias=ANY_TEXT,
    master=st.none() | SMALL,
    lower=st.none() | SMALL,
    link_netnsid=st.none() | SMALL,
    parent_bus=st.sampled_from(["", "pci", "usb", "auxiliary", "vmbus"]),
    parent_device=BDF | st.just("mlx5_core.sf.4"),
    pci_address=BDF,
    virtual=st.booleans(),
    addresses=tuples(st.builds(Address, CIDR)),
    vlan_id=st.none() | NUMBER,
    netns_immutable=st.booleans(),
    phys_port_name=st.sampled_from(["", "p0", "pf0vf3"]) | TEXT,
    driver=DRIVER,
    driver_version=TEXT,
    firmware=TEXT,
    speed_mbps=st.none() | NUMBER,
    duplex=TEXT,
    queues=st.none() | NUMBER,
    xdp=st.booleans(),
    tc_filters=PROGRAMS,
    tcx_programs=PROGRAMS,
)
FUNCTION = st.builds(
    PciFunction,
    address=BDF,
    class_code=st.sampled_from([0x020000, 0x020700, 0x030200, 0x00FF00]) | NUMBER,
    vendor_id=NUMBER,
    device_id=NUMBER,
    subsystem_device_id=NUMBER,
    driver=DRIVER,
    numa_node=st.none() | SMALL | NUMBER,
    root=st.sampled_from(["pci0000:17", "pci0000:97"]) | TEXT,
    path=tuples(BDF),
    physical_function=BDF | TEXT,
    virtual_function_index=st.none() | NUMBER,
    sriov_total_vfs=NUMBER,
    sriov_num_vfs=NUMBER,
    link_speed=SPEED,
    link_width=NUMBER,
    max_link_speed=SPEED,
    max_link_width=NUMBER,
    vendor_name=TEXT,
    device_name=ANY_TEXT,
)
PORT = st.builds(
    RdmaPort,
    number=SMALL,
    state=TEXT,
    link_layer=st.sampled_from(["Ethernet", "InfiniBand"]) | TEXT,
    rate=RATE,
    netdevs=tuples(IFNAME, 2),
    guid=TEXT,
    gid_types=tuples(TEXT, 3),
    pkeys=tuples(TEXT, 3),
)
RDMA = st.builds(
    RdmaDevice,
    name=st.sampled_from(["mlx5_0", "mlx5_1", "rxe0", "m_" * 31]) | TEXT,
    pci_address=BDF,
    node_guid=TEXT,
    firmware=TEXT,
    ports=tuples(PORT, 2),
    char_devices=CHAR_DEVICES,
)
GPU = st.builds(Gpu, BDF, TEXT, TEXT, TEXT, CHAR_DEVICES)
NODE = st.builds(NumaNode, SMALL, TEXT, tuples(NUMBER, 5), st.none() | st.integers(0, 1))
RULE = st.builds(
    RoutingRule,
    st.sampled_from([4, 6]),
    SMALL,
    source=CIDR,
    input_interface=IFNAME,
    inverted=st.booleans(),
    suppresses_default=st.booleans(),
)
POLICY_ROUTE = st.builds(
    Route,
    st.sampled_from(["0.0.0.0/0", "::/0"]) | TEXT,
    ifindex=SMALL,
    next_hops=tuples(SMALL, 2),
    table=SMALL,
)
ROUTE = st.builds(Route, st.sampled_from(["0.0.0.0/0", "::/0"]), ifindex=SMALL, next_hops=tuples(SMALL, 2))
FACTS = st.builds(
    NodeFacts,
    links=tuples(LINK, 4),
    pci_functions=tuples(FUNCTION),
    rdma_devices=tuples(RDMA),
    gpus=tuples(GPU, 2),
    default_routes=tuples(ROUTE, 2),
    rules=tuples(RULE, 2),
    policy_routes=tuples(POLICY_ROUTE, 2),
    protected_links=tuples(st.builds(ProtectedLink, TEXT, TEXT, SMALL), 2),
    numa_nodes=tuples(NODE),
    rdma_netns_exclusive=st.booleans(),
)

OWN_NAME = st.sampled_from([f"example.com/own{i}" for i in range(40)]) | ANY_TEXT
OWN_VALUE = st.booleans() | NUMBER | TEXT | tuples(NUMBER, 60)


class Rules:
    """The operator's attributes, the same on every device, and worse than the rules' own checks let pass."""

    def __init__(self, values: Mapping[str, AttributeValue]) -> None:
        self._given = RuleResult(values)

    def attributes_for(self, _device: Device, /) -> RuleResult:
        return self._given


POLICY = st.builds(
    Policy,
    publish_gpus=st.sampled_from(PublishGpus),
    move_ib_interfaces=st.booleans(),
    offer_link_kinds=tuples(KIND).map(frozenset),
    list_attributes=st.booleans(),
    prefer_attributes=tuples(st.sampled_from(["queues", "dra.net/xdp", "example.com/own1"]) | TEXT),
    rules=st.none() | st.builds(Rules, st.dictionaries(OWN_NAME, OWN_VALUE, max_size=45)),
)

PATIENT = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def publish(devices: Iterable[Device], policy: Policy) -> list[JsonObject]:
    """The slices as they go to the API server."""
    pages = build_pages(build_slices(tuple(devices), policy))
    writes = plan_sync([], DesiredPool("dra.net", "node-a", "node-a", pages)).writes
    return [write.body for write in writes if isinstance(write, CreateSlice)]


def offered(facts: NodeFacts, held: Mapping[str, Device], policy: Policy) -> list[Device]:
    return [d.device for d in take_inventory(facts, held, policy) if d.published]


def shuffled(facts: NodeFacts, random: Random) -> NodeFacts:
    """The same facts, told in another order."""

    def mixed(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.sample(items, len(items)))

    return replace(
        facts,
        links=mixed(facts.links),
        pci_functions=mixed(facts.pci_functions),
        rdma_devices=mixed(facts.rdma_devices),
        gpus=mixed(facts.gpus),
        default_routes=mixed(facts.default_routes),
        protected_links=mixed(facts.protected_links),
        numa_nodes=mixed(facts.numa_nodes),
    )


@PATIENT
@given(facts=FACTS, earlier=FACTS, policy=POLICY)
def test_whatever_is_read_the_slices_are_valid(facts: NodeFacts, earlier: NodeFacts, policy: Policy) -> None:
    held = {device.name: device for device in build_devices(earlier, {}, policy)[:3]}
    everything = take_inventory(facts, held, policy)

    check_pool(publish([d.device for d in everything if d.published], policy), lists=policy.list_attributes)
    check_pool(publish([d.device for d in everything], policy), lists=policy.list_attributes)


@PATIENT
@given(facts=FACTS, policy=POLICY)
def test_the_stand_in_for_the_api_server_takes_them(facts: NodeFacts, policy: Policy) -> None:
    for body in publish(offered(facts, {}, policy), replace(policy, list_attributes=False)):
        body["metadata"]["name"] = "a-slice"
        assert validate(RESOURCE_SLICES, json.loads(json.dumps(body)), None) == []


@PATIENT
@given(facts=FACTS, policy=POLICY, random=st.randoms(use_true_random=False))
def test_order_and_content_do_not_depend_on_the_order_of_the_facts(
    facts: NodeFacts, policy: Policy, random: Random
) -> None:
    told, retold = build_devices(facts, {}, policy), build_devices(shuffled(facts, random), {}, policy)

    assert json.dumps(publish(told, policy)) == json.dumps(publish(retold, policy))
    assert [(d.name, d.kind, d.ifname, d.left_out) for d in told] == [
        (d.name, d.kind, d.ifname, d.left_out) for d in retold
    ]


def unique(facts: NodeFacts) -> NodeFacts:
    """As a kernel tells them: no index, name or address twice."""
    links = {link.ifname: link for link in {link.ifindex: link for link in facts.links}.values()}
    return replace(
        facts,
        links=tuple(links.values()),
        pci_functions=tuple({f.address: f for f in facts.pci_functions}.values()),
        rdma_devices=tuple({r.name: r for r in facts.rdma_devices}.values()),
        gpus=tuple({g.pci_address: g for g in facts.gpus}.values()),
        numa_nodes=tuple({n.node: n for n in facts.numa_nodes}.values()),
    )


@PATIENT
@given(facts=FACTS.map(unique), policy=POLICY, random=st.randoms(use_true_random=False))
def test_nor_do_the_decisions(facts: NodeFacts, policy: Policy, random: Random) -> None:
    told, retold = (offered(f, {}, policy) for f in (facts, shuffled(facts, random)))

    assert json.dumps(publish(told, policy)) == json.dumps(publish(retold, policy))


@PATIENT
@given(count=st.integers(0, 300), lists=st.booleans())
def test_many_devices_make_full_pages(count: int, *, lists: bool) -> None:
    policy = Policy(list_attributes=lists)
    numa: AttributeValue = (1, 0) if lists else 1
    devices = [
        Device(f"nic-{i}", DeviceKind.NIC, {"resource.kubernetes.io/numaNode": numa}) for i in range(count)
    ]

    check_pool(publish(devices, policy), lists=lists)
    assert plan_slices(devices, policy).losses == ()
