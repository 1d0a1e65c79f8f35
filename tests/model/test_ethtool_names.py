"""Names of offloads in claims: the kernel's, ethtool's own, and groups.

That ethtool means the same by them is tested against the program itself in ``tests/kernel``.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.claims.plan.link import resolve_features
from dranet.errors import ClaimError

NIC = (
    "rx-checksum",
    "tx-checksum-ip-generic",
    "tx-checksum-sctp",
    "tx-scatter-gather",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-generic-segmentation",
    "rx-gro",
    "rx-gro-hw",
    "rx-vlan-hw-parse",
    "rx-hashing",
)
"""What a device can change."""

TSO = ("tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation")


@pytest.mark.parametrize("name", NIC)
def test_the_kernels_own_name_stands_for_itself(name: str) -> None:
    assert resolve_features({name: True}, NIC) == ({name: True}, ())


@pytest.mark.parametrize(
    ("short", "long", "meant"),
    [
        ("rx", "rx-checksumming", ("rx-checksum",)),
        ("tx", "tx-checksumming", ("tx-checksum-ip-generic", "tx-checksum-sctp")),
        ("sg", "scatter-gather", ("tx-scatter-gather",)),
        ("tso", "tcp-segmentation-offload", TSO),
        ("gso", "generic-segmentation-offload", ("tx-generic-segmentation",)),
        ("gro", "generic-receive-offload", ("rx-gro",)),
        ("rxvlan", "rx-vlan-offload", ("rx-vlan-hw-parse",)),
        ("rxhash", "receive-hashing", ("rx-hashing",)),
    ],
)
def test_a_name_of_ethtool_stands_for_what_the_device_can_change_of_it(
    short: str, long: str, meant: tuple[str, ...]
) -> None:
    for name in (short, long):
        assert resolve_features({name: False}, NIC) == (dict.fromkeys(meant, False), ())


@pytest.mark.parametrize(
    "name", ["lro", "large-receive-offload", "ntuple", "txvlan", "ufo", "rx-fcs", "", "Tx"]
)
def test_what_the_device_cannot_change_is_unknown(name: str) -> None:
    assert resolve_features({name: True, "rx-gro": True}, NIC) == ({"rx-gro": True}, (name,))


FIXED = {"rx-lro": False, "tx-checksum-ipv4": True, "tx-checksum-fcoe-crc": False}


@pytest.mark.parametrize("name", ["lro", "large-receive-offload", "rx-lro"])
def test_what_cannot_be_changed_and_is_as_asked_is_no_lack(name: str) -> None:
    assert resolve_features({name: False}, NIC, FIXED) == ({"rx-lro": False}, ())
    assert resolve_features({name: True}, NIC, FIXED) == ({}, (name,))


def test_a_group_stands_for_what_is_fixed_only_where_nothing_of_it_can_be_changed() -> None:
    assert resolve_features({"tx": False}, NIC, FIXED) == (
        {"tx-checksum-ip-generic": False, "tx-checksum-sctp": False},
        (),
    )
    for value in (True, False):
        assert resolve_features({"tx": value}, (), FIXED) == ({}, ("tx",)), "one member is not so"


def test_a_member_counts_before_its_group() -> None:
    for asked in ({"tso": False, TSO[1]: True}, {TSO[1]: True, "tso": False}):
        wanted = {TSO[0]: False, TSO[1]: True, TSO[2]: False}
        assert resolve_features(asked, NIC) == (wanted, ())


def test_two_names_of_one_group_may_agree_but_not_differ() -> None:
    agreed = {"gro": True, "generic-receive-offload": True}
    assert resolve_features(agreed, NIC) == ({"rx-gro": True}, ())
    with pytest.raises(ClaimError, match=r"ethtool.features: gro and generic-receive-offload are the same"):
        resolve_features({"gro": True, "generic-receive-offload": False}, NIC)


@given(
    asked=st.dictionaries(
        st.sampled_from([*NIC, "tso", "tx", "lro", "x*", "[a-z]"]) | st.text(), st.booleans()
    ),
    changeable=st.sets(st.sampled_from(NIC)),
)
def test_everything_asked_is_either_resolved_or_unknown(asked: dict[str, bool], changeable: set[str]) -> None:
    resolved, unknown = resolve_features(asked, changeable)
    assert set(resolved) <= changeable
    assert set(unknown) <= set(asked)
    for name, value in asked.items():
        if name in changeable:
            assert resolved[name] is value
    if asked and not resolved:
        assert len(unknown) == len(asked)
