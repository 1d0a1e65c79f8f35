"""The catalogue keeps the API's limits, and its page is fresh."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dranet
from dranet.model import attributes as a

PAGE = Path(dranet.__file__).parent.parent / "docs" / "user" / "attributes.md"

DRANET_TYPES = {
    "ifName": "string",
    "mac": "string",
    "mtu": "int",
    "encapsulation": "string",
    "alias": "string",
    "state": "string",
    "type": "string",
    "ipv4": "string",
    "ipv6": "string",
    "sriov": "bool",
    "sriovVfs": "int",
    "isSriovVf": "bool",
    "virtual": "bool",
    "rdma": "bool",
    "rdmaDevice": "string",
    "pciAddress": "string",
    "numaNode": "int",
}


def test_names_and_types_are_those_of_dranet() -> None:
    ours = {entry.name: str(entry.type) for entry in a.CATALOGUE if entry.domain == "dra.net"}

    assert {name: ours.get(name) for name in DRANET_TYPES} == DRANET_TYPES


def test_every_name_is_valid_and_declared_once() -> None:
    names = [entry.qualified for entry in a.CATALOGUE]

    assert len(set(names)) == len(names)
    assert len(names) <= a.MAX_ATTRIBUTES_PER_DEVICE
    assert all(a.is_attribute_name(entry.name) for entry in a.CATALOGUE)


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == a.render_markdown(), "regenerate docs/user/attributes.md"


@given(text=st.text(max_size=200))
def test_text_is_cut_at_64_bytes_between_characters(text: str) -> None:
    cut = a.cut_text(text)

    assert cut is not None
    assert len(cut.encode()) <= 64
    assert text.startswith(cut)
    assert cut == text or len(cut.encode()) > 60


def test_what_is_not_text_is_left_out() -> None:
    assert a.attribute_map({a.ALIAS: "bad\udcff", a.MAC: ""}) == {"dra.net/mac": ""}


def test_integers_beyond_64_bits_and_none_are_left_out() -> None:
    assert a.attribute_map({a.MTU: 2**63, a.NUMA_NODE: None, a.SRIOV_VFS: 0}) == {"dra.net/sriovVfs": 0}


@pytest.mark.parametrize(("attribute", "value"), [(a.MTU, True), (a.RDMA, 1), (a.MAC, 5)])
def test_a_value_of_another_type_is_our_bug(attribute: a.Attribute, value: int | str) -> None:
    with pytest.raises(TypeError, match=attribute.name):
        a.attribute_map({attribute: value})
