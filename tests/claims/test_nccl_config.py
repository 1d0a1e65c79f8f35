"""nccl.conf: the pod's devices in the order of its GPUs, and nothing that the container has set itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.claims.report import as_gid
from dranet.claims.workload import ConfigInput, PodNic, choose_gid_index, list_nics, render_config
from dranet.model.claim import AUTO, ClaimRef, GidSlot, NcclSettings, PodRef, WorkloadSettings
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address, CharDevice, Distance
from dranet.model.plan import AddAddress, AttachPlan, PreparedClaim, PreparedDevice, RdmaAccess
from tests.data.layouts import take_layout

UVERBS = CharDevice("/dev/infiniband/uverbs0", 231, 192)
FILE = NcclSettings(config_file=True)
H100 = {decision.device.name: decision.device for decision in take_layout("dgx-h100")}
GPUS = [device for device in H100.values() if device.kind is DeviceKind.GPU]
RAILS = [device for device in H100.values() if device.rdma_device and device.numa_node == 0]


def nic(name: str, *addresses: str, ifname: str = "") -> PodNic:
    device = Device(f"dev-{name}", DeviceKind.NIC, pci_address="0000:18:00.0", rdma_device=name)
    return PodNic(device, ifname or f"net-{name}", name, addresses=addresses)


def read(text: str, *, knows_comments: bool = True) -> dict[str, str]:
    """As NCCL does: the first of a name counts. Releases before 2.26 know no comments."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and not (knows_comments and line.startswith("#")):
            found.setdefault(name[:1023], value[:1023])
    return found


def render(nics: Sequence[PodNic], settings: NcclSettings = FILE, **more: object) -> str:
    return render_config(replace(ConfigInput("train/pod", "main", nics, settings), **more))


# --- which devices, in which order ----------------------------------------------------------------------


def a_record(devices: Sequence[Device]) -> PreparedClaim:
    prepared = tuple(
        PreparedDevice(
            "nic",
            "node",
            device,
            plan=AttachPlan(device.name, (AddAddress(Address(f"10.0.{i}.1/24")),), f"net{i}"),
            rdma=RdmaAccess((UVERBS,)),
        )
        for i, device in enumerate(devices)
    )
    return PreparedClaim(ClaimRef("train", "c", "uid"), PodRef("train", "pod", "pod"), prepared, "boot")


@settings(deadline=None, max_examples=60)
@given(st.permutations(range(4)), st.lists(st.sampled_from(range(8)), unique=True, max_size=4))
def test_the_nic_of_the_first_gpu_comes_first(order: Sequence[int], chosen: Sequence[int]) -> None:
    gpus = sorted((GPUS[i] for i in chosen), key=lambda gpu: gpu.pci_address)
    listed = list_nics([a_record([RAILS[i] for i in order])], gpus, {})
    assert {one.rdma_device for one in listed} == {device.rdma_device for device in RAILS[:4]}
    places = [gpus.index(one.gpu) for one in listed if one.gpu is not None]
    assert places == sorted(places)
    assert len(places) == (4 if gpus else 0)
    turned = list_nics([a_record([RAILS[i] for i in reversed(order)])], gpus, {})
    assert [one.rdma_device for one in turned] == [one.rdma_device for one in listed], (
        "whatever the claim's order"
    )


def test_a_device_watched_with_admin_access_is_not_the_pods() -> None:
    record = a_record(RAILS[:1])
    watched = replace(record.devices[0], admin_access=True, plan=None)
    assert list_nics([replace(record, devices=(watched,))], (), {}) == ()


def test_the_list_has_exactly_the_pods_rdma_devices() -> None:
    nics = [nic("mlx5_3"), nic("mlx5_0"), PodNic(Device("tcp", DeviceKind.NIC), "net9")]
    assert read(render(nics)) == {"NCCL_IB_HCA": "=mlx5_3,mlx5_0"}
    text = render([PodNic(Device("tcp", DeviceKind.NIC), "net9")])
    assert read(text) == {}
    assert "No RDMA device is for NCCL" in text


def test_a_device_that_is_not_for_nccl_takes_no_gpu_from_one_that_is() -> None:
    storage, rail = RAILS[:2]
    record = a_record([storage, rail])
    asks = WorkloadSettings(FILE)
    devices = (record.devices[0], replace(record.devices[1], workload=asks))
    records = [replace(record, devices=devices)]
    near_storage = next(gpu for gpu in GPUS if gpu.pcie_root == storage.pcie_root)
    (only,) = list_nics(records, [near_storage], {}, lambda settings: settings.nccl.config_file)
    assert (only.rdma_device, only.gpu) == (rail.rdma_device, near_storage)


