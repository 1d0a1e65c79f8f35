"""What leases ask of DHCP servers and of the links in pods; all of it blocks.

The client is loaded for the first lease.
"""

from __future__ import annotations

from collections.abc import Sequence

from dranet.errors import KernelError, Reason
from dranet.kernel.netns import NetworkNamespace
from dranet.kernel.netns_id import read_netns_id
from dranet.model.plan import AttachPlan, DhcpLease
from dranet.model.status import AttachedLink


class LeaseClient:
    """Conversations and looks; each raises KernelError."""

    def acquire(self, ifname: str, mac: str, wanted: str = "") -> DhcpLease:
        from dranet.kernel.dhcp.client import acquire_lease

        return acquire_lease(ifname, mac, wanted=wanted)

    def renew(self, lease: DhcpLease, netns_path: str, ifname: str, *, rebind: bool) -> DhcpLease:
        from dranet.kernel.dhcp.client import renew_lease

        with NetworkNamespace.open(netns_path) as netns:
            return renew_lease(lease, netns, ifname, rebind=rebind)

    def release(self, lease: DhcpLease, ifname: str) -> None:
        from dranet.kernel.dhcp.client import release_lease

        release_lease(lease, ifname)

    def end(self, lease: DhcpLease, netns_path: str, ifname: str, *, is_refused: bool) -> float:
        """Take the address from the pod's link; how many seconds it has if it may stay."""
        from dranet.kernel.dhcp.client import end_lease

        with NetworkNamespace.open(netns_path) as netns:
            return end_lease(lease, netns, ifname, is_refused=is_refused)

    def look(self, plans: Sequence[AttachPlan], netns_path: str) -> tuple[AttachedLink, ...]:
        """The links of a claim as they are in its pod now."""
        from dranet.kernel.attachment.readback import read_attached

        with NetworkNamespace.open(netns_path) as netns:
            return read_attached(plans, netns)


def check_namespace(path: str, netns_id: str) -> None:
    """A path may lead to the namespace of a later pod, where another link has the name.

    Raises:
        KernelError: ``NetworkNamespaceGone``: it does, or to none.
    """
    with NetworkNamespace.open(path) as netns:
        found = read_netns_id(netns)
    if found != netns_id:
        raise KernelError(
            f"{path} leads to another pod's network namespace by now",
            operation="renew DHCP lease",
            reason=Reason.NETNS_GONE,
        )
