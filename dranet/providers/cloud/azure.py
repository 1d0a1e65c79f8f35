"""Microsoft Azure.

Source: "Azure Instance Metadata Service for virtual machines"
(https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service).

Azure drops packets that leave through another interface than their source address belongs to, so each NIC
routes by source. The first address of an IPv4 subnet is its router; that of IPv6 announces itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network, IPv6Address
from typing import Any

from dranet.errors import ProviderError, Reason
from dranet.providers.cloud.answers import (
    CloudFacts,
    SourceRouting,
    canonical_mac,
    get_entries,
    get_text,
    known,
)
from dranet.providers.cloud.metadata import MetadataClient

_DOMAIN = "azure.dra.net"
_HEADERS = {"Metadata": "true"}
_VERSIONS = ("2025-11-11", "2023-11-15", "2021-02-01")
"""The newest first: a service refuses a version that it does not know yet."""
_FIRST_TABLE = 100
"""DraNet's table of the first interface; its manifests' rules may name them."""
_LONGEST_PREFIX = 30
"""A longer one leaves no address for a router next to a host's."""
_COMPUTE = {
    "vmSize": "vmSize",
    "placementGroupId": "placementGroupId",
    "interconnectGroupId": "interconnectGroupId",
    "interconnectSubgroupId": "interconnectSubgroupId",
    "platformFaultDomain": "faultDomain",
    "zone": "zone",
    "physicalZone": "physicalZone",
}
"""Keys of the answer with ours. A fault domain is a rack with one power supply and one switch."""


async def read(client: MetadataClient) -> CloudFacts:
    for version in _VERSIONS:
        try:
            path = f"/metadata/instance?api-version={version}&format=json"
            return parse(await client.read_object(path, _HEADERS))
        except ProviderError as error:
            if "status 400" not in error.message:
                raise
    raise ProviderError(
        f"Azure's metadata service knows none of the versions {', '.join(_VERSIONS)}",
        reason=Reason.PROVIDER_ANSWER_INVALID,
        retryable=False,
    )


def parse(answer: Mapping[str, Any]) -> CloudFacts:
    node = {f"{_DOMAIN}/{own}": get_text(answer, "compute", key) for key, own in _COMPUTE.items()}
    network = answer.get("network")
    by_mac: dict[str, dict[str, object]] = {}
    configs: dict[str, dict[str, Any]] = {}
    ipv6: dict[str, SourceRouting] = {}
    for table, interface in enumerate(get_entries(network, "interface"), _FIRST_TABLE):
        mac = canonical_mac(get_text(interface, "macAddress"))
        subnet = _read_subnet(interface)
        if mac and subnet is not None:
            by_mac[mac] = {f"{_DOMAIN}/subnet": str(subnet)}
            if subnet.prefixlen <= _LONGEST_PREFIX:
                configs[mac] = SourceRouting((str(subnet),), table).build_config(str(subnet[1]))
        if mac and (addresses := tuple(_read_ipv6_addresses(interface))):
            ipv6[mac] = SourceRouting(addresses, table)
    return CloudFacts(node=known(node), by_mac=by_mac, configs=configs, ipv6_routing=ipv6)


def _read_subnet(interface: Mapping[str, Any]) -> IPv4Network | None:
    first = next(get_entries(interface.get("ipv4"), "subnet"), {})
    try:
        return IPv4Network(f"{get_text(first, 'address')}/{get_text(first, 'prefix')}")
    except ValueError:
        return None


def _read_ipv6_addresses(interface: Mapping[str, Any]) -> Iterator[str]:
    """Each as a prefix: the service does not give the subnet of IPv6."""
    for entry in get_entries(interface.get("ipv6"), "ipAddress"):
        try:
            address = IPv6Address(get_text(entry, "privateIpAddress"))
        except ValueError:
            continue
        if _is_of_network(address):
            yield f"{address}/128"


def _is_of_network(address: IPv6Address) -> bool:
    is_local = address.is_link_local or address.is_loopback or address.scope_id is not None
    return not (is_local or address.is_multicast or address.is_unspecified)