def test_each_device_is_described_with_its_gpu() -> None:
    gpu = Device("gpu", DeviceKind.GPU, pci_address="0000:1b:00.0")
    near = replace(nic("mlx5_0", ifname="net1"), gpu=gpu, distance=Distance.PIX)
    lost = replace(nic("mlx5_1", ifname="net2"), gpu=gpu)
    text = render([near, lost])
    assert "#   mlx5_0 (net1) at 0000:18:00.0, PIX from the GPU at 0000:1b:00.0\n" in text
    assert "mlx5_1 (net2) at 0000:18:00.0, unknown distance from the GPU" in text


# --- what the container has set itself ------------------------------------------------------------------

EVERYTHING = NcclSettings(True, True, gid_index=3, cross_nic=1, socket_interface="eth0")
ALL_NAMES = (
    "NCCL_TOPO_FILE",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_CROSS_NIC",
    "NCCL_SOCKET_IFNAME",
)


@given(st.sets(st.sampled_from((*ALL_NAMES, "PATH"))))
def test_what_the_environment_has_is_not_in_the_file(names: set[str]) -> None:
    text = render([nic("mlx5_0")], EVERYTHING, topology_path="/x/topology.xml", environment=names)
    assert read(text).keys() == set(ALL_NAMES) - names
    for name in names - {"PATH"}:
        assert f"# {name} is set in the environment of the container, so not here." in text


def test_what_is_asked_for_is_written_as_it_is() -> None:
    text = render([nic("mlx5_0")], EVERYTHING, topology_path="/x/topology.xml")
    assert read(text) == {
        "NCCL_TOPO_FILE": "/x/topology.xml",
        "NCCL_IB_HCA": "=mlx5_0",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_CROSS_NIC": "1",
        "NCCL_SOCKET_IFNAME": "=eth0",
    }


def test_a_topology_that_could_not_be_written_is_not_named() -> None:
    text = render([nic("mlx5_0")], EVERYTHING, topology_problem="No topology file: too many devices.")
    assert "NCCL_TOPO_FILE" not in read(text)
    assert "too many devices" in text


# --- rails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("networks", "why_not"),
    [
        ((("10.0.0.1/24",), ("10.0.1.1/24",)), ""),
        ((("10.0.0.1/24", "fd00::1/64"), ("10.0.1.1/24", "fd01::1/64")), ""),
        ((("10.0.0.1/24",), ("10.0.0.2/24",)), "the devices share an IP network"),
        ((("10.0.0.1/24", "10.0.2.1/24"), ("10.0.1.1/24", "10.0.2.2/24")), "the devices share an IP network"),
        # a host address says nothing of the network
        ((("10.0.0.1/32",), ("10.0.1.1/32",)), "a device has no IP network"),
        ((("fe80::1/64",), ("fe80::2/64",)), "a device has no IP network"),
        ((("10.0.0.1/24",), ()), "a device has no IP network"),
        ((("10.0.0.1/24",),), "there is no second device"),
    ],
)
def test_rails_that_are_networks_of_their_own_are_not_crossed(
    networks: tuple[tuple[str, ...], ...], why_not: str
) -> None:
    nics = [nic(f"mlx5_{i}", *addresses) for i, addresses in enumerate(networks)]
    text = render(nics, NcclSettings(config_file=True, cross_nic=AUTO))
    assert read(text).get("NCCL_CROSS_NIC") == (None if why_not else "0")
    assert not why_not or f"# Left to NCCL (NCCL_CROSS_NIC): {why_not}." in text


# --- the interface of NCCL's own connections --------------------------------------------------------------


def test_the_interface_of_the_default_route_is_taken_unless_another_is_asked_for() -> None:
    assert read(render([nic("mlx5_0")], uplink="eth0"))["NCCL_SOCKET_IFNAME"] == "=eth0"
    asked = NcclSettings(config_file=True, socket_interface="eth7")
    assert read(render([nic("mlx5_0")], asked, uplink="eth0"))["NCCL_SOCKET_IFNAME"] == "=eth7"


@pytest.mark.parametrize("uplink", ["", "eth0,lo"])
def test_without_a_default_route_nccl_chooses_by_itself(uplink: str) -> None:
    text = render([nic("mlx5_0")], uplink=uplink)
    assert "NCCL_SOCKET_IFNAME" not in read(text)
    assert "# Left to NCCL (NCCL_SOCKET_IFNAME): no default route of the pod is known." in text


