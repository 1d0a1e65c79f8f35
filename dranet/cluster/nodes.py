"""The Node object: the addresses that the node is known by, and what device plugins announce."""

from __future__ import annotations

from ipaddress import ip_address

from msgspec import Struct

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject

OWN_ADDRESS_TYPES = ("InternalIP", "ExternalIP")
"""``v1.NodeAddress``; host names are left out: what they resolve to need not be the node's own."""


_MAX_RESOURCES = 256
_MAX_NAME = 317
"""A DNS subdomain, a slash and 63 characters."""


class NodeView(Struct, frozen=True):
    """What we ask of a Node."""

    addresses: tuple[str, ...] = ()
    """IP addresses, in their order, each once."""
    resources: tuple[str, ...] = ()
    """Names of the extended resources (``nvidia.com/gpu``), sorted; there may be none of one now."""


async def fetch_node(client: ApiClient, name: str) -> NodeView:
    """Read the Node's status; what it has in no known shape is left out.

    Raises:
        ClusterError: no answer, or a refusal (API_NOT_FOUND, API_FORBIDDEN: the role needs ``get`` on
            ``nodes``).
    """
    node = await client.get(paths.node(name))
    return NodeView(parse_node_addresses(node), parse_resources(node))


def parse_resources(node: JsonObject) -> tuple[str, ...]:
    """Extended resources, which have a domain. None of it is left in a restart of the node, of the kubelet or
    of the plugin, and when all devices are broken: the plugin will be back, and pods may have them still."""
    status = node.get("status")
    halves = [status.get(half) for half in ("capacity", "allocatable")] if isinstance(status, dict) else []
    found = {
        name
        for half in halves
        for name in (half if isinstance(half, dict) else ())
        if "/" in name and len(name) <= _MAX_NAME
    }
    return tuple(sorted(found)[:_MAX_RESOURCES])


def parse_node_addresses(node: JsonObject) -> tuple[str, ...]:
    """Addresses of a Node that may have any shape: it is a hint, never a failure."""
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
