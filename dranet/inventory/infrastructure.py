"""Which software links belong to the node's own network: by kind, or by the name that their maker gives.

A kind that is not known to be harmless is the node's own. A node full of pods has a thousand such links, so
this is asked before anything else is worked out about them.
"""

from __future__ import annotations

import re

from dranet.model.facts import Link

OFFERED_KINDS = frozenset({"", "dummy", "ipoib", "ipvlan", "macvlan", "netdevsim", "vlan"})
"""``IFLA_INFO_KIND`` of links without PCI that a pod may have; empty is hardware (USB, VMBus ...)."""

_NODE_LINK_NAMES = re.compile(
    r"docker0|kube-bridge|kube-dummy-if|kube-ipvs0|nodelocaldns|(cali|cilium_|cni|flannel|lxc).*"
)
"""Links that container networks make for themselves, whatever their kind."""


def infrastructure_reason(link: Link) -> str:
    """Why a link without PCI is not for pods (a clause that reads after its name); empty if it may be."""
    if link.kind not in OFFERED_KINDS:
        return f"is part of the node's own network: of kind {link.kind}"
    if _NODE_LINK_NAMES.fullmatch(link.ifname):
        return f"is part of the node's own network: {link.ifname} is made by its container network"
    return ""
