"""NCCL's topology file: the tree of exactly the pod's devices, as NCCL reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.claims.nccl.topology import (
    BRIDGE_CLASS,
    MOST_ELEMENTS,
    CpuKind,
    CpuNode,
    PciNode,
    Topology,
    build_topology,
    find_kind,
    fits,
)
from dranet.claims.nccl.topology_text import TopologyError, parse_topology, render_topology
from dranet.model.device import Device, DeviceKind
from dranet.model.distance import Distance, distance
from dranet.model.facts import NodeFacts, NumaNode
from dranet.model.workload import Processor
from tests.claims.nccl_reader import Element, Reader, Refused
from tests.data.layouts import LAYOUTS, read_layout, take_layout

FACTS = {layout: read_layout(layout).facts for layout in LAYOUTS}
DEVICES = {layout: tuple(decision.device for decision in take_layout(layout)) for layout in LAYOUTS}
XEON, EPYC = Processor("GenuineIntel", 6, 143), Processor("AuthenticAMD", 23, 49)
many = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def choose(layout: str, data: st.DataObject) -> tuple[list[Device], list[Device]]:
    """Some network devices and some GPUs of a machine."""
    nics = [device for device in DEVICES[layout] if device.kind is not DeviceKind.GPU]
    gpus = [device for device in DEVICES[layout] if device.kind is DeviceKind.GPU]
    return [data.draw(st.lists(st.sampled_from(all_), unique_by=id)) if all_ else [] for all_ in (nics, gpus)]  # type: ignore[return-value]


def nccl_path(device: Device) -> tuple[str, ...]:
    """The function and every second step above it."""
    return tuple(reversed(device.pci_path[::-2]))


def walk(
    nodes: tuple[PciNode, ...], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], PciNode]]:
    """Every function with the way down to it."""
    for node in nodes:
        way = (*above, node.address)
        yield way, node
        yield from walk(node.below, way)


@many
@given(st.sampled_from(LAYOUTS), st.data())
def test_the_tree_has_the_devices_of_the_pod_where_they_are_and_nothing_else(
    layout: str, data: st.DataObject
) -> None:
    nics, gpus = choose(layout, data)
    topology = build_topology(nics, gpus, FACTS[layout])
    wanted = {nccl_path(device): device for device in (*nics, *gpus) if device.pci_path}
    leaves = {}
    for cpu in topology.cpus:
        for way, node in walk(cpu.below):
            assert node.below or way in wanted, "a bridge with nothing below it"
            if way in wanted:
                leaves[way] = cpu.numa_node
    expected = {way: -1 if device.numa_node is None else device.numa_node for way, device in wanted.items()}
    assert leaves == expected


def nccl_distance(way: tuple[str, ...], other: tuple[str, ...]) -> Distance:
    """By the rule of NCCL's ``paths.cc``: through a processor PHB, from switch to switch PXB, else PIX."""
    shared = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(way, other, strict=False))
    )
    if shared == 0:
        return Distance.PHB
    return Distance.PIX if len(way) == len(other) == shared + 1 else Distance.PXB


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nccl_takes_from_the_file_the_distances_below_a_switch_that_we_tell(layout: str) -> None:
    nics, gpus = ([d for d in DEVICES[layout] if (d.kind is DeviceKind.GPU) is gpu] for gpu in (False, True))
    topology = build_topology(nics, gpus, FACTS[layout])
    ways = {node.address: way for cpu in topology.cpus for way, node in walk(cpu.below)}
    for nic, gpu in itertools.product([nic for nic in nics if nic.pci_path], gpus):
        ours, theirs = distance(nic, gpu), nccl_distance(ways[nic.pci_address], ways[gpu.pci_address])
        assert theirs == ours if ours in (Distance.PIX, Distance.PXB) else theirs == Distance.PHB


def test_a_dgx_a100_has_the_levels_that_nccl_saw_on_a_real_one() -> None:
    """The topology of NVIDIA/nccl issue 1505: three switches above the first GPU, two above the first NIC."""
    ways = {
        node.address: way
        for cpu in build_topology(*_first_of_each("dgx-a100"), FACTS["dgx-a100"]).cpus
        for way, node in walk(cpu.below)
    }
    assert len(ways["0000:07:00.0"]) == 4
    assert len(ways["0000:0c:00.0"]) == 3
    assert ways["0000:0c:00.0"][1] == "0000:0a:00.0"
    assert ways["0000:07:00.0"][0] == ways["0000:0c:00.0"][0]


