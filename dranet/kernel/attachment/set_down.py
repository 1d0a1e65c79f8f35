"""Set links down before they move: the driver of a NIC may need half a second to stop its queues, and Prepare
has more time than the runtime's hook, behind which every other pod of the node waits."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.kernel.attachment.locate import find_link, is_same_device, open_host_side
from dranet.kernel.attachment.uplink import UplinkGuard, UplinkRules
from dranet.kernel.rtnl import IFF_UP, set_link_request
from dranet.model.plan import AttachPlan


def set_down(plans: Sequence[AttachPlan], rules: UplinkRules) -> None:
    """Set the link of each plan down in the calling thread's namespace; safe to repeat.

    A link that is not there, enslaved, or down already is left alone: the attach says what is wrong with it.

    Raises:
        DeviceError: a link is the node's uplink or tied to it (``DeviceIsUplink``); it stays up.
        KernelError: netlink failed.
    """
    moved = [(plan, plan.host) for plan in plans if plan.host is not None]
    if not moved:
        return
    with open_host_side() as home:
        guard = UplinkGuard(home.rtnl, rules)
        for plan, host in moved:
            found = find_link(plan, host, home, None)
            if found is None or not is_same_device(found.link, plan, host):
                continue
            link = found.link
            if link.is_up and link.master is None:
                guard.check(link)
                home.rtnl.request(
                    set_link_request(
                        link.ifindex, operation="set-down", link=link.ifname, flags=0, change=IFF_UP
                    )
                )
