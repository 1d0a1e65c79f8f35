"""The addresses of the Node object: those that are the node's own, whatever the object looks like."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.nodes import fetch_node_addresses, parse_node_addresses
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


async def test_the_nodes_own_addresses_are_fetched_each_once(client: ApiClient, node: JsonObject) -> None:
    await client.patch(paths.node_status("node-a"), {"status": {"addresses": ADDRESSES}})
    assert await fetch_node_addresses(client, node["metadata"]["name"]) == OWN


async def test_a_node_that_does_not_exist_is_a_cluster_error(client: ApiClient) -> None:
    with pytest.raises(ClusterError) as caught:
        await fetch_node_addresses(client, "nobody")
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


def test_an_address_that_is_none_is_left_out() -> None:
    entry = {"type": "InternalIP", "address": "not an address"}
    assert parse_node_addresses({"status": {"addresses": [entry]}}) == ()
