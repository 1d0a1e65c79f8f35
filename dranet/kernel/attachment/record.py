"""Read everything that a ``LinkState`` holds: at Prepare, and at release to find what is still missing.

``linkstate`` reads a link, its addresses and routes; here are the parts that take other families, files and
programs. Everything is read through one :class:`~dranet.kernel.attachment.locate.Side`.
"""

from __future__ import annotations

from msgspec import Struct

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.hardware import HARDWARE
from dranet.kernel.attachment.linkstate import (
    LinkDetails,
    check_is_free,
    is_no_such_link,
    parse_link_details,
    read_addresses,
    read_neighbours,
    read_restorable_routes,
    read_routes,
)
from dranet.kernel.attachment.locate import Side, open_host_side
from dranet.kernel.attachment.programs import read_program_names
from dranet.kernel.netlink.rtnl import (
    IFF_ALLMULTI,
    IFF_MULTICAST,
    IFF_NOARP,
    IFF_PROMISC,
    decode,
    get_link_request,
    parse_link,
)
from dranet.kernel.netlink.tc import read_filters, read_traffic_control
from dranet.kernel.sysfs.procfs import read_boot_clock
from dranet.kernel.sysfs.sysctl import read_link_sysctls
from dranet.model.facts import Link, Route
from dranet.model.plan import RECORD_VERSION, LinkState


class Present(Struct, frozen=True):
    """A link as it is now: ``state`` in the terms of the record, ``details`` with the rest."""

    link: Link
    details: LinkDetails
    state: LinkState


def read_link_state(ifname: str) -> LinkState:
    """Record a link of the calling thread's network namespace, all of it: some 3 ms.

    Raises:
        DeviceError: there is no such link (``DeviceNotFound``), or it is enslaved, carries other links or
            has a route or a setting that could not be restored (``DeviceBusy``).
        KernelError: netlink failed.
    """
    with open_host_side() as side:
        found = _read_link(side, ifname=ifname)
        if found is None:
            raise DeviceError(f"link {ifname} is not on this node")
        link, details = found
        check_is_free(side.rtnl, link)
        _check_restorable(link, details)
        return _read_state(side, link, details, read_routes(side.rtnl, link), None)


def _check_restorable(link: Link, details: LinkDetails) -> None:
    """Refuse a link with settings that could not be restored.

    Raises:
        DeviceError: naming them (``DeviceBusy``).
    """
    if details.oddities:
        settings = ", ".join(f"{what} {value}" for what, value in details.oddities.items())
        raise DeviceError(
            f"link {link.ifname} has settings that could not be restored: {settings}",
            hint="put them back to the kernel's defaults or choose another device",
            reason=Reason.DEVICE_BUSY,
        )


def read_present(side: Side, ifindex: int, recorded: LinkState) -> Present | None:
    """Read a link as it is now, even if other links depend on it; ``None`` if it is gone.

    Reads only those settings in the card that the driver reported when the link was recorded.

    Raises:
        KernelError: netlink failed.
    """
    found = _read_link(side, ifindex)
    if found is None:
        return None
    link, details = found
    routes = read_restorable_routes(side.rtnl, link)
    return Present(link, details, _read_state(side, link, details, routes, recorded))


def _read_link(side: Side, ifindex: int = 0, ifname: str = "") -> tuple[Link, LinkDetails] | None:
    if not (ifindex or ifname):
        return None
    try:
        answers = side.rtnl.request(get_link_request(ifindex, ifname))
    except KernelError as error:
        if is_no_such_link(error):
            return None
        raise
    payload = answers[0].payload
    link = decode(parse_link, payload)
    return link, decode(lambda data: parse_link_details(data, link), payload)


def _read_state(
    side: Side, link: Link, details: LinkDetails, routes: tuple[Route, ...], recorded: LinkState | None
) -> LinkState:
    traffic = read_traffic_control(side.rtnl, link.ifindex)
    # Filters need a qdisc; without one there are no filters.
    filters = read_filters(side.rtnl, link.ifindex) if traffic else ()
    return LinkState(
        ifindex=link.ifindex,
        ifname=link.ifname,
        mac=link.mac,
        mtu=link.mtu,
        up=link.is_up,
        permanent_mac=link.permanent_mac,
        alias=link.alias,
        tx_queue_length=link.tx_queue_length,
        group=link.group,
        addresses=read_addresses(side.rtnl, link),
        routes=routes,
        neighbours=read_neighbours(side.rtnl, link),
        parent_device=link.parent_device,
        version=RECORD_VERSION,
        altnames=link.altnames,
        promiscuous=bool(link.flags & IFF_PROMISC),
        all_multicast=bool(link.flags & IFF_ALLMULTI),
        arp=not link.flags & IFF_NOARP,
        multicast=bool(link.flags & IFF_MULTICAST),
        offload_sizes=details.offload_sizes,
        token=details.token,
        traffic_control=traffic,
        programs=(*read_program_names(side, link.ifindex), *filters),
        sysctls=side.run(lambda: read_link_sysctls(link.ifname)),
        read_at=read_boot_clock(),
        **{
            field: part.read(side, link, getattr(recorded, field) if recorded else None)
            for field, part in HARDWARE.items()
        },
    )
