"""lldpd's JSON in both shapes, captured from lldpd 1.0.16, and documents that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import ProtocolError
from dranet.kernel.lldp.lldpd import parse_neighbours
from dranet.model.facts import LldpNeighbour

CAPTURED = Path(__file__).parents[1] / "data" / "lldp"


@pytest.mark.parametrize("shape", ["json", "json0"])
def test_both_shapes_of_a_real_lldpd_give_the_same(shape: str) -> None:
    (found,) = parse_neighbours((CAPTURED / f"lldpd-1.0.16-{shape}.json").read_text())
    assert found.neighbour == LldpNeighbour(
        "nic0", "7e:30:f4:a1:b6:ce", "swp7", "leaf-03.pod1", "to gpu-1 rail 2"
    )
    assert found.ttl == 20


def entry(name: str = "leaf", **more: Any) -> dict[str, Any]:
    chassis = {name: {"id": {"type": "mac", "value": "02:00:00:00:00:01"}}}
    return {"via": "LLDP", "chassis": chassis, "port": {"id": {"type": "ifname", "value": "swp1"}}, **more}


def read(interface: Any) -> list[tuple[str, str, int]]:
    found = parse_neighbours(json.dumps({"lldp": {"interface": interface}}))
    return [(one.neighbour.ifname, one.neighbour.system_name, one.ttl) for one in found]


def test_several_links_are_a_list_and_a_chassis_may_have_no_name() -> None:
    unnamed = entry()
    unnamed["chassis"] = {"id": {"type": "local", "value": "x"}}
    assert read([{"eth1": entry()}, {"eth0": unnamed}]) == [("eth0", "", 120), ("eth1", "leaf", 120)]


def test_other_protocols_and_links_with_two_neighbours_are_left_out() -> None:
    assert read([{"eth0": entry(via="CDPv2")}, {"eth1": entry("a")}, {"eth1": entry("b")}]) == []


@pytest.mark.parametrize(
    ("text", "ttl"), [("20", 20), ("0", 0), ("", 120), ("-1", 120), ("\u0663", 120), ("9" * 5000, 120)]
)
def test_a_ttl_is_the_one_that_is_printed_or_the_standards(text: str, ttl: int) -> None:
    port = {"id": {"value": "swp1"}, "ttl": text}
    assert read({"eth0": entry(port=port)}) == [("eth0", "leaf", ttl)]


@pytest.mark.parametrize("text", ['{"lldp": {}}', '{"lldp": [{}]}', '{"lldp": {"interface": []}}'])
def test_a_node_without_neighbours_has_none(text: str) -> None:
    assert parse_neighbours(text) == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"lldp": null}', "[" * 100_000])
def test_what_lldpd_has_not_written_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_neighbours(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.integers(0, 9).map(lambda digit: str(digit) * 5000),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["interface", "chassis", "port", "id", "value", "name", "ttl", "descr", "eth0"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_document_is_read_or_refused(inner: object) -> None:
    try:
        found = parse_neighbours(json.dumps({"lldp": inner}))
    except ProtocolError:
        return
    for one in found:
        assert one.neighbour.chassis_id
        assert one.neighbour.port_id
        assert 0 <= one.ttl < 100_000
