"""NCCL's topology file: the tree of exactly the pod's devices, as NCCL reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.claims.nccl_topology import (
    BRIDGE_CLASS,
    NCCL,
    NO_NUMA_NODE,
    RCCL,
    CpuKind,
    CpuNode,
    PciNode,
    Topology,
    TopologyError,
    build_topology,
    find_kind,
    find_version,
    fits,
    parse_topology,
    render_topology,
)
from dranet.model.claim import Processor
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, Gpu, NodeFacts, NumaNode, distance
from tests.claims.nccl_reader import MOST_BELOW, MOST_ELEMENTS, Element, Reader, Refused
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
    for nic, gpu in itertools.product([nic for nic in nics if nic.pci_address], gpus):
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
    cpus = build_topology([nic], (), facts).cpus
    assert [(cpu.numa_node, cpu.affinity) for cpu in cpus] == [
        (1, "1,0000ffff,00000000"),
        (-1, ""),
        (0, "ffffffff"),
    ]


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


@many
@given(st.sampled_from(LAYOUTS), st.data())
def test_what_is_not_in_the_file_hangs_on_a_processor_that_is(layout: str, data: st.DataObject) -> None:
    """Else NCCL 2.21 to 2.26 takes the one that it adds for another machine's."""
    topology = build_topology(*choose(layout, data), FACTS[layout])
    numbers = [cpu.numa_node for cpu in topology.cpus]
    places = {NO_NUMA_NODE if d.numa_node is None else d.numa_node for d in DEVICES[layout] if d.pci_path}
    assert places <= set(numbers)
    assert NO_NUMA_NODE in numbers, "where NCCL hangs what it does not find in sysfs"
    assert len(set(numbers)) == len(numbers)
    busy = [bool(cpu.below) for cpu in topology.cpus]
    assert busy == sorted(busy, reverse=True), "eth0 is hung on the first: one that has devices"


@many
@given(st.sampled_from([layout for layout in LAYOUTS if layout != "virtual-node"]), st.data())
def test_the_file_is_of_the_version_that_the_gpus_library_reads(layout: str, data: st.DataObject) -> None:
    nics, gpus = choose(layout, data)
    version = find_version(gpus, FACTS[layout])
    assert version == (RCCL if layout == "mi300x" else NCCL)
    text = render_topology(build_topology(nics, gpus, FACTS[layout], XEON, version))
    assert parse_topology(text) == build_topology(nics, gpus, FACTS[layout], XEON, version)
    Reader(text, version).read()
    with pytest.raises(Refused, match="wrong version"):
        Reader(text, NCCL if version == RCCL else RCCL).read()


@pytest.mark.parametrize(
    ("on_the_node", "of_the_pod", "version"),
    [
        ((), 0, NCCL),
        (("nvidia", "nvidia"), 0, NCCL),
        (("amd", "amd"), 0, RCCL),
        (("hygon",), 1, RCCL),
        (("intel",), 1, NCCL),
        (("nvidia", "amd"), 1, NCCL),  # the second one is the processor's own
        (("amd", "nvidia"), 1, RCCL),
        (("amd", "nvidia"), 2, None),
        (("amd", "nvidia"), 0, None),
    ],
)
def test_of_gpus_of_several_makers_those_of_the_pod_count(
    on_the_node: tuple[str, ...], of_the_pod: int, version: int | None
) -> None:
    facts = NodeFacts(gpus=tuple(Gpu(f"0000:0{i}:00.0", maker) for i, maker in enumerate(on_the_node)))
    gpus = [Device(f"g{i}", DeviceKind.GPU, pci_address=f"0000:0{i}:00.0") for i in range(of_the_pod)]
    assert find_version(gpus, facts) == version


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nccl_can_hold_what_any_whole_machine_has(layout: str) -> None:
    nics, gpus = ([d for d in DEVICES[layout] if (d.kind is DeviceKind.GPU) is gpu] for gpu in (False, True))
    assert fits(build_topology(nics, gpus, FACTS[layout]), nics, gpus)


def virtual_functions(count: int, cards: int = 1, kind: DeviceKind = DeviceKind.NIC) -> list[Device]:
    """Each card on a port of its own."""
    addresses = [f"0000:{1 + i % cards:02x}:{i // cards // 8:02x}.{i // cards % 8}" for i in range(count)]
    numa = [i % cards for i in range(count)]
    return [
        Device(
            f"vf{i}",
            kind,
            pci_address=a,
            pci_path=(f"0000:00:{n:02x}.0", f"0000:{n:02x}:00.0", a),
            numa_node=n,
        )
        for i, (a, n) in enumerate(zip(addresses, numa, strict=True))
    ]


def test_more_devices_than_nccl_can_hold_are_told() -> None:
    some, many_ = virtual_functions(60, 4), virtual_functions(120, 8)
    assert fits(build_topology(some, (), NodeFacts()), some, ())
    assert not fits(build_topology(many_, (), NodeFacts()), many_, ())
    assert build_topology(many_, (), NodeFacts()).size < MOST_ELEMENTS, "with what NCCL adds it is too much"


def test_room_is_left_for_what_is_not_in_the_file() -> None:
    """32 elements, beside the four that NCCL adds to each of up to 32 functions."""
    some, many_ = virtual_functions(86, 4), virtual_functions(88, 4)
    assert build_topology(some, (), NodeFacts()).size + 32 * 4 + 32 == MOST_ELEMENTS
    assert fits(build_topology(some, (), NodeFacts()), some, ())
    assert not fits(build_topology(many_, (), NodeFacts()), many_, ())


def test_the_links_of_every_gpu_count() -> None:
    """NCCL joins what the processes of a pod have found."""
    nics, gpus = virtual_functions(40, 4), virtual_functions(16, 16, DeviceKind.GPU)
    assert fits(build_topology(nics, gpus[:4], NodeFacts()), nics, gpus[:4])
    topology = build_topology(nics, gpus, NodeFacts())
    assert topology.size + 32 * 4 + 16 < MOST_ELEMENTS, (
        "what is in the file, each network device and each GPU"
    )
    assert not fits(topology, nics, gpus)


@pytest.mark.parametrize("count", range(25, 35))
def test_more_devices_below_one_port_than_nccl_takes_are_told(count: int) -> None:
    """With one place more for the interface of a socket."""
    functions = virtual_functions(count)[1:]  # NCCL puts function 0 beside them
    assert fits(build_topology(functions, (), NodeFacts()), functions, ()) == (count < MOST_BELOW)


def test_more_numa_nodes_than_nccl_takes_are_told() -> None:
    nic = virtual_functions(1)
    some, many_ = (NodeFacts(numa_nodes=tuple(NumaNode(i, str(i)) for i in range(n))) for n in (16, 32))
    assert fits(build_topology(nic, (), some), nic, ())
    assert not fits(build_topology(nic, (), many_), nic, ())


def test_a_device_that_no_scan_found_again_is_there_with_the_class_of_its_kind() -> None:
    path = ("0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
    nic = Device("n", DeviceKind.NIC, pci_address="0000:18:00.0", pci_path=path)
    (cpu,) = build_topology([nic], (), NodeFacts()).cpus
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
    cpu, _ = build_topology(nics, (), NodeFacts()).cpus
    assert cpu.numa_node == 1
    assert [node.address for node in cpu.below] == addresses


def test_what_is_not_on_pci_is_left_to_nccl() -> None:
    assert not build_topology([Device("veth", DeviceKind.NIC)], (), NodeFacts()).has_devices
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
        ('version="1"', 'version="3"'),
        ('version="1"', 'version="1" name="mine"'),
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
