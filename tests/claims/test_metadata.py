"""The documents of KEP-5304 as they are built, judged by a reader that was written from the KEP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.claims.report import (
    API_VERSIONS,
    CONTAINER_FOLDER,
    RDMA_GIDS,
    DeviceFacts,
    MetadataError,
    build_document,
    decode_stream,
    encode_stream,
    mount_file,
    plan_metadata,
    pod_attributes,
    pod_rdma_device,
    select_gids,
)
from dranet.model.claim import AllocationResult, Claim, ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import (
    AttachPlan,
    CreateLink,
    MoveRdma,
    PreparedClaim,
    PreparedDevice,
    RdmaAccess,
    RequestMetadata,
)
from dranet.model.status import AttachedLink
from tests.support import metadata_reader

REF = ClaimRef("team-a", "train-0-nics-x7k2p", "0b51c6a2-7d3f-4c19-9e5c-000000000001")
UVERBS = RdmaAccess((CharDevice("/dev/infiniband/uverbs0", 231, 192),))
LINK = AttachedLink(
    "nic-0", "net1", "02:00:00:00:00:01", 9000, ("10.9.0.1/24", "2001:db8::1/64", "10.9.0.1/24")
)


def prepared(name: str = "nic-0", request: str = "nic", **fields: Any) -> PreparedDevice:
    device = Device(name, DeviceKind.NIC, attributes={"dra.net/ifName": "eth1"}, rdma_device="mlx5_0")
    return PreparedDevice(request=request, pool="node", device=device, **fields)


def a_record(*devices: PreparedDevice) -> PreparedClaim:
    return PreparedClaim(REF, PodRef("team-a", "train-0", "pod-uid"), devices, boot_id="boot")


def a_claim(*results: AllocationResult, pod_claim_name: str = "") -> Claim:
    annotations = {"resource.kubernetes.io/pod-claim-name": pod_claim_name} if pod_claim_name else {}
    return Claim(REF, allocated=True, results=results, annotations=annotations)


def a_result(request: str = "nic", device: str = "nic-0", driver: str = "dra.net") -> AllocationResult:
    return AllocationResult(request, driver, "node", device)


def plan(claim: Claim, *devices: PreparedDevice) -> PreparedClaim:
    return plan_metadata(claim, a_record(*devices), "dra.net", lambda request: f"file-of-{request}")


def build(record: PreparedClaim, request: str = "nic", link: AttachedLink | None = None) -> Any:
    (wanted,) = (wanted for wanted in record.metadata if wanted.request == request)
    return build_document(
        record, wanted, "dra.net", lambda device: DeviceFacts(device.device.attributes, link)
    )


# --- where a container finds it -------------------------------------------------------------------------


def test_a_claim_that_is_named_directly_is_found_under_its_own_name() -> None:
    record = plan(a_claim(a_result()), prepared())
    mount = mount_file(record, record.metadata[0], "/host/folder", "dra.net")
    assert mount.destination == f"{CONTAINER_FOLDER}/resourceclaims/{REF.name}/nic"
    assert mount.source == "/host/folder"
    assert "ro" in mount.options
    assert "podClaimName" not in build(record)


def test_a_claim_made_from_a_template_is_found_under_the_name_that_its_pod_gave_it() -> None:
    record = plan(a_claim(a_result(), pod_claim_name="rails"), prepared())
    mount = mount_file(record, record.metadata[0], "/host/folder", "dra.net")
    assert mount.destination == f"{CONTAINER_FOLDER}/resourceclaimtemplates/rails/nic"
    assert build(record)["podClaimName"] == "rails"


@pytest.mark.parametrize("name", ["../../../../etc", "a/b", "UPPER", ".", "-x", "x" * 64, "a\n"])
def test_an_annotation_that_is_no_name_never_becomes_a_path(name: str) -> None:
    record = plan(a_claim(a_result(), pod_claim_name=name), prepared())
    assert record.pod_claim_name == ""
    assert mount_file(record, record.metadata[0], "/f", "dra.net").destination.startswith(
        f"{CONTAINER_FOLDER}/resourceclaims/{REF.name}/"
    )


def test_where_another_driver_has_devices_of_the_request_the_file_is_mounted_alone() -> None:
    """The other one's file belongs into the same folder: ours must not cover it, nor be a read-only folder in
    which the runtime cannot make the place for it."""
    results = (a_result(), a_result(device="x", driver="other.example"), a_result("alone", "nic-1"))
    record = plan(a_claim(*results), prepared(), prepared("nic-1", "alone"))
    assert [(wanted.request, wanted.whole_folder) for wanted in record.metadata] == [
        ("nic", False),
        ("alone", True),
    ]
    mount = mount_file(record, record.metadata[0], "/host/folder", "dra.net")
    assert mount.source == "/host/folder/dra.net-metadata.json"
    assert mount.destination.endswith("/nic/dra.net-metadata.json")


def test_the_first_device_of_each_request_brings_its_file_once() -> None:
    results = (a_result(), a_result(device="nic-1"), a_result("other", "nic-2"))
    devices = (
        prepared(cdi_ids=("own-0",)),
        prepared("nic-1", cdi_ids=("own-1",)),
        prepared("nic-2", "other", cdi_ids=("own-2",)),
    )
    record = plan(a_claim(*results), *devices)
    assert [device.cdi_ids for device in record.devices] == [
        ("own-0", "file-of-nic"),
        ("own-1",),
        ("own-2", "file-of-other"),
    ]


def test_without_files_the_record_still_knows_the_names() -> None:
    claim = a_claim(a_result("nic/fast"), pod_claim_name="rails")
    record = plan_metadata(claim, a_record(prepared()), "dra.net", None)
    assert (record.metadata, record.devices[0].cdi_ids) == ((), ())
    assert (record.pod_claim_name, record.devices[0].alternative) == ("rails", "fast")


# --- what it says ---------------------------------------------------------------------------------------


def test_each_request_has_a_document_with_its_own_devices() -> None:
    results = (a_result(), a_result(device="nic-1"), a_result("other", "nic-2"))
    record = plan(a_claim(*results), prepared(), prepared("nic-1"), prepared("nic-2", "other"))
    (request,) = build(record)["requests"]
    assert (request["name"], [device["name"] for device in request["devices"]]) == (
        "nic",
        ["nic-0", "nic-1"],
    )
    (other,) = build(record, "other")["requests"]
    assert [device["name"] for device in other["devices"]] == ["nic-2"]


def test_the_alternative_that_won_is_in_the_document_and_not_in_the_path() -> None:
    record = plan(a_claim(a_result("nic/fast")), prepared())
    assert build(record)["requests"][0]["name"] == "nic/fast"
    assert mount_file(record, record.metadata[0], "/f", "dra.net").destination.endswith("/nic")


def test_network_data_is_left_out_until_the_pod_has_the_link() -> None:
    record = plan(a_claim(a_result()), prepared())
    (device,) = build(record)["requests"][0]["devices"]
    assert device == {
        "driver": "dra.net",
        "pool": "node",
        "name": "nic-0",
        "attributes": {"dra.net/ifName": {"string": "eth1"}},
    }


def test_network_data_has_the_name_in_the_pod_the_addresses_once_and_the_hardware_address() -> None:
    record = plan(a_claim(a_result()), prepared())
    (device,) = build(record, link=LINK)["requests"][0]["devices"]
    assert device["networkData"] == {
        "interfaceName": "net1",
        "ips": ["10.9.0.1/24", "2001:db8::1/64"],
        "hardwareAddress": "02:00:00:00:00:01",
    }


def test_at_most_as_many_addresses_as_the_api_takes() -> None:
    record = plan(a_claim(a_result()), prepared())
    many = AttachedLink("nic-0", "net1", "02:00:00:00:00:01", 1500, tuple(f"10.0.0.{n}/8" for n in range(20)))
    metadata_reader.decode(encode_stream(build(record, link=many), 1))


def test_every_kind_of_value_is_written_as_in_a_resource_slice() -> None:
    device = Device(
        "nic-0",
        DeviceKind.NIC,
        attributes={"a": "text", "b": 7, "c": True, "d": False, "resource.kubernetes.io/numaNode": (0, 1)},
    )
    record = plan(a_claim(a_result()), PreparedDevice("nic", "node", device))
    assert build(record)["requests"][0]["devices"][0]["attributes"] == {
        "a": {"string": "text"},
        "b": {"int": 7},
        "c": {"bool": True},
        "d": {"bool": False},
        "resource.kubernetes.io/numaNode": {"ints": [0, 1]},
    }


# --- RDMA -----------------------------------------------------------------------------------------------

GIDS = (
    "fe80:0000:0000:0000:0000:00ff:fe00:0001",
    "fe80:0000:0000:0000:0000:00ff:fe00:0001",
    "0000:0000:0000:0000:0000:ffff:0a09:0001",
    "2001:0db8:0000:0000:0000:0000:0000:0001",
    "0000:0000:0000:0000:0000:ffff:0a09:0002",
)


def test_a_device_that_is_the_pods_alone_has_all_its_gids_each_once() -> None:
    assert select_gids(prepared(plan=AttachPlan("nic-0")), LINK.addresses, GIDS) == (*GIDS[1:],)


def test_a_link_on_top_of_a_device_has_the_gids_of_its_own_addresses_only() -> None:
    """The others are of other pods' links on the same device."""
    step = CreateLink("net1", "macvlan", 3, "eth1", "02:00:00:00:00:01")
    on_top = prepared(plan=AttachPlan("nic-0", (step,)))
    assert select_gids(on_top, LINK.addresses, GIDS) == GIDS[2:4]


