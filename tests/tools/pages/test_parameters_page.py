"""Page and schema of the parameters: every field with an example that decodes, and the two judge alike."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given

from dranet.model.parameters.network import Envelope, NetworkConfig, split_envelope
from dranet.model.parameters.part import ValidationError, fields_of
from dranet.model.parameters.values import REFUSED
from tests.model.network_documents import DOCUMENTS
from tests.support.json_schema import accepts
from tools.pages.parameters import parameters_page, parameters_schema, walk_objects

SCHEMA: dict[str, Any] = json.loads(parameters_schema())
NEEDED: dict[str, dict[str, Any]] = {
    "apiVersion": {"kind": "NetworkConfig"},
    "kind": {"apiVersion": "dra.net/v1alpha1"},
    "interface.macvlan.mode": {"interface": {"type": "macvlan"}},
    "interface.ipvlan.mode": {"interface": {"type": "ipvlan"}},
    "interface.ipvlan.flag": {"interface": {"type": "ipvlan"}},
    "interface.vlan.id": {"interface": {"type": "vlan"}},
    "interface.vlan.protocol": {"interface": {"type": "vlan", "vlan": {"id": 100}}},
    "interface.vf.qos": {"interface": {"vf": {"vlan": 100}}},
    "interface.vrf.table": {"interface": {"vrf": {"name": "red"}}},
    "interface.rateLimit.egress.burst": {"interface": {"rateLimit": {"egress": {"rate": "1G"}}}},
    "interface.rateLimit.ingress.burst": {"interface": {"rateLimit": {"ingress": {"rate": "1G"}}}},
    "rules[].mask": {"rules": {"mark": 1}},
    "neighbors[].destination": {"neighbors": {"hardwareAddr": "02:00:00:00:00:01"}},
    "neighbors[].hardwareAddr": {"neighbors": {"destination": "10.0.0.1"}},
    "routes[].destination": {"routes": {"scope": 253}},
    "routes[].gateway": {"routes": {"destination": "10.0.0.0/8"}},
    "routes[].scope": {"routes": {"destination": "10.0.0.0/8"}},
    "policy.rules[].field": {"policy": {"rules": {"expression": "true"}}},
    "policy.rules[].expression": {"policy": {"rules": {"field": "routes"}}},
}
"""What a field does not go without, where lists stand for their only entry."""
NEEDED_BELOW: dict[str, dict[str, Any]] = {
    "routes[].nextHops[].": {"routes": {"destination": "10.0.0.0/8", "nextHops": {"gateway": "10.0.0.1"}}},
    "routes[].": {"routes": {"destination": "10.0.0.0/8", "gateway": "10.0.0.1"}},
    "policy.rules[].": {"policy": {"rules": {"field": "routes", "expression": "true"}}},
    "interface.type": {"interface": {"type": "macvlan"}},
    "nccl.": {"nccl": {"configFile": True}},
}


def rows() -> Iterator[tuple[str, str, str]]:
    """(path, what is said when absent, example) of each row of the page that shows one."""
    path = ""
    for line in parameters_page().splitlines():
        if line.startswith("## "):
            path = "" if line == "## All parameters" else line.removeprefix("## ").strip("`")
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) == 6 and cells[1].startswith("`") and not cells[4].startswith("[below]"):
            name = cells[1].strip("`")
            yield f"{path}.{name}" if path else name, cells[3], cells[4].strip("`").replace("\\|", "|")


ROWS = list(rows())


def build_document(path: str, example: str) -> dict[str, Any]:
    """The example in its place, with what it does not go without."""
    document: Any = yaml.safe_load(example)
    names = path.split(".")[:-1]
    for name in reversed(names):
        document = {name.removesuffix("[]"): document}
    beside = NEEDED.get(path)
    if beside is None:
        beside = next((needed for start, needed in NEEDED_BELOW.items() if path.startswith(start)), {})
    whole = lay_over(beside, document)
    lists = {name.removesuffix("[]") for name in names if name.endswith("[]")}
    return {name: as_lists(value, name, lists) for name, value in whole.items()}


def lay_over(base: Any, over: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {name: lay_over(base.get(name), over.get(name, base.get(name))) for name in {**base, **over}}


def as_lists(value: Any, name: str, lists: set[str]) -> Any:
    if isinstance(value, dict) and lists:
        value = {below: as_lists(item, below, lists) for below, item in value.items()}
    return [value] if name in lists else value


def decode(document: dict[str, Any]) -> tuple[Envelope, NetworkConfig]:
    envelope, parameters = split_envelope(document)
    return Envelope.model_validate(envelope), NetworkConfig.model_validate(parameters)


def is_decoded(document: dict[str, Any]) -> bool:
    try:
        decode(document)
    except ValidationError:
        return False
    return True


def test_the_page_shows_every_field() -> None:
    fields = [
        f"{path}.{field.name}" if path else field.name
        for path, part in walk_objects()
        for field in fields_of(part).values()
        if not field.part
    ]
    assert sorted(path for path, _, _ in ROWS) == sorted({*fields, "apiVersion", "kind"})


@pytest.mark.parametrize(("path", "_absent", "example"), ROWS, ids=[row[0] for row in ROWS])
def test_the_example_of_a_field_decodes_and_says_something(path: str, _absent: str, example: str) -> None:
    document = build_document(path, example)

    envelope, config = decode(document)
    assert (envelope, config) != (Envelope(), NetworkConfig())
    assert accepts(SCHEMA, document)


def test_what_is_required_is_marked() -> None:
    assert {path for path, absent, _ in ROWS if absent == "required"} == {
        "interface.vlan.id",
        "interface.vrf.name",
        "interface.rateLimit.egress.rate",
        "interface.rateLimit.ingress.rate",
        "routes[].destination",
        "routes[].nextHops[].gateway",
        "neighbors[].destination",
        "neighbors[].hardwareAddr",
        "policy.rules[].field",
        "policy.rules[].expression",
    }


def test_refused_sysctls_are_on_the_page_with_their_reason() -> None:
    page = parameters_page()
    assert REFUSED
    for name, reason in REFUSED.items():
        assert f"| `{name}` | {reason} |" in page


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"interface": None, "routes": None, "policy": None, "ethtool": {"rings": {"rx": None}}},
        {"interface": {"name": "", "mtu": 68, "vrf": {"name": "red", "table": None}}},
        {"rules": [{"mark": "0x10"}, {"mark": 16}], "rdma": {"memlock": "64Ki"}},
        {"sysctls": {"net.ipv4.tcp_ecn": 1, "net.ipv4.tcp_rmem": "1 2 3"}},
        {"policy": {"allow": [], "lock": ["routes"]}},
    ],
)
def test_both_take_what_is_right(document: dict[str, Any]) -> None:
    assert is_decoded(document)
    assert accepts(SCHEMA, document)


@pytest.mark.parametrize(
    "document",
    [
        {"mtu": 9000},
        {"interface": {"mtoo": None}},
        {"interface": []},
        {"interface": {"mtu": 67}},
        {"interface": {"mtu": "1500"}},
        {"interface": {"mtu": True}},
        {"interface": {"name": "sixteen-letters-"}},
        {"interface": {"name": "a b"}},
        {"interface": {"type": "tap"}},
        {"interface": {"dhcp": "yes"}},
        {"interface": {"addresses": "10.0.0.1/24"}},
        {"interface": {"arpIgnore": 4}},
        {"interface": {"vrf": {"table": 5}}},
        {"interface": {"vrf": {"name": ""}}},
        {"interface": {"rateLimit": {"egress": {"rate": "10 G"}}}},
        {"interface": {"hardwareAddr": "02:00:00:00:00"}},
        {"interface": {"addresses": ["10.0.0.1"]}},
        {"routes": {}},
        {"routes": [{"gateway": "10.0.0.1"}]},
        {"routes": [{"destination": "10.0.0.0/8", "scope": 5}]},
        {"rules": [{"mark": "x"}]},
        {"rules": [{"priority": 32768}]},
        {"ethtool": {"features": {"gro": 1}}},
        {"ethtool": {"features": {"": True}}},
        {"sysctls": {"a": True}},
        {"rdma": {"memlock": -1}},
        {"rdma": {"memlock": "lots"}},
        {"apiVersion": "v1", "kind": "NetworkConfig"},
        {"policy": {"deny": []}},
        {"policy": {"lock": ["interface.mtoo"]}},
        {"policy": {"rules": [{"field": "routes"}]}},
    ],
)
def test_both_refuse_what_is_wrong(document: dict[str, Any]) -> None:
    assert not is_decoded(document)
    assert not accepts(SCHEMA, document)


@given(DOCUMENTS)
def test_the_schema_takes_every_valid_document(document: dict[str, Any]) -> None:
    assert accepts(SCHEMA, document)


def test_no_object_of_the_schema_takes_unknown_fields() -> None:
    for name, part in {**SCHEMA["$defs"], "": SCHEMA}.items():
        assert part["additionalProperties"] is False, name
        assert all(field.get("description") for field in part["properties"].values()), name
