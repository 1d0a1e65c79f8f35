"""Which software links belong to the node's own network: by kind, or by the name that their maker gives.

A kind that is not known to be harmless is the node's own. A node full of pods has a thousand such links, so
this is asked before anything else is worked out about them.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from dranet.model.facts import Link

OFFERED_KINDS = frozenset({"", "dummy", "ipoib", "ipvlan", "macvlan", "netdevsim", "vlan"})
"""``IFLA_INFO_KIND`` of links without PCI that a pod may have; empty is hardware (USB, VMBus ...)."""

PAIR_KINDS = frozenset({"netkit", "veth"})
"""Links that come in pairs; ``IFLA_LINK`` names the other end."""

_NODE_LINK_NAMES = re.compile(
    r"(antrea-|azv|cali|cilium_|cni|docker|flannel|ipvl_|lxc|nerdctl|ovn-k8s-|podman|virbr|vlan\.eth\.|weave).*"
    r"|(egress|vxlan|vxlan-v6)\.calico|(wireguard|wg-v6)\.cali|(bpfin|bpfout)\.cali|tunl0"
    r"|cbr0|kube-bridge|kube-dummy-if|kube-ipvs0|nodelocaldns|ovn0|pod-id-link0"
    r"|(genev|vxlan)_sys_\d+"
)
"""Links that container networks and their helpers make for themselves, whatever their kind. By kind alone
kube-ipvs0, nodelocaldns, kube-dummy-if, pod-id-link0 (EKS) and antrea-egress0 would be offered as dummies,
vlan.eth.7 (EKS) and antrea-ext.7 as VLANs, ipvl_7 (Terway) as an ipvlan."""


def infrastructure_reason(link: Link, offered_kinds: Collection[str] = ()) -> str:
    """Why a link without PCI is not for pods (a clause that reads after its name); empty if it may be.

    Args:
        link: the link.
        offered_kinds: further kinds that the operator offers.
    """
    if link.kind in PAIR_KINDS and link.link_netnsid is not None:
        return (
            f"is part of the node's own network: of kind {link.kind}, its other end is in another namespace"
        )
    if link.kind not in OFFERED_KINDS and link.kind not in offered_kinds:
        return f"is part of the node's own network: of kind {link.kind}"
    if not link.kind and link.is_loopback:
        return "is the loopback"
    if not link.kind and link.virtual:
        return "is part of the node's own network: made by software, of no kind that the kernel names"
    if _NODE_LINK_NAMES.fullmatch(link.ifname):
        return f"is part of the node's own network: {link.ifname} is made by its container network"
    if is_representor(link):
        return f"is a representor: {link.phys_port_name} of an embedded switch"
    return ""


_REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?")
"""``pf0vf3``, ``c1pf0sf88``, ``pf0``; the wire's own port is ``p0``."""

_SUB_FUNCTION = re.compile(r".+\.sf\.\d+")
"""``mlx5_core.sf.4``."""


def is_representor(link: Link) -> bool:
    """Whether it is the switch's end of a wire to another function."""
    return bool(link.phys_port_name) and _REPRESENTOR.fullmatch(link.phys_port_name) is not None


def is_sub_function(link: Link) -> bool:
    """Whether it is the link of a sub-function, a part of the PCI function below it."""
    return link.parent_bus == "auxiliary" and _SUB_FUNCTION.fullmatch(link.parent_device) is not None
