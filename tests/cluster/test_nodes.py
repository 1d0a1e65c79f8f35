"""The addresses of the Node object: those that are the node's own, whatever the object looks like."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.nodes import fetch_node, parse_node_addresses, parse_resources
from dranet.errors import ClusterError, Reason

ADDRESSES = [
    {"type": "InternalIP", "address": "192.0.2.2"},
    {"type": "InternalIP", "address": "2001:0db8:0::2"},
    {"type": "ExternalIP", "address": "203.0.113.9"},
    {"type": "ExternalIP", "address": "192.0.2.2"},
    {"type": "Hostname", "address": "192.0.2.77"},
    {"type": "InternalDNS", "address": "node-a.example.com"},
]
OWN = ("192.0.2.2", "2001:db8::2", "203.0.113.9")


@pytest.mark.socket
async def test_the_nodes_own_addresses_are_fetched_each_once(client: ApiClient, node: JsonObject) -> None:
    await client.patch(paths.node_status("node-a"), {"status": {"addresses": ADDRESSES}})
    assert (await fetch_node(client, node["metadata"]["name"])).addresses == OWN


@pytest.mark.socket
async def test_the_resources_of_device_plugins_are_fetched_with_them_also_while_there_is_none(
    client: ApiClient, node: JsonObject
) -> None:
    name = node["metadata"]["name"]
    allocatable = {"cpu": "8", "nvidia.com/gpu": "8", "amd.com/gpu": "0", "habana.ai/gaudi": "1"}
    await client.patch(paths.node_status(name), {"status": {"allocatable": allocatable}})
    assert (await fetch_node(client, name)).resources == ("amd.com/gpu", "habana.ai/gaudi", "nvidia.com/gpu")


@pytest.mark.socket
async def test_a_node_that_does_not_exist_is_a_cluster_error(client: ApiClient) -> None:
    with pytest.raises(ClusterError) as caught:
        await fetch_node(client, "nobody")
    assert caught.value.reason is Reason.API_NOT_FOUND


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["status", "addresses", "type", "address"]), inner)
    ),
    max_leaves=8,
)


@given(status=json_values)
def test_a_node_of_any_shape_gives_what_it_has(status: Any) -> None:
    assert parse_node_addresses({"status": status}) == ()
    assert parse_node_addresses({"status": {"addresses": [status, *ADDRESSES]}}) == OWN
    assert parse_resources({"status": status}) == ()
    assert isinstance(parse_resources({"status": {"allocatable": status}}), tuple)
    broken = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": status}
    assert "nvidia.com/gpu" in parse_resources({"status": broken}), "all of them are broken now"


def test_an_address_that_is_none_is_left_out() -> None:
    entry = {"type": "InternalIP", "address": "not an address"}
    assert parse_node_addresses({"status": {"addresses": [entry]}}) == ()
