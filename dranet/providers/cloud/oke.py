"""Oracle Cloud Infrastructure.

Source: "Getting Instance Metadata"
(https://docs.oracle.com/iaas/Content/Compute/Tasks/gettingmetadata.htm), ``/opc/v2/host/`` and
``/opc/v2/instance/``. The place in the RDMA network is given to tenancies that have asked for it.
"""

from __future__ import annotations

import re

from dranet.providers.cloud.answers import CloudFacts, get_text, known
from dranet.providers.cloud.metadata import MetadataClient, read_all

_DOMAIN = "oke.dra.net"
_HEADERS = {"Authorization": "Bearer Oracle"}
_TOPOLOGY = {
    "customerHPCIslandId": "hpcIslandId",
    "customerNetworkBlock": "networkBlockId",
    "customerLocalBlock": "localBlockId",
    "customerGpuMemoryFabric": "gpuMemoryFabricId",
}
_OCID = re.compile(r"ocid1\.\S*\.([^.\s]+)")
_UNIQUE_LENGTH = 60
"""The last part of an OCID is unique and has 60 characters; a whole one is longer than an attribute."""


async def read(client: MetadataClient) -> CloudFacts:
    host, instance = await read_all(
        client.read_object(f"/opc/v2/{part}/", _HEADERS) for part in ("host", "instance")
    )
    return parse(host, instance)


def parse(host: object, instance: object) -> CloudFacts:
    node = {f"{_DOMAIN}/networkBlockId": _shorten(get_text(host, "networkBlockId"))}
    for key, own in _TOPOLOGY.items():
        if text := _shorten(get_text(host, "rdmaTopologyData", key)):
            node[f"{_DOMAIN}/{own}"] = text
    node |= {
        f"{_DOMAIN}/rackId": _shorten(get_text(host, "rackId")),
        f"{_DOMAIN}/shape": get_text(instance, "shape"),
        f"{_DOMAIN}/faultDomain": get_text(instance, "faultDomain"),
        f"{_DOMAIN}/availabilityDomain": get_text(instance, "availabilityDomain"),
    }
    return CloudFacts(node=known(node))


def _shorten(text: str) -> str:
    """DraNet's form: of an OCID what is unique."""
    found = _OCID.fullmatch(text)
    return found[1][-_UNIQUE_LENGTH:] if found else text
