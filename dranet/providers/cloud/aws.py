"""Amazon EC2, by version 2 of its metadata service; the layers of the network from labels of the Node.

Source: "Instance metadata categories"
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html), "Instance identity
documents", and for the labels https://cloud-provider-aws.sigs.k8s.io (network topology).
"""

from __future__ import annotations

from dranet.providers.cloud.answers import CloudFacts, get_text, known, list_macs
from dranet.providers.cloud.metadata import MetadataClient, read_all

_DOMAIN = "aws.dra.net"
_ROOT = "/latest/meta-data"
_MACS = f"{_ROOT}/network/interfaces/macs"

LABELS = {
    "topology.k8s.aws/network-node-layer-1": f"{_DOMAIN}/networkNodeLayer1",
    "topology.k8s.aws/network-node-layer-2": f"{_DOMAIN}/networkNodeLayer2",
    "topology.k8s.aws/network-node-layer-3": f"{_DOMAIN}/networkNodeLayer3",
    "topology.k8s.aws/network-node-layer-4": f"{_DOMAIN}/networkNodeLayer4",
    "topology.k8s.aws/capacity-block-id": f"{_DOMAIN}/capacityBlockId",
}


async def read(client: MetadataClient) -> CloudFacts:
    headers = await client.open_session("X-aws-ec2-metadata-token")
    identity = await client.read_object("/latest/dynamic/instance-identity/document", headers)
    placement = ("group-name", "partition-number", "availability-zone-id")
    paths = (f"{_MACS}/", *(f"{_ROOT}/placement/{name}" for name in placement))
    listed, group, partition, zone_id = await read_all(client.read_optional(path, headers) for path in paths)
    macs = list_macs(listed)

    async def read_interface(mac: str) -> tuple[str, str]:
        subnet = await client.read_optional(f"{_MACS}/{mac}/subnet-id", headers)
        return subnet, await client.read_optional(f"{_MACS}/{mac}/network-card", headers)

    interfaces = dict(zip(macs, await read_all(map(read_interface, macs)), strict=True))
    return parse(identity, zone_id, group, partition, interfaces)


def parse(
    identity: object, zone_id: str, group: str, partition: str, interfaces: dict[str, tuple[str, str]]
) -> CloudFacts:
    """``interfaces``: by hardware address, subnet and index of the network card."""
    node = {
        f"{_DOMAIN}/instanceType": get_text(identity, "instanceType"),
        f"{_DOMAIN}/availabilityZone": get_text(identity, "availabilityZone"),
        f"{_DOMAIN}/availabilityZoneId": zone_id,
        f"{_DOMAIN}/placementGroup": group,
        f"{_DOMAIN}/partition": _number(partition),
    }
    by_mac = {
        mac: known({f"{_DOMAIN}/subnetId": subnet, f"{_DOMAIN}/networkCard": _number(card)})
        for mac, (subnet, card) in interfaces.items()
    }
    return CloudFacts(node=known(node), by_mac=by_mac)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None