def _first_of_each(layout: str) -> tuple[list[Device], list[Device]]:
    nics = [device for device in DEVICES[layout] if device.rdma_device]
    return nics[:1], [device for device in DEVICES[layout] if device.kind is DeviceKind.GPU][:1]


@many
@given(st.sampled_from(LAYOUTS), st.data())
def test_the_text_parses_back_to_the_same_tree_and_is_the_same_for_any_order(
    layout: str, data: st.DataObject
) -> None:
    nics, gpus = choose(layout, data)
    processor = data.draw(st.sampled_from((XEON, EPYC, Processor())))
    topology = build_topology(nics, gpus, FACTS[layout], processor)
    text = render_topology(topology)
    assert parse_topology(text) == topology
    turned = build_topology(
        data.draw(st.permutations(nics)), data.draw(st.permutations(gpus)), FACTS[layout], processor
    )
    assert render_topology(turned) == text


@pytest.mark.parametrize(
    ("architecture", "processor", "kind"),
    [
        ("x86_64", XEON, CpuKind("x86_64", "GenuineIntel", 6, 143)),
        ("x86_64", EPYC, CpuKind("x86_64", "AuthenticAMD", 143, 49)),
        ("x86_64", Processor("AuthenticAMD", 26, 2), CpuKind("x86_64", "AuthenticAMD", 191, 2)),
        ("x86_64", Processor("  Shanghai  ", 7, 91), CpuKind("x86_64", "  Shanghai  ", 7, 91)),
        ("x86_64", Processor(), None),
        ("x86_64", Processor("GenuineIntel", 6), None),
        ("aarch64", Processor(), CpuKind("arm64")),
        ("ppc64le", Processor(), CpuKind("ppc64")),
        ("riscv64", Processor(), None),
        ("", XEON, None),
    ],
)
def test_a_processor_is_numbered_as_nccl_does(
    architecture: str, processor: Processor, kind: CpuKind | None
) -> None:
    assert find_kind(architecture, processor) == kind


def test_the_cpus_of_a_numa_node_are_a_mask() -> None:
    nic = Device("n", DeviceKind.NIC, pci_address="0000:18:00.0", pci_path=("0000:18:00.0",), numa_node=1)
    facts = NodeFacts(numa_nodes=(NumaNode(0, "0-31"), NumaNode(1, "32-47,64")))
    (cpu,) = build_topology([nic], (), facts).cpus
    assert cpu.affinity == "1,0000ffff,00000000"


def as_tree(element: Element | ET.Element) -> object:
    if isinstance(element, Element):
        return element.name, element.attributes, [as_tree(below) for below in element.below]
    return element.tag, dict(element.attrib), [as_tree(below) for below in element]


@many
@given(st.sampled_from(LAYOUTS), st.data())
def test_nccl_and_any_reader_of_xml_read_the_same(layout: str, data: st.DataObject) -> None:
    nics, gpus = choose(layout, data)
    text = render_topology(build_topology(nics, gpus, FACTS[layout], XEON))
    system = Reader(text).read()
    assert as_tree(system) == as_tree(ET.fromstring(text))
    for element in system.walk():
        if element.name == "cpu":
            # Else NCCL gives up if it hangs a device without a place on one that it has not looked at.
            is_arm = FACTS[layout].host.architecture == "aarch64"
            kind = {"arch"} if is_arm else {"arch", "vendor", "familyid", "modelid"}
            assert element.attributes.keys() == {"numaid", "affinity", *kind}
        if element.name == "pci":  # without a class NCCL gives up where there is no sysfs
            assert {"busid", "class"} <= element.attributes.keys()
            assert element.attributes["busid"] == element.attributes["busid"].lower()
            assert element.attributes["class"].startswith("0x0604" if element.below else "0x")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nccl_can_hold_what_any_whole_machine_has(layout: str) -> None:
    nics, gpus = ([d for d in DEVICES[layout] if (d.kind is DeviceKind.GPU) is gpu] for gpu in (False, True))
    assert fits(build_topology(nics, gpus, FACTS[layout]), nics)


