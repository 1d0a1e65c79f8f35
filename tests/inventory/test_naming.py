"""Device names: DraNet's rules, always valid, never clashing across kinds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dranet.inventory.slices import (
    gpu_device_name,
    is_device_name,
    link_device_name,
    pci_device_name,
    rdma_device_name,
)


def test_a_pci_address_becomes_a_name_that_survives_renames() -> None:
    assert pci_device_name("0000:1A:00.0") == "pci-0000-1a-00-0"
    assert gpu_device_name("0000:1a:00.0") == "gpu-0000-1a-00-0"


@pytest.mark.parametrize("ifname", ["eth1", "enp3s0f0np0", "0", "a-b"])
def test_an_interface_name_that_is_a_dns_label_stays(ifname: str) -> None:
    assert link_device_name(ifname) == ifname


@pytest.mark.parametrize(
    ("ifname", "name"),
    [
        ("eth_0", "net-mv2gqxzq"),
        ("eth1.100", "net-mv2gqmjogeyda"),
        ("Eth1", "net-iv2gqmi"),
        ("-a", "net-fvqq"),
    ],
)
def test_any_other_interface_name_goes_through_base32(ifname: str, name: str) -> None:
    assert link_device_name(ifname) == name


def test_bytes_that_are_not_utf8_make_a_name_too() -> None:
    assert link_device_name(b"eth\xff".decode(errors="surrogateescape")) == "net-mv2gr7y"


def test_no_interface_name_is_long_enough_to_look_like_a_pci_name() -> None:
    assert len(pci_device_name("0000:1a:00.0")) > 15


def test_an_rdma_device_without_anything_else_is_named_by_itself() -> None:
    assert rdma_device_name("rxe0") == "rdma-rxe0"
    assert rdma_device_name("mlx5_0").startswith("rdma-")
    assert "_" not in rdma_device_name("mlx5_0")
    assert len(rdma_device_name("m_" * 32)) <= 63


def test_two_long_rdma_names_that_begin_alike_stay_two_devices() -> None:
    names = {rdma_device_name("m_" * 30 + end) for end in ("_a", "_b")}

    assert len(names) == 2
    assert all(is_device_name(name) and len(name) == 63 for name in names)


@settings(deadline=None)
@given(st.text(st.characters(), min_size=1, max_size=80))
def test_every_interface_and_rdma_name_makes_a_device_name(text: str) -> None:
    assert is_device_name(link_device_name(text))
    assert is_device_name(rdma_device_name(text))


@pytest.mark.parametrize("name", ["", "-a", "a-", "a_b", "A", "a.b", "a" * 64, "a\n"])
def test_a_device_name_is_a_dns_label(name: str) -> None:
    assert not is_device_name(name)
    assert is_device_name("a" * 63)
