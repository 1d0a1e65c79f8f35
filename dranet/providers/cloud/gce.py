"""Google Compute Engine.

Source: "View and query VM metadata" and "Predefined metadata keys"
(https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys), and for the place of the host
https://cloud.google.com/compute/docs/instances/use-compact-placement-policies#verify-vm-location.
"""

from __future__ import annotations

import re

from dranet.providers.cloud.answers import CloudFacts, canonical_mac, get_entries, get_text, join, known
from dranet.providers.cloud.metadata import MetadataClient, read_all

_ROOT = "/computeMetadata/v1/instance"
_HEADERS = {"Metadata-Flavor": "Google"}
_NETWORK = re.compile(r"projects/(\d{1,18})/networks/(\S+)")
_DOMAIN = "gce.dra.net"


async def read(client: MetadataClient) -> CloudFacts:
    machine, interfaces, host = await read_all(
        [
            client.read_text(f"{_ROOT}/machine-type", _HEADERS),
            client.read_json(f"{_ROOT}/network-interfaces/?recursive=true&alt=json", _HEADERS),
            client.read_optional(f"{_ROOT}/attributes/physical_host", _HEADERS),
        ]
    )
    return parse(machine, interfaces, host)


def parse(machine_type: str, interfaces: object, physical_host: str) -> CloudFacts:
    """``physical_host`` is ``/BLOCK/SUBBLOCK/HOST`` where the machine has a known place."""
    node: dict[str, object] = {f"{_DOMAIN}/machineType": machine_type.rpartition("/")[2]}
    parts = physical_host.removeprefix("/").split("/", 2)
    if len(parts) == 3:
        node |= dict(zip((f"{_DOMAIN}/{name}" for name in ("block", "subBlock", "host")), parts, strict=True))
    by_mac: dict[str, dict[str, object]] = {}
    for interface in get_entries({"all": interfaces}, "all"):
        if mac := canonical_mac(get_text(interface, "mac")):
            by_mac[mac] = _describe(interface)
    return CloudFacts(node=known(node), by_mac=by_mac)


def _describe(interface: object) -> dict[str, object]:
    aliases = interface.get("ipAliases") if isinstance(interface, dict) else None
    found = _NETWORK.fullmatch(get_text(interface, "network"))
    return known(
        {
            f"{_DOMAIN}/ipAliases": join(aliases) if isinstance(aliases, list) else "",
            f"{_DOMAIN}/networkName": found[2] if found else "",
            f"{_DOMAIN}/networkProjectNumber": int(found[1]) if found else None,
        }
    )