def test_there_are_at_most_sixteen_gids() -> None:
    many = [f"2001:0db8:0000:0000:0000:0000:0000:{n:04x}" for n in range(99)]
    assert len(select_gids(prepared(plan=AttachPlan("nic-0")), (), many)) == 16


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (prepared(plan=AttachPlan("nic-0"), rdma=UVERBS), "mlx5_0"),
        (prepared(plan=AttachPlan("nic-0", (MoveRdma("mlx5_0"),))), "mlx5_0"),
        (prepared(plan=AttachPlan("nic-0")), ""),
        (prepared(rdma=UVERBS, admin_access=True), ""),
    ],
)
def test_the_rdma_device_is_named_where_the_pod_can_use_it(device: PreparedDevice, name: str) -> None:
    assert pod_rdma_device(device) == name


def test_gids_are_a_list_beside_the_published_attributes() -> None:
    device = prepared(plan=AttachPlan("nic-0"), rdma=UVERBS)
    assert pod_attributes(device, GIDS[2:3]) == {RDMA_GIDS: GIDS[2:3], "dra.net/rdmaDevice": "mlx5_0"}
    document = build_document(
        plan(a_claim(a_result()), device),
        RequestMetadata("nic"),
        "dra.net",
        lambda _: DeviceFacts(pod_attributes(device, GIDS[2:3])),
    )
    entry = document["requests"][0]["devices"][0]["attributes"]
    assert entry[RDMA_GIDS] == {"strings": ["0000:0000:0000:0000:0000:ffff:0a09:0001"]}


