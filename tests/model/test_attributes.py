"""The catalogue keeps the API's limits, and its page is fresh."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dranet
from dranet.model import attributes as a
from dranet.model.attributes import Stability
from dranet.model.device import AttributeValue

PAGE = Path(dranet.__file__).parent.parent / "docs" / "reference" / "attributes.md"

DRANET_TYPES = {
    "dra.net/ifName": "string",
    "dra.net/mac": "string",
    "dra.net/mtu": "int",
    "dra.net/encapsulation": "string",
    "dra.net/alias": "string",
    "dra.net/state": "string",
    "dra.net/type": "string",
    "dra.net/ipv4": "string",
    "dra.net/ipv6": "string",
    "dra.net/tcFilterNames": "string",
    "dra.net/tcxProgramNames": "string",
    "dra.net/ebpf": "bool",
    "dra.net/sriov": "bool",
    "dra.net/sriovVfs": "int",
    "dra.net/isSriovVf": "bool",
    "dra.net/virtual": "bool",
    "dra.net/rdma": "bool",
    "dra.net/rdmaDevice": "string",
    "dra.net/pciAddress": "string",
    "dra.net/pciVendor": "string",
    "dra.net/pciDevice": "string",
    "dra.net/pciSubsystem": "string",
    "dra.net/numaNode": "int",
    "alibaba.dra.net/erdma": "bool",
}

STANDARD_TYPES = {
    "resource.kubernetes.io/numaNode": "int",
    "resource.kubernetes.io/pcieRoot": "string",
    "resource.kubernetes.io/pciBusID": "string",
}


@pytest.mark.parametrize(
    ("stability", "types"), [(Stability.DRANET, DRANET_TYPES), (Stability.STANDARD, STANDARD_TYPES)]
)
def test_names_and_types_are_those_of_dranet_and_of_kubernetes(
    stability: Stability, types: dict[str, str]
) -> None:
    found = {entry.qualified: str(entry.type) for entry in a.CATALOGUE if entry.stability is stability}

    assert found == types


def test_names_that_were_published_before_stay() -> None:
    before = {"rdmaLinkLayer", "rdmaPortState", "rdmaRateGbps", "pciVendorId", "pciDeviceId"}
    before |= {"gpuVendor", "gpuModel", "gpuUUID"}

    assert before <= {entry.name for entry in a.CATALOGUE if entry.stability is Stability.KEPT}


def test_every_name_is_valid_and_declared_once() -> None:
    declared = {value.qualified for value in vars(a).values() if isinstance(value, a.Attribute)}

    assert len(a.PLACES) == len(a.CATALOGUE)
    assert a.PLACES.keys() == declared
    assert all(a.is_attribute_name(entry.name) for entry in a.CATALOGUE)
    assert all(a.is_qualified_name(entry.qualified) for entry in a.CATALOGUE)
    assert a.RDMA.selector == 'device.attributes["dra.net"].rdma'


def test_what_selectors_need_comes_first_then_dranets_then_alignment_then_what_comes_and_goes() -> None:
    essential = {"rdma", "virtual", "type", "ifName", "pcieRoot", "pciBusID", "numaNode"}
    order = [entry.name for entry in a.CATALOGUE]
    dranet = {entry.name for entry in a.CATALOGUE if entry.stability is Stability.DRANET}

    assert {entry.name for entry in a.CATALOGUE if entry.essential} == set(order[:7]) == essential
    assert set(order[7:23]) < dranet
    assert order[23:26] == ["nearestGpus", "nearestGpuDistance", "pcieSwitch"]
    assert order[26:28] == ["sriovPfAddress", "sriovVfIndex"]
    assert order[28:32] == ["rdmaLinkLayer", "rdmaPortState", "rdmaRateGbps", "linkSpeedMbps"]
    assert order[32:36] == ["rail", "switchName", "switchChassisId", "switchPortId"]
    assert order[36:39] == ["numaNodeGpus", "moreNearestGpus", "moreNumaNodeGpus"]
    assert order[39:43] == ["ipv4", "ipv6", "tcFilterNames", "tcxProgramNames"]
    assert dranet.isdisjoint(order[43:])
    assert {f"resource.kubernetes.io/{name}" for name in ("numaNode", "pcieRoot")} == a.LIST_FORMS


def test_everything_of_dranet_and_five_of_the_operators_are_as_many_as_the_api_takes() -> None:
    assert len(DRANET_TYPES) + len(STANDARD_TYPES) + 5 == a.MAX_ATTRIBUTES_PER_DEVICE


@settings(deadline=None)
@given(text=st.text(max_size=200))
def test_text_is_cut_at_64_bytes_between_characters(text: str) -> None:
    cut = a.cut_text(text)

    assert cut is not None
    assert len(cut.encode()) <= 64
    assert text.startswith(cut)
    assert cut == text or len(cut.encode()) > 60


@pytest.mark.parametrize(
    ("attribute", "value", "kept"),
    [
        (a.PCI_DEVICE, "x" * 63 + "ü", "x" * 63),
        (a.PCI_DEVICE, "x" * 70, "x" * 64),
        (a.PCI_DEVICE, "x" * 62 + "üü", "x" * 62 + "ü"),
        (a.ALIAS, "a\x00\n\x1b[31m", "a\x00\n\x1b[31m"),  # control characters are no offence to the API
        (a.MTU, -(2**63), -(2**63)),
        (a.RDMA, False, False),
        (a.STANDARD_NUMA_NODE, (1, 0), (1, 0)),
    ],
)
def test_values_are_kept_within_the_limits(
    attribute: a.Attribute, value: AttributeValue, kept: AttributeValue
) -> None:
    assert a.fit_values({attribute: value}) == a.FittedValues({attribute.qualified: kept}, {})


@pytest.mark.parametrize(
    ("attribute", "value", "fault"),
    [
        (a.ALIAS, "bad\udcff", "is no text (bytes that are not UTF-8)"),
        (a.ALIAS, "\ud800", "is no text (bytes that are not UTF-8)"),
        (a.MTU, 2**63, "does not fit into 64 bits"),
        (a.STANDARD_NUMA_NODE, (), "is an empty list"),
        (a.STANDARD_NUMA_NODE, (0, 2**63), "does not fit into 64 bits"),
    ],
)
def test_what_cannot_be_mended_is_left_out_with_the_reason(
    attribute: a.Attribute, value: AttributeValue, fault: str
) -> None:
    assert a.fit_values({attribute: value, a.MAC: ""}) == a.FittedValues(
        {"dra.net/mac": ""}, {attribute.qualified: fault}
    )


def test_none_is_no_value_and_zero_is_one() -> None:
    assert a.fit_values({a.NUMA_NODE: None, a.SRIOV_VFS: 0}).kept == {"dra.net/sriovVfs": 0}


def test_names_come_out_sorted() -> None:
    assert list(a.fit_values({a.TYPE: "x", a.STANDARD_PCIE_ROOT: "y", a.ALIAS: "z"}).kept) == [
        "dra.net/alias",
        "dra.net/type",
        "resource.kubernetes.io/pcieRoot",
    ]


@pytest.mark.parametrize(
    ("attribute", "value"), [(a.MTU, True), (a.RDMA, 1), (a.MAC, 5), (a.NUMA_NODE, (0, 1)), (a.MAC, ())]
)
def test_a_value_of_another_type_is_our_bug(attribute: a.Attribute, value: AttributeValue) -> None:
    with pytest.raises(TypeError, match=attribute.name):
        a.fit_values({attribute: value})


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        ([], None),
        (["a", "b"], "a,b"),
        (["x" * 31, "y" * 32], "x" * 31 + "," + "y" * 32),
        (["x" * 31, "y" * 33], "x" * 31),
        (["x" * 31, "ü" * 17], "x" * 31),
        (["x" * 65], None),
        (["a\udcff", "b"], "b"),
    ],
)
def test_texts_are_joined_as_many_as_fit_whole(texts: list[str], joined: str | None) -> None:
    assert a.join_whole(texts) == joined


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("dra.net/rail", True),
        ("a-1.b/_x", True),
        ("a" * 63 + "/" + "b" * 32, True),
        ("a" * 64 + "/b", False),
        ("a/" + "b" * 33, False),
        ("dra.net/9x", False),
        ("dra.net/a-b", False),
        ("Dra.net/x", False),
        ("/x", False),
        ("rail", False),
        ("a..b/x", False),
        ("a/b/c", False),
        ("dra.net/rail\n", False),
    ],
)
def test_a_qualified_name_is_a_dns_subdomain_and_a_c_identifier(name: str, is_valid: bool) -> None:
    assert a.is_qualified_name(name) is is_valid
