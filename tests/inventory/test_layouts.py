"""Real layouts: exactly the expected devices, and what the documentation of each machine says of it.

The exact comparison shows every change; the other tests are written from the documentation that the captures
name, not from the code, and tell whether a change is right.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.desk.redact.capture import redact
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Decision, Policy
from dranet.inventory.slices import build_slices
from dranet.model.capture import Capture, decode_capture, encode_capture
from dranet.model.device import Device, DeviceKind
from tests.data import gpu_slices, layouts
from tests.data.layouts import LAYOUTS, read_layout, take_layout

KNOWN = {
    "aws-p5",
    "azure-gb300",
    "azure-nd-h100-v5",
    "cilium-eni",
    "dgx-a100",
    "dgx-h100",
    "eks-vpc-cni",
    "gb200-nvl72",
    "h20-roce-lag",
    "hgx-b200",
    "infiniband-only",
    "mi300x",
    "oci-gb200",
    "plain-server",
    "terway",
    "virtual-node",
}

NODE, SYS = "NODE", "SYS"


class Node:
    """The decisions on one layout, by the words that documentation uses."""

    def __init__(self, layout: str) -> None:
        self.decisions = {decision.device.name: decision for decision in take_layout(layout)}
        devices = [decision.device for decision in self.decisions.values()]
        self.distances = layouts.distances(devices)

    def of_kind(self, kind: DeviceKind) -> list[Device]:
        return [d.device for d in self.decisions.values() if d.device.kind is kind]

    @property
    def gpus(self) -> list[str]:
        return [device.name for device in self.of_kind(DeviceKind.GPU)]

    @property
    def published(self) -> set[str]:
        return {name for name, decision in self.decisions.items() if decision.published}

    def by(self, attribute: str) -> dict[Any, Decision]:
        name = f"dra.net/{attribute}"
        found = (d for d in self.decisions.values() if name in d.device.attributes)
        return {decision.device.attributes[name]: decision for decision in found}

    def link(self, ifname: str) -> Decision:
        return next(d for d in self.decisions.values() if d.device.ifname == ifname)

    def row(self, rdma_device: str) -> list[str | None]:
        """Distances of that NIC from the GPUs, in the order of their addresses."""
        device = next(d.device for d in self.decisions.values() if d.device.rdma_device == rdma_device)
        return list(self.distances[device.name].values())


@pytest.fixture(scope="module")
def node() -> Callable[[str], Node]:
    made: dict[str, Node] = {}

    def get(layout: str) -> Node:
        return made.setdefault(layout, Node(layout))

    return get


def at(position: int, near: str, numa_size: int, count: int = 8) -> list[str | None]:
    """A row of nvidia-smi topo -m: ``near`` the GPU beside it, NODE on its NUMA node, SYS elsewhere."""
    same = range(position // numa_size * numa_size, position // numa_size * numa_size + numa_size)
    return [near if gpu == position else NODE if gpu in same else SYS for gpu in range(count)]


# every layout


def test_there_are_at_least_the_known_layouts() -> None:
    assert set(LAYOUTS) >= KNOWN


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_driver_makes_exactly_the_expected_devices(layout: str) -> None:
    expected = json.loads(layouts.expected_file(layout).read_text(encoding="utf-8"))
    made = json.loads(layouts.expectation_text(layout))

    assert [device["name"] for device in made["devices"]] == [d["name"] for d in expected["devices"]]
    for device, wanted in zip(made["devices"], expected["devices"], strict=True):
        assert device == wanted
    assert made["distances"] == expected["distances"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_capture_is_written_as_the_program_writes_it(layout: str) -> None:
    text = layouts.capture_file(layout).read_text(encoding="utf-8")

    assert encode_capture(decode_capture(text)) == text


@pytest.mark.parametrize("layout", layouts.DESCRIBED)
def test_a_described_capture_is_fresh(layout: str) -> None:
    if layouts.is_described(layout):
        assert read_layout(layout) == layouts.DESCRIBED[layout]()
    else:
        assert read_layout(layout).source.startswith("captured ")


@pytest.mark.parametrize(
    ("layout", "name"), [(layout, name) for layout, names in gpu_slices.FILES.items() for name in names]
)
def test_the_slices_of_the_vendors_driver_are_fresh(layout: str, name: str) -> None:
    written = gpu_slices.slices_file(layout, name).read_text(encoding="utf-8")

    assert written == gpu_slices.slices_text(layout, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_capture_says_where_it_comes_from_and_is_small(layout: str) -> None:
    assert re.match("Documentation: |Made up from |captured ", read_layout(layout).source)
    assert layouts.capture_file(layout).stat().st_size < 200_000
    assert layouts.expected_file(layout).stat().st_size < 200_000


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_capture_names_no_real_machine(layout: str) -> None:
    text = layouts.capture_file(layout).read_text(encoding="utf-8")
    identifiers = re.findall(r'"((?:[0-9a-f]{2}:){5,}[0-9a-f]{2}|(?:[0-9a-f]{4}:){3}[0-9a-f]{4})"', text)
    uuids = re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)
    addresses = addresses_of(read_layout(layout))

    assert [identifier for identifier in identifiers if is_somebodys(identifier)] == []
    assert [uuid for uuid in uuids if not uuid.startswith("00000000-")] == []
    assert [str(address) for address in addresses if not is_nobodys(address)] == []


def is_somebodys(identifier: str) -> bool:
    """A MAC that a maker gave (or a GUID, also as the end of an IPoIB address) and that no counter gave."""
    digits = identifier.replace(":", "")[-16:]
    is_local = len(digits) == 12 and int(digits[:2], 16) & 2
    return not is_local and int(digits[6:], 16) > 0xFFFF


def is_nobodys(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    made_up = map(
        ipaddress.ip_network,
        ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15", "2001:db8::/32"),
    )
    return address.is_loopback or address.is_link_local or any(address in network for network in made_up)


def addresses_of(capture: Capture) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    for link in capture.facts.links:
        yield from (ipaddress.ip_interface(address.cidr).ip for address in link.addresses)
    for route in capture.facts.default_routes:
        yield from (ipaddress.ip_address(text) for text in (route.gateway, route.source) if text)
    yield from (ipaddress.ip_address(line.address) for line in capture.facts.protected_links)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_redacted_capture_gives_the_same_devices_at_the_same_distances(layout: str) -> None:
    capture = read_layout(layout)
    after = take_inventory(redact(capture.facts), {}, Policy())
    before = take_layout(layout)

    assert [(d.device.pci_address, d.device.kind, d.published) for d in after if d.device.pci_address] == [
        (d.device.pci_address, d.device.kind, d.published) for d in before if d.device.pci_address
    ]
    assert layouts.distances([d.device for d in after]) == layouts.distances([d.device for d in before])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_published_fits_into_slices(layout: str) -> None:
    pages = build_slices([decision.device for decision in take_layout(layout) if decision.published])

    for page in pages:
        assert len(page) <= 128
        for device in page:
            assert len(device.attributes) <= 32
            assert all(len(v.encode()) <= 64 for v in device.attributes.values() if isinstance(v, str))


@pytest.mark.parametrize("layout", sorted(KNOWN - {"virtual-node"}))
def test_the_node_keeps_its_uplink(layout: str, node: Callable[[str], Node]) -> None:
    capture = read_layout(layout).facts
    uplinks = {link.ifname for link in capture.links if link.ifindex == capture.default_routes[0].ifindex}
    held_back = {d.device.ifname for d in node(layout).decisions.values() if not d.published}

    assert uplinks
    assert uplinks <= held_back


@pytest.mark.parametrize("layout", sorted(KNOWN - {"plain-server", "virtual-node"}))
def test_no_device_comes_from_the_boards_vga_or_an_nvswitch(layout: str, node: Callable[[str], Node]) -> None:
    odd = {f.address for f in read_layout(layout).facts.pci_functions if f.class_code in (0x030000, 0x068000)}

    assert odd.isdisjoint(d.device.pci_address for d in node(layout).decisions.values())


# DGX H100: NVIDIA's user guide, network modules

DGX_NIC_BESIDE_GPU = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
DGX_STORAGE = {"mlx5_1": 0, "mlx5_2": 0, "mlx5_7": 1, "mlx5_8": 1}


def test_dgx_h100_each_gpu_has_the_nic_of_the_user_guide_beside_it(node: Callable[[str], Node]) -> None:
    dgx = node("dgx-h100")

    for gpu, nic in enumerate(DGX_NIC_BESIDE_GPU):
        assert dgx.row(nic) == at(gpu, "PIX", numa_size=4), nic


def test_dgx_h100_storage_ports_are_near_their_socket_only(node: Callable[[str], Node]) -> None:
    for nic, numa in DGX_STORAGE.items():
        assert node("dgx-h100").row(nic) == [NODE if gpu // 4 == numa else SYS for gpu in range(8)], nic


def test_dgx_h100_offers_all_rdma_nics_and_gpus_and_no_link_of_kubernetes(
    node: Callable[[str], Node],
) -> None:
    dgx = node("dgx-h100")
    offered = [dgx.decisions[name].device for name in dgx.published]

    assert {device.rdma_device for device in offered if device.rdma_device} == {
        f"mlx5_{n}" for n in range(12)
    }
    assert len(dgx.gpus) == 8
    assert len(offered) == 12 + 8
    assert dgx.link("eno3").reason == "is the node's uplink: eno3 carries a default route"


# DGX A100: nvidia-smi topo -m of NVIDIA/nccl issue 1505; NIC n there is mlx5_n

A100_GROUPS = {(0, 1): (0, 1), (2, 3): (2, 3), (6, 7): (4, 5), (8, 9): (6, 7)}
"""NICs and the GPUs that are PXB from them; NICs 4, 5, 10 and 11 are storage."""


def test_dgx_a100_gives_the_published_matrix(node: Callable[[str], Node]) -> None:
    near = {nic: gpus for nics, gpus in A100_GROUPS.items() for nic in nics}

    for nic in range(12):
        row = ["PXB" if gpu in near.get(nic, ()) else SYS for gpu in range(8)]
        assert node("dgx-a100").row(f"mlx5_{nic}") == row, nic


# HGX B200: nvidia-smi topo -m of unslothai/unsloth issue 3872


def test_hgx_b200_gives_the_published_matrix(node: Callable[[str], Node]) -> None:
    b200 = node("hgx-b200")

    for number in range(8):
        assert b200.row(f"mlx5_{number}") == at(number, "PIX", numa_size=2), number
    assert b200.row("mlx5_8") == [NODE, NODE, SYS, SYS, SYS, SYS, SYS, SYS]


# AWS p5: the NCCL topology file and the attributes that EKS' class for EFA selects


def test_aws_p5_publishes_32_efa_by_the_name_that_the_device_class_selects(
    node: Callable[[str], Node],
) -> None:
    p5 = node("aws-p5")
    efa = [
        p5.decisions[name].device
        for name in p5.published
        if p5.decisions[name].device.attributes.get("dra.net/pciDevice") == "Elastic Fabric Adapter (EFA)"
    ]

    assert len(efa) == 32
    assert all(device.kind is DeviceKind.RDMA and device.attributes["dra.net/rdma"] is True for device in efa)
    assert all("dra.net/ifName" not in device.attributes for device in efa)
    assert p5.published == {device.name for device in efa} | set(p5.gpus)
    assert p5.link("enp70s0").device.attributes["dra.net/pciDevice"] == "Elastic Network Adapter (ENA)"


def test_aws_p5_four_efa_share_the_switch_of_each_gpu(node: Callable[[str], Node]) -> None:
    p5 = node("aws-p5")
    first_of_group = (79, 96, 113, 130, 147, 164, 181, 198)  # bus numbers in the names of the file

    for gpu, first in enumerate(first_of_group):
        for bus in range(first, first + 4):
            assert p5.row(f"rdmap{bus}s0") == at(gpu, "PIX", numa_size=4), bus


def test_aws_p5_gpu_and_efa_meet_on_the_standard_root_attribute(node: Callable[[str], Node]) -> None:
    roots = [device.pcie_root for device in node("aws-p5").of_kind(DeviceKind.RDMA)]

    assert {roots.count(root) for root in roots} == {4}
    assert set(roots) == {device.pcie_root for device in node("aws-p5").of_kind(DeviceKind.GPU)}


# Azure ND H100 v5: the NCCL topology file and DraNet's training example


def test_azure_nd_h100_v5_nics_are_near_the_gpus_of_their_numa_node(node: Callable[[str], Node]) -> None:
    azure = node("azure-nd-h100-v5")

    for number in range(8):
        assert azure.row(f"mlx5_{number}") == [NODE if gpu // 4 == number // 4 else SYS for gpu in range(8)]
    near = ["0001:00:00.0", "0002:00:00.0", "0003:00:00.0", "0008:00:00.0"]
    assert azure.by("rdmaDevice")["mlx5_0"].device.attributes["dra.net/nearestGpus"] == ",".join(near)


def test_azure_nd_h100_v5_every_function_is_alone_below_its_root(node: Callable[[str], Node]) -> None:
    roots = [d.device.pcie_root for d in node("azure-nd-h100-v5").decisions.values() if d.device.pcie_root]

    assert len(roots) == len(set(roots)) == 17


def test_azure_the_function_behind_the_synthetic_interface_stays_with_it(
    node: Callable[[str], Node],
) -> None:
    for layout in ("azure-nd-h100-v5", "azure-gb300"):
        hidden, synthetic = node(layout).link("enP30832s1"), node(layout).link("eth0")

        assert not hidden.published
        assert hidden.reason == "is tied to eth0, the node's uplink"
        assert hidden.device.numa_node is None
        assert not synthetic.published
        assert "dra.net/pciAddress" not in synthetic.device.attributes


# Azure GB300 and OCI GB200: the ResourceSlices of live nodes in DraNet's examples

GB300_SLICE = {
    "pci-0101-00-00-0": ("0101:00:00.0", "mlx5_0", 0),
    "pci-0102-00-00-0": ("0102:00:00.0", "mlx5_1", 0),
    "pci-0103-00-00-0": ("0103:00:00.0", "mlx5_2", 1),
    "pci-0104-00-00-0": ("0104:00:00.0", "mlx5_3", 1),
}
GB_GPUS = {
    "0008:06:00.0": ("pci0008:00", 0),
    "0009:06:00.0": ("pci0009:00", 0),
    "0018:06:00.0": ("pci0018:00", 1),
    "0019:06:00.0": ("pci0019:00", 1),
}


def test_azure_gb300_publishes_what_dranet_publishes_there(node: Callable[[str], Node]) -> None:
    gb300 = node("azure-gb300")

    assert gb300.published - set(gb300.gpus) == set(GB300_SLICE)
    for name, (address, rdma_device, numa) in GB300_SLICE.items():
        attributes = gb300.decisions[name].device.attributes
        assert attributes["dra.net/pciAddress"] == address
        assert attributes["dra.net/rdmaDevice"] == rdma_device
        assert attributes["dra.net/numaNode"] == numa
        assert attributes["dra.net/rdma"] is True
        assert attributes["dra.net/pciVendor"] == "Mellanox Technologies"
        assert attributes["dra.net/pciDevice"] == "ConnectX Family mlx5Gen Virtual Function"
        assert attributes["dra.net/pciSubsystem"] == "0240"
        assert "dra.net/ifName" not in attributes


def test_azure_gb300_gives_the_published_matrix(node: Callable[[str], Node]) -> None:
    for number in range(4):
        row = [NODE if gpu // 2 == number // 2 else SYS for gpu in range(4)]
        assert node("azure-gb300").row(f"mlx5_{number}") == row


@pytest.mark.parametrize("layout", ["azure-gb300", "oci-gb200"])
def test_grace_blackwell_gpus_are_where_nvidias_driver_publishes_them(
    layout: str, node: Callable[[str], Node]
) -> None:
    gpus = {gpu.pci_address: (gpu.pcie_root, gpu.numa_node) for gpu in node(layout).of_kind(DeviceKind.GPU)}

    assert gpus == GB_GPUS


OCI_SLICE = {
    "pci-0000-03-00-0": ("rdma0", "mlx5_0", "pci0000:00", 0),
    "pci-0000-03-00-1": ("rdma1", "mlx5_1", "pci0000:00", 0),
    "pci-0002-03-00-0": ("rdma2", "mlx5_2", "pci0002:00", 0),
    "pci-0002-03-00-1": ("rdma3", "mlx5_3", "pci0002:00", 0),
    "pci-0010-03-00-0": ("rdma4", "mlx5_5", "pci0010:00", 1),
    "pci-0010-03-00-1": ("rdma5", "mlx5_6", "pci0010:00", 1),
    "pci-0012-03-00-0": ("rdma6", "mlx5_7", "pci0012:00", 1),
    "pci-0012-03-00-1": ("rdma7", "mlx5_8", "pci0012:00", 1),
}


def test_oci_gb200_publishes_what_dranet_publishes_there(node: Callable[[str], Node]) -> None:
    oci = node("oci-gb200")

    assert oci.published - set(oci.gpus) == set(OCI_SLICE)
    for name, (ifname, rdma_device, root, numa) in OCI_SLICE.items():
        attributes = oci.decisions[name].device.attributes
        assert attributes["dra.net/ifName"] == ifname
        assert attributes["dra.net/rdmaDevice"] == rdma_device
        assert attributes["resource.kubernetes.io/pcieRoot"] == root
        assert attributes["dra.net/numaNode"] == numa
        assert attributes["dra.net/mtu"] == 9000
        assert attributes["dra.net/pciDevice"] == "CX8 Family [ConnectX-8]"
        assert attributes["dra.net/type"] == "device"
        assert (attributes["dra.net/sriov"], attributes["dra.net/sriovVfs"]) == (True, 0)
        assert (attributes["dra.net/virtual"], attributes["dra.net/state"]) == (False, "up")


def test_oci_gb200_no_nic_shares_a_root_with_a_gpu_and_numa_nodes_tell_them_apart(
    node: Callable[[str], Node],
) -> None:
    """nvidia-smi says SYS for every pair there; the measurements say that the NUMA node decides."""
    oci = node("oci-gb200")

    for _, rdma_device, root, numa in OCI_SLICE.values():
        assert root not in {gpu_root for gpu_root, _ in GB_GPUS.values()}
        assert oci.row(rdma_device) == [NODE if gpu // 2 == numa else SYS for gpu in range(4)]


def test_a_gb200_tray_has_two_gpus_and_two_nics_on_each_processor(node: Callable[[str], Node]) -> None:
    """The domains of NVIDIA's own listings: 0008 and 0009 on the first Grace, 0018 and 0019 on the second."""
    tray = node("gb200-nvl72")
    gpus = {gpu.pci_address: gpu.numa_node for gpu in tray.of_kind(DeviceKind.GPU)}

    assert gpus == {"0008:01:00.0": 0, "0009:01:00.0": 0, "0018:01:00.0": 1, "0019:01:00.0": 1}
    for position, name in enumerate(("mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4")):
        assert tray.row(name) == [NODE if gpu // 2 == position // 2 else SYS for gpu in range(4)]


# MI300X: AMD's system acceptance guide, table of NICs and GPUs

MI300X_TABLE = {
    "enp9s0np0": "0000:05:00.0",
    "enp35s0np0": "0000:2b:00.0",
    "enp83s0np0": "0000:5b:00.0",
    "enp105s0np0": "0000:65:00.0",
    "enp143s0np0": "0000:7d:00.0",
    "enp156s0np0": "0000:a5:00.0",
    "enp205s0np0": "0000:d5:00.0",
    "enp241s0np0": "0000:e7:00.0",
}


def test_mi300x_the_nearest_gpu_is_that_of_the_table(node: Callable[[str], Node]) -> None:
    for ifname, gpu in MI300X_TABLE.items():
        assert node("mi300x").link(ifname).device.attributes["dra.net/nearestGpus"] == gpu


def test_mi300x_several_bridges_but_no_processor_are_between_them(node: Callable[[str], Node]) -> None:
    for number in range(8):
        assert node("mi300x").row(f"mlx5_{number}") == at(number, "PXB", numa_size=4)


def test_mi300x_accelerators_are_amd_gpus_with_their_compute_nodes(node: Callable[[str], Node]) -> None:
    gpus = node("mi300x").of_kind(DeviceKind.GPU)

    assert len(gpus) == 8
    assert {gpu.attributes["dra.net/gpuVendor"] for gpu in gpus} == {"amd"}
    assert all("/dev/kfd" in [node.path for node in gpu.char_devices] for gpu in gpus)
    assert len({node.path for gpu in gpus for node in gpu.char_devices}) == 9


# InfiniBand only


def test_infiniband_only_the_uplink_is_ipoib_and_stays(node: Callable[[str], Node]) -> None:
    ib = node("infiniband-only")

    assert ib.link("ibp26s0").reason == "is the node's uplink: ibp26s0 carries a default route"
    assert ib.link("ibp26s0").device.attributes["dra.net/encapsulation"] == "infiniband"
    assert not ib.link("ibp60s0").published  # its partition interface would be lost


def test_infiniband_only_adapters_without_interface_are_rdma_only(node: Callable[[str], Node]) -> None:
    devices = {device.rdma_device for device in node("infiniband-only").of_kind(DeviceKind.RDMA)}

    assert devices == {"mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_12", "mlx5_13", "mlx5_14"}


def test_infiniband_only_virtual_functions_name_their_physical_one(node: Callable[[str], Node]) -> None:
    ib = node("infiniband-only")

    for index in (0, 1):
        attributes = ib.decisions[f"pci-0000-e3-00-{index + 1}"].device.attributes
        assert attributes["dra.net/isSriovVf"] is True
        assert attributes["dra.net/sriovPfAddress"] == "0000:e3:00.0"
        assert attributes["dra.net/sriovVfIndex"] == index


def test_infiniband_only_a_dead_port_says_so(node: Callable[[str], Node]) -> None:
    attributes = node("infiniband-only").by("rdmaDevice")["mlx5_11"].device.attributes

    assert attributes["dra.net/rdmaPortState"] == "DOWN"
    assert attributes["dra.net/rdmaLinkLayer"] == "InfiniBand"
    assert "dra.net/linkSpeedMbps" not in attributes


# plain server


def test_plain_server_offers_only_what_nothing_else_needs(node: Callable[[str], Node]) -> None:
    plain = node("plain-server")
    offered = {plain.decisions[name].device.ifname for name in plain.published}

    assert offered == {"ens3f0", "ens3f0v0", "ens3f0v1", "dummy0", "macvlan0"}


@pytest.mark.parametrize("ifname", ["enp1s0f0", "enp1s0f1", "bond0", "bond0.200", "br0"])
def test_plain_server_all_relatives_of_the_uplink_stay(ifname: str, node: Callable[[str], Node]) -> None:
    assert node("plain-server").link(ifname).reason == "is tied to bond0.100, the node's uplink"


def test_plain_server_ports_of_open_vswitch_and_parents_stay(node: Callable[[str], Node]) -> None:
    plain = node("plain-server")

    assert plain.link("enp2s0f0").reason == "is enslaved: enp2s0f0 is a port of ovs-system (openvswitch)"
    assert plain.link("enp2s0f1").reason.startswith("carries another interface: macvlan0 on enp2s0f1")


def test_plain_server_functions_for_virtual_machines_stay_home(node: Callable[[str], Node]) -> None:
    decisions = {d.device.pci_address: d for d in node("plain-server").decisions.values()}

    assert all(decisions[f"0000:41:{place}"].published for place in ("00.0", "01.0", "01.1"))
    assert decisions["0000:41:01.2"].reason.startswith("is bound to vfio-pci")
    assert decisions["0000:41:01.3"].reason == "has no driver"
    assert not any(decisions[f"0000:41:{place}"].published for place in ("01.2", "01.3"))


def test_plain_server_no_numa_node_is_made_up(node: Callable[[str], Node]) -> None:
    for decision in node("plain-server").decisions.values():
        assert decision.device.numa_node is None
        assert "dra.net/numaNode" not in decision.device.attributes
        assert "resource.kubernetes.io/numaNode" not in decision.device.attributes


# the virtual machine: QEMU's command line and the manual of each model (testbed/machine/hardware.py)


def test_virtual_node_was_captured_in_the_machine_lane() -> None:
    told = r"captured in the virtual machine of make test-machine: Linux 6\.\S+, QEMU 1\d\.\S+; .*; redacted"
    assert re.fullmatch(told, read_layout("virtual-node").source)


def test_virtual_node_offers_all_but_the_loopback_dead_displays_and_the_card_below_soft_rdma(
    node: Callable[[str], Node],
) -> None:
    decisions = node("virtual-node").decisions

    assert {name: d.reason for name, d in decisions.items() if not d.published} == {
        "lo": "is the loopback",
        "gpu-0000-22-00-0": "is a display adapter of a virtual machine",
        "gpu-0000-26-00-0": "is a display adapter of a virtual machine",
        "gpu-0000-82-00-0": "has no driver",
        "pci-0000-83-00-0": "has the RDMA device rxe0, which ends when the interface moves: it is software "
        "RDMA (rxe, siw)",
    }
    assert len(decisions) == 6 + 3 + 2 + 3 + 1  # cards, two groups of virtual functions, GPUs, loopback


def test_virtual_node_roots_and_numa_nodes_are_those_of_the_command_line(
    node: Callable[[str], Node],
) -> None:
    virtual = node("virtual-node")
    places = {
        d.pci_address: (d.pcie_root, d.numa_node) for d in (x.device for x in virtual.decisions.values())
    }

    assert places["0000:21:00.0"] == places["0000:21:10.0"] == places["0000:25:00.0"] == ("pci0000:20", 0)
    assert places["0000:81:00.0"] == places["0000:81:10.2"] == places["0000:83:00.0"] == ("pci0000:80", 1)
    assert places["0000:c1:00.0"] == ("pci0000:c0", None)
    assert places["0000:00:07.0"] == ("pci0000:00", None)


def test_virtual_node_functions_stand_in_their_odd_order(node: Callable[[str], Node]) -> None:
    """An 82576 puts its virtual functions at offset 128, and only every second number is used."""
    virtual = node("virtual-node")
    indexes = {
        (d.device.physical_function, d.device.pci_address): d.device.attributes.get("dra.net/sriovVfIndex")
        for d in virtual.decisions.values()
        if d.device.physical_function
    }

    assert indexes == {
        ("0000:21:00.0", "0000:21:10.0"): 0,
        ("0000:21:00.0", "0000:21:10.2"): 1,
        ("0000:21:00.0", "0000:21:10.4"): 2,
        ("0000:81:00.0", "0000:81:10.0"): 0,
        ("0000:81:00.0", "0000:81:10.2"): 1,
    }
    counts = virtual.by("sriovVfs")
    assert {count: d.device.pci_address for count, d in counts.items()} == {
        3: "0000:21:00.0",
        2: "0000:81:00.0",
    }


def test_virtual_node_rdma_devices_are_on_the_functions_that_they_were_made_on(
    node: Callable[[str], Node],
) -> None:
    shown = {
        name: (d.device.pci_address, d.device.kind, d.device.attributes["dra.net/rdmaLinkLayer"])
        for name, d in node("virtual-node").by("rdmaDevice").items()
        if name
    }

    assert shown == {
        "mlx5_0": ("0000:21:00.0", DeviceKind.NIC, "Ethernet"),
        "mlx5_1": ("0000:21:10.0", DeviceKind.NIC, "Ethernet"),
        "mlx5_2": ("0000:81:10.0", DeviceKind.RDMA, "InfiniBand"),
        "rxe0": ("0000:83:00.0", DeviceKind.NIC, "Ethernet"),
    }


def test_virtual_node_drivers_are_those_of_a_stock_kernel(node: Callable[[str], Node]) -> None:
    drivers = {
        d.device.pci_address: d.device.attributes.get("dra.net/driver")
        for d in node("virtual-node").decisions.values()
        if d.device.pci_address
    }

    assert drivers["0000:21:00.0"] == drivers["0000:81:00.0"] == "igb"
    assert drivers["0000:21:10.4"] == drivers["0000:81:10.2"] == "igbvf"
    assert drivers["0000:00:07.0"] == drivers["0000:25:00.0"] == "e1000e"
    assert drivers["0000:83:00.0"] == drivers["0000:c1:00.0"] == "virtio_net"
    assert drivers["0000:81:10.0"] is None  # taken away, so that only its RDMA device is left


def test_virtual_node_only_the_nic_behind_the_switch_is_beside_a_gpu(node: Callable[[str], Node]) -> None:
    virtual = node("virtual-node")

    assert virtual.gpus == ["gpu-0000-22-00-0", "gpu-0000-26-00-0", "gpu-0000-82-00-0"]
    assert list(virtual.distances["pci-0000-25-00-0"].values()) == ["PHB", "PIX", SYS]
    assert list(virtual.distances["pci-0000-21-10-2"].values()) == ["PHB", "PHB", SYS]
    assert list(virtual.distances["pci-0000-83-00-0"].values()) == [SYS, SYS, "PHB"]
    assert list(virtual.distances["pci-0000-c1-00-0"].values()) == [None, None, None]


def test_virtual_node_a_virtio_nic_is_its_pci_function(node: Callable[[str], Node]) -> None:
    assert node("virtual-node").decisions["pci-0000-83-00-0"].device.kind is DeviceKind.NIC


# EKS with the VPC CNI, Cilium's ENI mode, Terway: pods on a second interface by policy routing


@pytest.mark.parametrize("layout", ["eks-vpc-cni", "cilium-eni", "terway"])
def test_an_interface_that_carries_pods_by_policy_routing_stays_and_a_spare_one_is_offered(
    layout: str, node: Callable[[str], Node]
) -> None:
    assert not node(layout).link("eth1").published
    assert "eth1 carries traffic of others by routing table" in node(layout).link("eth1").reason
    assert node(layout).link("eth2").published
    assert node(layout).published == {node(layout).link("eth2").device.name}


# H20 with RoCE LAG: dranet issue #239


class Bonds:
    """What an operator shares on such a node."""

    def matches(self, attributes: Any) -> bool:
        return str(attributes.get("dra.net/ifName", "")).startswith("bond")


SHARED = Policy(shared=Bonds())


def test_roce_lag_a_bond_has_the_rdma_device_and_the_place_of_its_ports() -> None:
    offered = {
        d.device.name: d.device
        for d in take_inventory(read_layout("h20-roce-lag").facts, {}, SHARED)
        if d.published
    }
    bonds = {name: device for name, device in offered.items() if device.kind is DeviceKind.NIC}
    assert set(bonds) == {"bond0", "bond1", "bond2", "bond3"}
    for number, (root, numa) in enumerate(
        [("pci0000:7c", 0), ("pci0000:c4", 0), ("pci0001:05", 1), ("pci0001:9f", 1)]
    ):
        device = bonds[f"bond{number}"]
        assert (device.shared, device.rdma_device) == (True, f"mlx5_bond_{number}")
        assert (device.pcie_root, device.numa_node, device.pci_address) == (root, numa, "")
        assert device.attributes["resource.kubernetes.io/pcieRoot"] == root
        assert device.attributes["dra.net/numaNode"] == numa
        assert device.attributes["dra.net/rdma"] is True
        gpu = next(d for d in offered.values() if d.kind is DeviceKind.GPU and d.pcie_root == root)
        assert device.attributes["dra.net/nearestGpus"] == gpu.pci_address
        assert [node.path for node in device.char_devices] == [
            f"/dev/infiniband/uverbs{number}",
            "/dev/infiniband/rdma_cm",
        ]


def test_roce_lag_a_bond_is_not_offered_to_move_and_its_ports_never_are(node: Callable[[str], Node]) -> None:
    for number in range(4):
        assert "shared_devices may offer it" in node("h20-roce-lag").link(f"bond{number}").reason
    assert {d.device.kind for d in node("h20-roce-lag").decisions.values() if d.published} == {DeviceKind.GPU}


def test_roce_lag_a_bond_that_is_the_uplink_is_never_offered() -> None:
    facts = read_layout("h20-roce-lag").facts
    bond = next(link for link in facts.links if link.ifname == "bond1")
    facts = replace(facts, default_routes=(replace(facts.default_routes[0], ifindex=bond.ifindex),))
    decisions = {d.device.name: d for d in take_inventory(facts, {}, SHARED)}
    assert {name for name in decisions if decisions[name].published} >= {"bond0", "bond2", "bond3"}
    assert decisions["bond1"].reason == "is the node's uplink: bond1 carries a default route"
    assert decisions["pci-0000-c7-00-0"].reason == "is tied to bond1, the node's uplink"


def test_roce_lag_a_bond_of_ports_that_keep_their_own_rdma_devices_is_none() -> None:
    """Of an ordinary bond each port's GID table names the bond as well."""
    facts = read_layout("h20-roce-lag").facts
    devices = tuple(
        replace(device, name=f"mlx5_{2 * number + port}", pci_address=f"{device.pci_address[:-1]}{port}")
        for number, device in enumerate(facts.rdma_devices)
        for port in range(2)
    )
    decisions = take_inventory(replace(facts, rdma_devices=devices), {}, SHARED)
    bonds = [d for d in decisions if d.device.ifname.startswith("bond")]
    assert {d.reason for d in bonds} == {"is part of the node's own network: of kind bond"}
    assert {d.device.rdma_device for d in decisions if d.device.ifname == "reth1"} == {"mlx5_1"}


def test_roce_lag_a_place_that_the_ports_do_not_share_is_not_told() -> None:
    facts = read_layout("h20-roce-lag").facts
    functions = tuple(
        replace(f, root="pci0000:99", numa_node=1) if f.address == "0000:7f:00.1" else f
        for f in facts.pci_functions
    )
    decisions = take_inventory(replace(facts, pci_functions=functions), {}, SHARED)
    bond = next(d.device for d in decisions if d.device.ifname == "bond0")
    assert (bond.rdma_device, bond.pcie_root, bond.pci_path, bond.numa_node) == ("mlx5_bond_0", "", (), None)
    assert "resource.kubernetes.io/pcieRoot" not in bond.attributes
    assert "dra.net/numaNode" not in bond.attributes