# --- the stream -----------------------------------------------------------------------------------------


def a_stream(generation: int = 1) -> bytes:
    return encode_stream(build(plan(a_claim(a_result()), prepared()), link=LINK), generation)


def test_the_stream_says_the_same_in_each_version_newest_first() -> None:
    newest, oldest = metadata_reader.iter_stream(a_stream())
    assert (newest.pop("apiVersion"), oldest.pop("apiVersion")) == API_VERSIONS
    assert newest == oldest
    assert (newest["kind"], newest["metadata"]["generation"]) == ("DeviceMetadata", 1)


@pytest.mark.parametrize("known", [API_VERSIONS[:1], API_VERSIONS[1:], API_VERSIONS])
def test_a_reader_of_either_release_finds_its_version(known: tuple[str, ...]) -> None:
    item = metadata_reader.decode(a_stream(), known)
    assert item["apiVersion"] == known[0]
    assert item["metadata"]["uid"] == REF.uid


def test_the_generation_is_read_back_and_the_document_is_the_same() -> None:
    document, generation = decode_stream(a_stream(41))
    assert generation == 41
    assert encode_stream(document, 41) == a_stream(41)


UNKNOWN = b'{"apiVersion":"metadata.resource.k8s.io/v99","kind":"DeviceMetadata","metadata":{"name":"x"}}\n'


def test_a_file_of_a_later_driver_is_read_past_the_version_that_we_do_not_know() -> None:
    assert decode_stream(UNKNOWN + a_stream(3))[1] == 3
    assert metadata_reader.decode(UNKNOWN + a_stream(3))["metadata"]["generation"] == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        UNKNOWN,
        a_stream()[:-40] + b"garbage",
        a_stream()[:100],
        b"[]",
        b"\xff\xfe",
        b'{"apiVersion":"metadata.resource.k8s.io/v1beta1","kind":"DeviceMetadata"}',
        b'{"apiVersion":"metadata.resource.k8s.io/v1beta1","kind":"DeviceMetadata","metadata":{"generation":"1"}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_told_from_a_good_one(content: bytes) -> None:
    with pytest.raises(MetadataError):
        decode_stream(content)


@given(st.binary(max_size=300))
def test_whatever_is_in_a_file_it_is_read_or_refused(content: bytes) -> None:
    try:
        decode_stream(content)
    except MetadataError:
        return
    json.loads(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda item: item.update(surprise=1),
        lambda item: item["metadata"].update(generation=0),
        lambda item: item["requests"][0].update(name="a/b/c"),
        lambda item: item["requests"][0]["devices"][0]["networkData"].update(ips=["10.0.0.1"]),
        lambda item: item["requests"][0]["devices"][0]["attributes"].update({"x": {"int": True}}),
        lambda item: item["requests"][0]["devices"][0]["attributes"].update({"x": {"int": 1, "bool": True}}),
        lambda item: item["requests"][0]["devices"][0]["attributes"].update({"x": {"string": "y" * 65}}),
        lambda item: item.pop("kind"),
    ],
)
def test_the_reader_that_judges_these_files_is_strict(spoil: Any) -> None:
    """A test of the judge, so that the others mean something."""
    item = metadata_reader.decode(a_stream())
    spoil(item)
    with pytest.raises(metadata_reader.BadMetadata):
        metadata_reader.decode(json.dumps(item).encode())
