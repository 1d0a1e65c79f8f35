"""The Node object: only the addresses that the node is known by."""

from __future__ import annotations

from ipaddress import ip_address

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject

OWN_ADDRESS_TYPES = ("InternalIP", "ExternalIP")
"""``v1.NodeAddress``; host names are left out: what they resolve to need not be the node's own."""


async def fetch_node_addresses(client: ApiClient, name: str) -> tuple[str, ...]:
    """IP addresses from the node's status, in their order, each once; what is no address is left out.

    Raises:
        ClusterError: no answer, or a refusal (API_NOT_FOUND, API_FORBIDDEN: the role needs ``get`` on
            ``nodes``).
    """
    return parse_node_addresses(await client.get(paths.node(name)))


def parse_node_addresses(node: JsonObject) -> tuple[str, ...]:
    """As :func:`fetch_node_addresses`, of a Node that may have any shape: it is a hint, never a failure."""
    status = node.get("status")
    entries = status.get("addresses") if isinstance(status, dict) else None
    found: dict[str, None] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("type") in OWN_ADDRESS_TYPES:
            found |= dict.fromkeys(_canonical(entry.get("address")))
    return tuple(found)


def _canonical(value: object) -> tuple[str, ...]:
    try:
        return (str(ip_address(value)),) if isinstance(value, str) else ()
    except ValueError:
        return ()