def virtual_functions(count: int) -> list[Device]:
    addresses = [f"0000:{1 + i // 256:02x}:{i // 8 % 32:02x}.{i % 8}" for i in range(count)]
    return [Device(f"vf{i}", DeviceKind.NIC, pci_address=a, pci_path=(a,)) for i, a in enumerate(addresses)]


def test_more_devices_than_nccl_can_hold_are_told() -> None:
    some, many_ = virtual_functions(60), virtual_functions(200)
    assert fits(build_topology(some, (), NodeFacts()), some)
    assert not fits(build_topology(many_, (), NodeFacts()), many_)
    assert build_topology(many_, (), NodeFacts()).size < MOST_ELEMENTS, "with what NCCL adds it is too much"


def test_a_device_that_no_scan_found_again_is_there_with_the_class_of_its_kind() -> None:
    path = ("0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
    nic = Device("n", DeviceKind.NIC, pci_address="0000:18:00.0", pci_path=path)
    ((cpu),) = build_topology([nic], (), NodeFacts()).cpus
    assert cpu == CpuNode(
        -1, (PciNode("0000:16:00.0", BRIDGE_CLASS, below=(PciNode("0000:18:00.0", 0x020000),)),)
    )


@given(st.permutations((None, 1, None)))
def test_a_function_that_tells_no_numa_node_does_not_hide_what_its_neighbours_tell(
    numa_nodes: list[int | None],
) -> None:
    addresses = [f"0000:18:00.{i}" for i in range(len(numa_nodes))]
    nics = [
        Device(a, DeviceKind.NIC, pci_address=a, pci_path=("0000:17:00.0", a), numa_node=numa)
        for a, numa in zip(addresses, numa_nodes, strict=True)
    ]
    (cpu,) = build_topology(nics, (), NodeFacts()).cpus
    assert cpu.numa_node == 1
    assert [node.address for node in cpu.below] == addresses


def test_what_is_not_on_pci_is_left_to_nccl() -> None:
    assert build_topology([Device("veth", DeviceKind.NIC)], (), NodeFacts()) == Topology()
    assert Reader(render_topology(Topology())).read().below == []


@pytest.mark.parametrize("address", ['0000:18:00.0"/><gpu', "", "../../x", "0000:18:00.0\n", "0000:1G:00.0"])
def test_an_address_that_is_none_never_gets_into_the_file(address: str) -> None:
    topology = Topology((CpuNode(0, (PciNode(address, 0x020000),)),))
    with pytest.raises(TopologyError, match="not a PCI address"):
        render_topology(topology)


@pytest.mark.parametrize("vendor", ['a"b', "<gpu/>", "much too long a name"])
def test_a_vendor_that_is_none_never_gets_into_the_file(vendor: str) -> None:
    with pytest.raises(TopologyError, match="vendor"):
        render_topology(Topology((CpuNode(0, (), "1", CpuKind("x86_64", vendor, 6, 1)),)))


GOOD = render_topology(
    Topology((CpuNode(0, (PciNode("0000:01:00.0", 0x060400, below=(PciNode("0000:02:00.0", 0x020000),)),)),))
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('version="1"', 'version="2"'),
        ("<system", '<?xml version="1.0"?>\n<system'),
        ("    <pci", "\t<pci"),
        ('<pci busid="0000:02:00.0"', '<pci  busid="0000:02:00.0"'),
        ("</cpu>", "</pci>"),
        ("</system>\n", ""),
        ("</system>\n", "</system>\n<system/>\n"),
        ('numaid="0"', 'numaid="zero"'),
        ("0000:02:00.0", "0000:02:00.0&amp;"),
        ("<cpu", "<gpu"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises(TopologyError):
        parse_topology(GOOD.replace(old, new, 1))


@many
@given(st.text(max_size=200) | st.integers(0, len(GOOD) - 1).map(lambda i: GOOD[:i] + "x" + GOOD[i + 1 :]))
def test_any_text_is_read_or_refused_and_what_is_read_nccl_can_read(text: str) -> None:
    try:
        topology = parse_topology(text)
    except TopologyError:
        return
    assert parse_topology(render_topology(topology)) == topology
    try:
        Reader(text).read()
    except Refused as refusal:
        pytest.fail(f"NCCL would refuse it: {refusal}")
