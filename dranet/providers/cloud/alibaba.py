"""Alibaba Cloud, by the hardened mode of its metadata service.

Source: "Instance metadata" (https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata).
``alibaba.dra.net/erdma`` is read from the kernel (``model.attributes``).
"""

from __future__ import annotations

from dranet.providers.cloud.answers import CloudFacts, known, list_macs
from dranet.providers.cloud.metadata import MetadataClient, read_all

ADDRESS = "100.100.100.200"
_DOMAIN = "alibaba.dra.net"
_ROOT = "/latest/meta-data"
_MACS = f"{_ROOT}/network/interfaces/macs"


async def read(client: MetadataClient) -> CloudFacts:
    headers = await client.open_session("X-aliyun-ecs-metadata-token")
    machine, zone, listed = await read_all(
        [
            client.read_text(f"{_ROOT}/instance/instance-type", headers),
            client.read_optional(f"{_ROOT}/zone-id", headers),
            client.read_optional(f"{_MACS}/", headers),
        ]
    )
    macs = list_macs(listed)
    switches = await read_all(client.read_optional(f"{_MACS}/{mac}/vswitch-id", headers) for mac in macs)
    return parse(machine, zone, dict(zip(macs, switches, strict=True)))


def parse(instance_type: str, zone: str, switches: dict[str, str]) -> CloudFacts:
    """``switches``: the virtual switch (the subnet) of each interface, by hardware address."""
    return CloudFacts(
        node=known({f"{_DOMAIN}/instanceType": instance_type, f"{_DOMAIN}/zoneId": zone}),
        by_mac={mac: {f"{_DOMAIN}/vswitchId": switch} for mac, switch in switches.items() if switch},
    )
