"""By which interface a pod reaches the network that all pods of the cluster share."""

from __future__ import annotations

import logging

from dranet.errors import KernelError
from dranet.kernel.attachment.linkstate import read_link
from dranet.kernel.attachment.locate import open_pod_side
from dranet.kernel.discovery.scan import read_default_routes
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.uplinks import order_outputs

log = logging.getLogger(__name__)


def read_pod_uplink(netns_path: str) -> str:
    """The interface of its default route, of IPv4's first; empty where there is none, or nobody can tell."""
    try:
        with NetworkNamespace.open(netns_path) as netns, open_pod_side(netns) as pod:
            routes = pod.run(lambda: read_default_routes(pod.rtnl, []))
            links = (read_link(pod.rtnl, index) for index in order_outputs(routes))
            return next((link.ifname for link in links if link is not None), "")
    except KernelError as error:
        log.warning("the default route of the pod at %s is not known: %s", netns_path, error)
        return ""
