"""Labels of the Node as attributes: those of CoreWeave and of AWS, and any other by the operator's rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dranet.providers.cloud import aws
from dranet.providers.cloud.answers import CloudFacts, known

_COREWEAVE = "coreweave.dra.net"
_COREWEAVE_LABELS = {
    "backend.coreweave.cloud/flavor": "fabricFlavor",
    "backend.coreweave.cloud/fabric": "fabric",
    "backend.coreweave.cloud/superpod": "superpod",
    "backend.coreweave.cloud/leafgroup": "leafgroup",
    "backend.coreweave.cloud/leafgroup-name": "leafgroupName",
    "node.coreweave.cloud/rack": "rack",
    "backend.coreweave.cloud/speed.current": "speedCurrent",
    "backend.coreweave.cloud/speed.expected": "speedExpected",
    "node.kubernetes.io/instance-type": "instanceType",
}
"""As CoreWeave documents them (https://docs.coreweave.com) and as DraNet publishes them."""
_NEIGHBOUR = re.compile(r"backend\.coreweave\.cloud/neighbors\.expected\.([^/]+)\.device")


def read_coreweave(labels: Mapping[str, str]) -> CloudFacts:
    node = {f"{_COREWEAVE}/{own}": labels.get(label, "") for label, own in _COREWEAVE_LABELS.items()}
    switches = (
        (found[1], value) for label, value in labels.items() if (found := _NEIGHBOUR.fullmatch(label))
    )
    by_rdma = {rdma: {f"{_COREWEAVE}/leafSwitch": switch} for rdma, switch in switches if switch}
    return CloudFacts(node=known(node), by_rdma=by_rdma)


def read_aws(labels: Mapping[str, str]) -> dict[str, object]:
    return known({own: labels.get(label, "") for label, own in aws.LABELS.items()})


def apply_rule(rule: Sequence[tuple[str, str]], labels: Mapping[str, str]) -> dict[str, object]:
    """``rule``: pairs of a label and the attribute for its value."""
    return known({attribute: labels.get(label, "") for label, attribute in rule})