def test_data_that_goes_over_sockets_is_not_kept_to_the_clusters_network() -> None:
    text = render([PodNic(Device("tcp", DeviceKind.NIC), "net9")], uplink="eth0")
    assert read(text) == {}
    assert "# Left to NCCL (NCCL_SOCKET_IFNAME): without RDMA its data also takes it." in text


# --- GIDs -----------------------------------------------------------------------------------------------


def table(*gids: tuple[int, str, str]) -> tuple[GidSlot, ...]:
    return tuple(GidSlot(1, index, as_gid(address), kind) for index, address, kind in gids)


V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK_LOCAL = ((0, "fe80::1/64", V1), (1, "fe80::1/64", V2))
FOUR = (*LINK_LOCAL, (2, "10.0.0.1/24", V1), (3, "10.0.0.1/24", V2))


def auto(nics: Sequence[PodNic], tables: dict[str, tuple[GidSlot, ...]]) -> str:
    return render(nics, NcclSettings(config_file=True, gid_index=AUTO), gids=choose_gid_index(nics, tables))


def test_the_roce_v2_gid_of_the_pods_address_is_found() -> None:
    text = auto([nic("mlx5_0", "10.0.0.1/24")], {"mlx5_0": table(*FOUR)})
    assert read(text)["NCCL_IB_GID_INDEX"] == "3"


def test_an_ipv4_address_comes_before_an_ipv6_one() -> None:
    both = table((0, "fd00::1/64", V2), *((index + 1, a, kind) for index, a, kind in FOUR))
    text = auto([nic("mlx5_0", "fd00::1/64", "10.0.0.1/24")], {"mlx5_0": both})
    assert read(text)["NCCL_IB_GID_INDEX"] == "4"
    text = auto([nic("mlx5_0", "fd00::1/64")], {"mlx5_0": both})
    assert read(text)["NCCL_IB_GID_INDEX"] == "0"


def test_no_index_is_written_that_is_wrong_for_one_of_the_devices() -> None:
    nics = [nic("mlx5_0", "10.0.0.1/24"), nic("mlx5_1", "10.0.1.1/24")]
    text = auto(nics, {"mlx5_0": table(*FOUR), "mlx5_1": table((5, "10.0.1.1/24", V2))})
    assert "NCCL_IB_GID_INDEX" not in read(text)
    assert "at different places: mlx5_0 3, mlx5_1 5" in text
    text = auto(nics, {"mlx5_0": table(*FOUR)})
    assert "NCCL_IB_GID_INDEX" not in read(text)
    assert "no RoCE v2 GID of the pod's address on mlx5_1" in text


def test_another_pods_gid_on_a_shared_device_is_not_taken() -> None:
    shared = table(*FOUR, (4, "10.0.0.9/24", V2))
    assert read(auto([nic("mlx5_0", "10.0.0.9/24")], {"mlx5_0": shared}))["NCCL_IB_GID_INDEX"] == "4"


# --- what NCCL reads, whatever the names ----------------------------------------------------------------

hostile = st.text(st.characters(codec="utf-8") | st.sampled_from("=#,:\n\r\"' "), max_size=80) | st.just(
    "x" * 5000
)


@settings(deadline=None, max_examples=200)
@given(hostile, hostile, st.lists(st.tuples(hostile, hostile), max_size=3))
def test_no_name_adds_a_setting_or_ends_a_list(
    pod: str, container: str, names: list[tuple[str, str]]
) -> None:
    nics = [replace(nic(rdma or "mlx5_0"), ifname=ifname) for rdma, ifname in names]
    given_ = ConfigInput(
        pod, container, nics, replace(EVERYTHING, gid_index=AUTO), choose_gid_index(nics, {})
    )
    text = render_config(replace(given_, topology_path="/x/topology.xml"))
    settings_ = read(text)
    assert settings_ == read(text, knows_comments=False), "a release that knows no comments reads the same"
    assert settings_.keys() <= set(ALL_NAMES)
    assert all(line[0] == "#" or line.split("=")[0] in ALL_NAMES for line in text.splitlines() if line)
    assert max(map(len, text.splitlines())) < 4096
    listed = settings_.get("NCCL_IB_HCA", "=").removeprefix("=")
    assert set(filter(None, listed.split(","))) in (set(), {one.rdma_device for one in nics})


def test_a_list_that_nccl_would_cut_is_left_out() -> None:
    text = render([nic(f"mlx5_{i:050}") for i in range(40)])
    assert "NCCL_IB_HCA" not in read(text)
    assert "# Left out: NCCL_IB_HCA would be longer than" in text
