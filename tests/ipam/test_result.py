"""Results: any text is an answer that can be planned, or an error that names the place."""

from __future__ import annotations

import json
from contextlib import suppress
from ipaddress import ip_interface, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.ipam.result import ResultError, build_result, parse_result
from dranet.model.ipam import CNI_VERSIONS, IpamAnswer, IpamRequest, IpamRoute, parse_cni

REQUEST = IpamRequest(
    "eth1", "storage", parse_cni("storage", {"ipam": {"type": "x"}}), "uid.pod", "net1", "team", "pod", "pod"
)


def parse(**document: Any) -> IpamAnswer:
    return parse_result(REQUEST, json.dumps({"cniVersion": "1.0.0", **document}).encode())


ONE = [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]


def test_a_result_of_an_old_version_and_what_1_1_has_added() -> None:
    old = parse(cniVersion="0.3.1", ips=[{"version": "4", **ONE[0]}], routes=[{"dst": "10.2.0.7/16"}])
    assert old.routes == (IpamRoute("10.2.0.0/16", "10.1.0.1"),)
    route = {"dst": "10.2.0.0/16", "gw": "10.1.0.9", "mtu": 1400, "priority": 50, "table": 100, "advmss": 1}
    new = parse(cniVersion="1.1.0", ips=ONE, routes=[route, {"dst": "10.3.0.0/16", "scope": 253}])
    assert new.routes == (
        IpamRoute("10.2.0.0/16", "10.1.0.9", metric=50, table=100, mtu=1400),
        IpamRoute("10.3.0.0/16", scope=253),
    )
    assert new.ignored == ("routes[].advmss",)


def test_a_route_without_a_gateway_takes_that_of_its_ip_version_or_is_on_the_link() -> None:
    ips = [{"address": "10.1.0.5/24"}, *ONE, {"address": "fd00::5/64"}]
    found = parse(ips=ips, routes=[{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": ""}])
    assert [route.gateway for route in found.routes] == ["", ""]
    assert found.addresses == ("10.1.0.5/24", "fd00::5/64")
    found = parse(ips=[*ONE, {"address": "fd00::5/64", "gateway": "fe80::1"}], routes=[{"dst": "::/0"}])
    assert found.routes == (IpamRoute("::/0", "fe80::1"),)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"cniVersion": 1}, "cniVersion: must be one of"),
        ({"ips": {}}, "ips: must be a list of objects"),
        ({"ips": [1]}, "ips: must be a list of objects"),
        ({"ips": ONE * 65}, "ips: has 65 entries, more than 64"),
        ({"ips": [{}]}, "ips[0].address: must be text, not null"),
        ({"ips": [{"address": "10.1.0.5"}]}, "ips[0].address: must be in CIDR form"),
        ({"ips": [{"address": "127.0.0.1/8"}]}, "ips[0].address: must be a unicast address"),
        ({"ips": [{**ONE[0], "gateway": "x"}]}, "ips[0].gateway: must be an IP address"),
        (
            {"ips": [{**ONE[0], "gateway": "fe80::1"}]},
            "ips[0].gateway: must be of the IP version of 10.1.0.5/24",
        ),
        ({"ips": ONE, "routes": [{"dst": "x"}]}, "routes[0].dst: must be in CIDR form"),
        (
            {"ips": ONE, "routes": [{"dst": "::/0", "gw": "10.1.0.1"}]},
            "routes[0].gw: must be of the IP version",
        ),
        ({"ips": ONE, "routes": [{"dst": "10.2.0.0/16", "mtu": True}]}, "routes[0].mtu: must be a number"),
        ({"ips": ONE, "routes": [{"dst": "10.2.0.0/16", "table": -1}]}, "routes[0].table: must be a number"),
        ({"ips": ONE, "routes": [{"dst": "10.2.0.0/16", "scope": 254}]}, "routes[0].scope: must be 0"),
        (
            {"ips": ONE, "routes": [{"dst": "10.2.0.0/16", "gw": "10.1.0.1", "scope": 253}]},
            "routes[0].gw: must be absent with scope 253",
        ),
    ],
)
def test_a_wrong_value_is_named_by_its_place(document: dict[str, Any], expected: str) -> None:
    with pytest.raises(ResultError) as caught:
        parse(**document)
    assert expected in str(caught.value)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(
        ["10.1.0.5/24", "fd00::5/64", "10.1.0.1", "fd00::1", "0.0.0.0/0", "::/0", *CNI_VERSIONS]
    )
)
NAMES = st.sampled_from(
    ["cniVersion", "ips", "routes", "dns", "address", "gateway", "dst", "gw", "scope", "mtu", "x"]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)


@given(JSON, st.lists(JSON, max_size=3), st.lists(JSON, max_size=3))
def test_any_result_is_an_answer_or_an_error(more: Any, ips: list[Any], routes: list[Any]) -> None:
    document = {"dns": more, "cniVersion": "1.0.0", "ips": [*ONE, *ips], "routes": routes}
    with suppress(ResultError):
        answer = parse_result(REQUEST, json.dumps(document).encode())
        for address, gateway in zip(answer.addresses, answer.gateways, strict=True):
            assert gateway == "" or ip_interface(gateway).version == ip_interface(address).version
        for route in answer.routes:
            assert str(ip_network(route.destination)) == route.destination


@given(st.binary(max_size=60))
def test_any_text_is_an_answer_or_an_error(text: bytes) -> None:
    with pytest.raises(ResultError):
        parse_result(REQUEST, text)


def test_a_deep_text_is_an_error() -> None:
    with pytest.raises(ResultError):
        parse_result(REQUEST, b"[" * 100_000)


@given(st.sampled_from(CNI_VERSIONS))
def test_an_answer_survives_the_way_to_check_and_back(version: str) -> None:
    answer = parse(ips=[*ONE, {"address": "fd00::5/64"}], routes=[{"dst": "10.2.0.0/16", "gw": "10.1.0.9"}])
    again = parse_result(REQUEST, json.dumps(build_result(answer, version)).encode())
    assert again == answer
