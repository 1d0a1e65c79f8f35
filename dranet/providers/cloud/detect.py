"""Which cloud the node is in, without asking any network: by its Node object, else by DMI."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from dranet.settings import CloudProvider

COREWEAVE_LABEL = "cks.coreweave.com/cluster"
_PROVIDER_IDS = (
    (re.compile(r"gce://.+"), CloudProvider.GCE),
    (re.compile(r"aws://.+"), CloudProvider.AWS),
    (re.compile(r"azure://.+"), CloudProvider.AZURE),
    (re.compile(r"(oci://)?ocid1\.instance\..+"), CloudProvider.OKE),
    (re.compile(r"(alicloud://)?[a-z0-9-]+\.i-[a-z0-9]+"), CloudProvider.ALIBABA),
)
"""``spec.providerID`` as the cloud controller manager of each cloud writes it."""
_DMI = (
    ("Google", CloudProvider.GCE),
    ("Amazon EC2", CloudProvider.AWS),
    ("Alibaba Cloud", CloudProvider.ALIBABA),
)
"""The system's vendor. Microsoft's is also that of Hyper-V and of its PCs, Oracle's that of its servers."""
_ASSET_TAGS = {
    "7783-7084-3265-9085-8269-3286-77": CloudProvider.AZURE,
    "OracleCloud.com": CloudProvider.OKE,
}
"""The chassis' asset tag, which each of these clouds documents as the way to recognise it."""


class NodeHints(Struct, frozen=True):
    provider_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class DmiHints(Struct, frozen=True):
    vendor: str = ""
    asset_tag: str = ""


def detect(node: NodeHints, dmi: DmiHints) -> CloudProvider:
    """``OFF`` where nothing names a cloud."""
    if node.labels.get(COREWEAVE_LABEL):
        return CloudProvider.COREWEAVE
    for pattern, provider in _PROVIDER_IDS:
        if pattern.fullmatch(node.provider_id):
            return provider
    if dmi.asset_tag in _ASSET_TAGS:
        return _ASSET_TAGS[dmi.asset_tag]
    return next((provider for vendor, provider in _DMI if dmi.vendor.startswith(vendor)), CloudProvider.OFF)
