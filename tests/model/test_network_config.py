"""NetworkConfig takes what the kernel can apply, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dranet.model.network import NOT_APPLIED, NetworkConfig, strip_version


def interface(**fields: Any) -> NetworkConfig:
    return NetworkConfig.model_validate({"interface": fields})


def route(**fields: Any) -> NetworkConfig:
    return NetworkConfig.model_validate({"routes": [fields]})


@pytest.mark.parametrize("name", ["eth1", "a", "net-1.100", "A_b", "x" * 15, ""])
def test_names_that_the_kernel_takes(name: str) -> None:
    assert interface(name=name).interface.name == name


@pytest.mark.parametrize(
    "name", ["x" * 16, ".", "..", "a/b", "a b", "ü", "lo", "all", "default", "eth%d", "a\n", 5]
)
def test_names_that_it_refuses(name: object) -> None:
    with pytest.raises(ValidationError):
        interface(name=name)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("02:00:00:00:00:01", "02:00:00:00:00:01"),
        ("02-AB-00-00-00-01", "02:ab:00:00:00:01"),
        ("0200.ab00.0001", "02:00:ab:00:00:01"),
        (":".join(["80"] + ["00"] * 18 + ["FE"]), ":".join(["80"] + ["00"] * 18 + ["fe"])),
    ],
)
def test_hardware_addresses_become_canonical(text: str, canonical: str) -> None:
    assert interface(hardwareAddr=text).interface.hardware_addr == canonical


@pytest.mark.parametrize(
    "text", ["", "02:00:00:00:00", "01:00:00:00:00:01", "00:00:00:00:00:00", "02:0:0:0:0:1", "x"]
)
def test_hardware_addresses_that_no_link_can_have_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="hardware address"):
        interface(hardwareAddr=text)


@pytest.mark.parametrize("mtu", [68, 1500, 65535])
def test_mtu_within_limits(mtu: int) -> None:
    assert interface(mtu=mtu).interface.mtu == mtu


@pytest.mark.parametrize("mtu", [67, 65536, True, "1500", 1500.5])
def test_mtu_beyond_limits_or_of_another_type(mtu: object) -> None:
    with pytest.raises(ValidationError):
        interface(mtu=mtu)


def test_ipv6_needs_an_mtu_of_1280() -> None:
    with pytest.raises(ValidationError, match="1280"):
        interface(mtu=1279, addresses=["fd00::1/64"])
    assert interface(mtu=1279, addresses=["10.0.0.1/24"]).interface.mtu == 1279


def test_addresses_are_kept_in_order_with_their_host_bits() -> None:
    addresses = interface(addresses=["10.0.0.5/24", "2001:DB8::5/64"]).interface.addresses

    assert addresses == ("10.0.0.5/24", "2001:db8::5/64")


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.5",
        "10.0.0.5/33",
        "10.0.0.5/255.255.255.0",
        "fe80::1%eth0/64",
        "224.0.0.1/4",
        "::/0",
        "127.0.0.1/8",
        "",
    ],
)
def test_addresses_that_an_interface_cannot_have(address: str) -> None:
    with pytest.raises(ValidationError):
        interface(addresses=[address])


def test_the_same_address_twice_is_refused_also_in_two_spellings() -> None:
    with pytest.raises(ValidationError, match="twice"):
        interface(addresses=["fd00::1/64", "FD00:0::1/64"])


def test_an_empty_list_of_addresses_is_not_the_same_as_none() -> None:
    assert interface(addresses=[]).interface.addresses == ()
    assert interface().interface.addresses is None


def test_route_destinations_lose_their_host_bits() -> None:
    assert route(destination="10.1.2.3/16", gateway="10.0.0.1").routes[0].destination == "10.1.0.0/16"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"gateway": "10.0.0.1"}, "Field required"),
        ({"destination": "10.1.0.0", "gateway": "10.0.0.1"}, "CIDR"),
        ({"destination": "10.1.0.0/16"}, "gateway is required"),
        ({"destination": "10.1.0.0/16", "gateway": "fd00::1"}, "IP version"),
        ({"destination": "fd01::/64", "gateway": "fd00::1", "source": "10.0.0.1"}, "IP version"),
        ({"destination": "10.1.0.0/16", "gateway": "10.0.0.1", "scope": 253}, "no gateway"),
        ({"destination": "10.1.0.0/16", "gateway": "10.0.0.1", "scope": 200}, "0 or 253"),
        ({"destination": "10.1.0.0/16", "gateway": "10.0.0.1/24"}, "without prefix"),
        ({"destination": "10.1.0.0/16", "gateway": "10.0.0.1", "table": -1}, "greater than or equal"),
        ({"destination": "10.1.0.0/16", "gateway": "10.0.0.1", "metric": 5}, "Extra"),
    ],
)
def test_routes_that_cannot_be_made(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        route(**fields)


def test_a_link_scope_route_needs_no_gateway() -> None:
    assert route(destination="10.1.0.0/16", scope=253, table=100).routes[0].table == 100


def test_every_field_of_dranet_that_is_not_applied_is_refused() -> None:
    for path in NOT_APPLIED:
        head, _, tail = path.partition(".")
        with pytest.raises(ValidationError, match="Extra inputs"):
            NetworkConfig.model_validate({head: {tail: True}} if tail else {head: True})


def test_the_versioned_form_needs_both_version_and_kind() -> None:
    form = {"apiVersion": "dra.net/v1alpha1", "kind": "NetworkConfig", "routes": []}

    assert strip_version(form) == {"routes": []}
    assert strip_version({"routes": []}) == {"routes": []}
    for wrong in ({"kind": "NetworkConfig"}, {**form, "apiVersion": "dra.net/v9"}, {**form, "kind": "Other"}):
        with pytest.raises(ValueError, match="apiVersion and kind"):
            strip_version(wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["name", "addresses", "mtu", "hardwareAddr", "dhcp"])
ROUTE_FIELDS = st.sampled_from(["destination", "gateway", "source", "scope", "table"])


@given(
    value=st.fixed_dictionaries(
        {},
        optional={
            "interface": st.dictionaries(FIELDS, JSON, max_size=4) | JSON,
            "routes": st.lists(st.dictionaries(ROUTE_FIELDS, JSON, max_size=5), max_size=3) | JSON,
        },
    )
)
def test_any_json_is_either_a_valid_config_or_a_validation_error(value: dict[str, Any]) -> None:
    try:
        config = NetworkConfig.model_validate(value)
    except ValidationError:
        return
    assert NetworkConfig.model_validate(config.model_dump(by_alias=True)) == config
